//! Arrival processes: the gaps between one request and the next, whatever the server does (open
//! loop).

use std::path::PathBuf;
use std::sync::Arc;

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp1};
use serde::{Deserialize, Serialize};

use crate::WorkloadError;
use crate::error::{fraction, positive};
use crate::values_file::{self, Accept};

/// The shape of an arrival process, checked when built. [`gaps`](Arrivals::gaps) gives it a rate;
/// another rate stretches the very same gaps.
///
/// In a configuration file: `{ kind = "poisson" }`, `{ kind = "deterministic" }`,
/// `{ kind = "mmpp", rate_ratio = 10.0, burst_fraction = 0.1, burst_requests = 100.0 }`,
/// `{ kind = "trace", file = "gaps.txt" }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Spec", into = "Spec")]
pub struct Arrivals {
    spec: Spec,
    shape: Shape,
}

/// What a user writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Spec {
    // Braces, because serde lets a unit variant have unknown fields.
    Poisson {},
    Deterministic {},
    Mmpp {
        rate_ratio: f64,
        burst_fraction: f64,
        burst_requests: f64,
    },
    Trace {
        file: PathBuf,
    },
}

/// Gaps with a mean of one.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Poisson,
    Deterministic,
    Mmpp(Mmpp),
    Trace { gaps: Arc<[f64]>, mean_ns: f64 },
}

/// Rates are in arrivals per mean gap, stays in mean gaps.
#[derive(Clone, Debug, PartialEq)]
struct Mmpp {
    calm_rate: f64,
    burst_rate: f64,
    calm_stay: f64,
    burst_stay: f64,
    burst_fraction: f64,
}

impl Arrivals {
    /// Independent, exponential gaps.
    #[must_use]
    pub fn poisson() -> Self {
        Self {
            spec: Spec::Poisson {},
            shape: Shape::Poisson,
        }
    }

    /// Equal gaps.
    #[must_use]
    pub fn deterministic() -> Self {
        Self {
            spec: Spec::Deterministic {},
            shape: Shape::Deterministic,
        }
    }

    /// Bursts: a Poisson process whose rate changes between calm and burst (a two-state
    /// Markov-modulated Poisson process). In a burst it is `rate_ratio` times the calm rate; bursts
    /// take `burst_fraction` of the time and carry `burst_requests` requests each, in the mean.
    ///
    /// # Errors
    /// `rate_ratio` or `burst_requests` is below 1 or above 1e9, or `burst_fraction` not strictly
    /// between 0 and 1.
    pub fn mmpp(
        rate_ratio: f64,
        burst_fraction: f64,
        burst_requests: f64,
    ) -> Result<Self, WorkloadError> {
        Spec::Mmpp {
            rate_ratio,
            burst_fraction,
            burst_requests,
        }
        .try_into()
    }

    /// Gaps from a file, in order and from the start again at its end: a number of nanoseconds a
    /// line; blank lines and lines that start with `#` are skipped. A relative path starts at the
    /// working directory.
    ///
    /// # Errors
    /// The file cannot be read, has no gap above zero, or has a line that is not a number (with
    /// file and line).
    pub fn trace(file: impl Into<PathBuf>) -> Result<Self, WorkloadError> {
        Spec::Trace { file: file.into() }.try_into()
    }

    /// The mean gap that a trace was recorded with, in ns: the one to give to
    /// [`gaps`](Arrivals::gaps) to replay it as it was. `None` for the other processes.
    #[must_use]
    pub fn recorded_mean_gap_ns(&self) -> Option<f64> {
        match self.shape {
            Shape::Trace { mean_ns, .. } => Some(mean_ns),
            _ => None,
        }
    }

    /// The process at a rate: `mean_gap_ns` nanoseconds between arrivals, in the mean.
    ///
    /// # Errors
    /// [`WorkloadError::Parameter`] if `mean_gap_ns` is not finite and above zero.
    pub fn gaps(&self, mean_gap_ns: f64) -> Result<Gaps, WorkloadError> {
        let mean_gap_ns = positive("mean gap (ns)", mean_gap_ns)?;
        Ok(Gaps {
            shape: self.shape.clone(),
            mean_gap_ns,
            bursting: None,
            position: 0,
        })
    }
}

impl TryFrom<Spec> for Arrivals {
    type Error = WorkloadError;

    fn try_from(spec: Spec) -> Result<Self, WorkloadError> {
        let shape = match &spec {
            Spec::Poisson {} => Shape::Poisson,
            Spec::Deterministic {} => Shape::Deterministic,
            Spec::Mmpp {
                rate_ratio,
                burst_fraction,
                burst_requests,
            } => {
                let ratio = at_least_one("rate_ratio", *rate_ratio)?;
                let burst_fraction = fraction("burst_fraction", *burst_fraction)?;
                let requests = at_least_one("burst_requests", *burst_requests)?;
                let calm_rate = 1.0 / (1.0 - burst_fraction + ratio * burst_fraction);
                let burst_rate = ratio * calm_rate;
                let burst_stay = requests / burst_rate;
                let calm_stay = burst_stay * (1.0 - burst_fraction) / burst_fraction;
                Shape::Mmpp(Mmpp {
                    calm_rate,
                    burst_rate,
                    calm_stay,
                    burst_stay,
                    burst_fraction,
                })
            }
            Spec::Trace { file } => {
                let gaps = values_file::read(file, Accept::NonNegative)?;
                let mean_ns = gaps.iter().sum::<f64>() / gaps.len() as f64;
                positive("mean gap of the trace (ns)", mean_ns)?;
                Shape::Trace {
                    gaps: gaps.iter().map(|gap| gap / mean_ns).collect(),
                    mean_ns,
                }
            }
        };
        Ok(Self { spec, shape })
    }
}

/// Less than one makes no burst; a burst of a request or more bounds the changes of state per
/// arrival.
fn at_least_one(what: &'static str, value: f64) -> Result<f64, WorkloadError> {
    if (1.0..=1e9).contains(&value) {
        return Ok(value);
    }
    Err(WorkloadError::Parameter {
        what,
        value,
        expected: "it must lie between 1 and 1e9",
    })
}

impl From<Arrivals> for Spec {
    fn from(arrivals: Arrivals) -> Self {
        arrivals.spec
    }
}

/// The endless series of gaps of an arrival process at a rate.
#[derive(Clone, Debug)]
pub struct Gaps {
    shape: Shape,
    mean_gap_ns: f64,
    /// MMPP: whether a burst is on; drawn at the first gap, so that the process starts in its
    /// stationary state.
    bursting: Option<bool>,
    /// Trace: the next gap.
    position: usize,
}

impl Gaps {
    /// Time from one arrival (or the start) to the next, in ns.
    pub fn next_gap_ns<R: Rng + ?Sized>(&mut self, rng: &mut R) -> f64 {
        let gap = match &self.shape {
            Shape::Poisson => Exp1.sample(rng),
            Shape::Deterministic => 1.0,
            Shape::Mmpp(mmpp) => mmpp.next_gap(&mut self.bursting, rng),
            Shape::Trace { gaps, .. } => {
                let gap = gaps[self.position];
                self.position = (self.position + 1) % gaps.len();
                gap
            }
        };
        gap * self.mean_gap_ns
    }
}

impl Mmpp {
    /// The next arrival races the next change of state; a change that comes first adds to the gap.
    fn next_gap<R: Rng + ?Sized>(&self, bursting: &mut Option<bool>, rng: &mut R) -> f64 {
        let mut burst = bursting.unwrap_or_else(|| rng.random::<f64>() < self.burst_fraction);
        let mut gap = 0.0;
        loop {
            let (rate, stay) = if burst {
                (self.burst_rate, self.burst_stay)
            } else {
                (self.calm_rate, self.calm_stay)
            };
            let draw: f64 = Exp1.sample(rng);
            let arrival = draw / rate;
            let draw: f64 = Exp1.sample(rng);
            // Memoryless: what is left of the stay has the law of a whole stay.
            let change = draw * stay;
            if arrival <= change {
                *bursting = Some(burst);
                return gap + arrival;
            }
            gap += change;
            burst = !burst;
        }
    }
}
