//! `setuid` and its family, which glibc runs on every thread of the process. Each test runs in a
//! child process with a time limit, since the failure is a call that never returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shinjuku_preempt::PoolConfig;
use shinjuku_tests_support::contexts::{Job, OneThread};
use shinjuku_tests_support::process::{as_child, is_child, must_pass, run_to_the_end};
use shinjuku_tests_support::test_name;

/// Runs one job on a separate worker thread, on the first of three contexts.
fn run(job: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let config = PoolConfig::default().contexts(3);
        let mut thread = OneThread::new(config, |job: Job| job());
        let result = thread.run(Box::new(|| {
            job();
            0
        }));
        assert_eq!(result.ok(), Some(0));
        assert_eq!(thread.hand_back().unwrap().leaked, 0);
    })
}

/// The group ids of all threads, as the kernel reports them.
fn group_ids() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .map(|task| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("Gid:"));
            line.unwrap().to_owned()
        })
        .collect()
}

#[test]
fn credentials_change_on_all_threads_while_a_request_runs() {
    const GROUP: libc::gid_t = 12_345;
    if !is_child() {
        return print!("{}", must_pass(&mut as_child(test_name!())));
    }
    let runs = Arc::new(AtomicBool::new(false));
    let ends = Arc::new(AtomicBool::new(false));
    let worker = run({
        let (runs, ends) = (Arc::clone(&runs), Arc::clone(&ends));
        // Never on the worker's own FS base until the end.
        move || {
            runs.store(true, Ordering::Release);
            while !ends.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        }
    });
    while !runs.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    // SAFETY: these change the credentials of this process, which is the test's own.
    unsafe {
        assert_eq!(libc::setuid(libc::getuid()), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgid(GROUP), 0);
            let ids = group_ids();
            // The threads are the test's, its harness's, the worker's and the backing threads'.
            assert!(ids.len() >= 5, "{ids:?}");
            let group = GROUP.to_string();
            let all = ids
                .iter()
                .all(|line| line.split_whitespace().skip(1).all(|id| id == group));
            assert!(all, "{ids:?}");
        } else {
            println!(
                "\nSKIPPED {}: in part, another group takes root",
                test_name!()
            );
        }
    }
    ends.store(true, Ordering::Release);
    worker.join().unwrap();
}

#[test]
fn a_request_that_changes_credentials_ends_the_process_with_a_message() {
    use std::os::unix::process::ExitStatusExt;
    if !is_child() {
        let (status, errors) = run_to_the_end(&mut as_child(test_name!()));
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{errors}");
        assert!(errors.contains("a request calls setuid"), "{errors}");
        return;
    }
    // SAFETY: changes nothing, in the same way.
    let worker = run(|| assert_eq!(unsafe { libc::setuid(libc::getuid()) }, 0));
    worker.join().unwrap();
}
