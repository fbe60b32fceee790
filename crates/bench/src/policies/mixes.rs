//! The request mixes of the bench, and the work that stands for each arrival.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use shinjuku_examples::store::Store;
use shinjuku_workload::{Class, Length, Mix, Schedule, ScheduleConfig, ServiceTime};

use super::contender::{Contender, Probes};
use super::mechanisms::Mechanisms;
use super::results::Class as Leading;
use super::work::{Planned, Work, Worker};

/// Keys that a RANGE of the store mixes reads.
const RANGE_KEYS: usize = 5_000;
/// Flows that the requests belong to.
const FLOWS: u32 = 64;

/// Names of all mixes.
pub const NAMES: [&str; 9] = [
    "hi",
    "mid",
    "tri",
    "exp",
    "fixed",
    "lognormal",
    "tpcc",
    "store",
    "store-50",
];

/// The classes of the store mixes, short first.
const STORE_CLASSES: [&str; 2] = ["GET", "RANGE"];

/// Names of the classes of the mix of this name.
///
/// # Errors
/// If there is no such mix.
pub fn class_names(mix: &str) -> Result<Vec<String>> {
    if mix.starts_with("store") {
        return Ok(STORE_CLASSES.map(str::to_owned).into());
    }
    let mix = Mix::named(mix)?;
    Ok(mix
        .classes()
        .iter()
        .map(|class| class.name.clone())
        .collect())
}

/// A mix, and how its requests are made.
#[derive(Clone, Debug)]
pub struct BenchMix {
    /// Classes and service times. For the store mixes the times are what the queries take here.
    pub mix: Mix,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Spin,
    Store { keys: u64 },
}

impl BenchMix {
    /// One of the workload crate's mixes, spinning.
    pub fn spinning(name: &str) -> Result<Self> {
        Ok(Self {
            mix: Mix::named(name)?,
            kind: Kind::Spin,
        })
    }

    /// Requests of one class that spin for so many microseconds each.
    pub fn all_alike(name: &str, us: f64) -> Result<Self> {
        let class = Class::new("all", 1.0, ServiceTime::fixed(us)?);
        Ok(Self {
            mix: Mix::new(name, vec![class])?,
            kind: Kind::Spin,
        })
    }

    /// GETs with a share of RANGEs on the store, both timed on the calling core first.
    pub fn store(name: &str, range_share: f64, store: &Arc<Store>) -> Result<Self> {
        let worker = Worker {
            store: Some(Arc::clone(store)),
            over: Arc::default(),
        };
        let keys = store.len();
        let mean_us = |rounds: u64, work: fn(u64, u64) -> Work| {
            let mut times: Vec<f64> = (0..5)
                .map(|turn| {
                    let start = Instant::now();
                    for round in 0..rounds {
                        worker.serve(work(turn * rounds + round, keys));
                    }
                    start.elapsed().as_nanos() as f64 / 1e3 / rounds as f64
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times[2]
        };
        let get = mean_us(5_000, get);
        let range = mean_us(20, range);
        let classes = vec![
            Class::new(
                STORE_CLASSES[0],
                1.0 - range_share,
                ServiceTime::fixed(get)?,
            ),
            Class::new(STORE_CLASSES[1], range_share, ServiceTime::fixed(range)?),
        ];
        Ok(Self {
            mix: Mix::new(name, classes)?,
            kind: Kind::Store { keys },
        })
    }

    /// Whether the requests are code of others, into which no probes can be put.
    pub fn is_real_code(&self) -> bool {
        matches!(self.kind, Kind::Store { .. })
    }

    /// The class whose latency the mix is about: the short requests, or all where there is only one
    /// kind.
    pub fn leading_class(&self) -> Leading {
        if self.mix.classes().len() > 1 {
            Leading::Short
        } else {
            Leading::All
        }
    }

    /// The contenders on it.
    pub fn contenders(&self, workers: usize, here: &Mechanisms) -> Vec<Contender> {
        let several = self.mix.classes().len() > 1;
        let all = if self.is_real_code() {
            Contender::without_probes(workers, here)
        } else {
            Contender::all(workers, here)
        };
        // With one class MQ is SQ, and no request is one of the long ones.
        all.into_iter()
            .filter(|one| several || !one.wants_slos() && one.probes != Probes::HalfOfLong)
            .collect()
    }

    /// In words, for the report.
    pub fn description(&self) -> String {
        let classes: Vec<String> = (self.mix.classes().iter().enumerate())
            .map(|(at, class)| {
                let share = self.mix.share(at as u16) * 100.0;
                format!(
                    "{share:.1} % {} (mean {:.2} us)",
                    class.name,
                    class.service.mean_ns() / 1e3
                )
            })
            .collect();
        let what = if self.is_real_code() {
            "queries on a redb file"
        } else {
            "spinning"
        };
        format!("{}; {what}", classes.join(", "))
    }

    /// The arrivals of one burst.
    pub fn arrivals(
        &self,
        load: f64,
        workers: usize,
        length: Length,
        seed: u64,
    ) -> Result<Schedule> {
        let config = ScheduleConfig::at_load(load, workers, length)
            .with_seed(seed)
            .with_flows(FLOWS);
        Schedule::generate(&self.mix, &config)
            .with_context(|| format!("drawing arrivals for {}", self.mix.name()))
    }

    /// The same with requests of one class only.
    pub fn with_only(&self, wanted: usize) -> Result<Self> {
        let class = &self.mix.classes()[wanted];
        // Weights must be positive: one request in a thousand million is none in a burst.
        let classes = (self.mix.classes().iter().enumerate())
            .map(|(at, class)| Class {
                weight: if at == wanted { 1.0 } else { 1e-9 },
                ..class.clone()
            })
            .collect();
        let mix =
            Mix::new(self.mix.name(), classes).with_context(|| format!("{} alone", class.name))?;
        Ok(Self {
            mix,
            kind: self.kind,
        })
    }

    /// The arrivals with their work, where a step of spinning takes so long.
    pub fn plan(&self, schedule: &Schedule, probes: Probes, nanos_per_step: f64) -> Arc<[Planned]> {
        let work = |index: usize, class: u16, service_ns: u64| match self.kind {
            Kind::Spin => {
                let has_probes = match probes {
                    Probes::All => true,
                    Probes::None => false,
                    Probes::HalfOfLong => class == 0 || index.is_multiple_of(2),
                };
                Work::Spin {
                    steps: (service_ns as f64 / nanos_per_step) as u64,
                    probes: has_probes,
                }
            }
            Kind::Store { keys } if class == 0 => get(index as u64, keys),
            Kind::Store { keys } => range(index as u64, keys),
        };
        let planned = |(index, arrival): (usize, &shinjuku_workload::Arrival)| {
            (*arrival, work(index, arrival.class, arrival.service_ns))
        };
        schedule
            .arrivals()
            .iter()
            .enumerate()
            .map(planned)
            .collect()
    }
}

/// A multiplier that visits keys out of order.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

fn get(index: u64, keys: u64) -> Work {
    Work::Get {
        key: index.wrapping_mul(SCATTER) % keys,
    }
}

fn range(index: u64, keys: u64) -> Work {
    Work::Range {
        from: index.wrapping_mul(SCATTER) % keys,
        count: RANGE_KEYS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_of_several_classes_are_about_their_short_requests() {
        let leading = |name| BenchMix::spinning(name).unwrap().leading_class();
        for name in ["hi", "mid", "tri", "tpcc"] {
            assert_eq!(leading(name), Leading::Short, "{name}");
        }
        for name in ["exp", "fixed", "lognormal"] {
            assert_eq!(leading(name), Leading::All, "{name}");
        }
    }
}
