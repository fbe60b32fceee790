//! What a device counts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};

/// A view of a device's counters, for any thread; see
/// [`XdpDevice::counters`](super::XdpDevice::counters).
#[derive(Clone, Debug)]
pub struct XdpCounters(pub(super) Arc<Shared>);

/// What the device, its supervisor and the readers of their counters share.
#[derive(Default, Debug)]
pub(super) struct Shared {
    pub(super) link_up: AtomicBool,
    pub(super) counters: Counters,
}

impl XdpCounters {
    /// Whether there is a link, as of some tenths of a second ago.
    #[must_use]
    pub fn link_up(&self) -> bool {
        self.0.link_up.load(Acquire)
    }

    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> XdpCounts {
        let mut counts = XdpCounts::default();
        self.0.counters.add_to(&mut counts);
        counts
    }
}

shinjuku_net::counters! {
    /// What [`XdpCounters::read`] saw.
    pub struct XdpCounts {
        /// One writer each: the thread that polls the device, or the supervisor.
        by Counters {
            /// How many times the kernel removed the interface. There is none now if `returns` is
            /// less.
            losses = "times the interface was removed",
            /// How many times the device went on at another.
            returns = "times gone on at another",
            /// How many times it tried to in vain.
            failed_returns = "times tried to in vain",
            /// Frames to be sent that were dropped: there was no interface, or they were shorter
            /// than an Ethernet header.
            unsent = "frames dropped that were to be sent",
            /// How many times the link went up or down, or the interface was put up or down; as
            /// looked at ten times a second.
            link_changes,
            /// Times that the send queue was full and frames had to wait.
            send_queue_full = "times with a full send queue",
            /// Times that no frame was left to write to.
            no_buffer = "times without a free frame",
        }
    }
}

/// One line for the link, and one for each of the other counts that is not zero.
impl fmt::Display for XdpCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.link_changes;
        write!(formatter, "{changes} times the link went up or down")?;
        self.write_counts(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_leave_out_zeros_alone() {
        let counts = XdpCounts {
            losses: 1,
            returns: 2,
            failed_returns: 3,
            unsent: 4,
            link_changes: 5,
            send_queue_full: 6,
            no_buffer: 7,
        };
        let text = counts.to_string();
        assert_eq!(text.lines().count(), 7);
        for number in 1..=7 {
            let begins = |line: &str| line.starts_with(&format!("{number} "));
            assert!(text.lines().any(begins), "{text}");
        }
        assert_eq!(XdpCounts::default().to_string().lines().count(), 1);
    }
}
