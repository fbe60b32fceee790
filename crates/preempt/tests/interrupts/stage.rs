//! A pool, a mailbox and a worker, all on the test's own thread, and jobs that interrupt
//! themselves.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shinjuku_preempt::{
    Dispatched, HardPreemption, Mechanism, PoolConfig, Runnable, Signal, Suspended, WorkerLink,
};
use shinjuku_tests_support::contexts::OneThread;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// A job, and the lever to interrupt itself.
pub type Job = (Box<dyn FnOnce(&Lever) -> u64 + Send>, Lever);

/// The means of a job to interrupt itself.
pub struct Lever {
    pub signal: Signal,
    pub link: WorkerLink,
    pub dispatched: Arc<OnceLock<Dispatched>>,
}

impl Lever {
    /// Asks for the preemption of the dispatch that `Stage::start` made.
    pub fn request(&self) {
        self.dispatched.get().unwrap().request();
    }

    /// Sends the signal, which is delivered before this returns unless the job blocks it.
    pub fn interrupt(&self) {
        self.signal.interrupt(&self.link).unwrap();
    }
}

/// A worker on this thread, and the way to interrupt it.
pub struct Stage {
    thread: OneThread<Job>,
    pub signal: Signal,
}

impl Deref for Stage {
    type Target = OneThread<Job>;

    fn deref(&self) -> &OneThread<Job> {
        &self.thread
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut OneThread<Job> {
        &mut self.thread
    }
}

impl Stage {
    pub fn new() -> Self {
        let config = PoolConfig::default().contexts(2);
        // SAFETY: the tests' jobs rely on nothing that the token's contract excludes.
        let signal = Signal::install(unsafe { HardPreemption::allow() }).unwrap();
        Self {
            thread: OneThread::new(config, |(job, lever): Job| job(&lever)),
            signal,
        }
    }

    /// A context with a job, not sent yet.
    pub fn load(
        &mut self,
        job: impl FnOnce(&Lever) -> u64 + Send + 'static,
    ) -> (Runnable<Job, u64>, Arc<OnceLock<Dispatched>>) {
        let dispatched = Arc::new(OnceLock::new());
        let lever = Lever {
            signal: self.signal,
            link: self.worker.link(),
            dispatched: Arc::clone(&dispatched),
        };
        (self.thread.load((Box::new(job), lever)), dispatched)
    }

    /// Runs a job until it ends or is preempted.
    pub fn start(
        &mut self,
        job: impl FnOnce(&Lever) -> u64 + Send + 'static,
    ) -> Result<u64, Suspended<Job, u64>> {
        let (runnable, lever) = self.load(job);
        let dispatched = self.send(runnable);
        assert!(lever.set(dispatched).is_ok());
        self.step()
    }

    /// Resumes a suspended job.
    pub fn resume(&mut self, suspended: Suspended<Job, u64>) -> Result<u64, Suspended<Job, u64>> {
        self.send(suspended);
        self.step()
    }

    pub fn end(mut self) {
        let contexts = self.idle.len();
        let report = self.hand_back().unwrap();
        assert_eq!((report.returned, contexts), (2, 2));
    }
}
