//! Contexts made by a real-time thread. The test needs SCHED_FIFO and one core, so it is apart from
//! those that need neither.

use std::time::Duration;

use shinjuku_preempt::{Affinity, Pool, PoolConfig, Realtime};

/// How often the calling thread has left its core of its own accord.
fn departures() -> i64 {
    // SAFETY: the kernel fills in plain data, for which zeroes are valid.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage
    };
    usage.ru_nvcsw
}

/// Leaves the calling thread one core of those that it has.
fn stay_on_one_core() {
    // SAFETY: reads and changes the calling thread's affinity; the set is plain data.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap(), &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
    assert_eq!(Affinity::of_current().unwrap().cores(), 1);
}

/// The contexts' threads have ordinary scheduling and, since they inherit that, the caller's core.
/// A caller that only yields keeps it from them until the kernel's bound on real-time threads
/// ends that, after most of a second for each context.
#[test]
fn a_real_time_thread_leaves_its_core_to_the_threads_that_it_waits_for() {
    const CONTEXTS: usize = 3;
    stay_on_one_core();
    let realtime = match Realtime::enter(1) {
        Ok(realtime) => realtime,
        Err(error) => {
            eprintln!(
                "SKIPPED a_real_time_thread_leaves_its_core_to_the_threads_that_it_waits_for: {error}"
            );
            return;
        }
    };
    let before = departures();
    let config = PoolConfig::default().contexts(CONTEXTS);
    let Pool { idle, handles } = Pool::new(config, |job: u64| job).unwrap();
    let left = departures() - before;
    let report = handles.hand_back(idle, Duration::from_secs(20));
    drop(realtime);
    assert_eq!(report.leaked, 0);
    assert!(left >= CONTEXTS as i64, "it left its core {left} times");
}
