//! Compiled probes: the callback, called as instrumented code calls it, wherever it must not give
//! way, and where it must.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Clock, CompiledProbes, Cycles, DeadlineTimer, HardPreemption, Mechanism, Outstanding,
    QuantumEnd, preempt_point, without_preemption,
};

use crate::stage::{Lever, PATIENCE, Stage};

unsafe extern "C" {
    static __sancov_should_track: AtomicU64;
    safe fn __sanitizer_cov_trace_pc_guard(guard: *mut u32);
    safe fn __sanitizer_cov_trace_pc_guard_init(start: *const u32, end: *const u32);
}

/// Tests that read the gate run one at a time: it is the process's.
static GATE: Mutex<()> = Mutex::new(());

fn gate() -> u64 {
    // SAFETY: a static of the crate's, accessed atomically.
    unsafe { &__sancov_should_track }.load(Ordering::Relaxed)
}

/// As the compiler writes it.
#[inline(never)]
fn function_entry() {
    if gate() != 0 {
        __sanitizer_cov_trace_pc_guard(std::ptr::null_mut());
    }
}

fn probes() -> CompiledProbes {
    static WORDS: [u32; 3] = [0; 3];
    let words = WORDS.as_ptr_range();
    __sanitizer_cov_trace_pc_guard_init(words.start, words.end);
    // SAFETY: the tests' jobs rely on nothing that the token's contract excludes.
    CompiledProbes::install(unsafe { HardPreemption::allow() }).unwrap()
}

/// Asks the job's own dispatch to give way, at compiled probes as well.
fn request(lever: &Lever) -> Outstanding {
    probes().request(lever.dispatched.get().unwrap())
}

#[test]
fn a_function_entry_gives_way_while_the_request_is_outstanding() {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        function_entry();
        let outstanding = request(lever);
        assert_eq!(gate(), 1);
        function_entry();
        // Another dispatch: the request is stale, though the gate is up.
        function_entry();
        drop(outstanding);
        assert_eq!(gate(), 0);
        function_entry();
        8
    });
    let suspended = result.expect_err("preempted at the entry");
    assert_eq!(stage.resume(suspended).ok(), Some(8));
    let counters = stage.counters();
    assert_eq!((counters.taken_by_compiled_probe, counters.taken()), (1, 1));
    assert!(CompiledProbes::in_this_program() >= 3);
    stage.end();
}

#[test]
fn a_request_that_is_not_for_compiled_probes_is_left_to_the_others() {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let (runnable, _lever) = stage.load(|_| 1);
    let ended = stage.send(runnable);
    assert_eq!(stage.step().ok(), Some(1));
    let result = stage.start(move |lever| {
        // The gate is up for another dispatch's sake.
        let outstanding = probes().request(&ended);
        lever.request();
        for _ in 0..10 {
            function_entry();
        }
        assert_eq!(gate(), 1);
        drop(outstanding);
        preempt_point();
        9
    });
    let suspended = result.expect_err("preempted at the hand-written probe");
    assert_eq!(stage.resume(suspended).ok(), Some(9));
    let counters = stage.counters();
    assert_eq!((counters.taken_by_probe, counters.taken()), (1, 1));
    stage.end();
}

#[test]
fn a_function_entry_within_a_guard_leaves_the_request_to_the_guards_end() {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let outstanding = without_preemption(|| {
            let outstanding = request(lever);
            function_entry();
            outstanding
        });
        drop(outstanding);
        10
    });
    let suspended = result.expect_err("preempted at the guard's end");
    assert_eq!(stage.resume(suspended).ok(), Some(10));
    let counters = stage.counters();
    assert_eq!((counters.taken_at_guard, counters.taken()), (1, 1));
    stage.end();
}

#[test]
fn nothing_gives_way_between_a_panic_and_its_landing() {
    struct Dropped<'a>(&'a Lever);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            let _outstanding = request(self.0);
            for _ in 0..10 {
                function_entry();
            }
        }
    }
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let landed = catch_unwind(AssertUnwindSafe(|| {
            let _dropped = Dropped(lever);
            std::panic::resume_unwind(Box::new(11));
        }));
        assert!(landed.is_err());
        assert_eq!(lever.link.counters().taken(), 0);
        let _outstanding = request(lever);
        function_entry();
        11
    });
    let suspended = result.expect_err("preempted after the landing");
    assert_eq!(stage.counters().taken_by_compiled_probe, 1);
    assert_eq!(stage.resume(suspended).ok(), Some(11));
    stage.end();
}

/// What a signal handler finds: the lever of the job that it interrupted, with its own request.
fn request_and_enter(handler: extern "C" fn(libc::c_int), flags: libc::c_int) -> (u64, u64) {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let result = stage.start(move |lever| {
        // SAFETY: the handler only calls the callback; the old action is put back.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = flags;
            libc::sigaction(libc::SIGUSR1, &action, &mut before);
            let outstanding = request(lever);
            libc::raise(libc::SIGUSR1);
            assert_eq!(lever.link.counters().taken(), 0, "within the handler");
            libc::sigaction(libc::SIGUSR1, &before, std::ptr::null_mut());
            function_entry();
            drop(outstanding);
        }
        12
    });
    let suspended = result.expect_err("preempted after the handler");
    assert_eq!(stage.resume(suspended).ok(), Some(12));
    let counters = stage.counters();
    stage.end();
    (counters.taken_by_compiled_probe, counters.taken())
}

extern "C" fn handler(_: libc::c_int) {
    for _ in 0..10 {
        function_entry();
    }
}

#[test]
fn a_signal_handler_on_the_contexts_stack_does_not_give_way() {
    assert_eq!(request_and_enter(handler, 0), (1, 1));
}

#[test]
fn a_signal_handler_on_the_alternate_stack_does_not_give_way() {
    let flags = libc::SA_ONSTACK | libc::SA_NODEFER;
    assert_eq!(request_and_enter(handler, flags), (1, 1));
}

#[test]
fn threads_outside_of_contexts_go_on() {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let (runnable, _lever) = stage.load(|_| 13);
    let dispatched = stage.send(runnable);
    let outstanding = probes().request(&dispatched);
    std::thread::spawn(function_entry).join().unwrap();
    function_entry();
    drop(outstanding);
    let suspended = stage.step().expect_err("preempted on entry");
    assert_eq!(stage.resume(suspended).ok(), Some(13));
    assert_eq!(stage.counters().taken_by_compiled_probe, 0);
    stage.end();
}

/// Runs a job for a millisecond, after which the worker's own timer looks.
fn run_with_timer(job: impl FnOnce(&Lever) -> u64 + Send + 'static) -> Stage {
    let mut stage = Stage::new();
    let mut timer = DeadlineTimer::new(stage.signal).unwrap();
    let quantum = Clock::get().to_cycles(1_000_000);
    let (runnable, _lever) = stage.load(job);
    let dispatched = stage.send(runnable);
    let start = timer.arm(quantum);
    dispatched.request_after(start, quantum, QuantumEnd::Entries(probes()));
    let result = stage.step();
    timer.disarm();
    assert_eq!(gate(), 0, "the dispatch is over");
    if let Err(suspended) = result {
        // Nothing is asked of this dispatch, and the timer has fired.
        assert_eq!(stage.resume(suspended).ok(), Some(14));
    }
    stage
}

/// Waits for the timer, in code that calls no instrumented function.
fn wait_for_the_gate() {
    let start = Instant::now();
    while gate() == 0 {
        assert!(start.elapsed() < PATIENCE, "the timer raises no gate");
        std::hint::spin_loop();
    }
}

/// Enters again and again: what the thread was away from its CPU is added to the quantum.
fn until_taken(lever: &Lever, enter: impl Fn()) {
    let start = Instant::now();
    while lever.link.counters().taken() == 0 {
        assert!(start.elapsed() < PATIENCE, "it does not give way");
        enter();
    }
}

#[test]
fn the_workers_timer_raises_the_gate_and_the_next_entry_gives_way() {
    let _alone = GATE.lock().unwrap();
    let stage = run_with_timer(|lever| {
        wait_for_the_gate();
        assert_eq!((gate(), lever.link.counters().taken()), (1, 0));
        until_taken(lever, function_entry);
        assert_eq!(gate(), 0);
        14
    });
    let counters = stage.counters();
    assert_eq!((counters.taken_by_compiled_probe, counters.taken()), (1, 1));
    stage.end();
}

#[test]
fn a_gate_that_a_timer_has_raised_comes_down_with_the_dispatch() {
    let _alone = GATE.lock().unwrap();
    let ended = run_with_timer(|_| {
        wait_for_the_gate();
        14
    });
    assert_eq!(ended.counters().taken(), 0);
    ended.end();
    let taken_elsewhere = run_with_timer(|lever| {
        wait_for_the_gate();
        until_taken(lever, || without_preemption(|| assert_eq!(gate(), 1)));
        14
    });
    assert_eq!(taken_elsewhere.counters().taken_at_guard, 1);
    taken_elsewhere.end();
}

#[test]
fn an_entry_before_the_moment_goes_on_with_the_gate_up_for_another() {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let (runnable, _lever) = stage.load(|_| 1);
    let ended = stage.send(runnable);
    assert_eq!(stage.step().ok(), Some(1));
    let (runnable, _lever) = stage.load(move |_| {
        let outstanding = probes().request(&ended);
        (0..10).for_each(|_| function_entry());
        drop(outstanding);
        15
    });
    let hour = Clock::get().to_cycles(3_600_000_000_000);
    let dispatched = stage.send(runnable);
    dispatched.request_after(Cycles::now(), hour, QuantumEnd::Entries(probes()));
    assert_eq!(stage.step().ok(), Some(15));
    assert_eq!(stage.counters().taken(), 0);
    stage.end();
}

/// Interrupted by a call of the C library's, which the handler finds it in.
#[test]
fn a_signal_within_the_c_library_leaves_the_request_to_the_next_entry_once() {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let at_entry = stage.start(|lever| {
        drop(request(lever));
        lever.interrupt();
        assert_eq!((gate(), lever.link.counters().taken()), (1, 0));
        function_entry();
        16
    });
    let suspended = at_entry.expect_err("preempted at the entry");
    assert_eq!(gate(), 0);
    assert_eq!(stage.counters().taken_by_compiled_probe, 1);
    assert_eq!(stage.resume(suspended).ok(), Some(16));

    let without_entry = stage.start(|lever| {
        drop(request(lever));
        lever.interrupt();
        lever.interrupt();
        17
    });
    let suspended = without_entry.expect_err("preempted by the second signal");
    let counters = stage.counters();
    assert_eq!((gate(), counters.taken_by_interrupt), (0, 1));
    assert_eq!(counters.deferred, 2);
    assert_eq!(stage.resume(suspended).ok(), Some(17));
    stage.end();
}

#[test]
fn a_signal_stops_what_sleeps_within_the_c_library() {
    let _alone = GATE.lock().unwrap();
    let mut stage = Stage::new();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let result = stage.start(move |lever| {
        drop(request(lever));
        let (signal, link) = (lever.signal, lever.link.clone());
        std::thread::spawn(move || {
            let start = Instant::now();
            // Twice: it may wait a moment for memory on its way.
            for _ in 0..2 {
                while !link.is_blocked() && start.elapsed() < PATIENCE {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            signal.interrupt(&link).unwrap();
        });
        let mut byte = [0];
        std::io::Read::read_exact(&mut reader, &mut byte).unwrap();
        u64::from(byte[0])
    });
    let suspended = result.expect_err("preempted in the call");
    let counters = stage.counters();
    assert_eq!((counters.taken_by_interrupt, counters.deferred), (1, 0));
    std::io::Write::write_all(&mut writer, &[42]).unwrap();
    assert_eq!(stage.resume(suspended).ok(), Some(42));
    stage.end();
}
