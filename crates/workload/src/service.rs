//! Service times: how long a request runs if nothing disturbs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::{Rng, RngExt};
use rand_distr::weighted::WeightedIndex;
use rand_distr::{Distribution, Exp, LogNormal, Pareto};
use serde::{Deserialize, Serialize};

use crate::WorkloadError;
use crate::error::fraction;
use crate::values_file::{self, Accept};

/// A distribution of service times, checked when built.
///
/// Parameters are in microseconds, the unit in which the literature states them; samples and
/// moments in nanoseconds.
///
/// In a configuration file it is a table whose `kind` names the distribution and whose other keys
/// are the parameters of the constructor of that name:
///
/// ```
/// # use shinjuku_workload::ServiceTime;
/// # #[derive(serde::Deserialize)] struct Plan { service: ServiceTime }
/// let plan: Plan = toml::from_str(r#"service = { kind = "exponential", mean_us = 1.0 }"#)?;
/// assert_eq!(plan.service.mean_ns(), 1_000.0);
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Spec", into = "Spec")]
pub struct ServiceTime {
    spec: Spec,
    law: Law,
    mean_ns: f64,
    second_moment: f64,
}

/// What a user writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Spec {
    Fixed {
        us: f64,
    },
    Exponential {
        mean_us: f64,
    },
    Lognormal {
        mean_us: f64,
        sd_us: f64,
    },
    Bimodal {
        short_us: f64,
        long_us: f64,
        long_fraction: f64,
    },
    Trimodal {
        values_us: [f64; 3],
    },
    Pareto {
        mean_us: f64,
        shape: f64,
    },
    // Braces, because serde lets a unit variant have unknown fields.
    Tpcc {},
    Zipf {
        values_us: Vec<f64>,
        exponent: f64,
    },
    Empirical {
        file: PathBuf,
    },
}

/// What is sampled, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
enum Law {
    Fixed(f64),
    Exponential(Exp<f64>),
    Lognormal(LogNormal<f64>),
    Pareto(Pareto<f64>),
    /// Some values, each with a weight.
    Discrete(Vec<f64>, WeightedIndex<f64>),
    /// Measured values, all equally likely; shared, because there may be millions.
    Empirical(Arc<[f64]>),
}

/// The five transactions of TPC-C as the literature times them: name, service time in us, share in
/// percent (Persephone, SOSP'21).
pub(crate) const TPCC: [(&str, f64, f64); 5] = [
    ("payment", 5.7, 44.0),
    ("order-status", 6.0, 4.0),
    ("new-order", 20.0, 44.0),
    ("delivery", 88.0, 4.0),
    ("stock-level", 100.0, 4.0),
];

impl ServiceTime {
    /// Always `us` microseconds.
    ///
    /// # Errors
    /// [`WorkloadError::Parameter`] if `us` is below 0.001 (1 ns) or above 1e9; so for every time
    /// below.
    pub fn fixed(us: f64) -> Result<Self, WorkloadError> {
        Spec::Fixed { us }.try_into()
    }

    /// Exponential with this mean.
    ///
    /// # Errors
    /// As [`ServiceTime::fixed`].
    pub fn exponential(mean_us: f64) -> Result<Self, WorkloadError> {
        Spec::Exponential { mean_us }.try_into()
    }

    /// Lognormal whose *value* (not its logarithm) has this mean and standard deviation.
    ///
    /// # Errors
    /// As [`ServiceTime::fixed`].
    pub fn lognormal(mean_us: f64, sd_us: f64) -> Result<Self, WorkloadError> {
        Spec::Lognormal { mean_us, sd_us }.try_into()
    }

    /// `long_us` for the fraction `long_fraction` of the requests, `short_us` for the rest.
    ///
    /// # Errors
    /// As [`ServiceTime::fixed`]; or `long_fraction` is not strictly between 0 and 1.
    pub fn bimodal(short_us: f64, long_us: f64, long_fraction: f64) -> Result<Self, WorkloadError> {
        Spec::Bimodal {
            short_us,
            long_us,
            long_fraction,
        }
        .try_into()
    }

    /// One of three values, each as likely as the others.
    ///
    /// # Errors
    /// As [`ServiceTime::fixed`].
    pub fn trimodal(values_us: [f64; 3]) -> Result<Self, WorkloadError> {
        Spec::Trimodal { values_us }.try_into()
    }

    /// Pareto (type I) with this mean and tail index. The variance is infinite for a `shape` of 2
    /// or less.
    ///
    /// # Errors
    /// As [`ServiceTime::fixed`]; or `shape` is not above 1 (there would be no mean).
    pub fn pareto(mean_us: f64, shape: f64) -> Result<Self, WorkloadError> {
        Spec::Pareto { mean_us, shape }.try_into()
    }

    /// The five transactions of TPC-C, each of fixed length, in the benchmark's shares;
    /// [`Mix::named`](crate::Mix::named)`("tpcc")` has them as classes.
    #[must_use]
    pub fn tpcc() -> Self {
        Spec::Tpcc {}.try_into().expect("the constants are valid")
    }

    /// One of `values_us`; the i-th, counted from 1, with a weight of `i` to the power of
    /// `-exponent`.
    ///
    /// # Errors
    /// As [`ServiceTime::fixed`]; or there are no values; or `exponent` is negative or not finite.
    pub fn zipf(values_us: Vec<f64>, exponent: f64) -> Result<Self, WorkloadError> {
        Spec::Zipf {
            values_us,
            exponent,
        }
        .try_into()
    }

    /// Values drawn, with replacement, from a file: a number of nanoseconds a line; blank lines and
    /// lines that start with `#` are skipped. A relative path starts at the working directory.
    ///
    /// # Errors
    /// The file cannot be read, has no values, or has a line that is not a number above zero and at
    /// most 1e18 (with file and line).
    pub fn empirical(file: impl Into<PathBuf>) -> Result<Self, WorkloadError> {
        Spec::Empirical { file: file.into() }.try_into()
    }

    /// The mean, in ns.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.mean_ns
    }

    /// The mean of the square, in ns²; infinite for a Pareto tail of 2 or less.
    #[must_use]
    pub fn second_moment(&self) -> f64 {
        self.second_moment
    }

    /// The squared coefficient of variation: variance over squared mean. 0 for fixed, 1 for
    /// exponential times.
    #[must_use]
    pub fn squared_variation(&self) -> f64 {
        squared_variation(self.mean_ns, self.second_moment)
    }

    /// A service time, in ns.
    pub fn sample<R: Rng + ?Sized>(&self, rng: &mut R) -> f64 {
        match &self.law {
            Law::Fixed(ns) => *ns,
            Law::Exponential(law) => law.sample(rng),
            Law::Lognormal(law) => law.sample(rng),
            Law::Pareto(law) => law.sample(rng),
            Law::Discrete(values, weights) => values[weights.sample(rng)],
            Law::Empirical(values) => values[rng.random_range(0..values.len())],
        }
    }
}

/// Variance over squared mean; rounding must not make it negative.
pub(crate) fn squared_variation(mean: f64, second_moment: f64) -> f64 {
    (second_moment / (mean * mean) - 1.0).max(0.0)
}

/// A law with its mean, ns, and its second moment, ns squared.
type Moments = (Law, f64, f64);

fn pareto(mean_us: f64, shape: f64) -> Result<Moments, WorkloadError> {
    let mean = nanos("mean_us", mean_us)?;
    if !(shape.is_finite() && shape > 1.0) {
        return Err(WorkloadError::Parameter {
            what: "shape",
            value: shape,
            expected: "it must be finite and above 1, or there is no mean",
        });
    }
    let least = mean * (shape - 1.0) / shape;
    let second = if shape > 2.0 {
        least * least * shape / (shape - 2.0)
    } else {
        f64::INFINITY
    };
    let law = Pareto::new(least, shape).expect("both are positive");
    Ok((Law::Pareto(law), mean, second))
}

fn zipf(values_us: &[f64], exponent: f64) -> Result<Moments, WorkloadError> {
    if !(exponent.is_finite() && exponent >= 0.0) {
        return Err(WorkloadError::Parameter {
            what: "exponent",
            value: exponent,
            expected: "it must be finite, zero or more",
        });
    }
    if values_us.is_empty() {
        return Err(WorkloadError::Empty { what: "values_us" });
    }
    let ranks = 1..=values_us.len();
    let weights: Vec<_> = ranks.map(|rank| (rank as f64).powf(-exponent)).collect();
    Ok(discrete(all_nanos(values_us)?, &weights))
}

fn empirical(file: &Path) -> Result<Moments, WorkloadError> {
    let values = values_file::read(file, Accept::Positive)?;
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let second = values.iter().map(|value| value * value).sum::<f64>() / count;
    Ok((Law::Empirical(values.into()), mean, second))
}

impl TryFrom<Spec> for ServiceTime {
    type Error = WorkloadError;

    fn try_from(spec: Spec) -> Result<Self, WorkloadError> {
        let (law, mean_ns, second_moment) = match &spec {
            Spec::Fixed { us } => {
                let ns = nanos("us", *us)?;
                (Law::Fixed(ns), ns, ns * ns)
            }
            Spec::Exponential { mean_us } => {
                let mean = nanos("mean_us", *mean_us)?;
                let law = Exp::new(1.0 / mean).expect("the rate is positive");
                (Law::Exponential(law), mean, 2.0 * mean * mean)
            }
            Spec::Lognormal { mean_us, sd_us } => {
                let mean = nanos("mean_us", *mean_us)?;
                let sd = nanos("sd_us", *sd_us)?;
                let law = LogNormal::from_mean_cv(mean, sd / mean).expect("both are positive");
                (Law::Lognormal(law), mean, mean * mean + sd * sd)
            }
            Spec::Bimodal {
                short_us,
                long_us,
                long_fraction,
            } => {
                let short = nanos("short_us", *short_us)?;
                let long = nanos("long_us", *long_us)?;
                let share = fraction("long_fraction", *long_fraction)?;
                discrete(vec![short, long], &[1.0 - share, share])
            }
            Spec::Trimodal { values_us } => discrete(all_nanos(values_us)?, &[1.0; 3]),
            Spec::Pareto { mean_us, shape } => pareto(*mean_us, *shape)?,
            Spec::Tpcc {} => discrete(
                all_nanos(&TPCC.map(|(_, us, _)| us))?,
                &TPCC.map(|(_, _, share)| share),
            ),
            Spec::Zipf {
                values_us,
                exponent,
            } => zipf(values_us, *exponent)?,
            Spec::Empirical { file } => empirical(file)?,
        };
        Ok(Self {
            spec,
            law,
            mean_ns,
            second_moment,
        })
    }
}

impl From<ServiceTime> for Spec {
    fn from(service: ServiceTime) -> Self {
        service.spec
    }
}

/// `us` microseconds in nanoseconds.
fn nanos(what: &'static str, us: f64) -> Result<f64, WorkloadError> {
    // Bounds, so that no moment overflows.
    if (1e-3..=1e9).contains(&us) {
        return Ok(us * 1_000.0);
    }
    let expected = "it must lie between 0.001 us (1 ns) and 1e9 us (17 minutes)";
    Err(WorkloadError::Parameter {
        what,
        value: us,
        expected,
    })
}

fn all_nanos(values_us: &[f64]) -> Result<Vec<f64>, WorkloadError> {
    values_us.iter().map(|&us| nanos("values_us", us)).collect()
}

/// The law of `values`, in ns, and its first two moments. The weights are positive, one a value.
fn discrete(values: Vec<f64>, weights: &[f64]) -> Moments {
    let total: f64 = weights.iter().sum();
    let moment = |power| {
        let terms = values
            .iter()
            .zip(weights)
            .map(|(value, weight)| weight * value.powi(power));
        terms.sum::<f64>() / total
    };
    let (mean, second) = (moment(1), moment(2));
    let picks = WeightedIndex::new(weights).expect("weights are positive");
    (Law::Discrete(values, picks), mean, second)
}
