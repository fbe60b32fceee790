//! Counts of several dispatchers added up, and in words.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use super::{DataplaneCounts, DropReason, InterfaceCounts};

impl Add for InterfaceCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            delivered: self.delivered + other.delivered,
            arp_answered: self.arp_answered + other.arp_answered,
            echo_answered: self.echo_answered + other.echo_answered,
            arp_learnt: self.arp_learnt + other.arp_learnt,
            dropped: std::array::from_fn(|cause| self.dropped[cause] + other.dropped[cause]),
        }
    }
}

impl Add for DataplaneCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            interface: self.interface + other.interface,
            malformed: self.malformed + other.malformed,
            refused: self.refused + other.refused,
            no_buffer: self.no_buffer + other.no_buffer,
            replies: self.replies + other.replies,
            transmitted: self.transmitted + other.transmitted,
            answers_dropped: self.answers_dropped + other.answers_dropped,
            unfit: self.unfit + other.unfit,
            reassembly: self.reassembly + other.reassembly,
            unanswered: self.unanswered + other.unanswered,
            unsendable: self.unsendable + other.unsendable,
            out: self.out + other.out,
        }
    }
}

impl Sum for DataplaneCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
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
        for (number, what) in [
            (self.malformed, "requests dropped as malformed"),
            (self.refused, "requests refused"),
            (self.unfit, "requests dropped as longer than a buffer"),
            (
                self.reassembly.dropped(),
                "packets of incomplete requests dropped",
            ),
            (self.unanswered, "requests done without a reply"),
            (self.unsendable, "replies that could not be sent"),
            (self.answers_dropped, "ARP or echo answers dropped"),
            (self.no_buffer, "times without a free buffer"),
            (self.out, "buffers still out"),
        ] {
            if number > 0 {
                write!(formatter, "\n{number} {what}")?;
            }
        }
        Ok(())
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
            "4 frames dropped: nobody listens on its port",
            "2 packets of incomplete requests",
            "6 times without",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(text.lines().count(), 4);
        assert_eq!(DataplaneCounts::default().to_string().lines().count(), 1);
    }
}
