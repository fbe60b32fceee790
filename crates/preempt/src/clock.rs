//! The time-stamp counter as a clock: cheap to read, the same on every core.

use std::arch::x86_64::_rdtsc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A count of TSC cycles: a moment, or a length of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Cycles(pub u64);

impl Cycles {
    /// The counter now. Not serialising: adjacent instructions may move across it by some
    /// nanoseconds.
    #[inline(always)]
    #[must_use]
    pub fn now() -> Self {
        // SAFETY: reads the counter; every x86-64 CPU has it, and Linux leaves it open to user
        // code.
        Self(unsafe { _rdtsc() })
    }

    /// Cycles from `earlier` to `self`, 0 if `earlier` is later.
    #[inline(always)]
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// Converts between cycles and nanoseconds. `Copy`, so that every loop has its own.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Nanoseconds per cycle as a fixed-point number with 32 fractional bits.
    nanos_per_cycle: u64,
    cycles_per_nano: f64,
    epoch: Cycles,
}

impl Clock {
    /// The process's clock, calibrated for 20 ms against the OS's monotonic clock on first use,
    /// when its time starts.
    #[must_use]
    pub fn get() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(Self::calibrate)
    }

    fn calibrate() -> Self {
        // The narrowest of several bracketed readings at either end: a preempted reading would skew
        // the rate.
        let read = || {
            (0..16)
                .map(|_| {
                    let before = Cycles::now();
                    let time = Instant::now();
                    let after = Cycles::now();
                    (after.since(before).0, before.0 / 2 + after.0 / 2, time)
                })
                .min_by_key(|reading| reading.0)
                .map(|(_, cycles, time)| (cycles, time))
                .unwrap_or_else(|| unreachable!("sixteen readings have a minimum"))
        };
        let (start_cycles, start_time) = read();
        while start_time.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (end_cycles, end_time) = read();
        let nanos = end_time.duration_since(start_time).as_nanos() as f64;
        let cycles = end_cycles.wrapping_sub(start_cycles) as f64;
        assert!(cycles > 0.0, "the TSC stood still for 20 ms");
        Self {
            nanos_per_cycle: (nanos / cycles * (1u64 << 32) as f64) as u64,
            cycles_per_nano: cycles / nanos,
            epoch: Cycles(start_cycles),
        }
    }

    /// Nanoseconds since the clock's start at the moment `at`.
    #[inline]
    #[must_use]
    pub fn nanos_at(&self, at: Cycles) -> u64 {
        self.to_nanos(at.since(self.epoch))
    }

    /// Nanoseconds since the clock's start.
    #[inline]
    #[must_use]
    pub fn now_nanos(&self) -> u64 {
        self.nanos_at(Cycles::now())
    }

    /// The length of `cycles` in nanoseconds.
    #[inline]
    #[must_use]
    pub fn to_nanos(&self, cycles: Cycles) -> u64 {
        ((u128::from(cycles.0) * u128::from(self.nanos_per_cycle)) >> 32) as u64
    }

    /// `nanos` as a number of cycles.
    #[inline]
    #[must_use]
    pub fn to_cycles(&self, nanos: u64) -> Cycles {
        Cycles((nanos as f64 * self.cycles_per_nano) as u64)
    }

    /// TSC cycles per nanosecond (the TSC's frequency in GHz).
    #[must_use]
    pub fn cycles_per_nano(&self) -> f64 {
        self.cycles_per_nano
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_os_clock() {
        let clock = Clock::get();
        // Of several pairs of readings, that between which the least time has passed.
        let read = || {
            let pair = || (Instant::now(), clock.now_nanos());
            let pairs = (0..16).map(|_| (pair(), Instant::now()));
            let (pair, _) = pairs.min_by_key(|(pair, end)| *end - pair.0).unwrap();
            pair
        };
        let (time, start) = read();
        std::thread::sleep(Duration::from_millis(50));
        let (end_time, end) = read();
        let (real, ours) = ((end_time - time).as_nanos() as f64, (end - start) as f64);
        assert!(
            (ours / real - 1.0).abs() < 0.02,
            "TSC says {ours} ns, the OS {real} ns"
        );
    }

    #[test]
    fn round_trip() {
        let clock = Clock::get();
        for nanos in [1_000, 1_000_000, 1_000_000_000] {
            let there_and_back = clock.to_nanos(clock.to_cycles(nanos)) as f64;
            assert!((there_and_back / nanos as f64 - 1.0).abs() < 0.01);
        }
    }
}
