//! How latencies are kept: in recorders, which any thread reads while the runtime runs, and in the
//! [`Histogram`], which is made from recorders.
//!
//! The buckets are log-linear as HdrHistogram's (hdrhistogram.org): every power of two is cut into
//! [`SUB_BUCKETS`] equal parts, so a bucket's values differ by at most 1/128, and its middle is
//! within 0.4 % of each. Small values are exact. A recorder's memory is taken at construction, and
//! recording is a load and a store.

use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets for each power of two.
const SUB_BUCKETS: u64 = 1 << SUB_BITS;
const SUB_BITS: u32 = 7;
/// Larger values count as this: 4.4e12, 73 minutes in nanoseconds.
const LARGEST: u64 = (1 << 42) - 1;
const BUCKETS: usize = index(LARGEST) + 1;

/// Counts values as they come.
#[derive(Debug)]
pub(crate) struct Recorder(Box<[AtomicU64]>);

impl Recorder {
    /// Takes 36 KiB.
    pub(crate) fn new() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts `value`. Only one thread may do so at a time, or counts are lost.
    #[inline]
    pub(crate) fn record(&self, value: u64) {
        let bucket = &self.0[index(value.min(LARGEST))];
        bucket.store(
            bucket.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// As [`record`](Self::record), for any number of threads.
    pub(crate) fn record_beside_others(&self, value: u64) {
        self.0[index(value.min(LARGEST))].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what has been recorded to `histogram`.
    pub(crate) fn add_to(&self, histogram: &mut Histogram) {
        for (sum, bucket) in histogram.counts.iter_mut().zip(&self.0) {
            *sum += bucket.load(Ordering::Relaxed);
        }
    }
}

/// How often each value occurred, up to 4.4e12; larger ones count as that. A value below 256 is
/// exact, and a larger one is known to within 0.4 %.
///
/// ```
/// # let runtime = shinjuku::Runtime::builder(shinjuku::handler_fn(|n: u64| n)).start()?;
/// # runtime.handle().submit(shinjuku::policy::ClassId(0), 1)?.wait()?;
/// # let report = runtime.shutdown(std::time::Duration::from_secs(1));
/// # let statistics = report.statistics.expect("the dispatcher ended");
/// let latency = &statistics.classes[0].latency_nanos;
/// println!("{} requests, mean {:.0} ns", latency.count(), latency.mean());
/// println!("p99 {} ns, at most {} ns", latency.quantile(0.99), latency.max());
/// for (nanos, count) in latency.iter() {
///     println!("{count} times about {nanos} ns");
/// }
/// # assert_eq!(latency.iter().map(|(_, count)| count).sum::<u64>(), latency.count());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    /// By bucket.
    counts: Box<[u64]>,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS].into(),
        }
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value that a share `quantile` of all values did not exceed; 0 if there are no values. A
    /// `quantile` outside of 0 to 1 counts as the nearer end.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> u64 {
        let share = (self.count() as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64;
        let mut below = 0;
        self.iter()
            .find(|(_, count)| {
                below += count;
                below >= share.max(1)
            })
            .map_or(0, |(value, _)| value)
    }

    /// The mean of all values; 0 if there are none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: f64 = self
            .iter()
            .map(|(value, count)| value as f64 * count as f64)
            .sum();
        sum / self.count().max(1) as f64
    }

    /// The smallest value; 0 if there are none.
    #[must_use]
    pub fn min(&self) -> u64 {
        self.iter().next().map_or(0, |(value, _)| value)
    }

    /// The largest value; 0 if there are none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.iter().next_back().map_or(0, |(value, _)| value)
    }

    /// The values that occurred, from the smallest to the largest, and how often each did. All
    /// values of a bucket count as one, the middle of the bucket.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let counts = self.counts.iter().enumerate();
        counts
            .filter(|&(_, &count)| count > 0)
            .map(|(index, &count)| (middle(index), count))
    }
}

impl AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Histogram({} values from {} to {}, median {})",
            self.count(),
            self.min(),
            self.max(),
            self.quantile(0.5)
        )
    }
}

/// The bucket of `value`, at most [`LARGEST`]: below 256 the value itself, above it 128 buckets a
/// power of two.
#[inline]
const fn index(value: u64) -> usize {
    let shift = (value | SUB_BUCKETS).ilog2() - SUB_BITS;
    ((shift as u64 * SUB_BUCKETS) + (value >> shift)) as usize
}

/// The middle of a bucket's values, rounded down.
const fn middle(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * SUB_BUCKETS {
        return index;
    }
    let shift = index / SUB_BUCKETS - 1;
    let lowest = (index - shift * SUB_BUCKETS) << shift;
    lowest + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_half_a_bucket_of_its_middle() {
        let interesting = (0..42).flat_map(|bit| {
            let power = 1u64 << bit;
            let steps = (0..64).map(move |step| power + (power as f64 * step as f64 / 64.0) as u64);
            steps.chain([power.saturating_sub(1), power + 1])
        });
        for value in interesting.chain(0..2_000).chain([LARGEST]) {
            let found = middle(index(value));
            let error = found.abs_diff(value) as f64 / value.max(1) as f64;
            assert!(error <= 1.0 / 256.0, "{value} is kept as {found}");
        }
    }

    #[test]
    fn buckets_are_contiguous_and_all_used() {
        for bucket in 0..BUCKETS {
            assert_eq!(index(middle(bucket)), bucket);
        }
        assert_eq!(index(LARGEST), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_within_one_per_cent() {
        let recorder = Recorder::new();
        let mut values: Vec<u64> = (0..20_000u64)
            .map(|n| 50 + (n * n * n) % 1_000_003 + 17 * n)
            .collect();
        values.iter().for_each(|&value| recorder.record(value));
        values.sort_unstable();
        let mut histogram = Histogram::new();
        recorder.add_to(&mut histogram);
        assert_eq!(histogram.count(), 20_000);
        for quantile in [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact =
                values[((values.len() as f64 * quantile).ceil() as usize).max(1) - 1] as f64;
            let found = histogram.quantile(quantile) as f64;
            assert!(
                (found / exact - 1.0).abs() < 0.01,
                "quantile {quantile}: {found}, exactly {exact}"
            );
        }
    }

    #[test]
    fn zero_counts_and_what_is_too_large_saturates() {
        let recorder = Recorder::new();
        recorder.record(0);
        recorder.record(LARGEST + 1);
        recorder.record(u64::MAX);
        let mut histogram = Histogram::new();
        recorder.add_to(&mut histogram);
        assert_eq!((histogram.count(), histogram.min()), (3, 0));
        assert!(histogram.max() as f64 > LARGEST as f64 * 0.99);
    }

    #[test]
    fn several_recorders_add_up() {
        let mut histogram = Histogram::new();
        for value in [10, 20, 30] {
            let recorder = Recorder::new();
            recorder.record(value);
            recorder.add_to(&mut histogram);
        }
        assert_eq!(histogram.count(), 3);
        assert_eq!((histogram.min(), histogram.quantile(0.5)), (10, 20));
    }

    #[test]
    fn mean_and_values_are_those_recorded() {
        let recorder = Recorder::new();
        for value in [1, 2, 2, 7] {
            recorder.record(value);
        }
        let mut histogram = Histogram::new();
        recorder.add_to(&mut histogram);
        assert_eq!(histogram.mean(), 3.0);
        assert!(histogram.iter().eq([(1, 1), (2, 2), (7, 1)]));
        let mut twice = histogram.clone();
        twice += &histogram;
        assert!(twice.iter().eq([(1, 2), (2, 4), (7, 2)]));
        assert_eq!((twice.quantile(-1.0), twice.quantile(2.0)), (1, 7));
    }

    #[test]
    fn an_empty_histogram_is_all_zeroes() {
        let empty = Histogram::new();
        assert_eq!((empty.count(), empty.min(), empty.max()), (0, 0, 0));
        assert_eq!((empty.quantile(0.5), empty.mean()), (0, 0.0));
    }
}
