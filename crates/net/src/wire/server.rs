//! A server's part of RackSched, for any transport: it puts requests together, and its replies
//! tell how many requests of their class it still has.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Added, RackSchedMessage, Reassembly, ReassemblyConfig, ReassemblyCounters, Rejected};
use crate::OutOfRange;

/// Settings of a [`RackSched`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RackSchedConfig {
    /// The runtime's classes.
    pub classes: usize,
    /// Bounds for requests of several packets.
    pub reassembly: ReassemblyConfig,
}

impl RackSchedConfig {
    /// For a runtime with so many classes.
    #[must_use]
    pub const fn new(classes: usize, reassembly: ReassemblyConfig) -> Self {
        Self {
            classes,
            reassembly,
        }
    }
}

/// The side of a transport that receives. `Peer` is whatever it knows a sender by.
#[derive(Debug)]
pub struct RackSched<Peer> {
    reassembly: Reassembly<Peer>,
    load: RackSchedLoad,
}

impl<Peer: Copy + Eq + Hash> RackSched<Peer> {
    /// Takes all its memory.
    ///
    /// # Errors
    /// A bound of the reassembly out of its range.
    pub fn new(config: RackSchedConfig) -> Result<Self, OutOfRange> {
        Ok(Self {
            reassembly: Reassembly::new(config.reassembly)?,
            load: RackSchedLoad::new(config.classes),
        })
    }

    /// A packet has come: [`Reassembly::add`].
    ///
    /// # Errors
    /// Why the packet was dropped; it is counted.
    pub fn add(
        &mut self,
        now_nanos: u64,
        peer: Peer,
        packet: &[u8],
    ) -> Result<Added<'_>, Rejected> {
        self.reassembly.add(now_nanos, peer, packet)
    }

    /// Drops the requests whose time is over: [`Reassembly::expire`].
    pub fn expire(&mut self, now_nanos: u64) {
        self.reassembly.expire(now_nanos);
    }

    /// What became of the packets.
    #[must_use]
    pub fn counters(&self) -> ReassemblyCounters {
        self.reassembly.counters()
    }

    /// The requests there are, for those that hand them on, turn them away or answer them.
    #[must_use]
    pub const fn load(&self) -> &RackSchedLoad {
        &self.load
    }
}

/// How many requests the server has, by class: what its replies carry back. Clones share the
/// numbers.
#[derive(Clone, Debug)]
pub struct RackSchedLoad(Arc<[ClassLoad]>);

/// Two numbers that only grow: the networker's and the workers', on cache lines of their own.
#[derive(Default, Debug)]
struct ClassLoad {
    arrived: Line,
    left: Line,
}

#[derive(Default, Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

impl RackSchedLoad {
    fn new(classes: usize) -> Self {
        Self((0..classes).map(|_| ClassLoad::default()).collect())
    }

    /// A request of `class` is handed to the dispatcher. Others than those it was made for do not
    /// count.
    pub fn arrived(&self, class: u16) {
        if let Some(load) = self.0.get(usize::from(class)) {
            load.arrived.0.fetch_add(1, Relaxed);
        }
    }

    /// A request of `class` is answered or turned away: how many more of the class there are.
    pub fn left(&self, class: u16) -> u32 {
        let Some(load) = self.0.get(usize::from(class)) else {
            return 0;
        };
        let left = load.left.0.fetch_add(1, Relaxed) + 1;
        let there = load.arrived.0.load(Relaxed).saturating_sub(left);
        u32::try_from(there).unwrap_or(u32::MAX)
    }
}

impl RackSchedMessage {
    /// Makes a reply of what a handler answered, if that begins as RackSched's messages do (an echo
    /// does): one packet of this length, from a server that has `queue_length` more requests of the
    /// class.
    pub fn stamp(reply: &mut [u8], queue_length: u32) {
        let Ok((message, _)) = Self::parse(reply) else {
            return;
        };
        let message = Self {
            total_length: u32::try_from(reply.len()).unwrap_or(u32::MAX),
            ..message.reply(queue_length)
        };
        reply[..Self::LENGTH].copy_from_slice(&message.to_bytes());
    }
}
