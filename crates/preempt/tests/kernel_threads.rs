//! Contexts that are kernel threads, under a small scheduler. This program never gives the token:
//! what is stopped anywhere here is stopped without it.
#![allow(missing_docs)]

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Completion, ContextKind, Dispatched, Finished, HandBack, Handles, Idle, Mechanism, Panicked,
    Pool, PoolConfig, Receiver, Runnable, Sender, Service, Signal, Step, Suspended, Worker,
    WorkerLink, current_worker, in_context, mailbox, preempt_point, preemptions,
    without_preemption,
};

type Job = Box<dyn FnOnce() -> u64 + Send>;

const PATIENCE: Duration = Duration::from_secs(60);

/// A worker's loop over a mailbox. The results of jobs go to the test.
struct Loop {
    receiver: Receiver<Job, u64>,
    told: Arc<Mutex<Told>>,
    stop: Arc<AtomicBool>,
}

/// Has room from the start, and no job locks it: a suspended one may hold any lock.
struct Told {
    results: VecDeque<Result<u64, Panicked>>,
    /// Threads that the loop told it from.
    threads: Vec<i32>,
}

impl Service<Job, u64> for Loop {
    fn next(&mut self) -> Step<Job, u64> {
        // Fails, as system calls of a real loop do: on whichever thread plays the worker's part.
        // SAFETY: no file has this number.
        unsafe { libc::close(-1) };
        match self.receiver.poll() {
            Some((runnable, generation)) => Step::Run(runnable, generation),
            None if self.stop.load(Ordering::Relaxed) => Step::End,
            None => {
                std::thread::yield_now();
                Step::Nothing
            }
        }
    }

    fn finished(&mut self, finished: Finished<Job, u64>) {
        let (idle, result) = finished.take();
        let mut told = self.told.lock().unwrap();
        told.results.push_back(result);
        let me = gettid();
        if !told.threads.contains(&me) {
            told.threads.push(me);
        }
        drop(told);
        self.receiver.answer(Completion::Finished(idle));
    }

    fn preempted(&mut self, suspended: Suspended<Job, u64>) {
        self.receiver.answer(Completion::Preempted(suspended));
    }

    fn sleep(&mut self) {}
}

fn gettid() -> i32 {
    // SAFETY: only returns a number.
    unsafe { libc::gettid() }
}

struct WorkerThread {
    sender: Sender<Job, u64>,
    link: WorkerLink,
    told: Arc<Mutex<Told>>,
    thread: JoinHandle<()>,
}

impl WorkerThread {
    fn start(id: u32, stop: &Arc<AtomicBool>) -> Self {
        let (sender, receiver) = mailbox(1);
        let (send_link, links) = mpsc::channel();
        let told = Arc::new(Mutex::new(Told {
            results: VecDeque::with_capacity(64),
            threads: Vec::with_capacity(64),
        }));
        let mut service = Loop {
            receiver,
            told: Arc::clone(&told),
            stop: Arc::clone(stop),
        };
        let thread = std::thread::spawn(move || {
            let mut worker = Worker::bind(id).unwrap();
            send_link.send(worker.link()).unwrap();
            worker.serve(&mut service);
        });
        Self {
            sender,
            link: links.recv().unwrap(),
            told,
            thread,
        }
    }
}

/// A pool, and workers that run what is sent to them until they are stopped.
struct Rig {
    idle: Vec<Idle<Job, u64>>,
    handles: Handles<Job, u64>,
    workers: Vec<WorkerThread>,
    stop: Arc<AtomicBool>,
    signal: Signal,
}

impl Rig {
    fn new(contexts: usize, workers: u32) -> Self {
        Self::of(ContextKind::KernelThread, contexts, workers)
    }

    fn of(kind: ContextKind, contexts: usize, workers: u32) -> Self {
        let config = PoolConfig::default()
            .contexts(contexts)
            .kind(kind)
            .name("rig");
        let pool = Pool::new(config, |job: Job| job()).unwrap();
        let stop = Arc::default();
        Self {
            idle: pool.idle,
            handles: pool.handles,
            workers: (0..workers)
                .map(|id| WorkerThread::start(id, &stop))
                .collect(),
            stop,
            signal: Signal::for_kernel_threads().unwrap(),
        }
    }

    fn load(&mut self, job: impl FnOnce() -> u64 + Send + 'static) -> Runnable<Job, u64> {
        self.idle.pop().unwrap().load(Box::new(job)).into()
    }

    fn send(&mut self, worker: usize, runnable: Runnable<Job, u64>) -> Dispatched {
        let sent = self.workers[worker].sender.send(runnable);
        sent.unwrap_or_else(|_| panic!("no room"))
    }

    fn answer(&mut self, worker: usize) -> Completion<Job, u64> {
        let start = Instant::now();
        loop {
            if let Some((_, completion)) = self.workers[worker].sender.poll() {
                return completion;
            }
            assert!(start.elapsed() < PATIENCE, "worker {worker} is silent");
            std::thread::yield_now();
        }
    }

    fn finish(&mut self, worker: usize) -> Result<u64, Panicked> {
        match self.answer(worker) {
            Completion::Finished(idle) => self.idle.push(idle),
            Completion::Preempted(_) => panic!("preempted, not finished"),
        }
        self.result(worker)
    }

    /// The next result that `worker` told, which it does before it answers.
    fn result(&self, worker: usize) -> Result<u64, Panicked> {
        let mut told = self.workers[worker].told.lock().unwrap();
        told.results.pop_front().expect("it has told")
    }

    fn run(&mut self, job: impl FnOnce() -> u64 + Send + 'static) -> Result<u64, Panicked> {
        let runnable = self.load(job);
        self.send(0, runnable);
        self.finish(0)
    }

    /// Interrupts what runs at `worker` until it has given way.
    fn stop(&mut self, worker: usize, dispatched: &Dispatched) -> Suspended<Job, u64> {
        let start = Instant::now();
        loop {
            dispatched.request();
            self.signal.interrupt(&self.workers[worker].link).unwrap();
            for _ in 0..1000 {
                match self.workers[worker].sender.poll() {
                    Some((_, Completion::Preempted(suspended))) => return suspended,
                    Some((_, Completion::Finished(_))) => panic!("finished, not preempted"),
                    None => std::hint::spin_loop(),
                }
            }
            assert!(start.elapsed() < PATIENCE, "it is never stopped");
            std::thread::yield_now();
        }
    }

    /// Runs `jobs` to their end, first come, first served, each preempted after `quantum` again and
    /// again. Returns how often.
    fn share_out(&mut self, jobs: Vec<Job>, quantum: Duration) -> u64 {
        let mut queue: VecDeque<Runnable<Job, u64>> = VecDeque::with_capacity(jobs.len());
        let all = jobs.len();
        for job in jobs {
            queue.push_back(
                self.idle
                    .pop()
                    .expect("a context for each")
                    .load(job)
                    .into(),
            );
        }
        let mut out: Vec<Option<(Dispatched, Instant)>> =
            self.workers.iter().map(|_| None).collect();
        let (mut finished, mut preempted) = (0, 0);
        let start = Instant::now();
        while finished < all {
            for (at, out) in out.iter_mut().enumerate() {
                let worker = &mut self.workers[at];
                if let Some((_, completion)) = worker.sender.poll() {
                    *out = None;
                    match completion {
                        Completion::Finished(idle) => {
                            self.idle.push(idle);
                            finished += 1;
                        }
                        Completion::Preempted(suspended) => {
                            queue.push_back(suspended.into());
                            preempted += 1;
                        }
                    }
                }
                match out {
                    None => {
                        if let Some(runnable) = queue.pop_front() {
                            let sent = worker.sender.send(runnable);
                            let dispatched = sent.unwrap_or_else(|_| panic!("no room"));
                            *out = Some((dispatched, Instant::now()));
                        }
                    }
                    Some((dispatched, since)) if since.elapsed() > quantum => {
                        dispatched.request();
                        self.signal.interrupt(&worker.link).unwrap();
                        *since = Instant::now();
                    }
                    Some(_) => {}
                }
            }
            assert!(start.elapsed() < PATIENCE, "{finished} of {all} finished");
            std::thread::yield_now();
        }
        preempted
    }

    fn end(self) -> HandBack {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.thread.join().unwrap();
        }
        self.handles.hand_back(self.idle, PATIENCE)
    }
}

/// Work that never gives way by itself and checks itself.
fn compute(seed: u64, rounds: u64) -> u64 {
    let mut value = std::hint::black_box(seed);
    for _ in 0..rounds {
        value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) + 1;
    }
    value
}

fn wait_for(flag: &AtomicBool) {
    let start = Instant::now();
    while !flag.load(Ordering::Acquire) {
        assert!(start.elapsed() < PATIENCE, "it never came so far");
        std::thread::yield_now();
    }
}

#[test]
fn one_request_after_another_runs_on_one_thread() {
    let mut rig = Rig::new(1, 1);
    for n in 0..1000 {
        assert_eq!(rig.run(move || n * 2), Ok(n * 2));
    }
    let threads = rig.workers[0].told.lock().unwrap().threads.len();
    assert_eq!(
        threads, 1,
        "the loop went to the context's thread and stayed"
    );
    assert!(rig.run(|| u64::from(in_context())) == Ok(1));
    assert_eq!(rig.end().returned, 1);
}

/// Between a system call that failed and the look at its error there may be a probe, or a guard's
/// end. The worker's loop makes system calls on the job's thread meanwhile.
#[test]
fn errno_survives_a_probe_and_a_guards_end() {
    const MINE: i32 = 4242;
    let errno = || {
        // SAFETY: the address of the thread's own.
        unsafe { libc::__errno_location() }
    };
    let mut rig = Rig::new(2, 1);
    for at_guard in [false, true] {
        let reached = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&reached);
        let job = rig.load(move || {
            let before = preemptions();
            // SAFETY: as above.
            unsafe { *errno() = MINE };
            theirs.store(true, Ordering::Release);
            let begun = Instant::now();
            while preemptions() == before && begun.elapsed() < PATIENCE {
                match at_guard {
                    true => without_preemption(std::hint::spin_loop),
                    false => preempt_point(),
                }
            }
            // SAFETY: as above.
            u64::from(unsafe { *errno() } == MINE)
        });
        let dispatched = rig.send(0, job);
        wait_for(&reached);
        dispatched.request();
        let Completion::Preempted(suspended) = rig.answer(0) else {
            panic!("finished, not preempted")
        };
        assert_eq!(rig.run(|| 7), Ok(7));
        rig.send(0, suspended.into());
        assert_eq!(rig.finish(0), Ok(1), "at a guard's end: {at_guard}");
    }
    rig.end();
}

#[test]
fn code_without_probes_is_stopped_on_two_workers_and_stays_on_its_thread() {
    thread_local! { static MINE: Cell<u64> = const { Cell::new(0) } }
    let mut rig = Rig::new(8, 2);
    let wrong = Arc::new(AtomicU64::new(0));
    let jobs = (1..=8)
        .map(|seed| {
            let wrong = Arc::clone(&wrong);
            Box::new(move || {
                let expected = compute(seed, 1000);
                let (me, before) = (gettid(), preemptions());
                MINE.set(seed);
                let begun = Instant::now();
                while preemptions() < before + 20 && begun.elapsed() < PATIENCE {
                    let right = compute(seed, 1000) == expected
                        && gettid() == me
                        && MINE.get() == seed
                        && format!("{seed}").parse() == Ok(seed);
                    wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
                }
                seed
            }) as Job
        })
        .collect();
    let preempted = rig.share_out(jobs, Duration::from_micros(200));
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    let counters = rig.workers.iter().map(|worker| worker.link.counters());
    let taken: u64 = counters.clone().map(|counters| counters.taken()).sum();
    assert_eq!(taken, preempted);
    assert!(preempted >= 8 * 20);
    assert!(counters.clone().any(|counters| counters.migrations > 0));
    assert!(
        counters
            .clone()
            .any(|counters| counters.taken_by_interrupt > 0)
    );
    assert_eq!(rig.end().returned, 8);
}

#[test]
fn a_probe_and_the_end_of_a_guard_give_way() {
    let mut rig = Rig::new(1, 2);
    let reached = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&reached);
    let job = rig.load(move || {
        let first = current_worker().unwrap();
        theirs.store(true, Ordering::Release);
        while current_worker() == Some(first) {
            preempt_point();
        }
        let second = current_worker().unwrap();
        theirs.store(true, Ordering::Release);
        without_preemption(|| {
            while theirs.load(Ordering::Acquire) {
                preempt_point();
            }
        });
        u64::from(10 * second + current_worker().unwrap())
    });
    let dispatched = rig.send(0, job);
    wait_for(&reached);
    dispatched.request();
    let Completion::Preempted(suspended) = rig.answer(0) else {
        panic!("it did not give way");
    };
    reached.store(false, Ordering::Release);
    let dispatched = rig.send(1, suspended.into());
    wait_for(&reached);
    dispatched.request();
    rig.signal.interrupt(&rig.workers[1].link).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert!(rig.workers[1].sender.poll().is_none(), "the guard holds");
    reached.store(false, Ordering::Release);
    let Completion::Preempted(suspended) = rig.answer(1) else {
        panic!("the guard ended, and it went on");
    };
    rig.send(0, suspended.into());
    assert_eq!(rig.finish(0), Ok(10));
    let counters = rig.workers[1].link.counters();
    assert_eq!((counters.taken_at_guard, counters.taken()), (1, 1));
    assert!(counters.deferred > 0);
    rig.end();
}

/// The context's thread plays the first worker's part when the second one gets the context.
#[test]
fn a_context_is_had_by_another_worker_at_once() {
    let mut rig = Rig::new(1, 2);
    for n in 0..300 {
        let at = (n % 2) as usize;
        let job = rig.load(move || n);
        rig.send(at, job);
        assert_eq!(rig.finish(at), Ok(n));
    }
    assert_eq!(rig.end().returned, 1);
}

#[test]
fn two_contexts_change_places_for_ever() {
    let mut rig = Rig::new(2, 2);
    let stop = Arc::new(AtomicBool::new(false));
    let mut suspended = Vec::new();
    for at in 0..2 {
        let theirs = Arc::clone(&stop);
        let job = rig.load(move || {
            let me = gettid();
            while !theirs.load(Ordering::Relaxed) {
                assert_eq!(gettid(), me);
            }
            0
        });
        let dispatched = rig.send(at, job);
        suspended.push(rig.stop(at, &dispatched));
    }
    for _ in 0..100 {
        suspended.reverse();
        let dispatched: Vec<_> = (suspended.drain(..).enumerate())
            .map(|(worker, one)| rig.send(worker, one.into()))
            .collect();
        for (worker, dispatched) in dispatched.iter().enumerate() {
            suspended.push(rig.stop(worker, dispatched));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for (worker, one) in suspended.into_iter().enumerate() {
        rig.send(worker, one.into());
        assert_eq!(rig.finish(worker), Ok(0));
    }
    assert_eq!(rig.end().returned, 2);
}

#[test]
fn a_panic_unwinds_to_the_root_and_a_lazy_thread_local_is_dropped_at_the_end() {
    struct OnDrop(Arc<AtomicU64>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    thread_local! { static KEPT: Cell<Option<OnDrop>> = const { Cell::new(None) } }
    let mut rig = Rig::new(1, 1);
    let drops = Arc::new(AtomicU64::new(0));
    let on_drop = OnDrop(Arc::clone(&drops));
    let result = rig.run(move || {
        let _on_drop = on_drop;
        without_preemption(|| panic!("on purpose"))
    });
    assert_eq!(result, Err(Panicked));
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    let on_drop = OnDrop(Arc::clone(&drops));
    assert_eq!(
        rig.run(move || {
            KEPT.set(Some(on_drop));
            u64::from(std::thread::panicking())
        }),
        Ok(0)
    );
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(rig.end().returned, 1);
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

/// A mutex with priority inheritance: the kernel knows its owner by its thread.
struct PriorityMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: that is what a mutex is for.
unsafe impl Sync for PriorityMutex {}
// SAFETY: as above; it is not locked when it is moved.
unsafe impl Send for PriorityMutex {}

impl PriorityMutex {
    fn new() -> Box<Self> {
        let mutex = Box::new(Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
        // SAFETY: initialised once, at its final place.
        unsafe {
            let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
            assert_eq!(libc::pthread_mutexattr_init(&mut attributes), 0);
            let inherit = libc::PTHREAD_PRIO_INHERIT;
            assert_eq!(
                libc::pthread_mutexattr_setprotocol(&mut attributes, inherit),
                0
            );
            assert_eq!(libc::pthread_mutex_init(mutex.0.get(), &attributes), 0);
        }
        mutex
    }

    fn with<Out>(&self, body: impl FnOnce() -> Out) -> Out {
        // SAFETY: a live mutex, unlocked by the thread that locked it.
        unsafe { assert_eq!(libc::pthread_mutex_lock(self.0.get()), 0) };
        let out = body();
        // SAFETY: as above.
        unsafe { assert_eq!(libc::pthread_mutex_unlock(self.0.get()), 0) };
        out
    }
}

/// On one worker, so that a job that waits for a lock is preempted for the lock's holder.
#[test]
fn contended_locks_with_and_without_priority_inheritance_are_passed_on() {
    const ROUNDS: u64 = 300;
    let mut rig = Rig::new(4, 1);
    let (inheriting, ordinary) = (Arc::new(PriorityMutex::new()), Arc::new(Mutex::new(0u64)));
    let within = Arc::new(AtomicU64::new(0));
    let jobs = (0..4)
        .map(|seed| {
            let (inheriting, ordinary) = (Arc::clone(&inheriting), Arc::clone(&ordinary));
            let within = Arc::clone(&within);
            Box::new(move || {
                for _ in 0..ROUNDS {
                    inheriting.with(|| {
                        assert_eq!(within.fetch_add(1, Ordering::Relaxed), 0);
                        compute(seed, 3000);
                        within.fetch_sub(1, Ordering::Relaxed);
                    });
                    let mut sum = ordinary.lock().unwrap();
                    compute(seed, 1000);
                    *sum += 1;
                }
                0u64
            }) as Job
        })
        .collect();
    let preempted = rig.share_out(jobs, Duration::from_micros(50));
    assert!(preempted > 0);
    assert_eq!(*ordinary.lock().unwrap(), 4 * ROUNDS);
    for _ in 0..4 {
        assert_eq!(rig.result(0), Ok(0));
    }
    assert_eq!(rig.end().returned, 4);
}

/// glibc sends every thread a signal, those parked in a handler among them, and waits for all.
#[test]
fn setuid_reaches_parked_threads_from_outside_and_from_a_job() {
    let mut rig = Rig::new(3, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let mut parked = Vec::new();
    for _ in 0..2 {
        let theirs = Arc::clone(&stop);
        let job = rig.load(move || {
            while !theirs.load(Ordering::Relaxed) {}
            0
        });
        let dispatched = rig.send(0, job);
        parked.push(rig.stop(0, &dispatched));
    }
    let set = || {
        // SAFETY: sets what is set already.
        unsafe { libc::setuid(libc::getuid()) }
    };
    let outside = std::thread::spawn(set);
    let start = Instant::now();
    while !outside.is_finished() {
        assert!(start.elapsed() < PATIENCE, "setuid hangs");
        std::thread::yield_now();
    }
    assert_eq!(outside.join().unwrap(), 0);
    assert_eq!(rig.run(move || set() as u64), Ok(0));
    stop.store(true, Ordering::Relaxed);
    for one in parked {
        rig.send(0, one.into());
        assert_eq!(rig.finish(0), Ok(0));
    }
    assert_eq!(rig.end().returned, 3);
}

#[test]
fn a_job_that_blocks_is_seen_and_its_call_goes_on_after_a_preemption() {
    let mut rig = Rig::new(2, 1);
    let (out, mut in_) = std::io::pipe().unwrap();
    let job = rig.load(move || {
        let mut byte = [0u8];
        // Not by `std`, which would repeat a call that was interrupted.
        // SAFETY: reads into a local.
        let read = unsafe { libc::read(out.as_raw_fd(), byte.as_mut_ptr().cast(), 1) };
        assert_eq!(read, 1);
        u64::from(byte[0])
    });
    let dispatched = rig.send(0, job);
    let start = Instant::now();
    while !rig.workers[0].link.is_blocked() {
        assert!(start.elapsed() < PATIENCE, "it is never seen to block");
        std::thread::yield_now();
    }
    let suspended = rig.stop(0, &dispatched);
    assert_eq!(rig.run(|| 5), Ok(5), "the worker is free");
    in_.write_all(&[7]).unwrap();
    rig.send(0, suspended.into());
    assert_eq!(rig.finish(0), Ok(7));
    assert_eq!(rig.end().returned, 2);
}

/// A program's handler may call what is safe to call, also where a thread is parked whose worker is
/// gone.
#[test]
fn a_handler_of_the_programs_runs_on_a_parked_thread() {
    static RAN: AtomicI32 = AtomicI32::new(0);
    extern "C" fn handler(_: libc::c_int) {
        preempt_point();
        without_preemption(preempt_point);
        let worker = current_worker().map_or(-1, |worker| worker as i32);
        RAN.store(1000 + worker, Ordering::Release);
    }
    let mut rig = Rig::new(1, 1);
    // SAFETY: the handler is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as usize) };
    let (stop, thread) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicI32::new(0)),
    );
    let (theirs, its_thread) = (Arc::clone(&stop), Arc::clone(&thread));
    let job = rig.load(move || {
        its_thread.store(gettid(), Ordering::Release);
        while !theirs.load(Ordering::Relaxed) {}
        3
    });
    let dispatched = rig.send(0, job);
    let start = Instant::now();
    while thread.load(Ordering::Acquire) == 0 {
        assert!(start.elapsed() < PATIENCE, "it never began");
        std::thread::yield_now();
    }
    let suspended = rig.stop(0, &dispatched);
    rig.stop.store(true, Ordering::Relaxed);
    let worker = rig.workers.pop().unwrap();
    worker.thread.join().unwrap();
    // SAFETY: sends a signal to a thread of this process that has a handler for it.
    unsafe {
        let thread = thread.load(Ordering::Acquire);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2)
    };
    let start = Instant::now();
    while RAN.load(Ordering::Acquire) == 0 {
        assert!(start.elapsed() < PATIENCE, "the handler never ran");
        std::thread::yield_now();
    }
    assert_eq!(RAN.load(Ordering::Acquire), 999, "it has no worker");
    rig.stop.store(false, Ordering::Relaxed);
    rig.workers.push(WorkerThread::start(9, &rig.stop));
    stop.store(true, Ordering::Relaxed);
    rig.send(0, suspended.into());
    assert_eq!(rig.finish(0), Ok(3));
    assert_eq!(rig.end().returned, 1);
}

#[test]
fn a_context_that_stays_suspended_is_leaked_and_holds_up_nothing() {
    let mut rig = Rig::new(2, 1);
    let job = rig.load(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    let dispatched = rig.send(0, job);
    let suspended = rig.stop(0, &dispatched);
    drop(suspended);
    let end = rig.end();
    assert_eq!((end.returned, end.leaked), (1, 1));
}

#[test]
fn without_the_token_a_context_on_a_stack_is_not_stopped() {
    let mut rig = Rig::of(ContextKind::Stack, 1, 1);
    let (reached, stop) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (theirs, their_stop) = (Arc::clone(&reached), Arc::clone(&stop));
    let job = rig.load(move || {
        theirs.store(true, Ordering::Release);
        while !their_stop.load(Ordering::Relaxed) {}
        4
    });
    let dispatched = rig.send(0, job);
    wait_for(&reached);
    dispatched.request();
    for _ in 0..20 {
        rig.signal.interrupt(&rig.workers[0].link).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(rig.workers[0].sender.poll().is_none(), "it was stopped");
    stop.store(true, Ordering::Relaxed);
    assert_eq!(rig.finish(0), Ok(4));
    assert_eq!(rig.end().returned, 1);
}
