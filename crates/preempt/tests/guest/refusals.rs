//! If guest mode is impossible, the error says why.

use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};

use shinjuku_preempt::guest::{Guest, GuestConfig, GuestError};
use shinjuku_preempt::{HardPreemption, Outcome, Pool, PoolConfig, Worker, mailbox};
use shinjuku_tests_support::process::{CHILD, is_child};
use shinjuku_tests_support::{assert_says, need, test_name};

use crate::stage::guest;

/// This program, also for those who may not read its path.
fn child(test: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([test, "--exact", "--nocapture"]);
    command.env(CHILD, "1");
    command
}

#[test]
fn without_permission_there_is_one_clear_line() {
    const NOBODY: u32 = 65534;
    if is_child() {
        // SAFETY: nothing is preempted.
        let error = Guest::install(unsafe { HardPreemption::allow() }, GuestConfig::default());
        let error = error.expect_err("this user has no permission");
        assert!(matches!(error, GuestError::NoPermission), "{error}");
        assert!(
            error
                .to_string()
                .contains("add the user to the group `kvm`")
        );
        assert_eq!(error.to_string().lines().count(), 1);
        println!("refused as it should be");
        return;
    }
    drop(need!(guest(test_name!(), GuestConfig::default())));
    // SAFETY: only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED {}: only root can change its user", test_name!());
        return;
    }
    let child = child(test_name!()).uid(NOBODY).gid(NOBODY).output();
    let Ok(output) = child else {
        println!("SKIPPED {}: others cannot run this program", test_name!());
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("refused as it should be"), "{text}");
}

/// Runs this test again in a process that must be refused, prepared by `prepare`.
fn refused_child(test: &str, prepare: fn() -> std::io::Result<()>) -> Option<String> {
    drop(guest(test, GuestConfig::default())?);
    let mut command = child(test);
    // SAFETY: system calls alone.
    unsafe { command.pre_exec(prepare) };
    match command.output() {
        Ok(output) => {
            // A panic's message is on standard error.
            let written = [output.stdout, output.stderr].concat();
            Some(String::from_utf8_lossy(&written).into_owned())
        }
        Err(error) => {
            println!("SKIPPED {test}: {error}");
            None
        }
    }
}

fn install() -> Result<Guest, GuestError> {
    // SAFETY: nothing is preempted.
    Guest::install(unsafe { HardPreemption::allow() }, GuestConfig::default())
}

#[test]
fn without_the_device_there_is_one_clear_line() {
    if is_child() {
        let error = install().expect_err("there is no device");
        assert!(matches!(error, GuestError::NoDevice), "{error}");
        assert!(error.to_string().starts_with("there is no /dev/kvm"));
        assert_eq!(error.to_string().lines().count(), 1);
        println!("refused as it should be");
        return;
    }
    let without_dev = || {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let none = std::ptr::null();
        // SAFETY: an empty /dev, in a mount namespace of the child's own.
        let done = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/dev".as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    none.cast(),
                ) == 0
        };
        done.then_some(()).ok_or_else(std::io::Error::last_os_error)
    };
    let text = need!(refused_child(test_name!(), without_dev));
    assert!(text.contains("refused as it should be"), "{text}");
}

#[test]
fn without_memory_there_is_one_clear_line() {
    if is_child() {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split_once(' ').unwrap().0.parse().unwrap();
        // All of the present memory, and a little more.
        let bytes = (pages * 4096) + (4 << 20);
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        // SAFETY: sets a limit of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let error = install().expect_err("there is too little memory");
        assert!(matches!(error, GuestError::Kvm { .. }), "{error}");
        assert_says(&error, ["taking memory failed"]);
        println!("refused as it should be");
        return;
    }
    let text = need!(refused_child(test_name!(), || Ok(())));
    assert!(text.contains("refused as it should be"), "{text}");
}

/// Lets the process open no more descriptors.
fn use_up_descriptors() {
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let limit = libc::rlimit {
        rlim_cur: next as libc::rlim_t,
        rlim_max: next as libc::rlim_t,
    };
    // SAFETY: sets a limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

#[test]
fn a_worker_that_gets_no_vcpu_says_why_and_goes_on_natively() {
    if is_child() {
        let guest = install().unwrap();
        let mut pool = Pool::new(PoolConfig::default(), |job: u64| job + 1).unwrap();
        use_up_descriptors();
        let (first, second) = (guest.clone(), guest);
        let worker = |guest: Guest| {
            move || {
                let mut worker = Worker::bind(0).unwrap();
                let entered = worker.enter(&guest);
                (worker, entered)
            }
        };
        let (first, entered) = worker(first)();
        entered.expect("there is a vCPU from the start");
        let job = pool.idle.pop().unwrap().load(41);
        let answer = std::thread::spawn(move || {
            let (mut worker, entered) = worker(second)();
            let error = entered.expect_err("there is no descriptor");
            let Some(GuestError::Kvm { cause, .. }) = error.downcast_ref() else {
                panic!("another error: {error}");
            };
            assert_eq!(cause.raw_os_error(), Some(libc::EMFILE));
            let (mut sender, mut receiver) = mailbox(1);
            sender.send(job.into()).ok().unwrap();
            let (runnable, generation) = receiver.poll().unwrap();
            let Outcome::Finished(finished) = worker.run(runnable, generation) else {
                panic!("no interrupt was sent");
            };
            finished.take().1.unwrap()
        });
        assert_eq!(answer.join().unwrap(), 42);
        drop(first);
        println!("refused as it should be");
        return;
    }
    let text = need!(refused_child(test_name!(), || Ok(())));
    assert!(text.contains("refused as it should be"), "{text}");
}

/// The machine's memory, in KiB.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
fn workers_that_are_too_many_are_told_so() {
    if memory().is_none_or(|kib| kib < 2 << 20) {
        println!(
            "SKIPPED {}: 255 vCPUs are much for less than 2 GiB",
            test_name!()
        );
        return;
    }
    let guest = need!(guest(test_name!(), GuestConfig::default()));
    let (end, ended) = mpsc::channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let mut threads = Vec::new();
    // There are 255 numbers for them.
    let refused = (0..256).find_map(|id| {
        let (guest, ended) = (guest.clone(), Arc::clone(&ended));
        let (tell, told) = mpsc::channel();
        threads.push(std::thread::spawn(move || {
            let mut worker = Worker::bind(id).unwrap();
            tell.send(worker.enter(&guest)).unwrap();
            // Keeps its vCPU until all are there.
            drop(ended.lock().map(|ended| ended.recv()));
        }));
        told.recv().unwrap().err()
    });
    let error = refused.expect("there are vCPUs without end");
    assert!(
        matches!(
            error.downcast_ref(),
            Some(GuestError::TooManyWorkers { .. })
        ),
        "{error}"
    );
    drop(end);
    for thread in threads {
        thread.join().unwrap();
    }
}
