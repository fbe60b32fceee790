//! Opening a socket.
//!
//! Options that the kernel looks at when binding must be set before, which the standard library's
//! sockets do not allow.

use std::net::{SocketAddr, UdpSocket};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::config::{UdpConfig, UdpError};

/// A socket bound to `listen`, as `config` wants it.
pub(super) fn open(config: &UdpConfig, listen: SocketAddr) -> Result<UdpSocket, UdpError> {
    let failed = |action| move |error: Errno| UdpError::system(action, listen, error.into());
    let family = if listen.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(failed("open a socket"))?;
    if let Some(bytes) = config.receive_buffer {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)
            .map_err(failed("set the receive buffer"))?;
    }
    if config.reuse_port {
        sockopt::set_socket_reuseport(&socket, true).map_err(failed("set SO_REUSEPORT"))?;
    }
    if let Some(micros) = config.busy_poll {
        socket2::SockRef::from(&socket)
            .set_busy_poll(micros)
            .map_err(|cause| UdpError::BusyPoll { listen, cause })?;
    }
    rustix::net::bind(&socket, &listen).map_err(|error| UdpError::bind(listen, error.into()))?;
    Ok(UdpSocket::from(socket))
}
