//! Contexts under a small scheduler: a pool, and workers on threads of their own, or one on the
//! test's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Completion, CountersSnapshot, Dispatched, Finished, HandBack, Handles, Idle, Outcome, Panicked,
    Pool, PoolConfig, Receiver, Runnable, Sender, Suspended, Worker, WorkerLink, mailbox,
};

use crate::PATIENCE;

/// A job, which answers with a number.
pub type Job = Box<dyn FnOnce() -> u64 + Send>;

type Results = Arc<Mutex<VecDeque<Result<u64, Panicked>>>>;

/// A worker's end of its mailbox.
#[derive(Debug)]
pub struct WorkerEnd {
    /// What was sent to the worker.
    pub receiver: Receiver<Job, u64>,
    /// Has room from the start, and no job locks it: a suspended one may hold any lock.
    results: Results,
    stop: Arc<AtomicBool>,
}

impl WorkerEnd {
    /// Whether the worker is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Keeps the job's result for the test, and answers.
    pub fn finished(&mut self, finished: Finished<Job, u64>) {
        let (idle, result) = finished.take();
        self.results.lock().unwrap().push_back(result);
        self.receiver.answer(Completion::Finished(idle));
    }

    /// The worker's loop; `idle` is called whenever nothing was sent.
    pub fn run(mut self, mut worker: Worker, idle: impl Fn()) {
        while !self.is_stopped() {
            let Some((runnable, generation)) = self.receiver.poll() else {
                idle();
                continue;
            };
            match worker.run(runnable, generation) {
                Outcome::Finished(finished) => self.finished(finished),
                Outcome::Preempted(suspended) => {
                    self.receiver.answer(Completion::Preempted(suspended));
                }
            }
        }
    }
}

/// A worker's thread, as the test sees it.
#[derive(Debug)]
pub struct WorkerThread {
    /// Where contexts for it go.
    pub sender: Sender<Job, u64>,
    /// The way to interrupt it.
    pub link: WorkerLink,
    results: Results,
    thread: JoinHandle<()>,
}

impl WorkerThread {
    /// Starts a worker, which `enter` prepares and `serve` is the loop of, until `stop` is set.
    pub fn start(
        id: u32,
        stop: &Arc<AtomicBool>,
        enter: impl FnOnce(&mut Worker) + Send + 'static,
        serve: impl FnOnce(WorkerEnd, Worker) + Send + 'static,
    ) -> Self {
        let (sender, receiver) = mailbox(1);
        let (tell, told) = mpsc::channel();
        let results = Arc::new(Mutex::new(VecDeque::with_capacity(64)));
        let end = WorkerEnd {
            receiver,
            results: Arc::clone(&results),
            stop: Arc::clone(stop),
        };
        let thread = std::thread::spawn(move || {
            let mut worker = Worker::bind(id).unwrap();
            enter(&mut worker);
            tell.send(worker.link()).unwrap();
            serve(end, worker);
        });
        Self {
            sender,
            link: told.recv().unwrap(),
            results,
            thread,
        }
    }

    /// Waits for its end.
    pub fn join(self) {
        self.thread.join().unwrap();
    }
}

/// A pool, and workers that run what is sent to them until they are stopped.
#[derive(Debug)]
pub struct Rig {
    /// Contexts without a job.
    pub idle: Vec<Idle<Job, u64>>,
    /// The workers.
    pub workers: Vec<WorkerThread>,
    /// Ends the workers once it is set.
    pub stop: Arc<AtomicBool>,
    handles: Handles<Job, u64>,
}

impl Rig {
    /// A pool; `start` starts a worker.
    pub fn new(
        config: PoolConfig,
        workers: u32,
        start: impl FnMut(u32, &Arc<AtomicBool>) -> WorkerThread,
    ) -> Self {
        let Pool { idle, handles } = Pool::new(config, |job: Job| job()).unwrap();
        let (stop, mut start) = (Arc::default(), start);
        Self {
            idle,
            workers: (0..workers).map(|id| start(id, &stop)).collect(),
            stop,
            handles,
        }
    }

    /// A context with a job.
    pub fn load(&mut self, job: impl FnOnce() -> u64 + Send + 'static) -> Runnable<Job, u64> {
        let idle = self.idle.pop().expect("there are contexts enough");
        idle.load(Box::new(job) as Job).into()
    }

    /// Sends a context to a worker.
    pub fn send(&mut self, worker: usize, runnable: Runnable<Job, u64>) -> Dispatched {
        let sent = self.workers[worker].sender.send(runnable);
        sent.unwrap_or_else(|_| panic!("no room"))
    }

    /// The worker's answer.
    pub fn answer(&mut self, worker: usize) -> Completion<Job, u64> {
        let start = Instant::now();
        loop {
            if let Some((_, completion)) = self.workers[worker].sender.poll() {
                return completion;
            }
            assert!(start.elapsed() < PATIENCE, "worker {worker} is silent");
            yield_now();
        }
    }

    /// Has the job at the worker end, and answers what it did.
    pub fn finish(&mut self, worker: usize) -> Result<u64, Panicked> {
        match self.answer(worker) {
            Completion::Finished(idle) => self.idle.push(idle),
            Completion::Preempted(_) => panic!("preempted, not finished"),
        }
        self.result(worker)
    }

    /// The next result of the worker's, which it keeps before it answers.
    pub fn result(&self, worker: usize) -> Result<u64, Panicked> {
        let mut results = self.workers[worker].results.lock().unwrap();
        results.pop_front().expect("it was kept")
    }

    /// Has the job at the worker give way.
    pub fn preempted(&mut self, worker: usize) -> Suspended<Job, u64> {
        match self.answer(worker) {
            Completion::Preempted(suspended) => suspended,
            Completion::Finished(_) => panic!("finished, not preempted"),
        }
    }

    /// Asks what runs at the worker to give way, by `interrupt` as well, until it does. `None`:
    /// that took too long.
    pub fn stop_job(
        &mut self,
        worker: usize,
        dispatched: &Dispatched,
        interrupt: impl Fn(&WorkerLink),
    ) -> Option<Suspended<Job, u64>> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            dispatched.request();
            interrupt(&self.workers[worker].link);
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_millis(20) {
                match self.workers[worker].sender.poll() {
                    Some((_, Completion::Preempted(suspended))) => return Some(suspended),
                    Some((_, Completion::Finished(_))) => panic!("finished, not preempted"),
                    None => std::hint::spin_loop(),
                }
            }
        }
        None
    }

    /// Runs a job on the first worker to its end.
    pub fn run(&mut self, job: impl FnOnce() -> u64 + Send + 'static) -> Result<u64, Panicked> {
        let runnable = self.load(job);
        self.send(0, runnable);
        self.finish(0)
    }

    /// Ends workers and contexts.
    pub fn end(self) -> HandBack {
        self.end_within(PATIENCE)
    }

    /// The same, with less patience for the contexts.
    pub fn end_within(self, patience: Duration) -> HandBack {
        self.stop.store(true, Ordering::Relaxed);
        self.workers.into_iter().for_each(WorkerThread::join);
        self.handles.hand_back(self.idle, patience)
    }
}

/// A pool, a mailbox, and a worker on the test's own thread: the test does not go on while a
/// context runs. Dropped, it hands the contexts back.
#[derive(Debug)]
pub struct OneThread<In = Job> {
    /// The worker.
    pub worker: Worker,
    /// Where contexts for the worker go.
    pub sender: Sender<In, u64>,
    /// The worker's end.
    pub receiver: Receiver<In, u64>,
    /// Contexts without a job.
    pub idle: Vec<Idle<In, u64>>,
    /// Without them the contexts are leaked.
    pub handles: Option<Handles<In, u64>>,
}

impl<In: Send + 'static> OneThread<In> {
    /// A pool whose contexts run `entry`.
    pub fn new(config: PoolConfig, entry: impl Fn(In) -> u64 + Send + Sync + 'static) -> Self {
        let Pool { idle, handles } = Pool::new(config, entry).unwrap();
        let (sender, receiver) = mailbox(1);
        Self {
            worker: Worker::bind(0).unwrap(),
            sender,
            receiver,
            idle,
            handles: Some(handles),
        }
    }

    /// A context with a job.
    pub fn load(&mut self, job: In) -> Runnable<In, u64> {
        self.idle.pop().unwrap().load(job).into()
    }

    /// Sends a context to the worker.
    pub fn send(&mut self, runnable: impl Into<Runnable<In, u64>>) -> Dispatched {
        let sent = self.sender.send(runnable.into());
        sent.unwrap_or_else(|_| panic!("no room"))
    }

    /// The worker's part: runs what was sent, until it ends or gives way.
    pub fn step(&mut self) -> Result<u64, Suspended<In, u64>> {
        let (runnable, generation) = self.receiver.poll().unwrap();
        match self.worker.run(runnable, generation) {
            Outcome::Finished(finished) => {
                let (idle, result) = finished.take();
                self.receiver.answer(Completion::Finished(idle));
                assert!(self.answer().is_none());
                Ok(result.unwrap())
            }
            Outcome::Preempted(suspended) => {
                self.receiver.answer(Completion::Preempted(suspended));
                Err(self.answer().unwrap())
            }
        }
    }

    /// Takes the worker's answer: the context, if it gave way.
    pub fn answer(&mut self) -> Option<Suspended<In, u64>> {
        match self.sender.poll().unwrap().1 {
            Completion::Finished(idle) => {
                self.idle.push(idle);
                None
            }
            Completion::Preempted(suspended) => Some(suspended),
        }
    }

    /// Runs a job until it ends or gives way.
    pub fn run(&mut self, job: In) -> Result<u64, Suspended<In, u64>> {
        let runnable = self.load(job);
        self.send(runnable);
        self.step()
    }

    /// What the worker has counted.
    #[must_use]
    pub fn counters(&self) -> CountersSnapshot {
        self.worker.counters()
    }
}

impl<In> OneThread<In> {
    /// Gives the contexts without a job back; `None`: they were before, or are leaked.
    pub fn hand_back(&mut self) -> Option<HandBack> {
        let idle = std::mem::take(&mut self.idle);
        Some(self.handles.take()?.hand_back(idle, PATIENCE))
    }
}

impl<In> Drop for OneThread<In> {
    fn drop(&mut self) {
        self.hand_back();
    }
}
