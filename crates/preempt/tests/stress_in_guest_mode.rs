//! The stress test in guest mode, for some seconds: registers, thread-locals, locks and what else `docs/stress.md` lists,
//! through the save trampoline and with migration. Where there is no /dev/kvm, it is skipped by name.
#![allow(missing_docs)]

use std::time::Duration;

use shinjuku_preempt::HardPreemption;
use shinjuku_preempt::guest::{Guest, GuestConfig, GuestError};
use shinjuku_preempt::stress::{Config, Interruption, run};

#[test]
fn ordinary_code_survives_preemption_in_guest_mode() {
    // SAFETY: nothing is run on it.
    let absent = Guest::install(unsafe { HardPreemption::allow() }, GuestConfig::default());
    if let Err(error @ (GuestError::NoDevice | GuestError::NoPermission)) = absent {
        return println!("SKIPPED ordinary_code_survives_preemption_in_guest_mode: {error}");
    }
    let config = Config {
        duration: Duration::from_secs(3),
        // A preemption takes some 40 us where virtualisation is software, and a page that is new to the guest about as much.
        quantum: Duration::from_micros(200),
        // Beside other programs and unoptimised, an operation on much memory can take seconds.
        patience: Duration::from_secs(60),
        interruption: Interruption::Guest(GuestConfig::default()),
        stop_at_first_error: true,
        ..Config::default()
    };
    let report = run(&config, |_| ()).unwrap();
    assert_eq!(report.failure(), None);
    assert!(report.counters.taken_by_interrupt > 0);
}
