//! What an interface and its dataplane count, and in words.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use shinjuku_net::counters::Counter;
use shinjuku_net::wire::{ReassemblyCounters, ReassemblyCounts};

use crate::DropReason;

/// A view of an interface's counters, for any thread; see
/// [`Interface::counters`](crate::Interface::counters).
#[derive(Clone, Debug)]
pub struct InterfaceCounters(pub(crate) Arc<Counters>);

impl InterfaceCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> InterfaceCounts {
        let dropped = &self.0.dropped;
        let mut counts = InterfaceCounts {
            dropped: std::array::from_fn(|cause| dropped[cause].read()),
            ..InterfaceCounts::default()
        };
        self.0.taken.add_to(&mut counts);
        counts
    }
}

/// Written by the thread that polls the device.
#[derive(Default, Debug)]
pub(crate) struct Counters {
    pub(crate) taken: Taken,
    pub(crate) dropped: [Counter; DropReason::COUNT],
}

shinjuku_net::counters! {
    /// What [`InterfaceCounters::read`] saw. `received` is the sum of all others.
    pub struct InterfaceCounts {
        /// The thread that polls the device.
        by Taken {
            /// Frames that came in.
            received,
            /// UDP datagrams for one of the interface's ports.
            delivered,
            /// ARP requests that were answered.
            arp_answered,
            /// Echo requests that were answered.
            echo_answered,
            /// ARP messages, except requests for us, from stations that were asked for or are
            /// known.
            arp_learnt,
        }
        and {
            /// Frames dropped, by [`DropReason::index`].
            dropped: [u64; DropReason::COUNT],
        }
    }
}

impl InterfaceCounts {
    /// How many frames were dropped for `cause`.
    #[must_use]
    pub fn dropped_for(&self, cause: DropReason) -> u64 {
        self.dropped[cause.index()]
    }
}

/// A view of a dataplane's counters, for any thread; see
/// [`Dataplane::counters`](crate::Dataplane::counters).
#[derive(Clone, Debug)]
pub struct DataplaneCounters {
    pub(crate) interface: InterfaceCounters,
    pub(crate) transport: Arc<TransportCounters>,
    pub(crate) reassembly: ReassemblyCounters,
}

impl DataplaneCounters {
    /// The numbers now. Each is exact, but they are not read in one instant.
    #[must_use]
    pub fn read(&self) -> DataplaneCounts {
        let mut counts = DataplaneCounts {
            interface: self.interface.read(),
            reassembly: self.reassembly.read(),
            ..DataplaneCounts::default()
        };
        self.transport.networker.add_to(&mut counts);
        self.transport.workers.add_to(&mut counts);
        counts
    }
}

#[derive(Default, Debug)]
pub(crate) struct TransportCounters {
    pub(crate) networker: NetworkerCounters,
    pub(crate) workers: WorkerCounters,
    /// Of the workers' rings, so many at most have ever been used.
    pub(crate) repliers_in_use: AtomicUsize,
}

shinjuku_net::counters! {
    /// What [`DataplaneCounters::read`] saw. Once everything delivered is through,
    /// `interface.delivered` = `malformed` + `refused` + `replies` + `unanswered` + `unsendable` +
    /// `unfit`, and the packets that `reassembly` has absorbed.
    pub struct DataplaneCounts {
        /// The thread that polls the device.
        by NetworkerCounters {
            /// Dropped: the classifier called them malformed.
            malformed = "requests dropped as malformed",
            /// Turned away by the runtime, or come after
            /// [`close`](shinjuku_net::Transport::close).
            refused = "requests refused",
            /// How many times as many buffers were out as can be. Meanwhile the device queues, and
            /// drops when its queue is full.
            no_buffer = "times without a free buffer",
            /// Replies that came from the workers.
            replies,
            /// Frames that the device took: replies, and answers to ARP and echo requests.
            transmitted,
            /// Answers to ARP and echo requests that were dropped, since the device had no room.
            answers_dropped = "ARP or echo answers dropped",
            /// Requests of several packets that were dropped when complete: longer than the
            /// device's buffers.
            unfit = "requests dropped as longer than a buffer",
            /// Buffers that were out after the last poll.
            out = "buffers still out",
        }
        /// All workers.
        by WorkerCounters {
            /// Requests done without a reply: the handler gave none, or panicked.
            unanswered = "requests done without a reply",
            /// Replies that were not sent: made of another request's datagram.
            unsendable = "replies that could not be sent",
        }
        and {
            /// What the stack counted.
            interface: InterfaceCounts,
            /// What became of the packets, if it speaks RackSched's format.
            reassembly: ReassemblyCounts,
        }
    }
}

/// One line for the frames, and one for each cause that frames were dropped for or requests not
/// answered, if there is any.
impl fmt::Display for DataplaneCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InterfaceCounts {
            received,
            delivered,
            arp_answered,
            echo_answered,
            arp_learnt,
            ..
        } = self.interface;
        write!(
            formatter,
            "frames: {received} received, {} sent; {delivered} requests, {} replies; {arp_answered} ARP requests and \
             {echo_answered} echo requests answered, {arp_learnt} stations learnt",
            self.transmitted, self.replies,
        )?;
        for cause in DropReason::all() {
            let dropped = self.interface.dropped_for(cause);
            if dropped > 0 {
                write!(formatter, "\n{dropped} frames dropped: {cause}")?;
            }
        }
        let incomplete = self.reassembly.dropped();
        if incomplete > 0 {
            write!(
                formatter,
                "\n{incomplete} packets of incomplete requests dropped"
            )?;
        }
        self.write_counts(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_words_leave_nothing_out() {
        let mut one = DataplaneCounts::default();
        one.interface.received = 7;
        one.interface.dropped[DropReason::ClosedPort.index()] = 2;
        one.reassembly.expired = 1;
        one.no_buffer = 3;
        let both: DataplaneCounts = [one, one].into_iter().sum();
        let text = both.to_string();
        for part in [
            "14 received",
            "4 frames dropped: the interface does not listen on its port",
            "2 packets of incomplete requests",
            "6 times without",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(text.lines().count(), 4);
        assert_eq!(DataplaneCounts::default().to_string().lines().count(), 1);
    }
}
