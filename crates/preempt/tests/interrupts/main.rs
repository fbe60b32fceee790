//! Preemption at the most error-prone moments. One worker, on the test's own thread; jobs interrupt
//! themselves, so that every interrupt arrives exactly where the test wants it.
#![allow(missing_docs)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use shinjuku_preempt::{
    Completion, CountersSnapshot, Dispatched, Mechanism, Outcome, Pool, PoolConfig, Receiver,
    Signal, Worker, WorkerLink, mailbox, preempt_point, without_preemption,
};

#[cfg(feature = "compiled-probes")]
mod compiled;
mod stage;

use stage::{Job, Lever, PATIENCE, Stage};

#[test]
fn a_request_that_is_there_on_entry_is_taken_on_entry() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    let mut stage = Stage::new();
    let (runnable, _lever) = stage.load(|_| {
        STARTED.store(true, Ordering::Relaxed);
        7
    });
    let dispatched = stage.send(runnable);
    dispatched.request();
    let suspended = stage.step().expect_err("preempted");
    assert!(
        !STARTED.load(Ordering::Relaxed),
        "before the job's first instruction"
    );
    // The same on resumption, in code without probes.
    let dispatched = stage.send(suspended);
    dispatched.request();
    let suspended = stage.step().expect_err("preempted again");
    assert!(!STARTED.load(Ordering::Relaxed));
    assert_eq!(stage.resume(suspended).ok(), Some(7));
    assert_eq!(stage.counters().taken_at_guard, 2);
    stage.end();
}

#[test]
fn a_worker_is_interrupted_again_after_a_context_left_from_the_handler() {
    let mut stage = Stage::new();
    let preempted_at_once = |lever: &Lever| {
        lever.request();
        lever.interrupt();
        1
    };
    // The second is fresh: no return from a handler has restored the worker's signal mask before.
    let first = stage.start(preempted_at_once).expect_err("preempted");
    let second = stage.start(preempted_at_once).expect_err("preempted");
    assert_eq!(stage.counters().taken_by_interrupt, 2);
    assert_eq!(stage.resume(first).ok(), Some(1));
    assert_eq!(stage.resume(second).ok(), Some(1));
    stage.end();
}

#[test]
fn an_unrequested_interrupt_hands_nothing_on() {
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        for _ in 0..100 {
            lever.interrupt();
        }
        // A request for another dispatch must not count for this one.
        without_preemption(|| ());
        preempt_point();
        3
    });
    assert_eq!(result.ok(), Some(3));
    let counters = stage.counters();
    assert_eq!((counters.taken(), counters.late), (0, 100));
    stage.end();
}

#[test]
fn a_request_for_an_earlier_dispatch_is_ignored_after_resumption() {
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        lever.request();
        lever.interrupt();
        // Resumption is another dispatch: a request for the first one is late, however the job
        // meets it.
        lever.request();
        lever.interrupt();
        lever.request();
        preempt_point();
        lever.request();
        without_preemption(|| ());
        4
    });
    let suspended = result.expect_err("preempted once");
    assert_eq!(stage.resume(suspended).ok(), Some(4));
    let counters = stage.counters();
    assert_eq!((counters.taken(), counters.late), (1, 1));
    stage.end();
}

/// Lowest address of the calling context's stack.
fn stack_low() -> usize {
    // SAFETY: reads the attributes of the thread whose control block this is into locals.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_getattr_np(libc::pthread_self(), &mut attributes);
        let (mut low, mut size) = (std::ptr::null_mut(), 0);
        libc::pthread_attr_getstack(&attributes, &mut low, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        low as usize
    }
}

/// Runs `body` when the stack has been used down to `lowest`.
#[inline(never)]
fn descend(lowest: usize, body: &mut dyn FnMut()) {
    let frame = std::hint::black_box([0u8; 64]);
    if frame.as_ptr() as usize > lowest {
        descend(lowest, body);
    } else {
        body();
    }
    std::hint::black_box(&frame);
}

#[test]
fn all_the_stack_that_was_promised_can_be_used_and_interrupted() {
    /// The size of the job's own first frame, and of the frames of `descend` and the closure.
    const MARGIN: usize = 4 * 1024;
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let first = 0u8;
        let promised = PoolConfig::default().stack_size - MARGIN;
        descend((&raw const first) as usize - promised, &mut || {
            lever.request();
            lever.interrupt();
        });
        4
    });
    let suspended = result.expect_err("preempted down there");
    let counters = stage.counters();
    assert_eq!((counters.taken_by_interrupt, counters.deferred), (1, 0));
    assert_eq!(stage.resume(suspended).ok(), Some(4));
    stage.end();
}

#[test]
fn an_interrupt_without_room_on_the_stack_is_put_off() {
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        // SAFETY: getauxval only reads.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        // Room for the kernel's frame and the handler's calls, but less than the handler requires
        // behind it to leave.
        let lowest = stack_low() + frame + 7 * 1024;
        descend(lowest, &mut || {
            lever.request();
            lever.interrupt();
        });
        // The request stands.
        lever.interrupt();
        5
    });
    let suspended = result.expect_err("preempted where there was room");
    let counters = stage.counters();
    assert_eq!(
        (
            counters.deferred,
            counters.taken_by_interrupt,
            counters.taken()
        ),
        (1, 1, 1)
    );
    assert_eq!(stage.resume(suspended).ok(), Some(5));
    stage.end();
}

#[test]
fn an_interrupt_on_a_stack_that_is_not_the_contexts_is_put_off() {
    extern "C" fn interrupt(lever: *const Lever) {
        // SAFETY: the job waits while it holds the lever.
        let lever = unsafe { &*lever };
        lever.request();
        lever.interrupt();
    }
    static BACK: AtomicBool = AtomicBool::new(false);
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let mut other = vec![0u128; 8 * 1024];
        let top = other.as_mut_ptr_range().end;
        // Calls a function on another stack, as a coroutine within the request would. SAFETY: the
        // stack is 128 KiB, aligned to 16 bytes, and comes back through a register that calls
        // preserve.
        unsafe {
            std::arch::asm!(
                "mov r12, rsp",
                "mov rsp, {top}",
                "call {interrupt}",
                "mov rsp, r12",
                top = in(reg) top,
                interrupt = in(reg) interrupt as extern "C" fn(*const Lever),
                in("rdi") std::ptr::from_ref(lever),
                out("r12") _,
                clobber_abi("C"),
            );
        }
        BACK.store(true, Ordering::Relaxed);
        lever.interrupt();
        6
    });
    let suspended = result.expect_err("preempted");
    assert!(BACK.load(Ordering::Relaxed), "on its own stack");
    let counters = stage.counters();
    assert_eq!((counters.taken(), counters.deferred), (1, 0));
    assert_eq!(stage.resume(suspended).ok(), Some(6));
    stage.end();
}

/// Whether the calling thread blocks `signal`.
fn blocks(signal: libc::c_int) -> bool {
    // SAFETY: only reads, into a local.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        libc::sigismember(&mask, signal) == 1
    }
}

#[test]
fn workers_and_their_children_keep_the_programs_signals() {
    let mut stage = Stage::new();
    assert!(!blocks(libc::SIGURG) && !blocks(libc::SIGTERM));
    let result = stage.start(|lever| {
        lever.request();
        lever.interrupt();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let child = std::process::Command::new("cat")
            .arg("/proc/self/status")
            .output()
            .unwrap();
        let of_child = String::from_utf8(child.stdout).unwrap();
        let blocked = |text: &str| {
            text.lines()
                .find(|line| line.starts_with("SigBlk"))
                .map(str::to_owned)
        };
        u64::from(
            blocked(&of_child).unwrap().ends_with("0000000000000000") && blocked(&status).is_some(),
        )
    });
    let suspended = result.expect_err("preempted");
    assert!(
        !blocks(libc::SIGURG),
        "after a context left from the handler"
    );
    assert_eq!(stage.resume(suspended).ok(), Some(1));
    stage.end();
}

#[test]
fn a_section_that_blocks_signals_is_not_preempted() {
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let counters = || lever.link.counters();
        // SAFETY: blocks a signal on this thread and unblocks it again; the code stays on this
        // thread meanwhile.
        unsafe {
            let mut one: libc::sigset_t = std::mem::zeroed();
            let mut before = one;
            libc::sigemptyset(&mut one);
            libc::sigaddset(&mut one, libc::SIGUSR2);
            libc::pthread_sigmask(libc::SIG_BLOCK, &one, &mut before);
            lever.request();
            lever.interrupt();
            assert_eq!((counters().taken(), counters().deferred), (0, 1));
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        lever.interrupt();
        u64::from(blocks(libc::SIGUSR2))
    });
    let suspended = result.expect_err("preempted, once the signals were let through again");
    assert_eq!(stage.counters().taken(), 1);
    assert_eq!(stage.resume(suspended).ok(), Some(0));
    stage.end();
}

#[test]
fn another_signals_handler_is_not_preempted() {
    static LEVER: OnceLock<(Signal, WorkerLink, Arc<OnceLock<Dispatched>>)> = OnceLock::new();
    static TAKEN_WITHIN: AtomicU64 = AtomicU64::new(u64::MAX);
    extern "C" fn foreign(_: libc::c_int) {
        let (signal, link, dispatched) = LEVER.get().unwrap();
        dispatched.get().unwrap().request();
        signal.interrupt(link).unwrap();
        TAKEN_WITHIN.store(link.counters().taken(), Ordering::Relaxed);
    }
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let shared = (
            lever.signal,
            lever.link.clone(),
            Arc::clone(&lever.dispatched),
        );
        assert!(LEVER.set(shared).is_ok());
        // SAFETY: the handler touches statics only; no other test sends this signal.
        unsafe {
            libc::signal(libc::SIGUSR2, foreign as *const () as usize);
            libc::raise(libc::SIGUSR2);
        }
        lever.interrupt();
        1
    });
    let suspended = result.expect_err("preempted after the handler");
    assert_eq!(TAKEN_WITHIN.load(Ordering::Relaxed), 0, "not within it");
    assert_eq!(stage.resume(suspended).ok(), Some(1));
    stage.end();
}

#[test]
fn backing_threads_take_no_signals() {
    let config = PoolConfig::default().contexts(3).name("asleep");
    let pool = Pool::new(config, |(): ()| ()).unwrap();
    let mut backing_threads = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        // Other tests' threads may end meanwhile.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        if !value("Name:").unwrap().trim().starts_with("asleep-") {
            continue;
        }
        backing_threads += 1;
        let blocked = u64::from_str_radix(value("SigBlk:").unwrap().trim(), 16).unwrap();
        let can_be_blocked = (1..32).filter(|&n| n != libc::SIGKILL && n != libc::SIGSTOP);
        for signal in can_be_blocked {
            assert_eq!(blocked >> (signal - 1) & 1, 1, "signal {signal}");
        }
    }
    assert_eq!(backing_threads, 3);
    let report = pool.handles.hand_back(pool.idle, PATIENCE);
    assert_eq!(report.returned, 3);
}

/// Interrupts the calling job's worker every millisecond, until the returned guard is dropped.
/// Calls `then` once the worker's counters are enough. Signals that come together are counted as
/// one.
fn keep_interrupting(
    lever: &Lever,
    are_enough: impl Fn(CountersSnapshot) -> bool + Send + 'static,
    then: impl FnOnce() + Send + 'static,
) -> impl Drop {
    struct Over(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);
    impl Drop for Over {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            self.1.take().unwrap().join().unwrap();
        }
    }
    let (link, signal, over) = (
        lever.link.clone(),
        lever.signal,
        Arc::<AtomicBool>::default(),
    );
    let theirs = Arc::clone(&over);
    let thread = std::thread::spawn(move || {
        let mut then = Some(then);
        let start = Instant::now();
        while !theirs.load(Ordering::Relaxed) {
            signal.interrupt(&link).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            if are_enough(link.counters()) || start.elapsed() > PATIENCE {
                then.take().into_iter().for_each(|then| then());
            }
        }
    });
    Over(over, Some(thread))
}

#[test]
fn a_blocking_read_is_restarted() {
    let mut stage = Stage::new();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let result = stage.start(move |lever| {
        let written = move || std::io::Write::write_all(&mut writer, &[42]).unwrap();
        let _interrupts = keep_interrupting(lever, |counters| counters.late > 10, written);
        let mut byte = 0u8;
        // `std` would retry by itself.
        // SAFETY: one byte into a local; the descriptor is open.
        let read = unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
        assert_eq!(read, 1, "{}", std::io::Error::last_os_error());
        u64::from(byte)
    });
    assert_eq!(result.ok(), Some(42));
    assert!(stage.counters().late > 10, "{:?}", stage.counters());
    stage.end();
}

#[test]
fn calls_that_answer_eintr_despite_sa_restart_do_so() {
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let interrupts = keep_interrupting(lever, |_| true, || ());
        let mut nothing = libc::pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        // SAFETY: one entry, which is ignored; sleeps for long.
        let answer = unsafe { libc::poll(&mut nothing, 1, 30_000) };
        let error = std::io::Error::last_os_error();
        drop(interrupts);
        assert_eq!(answer, -1);
        u64::from(error.kind() == std::io::ErrorKind::Interrupted)
    });
    assert_eq!(result.ok(), Some(1), "as the token's contract says");
    stage.end();
}

/// MXCSR without its sticky flags, and the x87 control word.
fn control_words() -> (u32, u16) {
    let (mut mxcsr, mut x87) = (0u32, 0u16);
    // SAFETY: both instructions only store to the operand.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &raw mut mxcsr, in(reg) &raw mut x87);
    }
    (mxcsr & !0x3f, x87)
}

fn set_control_words((mxcsr, x87): (u32, u16)) {
    // SAFETY: the words have all exceptions masked; only the rounding differs, and nothing here
    // depends on it.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &raw const mxcsr, in(reg) &raw const x87);
    }
}

#[test]
fn rounding_modes_belong_to_the_context() {
    const DOWN: (u32, u16) = (0x3f80, 0x077f);
    let ordinary = control_words();
    assert_ne!(ordinary, DOWN);
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        set_control_words(DOWN);
        lever.request();
        preempt_point();
        let by_probe = control_words();
        u64::from(by_probe == DOWN)
    });
    let suspended = result.expect_err("preempted");
    assert_eq!(control_words(), ordinary, "the worker's own");
    let other = stage.start(|_| u64::from(control_words().0));
    assert_eq!(other.ok(), Some(u64::from(ordinary.0)), "another context's");
    assert_eq!(stage.resume(suspended).ok(), Some(1));
    assert_eq!(control_words(), ordinary, "the worker's own at the end");
    stage.end();
}

/// Divides by zero on the x87, which sets an exception flag.
fn divide_by_zero() {
    // SAFETY: uses two registers of the x87's stack and frees both.
    unsafe {
        std::arch::asm!(
            "fld1", "fldz", "fdivp", "fstp st(0)",
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
}

/// The exceptions that x87 code has raised on this thread; bit 7: one is pending.
fn x87_exceptions() -> u8 {
    let status: u16;
    // SAFETY: only reads the status word.
    unsafe { std::arch::asm!("fnstsw ax", out("ax") status) };
    status as u8
}

fn clear_x87_exceptions() {
    // SAFETY: clears flags that nothing relies on.
    unsafe { std::arch::asm!("fnclex") };
}

#[test]
fn x87_exceptions_belong_to_the_context() {
    const DIVIDED_BY_ZERO: u8 = 4;
    let mut stage = Stage::new();
    clear_x87_exceptions();
    let first = stage.start(|lever| {
        divide_by_zero();
        lever.request();
        preempt_point();
        let kept = x87_exceptions();
        clear_x87_exceptions();
        u64::from(kept)
    });
    let first = first.expect_err("preempted");
    assert_eq!(x87_exceptions(), 0, "the worker's own");
    let second = stage.start(|lever| {
        // Unmasks the division by zero: another request's exception would be pending here.
        set_control_words((control_words().0, 0x037b));
        let before = x87_exceptions();
        lever.request();
        preempt_point();
        let after = x87_exceptions();
        // Without this a pending exception would end the job here.
        clear_x87_exceptions();
        set_control_words((control_words().0, 0x037f));
        u64::from(before | after)
    });
    let second = second.expect_err("preempted");
    divide_by_zero();
    assert_eq!(stage.resume(second).ok(), Some(0), "another context's");
    assert_eq!(
        stage.resume(first).ok(),
        Some(u64::from(DIVIDED_BY_ZERO)),
        "its own are there again"
    );
    clear_x87_exceptions();
    stage.end();
}

#[test]
fn the_thread_that_rust_knows_stays_while_the_kernels_changes() {
    fn threads() -> (std::thread::ThreadId, usize, i32) {
        // SAFETY: both calls only return numbers.
        let (posix, kernel) = unsafe { (libc::pthread_self() as usize, libc::gettid()) };
        (std::thread::current().id(), posix, kernel)
    }
    let mut stage = Stage::new();
    let result = stage.start(|lever| {
        let (rust, posix, kernel) = threads();
        lever.request();
        lever.interrupt();
        let (rust_after, posix_after, kernel_after) = threads();
        assert_eq!((rust, posix), (rust_after, posix_after));
        u64::from(kernel != kernel_after)
    });
    let suspended = result.expect_err("preempted");
    let elsewhere = std::thread::spawn(move || {
        let mut worker = Worker::bind(1).unwrap();
        // Above all generations that the mailbox has used.
        let outcome = worker.run(suspended.into(), shinjuku_preempt::Generation(u64::MAX));
        assert_eq!(worker.link().counters().migrations, 1);
        match outcome {
            Outcome::Finished(finished) => finished.take(),
            Outcome::Preempted(_) => panic!("preempted again"),
        }
    });
    let (idle, result) = elsewhere.join().unwrap();
    assert_eq!(result, Ok(1));
    stage.idle.push(idle);
    stage.end();
}

#[test]
fn preemptions_are_counted_at_the_worker_that_the_context_runs_on_now() {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    let mut stage = Stage::new();
    let (runnable, lever) = stage.load(|_| {
        // Every dispatch is asked to give way before it begins, so each ends at the next probe or
        // guard. A worker's pointer kept over a way out would lead to the wrong worker.
        while ROUNDS.fetch_add(1, Ordering::Relaxed) < 20 {
            preempt_point();
        }
        0
    });
    drop(lever);
    let (to_other, from_here) = mpsc::channel::<Receiver<Job, u64>>();
    let (to_here, from_other) = mpsc::channel();
    let other = std::thread::spawn(move || {
        let mut worker = Worker::bind(1).unwrap();
        for mut receiver in from_here {
            let (runnable, generation) = receiver.poll().unwrap();
            match worker.run(runnable, generation) {
                Outcome::Finished(_) => panic!("preempted before that"),
                Outcome::Preempted(suspended) => {
                    receiver.answer(Completion::Preempted(suspended));
                }
            }
            to_here.send(receiver).unwrap();
        }
        worker.link().counters()
    });
    let mut runnable = Some(runnable);
    for _ in 0..5 {
        stage.send(runnable.take().unwrap()).request();
        let suspended = stage.step().expect_err("preempted here");
        let (mut sender, receiver) = mailbox(1);
        let sent = sender.send(suspended.into());
        sent.unwrap_or_else(|_| panic!("no room")).request();
        to_other.send(receiver).unwrap();
        let _receiver = from_other.recv_timeout(PATIENCE).unwrap();
        match sender.poll().unwrap().1 {
            Completion::Preempted(suspended) => runnable = Some(suspended.into()),
            Completion::Finished(_) => panic!("preempted there"),
        }
    }
    drop(to_other);
    let there = other.join().unwrap();
    let here = stage.counters();
    assert_eq!((here.taken(), there.taken()), (5, 5));
    assert_eq!((here.migrations, there.migrations), (4, 5));
    ROUNDS.store(100, Ordering::Relaxed);
    stage.send(runnable.unwrap());
    assert_eq!(stage.step().ok(), Some(0));
    stage.end();
}
