//! What an interface counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Cause;

/// A view of an interface's counters, for any thread; see [`Interface::counters`](super::Interface::counters).
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
    /// ARP answers that were waited for.
    pub arp_learnt: u64,
    /// Frames dropped, by [`Cause::index`].
    pub dropped: [u64; Cause::COUNT],
}

impl InterfaceCounts {
    /// How many frames were dropped for `cause`.
    #[must_use]
    pub fn dropped_for(&self, cause: Cause) -> u64 {
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
    pub(super) dropped: [Counter; Cause::COUNT],
}

/// A counter with one writer, which so needs no locked instruction.
#[derive(Default, Debug)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed) + count, Relaxed);
    }

    pub(super) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
