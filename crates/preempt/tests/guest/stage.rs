//! A worker in guest mode on a separate thread, and jobs for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_preempt::guest::{Guest, GuestConfig, GuestCounters, GuestError, KernelCounters};
use shinjuku_preempt::{
    Backend as _, Completion, CountersSnapshot, Delivery, Dispatched, Handles, HardPreemption,
    Idle, Mechanism, Outcome, Panicked, Pool, PoolConfig, Receiver, Runnable, Sender, Suspended,
    Worker, WorkerLink, mailbox,
};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub type Job = Box<dyn FnOnce() -> u64 + Send>;

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

/// The test's own name, as libtest knows it.
macro_rules! test_name {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").unwrap();
        name.split_once("::").unwrap().1
    }};
}
pub(crate) use test_name;

struct WorkerThread {
    sender: Sender<Job, u64>,
    link: WorkerLink,
    thread: JoinHandle<()>,
}

/// Workers in guest mode, and contexts.
pub struct Stage {
    pub guest: Guest,
    workers: Vec<WorkerThread>,
    pub idle: Vec<Idle<Job, u64>>,
    handles: Handles<Job, u64>,
    stop: Arc<AtomicBool>,
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
        let pool_config = PoolConfig::default().contexts(4);
        let pool = Pool::new(pool_config, |job: Job| job()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let yields = guests.len() > 1;
        let workers = (0..)
            .zip(guests)
            .map(|(id, guest)| start_worker(id, guest, &stop, yields))
            .collect();
        let mut idle = pool.idle;
        idle.reverse();
        Self {
            guest: guests[0].clone(),
            workers,
            idle,
            handles: pool.handles,
            stop,
        }
    }

    pub fn load(&mut self, job: impl FnOnce() -> u64 + Send + 'static) -> Runnable<Job, u64> {
        let idle = self.idle.pop().expect("there are contexts enough");
        idle.load(Box::new(job) as Job).into()
    }

    pub fn send(&mut self, worker: usize, runnable: Runnable<Job, u64>) -> Dispatched {
        let sent = self.workers[worker].sender.send(runnable);
        sent.ok().expect("the worker has room")
    }

    pub fn interrupt(&self, worker: usize) {
        self.guest.interrupt(&self.workers[worker].link).unwrap();
    }

    /// The worker's answer.
    pub fn answer(&mut self, worker: usize) -> Completion<Job, u64> {
        let start = Instant::now();
        loop {
            if let Some((_, completion)) = self.workers[worker].sender.poll() {
                return completion;
            }
            assert!(start.elapsed() < PATIENCE, "the worker does not answer");
            std::thread::yield_now();
        }
    }

    /// Interrupts the worker until it answers.
    pub fn preempt(&mut self, worker: usize, dispatched: &Dispatched) -> Suspended<Job, u64> {
        let start = Instant::now();
        loop {
            dispatched.request();
            self.interrupt(worker);
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_millis(20) {
                match self.workers[worker].sender.poll() {
                    Some((_, Completion::Preempted(suspended))) => return suspended,
                    Some((_, Completion::Finished(_))) => panic!("the job has ended"),
                    None => std::hint::spin_loop(),
                }
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the job is not preempted: {:?}, {:?}, {:?}",
                self.guest_counters(worker),
                self.counters(worker),
                self.workers[worker].link.kernel_counters()
            );
        }
    }

    /// Lets the job on `worker` end.
    pub fn finish(&mut self, worker: usize) {
        match self.answer(worker) {
            Completion::Finished(idle) => self.idle.push(idle),
            Completion::Preempted(_) => panic!("no preemption was requested"),
        }
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

    /// Ends the workers. Dropped contexts stay.
    pub fn abandon(self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.thread.join().unwrap();
        }
        drop(self.handles);
    }

    /// Ends workers and contexts, all of which must be idle.
    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.thread.join().unwrap();
        }
        let end = self.handles.hand_back(self.idle, PATIENCE);
        assert_eq!(end.leaked, 0);
    }
}

fn start_worker(id: u32, guest: &Guest, stop: &Arc<AtomicBool>, yields: bool) -> WorkerThread {
    let (sender, receiver) = mailbox(1);
    let (guest, stop) = (guest.clone(), Arc::clone(stop));
    let (give_link, link) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut worker = Worker::bind(id).unwrap();
        worker.enter(&guest).unwrap();
        give_link.send(worker.link()).unwrap();
        run_contexts(worker, receiver, &stop, yields);
    });
    WorkerThread {
        sender,
        link: link.recv().unwrap(),
        thread,
    }
}

/// Makes no system call, so that all exits are the jobs'; unless it is one of several workers,
/// which would keep each other off the cores.
fn run_contexts(
    mut worker: Worker,
    mut receiver: Receiver<Job, u64>,
    stop: &AtomicBool,
    yields: bool,
) {
    while !stop.load(Ordering::Relaxed) {
        let Some((runnable, generation)) = receiver.poll() else {
            if yields {
                std::thread::yield_now();
            }
            continue;
        };
        receiver.answer(match worker.run(runnable, generation) {
            Outcome::Preempted(suspended) => Completion::Preempted(suspended),
            Outcome::Finished(finished) => Completion::Finished(finished.take().0),
        });
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
        let start = Instant::now();
        while !self.is_set() {
            assert!(
                start.elapsed() < PATIENCE,
                "what was waited for does not come"
            );
            std::thread::yield_now();
        }
    }
}
