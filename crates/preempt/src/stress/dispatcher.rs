//! The stress test's dispatcher: one queue, and a hostile clock.
//!
//! ```text
//!              ┌─────────── queue: first in, first out ◀──────────┐ preempted, or loaded again
//!              ▼                                                  │
//!   dispatcher ──mailbox, 2 deep──▶ worker ──run──▶ context ──────┘
//!        └── once a quantum: request + interrupt the older of the two; now and then a request for a dispatch that
//!            is over, or an interrupt without a request
//! ```
//!
//! The loop neither allocates nor takes a lock: a suspended context may hold any.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::scheduler::{DEPTH, Done, Job};
use super::watchdog::SELDOM;
use super::world::{Check, World};
use crate::{
    Completion, Dispatched, Idle, Mechanism, Realtime, Runnable, Sender, Suspended, WorkerLink,
};

/// Real-time priority, if permitted: an ordinary thread would wait until the kernel takes a core
/// from a busy worker.
const PRIORITY: i32 = 1;

/// What the dispatcher knows of one worker.
struct WorkerState {
    sender: Sender<Job, Done>,
    link: WorkerLink,
    /// Contexts sent and not answered, oldest first.
    out: VecDeque<Out>,
    /// The last answered dispatch.
    over: Option<Dispatched>,
}

struct Out {
    dispatched: Dispatched,
    requested: bool,
}

pub(super) struct Dispatcher {
    queue: VecDeque<Runnable<Job, Done>>,
    idle: Vec<Idle<Job, Done>>,
    workers: Vec<WorkerState>,
    mechanism: Arc<dyn Mechanism>,
    world: Arc<World>,
    random: u64,
}

impl Dispatcher {
    pub(super) fn new(
        idle: Vec<Idle<Job, Done>>,
        workers: Vec<(Sender<Job, Done>, WorkerLink)>,
        mechanism: Arc<dyn Mechanism>,
        world: &Arc<World>,
    ) -> Self {
        let workers = workers.into_iter().map(|(sender, link)| WorkerState {
            sender,
            link,
            out: VecDeque::with_capacity(DEPTH),
            over: None,
        });
        Self {
            idle: Vec::with_capacity(idle.len()),
            queue: idle.into_iter().map(reload).collect(),
            workers: workers.collect(),
            mechanism,
            world: Arc::clone(world),
            random: 0x2545_f491_4f6c_dd1d,
        }
    }

    /// Dispatches until the world is stopping and all contexts are idle; then returns the contexts.
    pub(super) fn run(mut self, quantum: Duration) -> Vec<Idle<Job, Done>> {
        let _realtime = Realtime::enter(PRIORITY).ok();
        sharpen_timers();
        let contexts = self.queue.len();
        while self.idle.len() < contexts {
            self.tick();
            let seldom = self.world.interrupt_seldom.load(Ordering::Relaxed);
            let pause = if seldom { quantum.max(SELDOM) } else { quantum };
            std::thread::sleep(self.about(pause));
        }
        self.idle
    }

    fn tick(&mut self) {
        for worker in 0..self.workers.len() {
            self.collect(worker);
        }
        self.take_early();
        for worker in 0..self.workers.len() {
            self.fill(worker);
            self.interrupt(worker);
        }
    }

    /// Takes the worker's answers.
    fn collect(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        while let Some((_, completion)) = state.sender.poll() {
            let out = state
                .out
                .pop_front()
                .expect("only what was sent is answered");
            state.over = Some(out.dispatched);
            match completion {
                Completion::Finished(idle) => {
                    self.world.requests.fetch_add(1, Ordering::Relaxed);
                    if self.world.stopping.load(Ordering::Relaxed) {
                        self.idle.push(idle);
                    } else {
                        self.queue.push_back(reload(idle));
                    }
                }
                Completion::Preempted(suspended) => {
                    if !out.requested {
                        self.world.wrong(Check::Unrequested);
                    }
                    if let Some(suspended) = not_handed_on_yet(suspended) {
                        self.queue.push_back(suspended.into());
                    }
                }
            }
        }
    }

    fn fill(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        while state.sender.has_room() {
            let Some(runnable) = self.queue.pop_front() else {
                return;
            };
            match state.sender.send(runnable) {
                Ok(dispatched) => state.out.push_back(Out {
                    dispatched,
                    requested: false,
                }),
                Err(runnable) => self.queue.push_front(runnable),
            }
        }
    }

    /// Asks the worker's context to give way, or sends an interrupt that must be ignored.
    fn interrupt(&mut self, worker: usize) {
        let whim = self.random() % 16;
        let state = &mut self.workers[worker];
        match whim {
            // Without a request.
            0 => {}
            // With a request for an earlier dispatch.
            1 => state.over.iter().for_each(Dispatched::request),
            _ => {
                if let Some(out) = state.out.front_mut() {
                    out.requested = true;
                    out.dispatched.request();
                }
            }
        }
        if self.mechanism.interrupt(&state.link).is_err() {
            self.world.wrong(Check::InterruptRefused);
        }
    }

    /// From half of `time` to one and a half.
    fn about(&mut self, time: Duration) -> Duration {
        let permille = 500 + self.random() % 1001;
        time * permille as u32 / 1000
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    #[cfg(feature = "fault-injection")]
    fn take_early(&mut self) {
        while let Some(suspended) = super::early::take() {
            self.queue.push_front(suspended.into());
        }
    }

    #[cfg(not(feature = "fault-injection"))]
    fn take_early(&mut self) {}
}

fn reload(idle: Idle<Job, Done>) -> Runnable<Job, Done> {
    let context = usize::from(idle.id().0);
    idle.load(context).into()
}

/// The context, unless fault injection has handed it on already.
fn not_handed_on_yet(suspended: Suspended<Job, Done>) -> Option<Suspended<Job, Done>> {
    #[cfg(feature = "fault-injection")]
    if super::early::was_taken(&suspended) {
        return None;
    }
    Some(suspended)
}

/// Linux lets ordinary threads' timers be 50 us late, to save power.
fn sharpen_timers() {
    // SAFETY: changes the calling thread's timer slack only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}
