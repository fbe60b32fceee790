//! Memory does not grow with simulated time. The test is alone in its file, since other tests would
//! use memory of the same process.

use shinjuku_policy::{Nanos, single_queue};
use shinjuku_sim::{Scenario, Scheduler};
use shinjuku_workload::Mix;

/// The most memory that this process ever had resident, in KiB.
#[cfg(target_os = "linux")]
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn thirty_times_the_requests_take_no_more_memory() {
    let run = |requests| {
        let policy = Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(5));
        let scenario = Scenario::new(Mix::named("tri").unwrap(), 0.7, policy, 16);
        let run = scenario.with_requests(requests).run(1).unwrap();
        assert_eq!(run.tally.all().requests, requests);
        run.span_ns
    };
    let short = run(100_000);
    let before = peak_kib();
    let long = run(3_000_000);
    let grown = peak_kib() - before;
    assert!(long > 25 * short);
    // A byte a request would be 3 MiB.
    assert!(grown < 2_048, "{grown} KiB more");
}
