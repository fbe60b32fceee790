//! What is asked of the contenders, at which loads.
//!
//! A load is a share of what the servers' cores could do if serving took nothing but the work: the
//! kernel's part of a request, and the client's where it shares the cores, are in what is missing
//! to 100 %.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use shinjuku_bench_tpcc::{Kind, Pace, Scale, Store};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::work::Work;

/// The mean time of a transaction (ZygOS, slide 34).
const TRANSACTION: Duration = Duration::from_micros(33);
/// Warehouses of the store.
const WAREHOUSES: usize = 2;
/// Of the tables' random contents.
const SEED: u64 = 1;

/// A kind of work, with its loads.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// On the command line and in results.
    pub name: &'static str,
    pub title: &'static str,
    kind: Asked,
    /// Loads with `--quick`; the second one is where p99 is compared.
    quick: [f64; 3],
    loads: &'static [f64],
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    Fixed { us: f64 },
    Exponential { us: f64 },
    Tpcc,
}

/// All of them.
pub const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "10-us",
        title: "10 µs each",
        kind: Asked::Fixed { us: 10.0 },
        quick: [0.05, 0.1, 0.2],
        loads: &[0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3],
    },
    Scenario {
        name: "25-us",
        title: "exponential, mean 25 µs",
        kind: Asked::Exponential { us: 25.0 },
        quick: [0.1, 0.2, 0.35],
        loads: &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    },
    Scenario {
        name: "tpcc",
        title: "TPC-C's five transactions, mean 33 µs",
        kind: Asked::Tpcc,
        quick: [0.1, 0.25, 0.4],
        loads: &[0.05, 0.1, 0.25, 0.35, 0.45, 0.55, 0.65],
    },
];

impl Scenario {
    /// The loads to measure.
    pub fn loads(&self, quick: bool) -> &[f64] {
        if quick { &self.quick } else { self.loads }
    }

    /// The same at loads for a machine that is busy, or an unoptimised build.
    #[cfg(test)]
    pub fn lightly(self) -> Self {
        Self {
            quick: [0.005, 0.01, 0.02],
            ..self
        }
    }

    /// The load at which latencies are compared: measured in every mode.
    pub fn judged(&self) -> f64 {
        self.quick[1]
    }

    /// Classes, and the times that requests take.
    ///
    /// # Errors
    /// None, as the numbers are constants.
    pub fn mix(&self) -> Result<Mix> {
        let one = |service| vec![Class::new("request", 1.0, service)];
        let mean_us = TRANSACTION.as_secs_f64() * 1e6;
        let transaction = |kind: Kind| -> Result<Class> {
            // A load needs the mean alone.
            let service = ServiceTime::fixed(mean_us)?;
            Ok(Class::new(kind.name(), kind.percent(), service))
        };
        let classes = match self.kind {
            Asked::Fixed { us } => one(ServiceTime::fixed(us)?),
            Asked::Exponential { us } => one(ServiceTime::exponential(us)?),
            Asked::Tpcc => (Kind::ALL.into_iter().map(transaction)).collect::<Result<_>>()?,
        };
        Ok(Mix::new(self.name, classes)?)
    }

    /// The work, and how long transactions take where it is that.
    ///
    /// A store grows with each order, so each load has its own, which all contenders share.
    pub fn work(&self, stretch: Option<&Pace>) -> (Work, Option<Pace>) {
        if !matches!(self.kind, Asked::Tpcc) {
            return (Work::spin(), None);
        }
        let mut store = Store::new(Scale::standard(WAREHOUSES), SEED);
        let pace = match stretch {
            Some(pace) => {
                store.keep_pace(pace);
                pace.clone()
            }
            None => store.stretch(TRANSACTION),
        };
        (Work::Tpcc(Arc::new(store)), Some(pace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_measures_the_load_that_is_judged() {
        for scenario in SCENARIOS {
            for quick in [true, false] {
                let loads = scenario.loads(quick);
                assert!(loads.contains(&scenario.judged()), "{}", scenario.name);
                assert!(loads.is_sorted(), "{}", scenario.name);
            }
        }
    }

    #[test]
    fn means_are_the_talks() {
        let means = SCENARIOS.map(|one| (one.mix().unwrap().mean_ns() / 1e3).round());
        assert_eq!(means, [10.0, 25.0, 33.0]);
        assert_eq!(SCENARIOS[2].mix().unwrap().classes().len(), 5);
    }
}
