//! Runtimes for tests. A file of its own, since the rest of the package does without the crate
//! `shinjuku`, except `watch`.

use shinjuku::{Config, HardPreemption, MechanismKind};

/// A configuration for few cores, shared with other tests.
#[must_use]
pub fn config(workers: usize, mechanism: MechanismKind) -> Config {
    let mut config = Config::default()
        .workers(workers)
        .contexts(16)
        .spare_workers(2);
    config.cores.share = true;
    // Loops that poll in vain would keep others from the core.
    config.idle_backoff_us = 10.0;
    config.preemption.mechanism = mechanism;
    config.policy.quantum_us = 100.0;
    config
}

/// The permission to preempt the tests' handlers anywhere.
#[must_use]
pub fn token() -> HardPreemption {
    // SAFETY: the tests' handlers are ordinary Rust code on `std` alone, which relies on nothing
    // that the token's contract excludes.
    unsafe { HardPreemption::allow() }
}
