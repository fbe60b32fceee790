//! Contexts that are kernel threads, under a small scheduler. This program never gives the token:
//! what is stopped anywhere here is stopped without it.
#![allow(missing_docs)]

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Completion, ContextKind, Dispatched, Finished, Mechanism, Panicked, PoolConfig, Runnable,
    Service, Signal, Step, Suspended, Worker, WorkerLink, current_worker, in_context,
    preempt_point, preemptions, without_preemption,
};
use shinjuku_tests_support::contexts::{Job, Rig, WorkerEnd, WorkerThread};
use shinjuku_tests_support::{PATIENCE, wait_for};

/// A worker's loop over a mailbox, and the threads on which it has been. There is room for them
/// from the start: a suspended job may hold the allocator's locks.
struct Loop(WorkerEnd, Threads);

type Threads = Arc<Mutex<Vec<i32>>>;

impl Service<Job, u64> for Loop {
    fn next(&mut self) -> Step<Job, u64> {
        // Fails, as system calls of a real loop do: on whichever thread plays the worker's part.
        // SAFETY: no file has this number.
        unsafe { libc::close(-1) };
        match self.0.receiver.poll() {
            Some((runnable, generation)) => Step::Run(runnable, generation),
            None if self.0.is_stopped() => Step::End,
            None => {
                std::thread::yield_now();
                Step::Nothing
            }
        }
    }

    fn finished(&mut self, finished: Finished<Job, u64>) {
        let me = gettid();
        let mut threads = self.1.lock().unwrap();
        if !threads.contains(&me) {
            threads.push(me);
        }
        drop(threads);
        self.0.finished(finished);
    }

    fn preempted(&mut self, suspended: Suspended<Job, u64>) {
        self.0.receiver.answer(Completion::Preempted(suspended));
    }

    fn sleep(&mut self) {}
}

fn gettid() -> i32 {
    // SAFETY: only returns a number.
    unsafe { libc::gettid() }
}

fn start(id: u32, stop: &Arc<AtomicBool>) -> WorkerThread {
    start_noting(id, stop, threads())
}

fn start_noting(id: u32, stop: &Arc<AtomicBool>, threads: Threads) -> WorkerThread {
    let serve = |end, mut worker: Worker| worker.serve(&mut Loop(end, threads));
    WorkerThread::start(id, stop, |_| (), serve)
}

fn threads() -> Threads {
    Arc::new(Mutex::new(Vec::with_capacity(64)))
}

fn rig(contexts: usize, workers: u32) -> Rig {
    rig_of(ContextKind::KernelThread, contexts, workers)
}

fn rig_of(kind: ContextKind, contexts: usize, workers: u32) -> Rig {
    Rig::new(pool(kind, contexts), workers, start)
}

fn pool(kind: ContextKind, contexts: usize) -> PoolConfig {
    let config = PoolConfig::default().contexts(contexts);
    config.kind(kind).name("rig")
}

fn interrupt(link: &WorkerLink) {
    Signal::for_kernel_threads()
        .unwrap()
        .interrupt(link)
        .unwrap();
}

/// Interrupts what runs at `worker` until it has given way.
fn preempt(rig: &mut Rig, worker: usize, dispatched: &Dispatched) -> Suspended<Job, u64> {
    let stopped = rig.stop_job(worker, dispatched, interrupt);
    stopped.expect("it is stopped")
}

/// Runs `jobs` to their end, first come, first served, each preempted after `quantum` again and
/// again. Returns how often.
fn share_out(rig: &mut Rig, jobs: Vec<Job>, quantum: Duration) -> u64 {
    let mut queue: VecDeque<Runnable<Job, u64>> = VecDeque::with_capacity(jobs.len());
    let all = jobs.len();
    queue.extend(jobs.into_iter().map(|job| rig.load(job)));
    let mut out: Vec<Option<(Dispatched, Instant)>> = rig.workers.iter().map(|_| None).collect();
    let (mut finished, mut preempted) = (0, 0);
    let start = Instant::now();
    while finished < all {
        for (at, out) in out.iter_mut().enumerate() {
            let worker = &mut rig.workers[at];
            if let Some((_, completion)) = worker.sender.poll() {
                *out = None;
                match completion {
                    Completion::Finished(idle) => {
                        rig.idle.push(idle);
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
                        *out = Some((rig.send(at, runnable), Instant::now()));
                    }
                }
                Some((dispatched, since)) if since.elapsed() > quantum => {
                    dispatched.request();
                    interrupt(&worker.link);
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

/// Work that never gives way by itself and checks itself.
fn compute(seed: u64, rounds: u64) -> u64 {
    let mut value = std::hint::black_box(seed);
    for _ in 0..rounds {
        value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) + 1;
    }
    value
}

fn reach(flag: &AtomicBool) {
    wait_for("the job to come so far", || flag.load(Ordering::Acquire));
}

#[test]
fn one_request_after_another_runs_on_one_thread() {
    let threads = threads();
    let config = pool(ContextKind::KernelThread, 1);
    let mut rig = Rig::new(config, 1, |id, stop| {
        start_noting(id, stop, Arc::clone(&threads))
    });
    for n in 0..1000 {
        assert_eq!(rig.run(move || n * 2), Ok(n * 2));
    }
    let threads = threads.lock().unwrap().len();
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
    let mut rig = rig(2, 1);
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
        reach(&reached);
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
    let mut rig = rig(8, 2);
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
    let preempted = share_out(&mut rig, jobs, Duration::from_micros(200));
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
    let mut rig = rig(1, 2);
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
    reach(&reached);
    dispatched.request();
    let Completion::Preempted(suspended) = rig.answer(0) else {
        panic!("it did not give way");
    };
    reached.store(false, Ordering::Release);
    let dispatched = rig.send(1, suspended.into());
    reach(&reached);
    dispatched.request();
    interrupt(&rig.workers[1].link);
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
    let mut rig = rig(1, 2);
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
    let mut rig = rig(2, 2);
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
        suspended.push(preempt(&mut rig, at, &dispatched));
    }
    for _ in 0..100 {
        suspended.reverse();
        let dispatched: Vec<_> = (suspended.drain(..).enumerate())
            .map(|(worker, one)| rig.send(worker, one.into()))
            .collect();
        for (worker, dispatched) in dispatched.iter().enumerate() {
            suspended.push(preempt(&mut rig, worker, dispatched));
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
    let mut rig = rig(1, 1);
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
    let mut rig = rig(4, 1);
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
    let preempted = share_out(&mut rig, jobs, Duration::from_micros(50));
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
    let mut rig = rig(3, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let mut parked = Vec::new();
    for _ in 0..2 {
        let theirs = Arc::clone(&stop);
        let job = rig.load(move || {
            while !theirs.load(Ordering::Relaxed) {}
            0
        });
        let dispatched = rig.send(0, job);
        parked.push(preempt(&mut rig, 0, &dispatched));
    }
    let set = || {
        // SAFETY: sets what is set already.
        unsafe { libc::setuid(libc::getuid()) }
    };
    let outside = std::thread::spawn(set);
    wait_for("setuid", || outside.is_finished());
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
    let mut rig = rig(2, 1);
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
    wait_for("the job to block", || rig.workers[0].link.is_blocked());
    let suspended = preempt(&mut rig, 0, &dispatched);
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
    let mut rig = rig(1, 1);
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
    wait_for("the job to begin", || thread.load(Ordering::Acquire) != 0);
    let suspended = preempt(&mut rig, 0, &dispatched);
    rig.stop.store(true, Ordering::Relaxed);
    let worker = rig.workers.pop().unwrap();
    worker.join();
    // SAFETY: sends a signal to a thread of this process that has a handler for it.
    unsafe {
        let thread = thread.load(Ordering::Acquire);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2)
    };
    wait_for("the handler", || RAN.load(Ordering::Acquire) != 0);
    assert_eq!(RAN.load(Ordering::Acquire), 999, "it has no worker");
    rig.stop.store(false, Ordering::Relaxed);
    rig.workers.push(start(9, &rig.stop));
    stop.store(true, Ordering::Relaxed);
    rig.send(0, suspended.into());
    assert_eq!(rig.finish(0), Ok(3));
    assert_eq!(rig.end().returned, 1);
}

#[test]
fn a_context_that_stays_suspended_is_leaked_and_holds_up_nothing() {
    let mut rig = rig(2, 1);
    let job = rig.load(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    let dispatched = rig.send(0, job);
    let suspended = preempt(&mut rig, 0, &dispatched);
    drop(suspended);
    let end = rig.end();
    assert_eq!((end.returned, end.leaked), (1, 1));
}

#[test]
fn without_the_token_a_context_on_a_stack_is_not_stopped() {
    let mut rig = rig_of(ContextKind::Stack, 1, 1);
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
    reach(&reached);
    dispatched.request();
    for _ in 0..20 {
        interrupt(&rig.workers[0].link);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(rig.workers[0].sender.poll().is_none(), "it was stopped");
    stop.store(true, Ordering::Relaxed);
    assert_eq!(rig.finish(0), Ok(4));
    assert_eq!(rig.end().returned, 1);
}
