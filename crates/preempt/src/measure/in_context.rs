//! What code in a context pays: to be started and finished, to be probed, to hold preemption off.

use std::hint::black_box;
use std::time::Duration;

use super::cores::per_call;
use super::samples::{Rows, Samples};
use super::{MeasureError, Part};
use crate::{
    Cycles, Generation, Handles, Idle, Outcome, Pool, PoolConfig, Worker, preempt_point,
    without_preemption,
};

pub(super) const ROWS: Rows = &[
    "context/start-finish",
    "context/start-finish-bound",
    "probe/chase",
    "probe/per-iteration-chase",
    "probe/per-iteration-chase-with-deadline",
    "probe/sum",
    "probe/per-iteration-sum",
    "probe/per-iteration-sum-every-64",
    "guard/enter-leave",
];

/// What the context shall run.
#[derive(Clone, Copy)]
enum Job {
    Empty,
    Chase,
    ChaseProbed,
    Sum,
    SumProbed,
    SumProbedEvery64,
    Guard,
}

pub(super) struct InContext {
    worker: Worker,
    idle: Option<Idle<Job, f64>>,
    handles: Option<Handles<Job, f64>>,
    generation: u64,
}

impl InContext {
    /// Makes the calling thread a worker.
    pub(super) fn new() -> Result<Self, MeasureError> {
        let worker = Worker::bind(0)?;
        let ring = ring();
        let numbers: Vec<u64> = (0..ELEMENTS as u64).collect();
        let config = PoolConfig::default()
            .contexts(1)
            .stack_size(64 * 1024)
            .name("measure");
        let mut pool = Pool::new(config, move |job| match job {
            Job::Empty => 0.0,
            Job::Chase => per_step(|| chase(&ring)),
            Job::ChaseProbed => per_step(|| chase_probed(&ring)),
            Job::Sum => per_element(|| sum(&numbers)),
            Job::SumProbed => per_element(|| sum_probed(&numbers)),
            Job::SumProbedEvery64 => per_element(|| sum_probed_every_64(&numbers)),
            Job::Guard => per_call(20_000, || without_preemption(|| black_box(()))),
        })?;
        Ok(Self {
            worker,
            idle: pool.idle.pop(),
            handles: Some(pool.handles),
            generation: 0,
        })
    }

    #[inline(always)]
    fn run(&mut self, job: Job) -> f64 {
        self.run_until(job, None)
    }

    /// Its probes look at `deadline`.
    #[inline(always)]
    fn run_until(&mut self, job: Job, deadline: Option<Cycles>) -> f64 {
        let Some(idle) = self.idle.take() else {
            unreachable!("the context is put back below")
        };
        self.generation += 1;
        let generation = Generation(self.generation);
        if let Some(moment) = deadline {
            idle.0.head().request(generation, moment);
        }
        let ready = idle.load(job).into();
        let Outcome::Finished(finished) = self.worker.run(ready, generation) else {
            unreachable!("no one asks for its preemption")
        };
        let (idle, nanos) = finished.take();
        self.idle = Some(idle);
        nanos.unwrap_or_else(|panicked| unreachable!("{panicked}"))
    }
}

impl Part for InContext {
    fn round(&mut self, samples: &mut Samples) {
        let whole = per_call(10_000, || {
            self.run(Job::Empty);
        });
        samples.add("context/start-finish", whole);
        let parts = samples.last("switch/shared-tls") + samples.last("wrfsbase");
        samples.add("context/start-finish-bound", 2.0 * parts);
        let bare = self.run(Job::Chase);
        samples.add("probe/chase", bare);
        let probed = self.run(Job::ChaseProbed);
        samples.add("probe/per-iteration-chase", probed - bare);
        let probed = self.run_until(Job::ChaseProbed, Some(Cycles(u64::MAX)));
        samples.add("probe/per-iteration-chase-with-deadline", probed - bare);
        let bare = self.run(Job::Sum);
        samples.add("probe/sum", bare);
        let probed = self.run(Job::SumProbed);
        samples.add("probe/per-iteration-sum", probed - bare);
        let probed = self.run(Job::SumProbedEvery64);
        samples.add("probe/per-iteration-sum-every-64", probed - bare);
        let guard = self.run(Job::Guard);
        samples.add("guard/enter-leave", guard);
    }
}

impl Drop for InContext {
    fn drop(&mut self) {
        if let Some(handles) = self.handles.take() {
            handles.hand_back(
                self.idle.take().into_iter().collect(),
                Duration::from_secs(1),
            );
        }
    }
}

/// 16 KiB: fits into the first-level cache.
const ELEMENTS: usize = 2048;

fn per_step(chase: impl FnMut() -> usize) -> f64 {
    per_pass(20, chase)
}

fn per_element(sum: impl FnMut() -> u64) -> f64 {
    per_pass(100, sum)
}

fn per_pass<Out>(passes: u32, mut pass: impl FnMut() -> Out) -> f64 {
    per_call(passes, || {
        black_box(pass());
    }) / ELEMENTS as f64
}

/// Each element names the next, in one cycle through all of them.
fn ring() -> Vec<usize> {
    let mut order: Vec<usize> = (0..ELEMENTS).collect();
    let mut random: usize = 1;
    for last in (1..ELEMENTS).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (random >> 33) % (last + 1));
    }
    let mut ring = vec![0; ELEMENTS];
    for (&from, &to) in order.iter().zip(order.iter().cycle().skip(1)) {
        ring[from] = to;
    }
    ring
}

#[inline(never)]
fn chase(ring: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..ELEMENTS {
        at = ring[at];
    }
    at
}

#[inline(never)]
fn chase_probed(ring: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..ELEMENTS {
        at = ring[at];
        preempt_point();
    }
    at
}

#[inline(never)]
fn sum(numbers: &[u64]) -> u64 {
    let mut sum = 0u64;
    for number in numbers {
        sum = sum.wrapping_add(*number);
    }
    sum
}

#[inline(never)]
fn sum_probed(numbers: &[u64]) -> u64 {
    let mut sum = 0u64;
    for number in numbers {
        sum = sum.wrapping_add(*number);
        preempt_point();
    }
    sum
}

#[inline(never)]
fn sum_probed_every_64(numbers: &[u64]) -> u64 {
    let mut sum = 0u64;
    for strip in numbers.chunks(64) {
        for number in strip {
            sum = sum.wrapping_add(*number);
        }
        preempt_point();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_one_cycle() {
        let ring = ring();
        let mut at = 0;
        for step in 1..=ELEMENTS {
            at = ring[at];
            assert_eq!(at == 0, step == ELEMENTS, "back at the start after {step}");
        }
        assert_eq!(chase(&ring), 0);
        assert_eq!(chase_probed(&ring), 0);
    }

    #[test]
    fn the_sums_agree() {
        let numbers: Vec<u64> = (0..1000).collect();
        assert_eq!(sum(&numbers), 499_500);
        assert_eq!(sum_probed(&numbers), 499_500);
        assert_eq!(sum_probed_every_64(&numbers), 499_500);
    }
}
