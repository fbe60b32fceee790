//! A word from one core to the other and back: what every message between dispatcher and worker is made of.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Part;
use super::cores::{beside, nanos};
use super::samples::{Rows, Samples};
use crate::clock::Cycles;

pub(super) const ROWS: Rows = &[
    (
        "cache-line/one-way",
        "from before the store until the other core has seen it, by both cores' TSC",
    ),
    (
        "cache-line/round-trip",
        "a word there on one line, and an answer back on another",
    ),
];

const TRIPS: u64 = 4_000;

pub(super) struct CacheLine {
    worker_core: usize,
    there: Line,
    back: Line,
}

/// A line of its own; CPUs fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// Waits for another word than `old`.
    fn next(&self, old: u64) -> u64 {
        loop {
            let word = self.0.load(Ordering::Acquire);
            if word != old {
                return word;
            }
        }
    }
}

impl CacheLine {
    pub(super) fn new(worker_core: usize) -> Self {
        Self {
            worker_core,
            there: Line::default(),
            back: Line::default(),
        }
    }
}

impl Part for CacheLine {
    fn round(&mut self, samples: &mut Samples) {
        let Self { there, back, .. } = &*self;
        there.0.store(0, Ordering::Relaxed);
        back.0.store(0, Ordering::Relaxed);
        let ((), time) = beside(
            self.worker_core,
            || {
                for trip in 0..TRIPS {
                    back.0.store(there.next(trip), Ordering::Release);
                }
            },
            || {
                let start = Cycles::now();
                for trip in 0..TRIPS {
                    there.0.store(trip + 1, Ordering::Release);
                    back.next(trip);
                }
                Cycles::now().since(start)
            },
        );
        samples.add("cache-line/round-trip", nanos(time) / TRIPS as f64);
        // The word is the moment at which it was sent.
        let (time, ()) = beside(
            self.worker_core,
            || {
                let (mut sent, mut time) = (TRIPS, 0);
                for _ in 0..TRIPS {
                    sent = there.next(sent);
                    time += Cycles::now().since(Cycles(sent)).0;
                    back.0.store(sent, Ordering::Release);
                }
                Cycles(time)
            },
            || {
                let mut seen = TRIPS;
                for _ in 0..TRIPS {
                    there.0.store(Cycles::now().0, Ordering::Release);
                    seen = back.next(seen);
                }
            },
        );
        samples.add("cache-line/one-way", nanos(time) / TRIPS as f64);
    }
}
