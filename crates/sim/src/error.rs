//! What can be wrong with a simulation.

use std::path::PathBuf;

use shinjuku_policy::registry::UnknownPolicy;
use shinjuku_policy::{ParameterError, PolicyError};
use shinjuku_workload::WorkloadError;

/// A simulation that cannot be built, or whose policy broke its contract; the message says what to
/// do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The policy refuses its parameters.
    #[error("policy: {0}")]
    Policy(ParameterError),
    /// The policy broke its contract during the run.
    #[error("policy {policy} broke its contract: {error:?}")]
    Contract {
        /// Its name.
        policy: String,
        /// What it did.
        error: PolicyError,
    },
    /// The workload cannot be built.
    #[error("workload: {0}")]
    Workload(WorkloadError),
    /// A parameter outside its range.
    #[error("{what} is {value}: {expected}")]
    Parameter {
        /// Which parameter.
        what: &'static str,
        /// What it was.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A name that no policy has.
    #[error("{0}; besides, there are PS and d-PS")]
    UnknownPolicy(UnknownPolicy),
    /// A load at which queues grow without bound, in a run without an end.
    #[error("load {load} is 1 or more and the run has no end: give `requests`, or a load below 1")]
    Endless {
        /// The load.
        load: f64,
    },
    /// A plan that cannot be understood.
    #[error("{path}:{line}: {key}: {what}", path = path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A file of results without usable costs.
    #[error("{path}: {what}", path = path.display())]
    Costs {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl From<ParameterError> for SimError {
    fn from(cause: ParameterError) -> Self {
        Self::Policy(cause)
    }
}

impl From<UnknownPolicy> for SimError {
    fn from(cause: UnknownPolicy) -> Self {
        Self::UnknownPolicy(cause)
    }
}

impl From<WorkloadError> for SimError {
    fn from(cause: WorkloadError) -> Self {
        Self::Workload(cause)
    }
}

impl SimError {
    /// Refuses `value` for the parameter `what`.
    pub(crate) fn parameter(
        what: &'static str,
        value: impl ToString,
        expected: &'static str,
    ) -> Self {
        Self::Parameter {
            what,
            value: value.to_string(),
            expected,
        }
    }
}
