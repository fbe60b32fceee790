//! The dispatcher with workers that run nothing, to measure the dispatcher alone.
//!
//! It is not part of the API: the feature `stub-workers` has it for `benches/`. The mailboxes, the
//! policy, the table of requests and the contexts are real. The workers' thread answers every
//! message at once, without entering the context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use shinjuku_net::{Arrival, Failure, Refusal, Replier, Transport};
use shinjuku_policy::{Nanos, Verified, WorkerId};
use shinjuku_preempt::{
    Clock, Completion, Handles, Parker, Pool, PoolConfig, Realtime, Receiver, Runnable, Worker,
    WorkerLink, mailbox,
};

use crate::config::{Config, MechanismKind};
use crate::dispatcher::{Contexts, Control, Dispatcher, Parts, Rules, ShutdownHandoff};
use crate::layout;
pub use crate::layout::Layout;
use crate::loops::IdleTime;
use crate::preemption::Preemption;
use crate::quantum_floor::PreemptedFor;
use crate::request::{Done, Job};
use crate::statistics::DispatcherStatistics;
use crate::worker::Orders;
use crate::worker_state::WorkerState;

/// A transport that always has a request, up to a number in the system.
#[derive(Debug)]
struct Endless {
    delivered: u64,
    statistics: Arc<DispatcherStatistics>,
    most: u64,
}

/// A replier that sends nothing.
#[derive(Debug)]
struct Nowhere;

impl Replier for Nowhere {
    type Outgoing = ();

    fn send(&mut self, (): ()) {}
}

impl Transport for Endless {
    type Request = u64;
    type Reply = ();
    type Route = ();
    type Outgoing = ();
    type Replier = Nowhere;

    fn poll(&mut self, now_nanos: u64, room: usize, mut deliver: impl FnMut(Arrival<u64, ()>)) {
        let in_system = self.delivered - self.statistics.finished_so_far();
        for _ in 0..room.min((self.most - in_system) as usize) {
            self.delivered += 1;
            deliver(Arrival::new(self.delivered, (), now_nanos).flow(self.delivered));
        }
    }

    fn refuse(&mut self, _: u64, (): (), cause: Refusal) {
        unreachable!("{cause}, though there is room for all");
    }

    fn conclude((): (), _: Result<(), Failure>) {}

    fn replier(&mut self) -> std::io::Result<Nowhere> {
        Ok(Nowhere)
    }

    fn wait(&mut self, _: Duration) {}

    fn close(&mut self) {}
}

/// A dispatcher on the calling thread, and its stub workers on another core.
pub struct StubWorkers {
    dispatcher: Option<Dispatcher<Endless>>,
    handles: Option<Handles<Job<Endless>, Done<Endless>>>,
    statistics: Arc<DispatcherStatistics>,
    stop: Arc<AtomicBool>,
    /// Whether `serve` runs. Otherwise the stubs' thread sleeps, lest the kernel throttle it under
    /// real-time priority.
    serving: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    realtime_priority: Option<i32>,
    clock: Clock,
}

impl std::fmt::Debug for StubWorkers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("StubWorkers")
    }
}

impl StubWorkers {
    /// Starts `workers` stubs under the configuration's policy and depth, with `in_system` requests
    /// at any time. Pins the calling thread to the layout's dispatcher core, and the stubs' thread
    /// to the core of the first worker.
    ///
    /// # Errors
    /// As for starting a runtime.
    pub fn start(
        config: &Config,
        layout: &Layout,
        workers: usize,
        in_system: u64,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let capacity = config.task_capacity(workers);
        let policy = Verified::new(
            crate::builder::build_policy(config, &mut [], &config.parameters(capacity, workers))?,
            capacity,
        )?;
        let mut probes_only = config.clone();
        probes_only.preemption.mechanism = MechanismKind::Probe;
        let Pool { idle, handles } = Pool::new(
            PoolConfig::default()
                .contexts(config.contexts)
                .stack_size(64 * 1024),
            |_: Job<Endless>| unreachable!("stub workers enter no context"),
        )?;
        let statistics = Arc::new(DispatcherStatistics::new(config.class.len()));
        let stop = Arc::new(AtomicBool::new(false));
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| mailbox(config.depth_at(workers)))
            .unzip();
        let (send_link, links) = std::sync::mpsc::channel();
        let serving = Arc::new(AtomicBool::new(false));
        let stubs = Stubs {
            core: layout.workers.first().copied().flatten(),
            realtime_priority: config.realtime_priority,
            receivers,
            stop: Arc::clone(&stop),
            serving: Arc::clone(&serving),
        };
        let thread = std::thread::Builder::new()
            .name("stub-workers".to_owned())
            .spawn(move || stubs.run(&send_link))?;
        let link = links.recv()?;
        if let Some(core) = layout.dispatcher {
            layout::pin_current(core)?;
        }
        let state = |(sender, id)| {
            let (link, thread) = (link.clone(), thread.thread().clone());
            let parker = Arc::new(Parker::new());
            WorkerState::new(WorkerId(id), sender, link, thread, Some(parker))
        };
        let states = senders.into_iter().zip(0u16..).map(state).collect();
        let parts = Parts {
            transport: Endless {
                delivered: 0,
                statistics: Arc::clone(&statistics),
                most: in_system,
            },
            policy,
            workers: states,
            spares: Vec::new(),
            desks: Vec::new(),
            cores: vec![None; workers],
            contexts: Contexts::share(idle, 1).remove(0),
            capacity,
            rules: rules(config, workers),
            preemption: Preemption::choose(&probes_only, layout, None)?,
            learned: None,
            statistics: Arc::clone(&statistics),
            control: Arc::new(Control::new()),
            orders: Arc::new(Orders::new(1)),
            shutdown_handoff: Arc::new(ShutdownHandoff::new()),
            idle_time: IdleTime::new(0),
        };
        Ok(Self {
            dispatcher: Some(Dispatcher::new(parts)),
            handles: Some(handles),
            statistics,
            stop,
            serving,
            realtime_priority: config.realtime_priority,
            thread: Some(thread),
            clock: Clock::get(),
        })
    }

    /// Turns the dispatcher's loop until `requests` more have finished, under real-time priority if
    /// the configuration asks for one and the system permits it. Each request takes one arrival,
    /// one decision, and one message each way.
    ///
    /// # Panics
    /// If nothing finishes for a second.
    pub fn serve(&mut self, requests: u64) {
        let Some(dispatcher) = &mut self.dispatcher else {
            return;
        };
        let _realtime = self.realtime_priority.map(Realtime::enter);
        self.serving.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        let target = self.statistics.finished_so_far() + requests;
        let patience = self.clock.now_nanos() + 1_000_000_000 + requests * 10_000;
        while self.statistics.finished_so_far() < target {
            let now = self.clock.now_nanos();
            assert!(now < patience, "the stub workers do not answer");
            dispatcher.turn(Nanos(now));
        }
        self.serving.store(false, Ordering::Relaxed);
    }
}

/// The rules of a runtime in the layout `threads`, without deadlines and back-off.
fn rules(config: &Config, workers: usize) -> Rules {
    Rules {
        kernel_threads: false,
        inline: false,
        depth: config.depth_at(workers),
        queue: config.queue,
        leaves_excess: false,
        rescue_after: config.rescue_after(),
        best_effort: config.has_best_effort(),
        preempted_for: PreemptedFor::Anyone,
        is_told_of_work: false,
        works: None,
        idle_backoff: None,
        shares_core: false,
        realtime: config.realtime_priority.is_some(),
        deadlines: vec![None; config.class.len()],
    }
}

/// The stub workers' thread.
struct Stubs {
    core: Option<usize>,
    realtime_priority: Option<i32>,
    receivers: Vec<Receiver<Job<Endless>, Done<Endless>>>,
    stop: Arc<AtomicBool>,
    serving: Arc<AtomicBool>,
}

impl Stubs {
    /// Answers every message, until it is to stop.
    fn run(mut self, send_link: &std::sync::mpsc::Sender<WorkerLink>) {
        if let Some(core) = self.core {
            let _ = layout::pin_current(core);
        }
        let _realtime = self.realtime_priority.map(Realtime::enter);
        let Ok(worker) = Worker::bind(0) else { return };
        let _ = send_link.send(worker.link());
        while !self.stop.load(Ordering::Relaxed) {
            if !self.serving.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(1));
                continue;
            }
            for receiver in &mut self.receivers {
                while let Some((runnable, _)) = receiver.poll() {
                    let Runnable::Ready(ready) = runnable else {
                        continue;
                    };
                    receiver.answer(Completion::Finished(ready.unload().0));
                }
            }
        }
    }
}

impl Drop for StubWorkers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let (Some(dispatcher), Some(handles)) = (self.dispatcher.take(), self.handles.take()) {
            handles.hand_back(dispatcher.into_idle(), Duration::from_secs(5));
        }
    }
}
