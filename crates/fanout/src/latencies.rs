//! How long servers take for a part when nothing waits, as measured; and what a query over several
//! of them takes.
//!
//! A query is as slow as its slowest part. So its latency in an empty system is below `t` with the
//! probability F1(t) F2(t) ... Fk(t), where Fi is the share of parts that server i answers within
//! `t` without waiting. [`unloaded_nanos`] finds the `t` at which that product reaches the
//! percentile. With k equal servers that is the quantile `percentile^(1/k)` of one of them.
//!
//! A distribution is a histogram of 64 buckets a doubling, so values are up to 1.6 % too large.
//! Looking a value up takes one load: a query over 100 servers takes some 1200 of them.
//!
//! Source: Wang et al., *TailGuard*, ICDCS 2023.

/// Buckets of a doubling, as a power of two.
const FINE: u32 = 6;
const BUCKETS: usize = (65 - FINE as usize) << FINE;

/// Samples between two refreshes, when there are many.
const REFRESH: u32 = 256;

/// A server's latencies without waiting. Old samples count less and less.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Box<[f32]>,
    total: f64,
    /// At twice as many samples, all count half.
    window: f64,
    /// Logarithms of the shares up to each bucket's end, as of the last refresh.
    ln_shares: Box<[f32]>,
    since_refresh: u32,
}

impl Latencies {
    /// Nothing measured; follows about the last `window` samples, one at least.
    #[must_use]
    pub fn new(window: u32) -> Self {
        Self {
            counts: vec![0.0; BUCKETS].into_boxed_slice(),
            total: 0.0,
            window: f64::from(window.max(1)),
            // Nothing is known: as if it took no time.
            ln_shares: vec![0.0; BUCKETS].into_boxed_slice(),
            since_refresh: 0,
        }
    }

    /// A part took so long without waiting.
    pub fn record(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1.0;
        self.total += 1.0;
        self.since_refresh += 1;
        if self.total >= 2.0 * self.window {
            for count in &mut self.counts {
                *count /= 2.0;
            }
            self.total /= 2.0;
        }
        // At first each sample matters.
        if self.since_refresh >= REFRESH || f64::from(self.since_refresh) * 4.0 >= self.total {
            self.refresh();
        }
    }

    /// From now on the last samples are in what is computed, too. Happens by itself every few
    /// samples.
    pub fn refresh(&mut self) {
        self.since_refresh = 0;
        let all: f64 = self.counts.iter().map(|&count| f64::from(count)).sum();
        if all == 0.0 {
            return;
        }
        let mut sum = 0.0;
        for (count, ln_share) in self.counts.iter().zip(&mut self.ln_shares) {
            sum += f64::from(*count);
            *ln_share = (sum / all).ln() as f32;
        }
    }
}

/// A query's latency in an empty system at `percentile` (0 to 1), in nanoseconds; its parts go to
/// servers with these latencies. Zero if nothing was measured of any.
///
/// A quantile needs samples: for `k` servers at the 99th percentile well over 100 k of each. With
/// fewer it is the longest of all samples, or less.
pub fn unloaded_nanos<'a>(
    servers: impl Iterator<Item = &'a Latencies> + Clone,
    percentile: f64,
) -> u64 {
    let wanted = percentile.ln();
    let reached = |bucket: usize| {
        let ln_shares = servers
            .clone()
            .map(|server| f64::from(server.ln_shares[bucket]));
        // Rounding shall not turn a share of one into less.
        ln_shares.sum::<f64>() >= wanted - 1e-9
    };
    let (mut from, mut to) = (0, BUCKETS - 1);
    while from < to {
        let middle = usize::midpoint(from, to);
        if reached(middle) {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    end_of(from)
}

/// Values below 128 have a bucket each; from there on 64 buckets a doubling.
fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - 1 - (nanos | 1).leading_zeros()).saturating_sub(FINE);
    ((shift as usize) << FINE) + (nanos >> shift) as usize
}

/// The largest value of a bucket.
fn end_of(bucket: usize) -> u64 {
    let shift = (bucket >> FINE).saturating_sub(1);
    let first = (bucket - (shift << FINE)) as u64;
    (((u128::from(first) + 1) << shift) - 1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_bucket_that_ends_at_it_or_little_later() {
        let powers = (0..64).flat_map(|power| [(1_u64 << power) - 1, 1 << power, (1 << power) + 1]);
        for nanos in powers.chain(0..5_000).chain([u64::MAX - 1, u64::MAX]) {
            let at = bucket(nanos);
            assert!(at < BUCKETS, "{nanos}");
            assert!(end_of(at) >= nanos, "{nanos}: {}", end_of(at));
            assert!(
                end_of(at) - nanos <= nanos >> FINE,
                "{nanos}: {}",
                end_of(at)
            );
            assert!(at == 0 || end_of(at - 1) < nanos, "{nanos}");
        }
        assert_eq!(end_of(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn nothing_known_takes_no_time() {
        let none = Latencies::new(100);
        assert_eq!(unloaded_nanos([&none, &none].into_iter(), 0.99), 0);
        let mut one = Latencies::new(100);
        one.record(50);
        assert_eq!(unloaded_nanos([&none, &one].into_iter(), 0.99), 50);
    }

    #[test]
    fn what_a_server_did_long_ago_is_forgotten() {
        let mut server = Latencies::new(1_000);
        for _ in 0..5_000 {
            server.record(60);
        }
        for _ in 0..20_000 {
            server.record(20);
        }
        assert_eq!(unloaded_nanos(std::iter::once(&server), 0.99), 20);
    }
}
