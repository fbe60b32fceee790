//! Starting and ending the stress test's threads: contexts, workers, dispatcher.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::dispatcher::Dispatcher;
use super::job::State;
use super::world::World;
use super::{Chosen, Config, StressError, worker};
use crate::{
    CountersSnapshot, Delivery, HandBack, Handles, Idle, Pool, PoolConfig, WorkerLink, mailbox,
};

/// The number of the context to work in.
pub(super) type Job = usize;
/// The number of operations drawn.
pub(super) type Done = u64;

/// A worker has one context to run and one waiting, so it never waits for the dispatcher.
pub(super) const DEPTH: usize = 2;

pub(super) struct Scheduler {
    world: Arc<World>,
    dispatcher: JoinHandle<Vec<Idle<Job, Done>>>,
    workers: Vec<JoinHandle<()>>,
    mechanism: Arc<Chosen>,
    links: Vec<WorkerLink>,
    handles: Handles<Job, Done>,
}

impl Scheduler {
    pub(super) fn start(
        config: &Config,
        mechanism: Chosen,
        world: &Arc<World>,
    ) -> Result<Self, StressError> {
        let pool_config = PoolConfig::default()
            .contexts(config.contexts)
            .name("stress")
            .kind(mechanism.contexts());
        let states: Vec<_> = (0..config.contexts)
            .map(|context| Mutex::new(State::new(context, pool_config.stack_size)))
            .collect();
        let contexts_world = Arc::clone(world);
        let pool = Pool::new(pool_config, move |context: Job| {
            // Uncontended: the state is its context's.
            let state = states[context].lock();
            state
                .unwrap_or_else(PoisonError::into_inner)
                .work(&contexts_world)
        })?;
        worker::reset();
        let cores = worker::allowed_cores();
        let mechanism = Arc::new(mechanism);
        let (mut threads, mut links, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        for id in 0..config.workers {
            let (sender, receiver) = mailbox(DEPTH);
            let (thread, link) =
                worker::start(id, cores[id % cores.len()], receiver, &mechanism, world)?;
            threads.push(thread);
            links.push(link.clone());
            senders.push((sender, link));
        }
        let dispatcher = Dispatcher::new(pool.idle, senders, mechanism.mechanism(), world);
        let quantum = config.quantum;
        let dispatcher = std::thread::Builder::new()
            .name("stress-dispatcher".into())
            .spawn(move || dispatcher.run(quantum))?;
        Ok(Self {
            world: Arc::clone(world),
            dispatcher,
            workers: threads,
            mechanism,
            links,
            handles: pool.handles,
        })
    }

    pub(super) fn counters(&self) -> CountersSnapshot {
        let mut sum = CountersSnapshot::default();
        self.links.iter().for_each(|link| sum += link.counters());
        sum
    }

    /// How interrupts come to workers in the backend's mode.
    pub(super) fn delivery(&self) -> Option<Delivery> {
        self.mechanism.backend()?.delivery_to(&self.links)
    }

    /// The events of the workers in that mode.
    pub(super) fn mode_events(&self) -> Vec<(&'static str, u64)> {
        let backend = self.mechanism.backend();
        backend.map_or_else(Vec::new, |backend| backend.events_of(&self.links))
    }

    /// Lets the jobs end; returns whether they did within `patience`.
    pub(super) fn jobs_end(&self, patience: Duration) -> bool {
        self.world.stopping.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !self.dispatcher.is_finished() {
            if start.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Ends the workers, then the backing threads; the jobs must have ended. `None` if a thread
    /// panicked.
    pub(super) fn end(self, patience: Duration) -> Option<HandBack> {
        let idle = self.dispatcher.join().ok()?;
        self.world.workers_stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.join().ok()?;
        }
        Some(self.handles.hand_back(idle, patience))
    }
}
