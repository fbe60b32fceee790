//! The stress test in guest mode, for two seconds: registers, thread-locals, locks and the other
//! checks of `docs/stress.md`, through the save trampoline and with migration. Without /dev/kvm, it
//! is skipped by name.
#![allow(missing_docs)]

use std::io::Write;
use std::time::Duration;

use shinjuku_preempt::BackendError;
use shinjuku_preempt::stress::{Config, Interruption, Quantum, StressError, run};

#[test]
fn ordinary_code_survives_preemption_in_guest_mode() {
    let interruption = Interruption::Backend("guest");
    let quantum = match Quantum::measured(interruption) {
        Err(StressError::Backend(error @ BackendError::Unavailable(_))) => {
            return println!("SKIPPED ordinary_code_survives_preemption_in_guest_mode: {error}");
        }
        quantum => quantum.unwrap(),
    };
    let config = Config {
        // Under an emulator this takes minutes.
        duration: Duration::from_secs(2),
        // Under an emulator exits that are no preemptions cost as much, and in the quantum that the
        // preemption asks for nothing finishes.
        quantum: 2 * quantum.length,
        // In an unoptimised build beside other programs, an operation on much memory can take
        // seconds.
        patience: Duration::from_secs(60),
        interruption,
        stop_at_first_error: true,
        ..Config::default()
    };
    // Not by libtest, which shows a test's output at its end.
    let report = run(&config, |report| {
        let (elapsed, preemptions) = (report.elapsed, report.counters.taken());
        let requests = report.requests;
        let _ = writeln!(
            std::io::stderr(),
            "after {elapsed:?}: {preemptions} preemptions, {requests} requests"
        );
    })
    .unwrap();
    assert_eq!(report.failure(), None);
    assert!(report.counters.taken_by_interrupt > 0);
    println!(
        "{quantum:?}: {} interrupts, {} preemptions, {} migrations, {} requests; delivery {:?}",
        report.interrupts(),
        report.counters.taken(),
        report.counters.migrations,
        report.requests,
        report.delivery
    );
}
