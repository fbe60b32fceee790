//! The program's own signals, sent to a worker in guest mode.

use shinjuku_tests_support::{PATIENCE, need, test_name, wait_for};
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::stage::{Flag, Stage};

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Makes the worker's thread handle SIGUSR2 once.
fn signal(stage: &Stage) {
    let before = HANDLED.load(Ordering::Relaxed);
    // SAFETY: `count` is installed for it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            libc::getpid(),
            stage.thread(0),
            libc::SIGUSR2,
        )
    };
    assert_eq!(answer, 0);
    wait_for("the handler", || HANDLED.load(Ordering::Relaxed) != before);
}

#[test]
fn they_are_handled_while_code_computes_and_while_it_blocks() {
    let mut stage = need!(Stage::new(test_name!()));
    // SAFETY: the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
    let (mut from, mut to) = std::io::pipe().unwrap();
    let (started, go_on) = (Flag::default(), Flag::default());
    let (job_started, job_go_on) = (started.clone(), go_on.clone());
    let job = stage.load(move || {
        job_started.set();
        while !job_go_on.is_set() {
            std::hint::spin_loop();
        }
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap();
        u64::from(byte[0])
    });
    stage.send(0, job);
    started.wait();
    for _ in 0..50 {
        signal(&stage);
    }
    go_on.set();
    std::thread::sleep(std::time::Duration::from_millis(5));
    for _ in 0..50 {
        signal(&stage);
    }
    to.write_all(&[1]).unwrap();
    stage.finish(0);
    let counters = stage.guest_counters(0);
    assert_eq!(counters.left, 0, "{counters:?}");
    stage.end();
}

#[test]
fn code_that_blocks_signals_is_not_preempted_until_it_lets_them_through() {
    let mut stage = need!(Stage::new(test_name!()));
    let (blocked, go_on, open) = (Flag::default(), Flag::default(), Flag::default());
    let flags = (blocked.clone(), go_on.clone(), open.clone());
    let job = stage.load(move || {
        // SAFETY: changes the worker's mask and changes it back.
        unsafe {
            let (mut set, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            flags.0.set();
            while !flags.1.is_set() {
                std::hint::spin_loop();
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        flags.2.set();
        loop {
            std::hint::spin_loop();
        }
    });
    let dispatched = stage.send(0, job);
    blocked.wait();
    dispatched.request();
    stage.interrupt(0);
    wait_for("the interrupt", || stage.counters(0).deferred != 0);
    go_on.set();
    open.wait();
    let suspended = stage.preempt(0, &dispatched);
    // It never ends.
    drop(suspended);
    stage.abandon();
}

#[test]
fn a_call_that_a_handler_interrupts_answers_eintr_if_the_program_wants_that() {
    let mut stage = need!(Stage::new(test_name!()));
    // Without SA_RESTART, so that the call is not begun again.
    // SAFETY: the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        libc::sigaction(libc::SIGRTMIN(), &action, std::ptr::null_mut());
    }
    let (from, _to) = std::io::pipe().unwrap();
    let about_to_read = Flag::default();
    let flag = about_to_read.clone();
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let job = stage.load(move || {
        flag.set();
        let error = (&from).read(&mut [0]).expect_err("no data comes");
        let _ = tell.send(error.kind());
        0
    });
    stage.send(0, job);
    about_to_read.wait();
    let start = Instant::now();
    // The first may come before the call.
    let kind = loop {
        assert!(start.elapsed() < PATIENCE, "the call goes on");
        // SAFETY: `count` is installed for it.
        unsafe {
            let thread = stage.thread(0);
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGRTMIN())
        };
        if let Ok(kind) = told.recv_timeout(std::time::Duration::from_millis(5)) {
            break kind;
        }
    };
    assert_eq!(kind, std::io::ErrorKind::Interrupted);
    stage.finish(0);
    assert_eq!(stage.guest_counters(0).left, 0);
    stage.end();
}

#[test]
fn leaving_guest_mode_keeps_the_mask() {
    let mut stage = need!(Stage::new(test_name!()));
    // SAFETY: changes the worker's mask and changes it back. In between it reads the FS base, a
    // call that is not forwarded.
    let (kept, counters) = stage.run(|| unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let (mut before, mut after) = (set, set);
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
        const GET_FS: usize = 0x1003;
        let mut base = 0_usize;
        libc::syscall(libc::SYS_arch_prctl, GET_FS, &mut base);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, &mut after);
        libc::sigismember(&after, libc::SIGUSR1) == 1
    });
    assert!(kept);
    assert_eq!(counters.left, 1);
    stage.end();
}
