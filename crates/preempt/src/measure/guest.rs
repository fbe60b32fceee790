//! Guest mode: how fast code runs in it, and what a system call costs.

use std::hint::black_box;
use std::time::Duration;

use super::cores::{beside, per_call};
use super::samples::{Rows, Samples};
use super::work::Work;
use super::{MeasureError, Part};
use crate::guest::Guest;
use crate::{Generation, Handles, Idle, Outcome, Pool, PoolConfig, Worker};

pub(super) const ROWS: Rows = &[
    "guest/integer-native",
    "guest/integer",
    "guest/avx2-native",
    "guest/avx2",
    "guest/memory-native",
    "guest/memory",
    "guest/system-call",
];

const STEPS: u32 = 20_000;
/// Of 8 bytes: 8 MiB, more than a core's own caches hold.
const ELEMENTS: usize = 1 << 20;
/// 16 KiB: fits into the first-level cache.
static NUMBERS: [f32; 4096] = [1.5; 4096];

#[derive(Clone, Copy)]
enum Kernel {
    Integer,
    Avx2,
    Memory,
    SystemCall,
}

pub(super) struct InGuestMode {
    guest: Guest,
    worker_core: usize,
    ring: &'static [usize],
    idle: Option<Idle<Kernel, f64>>,
    handles: Option<Handles<Kernel, f64>>,
}

impl InGuestMode {
    pub(super) fn new(guest: Guest, worker_core: usize) -> Result<Self, MeasureError> {
        // Kept for good: the contexts use it, and there is one table in a process.
        let ring: &'static [usize] = Vec::leak(ring());
        let config = PoolConfig::default()
            .contexts(1)
            .stack_size(64 * 1024)
            .name("measure");
        let mut pool = Pool::new(config, move |kernel| run(kernel, ring))?;
        Ok(Self {
            guest,
            worker_core,
            ring,
            idle: pool.idle.pop(),
            handles: Some(pool.handles),
        })
    }
}

impl Part for InGuestMode {
    fn round(&mut self, samples: &mut Samples) {
        let (guest, ring) = (&self.guest, self.ring);
        let Some(idle) = self.idle.take() else {
            return;
        };
        let ((idle, measured), ()) = beside(
            self.worker_core,
            move || {
                // The first time finds cold caches; in guest mode, pages that it has not met yet.
                for (kernel, ..) in KERNELS {
                    run(kernel, ring);
                }
                let natively = KERNELS.map(|(kernel, ..)| run(kernel, ring));
                let mut worker =
                    Worker::bind(2).unwrap_or_else(|error| panic!("it worked at first: {error}"));
                if worker.enter(guest).is_err() {
                    return (idle, None);
                }
                let mut inside = Inside {
                    worker,
                    idle: Some(idle),
                    generation: 0,
                };
                for (kernel, ..) in KERNELS {
                    inside.run(kernel);
                }
                let in_guest_mode = KERNELS.map(|(kernel, ..)| inside.run(kernel));
                let system_call = inside.run(Kernel::SystemCall);
                (
                    inside
                        .idle
                        .take()
                        .unwrap_or_else(|| unreachable!("it is put back")),
                    Some((natively, in_guest_mode, system_call)),
                )
            },
            || (),
        );
        self.idle = Some(idle);
        if let Some((natively, in_guest_mode, system_call)) = measured {
            for (at, (_, native, inside)) in KERNELS.into_iter().enumerate() {
                samples.add(native, natively[at]);
                samples.add(inside, in_guest_mode[at]);
            }
            samples.add("guest/system-call", system_call);
        }
    }
}

impl Drop for InGuestMode {
    fn drop(&mut self) {
        if let Some(handles) = self.handles.take() {
            let idle = self.idle.take().into_iter().collect();
            handles.hand_back(idle, Duration::from_secs(1));
        }
    }
}

const KERNELS: [(Kernel, &str, &str); 3] = [
    (Kernel::Integer, "guest/integer-native", "guest/integer"),
    (Kernel::Avx2, "guest/avx2-native", "guest/avx2"),
    (Kernel::Memory, "guest/memory-native", "guest/memory"),
];

/// A worker in guest mode and its one context.
struct Inside {
    worker: Worker,
    idle: Option<Idle<Kernel, f64>>,
    generation: u64,
}

impl Inside {
    fn run(&mut self, kernel: Kernel) -> f64 {
        let Some(idle) = self.idle.take() else {
            unreachable!("the context is put back below")
        };
        self.generation += 1;
        let job = idle.load(kernel).into();
        let Outcome::Finished(finished) = self.worker.run(job, Generation(self.generation)) else {
            unreachable!("no one asks for its preemption")
        };
        let (idle, nanos) = finished.take();
        self.idle = Some(idle);
        nanos.unwrap_or_else(|panicked| unreachable!("{panicked}"))
    }
}

/// Nanoseconds of one step.
fn run(kernel: Kernel, ring: &[usize]) -> f64 {
    match kernel {
        Kernel::Integer => {
            let work = Work {
                steps: STEPS,
                probes: false,
            };
            per_call(1, || {
                black_box(work.run());
            }) / f64::from(STEPS)
        }
        Kernel::Avx2 => {
            per_call(100, || {
                black_box(sum(black_box(&NUMBERS)));
            }) / (NUMBERS.len() / 8) as f64
        }
        Kernel::Memory => {
            per_call(1, || {
                black_box(chase(black_box(ring)));
            }) / f64::from(STEPS)
        }
        Kernel::SystemCall => per_call(50, || {
            // SAFETY: only answers a number.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }),
    }
}

/// So many steps that each wait for the one before, and for nothing else.
fn chase(ring: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..STEPS {
        at = ring[at];
    }
    at
}

fn sum(numbers: &[f32]) -> f32 {
    if is_x86_feature_detected!("avx2") {
        // SAFETY: just seen; guest mode has what the CPU has.
        unsafe { sum_by_avx2(numbers) }
    } else {
        numbers.iter().sum()
    }
}

#[target_feature(enable = "avx2")]
fn sum_by_avx2(numbers: &[f32]) -> f32 {
    let mut lanes = [0f32; 32];
    for strip in numbers.chunks_exact(32) {
        for (lane, number) in lanes.iter_mut().zip(strip) {
            *lane += number;
        }
    }
    lanes.iter().sum()
}

/// Each element names the next, in one cycle through all of them: a stride that the prefetchers do
/// not follow.
fn ring() -> Vec<usize> {
    // Odd, so that it meets every element of a power of two.
    const STRIDE: usize = 618_033;
    (0..ELEMENTS).map(|at| (at + STRIDE) % ELEMENTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_one_cycle() {
        let ring = ring();
        let (mut at, mut steps) = (0, 0);
        while steps == 0 || at != 0 {
            at = ring[at];
            steps += 1;
        }
        assert_eq!(steps, ELEMENTS);
    }

    #[test]
    fn both_sums_agree() {
        let numbers: Vec<f32> = (0..4096).map(|n| (n % 7) as f32).collect();
        assert_eq!(sum(&numbers), numbers.iter().sum::<f32>());
    }
}
