//! Sums up a run as it goes: histograms and moments, whose size does not grow with the run.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Slowdowns are counted in thousandths.
const SLOWDOWN_UNIT: f64 = 1_000.0;

/// Figures of a class, or of all requests together. Percentiles come from histograms with a
/// relative error of at most 0.1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// How many requests finished.
    pub requests: u64,
    /// Mean sojourn time, in ns.
    pub mean_ns: f64,
    /// Mean sojourn time less service time, in ns.
    pub mean_wait_ns: f64,
    /// Median sojourn time, in ns.
    pub p50_ns: f64,
    /// 99th percentile of the sojourn time, in ns.
    pub p99_ns: f64,
    /// 99.9th percentile of the sojourn time, in ns.
    pub p999_ns: f64,
    /// Mean slowdown: sojourn time over service time.
    pub mean_slowdown: f64,
    /// 99th percentile of the slowdown.
    pub p99_slowdown: f64,
    /// 99.9th percentile of the slowdown.
    pub p999_slowdown: f64,
}

/// A kind of figure, to ask [`Figures`] for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Mean sojourn time, us.
    MeanUs,
    /// Mean waiting time, us.
    MeanWaitUs,
    /// Median sojourn time, us.
    P50Us,
    /// 99th percentile of the sojourn time, us.
    P99Us,
    /// 99.9th percentile of the sojourn time, us.
    P999Us,
    /// Mean slowdown.
    MeanSlowdown,
    /// 99th percentile of the slowdown.
    P99Slowdown,
    /// 99.9th percentile of the slowdown.
    P999Slowdown,
}

impl Measure {
    /// Its name in plans and tables, with its unit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MeanUs => "mean_us",
            Self::MeanWaitUs => "mean_wait_us",
            Self::P50Us => "p50_us",
            Self::P99Us => "p99_us",
            Self::P999Us => "p999_us",
            Self::MeanSlowdown => "mean_slowdown",
            Self::P99Slowdown => "p99_slowdown",
            Self::P999Slowdown => "p999_slowdown",
        }
    }

    /// The figure of this kind, in the unit of its [`name`](Self::name).
    #[must_use]
    pub fn of(self, figures: &Figures) -> f64 {
        match self {
            Self::MeanUs => figures.mean_ns / 1e3,
            Self::MeanWaitUs => figures.mean_wait_ns / 1e3,
            Self::P50Us => figures.p50_ns / 1e3,
            Self::P99Us => figures.p99_ns / 1e3,
            Self::P999Us => figures.p999_ns / 1e3,
            Self::MeanSlowdown => figures.mean_slowdown,
            Self::P99Slowdown => figures.p99_slowdown,
            Self::P999Slowdown => figures.p999_slowdown,
        }
    }
}

/// An empty histogram. It grows with the logarithm of its largest value only.
fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three significant digits are allowed")
}

/// The running sums of one class.
#[derive(Clone)]
pub(crate) struct ClassTally {
    latency: Histogram<u64>,
    slowdown: Histogram<u64>,
    latency_sum: f64,
    wait_sum: f64,
    slowdown_sum: f64,
}

impl ClassTally {
    pub(crate) fn new() -> Self {
        Self {
            latency: histogram(),
            slowdown: histogram(),
            latency_sum: 0.0,
            wait_sum: 0.0,
            slowdown_sum: 0.0,
        }
    }

    pub(crate) fn record(&mut self, latency_ns: u64, service_ns: u64) {
        let slowdown = latency_ns as f64 / service_ns as f64;
        self.latency.record(latency_ns).expect("grows as needed");
        self.slowdown
            .record((slowdown * SLOWDOWN_UNIT) as u64)
            .expect("grows as needed");
        self.latency_sum += latency_ns as f64;
        self.wait_sum += latency_ns as f64 - service_ns as f64;
        self.slowdown_sum += slowdown;
    }

    fn add(&mut self, other: &Self) {
        // Auto-resizing histograms of the same precision can always be added.
        self.latency.add(&other.latency).expect("grows as needed");
        self.slowdown.add(&other.slowdown).expect("grows as needed");
        self.latency_sum += other.latency_sum;
        self.wait_sum += other.wait_sum;
        self.slowdown_sum += other.slowdown_sum;
    }

    pub(crate) fn figures(&self) -> Figures {
        let requests = self.latency.len();
        let n = (requests as f64).max(1.0);
        let middle = |histogram: &Histogram<u64>, quantile| {
            let value = histogram.value_at_quantile(quantile);
            // The middle of the values that the histogram cannot tell apart.
            let lowest = histogram.lowest_equivalent(value) as f64;
            f64::midpoint(lowest, histogram.highest_equivalent(value) as f64)
        };
        let slowdown = |quantile| middle(&self.slowdown, quantile) / SLOWDOWN_UNIT;
        Figures {
            requests,
            mean_ns: self.latency_sum / n,
            mean_wait_ns: self.wait_sum / n,
            p50_ns: middle(&self.latency, 0.5),
            p99_ns: middle(&self.latency, 0.99),
            p999_ns: middle(&self.latency, 0.999),
            mean_slowdown: self.slowdown_sum / n,
            p99_slowdown: slowdown(0.99),
            p999_slowdown: slowdown(0.999),
        }
    }

    /// The latency, in ns, at a quantile between 0 and 1.
    fn quantile_ns(&self, quantile: f64) -> u64 {
        self.latency.value_at_quantile(quantile)
    }
}

/// What a run measured, class by class. Its size depends on the number of classes and the spread of
/// the values, not on the length of the run.
#[derive(Clone)]
pub struct Tally {
    classes: Vec<ClassTally>,
    waits: Histogram<u64>,
    batches: BatchMeans,
    refused: u64,
}

impl Tally {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            classes: vec![ClassTally::new(); classes],
            waits: histogram(),
            batches: BatchMeans::new(),
            refused: 0,
        }
    }

    pub(crate) fn record(&mut self, class: u16, latency_ns: u64, service_ns: u64) {
        self.classes[usize::from(class)].record(latency_ns, service_ns);
        self.waits
            .record(latency_ns.saturating_sub(service_ns))
            .expect("grows as needed");
        self.batches.record(latency_ns as f64);
    }

    pub(crate) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// The figures of a class; all zero if none of it finished.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn class(&self, class: u16) -> Figures {
        self.classes[usize::from(class)].figures()
    }

    /// The sojourn time of a class at a quantile between 0 and 1, in ns.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn class_quantile_ns(&self, class: u16, quantile: f64) -> u64 {
        self.classes[usize::from(class)].quantile_ns(quantile)
    }

    /// How many of a class were done within so many ns, to a histogram's precision.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn class_within(&self, class: u16, ns: u64) -> u64 {
        self.classes[usize::from(class)]
            .latency
            .count_between(0, ns)
    }

    /// The number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// The figures of all requests.
    #[must_use]
    pub fn all(&self) -> Figures {
        self.merged().figures()
    }

    /// The sojourn time of all requests at a quantile between 0 and 1, in ns.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.merged().quantile_ns(quantile)
    }

    /// The waiting time (sojourn less service) of all requests at a quantile between 0 and 1, in
    /// ns.
    #[must_use]
    pub fn wait_quantile_ns(&self, quantile: f64) -> u64 {
        self.waits.value_at_quantile(quantile)
    }

    fn merged(&self) -> ClassTally {
        let mut all = ClassTally::new();
        for class in &self.classes {
            all.add(class);
        }
        all
    }

    /// Requests that found no room.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Means of successive batches of sojourn times, for a confidence interval from one run.
    #[must_use]
    pub fn batch_means(&self) -> &BatchMeans {
        &self.batches
    }
}

/// Means over successive batches of values, nearly independent if the batches are long. There are
/// 32 to 63 of them whatever the length of the run: when the 64th is full, neighbours are merged
/// and batches are twice as long from then on.
///
/// Source: Law and Kelton, *Simulation Modeling and Analysis*, chapter 9 (batch means).
#[derive(Clone, Debug)]
pub struct BatchMeans {
    means: Vec<f64>,
    size: u64,
    sum: f64,
    count: u64,
}

impl BatchMeans {
    const MOST: usize = 64;

    fn new() -> Self {
        Self {
            means: Vec::with_capacity(Self::MOST),
            size: 64,
            sum: 0.0,
            count: 0,
        }
    }

    fn record(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        if self.count < self.size {
            return;
        }
        self.means.push(self.sum / self.size as f64);
        (self.sum, self.count) = (0.0, 0);
        if self.means.len() == Self::MOST {
            for at in 0..Self::MOST / 2 {
                self.means[at] = f64::midpoint(self.means[2 * at], self.means[2 * at + 1]);
            }
            self.means.truncate(Self::MOST / 2);
            self.size *= 2;
        }
    }

    /// The means of the full batches.
    #[must_use]
    pub fn means(&self) -> &[f64] {
        &self.means
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut tally = Tally::new(2);
        for value in 1..=100_000_u64 {
            tally.record((value % 2) as u16, value * 10, 10);
        }
        let all = tally.all();
        assert_eq!(all.requests, 100_000);
        for (got, exact) in [
            (all.p50_ns, 500_000.0),
            (all.p99_ns, 990_000.0),
            (all.p999_ns, 999_000.0),
            (all.p99_slowdown, 99_000.0),
        ] {
            assert!((got / exact - 1.0).abs() < 1e-3, "{got} {exact}");
        }
        assert_eq!(all.mean_ns, 500_005.0);
        assert_eq!(all.mean_wait_ns, 499_995.0);
    }

    #[test]
    fn batches_keep_the_mean_and_stay_few() {
        let mut batches = BatchMeans::new();
        for value in 0..1_u64 << 17 {
            batches.record(value as f64);
        }
        let means = batches.means();
        assert!((32..64).contains(&means.len()), "{}", means.len());
        let mean = means.iter().sum::<f64>() / means.len() as f64;
        assert_eq!(mean, f64::from((1 << 17) - 1) / 2.0);
    }
}
