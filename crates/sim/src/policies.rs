//! Which policy a simulated server runs: those of the runtime, two of TailGuard's, processor sharing, or your own.

use std::fmt;
use std::sync::Arc;

use shinjuku_policy::{
    CFcfs, ClassRule, ConfigError, DFcfs, MultiQueue, Nanos, Policy, SingleQueue, Stealing,
};
use shinjuku_workload::Mix;

use crate::SimError;

pub mod edf;
pub mod priority;
mod waiting;

/// Builds a policy of the user's: from capacity, number of workers and seed.
pub type Build =
    Arc<dyn Fn(usize, usize, u64) -> Result<Box<dyn Policy>, ConfigError> + Send + Sync>;

/// A policy to be built.
#[derive(Clone)]
pub enum PolicySpec {
    /// One queue, run to completion.
    CFcfs,
    /// A queue per worker by flow, run to completion.
    DFcfs,
    /// ZygOS's stealing, idealised.
    Stealing,
    /// One queue, one quantum (c-PRE-SQ).
    SingleQueue {
        /// The quantum.
        quantum: Nanos,
    },
    /// A queue per class (c-PRE-MQ).
    MultiQueue {
        /// SLO, quantum and place of the preempted, per class.
        rules: Vec<ClassRule>,
    },
    /// Earliest deadline first; see [`edf`].
    Edf {
        /// Deadline less arrival, per class, in ns.
        budgets_ns: Vec<i64>,
    },
    /// Strict priority by class; see [`priority`].
    Priority {
        /// Per class; lower goes first.
        priorities: Vec<u16>,
    },
    /// Ideal processor sharing over all cores: the limit of c-PRE-SQ with the quantum going to zero. Computed
    /// exactly; it has no dispatcher, so depth and overheads do not apply.
    Sharing,
    /// Ideal processor sharing, each core on its own, by flow.
    PartitionedSharing,
    /// A policy of your own.
    Custom {
        /// Its name in reports.
        name: String,
        /// Builds it.
        build: Build,
    },
}

impl PolicySpec {
    /// The names that [`named`](Self::named) knows.
    pub const NAMES: [&'static str; 7] = [
        "c-FCFS", "d-FCFS", "stealing", "c-PRE-SQ", "c-PRE-MQ", "PS", "d-PS",
    ];

    /// A policy by its name in the literature, whatever its case. MQ's SLOs are those of the mix's classes; a class
    /// without one counts as having ten times its mean service time.
    ///
    /// # Errors
    /// [`SimError::Parameter`] for another name.
    pub fn named(name: &str, mix: &Mix, quantum: Nanos) -> Result<Self, SimError> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "c-fcfs" => Self::CFcfs,
            "d-fcfs" => Self::DFcfs,
            "stealing" => Self::Stealing,
            "c-pre-sq" => Self::SingleQueue { quantum },
            "c-pre-mq" => Self::MultiQueue {
                rules: rules(mix, quantum),
            },
            "ps" => Self::Sharing,
            "d-ps" => Self::PartitionedSharing,
            _ => {
                return Err(SimError::parameter(
                    "policy",
                    format!("{name:?}"),
                    "it must be one of c-FCFS, d-FCFS, stealing, c-PRE-SQ, c-PRE-MQ, PS, d-PS",
                ));
            }
        })
    }

    /// Builds it; `None` for the two kinds of processor sharing, which no policy can express.
    pub(crate) fn build(
        &self,
        capacity: usize,
        workers: usize,
        seed: u64,
    ) -> Result<Option<Box<dyn Policy>>, SimError> {
        Ok(Some(match self {
            Self::CFcfs => Box::new(CFcfs::new(capacity)?),
            Self::DFcfs => Box::new(DFcfs::new(capacity, workers)?),
            Self::Stealing => Box::new(Stealing::new(capacity, workers, seed)?),
            Self::SingleQueue { quantum } => Box::new(SingleQueue::new(capacity, *quantum)?),
            Self::MultiQueue { rules } => Box::new(MultiQueue::new(capacity, rules)?),
            Self::Edf { budgets_ns } => Box::new(edf::Edf::new(capacity, budgets_ns)?),
            Self::Priority { priorities } => {
                Box::new(priority::Priority::new(capacity, priorities)?)
            }
            Self::Custom { build, .. } => build(capacity, workers, seed)?,
            Self::Sharing | Self::PartitionedSharing => return Ok(None),
        }))
    }
}

/// MQ's rule for each class of the mix, all with this quantum.
#[must_use]
pub fn rules(mix: &Mix, quantum: Nanos) -> Vec<ClassRule> {
    let rule = |class: &shinjuku_workload::Class| {
        let slo_ns = class
            .slo_us
            .map_or(10.0 * class.service.mean_ns(), |us| us * 1_000.0);
        ClassRule::new(Nanos((slo_ns.round() as u64).max(1)), quantum)
    };
    mix.classes().iter().map(rule).collect()
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CFcfs => formatter.write_str("c-FCFS"),
            Self::DFcfs => formatter.write_str("d-FCFS"),
            Self::Stealing => formatter.write_str("stealing"),
            Self::SingleQueue { quantum } => write!(formatter, "c-PRE-SQ({quantum})"),
            Self::MultiQueue { .. } => formatter.write_str("c-PRE-MQ"),
            Self::Edf { .. } => formatter.write_str("EDF"),
            Self::Priority { .. } => formatter.write_str("priority"),
            Self::Sharing => formatter.write_str("PS"),
            Self::PartitionedSharing => formatter.write_str("d-PS"),
            Self::Custom { name, .. } => formatter.write_str(name),
        }
    }
}

impl fmt::Debug for PolicySpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PolicySpec({self})")
    }
}
