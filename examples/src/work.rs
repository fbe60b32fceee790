//! Work that takes as long as a request asks for. It is counted in steps, not in time: a preempted
//! request does not work while others run.
//!
//! Each step needs the one before, and the chain stays in registers. A chain through memory (a
//! `black_box` around each step) would not keep its speed: CPUs that rename memory run it as fast
//! as registers, but only until the code resumes elsewhere. On one of them it took 1.6 times as
//! long after a preemption, which looked like the cost of preempting.

use std::hint::black_box;
use std::time::{Duration, Instant};

use shinjuku::preemptible;

/// Compilers know no short cut through a chain of these.
#[inline(always)]
fn step(value: u64) -> u64 {
    (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Steps in one turn of a loop. A turn's bookkeeping must be small beside its steps: a core whose
/// sibling is busy issues half as many instructions a cycle. There a loop with more bookkeeping
/// than the other took 1.3 times as long, though its chain of steps was as short.
const TURN: u64 = 16;

#[inline(always)]
fn turn(mut value: u64) -> u64 {
    for _ in 0..TURN {
        value = step(value);
    }
    value
}

/// This many steps, rounded to whole turns of 16 (about 30 ns).
#[inline(never)]
pub fn spin(steps: u64) {
    let mut value = black_box(1);
    for _ in 0..(steps + TURN / 2) / TURN {
        value = turn(value);
    }
    black_box(value);
}

/// As [`spin`], with probes about a tenth of a microsecond apart: across a probe the value may lie
/// in memory.
#[preemptible(every = 4)]
#[inline(never)]
pub fn spin_with_probes(steps: u64) {
    let mut value = black_box(1);
    for _ in 0..(steps + TURN / 2) / TURN {
        value = turn(value);
    }
    black_box(value);
}

/// How many steps take a nanosecond here, by the quickest of many runs; the others were disturbed.
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
