//! From one kernel thread to another on the same core and back, by futex: the part of a preemption
//! that contexts have only if they are kernel threads.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Part;
use super::cores::{beside, per_call};
use super::samples::{Rows, Samples};
use crate::kernel_thread::{Home, Turn};

pub(super) const ROWS: Rows = &["switch/kernel-thread"];

const ROUND_TRIPS: u32 = 500;

pub(super) struct KernelSwitch {
    core: usize,
}

impl KernelSwitch {
    /// Between threads on `core`, which is the calling thread's.
    pub(super) fn new(core: usize) -> Self {
        Self { core }
    }
}

impl Part for KernelSwitch {
    fn round(&mut self, samples: &mut Samples) {
        let (turn, home, stop) = (Turn::new(), Home::default(), AtomicBool::new(false));
        let there = || {
            loop {
                turn.wait();
                turn.rest();
                let is_over = stop.load(Ordering::Relaxed);
                // SAFETY: the other side lives until this one has ended, and it is its turn.
                unsafe { Home::give_back(&raw const home) };
                if is_over {
                    return;
                }
            }
        };
        let round_trip = || {
            home.leave();
            turn.give();
            home.wait();
        };
        let here = || {
            round_trip();
            let both_ways = per_call(ROUND_TRIPS, round_trip);
            stop.store(true, Ordering::Relaxed);
            round_trip();
            both_ways
        };
        let ((), both_ways) = beside(self.core, there, here);
        samples.add("switch/kernel-thread", both_ways / 2.0);
    }
}
