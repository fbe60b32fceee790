//! The way back of a reply.

use std::net::SocketAddr;

/// Whom a reply goes to, and from which of the transport's sockets: a client takes it only from
/// where it sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpRoute {
    pub(super) peer: SocketAddr,
    /// Number of the socket.
    pub(super) socket: usize,
    /// Whose load it was.
    pub(super) class: u16,
}

impl UdpRoute {
    /// Who sent the request. Over UDP the sender's word for it.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}
