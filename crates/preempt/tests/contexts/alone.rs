//! Contexts alone: one worker on the test's thread, preempted by probes and signals on purpose.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    HardPreemption, Mechanism, Panicked, Pool, PoolConfig, Signal, current_worker, in_context,
    preempt_point, without_preemption,
};
use shinjuku_tests_support::contexts::{Rig, WorkerThread};
use shinjuku_tests_support::process::{as_child, is_child};
use shinjuku_tests_support::{PATIENCE, assert_says, test_name, wait_for};

fn rig(contexts: usize, workers: u32) -> Rig {
    let config = PoolConfig::default().contexts(contexts).name("rig");
    Rig::new(config, workers, |id, stop| {
        WorkerThread::start(id, stop, |_| (), |end, worker| end.run(worker, yield_now))
    })
}

fn signal() -> Signal {
    // SAFETY: the tests' handlers rely on nothing that the token's contract excludes.
    Signal::install(unsafe { HardPreemption::allow() }).unwrap()
}

fn reach(flag: &AtomicBool) {
    wait_for("the job to come so far", || flag.load(Ordering::Acquire));
}

/// Set by jobs to report their progress, and by tests to let them continue.
#[derive(Default)]
struct Gate {
    reached: AtomicBool,
    open: AtomicBool,
}

#[test]
fn jobs_run_and_contexts_are_used_again() {
    let mut rig = rig(1, 1);
    for n in 0..1000u64 {
        assert_eq!(rig.run(move || n * 2), Ok(n * 2));
    }
    assert_eq!(rig.end().returned, 1);
}

#[test]
fn a_panic_unwinds_to_the_root_and_no_further() {
    struct OnDrop(Arc<AtomicU32>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("in the payload's destructor, on purpose");
        }
    }
    let mut rig = rig(1, 1);
    let drops = Arc::new(AtomicU32::new(0));
    let on_drop = OnDrop(Arc::clone(&drops));
    let result = rig.run(move || {
        let _on_drop = on_drop;
        without_preemption(|| panic!("on purpose"))
    });
    assert_eq!(result, Err(Panicked));
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(
        rig.run(|| std::panic::panic_any(PanicsOnDrop)),
        Err(Panicked)
    );
    assert_eq!(rig.run(|| u64::from(std::thread::panicking())), Ok(0));
    assert_eq!(rig.end().returned, 1);
}

#[test]
fn a_probe_gives_way_and_the_job_goes_on_elsewhere() {
    let mut rig = rig(1, 2);
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let job = rig.load(move || {
        let first = current_worker().unwrap();
        theirs.reached.store(true, Ordering::Release);
        while current_worker() == Some(first) {
            preempt_point();
        }
        u64::from(first * 10 + current_worker().unwrap())
    });
    let dispatched = rig.send(0, job);
    reach(&gate.reached);
    dispatched.request();
    let suspended = rig.preempted(0);
    rig.send(1, suspended.into());
    assert_eq!(rig.finish(1), Ok(1));
    // At the probe itself, or at the end of the guard in `current_worker`.
    assert_eq!(rig.workers[0].link.counters().taken(), 1);
    assert_eq!(rig.workers[1].link.counters().migrations, 1);
    rig.end();
}

#[test]
fn a_signal_preempts_code_without_probes_with_every_register_kept() {
    let (mut rig, signal) = (rig(1, 2), signal());
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let job = rig.load(move || {
        // Values that live in registers, with the same result each time.
        let cycle = || {
            let (mut float, mut integer) = (1.0f64, std::hint::black_box(1u64));
            for _ in 0..100 {
                integer = integer
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                float = (float + integer as f64).sqrt();
            }
            (float.to_bits(), integer)
        };
        let (expected, mut wrong) = (cycle(), 0);
        while !theirs.open.load(Ordering::Relaxed) {
            theirs.reached.store(true, Ordering::Release);
            wrong += u64::from(cycle() != expected);
        }
        wrong
    });
    let mut dispatched = rig.send(0, job);
    for round in 0..200 {
        // In the job's own code, where nothing but the signal can find the request.
        reach(&gate.reached);
        let here = round % 2;
        dispatched.request();
        signal.interrupt(&rig.workers[here].link).unwrap();
        let suspended = rig.preempted(here);
        gate.reached.store(false, Ordering::Relaxed);
        dispatched = rig.send(1 - here, suspended.into());
    }
    gate.open.store(true, Ordering::Relaxed);
    assert_eq!(rig.finish(0), Ok(0), "results that came out different");
    for worker in &rig.workers {
        let counters = worker.link.counters();
        assert_eq!((counters.taken_by_interrupt, counters.taken()), (100, 100));
    }
    assert_eq!(rig.end().returned, 1);
}

#[test]
fn a_late_request_does_not_touch_the_next_job() {
    let (mut rig, signal) = (rig(1, 1), signal());
    let job = rig.load(|| 1);
    let late = rig.send(0, job);
    assert_eq!(rig.finish(0), Ok(1));
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let job = rig.load(move || {
        theirs.reached.store(true, Ordering::Release);
        while !theirs.open.load(Ordering::Relaxed) {
            preempt_point();
        }
        2
    });
    rig.send(0, job);
    reach(&gate.reached);
    late.request();
    for _ in 0..10 {
        signal.interrupt(&rig.workers[0].link).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    gate.open.store(true, Ordering::Relaxed);
    assert_eq!(rig.finish(0), Ok(2), "finished without giving way");
    let counters = rig.workers[0].link.counters();
    assert_eq!(counters.taken(), 0);
    assert!(counters.late > 0, "{counters:?}");
    rig.end();
}

#[test]
fn the_guard_defers_to_its_end_and_nests() {
    let (mut rig, signal) = (rig(1, 1), signal());
    let gate = Arc::new(Gate::default());
    let inside = Arc::new(AtomicU64::new(0));
    let (theirs, count) = (Arc::clone(&gate), Arc::clone(&inside));
    let job = rig.load(move || {
        without_preemption(|| {
            without_preemption(|| {
                theirs.reached.store(true, Ordering::Release);
                while !theirs.open.load(Ordering::Relaxed) {
                    preempt_point();
                }
            });
            // The outer guard still holds.
            preempt_point();
            count.store(1, Ordering::Relaxed);
        });
        // Given way here.
        count.fetch_add(1, Ordering::Relaxed)
    });
    let dispatched = rig.send(0, job);
    reach(&gate.reached);
    dispatched.request();
    signal.interrupt(&rig.workers[0].link).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert!(rig.workers[0].sender.poll().is_none(), "the guard holds");
    gate.open.store(true, Ordering::Relaxed);
    let suspended = rig.preempted(0);
    assert_eq!(
        inside.load(Ordering::Relaxed),
        1,
        "stopped right at the end of the outer guard"
    );
    rig.send(0, suspended.into());
    assert_eq!(rig.finish(0), Ok(1));
    let counters = rig.workers[0].link.counters();
    assert_eq!((counters.taken(), counters.taken_at_guard), (1, 1));
    assert!(counters.deferred > 0);
    rig.end();
}

#[test]
fn a_request_that_arrives_before_the_job_runs_is_not_lost() {
    let mut rig = rig(1, 2);
    let mut suspended = None;
    for round in 0..500 {
        // Usually asked for while the worker is still entering: the job must give way in any case.
        let runnable = suspended.take().map_or_else(
            || {
                rig.load(|| {
                    loop {
                        preempt_point()
                    }
                })
            },
            Into::into,
        );
        let dispatched = rig.send(round % 2, runnable);
        dispatched.request();
        suspended = Some(rig.preempted(round % 2));
    }
    // Leaked, as documented: it would spin forever.
    let _leaked = suspended;
    let report = rig.end();
    assert_eq!((report.returned, report.leaked), (0, 1));
}

#[test]
fn thread_locals_belong_to_the_context_and_their_destructors_run_at_hand_back() {
    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
        static WITH_DROP: OnEnd = const { OnEnd };
    }
    static ENDED: AtomicU32 = AtomicU32::new(0);
    struct OnEnd;
    impl Drop for OnEnd {
        fn drop(&mut self) {
            assert!(!in_context());
            assert!(std::thread::current().name().unwrap().starts_with("rig-"));
            ENDED.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut rig = rig(1, 2);
    for expected in 1..=10 {
        let job = rig.load(|| {
            WITH_DROP.with(|_| ());
            COUNT.set(COUNT.get() + 1);
            COUNT.get()
        });
        let worker = expected as usize % 2;
        rig.send(worker, job);
        assert_eq!(rig.finish(worker), Ok(expected), "whichever worker runs it");
    }
    assert_eq!(COUNT.get(), 0, "the test's own is another");
    assert_eq!(rig.end().returned, 1);
    assert_eq!(ENDED.load(Ordering::Relaxed), 1);
}

/// A thread at its end may wait for what a suspended context has: the allocator's locks, say.
#[test]
fn the_hand_back_does_not_wait_for_what_waits_at_its_end() {
    static MAY_END: AtomicBool = AtomicBool::new(false);
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            let start = Instant::now();
            while !MAY_END.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    thread_local! {
        static LAST: Waits = const { Waits };
    }
    let mut rig = rig(1, 1);
    let result = rig.run(|| {
        LAST.with(|_| ());
        1
    });
    assert_eq!(result, Ok(1));
    let report = rig.end_within(Duration::from_millis(50));
    MAY_END.store(true, Ordering::Relaxed);
    assert_eq!((report.returned, report.leaked), (0, 1));
}

#[test]
fn a_context_not_handed_back_is_leaked_and_counted() {
    let mut rig = rig(3, 1);
    let _leaked = rig.idle.pop();
    let report = rig.end();
    assert_eq!((report.returned, report.leaked), (2, 1));
}

#[test]
fn the_cpu_number_is_the_workers_not_the_backing_threads() {
    let mut rig = rig(1, 1);
    let asked = rig.run(|| {
        // The backing thread's number would be the same on every core that the worker moves to.
        let mut wrong = 0;
        // SAFETY: the sets are locals, and only the calling worker's affinity changes, and changes
        // back.
        unsafe {
            let size = size_of::<libc::cpu_set_t>();
            let mut allowed: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size, &mut allowed);
            for cpu in (0..libc::CPU_SETSIZE).filter(|&cpu| libc::CPU_ISSET(cpu as usize, &allowed))
            {
                let mut only: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu as usize, &mut only);
                libc::sched_setaffinity(0, size, &only);
                // glibc reads it from the restartable-sequence area of the thread control block, if
                // that is registered.
                wrong += u64::from(libc::sched_getcpu() != cpu);
            }
            libc::sched_setaffinity(0, size, &allowed);
        }
        wrong
    });
    assert_eq!(asked, Ok(0));
    rig.end();
}

#[test]
fn restartable_sequences_are_not_registered_in_a_context() {
    let mut rig = rig(1, 1);
    let registered = rig.run(|| {
        // SAFETY: public symbols of glibc 2.35 and later; the area is in this thread control block.
        unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
            if offset.is_null() {
                return 0;
            }
            let base: usize;
            std::arch::asm!("rdfsbase {}", out(reg) base);
            // struct rseq: cpu_id_start, cpu_id. Negative: not registered.
            let area = base.wrapping_add_signed(*offset) as *const i32;
            u64::from(*area.add(1) >= 0)
        }
    });
    assert_eq!(registered, Ok(0));
    rig.end();
}

#[test]
fn a_migrated_signal_frame_leaves_the_alternate_stack_alone() {
    fn alternate() -> usize {
        // SAFETY: only reads.
        unsafe {
            let mut now: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut now);
            now.ss_sp as usize
        }
    }
    let (mut rig, signal) = (rig(2, 2), signal());
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let job = rig.load(move || {
        theirs.reached.store(true, Ordering::Release);
        while !theirs.open.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        // Runs on worker 1 now, after the return from a frame that was made on worker 0.
        alternate() as u64
    });
    let dispatched = rig.send(0, job);
    reach(&gate.reached);
    dispatched.request();
    signal.interrupt(&rig.workers[0].link).unwrap();
    let suspended = rig.preempted(0);
    let probe = rig.load(|| alternate() as u64);
    rig.send(1, probe);
    let own = rig.finish(1).unwrap();
    gate.open.store(true, Ordering::Relaxed);
    rig.send(1, suspended.into());
    assert_eq!(
        rig.finish(1),
        Ok(own),
        "worker 1 has its own alternate stack"
    );
    rig.end();
}

#[test]
fn a_blocking_call_is_preempted_by_signal_and_restarted() {
    use std::io::{Read, Write};
    let (mut rig, signal) = (rig(2, 1), signal());
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let job = rig.load(move || {
        theirs.reached.store(true, Ordering::Release);
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        u64::from(byte[0])
    });
    let dispatched = rig.send(0, job);
    reach(&gate.reached);
    std::thread::sleep(Duration::from_millis(5));
    dispatched.request();
    signal.interrupt(&rig.workers[0].link).unwrap();
    let suspended = rig.preempted(0);
    assert_eq!(rig.run(|| 5), Ok(5), "the worker is free meanwhile");
    rig.send(0, suspended.into());
    writer.write_all(&[42]).unwrap();
    assert_eq!(rig.finish(0), Ok(42));
    rig.end();
}

/// What computes does not wait, and neither does what a probe stopped.
#[test]
fn a_job_that_a_signal_stops_as_it_waits_for_a_lock_is_told_from_others() {
    let (mut rig, signal) = (rig(2, 1), signal());
    let lock = Arc::new(std::sync::Mutex::new(0));
    for (takes_the_lock, probes) in [(true, false), (false, false), (false, true)] {
        let held = lock.lock().unwrap();
        let gate = Arc::new(Gate::default());
        let (theirs, locks) = (Arc::clone(&gate), Arc::clone(&lock));
        let job = rig.load(move || {
            theirs.reached.store(true, Ordering::Release);
            if takes_the_lock {
                return *locks.lock().unwrap();
            }
            while !theirs.open.load(Ordering::Relaxed) {
                if probes {
                    preempt_point();
                }
            }
            0
        });
        let dispatched = rig.send(0, job);
        reach(&gate.reached);
        // Twice: it may wait a moment for memory on its way.
        for _ in 0..if takes_the_lock { 2 } else { 0 } {
            wait_for("the wait", || rig.workers[0].link.is_blocked());
            std::thread::sleep(Duration::from_millis(5));
        }
        dispatched.request();
        if !probes {
            signal.interrupt(&rig.workers[0].link).unwrap();
        }
        let suspended = rig.preempted(0);
        assert_eq!(suspended.waits_for_a_lock(), takes_the_lock);
        drop(held);
        gate.open.store(true, Ordering::Relaxed);
        rig.send(0, suspended.into());
        assert_eq!(rig.finish(0), Ok(0));
    }
    rig.end();
}

#[test]
fn recursion_down_to_the_promised_stack_size_works_under_signals() {
    #[inline(never)]
    fn descend(left: usize) -> u64 {
        let frame = std::hint::black_box([left as u8; 512]);
        if left < 2048 {
            return 1;
        }
        descend(left - 2048) + u64::from(frame[7] == left as u8)
    }
    let (mut rig, signal) = (rig(1, 1), signal());
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let job = rig.load(move || {
        theirs.reached.store(true, Ordering::Release);
        let mut sum = 0;
        while !theirs.open.load(Ordering::Relaxed) {
            // Each level takes 512 bytes and a frame's overhead, at most the 2048 it is counted
            // for, including in debug builds.
            sum += descend(PoolConfig::default().stack_size - 16 * 1024);
        }
        sum
    });
    let mut dispatched = rig.send(0, job);
    reach(&gate.reached);
    for _ in 0..300 {
        dispatched.request();
        signal.interrupt(&rig.workers[0].link).unwrap();
        let suspended = rig.preempted(0);
        dispatched = rig.send(0, suspended.into());
    }
    gate.open.store(true, Ordering::Relaxed);
    assert!(rig.finish(0).unwrap() > 0);
    rig.end();
}

/// This test in a process that is meant to die.
fn child(test: &str) -> std::process::Output {
    as_child(test).output().unwrap()
}

#[test]
fn stack_overflow_dies_with_a_message_that_names_the_context() {
    #[inline(never)]
    fn descend(n: u64) -> u64 {
        std::hint::black_box([n; 64])[3] + if n == u64::MAX { 0 } else { descend(n + 1) }
    }
    if is_child() {
        let mut rig = rig(3, 1);
        let _ = rig.run(|| descend(0));
        unreachable!("the process has died");
    }
    let output = child(test_name!());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert_says(
        &text,
        ["the request in context 2 has overflowed its stack of 256 KiB"],
    );
}

#[test]
fn other_faults_still_die_by_their_signal() {
    use std::os::unix::process::ExitStatusExt;
    if is_child() {
        let mut rig = rig(1, 1);
        // SAFETY: none: the point is to fault.
        let _ =
            rig.run(|| unsafe { std::ptr::read_volatile(std::hint::black_box(64) as *const u64) });
        unreachable!("the process has died");
    }
    let output = child(test_name!());
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_says(
        &text,
        ["the request in context 0 dies of signal 11 (address 0x40)"],
    );
}

#[test]
fn a_handler_that_was_there_before_gets_what_is_not_ours() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: libc::c_int) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    if is_child() {
        // SAFETY: the handler only adds to an atomic; raise signals this thread, which is no
        // worker.
        unsafe {
            libc::signal(libc::SIGURG, count as *const () as usize);
            let _signal = signal();
            libc::raise(libc::SIGURG);
        }
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        return;
    }
    // In a separate process: the handler is installed once a process.
    let output = child(test_name!());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn numbers_out_of_range_are_named() {
    let error = |config| Pool::new(config, |_: ()| ()).unwrap_err().to_string();
    let default = PoolConfig::default;
    assert!(error(default().contexts(0)).contains("contexts is 0, but must be 1 to 65536"));
    assert!(error(default().contexts(1 << 20)).contains("contexts is 1048576"));
    assert!(error(default().stack_size(100)).contains("stack_size is 100, but must be 16384"));
}
