//! Whole preemptions: two contexts on the worker take turns, each preempted as soon as it has run
//! for a pause.
//!
//! ```text
//!   sender   ──request A──▶              poll: A, send A ─────pause───── request B ──▶
//!   worker    A runs       A gives way, B taken from the mailbox, B runs ...
//!                          └────────── lost ──────────┘
//! ```
//!
//! Both have a known amount of work. What it takes longer than undisturbed (before and after, once
//! warm), divided by the preemptions that happened, is what one loses: interruption, switch away,
//! mailbox both ways, switch to the other one, and what the caches and predictors forgot.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::cores::{beside, nanos};
use super::samples::{Rows, Samples};
use super::work::Work;
use super::{MeasureError, Part, signals};
use crate::clock::Cycles;
use crate::realtime::Realtime;
use crate::{
    Backend, Completion, ContextKind, Dispatched, Finished, Handles, HardPreemption, Idle,
    Mechanism, Pool, PoolConfig, Probe, Receiver, Runnable, Sender, SenderMode, Service, Signal,
    Step, Suspended, Worker, WorkerLink, mailbox,
};

pub(super) const ROWS: Rows = &[
    "preempt/probe-request",
    "preempt/probe-end-to-end",
    "preempt/probe",
    "preempt/probe-unstaged",
    "preempt/signal-end-to-end",
    "preempt/signal",
    "preempt/kernel-thread-end-to-end",
    "preempt/kernel-thread",
    "preempt/guest-request",
    "preempt/guest-end-to-end",
    "preempt/guest",
    "preempt/guest-msi-request",
    "preempt/guest-msi-end-to-end",
    "preempt/guest-msi",
    "preempt/guest-apic-request",
    "preempt/guest-apic-end-to-end",
    "preempt/guest-apic",
];

/// The two contexts' together. Probes cost little, so that there must be many in a short time to
/// see them.
const PROBE_STEPS: u32 = 500_000;
const PROBE_PAUSE: Duration = Duration::from_micros(2);
/// Preemptions of a run at most, above what one takes otherwise: where a preemption takes longer
/// than the pause, the work would not come to its end.
const MOST: u32 = 1_000;

pub(super) struct Preemptions {
    worker_core: usize,
    hard: Hard,
    /// How interrupts came to the worker.
    delivery: Option<String>,
    idle: Vec<Idle<Work, u64>>,
    handles: Option<Handles<Work, u64>>,
}

/// What is measured beside probes.
enum Hard {
    None,
    Signal(Signal),
    /// Alone, with contexts that are kernel threads.
    KernelThread(Signal),
    /// Alone: probes are another's to measure.
    Backend(Arc<dyn Backend>, &'static str),
}

/// One way of preempting.
#[derive(Clone, Copy)]
struct Way<'a> {
    mechanism: &'a dyn Mechanism,
    work: Work,
    pause: Duration,
    staged: bool,
}

/// What a way took.
#[derive(Default)]
struct Taken {
    undisturbed: Cycles,
    disturbed: Cycles,
    preemptions: u32,
    requesting: u64,
    end_to_end: u64,
}

impl Preemptions {
    pub(super) fn new(
        worker_core: usize,
        hard: Option<HardPreemption>,
    ) -> Result<Self, MeasureError> {
        let hard = match hard {
            Some(token) => Hard::Signal(Signal::install(token)?),
            None => Hard::None,
        };
        Self::with(worker_core, hard)
    }

    /// By `backend`, as the row of this name.
    pub(super) fn in_mode(
        worker_core: usize,
        backend: Arc<dyn Backend>,
        row: &'static str,
    ) -> Result<Self, MeasureError> {
        Self::with(worker_core, Hard::Backend(backend, row))
    }

    /// With contexts that are kernel threads.
    pub(super) fn on_kernel_threads(worker_core: usize) -> Result<Self, MeasureError> {
        Self::with(
            worker_core,
            Hard::KernelThread(Signal::for_kernel_threads()?),
        )
    }

    fn with(worker_core: usize, hard: Hard) -> Result<Self, MeasureError> {
        let config = PoolConfig::default()
            .contexts(2)
            .stack_size(64 * 1024)
            .name("measure")
            .kind(match hard {
                Hard::KernelThread(_) => ContextKind::KernelThread,
                _ => ContextKind::Stack,
            });
        let pool = Pool::new(config, Work::run)?;
        Ok(Self {
            worker_core,
            hard,
            delivery: None,
            idle: pool.idle,
            handles: Some(pool.handles),
        })
    }

    fn measure(&mut self, way: Way<'_>) -> Taken {
        let (sender, receiver) = mailbox(if way.staged { 2 } else { 1 });
        let stop = AtomicBool::new(false);
        let (send_link, links) = mpsc::channel();
        let idle = &mut self.idle;
        let (hard, delivery) = (&self.hard, &mut self.delivery);
        let ((), taken) = beside(
            self.worker_core,
            || serve(receiver, hard, &send_link, &stop),
            || {
                // Also if this panics: the worker would not end.
                let _stop = Stop(&stop);
                links.recv().map_or_else(
                    |_| Taken::default(),
                    |link| {
                        let _mode = hard.prepare_sender();
                        let mut requester = Requester {
                            sender,
                            link,
                            idle,
                            waiting: VecDeque::with_capacity(2),
                            out: VecDeque::with_capacity(2),
                        };
                        let mut taken = Taken::default();
                        requester.run(way, None);
                        let before = requester.run(way, None);
                        taken.disturbed = requester.run(way, Some(&mut taken));
                        let after = requester.run(way, None);
                        taken.undisturbed = Cycles((before.0 + after.0) / 2);
                        *delivery = hard.delivery(&requester.link);
                        taken
                    },
                )
            },
        );
        taken
    }
}

impl Preemptions {
    fn round_by_signal(&mut self, signal: &Signal, row: &str, samples: &mut Samples) {
        let taken = self.measure(Way {
            mechanism: signal,
            work: Work {
                steps: signals::STEPS / 2,
                probes: false,
            },
            pause: signals::PAUSE,
            staged: true,
        });
        if taken.preemptions > 0 {
            samples.add(row, taken.lost());
            samples.add(&format!("{row}-end-to-end"), taken.each(taken.end_to_end));
        }
    }
}

impl Part for Preemptions {
    fn round(&mut self, samples: &mut Samples) {
        if let Hard::Backend(backend, row) = &self.hard {
            let (backend, row) = (Arc::clone(backend), *row);
            let way = Way {
                mechanism: &*backend,
                work: Work {
                    steps: signals::STEPS / 2,
                    probes: false,
                },
                pause: signals::PAUSE,
                staged: true,
            };
            // On a thread of its own, like this one: this one is a worker, too, which cannot send
            // from guest mode.
            let priority = Realtime::priority_of_current();
            let measure = || {
                let _realtime = priority.map(Realtime::enter);
                self.measure(way)
            };
            let taken = std::thread::scope(|scope| scope.spawn(measure).join())
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if taken.preemptions > 0 {
                let (requesting, end_to_end) = (taken.requesting, taken.end_to_end);
                samples.add(row, taken.lost());
                samples.add(&format!("{row}-request"), taken.each(requesting));
                samples.add(&format!("{row}-end-to-end"), taken.each(end_to_end));
            }
            return;
        }
        if let Hard::KernelThread(signal) = self.hard {
            return self.round_by_signal(&signal, "preempt/kernel-thread", samples);
        }
        let probe = Way {
            mechanism: &Probe,
            work: Work {
                steps: PROBE_STEPS / 2,
                probes: true,
            },
            pause: PROBE_PAUSE,
            staged: true,
        };
        let taken = self.measure(probe);
        if taken.preemptions > 0 {
            samples.add("preempt/probe", taken.lost());
            samples.add("preempt/probe-request", taken.each(taken.requesting));
            samples.add("preempt/probe-end-to-end", taken.each(taken.end_to_end));
        }
        let taken = self.measure(Way {
            staged: false,
            ..probe
        });
        if taken.preemptions > 0 {
            samples.add("preempt/probe-unstaged", taken.lost());
        }
        let Hard::Signal(signal) = self.hard else {
            return;
        };
        self.round_by_signal(&signal, "preempt/signal", samples);
    }

    fn remark(&self) -> Option<(&'static str, String)> {
        if let (Hard::Backend(_, row), Some(delivery)) = (&self.hard, &self.delivery) {
            return Some((row, format!("interrupts {delivery}")));
        }
        None
    }
}

impl Drop for Preemptions {
    fn drop(&mut self) {
        if let Some(handles) = self.handles.take() {
            handles.hand_back(std::mem::take(&mut self.idle), Duration::from_secs(1));
        }
    }
}

impl Hard {
    fn backend(&self) -> Option<&dyn Backend> {
        match self {
            Self::Backend(backend, _) => Some(&**backend),
            Self::None | Self::Signal(_) | Self::KernelThread(_) => None,
        }
    }

    fn prepare(&self, worker: &mut Worker) {
        if let Some(backend) = self.backend() {
            worker
                .enter(backend)
                .unwrap_or_else(|error| panic!("it worked at first: {error}"));
        }
    }

    fn prepare_sender(&self) -> Option<SenderMode> {
        self.backend()?.enter_as_sender().ok()
    }

    fn delivery(&self, link: &WorkerLink) -> Option<String> {
        let delivery = self.backend()?.delivery_to(std::slice::from_ref(link))?;
        Some(delivery.to_string())
    }
}

impl Taken {
    /// Nanoseconds that the worker lost per preemption.
    fn lost(&self) -> f64 {
        (nanos(self.disturbed) - nanos(self.undisturbed)) / f64::from(self.preemptions)
    }

    fn each(&self, cycles: u64) -> f64 {
        nanos(Cycles(cycles)) / f64::from(self.preemptions)
    }
}

/// Stops the worker when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The worker: runs what it is sent.
fn serve(
    receiver: Receiver<Work, u64>,
    hard: &Hard,
    send_link: &mpsc::Sender<WorkerLink>,
    stop: &AtomicBool,
) {
    let mut worker = Worker::bind(1).unwrap_or_else(|error| panic!("it worked at first: {error}"));
    hard.prepare(&mut worker);
    let _ = send_link.send(worker.link());
    worker.serve(&mut Loop { receiver, stop });
}

struct Loop<'a> {
    receiver: Receiver<Work, u64>,
    stop: &'a AtomicBool,
}

impl Service<Work, u64> for Loop<'_> {
    fn next(&mut self) -> Step<Work, u64> {
        match self.receiver.poll() {
            _ if self.stop.load(Ordering::Relaxed) => Step::End,
            Some((runnable, generation)) => Step::Run(runnable, generation),
            None => Step::Nothing,
        }
    }

    fn finished(&mut self, finished: Finished<Work, u64>) {
        self.receiver.prefetch();
        self.receiver
            .answer(Completion::Finished(finished.take().0));
    }

    fn preempted(&mut self, suspended: Suspended<Work, u64>) {
        self.receiver.prefetch();
        self.receiver.answer(Completion::Preempted(suspended));
    }

    fn sleep(&mut self) {}
}

/// The dispatcher's side: what this thread knows and has.
struct Requester<'a> {
    sender: Sender<Work, u64>,
    link: WorkerLink,
    idle: &'a mut Vec<Idle<Work, u64>>,
    waiting: VecDeque<Runnable<Work, u64>>,
    /// What the worker has; it runs the first.
    out: VecDeque<Dispatched>,
}

impl Requester<'_> {
    /// Has both contexts' work done, and preempts if there is somewhere to note it.
    fn run(&mut self, way: Way<'_>, mut note: Option<&mut Taken>) -> Cycles {
        let start = Cycles::now();
        let loaded = self.idle.drain(..).map(|idle| idle.load(way.work).into());
        self.waiting.extend(loaded);
        self.send();
        let (mut since, mut asked) = (Instant::now(), None);
        while !self.out.is_empty() {
            match self.sender.poll() {
                Some((_, completion)) => {
                    let now = Cycles::now();
                    self.out.pop_front();
                    match completion {
                        Completion::Finished(idle) => self.idle.push(idle),
                        Completion::Preempted(suspended) => {
                            self.waiting.push_back(suspended.into());
                            if let (Some(note), Some(asked)) = (&mut note, asked) {
                                note.preemptions += 1;
                                note.end_to_end += now.since(asked).0;
                            }
                        }
                    }
                    self.send();
                    (since, asked) = (Instant::now(), None);
                }
                None if asked.is_none() && since.elapsed() > way.pause => {
                    let other = self.waiting.len() + self.out.len() == 2;
                    let note = note.as_mut().filter(|note| note.preemptions < MOST);
                    let (Some(note), Some(running), true) = (note, self.out.front(), other) else {
                        continue;
                    };
                    let now = Cycles::now();
                    running.request();
                    // A refusal leaves the request to probes, or to the work's end.
                    let _ = way.mechanism.interrupt(&self.link);
                    note.requesting += Cycles::now().since(now).0;
                    asked = Some(now);
                }
                None => (),
            }
        }
        Cycles::now().since(start)
    }

    fn send(&mut self) {
        while self.sender.has_room() {
            let Some(runnable) = self.waiting.pop_front() else {
                return;
            };
            match self.sender.send(runnable) {
                Ok(dispatched) => self.out.push_back(dispatched),
                Err(runnable) => unreachable!("there was room for {runnable:?}"),
            }
        }
    }
}
