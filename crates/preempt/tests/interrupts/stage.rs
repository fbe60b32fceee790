//! A pool, a mailbox and a worker, all on the test's own thread, and jobs that interrupt
//! themselves.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use shinjuku_preempt::{
    Completion, CountersSnapshot, Dispatched, Handles, HardPreemption, Idle, Mechanism, Outcome,
    Pool, PoolConfig, Receiver, Runnable, Sender, Signal, Suspended, Worker, WorkerLink, mailbox,
};

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

/// A pool, a mailbox, and a worker on this thread.
pub struct Stage {
    pub worker: Worker,
    pub sender: Sender<Job, u64>,
    pub receiver: Receiver<Job, u64>,
    pub idle: Vec<Idle<Job, u64>>,
    pub handles: Handles<Job, u64>,
    pub signal: Signal,
}

impl Stage {
    pub fn new() -> Self {
        let config = PoolConfig::default().contexts(2);
        let pool = Pool::new(config, |(job, lever): Job| job(&lever)).unwrap();
        let (sender, receiver) = mailbox(1);
        // SAFETY: the tests' jobs rely on nothing that the token's contract excludes.
        let signal = Signal::install(unsafe { HardPreemption::allow() }).unwrap();
        Self {
            worker: Worker::bind(0).unwrap(),
            sender,
            receiver,
            idle: pool.idle,
            handles: pool.handles,
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
        let ready = self.idle.pop().unwrap().load((Box::new(job), lever));
        (ready.into(), dispatched)
    }

    pub fn send(&mut self, runnable: Runnable<Job, u64>) -> Dispatched {
        self.sender
            .send(runnable)
            .unwrap_or_else(|_| panic!("no room"))
    }

    /// The worker's part: one message.
    pub fn step(&mut self) -> Result<u64, Suspended<Job, u64>> {
        let (runnable, generation) = self.receiver.poll().unwrap();
        let outcome = self.worker.run(runnable, generation);
        let result = match outcome {
            Outcome::Finished(finished) => {
                let (idle, result) = finished.take();
                self.receiver.answer(Completion::Finished(idle));
                Ok(result.unwrap())
            }
            Outcome::Preempted(suspended) => {
                self.receiver.answer(Completion::Preempted(suspended));
                Err(())
            }
        };
        match self.sender.poll().unwrap().1 {
            Completion::Finished(idle) => {
                self.idle.push(idle);
                Ok(result.unwrap())
            }
            Completion::Preempted(suspended) => Err(suspended),
        }
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
        self.send(suspended.into());
        self.step()
    }

    pub fn counters(&self) -> CountersSnapshot {
        self.worker.link().counters()
    }

    pub fn end(self) {
        let contexts = self.idle.len();
        let report = self.handles.hand_back(self.idle, PATIENCE);
        assert_eq!((report.returned, contexts), (2, 2));
    }
}
