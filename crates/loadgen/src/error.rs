//! Errors before, or instead of, a measurement.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use shinjuku_dataplane::InterfaceError;
use shinjuku_workload::WorkloadError;

/// A load that cannot be generated; the message says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum LoadError {
    /// A setting that conflicts with the others.
    #[error("{key}: {what}")]
    Setting {
        key: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A plan that cannot be understood.
    #[error("{path}: {cause}", path = path.display())]
    Plan {
        path: PathBuf,
        /// The cause, with line and key.
        cause: toml::de::Error,
    },
    /// A value of a plan that is out of its range.
    #[error("{path}:{line}: {key}: {what}", path = path.display())]
    PlanSetting {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        key: &'static str,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Read {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// No connection could be opened.
    #[error("cannot connect to {target}: {cause}; is the server running?")]
    Connect {
        target: SocketAddr,
        cause: std::io::Error,
    },
    /// The device cannot be had.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// The client's place in the network cannot be had.
    #[error("address: {0}")]
    Place(InterfaceError),
    /// The device has no link.
    #[error(
        "{device} has no link after 10 s: is the other end there? (Of a memif, the server first; it makes the socket.)"
    )]
    NoLink { device: String },
    /// No host answers for the server's address.
    #[error(
        "no host on {device} answers ARP for {server} within 10 s: is the server running there, and is the address its own? \
         For one in another net, set gateway"
    )]
    Unreachable { server: Ipv4Addr, device: String },
    /// `stop` was set during the wait for the link or the server.
    #[error("interrupted before the server was reached")]
    Interrupted,
    /// The operating system refused something.
    #[error("cannot {action}: {cause}")]
    System {
        action: &'static str,
        cause: std::io::Error,
    },
    /// A core that this process may not use.
    #[error("core {core} is not among those this process may use: {allowed}")]
    Core {
        core: usize,
        /// The cores that the process may use.
        allowed: String,
    },
    /// The arrivals cannot be drawn.
    #[error("arrivals: {0}")]
    Workload(WorkloadError),
    /// A thread of the generator panicked.
    #[error("a thread of the load generator panicked: a defect of its own")]
    Panicked,
}

impl From<InterfaceError> for LoadError {
    fn from(cause: InterfaceError) -> Self {
        Self::Place(cause)
    }
}

impl From<WorkloadError> for LoadError {
    fn from(cause: WorkloadError) -> Self {
        Self::Workload(cause)
    }
}

impl LoadError {
    #[cfg(any(feature = "dpdk", feature = "xdp"))]
    pub(crate) fn device(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Device(Box::new(cause))
    }
}
