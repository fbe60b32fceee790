//! The worker's side: one system call a reply.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use rustix::net::SendFlags;

use super::counters::{Counters, count};
use super::datagram::DatagramReply;
use crate::Replier;

/// What a worker sends when a handler is done.
#[derive(Debug)]
pub struct Outgoing {
    pub(super) reply: Option<DatagramReply>,
    pub(super) peer: SocketAddr,
}

/// A worker's way to the socket.
#[derive(Debug)]
pub struct UdpReplier {
    pub(super) socket: UdpSocket,
    pub(super) counters: Arc<Counters>,
}

impl Replier for UdpReplier {
    type Outgoing = Outgoing;

    /// Hands the reply to the kernel. What it cannot take at once is dropped and counted: UDP promises nothing, and a
    /// worker does not wait.
    fn send(&mut self, Outgoing { reply, peer }: Outgoing) {
        let Some(reply) = reply else {
            return count(&self.counters.output.unanswered);
        };
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendto(
                &self.socket,
                &reply,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                &peer,
            )
        });
        count(if sent.is_ok() {
            &self.counters.output.sent
        } else {
            &self.counters.output.send_failed
        });
    }
}
