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
use crate::{
    Affinity, Completion, ContextId, ContextKind, Finished, Receiver, Service, Step, Suspended,
    Worker, WorkerLink,
};

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
            worker.serve(&mut Loop {
                receiver,
                world,
                found: (mechanism.contexts() == ContextKind::Stack).then(OwnState::now),
                running: None,
            });
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
struct Loop {
    receiver: Receiver<Job, Done>,
    world: Arc<World>,
    /// The worker's own state at the start. `None`: the loop goes from thread to thread.
    found: Option<OwnState>,
    running: Option<ContextId>,
}

impl Service<Job, Done> for Loop {
    fn next(&mut self) -> Step<Job, Done> {
        if self.world.workers_stop.load(Ordering::Relaxed) {
            return Step::End;
        }
        let Some((runnable, generation)) = self.receiver.poll() else {
            std::thread::yield_now();
            return Step::Nothing;
        };
        let context = runnable.id();
        if RUNNING[usize::from(context.0)].swap(true, Ordering::AcqRel) {
            self.world.wrong(Check::RunTwice);
        }
        self.running = Some(context);
        Step::Run(runnable, generation)
    }

    fn finished(&mut self, finished: Finished<Job, Done>) {
        self.check();
        let (idle, done) = finished.take();
        if done.is_err() {
            self.world.wrong(Check::JobPanicked);
        }
        self.receiver.answer(Completion::Finished(idle));
    }

    fn preempted(&mut self, suspended: Suspended<Job, Done>) {
        self.check();
        self.receiver.answer(Completion::Preempted(suspended));
    }

    fn sleep(&mut self) {}
}

impl Loop {
    /// After every run.
    fn check(&mut self) {
        if let Some(context) = self.running.take() {
            RUNNING[usize::from(context.0)].store(false, Ordering::Release);
        }
        let Some(found) = &self.found else {
            return;
        };
        let now = OwnState::now();
        if now.alternate_stack != found.alternate_stack {
            self.world.wrong(Check::AlternateStack);
        }
        if now.control_words != found.control_words {
            self.world.wrong(Check::WorkersControlWords);
        }
    }
}

/// What a context's code must not change of its worker.
struct OwnState {
    alternate_stack: (usize, i32),
    control_words: (u32, u16),
}

impl OwnState {
    fn now() -> Self {
        Self {
            alternate_stack: alternate_stack(),
            control_words: control_words(),
        }
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

/// The cores that this process may use, at least one.
pub(super) fn allowed_cores() -> Vec<usize> {
    let cores: Vec<_> =
        Affinity::of_current().map_or_else(|_| Vec::new(), |all| all.numbers().collect());
    if cores.is_empty() { vec![0] } else { cores }
}

/// If the kernel refuses, the thread stays where the kernel puts it.
fn pin_to(core: usize) {
    let _ = Affinity::of_core(core).map(|core| core.apply());
}
