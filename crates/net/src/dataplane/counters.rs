//! What an interface and its dataplane count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::DropReason;
use crate::wire::{ReassemblyCounters, ReassemblyCounts};

/// A view of an interface's counters, for any thread; see
/// [`Interface::counters`](super::Interface::counters).
#[derive(Clone, Debug)]
pub struct InterfaceCounters(pub(super) Arc<Counters>);

impl InterfaceCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> InterfaceCounts {
        let Counters {
            received,
            delivered,
            arp_answered,
            echo_answered,
            arp_learnt,
            dropped,
        } = &*self.0;
        InterfaceCounts {
            received: received.read(),
            delivered: delivered.read(),
            arp_answered: arp_answered.read(),
            echo_answered: echo_answered.read(),
            arp_learnt: arp_learnt.read(),
            dropped: std::array::from_fn(|cause| dropped[cause].read()),
        }
    }
}

/// What [`InterfaceCounters::read`] saw. `received` is the sum of all others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct InterfaceCounts {
    /// Frames that came in.
    pub received: u64,
    /// UDP datagrams for one of the interface's ports.
    pub delivered: u64,
    /// ARP requests that were answered.
    pub arp_answered: u64,
    /// Echo requests that were answered.
    pub echo_answered: u64,
    /// ARP messages, but requests for us, from somebody who was asked for or is known.
    pub arp_learnt: u64,
    /// Frames dropped, by [`DropReason::index`].
    pub dropped: [u64; DropReason::COUNT],
}

impl InterfaceCounts {
    /// How many frames were dropped for `cause`.
    #[must_use]
    pub fn dropped_for(&self, cause: DropReason) -> u64 {
        self.dropped[cause.index()]
    }
}

/// Written by the thread that polls the device.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) received: Counter,
    pub(super) delivered: Counter,
    pub(super) arp_answered: Counter,
    pub(super) echo_answered: Counter,
    pub(super) arp_learnt: Counter,
    pub(super) dropped: [Counter; DropReason::COUNT],
}

/// A view of a dataplane's counters, for any thread; see
/// [`Dataplane::counters`](super::Dataplane::counters).
#[derive(Clone, Debug)]
pub struct DataplaneCounters {
    pub(super) interface: InterfaceCounters,
    pub(super) transport: Arc<TransportCounters>,
    pub(super) reassembly: ReassemblyCounters,
}

impl DataplaneCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> DataplaneCounts {
        let TransportCounters { networker, workers } = &*self.transport;
        DataplaneCounts {
            interface: self.interface.read(),
            malformed: networker.malformed.read(),
            refused: networker.refused.read(),
            no_buffer: networker.no_buffer.read(),
            replies: networker.replies.read(),
            transmitted: networker.transmitted.read(),
            answers_dropped: networker.answers_dropped.read(),
            unfit: networker.unfit.read(),
            reassembly: self.reassembly.read(),
            out: networker.out.read(),
            unanswered: workers.unanswered.load(Relaxed),
            unsendable: workers.unsendable.load(Relaxed),
        }
    }
}

/// What [`DataplaneCounters::read`] saw. Once everything delivered is through,
/// `interface.delivered` = `malformed` + `refused` + `replies` + `unanswered` + `unsendable` +
/// `unfit`, and the packets that `reassembly` has absorbed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DataplaneCounts {
    /// What the stack counted.
    pub interface: InterfaceCounts,
    /// Dropped: the classifier did not want them.
    pub malformed: u64,
    /// Turned away by the runtime, or come after [`close`](crate::Transport::close).
    pub refused: u64,
    /// How many times as many buffers were out as can be. Meanwhile the device queues, and drops
    /// when its queue is full.
    pub no_buffer: u64,
    /// Replies that came from the workers.
    pub replies: u64,
    /// Frames that the device took: replies, and answers to ARP and echo requests.
    pub transmitted: u64,
    /// Answers to ARP and echo requests that were dropped, since the device had no room.
    pub answers_dropped: u64,
    /// Requests of several packets that were dropped when complete: longer than the device's
    /// buffers.
    pub unfit: u64,
    /// What became of the packets, if it speaks RackSched's format.
    pub reassembly: ReassemblyCounts,
    /// Requests done without a reply: the handler gave none, or panicked.
    pub unanswered: u64,
    /// Replies that were not sent: made of another request's datagram.
    pub unsendable: u64,
    /// Buffers that were out after the last poll.
    pub out: u64,
}

/// Two cache lines, so that networker and workers do not take them from each other.
#[derive(Default, Debug)]
pub(super) struct TransportCounters {
    pub(super) networker: NetworkerCounters,
    pub(super) workers: WorkerCounters,
}

/// Written by the thread that polls the device.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(super) struct NetworkerCounters {
    pub(super) malformed: Counter,
    pub(super) refused: Counter,
    pub(super) no_buffer: Counter,
    pub(super) replies: Counter,
    pub(super) transmitted: Counter,
    pub(super) answers_dropped: Counter,
    pub(super) unfit: Counter,
    pub(super) out: Counter,
}

/// Written by the workers.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(super) struct WorkerCounters {
    pub(super) unanswered: AtomicU64,
    pub(super) unsendable: AtomicU64,
    /// Of the workers' rings, so many at most have ever been used.
    pub(super) repliers_in_use: AtomicUsize,
}

/// A counter with one writer, which so needs no locked instruction.
#[derive(Default, Debug)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed) + count, Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(super) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
