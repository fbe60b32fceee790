//! The worker's side: one system call a reply.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use rustix::net::SendFlags;

use super::counters::Counters;
use super::datagram::DatagramReply;
use crate::Replier;
use crate::wire::{RackSchedLoad, RackSchedMessage};

/// The peer that a reply goes to, and the transport's socket that it leaves from: a client takes
/// replies only from the address that it sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpRoute {
    pub(super) peer: SocketAddr,
    /// Number of the socket.
    pub(super) socket: usize,
    /// The class whose load the request was part of.
    pub(super) class: u16,
}

impl UdpRoute {
    /// The address of the request's sender. Over UDP nothing proves it.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}

/// What a worker sends when a handler is done.
#[derive(Debug)]
pub struct Outgoing {
    pub(super) reply: Option<DatagramReply>,
    pub(super) route: UdpRoute,
}

/// A worker's way to the sockets.
#[derive(Debug)]
pub struct UdpReplier {
    pub(super) sockets: Arc<[UdpSocket]>,
    /// Where replies tell it.
    pub(super) load: Option<RackSchedLoad>,
    pub(super) counters: Arc<Counters>,
}

impl Replier for UdpReplier {
    type Outgoing = Outgoing;

    /// Hands the reply to the kernel. What it cannot take at once is dropped and counted: UDP
    /// promises nothing, and a worker does not wait.
    fn send(&mut self, Outgoing { reply, route }: Outgoing) {
        let load = self.load.as_ref().map(|load| load.left(route.class));
        let Some(mut reply) = reply else {
            return self.counters.output.unanswered.count_shared();
        };
        if let Some(queue_length) = load {
            RackSchedMessage::stamp(&mut reply, queue_length);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = self.sockets.get(route.socket).is_some_and(|socket| {
            let send = || rustix::net::sendto(socket, &reply, flags, &route.peer);
            rustix::io::retry_on_intr(send).is_ok()
        });
        let counter = if sent {
            &self.counters.output.sent
        } else {
            &self.counters.output.send_failed
        };
        counter.count_shared();
    }
}
