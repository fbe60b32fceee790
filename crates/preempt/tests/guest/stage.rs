//! A worker in guest mode on a separate thread, and jobs for it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::yield_now;
use std::time::Duration;

use shinjuku_preempt::guest::{Guest, GuestConfig, GuestCounters, GuestError, KernelCounters};
use shinjuku_preempt::{
    Backend as _, CountersSnapshot, Delivery, Dispatched, HardPreemption, Mechanism, Panicked,
    PoolConfig, Suspended, Worker, WorkerLink,
};
use shinjuku_tests_support::contexts::{Job, Rig, WorkerThread};
use shinjuku_tests_support::wait_for;

/// The mechanism, or `None` if this machine has none; then says that the test is skipped.
pub fn guest(test: &str, config: GuestConfig) -> Option<Guest> {
    // SAFETY: the tests' jobs rely on nothing that the token's contract excludes.
    match Guest::install(unsafe { HardPreemption::allow() }, config) {
        Ok(guest) => Some(guest),
        Err(error @ (GuestError::NoDevice | GuestError::NoPermission)) => {
            println!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Workers in guest mode, and contexts.
pub struct Stage {
    pub guest: Guest,
    rig: Rig,
}

impl Deref for Stage {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Rig {
        &mut self.rig
    }
}

impl Stage {
    pub fn new(test: &str) -> Option<Self> {
        Self::with(test, GuestConfig::default(), 1)
    }

    pub fn with(test: &str, config: GuestConfig, workers: u32) -> Option<Self> {
        let guest = guest(test, config)?;
        Some(Self::on(&vec![guest; workers as usize]))
    }

    /// A stage with a worker on each of `guests`.
    pub fn on(guests: &[Guest]) -> Self {
        // A worker makes no system call, so that all exits are the jobs'; unless it is one of
        // several, which would keep each other off the cores.
        let idle = if guests.len() > 1 { yield_now } else { || () };
        let config = PoolConfig::default().contexts(4);
        let mut rig = Rig::new(config, guests.len() as u32, |id, stop| {
            let guest = guests[id as usize].clone();
            let enter = move |worker: &mut Worker| worker.enter(&guest).unwrap();
            WorkerThread::start(id, stop, enter, move |end, worker| end.run(worker, idle))
        });
        rig.idle.reverse();
        let guest = guests[0].clone();
        Self { guest, rig }
    }

    pub fn interrupt(&self, worker: usize) {
        self.guest.interrupt(&self.workers[worker].link).unwrap();
    }

    /// Interrupts the worker until it answers.
    pub fn preempt(&mut self, worker: usize, dispatched: &Dispatched) -> Suspended<Job, u64> {
        let interrupt = |link: &WorkerLink| self.guest.interrupt(link).unwrap();
        let stopped = self.rig.stop_job(worker, dispatched, interrupt);
        stopped.unwrap_or_else(|| {
            panic!(
                "the job is not preempted: {:?}, {:?}, {:?}",
                self.guest_counters(worker),
                self.counters(worker),
                self.workers[worker].link.kernel_counters()
            )
        })
    }

    /// Lets the job on `worker` end, however it does.
    pub fn finish(&mut self, worker: usize) {
        let _ = self.rig.finish(worker);
    }

    /// Runs `job` on the first worker to its end. Returns its result, and the events in guest mode
    /// meanwhile.
    pub fn run<T: Send + 'static>(
        &mut self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> (T, GuestCounters) {
        let before = self.guest_counters(0);
        let (give, take) = mpsc::sync_channel(1);
        let job = self.load(move || {
            let _ = give.send(job());
            0
        });
        self.send(0, job);
        self.finish(0);
        let value = take
            .recv()
            .map_err(|_| Panicked)
            .expect("the job ended well");
        let after = self.guest_counters(0);
        let delta = GuestCounters {
            returns: after.returns - before.returns,
            forwarded: after.forwarded - before.forwarded,
            given_up: after.given_up - before.given_up,
            left: after.left - before.left,
            interrupts: after.interrupts - before.interrupts,
        };
        (value, delta)
    }

    pub fn guest_counters(&self, worker: usize) -> GuestCounters {
        self.workers[worker].link.guest_counters().unwrap()
    }

    pub fn kernel_counters(&self, worker: usize) -> Option<KernelCounters> {
        self.workers[worker].link.kernel_counters()
    }

    /// How interrupts come to the workers.
    pub fn delivery(&self) -> Delivery {
        let links: Vec<_> = self.workers.iter().map(|one| one.link.clone()).collect();
        self.guest.delivery_to(&links).unwrap()
    }

    pub fn counters(&self, worker: usize) -> CountersSnapshot {
        self.workers[worker].link.counters()
    }

    /// The kernel's number of the worker's thread.
    pub fn thread(&self, worker: usize) -> i32 {
        self.workers[worker].link.thread_id()
    }

    /// Ends workers and contexts, all of which must be idle.
    pub fn end(self) {
        assert_eq!(self.rig.end().leaked, 0);
    }

    /// Ends the workers. Dropped contexts stay.
    pub fn abandon(self) {
        self.rig.end_within(Duration::ZERO);
    }
}

/// A flag that one side sets and the other waits for.
#[derive(Clone, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub fn wait(&self) {
        wait_for("the other side", || self.is_set());
    }
}
