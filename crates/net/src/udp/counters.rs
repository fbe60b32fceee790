//! What a UDP transport counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
        let Counters { intake, output } = &*self.counters;
        UdpCounts {
            received: intake.received.load(Relaxed),
            truncated: intake.truncated.load(Relaxed),
            malformed: intake.malformed.load(Relaxed),
            refused: intake.refused.load(Relaxed),
            no_buffer: intake.no_buffer.load(Relaxed),
            receive_failed: intake.receive_failed.load(Relaxed),
            sent: output.sent.load(Relaxed),
            unanswered: output.unanswered.load(Relaxed),
            send_failed: output.send_failed.load(Relaxed),
            reassembly: self.reassembly.read(),
            free_buffers: self.pool.free(),
        }
    }
}

/// What [`UdpCounters::read`] saw. Once everything delivered is through, `received` = `truncated` +
/// `malformed` + `refused` + `sent` + `unanswered` + `send_failed`, and the packets that
/// `reassembly` has absorbed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct UdpCounts {
    /// Datagrams taken from the kernel, whatever became of them.
    pub received: u64,
    /// Dropped: longer than `max_datagram`.
    pub truncated: u64,
    /// Dropped: the classifier did not want them.
    pub malformed: u64,
    /// Turned away by the runtime, or come after [`close`](crate::Transport::close).
    pub refused: u64,
    /// How many times the buffers ran out. Meanwhile the kernel queues, and drops when its queue is
    /// full (the last column of `/proc/net/udp`).
    pub no_buffer: u64,
    /// Errors of the kernel on receiving.
    pub receive_failed: u64,
    /// Replies that the kernel took.
    pub sent: u64,
    /// Requests done without a reply: the handler gave none, or panicked.
    pub unanswered: u64,
    /// Replies that the kernel would not take: its send queue was full, or the peer's host
    /// unreachable.
    pub send_failed: u64,
    /// What became of the packets, if it speaks RackSched's format.
    pub reassembly: ReassemblyCounts,
    /// Buffers nobody uses at the moment, but for one that is kept ready for the next datagram.
    pub free_buffers: usize,
}

/// Two cache lines, so that dispatcher and workers do not take them from each other.
#[derive(Default, Debug)]
pub(super) struct Counters {
    pub(super) intake: Intake,
    pub(super) output: Output,
}

/// Written by the dispatcher's thread.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(super) struct Intake {
    pub(super) received: AtomicU64,
    pub(super) truncated: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) no_buffer: AtomicU64,
    pub(super) receive_failed: AtomicU64,
}

/// Written by the workers.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(super) struct Output {
    pub(super) sent: AtomicU64,
    pub(super) unanswered: AtomicU64,
    pub(super) send_failed: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
