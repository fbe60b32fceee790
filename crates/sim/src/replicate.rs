//! Independent replications of a run over all cores, with confidence intervals.
//!
//! Replication `i` has a seed that depends only on `i` and the run's seed, and results are combined
//! in the order of `i`: the thread count changes only the time it takes. For the same reason,
//! replications up to a wanted precision run in rounds of a fixed size.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::source::replication_seed;
use crate::tally::{Figures, Measure, Tally};
use crate::{Estimate, SimError};

/// How many replications.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Until {
    /// This many.
    Replications(u32),
    /// Until the half-width of the 95 % interval of a measure over all requests is at most this
    /// share of the value, or [`MOST_REPLICATIONS`] have run.
    Precision {
        /// The share, for example 0.02.
        relative: f64,
        /// The figure whose interval counts.
        measure: Measure,
    },
}

/// The most replications that [`Until::Precision`] runs; the interval says what precision was
/// reached.
pub const MOST_REPLICATIONS: u32 = 256;

/// Replications of one round.
const ROUND: u32 = 8;

/// What several replications measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replicated {
    /// Per replication: figures of all requests.
    pub all: Vec<Figures>,
    /// Per replication: figures of each class.
    pub classes: Vec<Vec<Figures>>,
    /// Requests refused, over all replications.
    pub refused: u64,
    /// Events simulated, over all replications.
    pub events: u64,
    /// Preemptions, over all replications.
    pub preemptions: u64,
}

/// What one replication contributes.
pub struct Sample {
    /// Its sojourn times.
    pub tally: Tally,
    /// Events simulated.
    pub events: u64,
    /// Preemptions.
    pub preemptions: u64,
}

impl From<crate::scenario::Run> for Sample {
    fn from(run: crate::scenario::Run) -> Self {
        Self {
            tally: run.tally,
            events: run.events,
            preemptions: run.preemptions,
        }
    }
}

impl Replicated {
    /// A figure of all requests, or of one class, with its interval over the replications.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn estimate(&self, measure: Measure, class: Option<u16>) -> Estimate {
        Estimate::of(&self.values(measure, class))
    }

    /// The same of each replication.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn values(&self, measure: Measure, class: Option<u16>) -> Vec<f64> {
        match class {
            None => self.all.iter().map(|figures| measure.of(figures)).collect(),
            Some(class) => self
                .classes
                .iter()
                .map(|classes| &classes[usize::from(class)])
                // A replication in which no request of a rare class finished says nothing about
                // that class.
                .filter(|figures| figures.requests > 0)
                .map(|figures| measure.of(figures))
                .collect(),
        }
    }
}

/// Replicates `run`, which is given a seed, on rayon's threads. After each round, `progress` gets
/// how many replications are done, and how many are still expected.
///
/// # Errors
/// The first error, by the number of the replication; [`SimError::Parameter`] for no replications
/// or a precision that is not above zero.
pub fn replicate(
    run: impl Fn(u64) -> Result<Sample, SimError> + Sync,
    seed: u64,
    until: Until,
    mut progress: impl FnMut(u32, u32),
) -> Result<Replicated, SimError> {
    let mut result = Replicated {
        all: Vec::new(),
        classes: Vec::new(),
        refused: 0,
        events: 0,
        preemptions: 0,
    };
    let most = match until {
        Until::Replications(0) => {
            let expected = "at least one is needed";
            return Err(SimError::parameter("replications", 0, expected));
        }
        Until::Replications(count) => count,
        Until::Precision { relative, .. } if !(relative.is_finite() && relative > 0.0) => {
            let expected = "it must be a share above zero, like 0.02 or 2%";
            return Err(SimError::parameter("until-ci", relative, expected));
        }
        Until::Precision { .. } => MOST_REPLICATIONS,
    };
    let mut done = 0;
    while done < most {
        let round = ROUND.min(most - done);
        let samples: Vec<_> = (done..done + round)
            .into_par_iter()
            .map(|number| {
                let sample = run(replication_seed(seed, u64::from(number)))?;
                let tally = &sample.tally;
                let classes: Vec<_> = (0..tally.classes() as u16)
                    .map(|c| tally.class(c))
                    .collect();
                Ok::<_, SimError>((
                    tally.all(),
                    classes,
                    tally.refused(),
                    sample.events,
                    sample.preemptions,
                ))
            })
            .collect();
        for sample in samples {
            let (all, classes, refused, events, preemptions) = sample?;
            result.all.push(all);
            result.classes.push(classes);
            result.refused += refused;
            result.events += events;
            result.preemptions += preemptions;
        }
        done += round;
        let expected = match until {
            Until::Replications(count) => count,
            Until::Precision { relative, measure } => {
                let reached = result.estimate(measure, None).relative();
                if reached <= relative {
                    progress(done, done);
                    break;
                }
                // The half-width falls with the square root of the number.
                let factor = (reached / relative).powi(2).min(f64::from(most));
                ((f64::from(done) * factor).ceil() as u32)
                    .max(done + 1)
                    .min(most)
            }
        };
        progress(done, expected);
    }
    Ok(result)
}
