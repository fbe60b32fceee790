//! What a port and its devices count.

use std::iter::Sum;
use std::ops::Add;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use shinjuku_dpdk_sys::PortStatistics;

/// What [`Nic::counts`](super::Nic::counts) saw. Each number is exact, but they are not read in one instant.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct NicCounts {
    /// For each dispatcher's device.
    pub queues: Vec<QueueCounts>,
    /// The device's own counters since it was started; `None` if it does not tell, or is being reset.
    pub port: Option<PortStatistics>,
    /// How many times the link went up or down.
    pub link_changes: u64,
    /// How many times the kernel removed the interface that a virtual device is at. The device is made anew, as a reset, once
    /// it can be.
    pub losses: u64,
    /// How many times the device was reset.
    pub resets: u64,
    /// How many times a reset was tried and failed.
    pub failed_resets: u64,
}

impl NicCounts {
    /// All devices' together.
    #[must_use]
    pub fn sum(&self) -> QueueCounts {
        self.queues.iter().copied().sum()
    }
}

/// What one device counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Frames that came in on its own queue.
    pub received: u64,
    /// Frames that its own queue took over, those of devices without a queue among them.
    pub sent: u64,
    /// Frames received that were another dispatcher's, and handed on.
    pub handed_on: u64,
    /// Frames received that were another dispatcher's, and dropped, because that one did not keep up.
    pub handing_on_failed: u64,
    /// Frames received on a queue that others share, its own, and dropped, because its dispatcher did not keep up.
    pub overrun: u64,
    /// Frames that came from another dispatcher's queue.
    pub taken_over: u64,
    /// Times that the send queue was full and frames had to wait.
    pub send_queue_full: u64,
    /// Times that no mbuf was left to allocate.
    pub no_buffer: u64,
    /// Frames that came in several buffers or shared ones, and were dropped.
    pub unusable: u64,
    /// Frames to be sent that are longer than the port's MTU allows, or whose lengths contradict themselves, and were
    /// dropped.
    pub unsendable: u64,
}

impl Add for QueueCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            sent: self.sent + other.sent,
            handed_on: self.handed_on + other.handed_on,
            handing_on_failed: self.handing_on_failed + other.handing_on_failed,
            overrun: self.overrun + other.overrun,
            taken_over: self.taken_over + other.taken_over,
            send_queue_full: self.send_queue_full + other.send_queue_full,
            no_buffer: self.no_buffer + other.no_buffer,
            unusable: self.unusable + other.unusable,
            unsendable: self.unsendable + other.unsendable,
        }
    }
}

impl Sum for QueueCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

/// A device's, written by its thread alone.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(super) struct QueueCounters {
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) handed_on: AtomicU64,
    pub(super) handing_on_failed: AtomicU64,
    pub(super) overrun: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) send_queue_full: AtomicU64,
    pub(super) no_buffer: AtomicU64,
    pub(super) unusable: AtomicU64,
    pub(super) unsendable: AtomicU64,
}

/// Adds to a counter that has no other writer.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.store(counter.load(Relaxed) + count as u64, Relaxed);
}

impl QueueCounters {
    pub(super) fn read(&self) -> QueueCounts {
        QueueCounts {
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            handed_on: self.handed_on.load(Relaxed),
            handing_on_failed: self.handing_on_failed.load(Relaxed),
            overrun: self.overrun.load(Relaxed),
            taken_over: self.taken_over.load(Relaxed),
            send_queue_full: self.send_queue_full.load(Relaxed),
            no_buffer: self.no_buffer.load(Relaxed),
            unusable: self.unusable.load(Relaxed),
            unsendable: self.unsendable.load(Relaxed),
        }
    }
}

/// The port's, written by whoever looks after it.
#[derive(Default, Debug)]
pub(super) struct PortCounters {
    pub(super) up: AtomicBool,
    pub(super) link_changes: AtomicU64,
    pub(super) losses: AtomicU64,
    pub(super) resets: AtomicU64,
    pub(super) failed_resets: AtomicU64,
}
