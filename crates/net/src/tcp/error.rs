//! Why a TCP transport did not start.

use std::io;
use std::net::SocketAddr;

/// Why [`Tcp::bind`](super::Tcp::bind) did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// A setting is out of its range.
    #[error("TCP: {setting} is {value}, but must be between {least} and {most}")]
    Setting {
        /// Its name in [`TcpConfig`](super::TcpConfig).
        setting: &'static str,
        /// What it was set to; times in microseconds.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// The process may not open so many files.
    #[error(
        "TCP: {connections} connections need as many file descriptors, but this process may have {limit}, {reserve} of \
         them for other things: raise the hard limit (`ulimit -Hn`, LimitNOFILE), or lower `connections`"
    )]
    TooFewDescriptors {
        /// What was asked for.
        connections: usize,
        /// The hard limit.
        limit: u64,
        /// What is left for the rest of the process.
        reserve: u64,
    },
    /// The kernel refused to poll the network card.
    #[error(
        "TCP: busy polling (SO_BUSY_POLL) was refused for {listen}: {cause}; give the program CAP_NET_ADMIN, or raise \
         net.core.busy_read to that value, or leave busy_poll out"
    )]
    BusyPoll {
        /// Where it should have listened.
        listen: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
    /// Another socket has the address.
    #[error(
        "TCP: cannot listen on {listen}: the address is in use; stop the other server, choose another port, \
         or set reuse_port on both"
    )]
    AddressInUse {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// This user may not have the port.
    #[error(
        "TCP: cannot listen on {listen}: permission denied; choose a port of 1024 or above, or give the program \
         CAP_NET_BIND_SERVICE"
    )]
    PermissionDenied {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// The machine does not have the address.
    #[error(
        "TCP: cannot listen on {listen}: this machine has no such address; choose one of its own, or 0.0.0.0 or \
         [::] for all of them"
    )]
    AddressNotAvailable {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// The operating system refused for another reason.
    #[error("TCP: cannot {action} for {listen}: {cause}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// Where it should have listened.
        listen: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
}

impl TcpError {
    /// Why `listen` could not be bound.
    pub(super) fn bind(listen: SocketAddr, cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { listen },
            io::ErrorKind::PermissionDenied => Self::PermissionDenied { listen },
            io::ErrorKind::AddrNotAvailable => Self::AddressNotAvailable { listen },
            _ => Self::System {
                action: "bind a socket",
                listen,
                cause,
            },
        }
    }
}
