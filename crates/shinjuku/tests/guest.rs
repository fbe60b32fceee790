//! The runtime with its workers in guest mode, and what it does where they cannot be.
#![allow(missing_docs)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use shinjuku::error::BackendError;
use shinjuku::policy::ClassId;
use shinjuku::{
    Config, HardPreemption, LayoutKind, MechanismKind, Runtime, StartError, handler_fn,
    without_preemption,
};
use shinjuku_tests_support::{PATIENCE, wait_for};

type Job = Box<dyn FnOnce() -> u64 + Send>;

fn config() -> Config {
    let mut config = Config::default().workers(1).contexts(16);
    config.cores.share = true;
    config.preemption.mechanism = MechanismKind::Guest;
    config.policy.quantum_us = 200.0;
    config
}

fn start(config: Config) -> Result<Runtime<Job, u64>, StartError> {
    // SAFETY: the tests' handlers rely on nothing that the token's contract excludes.
    let token = unsafe { HardPreemption::allow() };
    Runtime::builder(handler_fn(|job: Job| job()))
        .config(config)
        .allow_hard_preemption(token)
        .start()
}

/// Starts a runtime strictly in guest mode. `None` on a machine that has none: this says then that
/// the test is skipped.
fn start_in_guest_mode(test: &str, config: Config) -> Option<Runtime<Job, u64>> {
    let strict = config.strict(true);
    match start(strict) {
        Err(StartError::Backend {
            cause: error @ BackendError::Unavailable(_),
            ..
        }) => {
            println!("SKIPPED {test}: {error}");
            None
        }
        started => Some(started.unwrap()),
    }
}

#[test]
fn a_short_request_overtakes_a_long_one_in_guest_mode() {
    const NAME: &str = "a_short_request_overtakes_a_long_one_in_guest_mode";
    let Some(runtime) = start_in_guest_mode(NAME, config()) else {
        return;
    };
    assert!(runtime.description().contains("preemption guest"));
    let handle = runtime.handle();
    let done = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&done);
    let long = handle.submit(
        ClassId(0),
        Box::new(move || {
            let start = Instant::now();
            while !theirs.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                std::hint::spin_loop();
            }
            u64::from(theirs.load(Ordering::Relaxed))
        }),
    );
    let short = handle.submit(
        ClassId(0),
        Box::new(move || {
            done.store(true, Ordering::Relaxed);
            7
        }),
    );
    assert_eq!(short.unwrap().wait(), Ok(7));
    assert_eq!(long.unwrap().wait(), Ok(1), "it was suspended meanwhile");
    // A host that takes the core away may have a spare come first, which is counted once it is sent
    // the request.
    wait_for("the count", || {
        let statistics = runtime.statistics();
        statistics.preemptions.taken() + statistics.rescued > 0
    });
    let statistics = runtime.statistics();
    // The text depends on the machine. With signals there is none.
    let delivery = statistics.delivery().expect("in guest mode");
    assert!(
        statistics
            .to_string()
            .contains(&format!("in guest mode, interrupts {delivery}"))
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// There are more spare workers than CPUs of the virtual machine. They go on outside of guest mode
/// with requests that were stopped in it.
#[test]
fn blocked_workers_are_relieved_outside_of_guest_mode() {
    const NAME: &str = "blocked_workers_are_relieved_outside_of_guest_mode";
    let contexts = config().contexts(300);
    let Some(runtime) = start_in_guest_mode(NAME, contexts) else {
        return;
    };
    const JOBS: u64 = 7;
    let handle = runtime.handle();
    let lock = Arc::new(Mutex::new(()));
    let (started, blocked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let reaches = |count: &AtomicU64, number| {
        let start = Instant::now();
        while count.load(Ordering::Relaxed) < number && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
    };
    let tickets: Vec<_> = (0..JOBS)
        .map(|n| {
            let (lock, started, blocked) = (
                Arc::clone(&lock),
                Arc::clone(&started),
                Arc::clone(&blocked),
            );
            let job = move || {
                let held = (n == 0).then(|| lock.lock().unwrap());
                started.fetch_add(1, Ordering::Relaxed);
                reaches(&started, JOBS);
                blocked.fetch_add(1, Ordering::Relaxed);
                match held {
                    Some(_held) => reaches(&blocked, JOBS),
                    // No interrupt stops the code here.
                    None => without_preemption(|| drop(lock.lock().unwrap())),
                }
                n
            };
            handle.submit(ClassId(0), Box::new(job)).unwrap()
        })
        .collect();
    for (n, mut ticket) in (0..).zip(tickets) {
        assert_eq!(ticket.wait_timeout(PATIENCE), Some(Ok(n)));
    }
    wait_for("the count", || runtime.statistics().rescued > 0);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn workers_that_are_too_many_for_a_virtual_machine_are_interrupted_by_signal() {
    const NAME: &str = "workers_that_are_too_many_for_a_virtual_machine_are_interrupted_by_signal";
    let crowd = config()
        .workers(260)
        .contexts(260)
        .spare_workers(0)
        .stack_kib(64);
    let strict = crowd.clone().strict(true);
    match start(strict).expect_err("there are fewer vCPUs") {
        StartError::Backend {
            cause: error @ BackendError::Unavailable(_),
            ..
        } => {
            println!("SKIPPED {NAME}: {error}");
            return;
        }
        error => assert!(error.to_string().contains("run fewer workers"), "{error}"),
    }
    let runtime = start(crowd).unwrap();
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..260)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    for (n, mut ticket) in (0..).zip(tickets) {
        assert_eq!(ticket.wait_timeout(PATIENCE), Some(Ok(n)));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Where interrupts would exit, or could not be posted, `auto` makes no virtual machine, and its
/// description says so.
#[test]
fn auto_says_what_became_of_guest_mode() {
    for layout in [LayoutKind::Threads, LayoutKind::Inline] {
        let mut config = config().layout(layout).workers(None);
        config.preemption.mechanism = MechanismKind::Auto;
        let runtime = start(config).unwrap();
        let description = runtime.description();
        let expected = match layout {
            LayoutKind::Inline => "guest mode not tried: in the inline layout",
            _ => "guest mode not tried: ",
        };
        assert!(description.contains(expected), "{description}");
        assert!(description.contains(", then signal ("), "{description}");
        assert_eq!(description.lines().count(), 1);
        assert!(runtime.statistics().delivery().is_none());
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

/// Asserts that the runtime runs with signals instead, for this reason.
fn assert_falls_back(config: Config, why: &str) {
    let runtime = start(config).unwrap();
    let description = runtime.description();
    assert!(
        description.contains("preemption signal, because"),
        "{description}"
    );
    assert!(description.contains(why), "{description}");
    assert_eq!(description.lines().count(), 1);
    assert_eq!(
        runtime
            .handle()
            .submit(ClassId(0), Box::new(|| 7))
            .unwrap()
            .wait(),
        Ok(7)
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn in_the_inline_layout_signals_take_its_place() {
    let inline = config().layout(LayoutKind::Inline).workers(None);
    assert_falls_back(inline.clone(), "in the inline layout");
    let strict = inline.strict(true);
    let error = start(strict).expect_err("strict").to_string();
    assert!(
        error.contains("in the inline layout")
            && error.contains("take layout \"threads\", or \"escalation\""),
        "{error}"
    );
}

/// For a child process: asserts that the runtime runs with signals instead, for this reason, and
/// that in strict mode it does not start.
fn assert_refused(why: &str) {
    assert_falls_back(config(), why);
    let strict = config().strict(true);
    let error = start(strict).expect_err("strict").to_string();
    assert!(error.contains(why), "{error}");
    assert_eq!(error.lines().count(), 1);
    println!("fell back as it should");
}

fn is_child() -> bool {
    std::env::var_os("SHINJUKU_TEST_CHILD").is_some()
}

/// Runs the test `name` of this program again, by `command`.
fn run_child(name: &str, command: &mut Command) -> std::io::Result<Output> {
    command
        .args([name, "--exact", "--nocapture"])
        .env("SHINJUKU_TEST_CHILD", "1")
        .output()
}

fn assert_fell_back(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("fell back as it should"), "{text}{errors}");
}

#[test]
fn without_permission_signals_take_its_place() {
    const NAME: &str = "without_permission_signals_take_its_place";
    const NOBODY: u32 = 65534;
    if is_child() {
        return assert_refused("no permission for /dev/kvm");
    }
    if !std::path::Path::new("/dev/kvm").exists() {
        println!("SKIPPED {NAME}: there is no /dev/kvm");
        return;
    }
    // Only root can become another user, and only where other users can run this program.
    let mut command = Command::new("/proc/self/exe");
    match run_child(NAME, command.uid(NOBODY).gid(NOBODY)) {
        Err(error) => println!("SKIPPED {NAME}: no child as another user: {error}"),
        Ok(output) => assert_fell_back(&output),
    }
}

#[test]
fn without_the_device_signals_take_its_place() {
    const NAME: &str = "without_the_device_signals_take_its_place";
    let why = "there is no /dev/kvm";
    if is_child() || !std::path::Path::new("/dev/kvm").exists() {
        return assert_refused(why);
    }
    // An empty /dev, in a mount namespace of the child's own.
    const SCRIPT: &str = "mount -t tmpfs none /dev || { echo no mount; exit; }; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", SCRIPT])
        .arg(std::env::current_exe().unwrap());
    match run_child(NAME, &mut command) {
        Ok(output) if output.stderr.starts_with(b"unshare:") || output.stdout == b"no mount\n" => {
            println!("SKIPPED {NAME}: no mount namespace (only root may have one)");
        }
        Ok(output) => assert_fell_back(&output),
        Err(error) => println!("SKIPPED {NAME}: no program `unshare`: {error}"),
    }
}
