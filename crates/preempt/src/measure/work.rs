//! The work that is interrupted: a known number of steps, each of some nanoseconds.
//!
//! The chain of steps stays in registers. Through memory (a `black_box` around each step) its speed
//! would depend on the stack that the code was last entered on, on CPUs that rename memory, and be
//! taken for the cost of the preemption. Signals, preemptions and guest mode are all measured with
//! this work.

use std::hint::black_box;

use crate::preempt_point;

/// How much, and whether it polls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) steps: u32,
    pub(super) probes: bool,
}

impl Work {
    pub(super) fn run(self) -> u64 {
        if self.probes {
            probed(self.steps)
        } else {
            bare(self.steps)
        }
    }
}

#[inline(never)]
fn bare(steps: u32) -> u64 {
    let mut value = black_box(1);
    for _ in 0..steps {
        value = step(value);
    }
    black_box(value)
}

#[inline(never)]
fn probed(steps: u32) -> u64 {
    let mut value = black_box(1);
    for _ in 0..steps {
        value = step(value);
        preempt_point();
    }
    black_box(value)
}

#[inline(always)]
fn step(value: u64) -> u64 {
    (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
