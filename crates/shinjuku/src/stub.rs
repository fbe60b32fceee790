//! The dispatcher with workers that run nothing, to measure the dispatcher alone.
//!
//! Not part of the API: under the feature `stub-workers`, for `benches/`. The mailboxes, the
//! policy, the table of requests and the contexts are real; only the workers' thread answers every
//! message at once, without entering the context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use shinjuku_net::{Arrival, Failure, Refusal, Replier, Transport};
use shinjuku_policy::{Nanos, Verified, WorkerId};
use shinjuku_preempt::{
    Clock, Completion, Handles, Parker, Pool, PoolConfig, Realtime, Runnable, Worker, mailbox,
};

use crate::config::{Config, MechanismKind};
use crate::dispatcher::{Control, Dispatcher, Parts, Rules, ShutdownHandoff};
use crate::layout;
pub use crate::layout::Layout;
use crate::loops::{IdleTime, SeenBlocked};
use crate::preemption::Preemption;
use crate::request::{Done, Job};
use crate::statistics::DispatcherStatistics;
use crate::worker::Orders;
use crate::worker_state::WorkerState;

/// Always has a request, up to a number in the system.
#[derive(Debug)]
struct Endless {
    delivered: u64,
    statistics: Arc<DispatcherStatistics>,
    most: u64,
}

/// Sends nothing.
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
            deliver(Arrival {
                request: self.delivered,
                route: (),
                class: 0,
                flow: self.delivered,
                arrived_nanos: now_nanos,
                deadline_nanos: None,
                due_nanos: None,
            });
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
    /// The stubs' thread sleeps while nothing is served: under real-time priority it would be
    /// throttled otherwise.
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
    /// `workers` stubs under the configuration's policy and depth, with `in_system` requests at any
    /// time. Pins the calling thread to the layout's dispatcher core, the stubs' thread to that of
    /// its first worker.
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
            crate::builder::build_policy(config, &mut [], capacity, workers)?,
            capacity,
        )?;
        let mut probes_only = config.clone();
        probes_only.preemption.mechanism = MechanismKind::Probe;
        let Pool { idle, handles } = Pool::new(
            PoolConfig {
                contexts: config.contexts,
                stack_size: 64 * 1024,
                ..PoolConfig::default()
            },
            |_: Job<Endless>| unreachable!("stub workers enter no context"),
        )?;
        let statistics = Arc::new(DispatcherStatistics::new(config.class.len()));
        let stop = Arc::new(AtomicBool::new(false));
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| mailbox(config.depth_at(workers)))
            .unzip();
        let (send_link, links) = std::sync::mpsc::channel();
        let core = layout.workers.first().copied().flatten();
        let serving = Arc::new(AtomicBool::new(false));
        let (their_stop, their_serving, realtime_priority) = (
            Arc::clone(&stop),
            Arc::clone(&serving),
            config.realtime_priority,
        );
        let thread = std::thread::Builder::new()
            .name("stub-workers".to_owned())
            .spawn(move || {
                if let Some(core) = core {
                    let _ = layout::pin_current(core);
                }
                let _realtime = realtime_priority.map(Realtime::enter);
                let Ok(worker) = Worker::bind(0) else { return };
                let _ = send_link.send(worker.link());
                let mut receivers: Vec<shinjuku_preempt::Receiver<Job<Endless>, Done<Endless>>> =
                    receivers;
                while !their_stop.load(Ordering::Relaxed) {
                    if !their_serving.load(Ordering::Relaxed) {
                        std::thread::park_timeout(Duration::from_millis(1));
                        continue;
                    }
                    for receiver in &mut receivers {
                        while let Some((runnable, _)) = receiver.poll() {
                            let Runnable::Ready(ready) = runnable else {
                                continue;
                            };
                            receiver.answer(Completion::Finished(ready.unload().0));
                        }
                    }
                }
            })?;
        let link = links.recv()?;
        if let Some(core) = layout.dispatcher {
            layout::pin_current(core)?;
        }
        let states = senders
            .into_iter()
            .zip(0u16..)
            .map(|(sender, id)| {
                WorkerState::new(
                    WorkerId(id),
                    sender,
                    link.clone(),
                    thread.thread().clone(),
                    Some(Arc::new(Parker::new())),
                )
            })
            .collect();
        let parts = Parts {
            transport: Endless {
                delivered: 0,
                statistics: Arc::clone(&statistics),
                most: in_system,
            },
            policy,
            workers: states,
            spares: Vec::new(),
            cores: vec![None; workers],
            idle,
            capacity,
            rules: Rules {
                kernel_threads: false,
                inline: false,
                depth: config.depth_at(workers),
                queue: config.queue,
                leaves_excess: false,
                rescue_after: config.rescue_after(),
                idle_backoff: None,
                shares_core: false,
                realtime: config.realtime_priority.is_some(),
                deadlines: vec![None; config.class.len()],
            },
            preemption: Preemption::choose(&probes_only, layout, None)?,
            statistics: Arc::clone(&statistics),
            control: Arc::new(Control::new()),
            orders: Arc::new(Orders::new(1)),
            shutdown_handoff: Arc::new(ShutdownHandoff::new()),
            idle_time: IdleTime::new(0),
            seen_blocked: SeenBlocked::new(0),
        };
        Ok(Self {
            dispatcher: Some(Dispatcher::new(parts)),
            handles: Some(handles),
            statistics,
            stop,
            serving,
            realtime_priority,
            thread: Some(thread),
            clock: Clock::get(),
        })
    }

    /// Under real-time priority if the configuration has one and it is permitted. Turns the
    /// dispatcher's loop until `requests` more have finished. Each took one arrival, one decision,
    /// one message there and one back.
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
