//! RackSched's format over the sockets: requests of several packets, and replies that tell the
//! load.

use std::net::SocketAddr;
use std::sync::Arc;

use super::load::Load;
use crate::wire::{
    Added, RackSchedMessage, Reassembly, ReassemblyBound, ReassemblyConfig, ReassemblyCounters,
};

/// What [`UdpConfig::racksched`](super::UdpConfig::racksched) was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RackSchedConfig {
    pub(crate) classes: usize,
    pub(crate) reassembly: ReassemblyConfig,
}

/// The receiving side.
#[derive(Debug)]
pub(crate) struct RackSched {
    /// A peer is its address and the socket that it sent to.
    pub(crate) reassembly: Reassembly<(SocketAddr, usize)>,
    pub(crate) load: Arc<Load>,
}

impl RackSched {
    pub(crate) fn new(config: RackSchedConfig) -> Result<Self, ReassemblyBound> {
        Ok(Self {
            reassembly: Reassembly::new(config.reassembly)?,
            load: Arc::new(Load::new(config.classes)),
        })
    }

    pub(crate) fn counters(&self) -> ReassemblyCounters {
        self.reassembly.counters()
    }

    pub(crate) fn expire(&mut self, now_nanos: u64) {
        self.reassembly.expire(now_nanos);
    }

    /// The first `length` bytes of `buffer` have come. If that completes a request it is in the
    /// buffer, and this is its length.
    pub(crate) fn assemble(
        &mut self,
        now_nanos: u64,
        peer: SocketAddr,
        socket: usize,
        buffer: &mut [u8],
        length: usize,
    ) -> Option<usize> {
        let packet = &buffer[..length];
        match self.reassembly.add(now_nanos, (peer, socket), packet) {
            Ok(Added::Whole) => Some(length),
            Ok(Added::Complete(request)) => {
                request.copy_to(buffer);
                Some(request.length())
            }
            Ok(Added::Held) | Err(_) => None,
        }
    }
}

/// Makes a reply of what a handler answered, if it begins as RackSched's messages do (an echo
/// does): one packet of this length, from a server that has `queue_length` more requests of the
/// class.
pub(crate) fn stamp(reply: &mut [u8], queue_length: u32) {
    let Ok((message, _)) = RackSchedMessage::parse(reply) else {
        return;
    };
    let message = RackSchedMessage {
        total_length: u32::try_from(reply.len()).unwrap_or(u32::MAX),
        ..message.reply(queue_length)
    };
    reply[..RackSchedMessage::LENGTH].copy_from_slice(&message.to_bytes());
}
