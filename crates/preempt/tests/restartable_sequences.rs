//! Restartable sequences registered by a library other than glibc. Each test runs in a child
//! process, since glibc reads its setting when a process starts. A program of its own, since it
//! replaces a function of libc's.
#![allow(missing_docs)]

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use shinjuku_preempt::{
    Generation, Outcome, Pool, PoolConfig, PoolError, Unsupported, Worker, check_platform,
};
use shinjuku_tests_support::process::{as_child, is_child, must_pass};
use shinjuku_tests_support::test_name;

/// The original form of the kernel's `struct rseq`.
#[repr(C, align(32))]
struct Area(UnsafeCell<[u8; 32]>);

thread_local! {
    static AREA: Area = const { Area(UnsafeCell::new([0; 32])) };
    static HAS_TRIED: Cell<bool> = const { Cell::new(false) };
}

static REGISTERS_THREADS: AtomicBool = AtomicBool::new(false);
static REGISTERED: AtomicU32 = AtomicU32::new(0);

/// Registers an area for the calling thread, as tcmalloc does at a thread's first allocation.
fn register() -> std::io::Result<()> {
    // SAFETY: a thread-local lives as long as its thread.
    let register =
        |area: &Area| unsafe { libc::syscall(libc::SYS_rseq, area.0.get(), 32, 0, 0x5305_3053u32) };
    match AREA.with(register) {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Replaces libc's function, which `std` calls on every new thread with a name.
#[unsafe(no_mangle)]
extern "C" fn pthread_setname_np(_: libc::pthread_t, _: *const c_char) -> c_int {
    let registers = REGISTERS_THREADS.load(Ordering::Relaxed) && !HAS_TRIED.replace(true);
    if registers && register().is_ok() {
        REGISTERED.fetch_add(1, Ordering::Relaxed);
    }
    0
}

/// Runs `test` in a process in which glibc registers sequences, or does not.
fn child(test: &str, glibc_registers: bool) {
    let setting = format!("glibc.pthread.rseq={}", u8::from(glibc_registers));
    let mut command = as_child(test);
    print!("{}", must_pass(command.env("GLIBC_TUNABLES", setting)));
}

fn pool() -> Result<Pool<(), i32>, PoolError> {
    let config = PoolConfig::default().contexts(2);
    Pool::new(config, |()| {
        register()
            .err()
            .and_then(|error| error.raw_os_error())
            .unwrap_or(0)
    })
}

/// The result of registering in a request: an error's number, or 0.
fn register_in_a_context() -> i32 {
    let Pool { mut idle, handles } = pool().unwrap();
    let mut worker = Worker::bind(0).unwrap();
    let ready = idle.pop().unwrap().load(());
    let Outcome::Finished(finished) = worker.run(ready.into(), Generation(1)) else {
        unreachable!("no preemption was requested")
    };
    let (context, answer) = finished.take();
    idle.push(context);
    assert_eq!(handles.hand_back(idle, Duration::from_secs(20)).leaked, 0);
    answer.unwrap()
}

/// Whether there is something for `test` to look at.
fn kernel_has_them(test: &str) -> bool {
    let asks = std::thread::spawn(|| register().err().and_then(|error| error.raw_os_error()));
    let answer = asks.join().unwrap();
    if answer == Some(libc::ENOSYS) || answer == Some(libc::EPERM) {
        // Behind what the child's libtest has begun to say.
        println!(
            "\nSKIPPED {test}: the kernel has no restartable sequences, or a filter forbids them"
        );
        return false;
    }
    true
}

#[test]
fn a_pool_is_refused_where_another_library_registers_sequences() {
    if !is_child() {
        return child(test_name!(), false);
    }
    check_platform().unwrap();
    if !kernel_has_them(test_name!()) {
        return;
    }
    REGISTERS_THREADS.store(true, Ordering::Relaxed);
    let refused = pool().expect_err("a backing thread has a foreign area");
    assert_eq!(
        REGISTERED.load(Ordering::Relaxed),
        1,
        "the first backing thread's"
    );
    assert!(
        matches!(
            refused,
            PoolError::Unsupported(Unsupported::RestartableSequences)
        ),
        "{refused}"
    );
    assert!(refused.to_string().contains("GLIBC_TUNABLES"), "{refused}");
    // The threads made so far are ended, and pools can be made once the library is gone.
    REGISTERS_THREADS.store(false, Ordering::Relaxed);
    let Pool { idle, handles } = pool().unwrap();
    assert_eq!(handles.hand_back(idle, Duration::from_secs(20)).returned, 2);
}

#[test]
fn a_library_that_cannot_register_does_no_harm() {
    if !is_child() {
        return child(test_name!(), true);
    }
    REGISTERS_THREADS.store(true, Ordering::Relaxed);
    let Pool { idle, handles } = pool().unwrap();
    assert_eq!(handles.hand_back(idle, Duration::from_secs(20)).returned, 2);
}

#[test]
fn a_request_cannot_register_sequences_on_its_worker() {
    if !is_child() {
        return child(test_name!(), false);
    }
    if kernel_has_them(test_name!()) {
        assert_eq!(register_in_a_context(), libc::EINVAL);
        // The worker has restored its thread.
        register().unwrap();
    }
}
