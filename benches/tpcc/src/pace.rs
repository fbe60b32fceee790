//! How long transactions take: measured alone, on the calling thread, and stretched to a mean.
//!
//! A transaction here takes some microseconds. To make their mean another system's, each row that a
//! transaction touches takes some time more, the same for every row and kind. So the kinds keep
//! their proportions, and locks are held for as much longer. The mean is that of the thread's
//! processor time, which no other thread is in.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::distr::Distribution as _;
use rand::distr::weighted::WeightedIndex;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use shinjuku_examples::work::steps_per_nano;

use crate::{Input, Kind, Store};

/// Transactions of a measurement, by default.
const TRANSACTIONS: usize = 4_000;
/// How often the stretch is corrected.
const CORRECTIONS: usize = 2;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// The mean without a stretch, us.
    pub bare_mean_us: f64,
    /// The mean, us.
    pub mean_us: f64,
    /// What each row takes more, ns.
    pub row_ns: f64,
    /// The same in steps of work.
    pub row_steps: u64,
    /// Of all transactions, then of each kind.
    pub times: Vec<Distribution>,
}

/// How times are distributed, in us.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// `all`, or the kind's name.
    pub name: String,
    /// How many were timed.
    pub transactions: usize,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
}

/// A batch of transactions of the mix.
struct Batch {
    cpu_us: f64,
    rows: f64,
    times: Vec<(Kind, f64)>,
}

impl Store {
    /// Stretches transactions to a mean of `mean`, if they take less without, and measures them.
    /// They change the store as any others do.
    pub fn stretch(&mut self, mean: Duration) -> Pace {
        self.stretch_by(mean, TRANSACTIONS)
    }

    /// Stretches transactions as another store's were, without measuring.
    pub fn keep_pace(&mut self, pace: &Pace) {
        self.row_steps = pace.row_steps;
    }

    fn stretch_by(&mut self, mean: Duration, transactions: usize) -> Pace {
        let wanted_us = mean.as_secs_f64() * 1e6;
        let steps_per_us = steps_per_nano() * 1e3;
        self.row_steps = 0;
        let bare = self.batch(transactions, 0);
        let more_us = (wanted_us - bare.cpu_us).max(0.0);
        let mut steps = more_us / bare.rows * steps_per_us;
        for round in 1..=CORRECTIONS as u64 {
            self.row_steps = steps as u64;
            let took_us = self.batch(transactions, round).cpu_us - bare.cpu_us;
            if steps > 0.0 && took_us > 0.0 {
                steps *= more_us / took_us;
            }
        }
        self.row_steps = steps as u64;
        let last = self.batch(transactions, u64::MAX);
        let of_kind = |kind: Kind| {
            let times = last.times.iter().filter(|(one, _)| *one == kind);
            Distribution::of(kind.name(), times.map(|(_, us)| *us).collect())
        };
        let all = Distribution::of("all", last.times.iter().map(|(_, us)| *us).collect());
        Pace {
            bare_mean_us: bare.cpu_us,
            mean_us: last.cpu_us,
            row_steps: self.row_steps,
            row_ns: self.row_steps as f64 / steps_per_us * 1e3,
            times: (all.into_iter())
                .chain(Kind::ALL.into_iter().filter_map(of_kind))
                .collect(),
        }
    }

    fn batch(&self, transactions: usize, seed: u64) -> Batch {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let shares = WeightedIndex::new(Kind::ALL.map(Kind::percent)).expect("shares are positive");
        let mut times = Vec::with_capacity(transactions);
        let mut rows = 0;
        let before = clock_gettime(ClockId::ThreadCPUTime);
        for number in 0..transactions as u64 {
            let kind = Kind::ALL[shares.sample(&mut rng)];
            let start = Instant::now();
            let input = Input::draw(kind, seed.wrapping_add(number), self.scale);
            rows += u64::from(self.run(input).rows);
            times.push((kind, start.elapsed().as_nanos() as f64 / 1e3));
        }
        let after = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns =
            (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
        let each = |sum: f64| sum / transactions as f64;
        Batch {
            cpu_us: each(cpu_ns as f64 / 1e3),
            rows: each(rows as f64),
            times,
        }
    }
}

impl Distribution {
    /// `None` of no times.
    fn of(name: &str, mut times: Vec<f64>) -> Option<Self> {
        times.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (times.len() as f64 * share).ceil() as usize;
            times.get(rank.saturating_sub(1)).copied()
        };
        Some(Self {
            name: name.to_owned(),
            transactions: times.len(),
            mean_us: times.iter().sum::<f64>() / times.len() as f64,
            p50_us: at(0.5)?,
            p90_us: at(0.9)?,
            p99_us: at(0.99)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scale;

    #[test]
    fn transactions_are_stretched_to_a_mean_and_stay_what_they_are() {
        let mut store = Store::new(Scale::small(), 1);
        let bare = store.stretch_by(Duration::ZERO, 500);
        assert_eq!((bare.row_ns, store.row_steps), (0.0, 0));
        let wanted = 20.0 * bare.bare_mean_us;
        let pace = store.stretch_by(Duration::from_nanos((wanted * 1e3) as u64), 500);
        assert!(pace.row_ns > 0.0, "{bare:?} {pace:?}");
        // By processor time; half of it is for a machine that does something else as well.
        let off = pace.mean_us / wanted;
        assert!((0.5..2.0).contains(&off), "{pace:?}");
        assert_eq!(pace.times[0].transactions, 500);
        assert_eq!(pace.times.len(), 6);
        assert_eq!(store.check(), Ok(()));
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let times = (1..=200).rev().map(f64::from).collect();
        let found = Distribution::of("all", times).unwrap();
        let found = [found.mean_us, found.p50_us, found.p90_us, found.p99_us];
        assert_eq!(found, [100.5, 100.0, 180.0, 198.0]);
        assert!(Distribution::of("none", Vec::new()).is_none());
    }
}
