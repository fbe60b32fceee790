//! The shared parts of the end-to-end tests: configuration and waiting.
//!
//! | test | what it shows |
//! |---|---|
//! | `allocation` | after start, the runtime's own threads never call the allocator |
//! | `memory` | neither memory nor threads nor descriptors grow with the number of requests |
//! | `restart` | nor with the number of runtimes started and shut down |
//! | `progress` | a request that spins for a lock cannot starve the lock's holder |
//! | `blocked` | requests are served although their workers sleep, or another thread has their core |
//! | `udp` | clients over UDP: short requests overtake long ones, every reply goes to its client |
//! | `tcp` | the same over TCP; ten thousand connections; a handler's error affects only its connection |
//! | `dpdk_allocation` | DPDK's devices never call the allocator either, with feature `dpdk` |
//! | `dpdk_packets` | over DPDK, with feature `dpdk`: no packet buffer is lost, whatever handlers do |
//! | `dispatchers` | several servers on one address: clients are spread, and stay with their server |
//! | `networker` | the same with a networker's thread, whose rings lose nothing |
//! | `networker_allocation` | that thread never calls the allocator either |
//! | `dataplane` | over a wire that loses, duplicates and reorders frames, every request that arrives is answered once |
//! | `dataplane_allocation` | polling and sending frames calls the allocator no more than sockets do |

mod process;
pub mod watch;

use std::time::{Duration, Instant};

pub use process::Usage;
use shinjuku::{Config, HardPreemption, MechanismKind};

/// The longest wait of the tests, for slow machines.
pub const PATIENCE: Duration = Duration::from_secs(30);

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

/// Waits until `condition` holds.
///
/// # Panics
/// If that takes longer than [`PATIENCE`].
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_micros(200));
    }
}
