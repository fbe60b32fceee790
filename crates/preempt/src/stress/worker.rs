//! The stress test's workers: pinned threads that run the dispatcher's contexts, and check
//! themselves after every run.
//!
//! The loop neither allocates nor takes a lock: a suspended context may hold any.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use super::scheduler::{Done, Job};
use super::world::{Check, World};
use super::{Chosen, Config};
use crate::{Completion, Outcome, Receiver, Worker, WorkerLink};

/// Set while a worker runs the context; only one worker may.
static RUNNING: [AtomicBool; Config::MAX_CONTEXTS] =
    [const { AtomicBool::new(false) }; Config::MAX_CONTEXTS];

/// Starts worker `id`, pinned to `core`, and waits for the link that others need.
pub(super) fn start(
    id: usize,
    core: usize,
    receiver: Receiver<Job, Done>,
    mechanism: &Arc<Chosen>,
    world: &Arc<World>,
) -> std::io::Result<(JoinHandle<()>, WorkerLink)> {
    let (send_link, link) = mpsc::channel();
    let (mechanism, world) = (Arc::clone(mechanism), Arc::clone(world));
    let thread = std::thread::Builder::new()
        .name(format!("stress-worker-{id}"))
        .spawn(move || {
            pin_to(core);
            let mut worker =
                Worker::bind(id as u32).expect("a pool could be made, so a worker can");
            let link = mechanism.prepare(&mut worker).map(|()| worker.link());
            let ready = link.is_ok();
            // The other end waits below.
            let _ = send_link.send(link);
            if !ready {
                return;
            }
            drop(send_link);
            run_contexts(worker, receiver, &world);
        })?;
    let link = link.recv().expect("the worker sends its link first")?;
    Ok((thread, link))
}

/// Resets the flags of running contexts, for the next test in this process.
pub(super) fn reset() {
    for running in &RUNNING {
        running.store(false, Ordering::Relaxed);
    }
}

/// A worker's loop, until it is told to stop.
fn run_contexts(mut worker: Worker, mut receiver: Receiver<Job, Done>, world: &World) {
    let (stack, words) = (alternate_stack(), control_words());
    while !world.workers_stop.load(Ordering::Relaxed) {
        let Some((runnable, generation)) = receiver.poll() else {
            std::thread::yield_now();
            continue;
        };
        let running = &RUNNING[usize::from(runnable.id().0)];
        if running.swap(true, Ordering::AcqRel) {
            world.wrong(Check::RunTwice);
        }
        let outcome = worker.run(runnable, generation);
        running.store(false, Ordering::Release);
        if alternate_stack() != stack {
            world.wrong(Check::AlternateStack);
        }
        if control_words() != words {
            world.wrong(Check::WorkersControlWords);
        }
        receiver.answer(match outcome {
            Outcome::Preempted(suspended) => Completion::Preempted(suspended),
            Outcome::Finished(finished) => {
                let (idle, done) = finished.take();
                if done.is_err() {
                    world.wrong(Check::JobPanicked);
                }
                Completion::Finished(idle)
            }
        });
    }
}

/// Base and flags of the calling thread's alternate signal stack.
fn alternate_stack() -> (usize, i32) {
    // SAFETY: only reads; zeroes are a valid `stack_t`.
    unsafe {
        let mut now: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut now);
        (now.ss_sp.addr(), now.ss_flags)
    }
}

/// MXCSR without its sticky flags, and the x87 control word.
fn control_words() -> (u32, u16) {
    let (mut mxcsr, mut x87) = (0u32, 0u16);
    // SAFETY: both instructions only store to the operand.
    unsafe {
        std::arch::asm!(
            "stmxcsr [{}]", "fnstcw [{}]",
            in(reg) &raw mut mxcsr, in(reg) &raw mut x87,
            options(nostack, preserves_flags),
        );
    }
    (mxcsr & !0x3f, x87)
}

pub(super) fn allowed_cores() -> Vec<usize> {
    // SAFETY: fills in the local set; a set is plain bits.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    };
    // SAFETY: the numbers are within the set's size.
    let allowed = |core: &usize| unsafe { libc::CPU_ISSET(*core, &set) };
    let mut cores: Vec<_> = (0..libc::CPU_SETSIZE as usize).filter(allowed).collect();
    if cores.is_empty() {
        cores.push(0);
    }
    cores
}

/// If the kernel refuses, the thread stays where the kernel puts it.
fn pin_to(core: usize) {
    // SAFETY: changes the calling thread's affinity only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
