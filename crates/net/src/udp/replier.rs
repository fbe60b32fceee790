//! The worker's side: one system call a reply.

use std::net::UdpSocket;
use std::sync::Arc;

use rustix::net::SendFlags;

use super::counters::{Counters, count};
use super::datagram::DatagramReply;
use super::load::Load;
use super::racksched;
use super::route::UdpRoute;
use crate::Replier;

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
    pub(super) load: Option<Arc<Load>>,
    pub(super) counters: Arc<Counters>,
}

impl Replier for UdpReplier {
    type Outgoing = Outgoing;

    /// Hands the reply to the kernel. What it cannot take at once is dropped and counted: UDP
    /// promises nothing, and a worker does not wait.
    fn send(&mut self, Outgoing { reply, route }: Outgoing) {
        let load = self.load.as_ref().map(|load| load.left(route.class));
        let Some(mut reply) = reply else {
            return count(&self.counters.output.unanswered);
        };
        if let Some(queue_length) = load {
            racksched::stamp(&mut reply, queue_length);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = self.sockets.get(route.socket).is_some_and(|socket| {
            let send = || rustix::net::sendto(socket, &reply, flags, &route.peer);
            rustix::io::retry_on_intr(send).is_ok()
        });
        count(if sent {
            &self.counters.output.sent
        } else {
            &self.counters.output.send_failed
        });
    }
}
