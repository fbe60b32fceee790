//! What became of each request, and the figures that sum it up.

use serde::{Deserialize, Serialize};

use crate::Mix;

/// A finished request. Times are in ns on one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The *intended* time of sending, even if the sender was late.
    pub arrival_ns: u64,
    /// The undisturbed running time; above zero.
    pub service_ns: u64,
    /// The time when the reply was there.
    pub finish_ns: u64,
    /// Its class: an index into [`Mix::classes`].
    pub class: u16,
}

impl Record {
    /// Latency (sojourn time): from arrival to finish, in ns. Zero if it finished before it
    /// arrived, which [`Summary::of`] refuses.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.finish_ns.saturating_sub(self.arrival_ns)
    }

    /// Latency over service time: 1 for a request that nothing disturbed.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.latency_ns() as f64 / self.service_ns as f64
    }
}

/// Records that cannot be summed up.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// No record, or none left after the warm-up.
    #[error("no records to sum up")]
    Empty,
    /// A request finished before it arrived: two clocks were confused.
    #[error("record {index} finished before it arrived: {record:?}")]
    FinishBeforeArrival {
        /// The record's index among those given.
        index: usize,
        /// The record.
        record: Record,
    },
    /// A service time of zero has no slowdown.
    #[error("record {index} has no service time: {record:?}")]
    NoService {
        /// The record's index among those given.
        index: usize,
        /// The record.
        record: Record,
    },
    /// A class that the mix does not have.
    #[error("record {index} is of a class that the mix does not have: {record:?}")]
    UnknownClass {
        /// The record's index among those given.
        index: usize,
        /// The record.
        record: Record,
    },
}

/// The figures of a class, or of all requests together.
///
/// Percentiles are exact order statistics by nearest rank: `p99` of n requests is the
/// `ceil(0.99 n)`-th smallest. With fewer than 100 (or 1000) requests, `p99` (or `p999`) is
/// therefore the largest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// How many requests.
    pub requests: usize,
    /// Requests finished per second, from the first arrival to the last finish of all classes.
    pub throughput_per_second: f64,
    /// Mean latency, in ns.
    pub mean_ns: f64,
    /// Median latency, in ns.
    pub p50_ns: u64,
    /// 99th percentile of the latency, in ns.
    pub p99_ns: u64,
    /// 99.9th percentile of the latency, in ns.
    pub p999_ns: u64,
    /// Mean slowdown.
    pub mean_slowdown: f64,
    /// 99th percentile of the slowdown.
    pub p99_slowdown: f64,
    /// 99.9th percentile of the slowdown.
    pub p999_slowdown: f64,
    /// The share of the requests that kept to their class's SLO, of those whose class has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_slo: Option<f64>,
}

/// The figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Of all requests.
    pub all: Figures,
    /// Of each class that had a request, in the mix's order.
    pub classes: Vec<ClassFigures>,
}

/// The figures of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassFigures {
    /// Its index in the mix.
    pub class: u16,
    /// Its name.
    pub name: String,
    /// Its figures.
    pub figures: Figures,
}

impl Summary {
    /// Sums up a run without its warm-up: the first 5 % of the requests by arrival time (rounded
    /// down) are dropped, since they met empty queues and cold caches. The records may be in any
    /// order.
    ///
    /// # Errors
    /// There are no records; or one finished before it arrived, has no service time, or is of no
    /// class of `mix`.
    pub fn of(mix: &Mix, records: &[Record]) -> Result<Self, RecordError> {
        check(mix, records)?;
        let mut kept = records.to_vec();
        kept.sort_by_key(|record| record.arrival_ns);
        kept.drain(..records.len() / 20);
        Self::of_checked(mix, &kept)
    }

    /// Sums up every record, warm-up included.
    ///
    /// # Errors
    /// As [`Summary::of`].
    pub fn with_warm_up(mix: &Mix, records: &[Record]) -> Result<Self, RecordError> {
        check(mix, records)?;
        Self::of_checked(mix, records)
    }

    /// The figures of a class; `None` if it had no request.
    #[must_use]
    pub fn class(&self, class: u16) -> Option<&Figures> {
        self.classes
            .iter()
            .find(|figures| figures.class == class)
            .map(|found| &found.figures)
    }

    fn of_checked(mix: &Mix, records: &[Record]) -> Result<Self, RecordError> {
        let start = records
            .iter()
            .map(|record| record.arrival_ns)
            .min()
            .ok_or(RecordError::Empty)?;
        let end = records
            .iter()
            .map(|record| record.finish_ns)
            .max()
            .ok_or(RecordError::Empty)?;
        // At least 1 ns, so that a throughput is finite.
        let seconds = (end - start).max(1) as f64 * 1e-9;
        let of_class = |(class, described): (u16, &crate::Class)| {
            let mut records = records.to_vec();
            records.retain(|record| record.class == class);
            (!records.is_empty()).then(|| ClassFigures {
                class,
                name: described.name.clone(),
                figures: Figures::of(mix, &records, seconds),
            })
        };
        Ok(Self {
            all: Figures::of(mix, records, seconds),
            classes: (0..).zip(mix.classes()).filter_map(of_class).collect(),
        })
    }
}

fn check(mix: &Mix, records: &[Record]) -> Result<(), RecordError> {
    for (index, &record) in records.iter().enumerate() {
        if record.finish_ns < record.arrival_ns {
            return Err(RecordError::FinishBeforeArrival { index, record });
        }
        if record.service_ns == 0 {
            return Err(RecordError::NoService { index, record });
        }
        if usize::from(record.class) >= mix.classes().len() {
            return Err(RecordError::UnknownClass { index, record });
        }
    }
    Ok(())
}

impl Figures {
    /// At least one record.
    fn of(mix: &Mix, records: &[Record], seconds: f64) -> Self {
        let mut latencies: Vec<_> = records.iter().map(Record::latency_ns).collect();
        let mut slowdowns: Vec<_> = records.iter().map(Record::slowdown).collect();
        latencies.sort_unstable();
        slowdowns.sort_unstable_by(f64::total_cmp);
        let requests = records.len();
        Self {
            requests,
            throughput_per_second: requests as f64 / seconds,
            mean_ns: latencies.iter().map(|&ns| ns as f64).sum::<f64>() / requests as f64,
            p50_ns: nearest_rank(&latencies, 500),
            p99_ns: nearest_rank(&latencies, 990),
            p999_ns: nearest_rank(&latencies, 999),
            mean_slowdown: slowdowns.iter().sum::<f64>() / requests as f64,
            p99_slowdown: nearest_rank(&slowdowns, 990),
            p999_slowdown: nearest_rank(&slowdowns, 999),
            within_slo: within_slo(mix, records),
        }
    }
}

fn within_slo(mix: &Mix, records: &[Record]) -> Option<f64> {
    let (mut within, mut bound) = (0_usize, 0_usize);
    for record in records {
        if let Some(slo_us) = mix.classes()[usize::from(record.class)].slo_us {
            bound += 1;
            within += usize::from(record.latency_ns() as f64 <= slo_us * 1_000.0);
        }
    }
    (bound > 0).then(|| within as f64 / bound as f64)
}

/// The nearest-rank percentile of values sorted upwards: the `ceil(permille / 1000 * n)`-th
/// smallest. Computed in whole numbers, since 0.999 has no exact binary form and a rank rounded
/// wrongly selects another value.
///
/// # Panics
/// If `sorted` is empty, or `permille` is not between 1 and 1000.
#[must_use]
pub fn nearest_rank<T: Copy>(sorted: &[T], permille: usize) -> T {
    assert!(
        (1..=1_000).contains(&permille),
        "permille is {permille}, not between 1 and 1000"
    );
    let rank = (sorted.len() * permille).div_ceil(1_000);
    sorted[rank - 1]
}
