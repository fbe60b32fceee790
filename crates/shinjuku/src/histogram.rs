//! A histogram that one thread writes, or several that say so, and any thread reads: how latencies are kept while the
//! runtime runs.
//!
//! Log-linear like HdrHistogram's (hdrhistogram.org): every power of two is cut into [`SUB_BUCKETS`] equal parts, so a
//! value is known to within 1/128, and its bucket's middle to within 0.4 %. Smaller values are exact. The memory is
//! taken at construction, and recording is a load and a store.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram as Snapshot;

/// Parts of a power of two.
const SUB_BUCKETS: u64 = 1 << SUB_BITS;
const SUB_BITS: u32 = 7;
/// What is larger counts as this: 4.4e12, 73 minutes in nanoseconds.
const LARGEST: u64 = (1 << 42) - 1;
const BUCKETS: usize = index(LARGEST) + 1;

/// Counts of values.
#[derive(Debug)]
pub(crate) struct Histogram(Box<[AtomicU64]>);

impl Histogram {
    /// Takes 36 KiB.
    pub(crate) fn new() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts `value`. By one thread at a time, or counts are lost.
    #[inline]
    pub(crate) fn record(&self, value: u64) {
        let bucket = &self.0[index(value.min(LARGEST))];
        bucket.store(
            bucket.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// The same by any number of threads.
    pub(crate) fn record_beside_others(&self, value: u64) {
        self.0[index(value.min(LARGEST))].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what has been recorded to `snapshot`, as the middles of the buckets.
    pub(crate) fn add_to(&self, snapshot: &mut Snapshot<u64>) {
        for (index, bucket) in self.0.iter().enumerate() {
            let count = bucket.load(Ordering::Relaxed);
            if count > 0 {
                snapshot
                    .record_n(middle(index), count)
                    .expect("the snapshot holds the same range");
            }
        }
    }

    /// An empty snapshot, wide enough for [`add_to`](Self::add_to).
    pub(crate) fn empty_snapshot() -> Snapshot<u64> {
        Snapshot::new_with_bounds(1, LARGEST, 3).expect("constant bounds, known to be valid")
    }
}

/// The bucket of `value`, at most [`LARGEST`]: below 256 the value itself, above it 128 buckets a power of two.
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
        let histogram = Histogram::new();
        let mut values: Vec<u64> = (0..20_000u64)
            .map(|n| 50 + (n * n * n) % 1_000_003 + 17 * n)
            .collect();
        values.iter().for_each(|&value| histogram.record(value));
        values.sort_unstable();
        let mut snapshot = Histogram::empty_snapshot();
        histogram.add_to(&mut snapshot);
        assert_eq!(snapshot.len(), 20_000);
        for quantile in [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact =
                values[((values.len() as f64 * quantile).ceil() as usize).max(1) - 1] as f64;
            let found = snapshot.value_at_quantile(quantile) as f64;
            assert!(
                (found / exact - 1.0).abs() < 0.01,
                "quantile {quantile}: {found}, exactly {exact}"
            );
        }
    }

    #[test]
    fn zero_counts_and_what_is_too_large_saturates() {
        let histogram = Histogram::new();
        histogram.record(0);
        histogram.record(LARGEST + 1);
        histogram.record(u64::MAX);
        let mut snapshot = Histogram::empty_snapshot();
        histogram.add_to(&mut snapshot);
        assert_eq!((snapshot.len(), snapshot.min()), (3, 0));
        assert!(snapshot.max() as f64 > LARGEST as f64 * 0.99);
    }

    #[test]
    fn snapshots_of_several_histograms_add_up() {
        let mut snapshot = Histogram::empty_snapshot();
        for value in [10, 20, 30] {
            let histogram = Histogram::new();
            histogram.record(value);
            histogram.add_to(&mut snapshot);
        }
        assert_eq!(snapshot.len(), 3);
        assert_eq!((snapshot.min(), snapshot.value_at_quantile(0.5)), (10, 20));
    }
}
