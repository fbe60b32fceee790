//! What the end-to-end tests have in common: how they configure, and how they wait.
//!
//! | test | what it shows |
//! |---|---|
//! | `allocation` | after start, the runtime's own threads never call the allocator |
//! | `memory` | neither memory nor threads nor descriptors grow with the number of requests |
//! | `restart` | nor with the number of runtimes started and shut down |
//! | `progress` | who spins for a lock cannot starve who holds it |
//! | `blocked` | nothing is lost at workers that sleep, or whose core another thread has |
//! | `udp` | clients over UDP: short requests overtake long ones, every reply goes where it belongs |
//! | `tcp` | the same over TCP; ten thousand connections; what handlers do wrong stays with their connections |
//! | `dpdk_allocation` | nor do DPDK's devices, with feature `dpdk` |
//! | `dpdk_packets` | over DPDK, with feature `dpdk`: no packet buffer is lost, whatever handlers do |
//! | `dispatchers` | several servers on one address: clients are spread, and stay where they are |
//! | `networker` | the same with a networker's thread, whose rings lose nothing |
//! | `networker_allocation` | that thread never calls the allocator either |
//! | `dataplane` | over frames that get lost, doubled and reordered, every request that arrives is answered once |
//! | `dataplane_allocation` | polling and sending frames calls the allocator no more than sockets do |

mod process;

use std::time::{Duration, Instant};

pub use process::Usage;
use shinjuku::{Config, HardPreemption, MechanismKind};

/// No wait in the tests lasts longer, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// For whatever cores there are, shared with other tests.
#[must_use]
pub fn config(workers: usize, mechanism: MechanismKind) -> Config {
    let mut config = Config::default()
        .workers(workers)
        .contexts(16)
        .spare_workers(2);
    config.cores.share = true;
    // Loops that look for work in vain keep others from the core.
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
