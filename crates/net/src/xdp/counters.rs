//! What a device counts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// A view of a device's counters, for any thread; see
/// [`XdpDevice::counters`](super::XdpDevice::counters).
#[derive(Clone, Debug)]
pub struct XdpCounters(pub(super) Arc<Counters>);

impl XdpCounters {
    /// Whether there is a link, as of some tenths of a second ago.
    #[must_use]
    pub fn link_up(&self) -> bool {
        self.0.link_up.load(Acquire)
    }

    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> XdpCounts {
        XdpCounts {
            losses: self.0.losses.load(Relaxed),
            returns: self.0.returns.load(Relaxed),
            failed_returns: self.0.failed_returns.load(Relaxed),
            unsent: self.0.unsent.load(Relaxed),
            link_changes: self.0.link_changes.load(Relaxed),
            send_queue_full: self.0.send_queue_full.load(Relaxed),
            no_buffer: self.0.no_buffer.load(Relaxed),
        }
    }
}

/// What [`XdpCounters::read`] saw.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct XdpCounts {
    /// How many times the kernel removed the interface. There is none now if `returns` is less.
    pub losses: u64,
    /// How many times the device went on at another.
    pub returns: u64,
    /// How many times it tried to in vain.
    pub failed_returns: u64,
    /// Frames to be sent that were dropped: there was no interface, or they were shorter than an
    /// Ethernet header.
    pub unsent: u64,
    /// How many times the link went up or down, or the interface was put up or down; as looked at
    /// ten times a second.
    pub link_changes: u64,
    /// Times that the send queue was full and frames had to wait.
    pub send_queue_full: u64,
    /// Times that no frame was left to write to.
    pub no_buffer: u64,
}

/// One line for the link, and one for each of the other counts that is not zero.
impl fmt::Display for XdpCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            losses,
            returns,
            failed_returns,
            unsent,
            link_changes,
            send_queue_full,
            no_buffer,
        } = *self;
        write!(formatter, "{link_changes} times the link went up or down")?;
        for (number, what) in [
            (losses, "times the interface was removed"),
            (returns, "times gone on at another"),
            (failed_returns, "times tried to in vain"),
            (unsent, "frames dropped that were to be sent"),
            (send_queue_full, "times with a full send queue"),
            (no_buffer, "times without a free frame"),
        ] {
            if number > 0 {
                write!(formatter, "\n{number} {what}")?;
            }
        }
        Ok(())
    }
}

/// One writer each: the thread that polls the device, or the supervisor.
#[derive(Default, Debug)]
pub(super) struct Counters {
    pub(super) losses: AtomicU64,
    pub(super) returns: AtomicU64,
    pub(super) failed_returns: AtomicU64,
    pub(super) unsent: AtomicU64,
    pub(super) link_up: AtomicBool,
    pub(super) link_changes: AtomicU64,
    pub(super) send_queue_full: AtomicU64,
    pub(super) no_buffer: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
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
