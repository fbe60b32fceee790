//! What became of the packets.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Rejected;

/// A view of the counters of a [`Reassembly`](super::Reassembly), for any thread.
#[derive(Clone, Default, Debug)]
pub struct ReassemblyCounters(pub(super) Arc<Counters>);

/// One writer.
#[derive(Default, Debug)]
pub(super) struct Counters {
    pub(super) whole: AtomicU64,
    pub(super) assembled: AtomicU64,
    pub(super) joined: AtomicU64,
    pub(super) held: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) rejected: [AtomicU64; Rejected::ALL.len()],
}

pub(super) fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(number), Relaxed);
}

impl ReassemblyCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> ReassemblyCounts {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let counters = &*self.0;
        let rejected = |cause: Rejected| read(&counters.rejected[cause as usize]);
        ReassemblyCounts {
            whole: read(&counters.whole),
            assembled: read(&counters.assembled),
            joined: read(&counters.joined),
            held: read(&counters.held),
            expired: read(&counters.expired),
            evicted: read(&counters.evicted),
            not_a_request: rejected(Rejected::NotARequest),
            sequence: rejected(Rejected::Sequence),
            length: rejected(Rejected::Length),
            too_long: rejected(Rejected::TooLong),
            duplicate: rejected(Rejected::Duplicate),
        }
    }
}

/// What [`ReassemblyCounters::read`] saw, in packets where nothing else is said. When nothing is
/// under way, all packets are `whole` + `assembled` + [`absorbed`](Self::absorbed).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ReassemblyCounts {
    /// Requests of one packet.
    pub whole: u64,
    /// Requests put together from several packets.
    pub assembled: u64,
    /// The packets of those, but for the one of each that completed it.
    pub joined: u64,
    /// Waiting for the rest of their requests.
    pub held: u64,
    /// Dropped: the rest did not come in time.
    pub expired: u64,
    /// Dropped: the table was full, and theirs was the oldest request in it.
    pub evicted: u64,
    /// Dropped: [`Rejected::NotARequest`].
    pub not_a_request: u64,
    /// Dropped: [`Rejected::Sequence`].
    pub sequence: u64,
    /// Dropped: [`Rejected::Length`].
    pub length: u64,
    /// Dropped: [`Rejected::TooLong`].
    pub too_long: u64,
    /// Dropped: [`Rejected::Duplicate`].
    pub duplicate: u64,
}

impl Add for ReassemblyCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            whole: self.whole + other.whole,
            assembled: self.assembled + other.assembled,
            joined: self.joined + other.joined,
            held: self.held + other.held,
            expired: self.expired + other.expired,
            evicted: self.evicted + other.evicted,
            not_a_request: self.not_a_request + other.not_a_request,
            sequence: self.sequence + other.sequence,
            length: self.length + other.length,
            too_long: self.too_long + other.too_long,
            duplicate: self.duplicate + other.duplicate,
        }
    }
}

impl ReassemblyCounts {
    /// Packets that made no request of their own: what was joined, is held, or was dropped.
    #[must_use]
    pub const fn absorbed(&self) -> u64 {
        self.joined + self.held + self.dropped()
    }

    /// Packets dropped, for whatever cause.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.expired
            + self.evicted
            + self.not_a_request
            + self.sequence
            + self.length
            + self.too_long
            + self.duplicate
    }
}
