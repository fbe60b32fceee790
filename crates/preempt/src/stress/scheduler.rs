//! A small scheduler: one queue, a dispatcher that interrupts every worker once a quantum, and pinned workers.
//!
//! ```text
//!              ┌─────────── queue: first in, first out ◀──────────┐ preempted, or loaded again
//!              ▼                                                  │
//!   dispatcher ──mailbox, 2 deep──▶ worker ──run──▶ context ──────┘
//!        └── once a quantum: request + interrupt the older of the two; now and then a request for a dispatch that
//!            is over, or an interrupt that nobody requested
//! ```
//!
//! Neither loop allocates or takes a lock: a suspended context may hold any.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::job::State;
use super::world::{Check, World};
use super::{Config, StressError};
use crate::{
    Completion, CountersSnapshot, Dispatched, HandBack, Handles, Idle, Mechanism, Outcome, Pool,
    PoolConfig, Realtime, Receiver, Runnable, Sender, Suspended, Worker, WorkerLink, mailbox,
};

/// The number of the context to work in.
type Job = usize;
/// How many operations were drawn.
type Done = u64;

/// A worker has one context to run and one waiting, so it never waits for the dispatcher.
pub(super) const DEPTH: usize = 2;

/// Priority of the dispatcher, where permitted. An ordinary thread would wait for the kernel to take a core from one of
/// the busy workers.
const DISPATCHER_PRIORITY: i32 = 1;

/// Set while a worker runs the context: each is run by one at a time.
static RUNNING: [AtomicBool; Config::MAX_CONTEXTS] =
    [const { AtomicBool::new(false) }; Config::MAX_CONTEXTS];

pub(super) struct Scheduler {
    world: Arc<World>,
    dispatcher: JoinHandle<Vec<Idle<Job, Done>>>,
    workers: Vec<JoinHandle<()>>,
    links: Vec<WorkerLink>,
    handles: Handles<Job, Done>,
}

impl Scheduler {
    pub(super) fn start(
        config: &Config,
        mechanism: Box<dyn Mechanism>,
        world: &Arc<World>,
    ) -> Result<Self, StressError> {
        let pool_config = PoolConfig {
            contexts: config.contexts,
            name: "stress".to_owned(),
            ..PoolConfig::default()
        };
        let states: Vec<_> = (0..config.contexts)
            .map(|context| Mutex::new(State::new(context, pool_config.stack_size)))
            .collect();
        let contexts_world = Arc::clone(world);
        let pool = Pool::new(pool_config, move |context: Job| {
            // Nobody else wants it: the state is its context's.
            let state = states[context].lock();
            state
                .unwrap_or_else(PoisonError::into_inner)
                .work(&contexts_world)
        })?;
        RUNNING
            .iter()
            .for_each(|running| running.store(false, Ordering::Relaxed));
        let cores = allowed_cores();
        let (mut desks, mut workers) = (Vec::new(), Vec::new());
        for id in 0..config.workers {
            let (sender, receiver) = mailbox(DEPTH);
            let (send_link, link) = mpsc::channel();
            let (world, core) = (Arc::clone(world), cores[id % cores.len()]);
            workers.push(
                std::thread::Builder::new()
                    .name(format!("stress-worker-{id}"))
                    .spawn(move || {
                        pin_to(core);
                        let worker = Worker::bind(id as u32).expect("the pool was made here");
                        // The other end waits below.
                        let _ = send_link.send(worker.link());
                        drop(send_link);
                        run_contexts(worker, receiver, &world);
                    })?,
            );
            desks.push(Desk {
                sender,
                link: link.recv().expect("the worker sends its link first"),
                out: VecDeque::with_capacity(DEPTH),
                over: None,
            });
        }
        let links = desks.iter().map(|desk| desk.link.clone()).collect();
        let mut dispatcher = Dispatcher {
            queue: VecDeque::with_capacity(config.contexts),
            idle: Vec::with_capacity(config.contexts),
            desks,
            mechanism,
            world: Arc::clone(world),
            random: 0x2545_f491_4f6c_dd1d,
        };
        let (contexts, quantum) = (config.contexts, config.quantum);
        let idle = pool.idle;
        let dispatcher = std::thread::Builder::new()
            .name("stress-dispatcher".into())
            .spawn(move || {
                let _realtime = Realtime::enter(DISPATCHER_PRIORITY).ok();
                sharpen_timers();
                idle.into_iter()
                    .for_each(|idle| dispatcher.load_or_keep(idle));
                while dispatcher.idle.len() < contexts {
                    dispatcher.tick();
                    std::thread::sleep(dispatcher.about(quantum));
                }
                dispatcher.idle
            })?;
        Ok(Self {
            world: Arc::clone(world),
            dispatcher,
            workers,
            links,
            handles: pool.handles,
        })
    }

    pub(super) fn counters(&self) -> CountersSnapshot {
        let mut sum = CountersSnapshot::default();
        self.links.iter().for_each(|link| sum += link.counters());
        sum
    }

    /// Lets the jobs end, then the workers, then the donors. `None` if that takes longer than `patience`.
    pub(super) fn end(self, patience: Duration) -> Option<(CountersSnapshot, HandBack)> {
        let counters = self.counters();
        self.world.stopping.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !self.dispatcher.is_finished() {
            if start.elapsed() > patience {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let idle = self.dispatcher.join().ok()?;
        self.world.workers_stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.join().ok()?;
        }
        Some((counters, self.handles.hand_back(idle, patience)))
    }
}

/// What the dispatcher knows of one worker.
struct Desk {
    sender: Sender<Job, Done>,
    link: WorkerLink,
    /// Sent and not answered, oldest first.
    out: VecDeque<Out>,
    /// The last that was answered.
    over: Option<Dispatched>,
}

struct Out {
    dispatched: Dispatched,
    requested: bool,
}

struct Dispatcher {
    queue: VecDeque<Runnable<Job, Done>>,
    idle: Vec<Idle<Job, Done>>,
    desks: Vec<Desk>,
    mechanism: Box<dyn Mechanism>,
    world: Arc<World>,
    random: u64,
}

impl Dispatcher {
    fn tick(&mut self) {
        for worker in 0..self.desks.len() {
            self.collect(worker);
        }
        self.take_early();
        for worker in 0..self.desks.len() {
            self.fill(worker);
            self.interrupt(worker);
        }
    }

    /// Takes the worker's answers.
    fn collect(&mut self, worker: usize) {
        let desk = &mut self.desks[worker];
        while let Some((_, completion)) = desk.sender.poll() {
            let out = desk
                .out
                .pop_front()
                .expect("only what was sent is answered");
            desk.over = Some(out.dispatched);
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

    fn load_or_keep(&mut self, idle: Idle<Job, Done>) {
        self.queue.push_back(reload(idle));
    }

    fn fill(&mut self, worker: usize) {
        let desk = &mut self.desks[worker];
        while desk.sender.has_room() {
            let Some(runnable) = self.queue.pop_front() else {
                return;
            };
            match desk.sender.send(runnable) {
                Ok(dispatched) => desk.out.push_back(Out {
                    dispatched,
                    requested: false,
                }),
                Err(runnable) => self.queue.push_front(runnable),
            }
        }
    }

    /// Asks the worker's context to give way, or annoys it with what must be ignored.
    fn interrupt(&mut self, worker: usize) {
        let whim = self.random() % 16;
        let desk = &mut self.desks[worker];
        match whim {
            // Nothing is requested.
            0 => {}
            // Something is, that is over.
            1 => desk.over.iter().for_each(Dispatched::request),
            _ => {
                if let Some(out) = desk.out.front_mut() {
                    out.requested = true;
                    out.dispatched.request();
                }
            }
        }
        if self.mechanism.interrupt(&desk.link).is_err() {
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
    #[expect(clippy::unused_self, reason = "the counterpart with faults needs it")]
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

/// A worker's loop.
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
    // SAFETY: only asks; zeroes are a valid `stack_t`.
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

fn allowed_cores() -> Vec<usize> {
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

/// Where it is refused, the thread stays where the kernel puts it.
fn pin_to(core: usize) {
    // SAFETY: changes the calling thread's affinity only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Linux lets ordinary threads' timers be 50 us late, to save power.
fn sharpen_timers() {
    // SAFETY: changes the calling thread's timer slack only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}
