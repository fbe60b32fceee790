//! Work that takes as long as a request asks for. It is counted in steps, not in time: a preempted
//! request does not work while others run.
//!
//! Each step needs the one before, and the chain stays in registers. Through memory (a `black_box`
//! around each step) it would not keep its speed: CPUs that rename memory run such a chain as fast
//! as registers, but only until the code goes on elsewhere. After a preemption it took 1.6 times as
//! long on one of them, and looked like the cost of preempting.

use std::hint::black_box;
use std::time::{Duration, Instant};

use shinjuku::preemptible;

/// No compiler knows a short cut through a chain of these.
#[inline(always)]
fn step(value: u64) -> u64 {
    (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// So many steps.
#[inline(never)]
pub fn spin(steps: u64) {
    let mut value = black_box(1);
    for _ in 0..steps {
        value = step(value);
    }
    black_box(value);
}

/// The same with probes, about a tenth of a microsecond apart: across a probe the value may lie in
/// memory.
#[preemptible(every = 64)]
#[inline(never)]
pub fn spin_with_probes(steps: u64) {
    let mut value = black_box(1);
    for _ in 0..steps {
        value = step(value);
    }
    black_box(value);
}

/// How many steps take a nanosecond here: by the quickest of many runs, the others were disturbed.
#[must_use]
pub fn steps_per_nano() -> f64 {
    const STEPS: u64 = 20_000;
    let run = || {
        let start = Instant::now();
        spin(STEPS);
        start.elapsed()
    };
    let quickest = (0..200)
        .map(|_| run())
        .min()
        .unwrap_or(Duration::from_nanos(STEPS));
    STEPS as f64 / quickest.as_nanos().max(1) as f64
}
