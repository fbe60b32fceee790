//! What became of the packets.

use std::sync::Arc;

use super::Rejected;
use crate::counters::Counter;

/// A view of the counters of a [`Reassembly`](super::Reassembly), for any thread.
#[derive(Clone, Default, Debug)]
pub struct ReassemblyCounters(pub(super) Arc<Counters>);

impl ReassemblyCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> ReassemblyCounts {
        let mut counts = ReassemblyCounts::default();
        self.0.add_to(&mut counts);
        counts
    }
}

crate::counters! {
    /// What [`ReassemblyCounters::read`] saw, in packets where nothing else is said. When nothing
    /// is under way, all packets are `whole` + `assembled` + [`absorbed`](Self::absorbed).
    pub struct ReassemblyCounts {
        /// The thread that adds packets.
        by Counters {
            /// Requests of one packet.
            whole,
            /// Requests put together from several packets.
            assembled,
            /// The packets of those, but for the one of each that completed it.
            joined,
            /// Waiting for the rest of their requests.
            held,
            /// Dropped: the rest did not come in time.
            expired,
            /// Dropped: the table was full, and theirs was the oldest request in it.
            evicted,
            /// Dropped: [`Rejected::NotARequest`].
            not_a_request,
            /// Dropped: [`Rejected::Sequence`].
            sequence,
            /// Dropped: [`Rejected::Length`].
            length,
            /// Dropped: [`Rejected::TooLong`].
            too_long,
            /// Dropped: [`Rejected::Duplicate`].
            duplicate,
        }
    }
}

impl Counters {
    pub(super) fn rejected(&self, cause: Rejected) -> &Counter {
        match cause {
            Rejected::NotARequest => &self.not_a_request,
            Rejected::Sequence => &self.sequence,
            Rejected::Length => &self.length,
            Rejected::TooLong => &self.too_long,
            Rejected::Duplicate => &self.duplicate,
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
