//! Work that takes as long as a request asks for. It is counted in steps, not in time: a preempted request does not work
//! while others run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use shinjuku::preemptible;

#[inline(always)]
fn step(value: u64) -> u64 {
    black_box(
        value
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1),
    )
}

/// So many steps.
#[inline(never)]
pub fn spin(steps: u64) {
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
    }
}

/// The same with probes.
#[preemptible(every = 16)]
#[inline(never)]
pub fn spin_with_probes(steps: u64) {
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
    }
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
