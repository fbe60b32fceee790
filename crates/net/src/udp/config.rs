//! What a UDP transport is told at start, and what can be wrong with it.

use std::net::SocketAddr;

use crate::wire::{RackSchedConfig, RackSchedMessage, ReassemblyConfig};
use crate::{ListenError, OutOfRange};

/// The longest payload that fits an IPv4 datagram: 65,535 bytes without the IP header (20) and the
/// UDP header (8).
pub const LONGEST_DATAGRAM: usize = 65_507;
/// Addresses that one transport listens on, at the most.
pub const MOST_ADDRESSES: usize = 16;

/// Settings of a [`Udp`](super::Udp) transport; checked by [`Udp::bind`](super::Udp::bind).
#[derive(Clone, Debug)]
#[must_use]
pub struct UdpConfig {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) reply_from: Vec<SocketAddr>,
    pub(super) buffers: usize,
    pub(super) max_datagram: usize,
    pub(super) batch: usize,
    pub(super) receive_buffer: Option<usize>,
    pub(super) reuse_port: bool,
    /// In microseconds.
    pub(super) busy_poll: Option<u32>,
    pub(super) racksched: Option<RackSchedConfig>,
}

impl UdpConfig {
    /// Listens on `listen` (port 0: one that the kernel picks), with 1024 buffers of 2048 bytes, in
    /// batches of 8.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen: vec![listen],
            reply_from: Vec::new(),
            buffers: 1024,
            max_datagram: 2048,
            batch: 8,
            receive_buffer: None,
            reuse_port: false,
            busy_poll: None,
            racksched: None,
        }
    }

    /// Listens on this address, too; [`MOST_ADDRESSES`] in all. Every further one costs every poll
    /// a system call.
    pub fn and_listen(mut self, listen: SocketAddr) -> Self {
        self.listen.push(listen);
        self
    }

    /// Replies to what came to each address leave from another one, in the same order: as many as
    /// there are to listen on. The original RackSched's servers do so: requests to the ports from
    /// 1234 on, replies from 11234 on. What is sent to these addresses is never read. Left out,
    /// replies leave from the address that was asked.
    pub fn reply_from(self, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            reply_from: addresses.into_iter().collect(),
            ..self
        }
    }

    setters! {
        /// How many requests can be held at once, from receipt until the reply has left: the number
        /// of packet buffers, 1 to 2^20. Should exceed what the runtime admits plus what it has
        /// started, or the kernel queues the rest.
        buffers: usize;
        /// The longest request and the longest reply, in bytes, 1 to [`LONGEST_DATAGRAM`]. Every
        /// buffer is this long. Longer requests are dropped and counted, never handed on in part.
        max_datagram: usize;
        /// The most datagrams one poll takes, 1 to 1024. Meanwhile no request is dispatched or
        /// preempted: at roughly half a microsecond each, keep it well below the quantum's worth.
        batch: usize;
        /// The kernel's queue before the transport, in bytes (`SO_RCVBUF`). The kernel silently
        /// grants no more than `net.core.rmem_max`;
        /// [`Udp::receive_buffer`](super::Udp::receive_buffer) tells what is in force.
        receive_buffer: usize;
        /// Lets several sockets of this user share the address (`SO_REUSEPORT`); the kernel spreads
        /// flows over them.
        reuse_port: bool;
        /// Has the kernel look at the network card's queue itself for so many microseconds when a
        /// socket has nothing (`SO_BUSY_POLL`), instead of waiting for the card's interrupt: less
        /// latency, for a core that is busy anyway. Drivers without it, the loopback interface
        /// among them, ignore it. More than `net.core.busy_read` needs CAP_NET_ADMIN.
        busy_poll: u32;
    }

    /// Speaks RackSched's format ([`RackSchedMessage`]) on all addresses: requests of several
    /// packets are put together within these bounds, of which `max_request` must not exceed
    /// `max_datagram`. Packets that are none of a request are dropped and counted. A reply that
    /// begins as these messages do, an echo for instance, leaves as one of kind reply, with the
    /// number of requests of its class that the server still has. `classes`, 1 to 1024: those of
    /// the runtime.
    pub fn racksched(self, classes: usize, reassembly: ReassemblyConfig) -> Self {
        let racksched = RackSchedConfig::new(classes, reassembly);
        Self {
            racksched: Some(racksched),
            ..self
        }
    }

    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        let in_range = OutOfRange::check;
        in_range(
            "the number of addresses",
            self.listen.len(),
            1,
            MOST_ADDRESSES,
        )?;
        if !self.reply_from.is_empty() {
            let (replies, listen) = (self.reply_from.len(), self.listen.len());
            in_range("the number of reply addresses", replies, listen, listen)?;
        }
        in_range("buffers", self.buffers, 1, 1 << 20)?;
        in_range("max_datagram", self.max_datagram, 1, LONGEST_DATAGRAM)?;
        in_range("batch", self.batch, 1, 1024)?;
        in_range(
            "receive_buffer",
            self.receive_buffer.unwrap_or(1),
            1,
            i32::MAX as usize,
        )?;
        in_range(
            "busy_poll",
            self.busy_poll.unwrap_or(0) as usize,
            0,
            i32::MAX as usize,
        )?;
        if let Some(RackSchedConfig {
            classes,
            reassembly,
        }) = self.racksched
        {
            in_range("racksched's classes", classes, 1, 1024)?;
            reassembly.check()?;
            in_range(
                "reassembly's max_request",
                reassembly.max_request,
                RackSchedMessage::LENGTH,
                self.max_datagram,
            )?;
        }
        Ok(())
    }
}

/// Why a UDP transport did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// A setting is out of its range.
    #[error("UDP: {0}")]
    Setting(OutOfRange),
    /// An address cannot be listened on.
    #[error("UDP: {0}")]
    Listen(ListenError),
}

impl From<OutOfRange> for UdpError {
    fn from(cause: OutOfRange) -> Self {
        Self::Setting(cause)
    }
}

impl From<ListenError> for UdpError {
    fn from(cause: ListenError) -> Self {
        Self::Listen(cause)
    }
}
