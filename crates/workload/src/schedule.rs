//! Schedules: all arrivals of a run, drawn before it starts, so that contenders meet the very same
//! requests.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::error::positive;
use crate::{Arrivals, Mix, WorkloadError};

/// One request to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// When it is sent, in ns from the start of the run.
    pub at_ns: u64,
    /// How long it runs undisturbed, in ns; at least 1.
    pub service_ns: u64,
    /// The flow (client connection) that it belongs to.
    pub flow: u32,
    /// Its class: an index into [`Mix::classes`].
    pub class: u16,
}

/// How much work is offered.
///
/// In a configuration file: `{ kind = "load", load = 0.7, workers = 2 }` or
/// `{ kind = "rate", per_second = 1e6 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Offered {
    /// A share of what the workers can do: rate x mean service time / workers. Above 1 they are
    /// overloaded.
    Load {
        /// The share.
        load: f64,
        /// The number of workers.
        workers: usize,
    },
    /// Requests per second, whatever the number of workers.
    Rate {
        /// The rate.
        per_second: f64,
    },
}

/// How long a schedule is.
///
/// In a configuration file: `{ requests = 1000 }` or `{ millis = 500 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Length {
    /// So many requests.
    Requests(usize),
    /// All requests sent within so many milliseconds from the start.
    Millis(u64),
}

impl Length {
    /// All requests sent within `duration`, rounded down to whole milliseconds.
    #[must_use]
    pub fn lasting(duration: Duration) -> Self {
        Self::Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

/// What a schedule is drawn from, besides the mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// How much work.
    pub offered: Offered,
    /// For how long.
    pub length: Length,
    /// The seed: same configuration, mix and seed, same schedule.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The number of flows; each request belongs to one of them, equally likely.
    #[serde(default = "default_flows")]
    pub flows: u32,
    /// The arrival process.
    #[serde(default = "Arrivals::poisson")]
    pub arrivals: Arrivals,
}

fn default_seed() -> u64 {
    1
}

fn default_flows() -> u32 {
    64
}

impl ScheduleConfig {
    /// Poisson arrivals of 64 flows, seed 1.
    #[must_use]
    pub fn new(offered: Offered, length: Length) -> Self {
        let arrivals = Arrivals::poisson();
        Self {
            offered,
            length,
            seed: default_seed(),
            flows: default_flows(),
            arrivals,
        }
    }

    /// [`new`](Self::new) with `load` of the capacity of `workers`.
    #[must_use]
    pub fn at_load(load: f64, workers: usize, length: Length) -> Self {
        Self::new(Offered::Load { load, workers }, length)
    }

    /// The same with another seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The same with another number of flows.
    #[must_use]
    pub fn with_flows(self, flows: u32) -> Self {
        Self { flows, ..self }
    }

    /// The same with another arrival process.
    #[must_use]
    pub fn with_arrivals(self, arrivals: Arrivals) -> Self {
        Self { arrivals, ..self }
    }
}

/// All arrivals of a run, in the order of their times.
///
/// Gaps, classes, service times and flows are drawn from four non-overlapping streams of random
/// numbers. So with the same seed, another load stretches the gaps and leaves the requests as they
/// are; another arrival process or number of flows leaves their classes and service times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    arrivals: Vec<Arrival>,
}

impl Schedule {
    /// The most arrivals a schedule may have (2.4 GB of them).
    pub const MAX_ARRIVALS: usize = 100_000_000;

    /// Draws a schedule.
    ///
    /// # Errors
    /// The load or rate is not finite and above zero, there are no workers, no flows or no
    /// requests, or more than [`MAX_ARRIVALS`](Self::MAX_ARRIVALS) requests are expected.
    pub fn generate(mix: &Mix, config: &ScheduleConfig) -> Result<Self, WorkloadError> {
        let at_least_one = |what, count: f64| {
            let expected = "at least one is needed";
            if count < 1.0 {
                Err(WorkloadError::Parameter {
                    what,
                    value: count,
                    expected,
                })
            } else {
                Ok(count)
            }
        };
        let mean_gap_ns = match config.offered {
            Offered::Load { load, workers } => {
                let workers = at_least_one("number of workers", workers as f64)?;
                mix.mean_ns() / (positive("load", load)? * workers)
            }
            Offered::Rate { per_second } => 1e9 / positive("requests per second", per_second)?,
        };
        at_least_one("number of flows", f64::from(config.flows))?;
        let expected = match config.length {
            Length::Requests(count) => count as f64,
            Length::Millis(millis) => millis as f64 * 1e6 / mean_gap_ns,
        };
        at_least_one("expected number of requests", expected)?;
        if expected > Self::MAX_ARRIVALS as f64 {
            let (what, limit) = ("requests of a schedule", Self::MAX_ARRIVALS);
            return Err(WorkloadError::TooMany {
                what,
                count: expected,
                limit,
            });
        }
        let (count, end_ns) = match config.length {
            Length::Requests(count) => (count, f64::INFINITY),
            Length::Millis(millis) => (Self::MAX_ARRIVALS, millis as f64 * 1e6),
        };

        let [
            mut for_gaps,
            mut for_classes,
            mut for_services,
            mut for_flows,
        ] = streams(config.seed);
        let mut gaps = config.arrivals.gaps(mean_gap_ns)?;
        // Room for a Poisson process's spread; a burstier process may reallocate.
        let mut arrivals = Vec::with_capacity((expected + 5.0 * expected.sqrt()) as usize);
        let mut at_ns = 0.0;
        while arrivals.len() < count {
            at_ns += gaps.next_gap_ns(&mut for_gaps);
            if at_ns > end_ns {
                break;
            }
            let class = mix.sample_class(&mut for_classes);
            let service = mix.classes()[usize::from(class)]
                .service
                .sample(&mut for_services);
            arrivals.push(Arrival {
                at_ns: at_ns.round() as u64,
                service_ns: (service.round() as u64).max(1),
                flow: for_flows.random_range(0..config.flows),
                class,
            });
        }
        Ok(Self { arrivals })
    }

    /// The arrivals, by time.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// When the last request is sent, in ns from the start; 0 if there is none.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        self.arrivals.last().map_or(0, |arrival| arrival.at_ns)
    }

    /// The load that was drawn: the sum of the service times over the workers' time until the last
    /// arrival. It differs from the load asked for, and more so if service times vary more. `None`
    /// if that time is zero.
    #[must_use]
    pub fn drawn_load(&self, workers: usize) -> Option<f64> {
        let work: f64 = self
            .arrivals
            .iter()
            .map(|arrival| arrival.service_ns as f64)
            .sum();
        let capacity = self.span_ns() as f64 * workers as f64;
        (capacity > 0.0).then(|| work / capacity)
    }
}

/// Four non-overlapping streams of random numbers, each of 2^128 numbers.
fn streams(seed: u64) -> [Xoshiro256PlusPlus; 4] {
    let mut next = Xoshiro256PlusPlus::seed_from_u64(seed);
    std::array::from_fn(|_| {
        let stream = next.clone();
        next.jump();
        stream
    })
}
