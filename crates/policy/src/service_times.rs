//! How long requests run: a distribution that is counted while a server serves.
//!
//! Times are counted by magnitude, two bins an octave, with their sum, so that a class of equal
//! requests has its exact length. [`ServiceTimes::fade`] halves the counts, so that old times weigh
//! ever less. The memory, 2 KiB, is taken at construction; counting a time takes some nanoseconds.

use alloc::boxed::Box;

use crate::Nanos;

const BINS: usize = 128;
/// The first bin: times below 3 ns.
const FIRST: usize = 2;
/// A tail counts as heavy if it is so by this many standard deviations, squared. The mean of `n`
/// exponential times deviates from its expectation by 1 in the square root of `n`.
const DEVIATIONS_SQUARED: f64 = 49.0;

/// Requests of about the same length.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    count: u64,
    nanos: u64,
}

/// How long requests run, as counted.
///
/// ```
/// use shinjuku_policy::{Nanos, ServiceTimes};
///
/// let mut times = ServiceTimes::new();
/// (0..99).for_each(|_| times.add(Nanos::from_micros(1)));
/// times.add(Nanos::from_micros(101));
/// assert_eq!(times.mean_ns(), 2_000.0);
/// // A request that has run for more than 1 us goes on for about 100 us.
/// assert!(times.has_heavy_tail(10.0));
/// ```
#[derive(Clone, Debug)]
pub struct ServiceTimes {
    bins: Box<[Bin; BINS]>,
    count: u64,
}

impl ServiceTimes {
    /// No times yet. Takes its memory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bins: Box::new([Bin::default(); BINS]),
            count: 0,
        }
    }

    /// Counts a request that has run for `ran` in all.
    #[inline]
    pub fn add(&mut self, ran: Nanos) {
        let magnitude = ran.0.max(2).ilog2();
        let half = (ran.0.max(2) >> (magnitude - 1)) & 1;
        let bin = &mut self.bins[(2 * magnitude as usize) | half as usize];
        bin.count += 1;
        bin.nanos += ran.0;
        self.count += 1;
    }

    /// How many requests are counted; those that have faded are not.
    #[must_use]
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Halves the number of requests of each length. Single ones are forgotten.
    pub fn fade(&mut self) {
        for bin in self.bins.iter_mut().filter(|bin| bin.count > 0) {
            let mean = bin.nanos / bin.count;
            bin.count /= 2;
            bin.nanos = bin.count * mean;
        }
        self.count = self.bins.iter().map(|bin| bin.count).sum();
    }

    /// The lengths that requests have: for each, the share of the requests that have it, and the
    /// length in nanoseconds. The shortest come first.
    pub fn lengths(&self) -> impl DoubleEndedIterator<Item = (f64, f64)> + '_ {
        let all = self.count as f64;
        (self.bins.iter().filter(|bin| bin.count > 0))
            .map(move |bin| (bin.count as f64 / all, bin.nanos as f64 / bin.count as f64))
    }

    /// The length of the longest requests, in nanoseconds: the mean of their bin. Zero if there are
    /// none.
    #[must_use]
    pub fn longest_ns(&self) -> f64 {
        self.lengths().last().map_or(0.0, |(_, length)| length)
    }

    /// The mean in nanoseconds; zero if there are no requests.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.lengths().map(|(share, length)| share * length).sum()
    }

    /// The 99th percentile in nanoseconds: the mean of the bin that it falls in.
    #[must_use]
    pub fn p99_ns(&self) -> f64 {
        let mut above = 0.0;
        let mut from_above = self.lengths().rev();
        let reaches = |&(share, _): &(f64, f64)| {
            above += share;
            above >= 0.01
        };
        from_above.find(reaches).map_or(0.0, |(_, length)| length)
    }

    /// The squared coefficient of variation: the variance over the square of the mean. 0 for equal
    /// lengths, 1 for exponential ones. Zero if there are no requests.
    #[must_use]
    pub fn squared_variation(&self) -> f64 {
        let mean = self.mean_ns();
        let squares = self
            .lengths()
            .map(|(share, length)| share * length * length);
        match mean > 0.0 {
            true => (squares.sum::<f64>() / (mean * mean) - 1.0).max(0.0),
            false => 0.0,
        }
    }

    /// Whether there is a time after which a request that still runs is expected to go on for
    /// longer than a fresh one, by more than `excess` in proportion. By the chance of a small
    /// sample it seldom is.
    ///
    /// The squared coefficient of variation would not tell: half of the requests at 1 us and half
    /// at 100 us have 0.96, less than exponential ones. Those of them that run for more than 1 us
    /// go on for 1.96 times the mean, exponential ones for the mean at any time.
    #[must_use]
    pub fn has_heavy_tail(&self, excess: f64) -> bool {
        let mean = self.mean_ns();
        let (mut count, mut nanos) = (0, 0);
        for at in (FIRST..BINS).rev() {
            count += self.bins[at].count;
            nanos += self.bins[at].nanos;
            if count == 0 {
                continue;
            }
            let left = nanos as f64 / count as f64 - start_ns(at) as f64;
            let more = left / mean - 1.0;
            if more > excess && more * more * count as f64 > DEVIATIONS_SQUARED {
                return true;
            }
            if count == self.count {
                // No request is shorter.
                break;
            }
        }
        false
    }
}

impl Default for ServiceTimes {
    fn default() -> Self {
        Self::new()
    }
}

/// The least time of a bin.
fn start_ns(bin: usize) -> u64 {
    let magnitude = bin / 2;
    (1 << magnitude) + ((bin as u64 & 1) << (magnitude - 1))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// The quantiles of a distribution with the inverse `inverse`, in ns.
    fn quantiles(number: u32, inverse: impl Fn(f64) -> f64) -> ServiceTimes {
        let mut times = ServiceTimes::new();
        for at in 0..number {
            let share = (f64::from(at) + 0.5) / f64::from(number);
            times.add(Nanos(inverse(share) as u64));
        }
        times
    }

    /// Exponential times of a mean of 10 us.
    fn exponential(number: u32) -> ServiceTimes {
        quantiles(number, |share| -10_000.0 * (1.0 - share).ln())
    }

    fn bimodal(short: u64, long: u64, of_long: u64) -> ServiceTimes {
        let mut times = ServiceTimes::new();
        (0..1_000 - of_long).for_each(|_| times.add(Nanos(short)));
        (0..of_long).for_each(|_| times.add(Nanos(long)));
        times
    }

    #[test]
    fn a_time_is_in_the_bin_that_begins_at_or_before_it() {
        for ran in (2..5_000).chain([1 << 20, (1 << 40) + 1, u64::MAX >> 8]) {
            let mut times = ServiceTimes::new();
            times.add(Nanos(ran));
            let bin = times.bins.iter().position(|bin| bin.count == 1).unwrap();
            assert!(start_ns(bin) <= ran && ran < start_ns(bin + 1), "{ran}");
        }
    }

    #[test]
    fn moments_are_those_of_the_distribution() {
        let (fixed, two) = (bimodal(7_000, 0, 0), bimodal(1_000, 100_000, 500));
        assert_eq!((fixed.mean_ns(), fixed.p99_ns()), (7_000.0, 7_000.0));
        assert_eq!(fixed.squared_variation(), 0.0);
        assert_eq!((two.mean_ns(), two.p99_ns()), (50_500.0, 100_000.0));
        assert!((two.squared_variation() - 0.961).abs() < 0.001);
        let exponential = exponential(10_000);
        let variation = exponential.squared_variation();
        assert!((0.9..1.05).contains(&variation), "{variation}");
        let p99 = exponential.p99_ns() / 46_052.0;
        assert!((0.75..1.25).contains(&p99), "{p99}");
        // One in a thousand is not in the 99th percentile.
        assert_eq!(bimodal(500, 500_000, 1).p99_ns(), 500.0);
        assert_eq!(ServiceTimes::new().p99_ns(), 0.0);
    }

    #[test]
    fn several_modes_and_slowly_falling_tails_are_heavy() {
        for heavy in [
            bimodal(1_000, 100_000, 500),
            bimodal(500, 500_000, 5),
            // Pareto, index 1.5.
            quantiles(10_000, |share| 1_000.0 * (1.0 - share).powf(-1.0 / 1.5)),
        ] {
            assert!(heavy.has_heavy_tail(0.5));
        }
        let uniform = quantiles(10_000, |share| 1_000.0 + 20_000.0 * share);
        for light in [bimodal(7_000, 0, 0), uniform, exponential(10_000)] {
            assert!(!light.has_heavy_tail(0.2));
        }
        assert!(!ServiceTimes::new().has_heavy_tail(0.0));
    }

    #[test]
    fn a_few_long_requests_are_chance_unless_they_are_much_longer() {
        let long = |length| bimodal(1_000, length, 1).has_heavy_tail(0.5);
        assert!(!long(6_000) && long(12_000));
    }

    #[test]
    fn what_fades_keeps_its_lengths() {
        let mut times = bimodal(1_000, 100_000, 500);
        times.fade();
        assert_eq!((times.count(), times.mean_ns()), (500, 50_500.0));
        assert_eq!(times.longest_ns(), 100_000.0);
    }
}
