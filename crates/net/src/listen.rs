//! Sockets that listen, for UDP and TCP, and why one could not be had.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// What the two transports' sockets have in common.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) kind: SocketType,
    pub(crate) flags: SocketFlags,
    pub(crate) reuse_port: bool,
    /// In microseconds.
    pub(crate) busy_poll: Option<u32>,
}

/// A socket bound to `listen`. `set` is for further options: the kernel looks at some when binding,
/// so they must be set before, which the standard library's sockets do not allow.
pub(crate) fn bound(
    listen: SocketAddr,
    options: Options,
    set: impl FnOnce(&OwnedFd) -> Result<(), ListenError>,
) -> Result<OwnedFd, ListenError> {
    let failed = |action| move |error: Errno| ListenError::system(action, listen, error.into());
    let family = if listen.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = rustix::net::socket_with(family, options.kind, options.flags, None)
        .map_err(failed("open a socket"))?;
    if options.reuse_port {
        sockopt::set_socket_reuseport(&socket, true).map_err(failed("set SO_REUSEPORT"))?;
    }
    if let Some(micros) = options.busy_poll {
        socket2::SockRef::from(&socket)
            .set_busy_poll(micros)
            .map_err(|cause| ListenError::BusyPoll { listen, cause })?;
    }
    set(&socket)?;
    rustix::net::bind(&socket, &listen).map_err(|error| ListenError::bind(listen, error.into()))?;
    Ok(socket)
}

/// Why a transport cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ListenError {
    /// The kernel refused to poll the network card.
    #[error(
        "busy polling (SO_BUSY_POLL) was refused for {listen}: {cause}; give the program CAP_NET_ADMIN, or raise \
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
        "cannot listen on {listen}: the address is in use; stop the other server, choose another port, \
         or set reuse_port on both"
    )]
    AddressInUse {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// This user may not have the port.
    #[error(
        "cannot listen on {listen}: permission denied; choose a port of 1024 or above, or give the program \
         CAP_NET_BIND_SERVICE"
    )]
    PermissionDenied {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// The machine does not have the address.
    #[error(
        "cannot listen on {listen}: this machine has no such address; choose one of its own, or 0.0.0.0 or \
         [::] for all of them"
    )]
    AddressNotAvailable {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// The process, or the machine, has as many files open as it may.
    #[error("cannot {action} for {listen}: {cause}; raise `ulimit -n`")]
    TooManyFiles {
        action: &'static str,
        /// Where it should have listened.
        listen: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The operating system refused for another reason.
    #[error("cannot {action} for {listen}: {cause}")]
    System {
        action: &'static str,
        /// Where it should have listened.
        listen: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
}

impl ListenError {
    /// Why `listen` could not be bound.
    pub(crate) fn bind(listen: SocketAddr, cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { listen },
            io::ErrorKind::PermissionDenied => Self::PermissionDenied { listen },
            io::ErrorKind::AddrNotAvailable => Self::AddressNotAvailable { listen },
            _ => Self::system("bind a socket", listen, cause),
        }
    }

    /// Why the operating system did not do `action`.
    pub(crate) fn system(action: &'static str, listen: SocketAddr, cause: io::Error) -> Self {
        let full = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        if full.contains(&cause.raw_os_error()) {
            Self::TooManyFiles {
                action,
                listen,
                cause,
            }
        } else {
            Self::System {
                action,
                listen,
                cause,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_told_with_the_address_and_a_remedy() {
        let listen: SocketAddr = "127.0.0.1:80".parse().unwrap();
        for (kind, says) in [
            (
                io::ErrorKind::AddrInUse,
                "the address is in use; stop the other server",
            ),
            (
                io::ErrorKind::PermissionDenied,
                "permission denied; choose a port of 1024 or above",
            ),
            (
                io::ErrorKind::AddrNotAvailable,
                "no such address; choose one of its own",
            ),
            (
                io::ErrorKind::OutOfMemory,
                "cannot bind a socket for 127.0.0.1:80: out of memory",
            ),
        ] {
            let error = ListenError::bind(listen, kind.into()).to_string();
            assert!(
                error.contains(says) && error.contains("127.0.0.1:80"),
                "{error}"
            );
        }
        let full = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        let error = ListenError::bind(listen, full).to_string();
        assert!(
            error.contains("raise `ulimit -n`") && error.contains("127.0.0.1:80"),
            "{error}"
        );
    }
}
