//! What a UDP transport counts.

use std::sync::Arc;

use super::pool::Pool;
use crate::wire::{ReassemblyCounters, ReassemblyCounts};

/// A view of a running transport's counters, for any thread; see
/// [`Udp::counters`](super::Udp::counters).
#[derive(Clone, Debug)]
pub struct UdpCounters {
    pub(super) counters: Arc<Counters>,
    pub(super) reassembly: ReassemblyCounters,
    pub(super) pool: Arc<Pool>,
}

impl UdpCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> UdpCounts {
        let mut counts = UdpCounts {
            reassembly: self.reassembly.read(),
            free_buffers: self.pool.free(),
            ..UdpCounts::default()
        };
        self.counters.intake.add_to(&mut counts);
        self.counters.output.add_to(&mut counts);
        counts
    }
}

#[derive(Default, Debug)]
pub(super) struct Counters {
    pub(super) intake: Intake,
    pub(super) output: Output,
}

crate::counters! {
    /// What [`UdpCounters::read`] saw. Once everything delivered is through, `received` =
    /// `truncated` + `malformed` + `refused` + `sent` + `unanswered` + `send_failed`, and the
    /// packets that `reassembly` has absorbed.
    pub struct UdpCounts {
        /// The dispatcher's thread, or the networker's.
        by Intake {
            /// Datagrams taken from the kernel, whatever became of them.
            received,
            /// Dropped: longer than `max_datagram`.
            truncated,
            /// Dropped: the classifier did not want them.
            malformed,
            /// Turned away by the runtime, or come after [`close`](crate::Transport::close).
            refused,
            /// How many times the buffers ran out. Meanwhile the kernel queues, and drops when its
            /// queue is full (the last column of `/proc/net/udp`).
            no_buffer,
            /// Errors of the kernel on receiving.
            receive_failed,
        }
        /// All workers.
        by Output {
            /// Replies that the kernel took.
            sent,
            /// Requests done without a reply: the handler gave none, or panicked.
            unanswered,
            /// Replies that the kernel would not take: its send queue was full, or the peer's host
            /// unreachable.
            send_failed,
        }
        and {
            /// What became of the packets, if it speaks RackSched's format.
            reassembly: ReassemblyCounts,
            /// Buffers that are free at the moment, but for one that is kept ready for the next
            /// datagram.
            free_buffers: usize,
        }
    }
}
