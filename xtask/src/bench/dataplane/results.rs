//! What was measured, as it stands in results.json.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shinjuku_workload::repeat::{PairedRatio, Spread};

use super::dispatchers::Dispatchers;
use super::imbalance::Imbalances;
use super::reply_sizes::ReplySizes;
use super::round_trips::RoundTrips;
use super::stages::Stages;
use crate::bench::kv::results::{Comparison, Target};
use crate::machine::Machine;

/// Version of the format.
pub const SCHEMA: u32 = 2;

/// Confidence of each bound of a ratio.
const CONFIDENCE: f64 = 0.95;

/// A whole run. A part that was not measured is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When, UTC.
    pub stamp: String,
    /// The commit.
    pub commit: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// The server's core and the client's; what takes one thread is on the second.
    pub cores: [usize; 2],
    /// Repetitions of each figure.
    pub repetitions: u32,
    /// Seconds of one repetition.
    pub seconds: f64,
    /// libdpdk's version, where it is there.
    pub dpdk: Option<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// One thread, from the bare device to the runtime.
    pub stages: Option<Stages>,
    /// Two processes, one request at a time.
    pub round_trips: Option<RoundTrips>,
    /// Replies of more and more bytes.
    pub reply_sizes: Option<ReplySizes>,
    /// Two dispatchers beside one.
    pub dispatchers: Option<Dispatchers>,
    /// How evenly flows are spread over two dispatchers.
    pub imbalance: Option<Imbalances>,
}

impl Results {
    /// Writes them as JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_string_pretty(self).context("results cannot be written as JSON")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A contender's repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs<T> {
    /// The contender.
    pub name: String,
    /// One after the other; `None` where one failed.
    pub runs: Vec<Option<T>>,
}

impl<T> Runs<T> {
    /// None yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            runs: Vec::new(),
        }
    }

    /// Those that did not fail.
    pub fn measured(&self) -> impl Iterator<Item = &T> {
        self.runs.iter().flatten()
    }

    /// A figure over the repetitions; `None` if there are none.
    pub fn spread(&self, value: impl Fn(&T) -> Option<f64>) -> Option<Spread> {
        let values: Vec<f64> = self.measured().filter_map(value).collect();
        Spread::of(&values)
    }

    /// A figure of this one over that of `under`, repetition by repetition.
    pub fn compare(
        &self,
        under: &Self,
        what: impl Into<String>,
        target: Option<Target>,
        value: impl Fn(&T) -> Option<f64>,
    ) -> Comparison {
        let both = self.runs.iter().zip(&under.runs);
        let both = both.filter_map(|(own, other)| own.as_ref().zip(other.as_ref()));
        let pairs: Vec<_> = both
            .filter_map(|(own, other)| value(own).zip(value(other)))
            .collect();
        Comparison {
            what: what.into(),
            over: self.name.clone(),
            under: under.name.clone(),
            pairs: pairs.len(),
            ratio: PairedRatio::of(&pairs, CONFIDENCE),
            target,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(name: &str, runs: &[Option<f64>]) -> Runs<f64> {
        Runs {
            name: name.to_owned(),
            runs: runs.to_vec(),
        }
    }

    #[test]
    fn a_failed_repetition_shifts_no_pair() {
        let own = runs("own", &[Some(2.0), None, Some(9.0)]);
        let other = runs("other", &[Some(1.0), Some(100.0), Some(3.0)]);
        let target = Some(Target::AtMost(2.4));
        let compared = own.compare(&other, "time", target, |value| Some(*value));
        assert_eq!((compared.pairs, compared.met()), (2, Some(false)));
        assert_eq!(compared.ratio.unwrap().ratio.median, 2.5);
        assert_eq!(own.spread(|value| Some(*value)).unwrap().median, 5.5);
    }

    #[test]
    fn without_repetitions_nothing_is_claimed() {
        let none = runs("none", &[None, None]);
        assert_eq!(none.spread(|value| Some(*value)), None);
        let target = Some(Target::AtLeast(1.0));
        let compared = none.compare(&none, "rate", target, |value| Some(*value));
        assert_eq!((compared.pairs, compared.met()), (0, None));
    }
}
