//! How often the probes of a request with a moment read the clock.
//!
//! Reading the TSC takes as long as some twenty instructions, and a loop can probe every two
//! nanoseconds. So only one probe in a *stride* reads it, and the others count down. The stride
//! follows the distance of the probes, so that readings come about every [`SPAN`] cycles.
//!
//! ```text
//!   a dispatch begins      reading                          reading            reading
//!         │                 │ near: up to eight times as long │ far: 1 at once   │ the moment is near:
//!         ▼                 ▼                                 ▼                  ▼ so many as fit
//!      first probe ─▶ second ─▶ ............................. ─▶ next ─▶ ...  ─▶ ...
//! ```
//!
//! While the distance stays as it is, a request is late by one distance or by `2 * SPAN`, whichever
//! is more. When the probes become rarer, it is late once by what was left of the stride: less than
//! [`LONGEST`] probes, or one and a half times as many if those were less than 4 `SPAN` apart.
//!
//! All of it lies in the context's own cache line. Interrupts change nothing here unless the
//! context leaves from them. Then what it had counted is lost, and no more.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::clock::Cycles;

/// Readings are so many cycles apart, or up to twice as many: about 0.3 to 1 us.
const SPAN: Cycles = Cycles(1 << SPAN_LOG);
const SPAN_LOG: u32 = 10;
/// Probes from one reading to the next at the most. A reading takes some 15 ns. Among probes that
/// are two nanoseconds apart it comes every 0.5 us then, and takes 3 %.
const LONGEST: u32 = 256;
/// From one reading to the next the stride becomes so many times as long at the most, as a power of
/// two.
const GROWTH_LOG: u32 = 3;

/// The stride of the dispatch that runs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Stride {
    /// Probes until the next reading. Below 0: the dispatch has begun, and none was taken.
    left: AtomicI32,
    /// What it was after the last reading.
    length: Cell<u32>,
    /// When that was.
    read_at: Cell<Cycles>,
}

impl Stride {
    pub(crate) const fn new() -> Self {
        Self {
            left: AtomicI32::new(0),
            length: Cell::new(1),
            read_at: Cell::new(Cycles(0)),
        }
    }

    /// A dispatch begins: its first probe reads the clock. That of other code than before
    /// (`is_fresh`) knows nothing of how far the probes are apart.
    #[inline]
    pub(crate) fn begin(&self, is_fresh: bool) {
        self.left.store(0, Ordering::Relaxed);
        if is_fresh {
            self.length.set(1);
        }
    }

    /// Counts a probe. Whether it is to read the clock.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed).wrapping_sub(1);
        self.left.store(left, Ordering::Relaxed);
        left <= 0
    }

    /// Every probe is to look until the next dispatch.
    #[inline]
    pub(crate) fn stay_over(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    /// The clock was read, and the moment is still to come.
    #[inline]
    pub(crate) fn read(&self, now: Cycles, moment: Cycles) {
        let since = now.since(self.read_at.replace(now));
        let mut length = self.length.get();
        if self.left.load(Ordering::Relaxed) == 0 {
            length = adapt(length, since);
        }
        let remaining = moment.since(now);
        if remaining.0 < 2 * SPAN.0 {
            length = ((u64::from(length) * remaining.0) >> (SPAN_LOG + 1)).max(1) as u32;
        }
        self.length.set(length);
        self.left.store(length as i32, Ordering::Relaxed);
    }
}

/// How many probes make a span where `length` took so long.
#[inline]
fn adapt(length: u32, since: Cycles) -> u32 {
    match since.0.max(1).ilog2() {
        magnitude @ ..SPAN_LOG => (length << (SPAN_LOG - magnitude).min(GROWTH_LOG)).min(LONGEST),
        SPAN_LOG => length,
        // A few of them may have been far apart.
        magnitude if magnitude == SPAN_LOG + 1 => (length / 2).max(1),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dispatch whose probes read a clock of the test's.
    struct Dispatch {
        stride: Stride,
        now: u64,
        moment: u64,
        readings: u64,
    }

    impl Dispatch {
        fn until(moment: u64) -> Self {
            let stride = Stride::new();
            stride.begin(true);
            Self {
                stride,
                now: 1_000_000,
                moment: 1_000_000 + moment,
                readings: 0,
            }
        }

        /// A probe after so many cycles; whether it finds that the moment has come.
        fn probe_after(&mut self, distance: u64) -> bool {
            self.now += distance;
            if !self.stride.is_over() {
                return false;
            }
            self.readings += 1;
            if self.now >= self.moment {
                return true;
            }
            self.stride.read(Cycles(self.now), Cycles(self.moment));
            false
        }

        /// Probes so far apart until one finds it; how late that is.
        fn lateness(&mut self, distance: u64) -> u64 {
            while !self.probe_after(distance) {
                assert!(self.now < self.moment + (1 << 40), "lost");
            }
            self.now - self.moment
        }
    }

    #[test]
    fn the_first_two_probes_of_other_code_read_the_clock() {
        let mut dispatch = Dispatch::until(1 << 20);
        for expected in [1, 2] {
            dispatch.probe_after(10);
            assert_eq!(dispatch.readings, expected);
        }
    }

    #[test]
    fn at_a_steady_distance_it_is_late_by_that_or_two_spans() {
        for distance in [1, 3, 5, 10, 75, 300, 1_000, 3_000, 25_000, 1_000_000] {
            for quantum in [5_000, 12_500, 125_000, 10_000_000] {
                let late = Dispatch::until(quantum).lateness(distance);
                assert!(
                    late <= distance.max(2 * SPAN.0),
                    "{late} cycles late, {distance} apart, quantum {quantum}"
                );
            }
        }
    }

    #[test]
    fn near_probes_seldom_read_the_clock() {
        for (distance, most) in [(4, 11), (10, 10), (75, 10), (300, 11), (800, 13)] {
            let mut dispatch = Dispatch::until(10_000_000);
            dispatch.lateness(distance);
            let per_ten_thousand = dispatch.readings / 1_000;
            assert!(
                per_ten_thousand <= most,
                "{per_ten_thousand} readings in 10,000 cycles, {distance} apart"
            );
        }
    }

    #[test]
    fn probes_that_become_rarer_all_read_the_clock_after_one_stride() {
        for near in 1..1_000 {
            let mut dispatch = Dispatch::until(1 << 40);
            for _ in 0..near {
                dispatch.probe_after(4);
            }
            let before = dispatch.readings;
            while dispatch.readings == before {
                dispatch.probe_after(25_000);
            }
            let under_way = (dispatch.now - 1_000_000 - 4 * near) / 25_000;
            assert!(under_way <= u64::from(LONGEST), "{under_way}");
            for further in 1..10 {
                dispatch.probe_after(25_000);
                assert_eq!(
                    dispatch.readings,
                    before + 1 + further,
                    "after {near} near ones"
                );
            }
        }
    }

    #[test]
    fn a_dispatch_that_goes_on_keeps_the_distance_and_reads_at_its_first_probe() {
        let mut dispatch = Dispatch::until(100_000);
        dispatch.lateness(10);
        // It left there, and is back much later.
        dispatch.stride.stay_over();
        dispatch.stride.begin(false);
        dispatch.now += 1 << 30;
        dispatch.moment = dispatch.now + 100_000;
        let before = dispatch.readings;
        dispatch.probe_after(10);
        assert_eq!(dispatch.readings, before + 1);
        let late = dispatch.lateness(10);
        assert!(late <= 2 * SPAN.0, "{late}");
    }

    #[test]
    fn held_off_it_is_looked_at_by_every_probe() {
        let mut dispatch = Dispatch::until(1_000);
        dispatch.lateness(10);
        for _ in 0..100 {
            dispatch.stride.stay_over();
            assert!(dispatch.probe_after(1), "each probe finds it");
        }
    }
}
