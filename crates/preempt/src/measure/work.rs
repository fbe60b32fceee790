//! The work that is interrupted: a known number of steps, each of some nanoseconds.

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
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
    }
    value
}

#[inline(never)]
fn probed(steps: u32) -> u64 {
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
        preempt_point();
    }
    value
}

#[inline(always)]
fn step(value: u64) -> u64 {
    black_box(
        value
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1),
    )
}
