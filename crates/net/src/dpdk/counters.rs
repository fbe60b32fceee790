//! What a port and its devices count.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use shinjuku_dpdk_sys::PortStatistics;

/// What [`Nic::counts`](super::Nic::counts) saw. Each number is exact, but they are not read in one
/// instant.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct NicCounts {
    /// For each dispatcher's device.
    pub queues: Vec<QueueCounts>,
    /// The device's own counters since it was started; `None` if it does not tell, or is being
    /// reset.
    pub port: Option<PortStatistics>,
    /// How many times the link went up or down.
    pub link_changes: u64,
    /// How many times the kernel removed the interface that a virtual device is at. The device is
    /// made anew, as a reset, once it can be.
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

/// One line for the frames of all queues, and one for each of the other counts, of the device's own
/// too, that is not zero.
impl fmt::Display for NicCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueCounts {
            received,
            sent,
            handed_on,
            handing_on_failed,
            overrun,
            taken_over,
            send_queue_full,
            no_buffer,
            unusable,
            unsendable,
        } = self.sum();
        write!(formatter, "queues: {received} frames received, {sent} sent")?;
        let port = self.port.unwrap_or_default();
        for (number, what) in [
            (handed_on, "frames handed on to another dispatcher"),
            (taken_over, "frames taken over from another dispatcher"),
            (
                handing_on_failed + overrun,
                "frames dropped, whose dispatcher did not keep up",
            ),
            (unusable, "frames dropped as in several buffers"),
            (
                unsendable,
                "frames dropped as too long to be sent, or too short",
            ),
            (send_queue_full, "times with a full send queue"),
            (no_buffer, "times without a free mbuf"),
            (port.received, "frames received, as the device counts"),
            (port.sent, "frames sent, as the device counts"),
            (port.missed, "frames missed by the device with full queues"),
            (port.receive_errors, "broken frames received by the device"),
            (port.send_errors, "frames not sent by the device"),
            (
                port.no_mbuf,
                "frames lost by the device for want of an mbuf",
            ),
            (self.link_changes, "times the link went up or down"),
            (self.losses, "times the interface was removed"),
            (self.resets, "resets"),
            (self.failed_resets, "resets that failed"),
        ] {
            if number > 0 {
                write!(formatter, "\n{number} {what}")?;
            }
        }
        Ok(())
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
    /// Frames received that were another dispatcher's, and dropped, because that one did not keep
    /// up.
    pub handing_on_failed: u64,
    /// Frames received on a queue that others share, its own, and dropped, because its dispatcher
    /// did not keep up.
    pub overrun: u64,
    /// Frames that came from another dispatcher's queue.
    pub taken_over: u64,
    /// Times that the send queue was full and frames had to wait.
    pub send_queue_full: u64,
    /// Times that no mbuf was left to allocate.
    pub no_buffer: u64,
    /// Frames that came in several buffers or shared ones, and were dropped.
    pub unusable: u64,
    /// Frames to be sent that are longer than the port's MTU allows, or whose lengths contradict
    /// themselves, and were dropped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_leave_out_zeros_alone() {
        let queue = QueueCounts {
            received: 1,
            sent: 2,
            handed_on: 3,
            handing_on_failed: 4,
            overrun: 5,
            taken_over: 6,
            send_queue_full: 7,
            no_buffer: 8,
            unusable: 9,
            unsendable: 10,
        };
        let mut counts = NicCounts {
            queues: vec![queue, queue],
            port: Some(PortStatistics::default()),
            link_changes: 11,
            losses: 12,
            resets: 13,
            failed_resets: 14,
        };
        let text = counts.to_string();
        assert!(text.starts_with("queues: 2 frames received, 4 sent\n"));
        for number in [6, 18, 12, 14, 16, 18, 20, 11, 12, 13, 14] {
            assert!(text.contains(&format!("\n{number} ")), "{text}");
        }
        assert_eq!(text.lines().count(), 12, "of the device none: {text}");
        if let Some(port) = &mut counts.port {
            port.missed = 99;
        }
        assert!(counts.to_string().contains("\n99 frames missed"));
        assert_eq!(NicCounts::default().to_string().lines().count(), 1);
    }
}
