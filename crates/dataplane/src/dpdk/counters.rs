//! What a port and its devices count.

use std::fmt;
use std::sync::atomic::AtomicBool;

use shinjuku_dpdk_sys::PortStatistics;
use shinjuku_net::counters::Counter;

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
        let queues = self.sum();
        let QueueCounts { received, sent, .. } = queues;
        write!(formatter, "queues: {received} frames received, {sent} sent")?;
        queues.write_counts(formatter)?;
        let port = self.port.unwrap_or_default();
        for (number, what) in [
            (
                queues.handing_on_failed + queues.overrun,
                "frames dropped, whose dispatcher did not keep up",
            ),
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

shinjuku_net::counters! {
    /// What one device counted.
    pub struct QueueCounts {
        /// The device's thread.
        by QueueCounters {
            /// Frames that came in on its own queue.
            received,
            /// Frames that its own queue took over, those of devices without a queue among them.
            sent,
            /// Frames received that were another dispatcher's, and handed on.
            handed_on = "frames handed on to another dispatcher",
            /// Frames received that were another dispatcher's, and dropped, because that one did
            /// not keep up.
            handing_on_failed,
            /// Frames received on a queue that others share, its own, and dropped, because its
            /// dispatcher did not keep up.
            overrun,
            /// Frames that came from another dispatcher's queue.
            taken_over = "frames taken over from another dispatcher",
            /// Times that the send queue was full and frames had to wait.
            send_queue_full = "times with a full send queue",
            /// Times that no mbuf was left to allocate.
            no_buffer = "times without a free mbuf",
            /// Frames that came in several buffers or shared ones, and were dropped.
            unusable = "frames dropped as in several buffers",
            /// Frames to be sent that are longer than the port's MTU allows, or whose lengths
            /// contradict themselves, and were dropped.
            unsendable = "frames dropped as too long to be sent, or too short",
        }
    }
}

/// The port's counters, written by the thread that has its lock.
#[derive(Default, Debug)]
pub(super) struct PortCounters {
    pub(super) up: AtomicBool,
    pub(super) link_changes: Counter,
    pub(super) losses: Counter,
    pub(super) resets: Counter,
    pub(super) failed_resets: Counter,
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
