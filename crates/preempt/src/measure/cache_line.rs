//! A word from one core to the other and back: what every message between dispatcher and worker is
//! made of.
//!
//! How long a line takes depends on what the cores did with it before. So there are two round
//! trips: on one line after a pause, which is what a lone flag costs and the shortest there is; and
//! on a line each way without a pause, which is what a mailbox under load comes to.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Part;
use super::cores::{beside, nanos};
use super::samples::{Rows, Samples};
use crate::clock::{Clock, Cycles};

pub(super) const ROWS: Rows = &[
    "cache-line/one-way",
    "cache-line/round-trip",
    "cache-line/round-trip-two-lines",
];

const TRIPS: u64 = 1_000;
const PAUSE_NANOS: u64 = 1_000;
const BUSY_TRIPS: u64 = 2_000;

pub(super) struct CacheLine {
    worker_core: usize,
    there: Line,
    back: Line,
}

/// A line of its own; CPUs fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line {
    word: AtomicU64,
    acknowledgement: AtomicU64,
}

/// Waits for another word than `old`.
#[inline(always)]
fn next(word: &AtomicU64, old: u64) -> u64 {
    loop {
        let new = word.load(Ordering::Acquire);
        if new != old {
            return new;
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

    /// Cycles of all trips: until the word was seen, and until the acknowledgement was back.
    fn one_line(&self) -> (Cycles, Cycles) {
        let Line {
            word,
            acknowledgement,
        } = &self.there;
        word.store(0, Ordering::Relaxed);
        acknowledgement.store(0, Ordering::Relaxed);
        let pause = Clock::get().to_cycles(PAUSE_NANOS).0;
        beside(
            self.worker_core,
            || {
                // The word is the moment at which it was sent.
                let (mut sent, mut time) = (0, 0);
                for _ in 0..TRIPS {
                    sent = next(word, sent);
                    let seen = Cycles::now();
                    acknowledgement.store(sent, Ordering::Release);
                    time += seen.since(Cycles(sent)).0;
                }
                Cycles(time)
            },
            || {
                let (mut seen, mut time) = (0, 0);
                for _ in 0..TRIPS {
                    let start = Cycles::now();
                    while Cycles::now().since(start).0 < pause {}
                    let sent = Cycles::now();
                    word.store(sent.0, Ordering::Release);
                    seen = next(acknowledgement, seen);
                    time += Cycles::now().since(sent).0;
                }
                Cycles(time)
            },
        )
    }

    /// Cycles of all trips there and back.
    fn two_lines(&self) -> Cycles {
        let (there, back) = (&self.there.word, &self.back.word);
        there.store(0, Ordering::Relaxed);
        back.store(0, Ordering::Relaxed);
        let ((), time) = beside(
            self.worker_core,
            || {
                for trip in 0..BUSY_TRIPS {
                    back.store(next(there, trip), Ordering::Release);
                }
            },
            || {
                let start = Cycles::now();
                for trip in 0..BUSY_TRIPS {
                    there.store(trip + 1, Ordering::Release);
                    next(back, trip);
                }
                Cycles::now().since(start)
            },
        );
        time
    }
}

impl Part for CacheLine {
    fn round(&mut self, samples: &mut Samples) {
        let (seen, acknowledged) = self.one_line();
        samples.add("cache-line/one-way", nanos(seen) / TRIPS as f64);
        samples.add("cache-line/round-trip", nanos(acknowledged) / TRIPS as f64);
        let both_ways = nanos(self.two_lines());
        samples.add(
            "cache-line/round-trip-two-lines",
            both_ways / BUSY_TRIPS as f64,
        );
    }
}
