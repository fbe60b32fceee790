//! What can go wrong before, or instead of, a measurement.

use std::net::SocketAddr;
use std::path::PathBuf;

use shinjuku_workload::WorkloadError;

/// A load that cannot be generated; the message says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A setting that does not go with the others.
    #[error("{key}: {what}")]
    Setting {
        /// Which.
        key: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A plan that cannot be understood.
    #[error("{path}: {cause}", path = path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// What, with line and key.
        cause: toml::de::Error,
    },
    /// A value of a plan that is out of its range.
    #[error("{path}:{line}: {key}: {what}", path = path.display())]
    PlanSetting {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
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
    /// Not one connection.
    #[error("cannot connect to {target}: {cause}; is the server running?")]
    Connect {
        /// The server.
        target: SocketAddr,
        /// Why.
        cause: std::io::Error,
    },
    /// The operating system refuses something.
    #[error("cannot {action}: {cause}")]
    System {
        /// What.
        action: &'static str,
        /// Why.
        cause: std::io::Error,
    },
    /// A core that this process may not use.
    #[error("core {core} is not among those this process may use: {allowed}")]
    Core {
        /// The core.
        core: usize,
        /// Those it may use.
        allowed: String,
    },
    /// The arrivals cannot be drawn.
    #[error("arrivals: {0}")]
    Workload(#[from] WorkloadError),
    /// A thread of the generator panicked.
    #[error("a thread of the load generator panicked: a defect of its own")]
    Panicked,
}
