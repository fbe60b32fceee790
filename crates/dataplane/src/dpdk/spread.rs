//! Spreading frames over dispatchers where the device does not.
//!
//! ```text
//!              frames of other dispatchers                     frames to send, from those without a queue
//!   queue 0 ──▶ device 0 ══▶ device 1                queue 0 ◀── device 0 ◀══ device 2
//!   queue 1 ──▶ device 1 ══▶ device 0, 2             queue 1 ◀── device 1
//! ```
//!
//! A double arrow is a ring with one sender and one receiver, the two devices' threads. A device
//! with a queue keeps its own frames apart, too: those that its dispatcher has no room for must not
//! hold up the others'.

use std::collections::VecDeque;

use rtrb::{Consumer, Producer, RingBuffer};
use serde::Deserialize;
use shinjuku_dpdk_sys::Mbuf;

use crate::packet::{Ethernet, Ipv4, ethernet, ipv4};

/// Frames that a ring between two devices holds.
const SLOTS: usize = 512;

/// What spreads requests over the dispatchers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// The device if it can, else software.
    #[default]
    Auto,
    /// The device, or the sender: frames stay on the queue that they come in on.
    Device,
    /// A hash of the sender's address and port, in software. What is neither UDP nor IPv4 goes to
    /// the first.
    Software,
}

/// A device's place among the others.
#[derive(Debug)]
pub(super) struct SoftwareRss {
    /// To each of the others, where this one has a queue to receive from.
    to: Vec<Option<Producer<Mbuf>>>,
    /// Came in here, and stays here.
    own: VecDeque<Mbuf>,
    /// From each of the others that have a queue.
    from: Vec<Consumer<Mbuf>>,
    /// Which of these has its turn; behind them, `own`.
    turn: usize,
}

/// What became of a frame that came in.
pub(super) enum Hop {
    Kept,
    Gone,
    /// Dropped: this device does not keep up.
    Overrun,
    /// Dropped: the other device does not keep up.
    Full,
}

/// A frame for this device's dispatcher.
pub(super) enum Taken {
    Own(Mbuf),
    Others(Mbuf),
}

impl SoftwareRss {
    /// For `dispatchers` devices of which the first `queues` have one.
    pub(super) fn new(dispatchers: usize, queues: usize) -> Vec<Self> {
        let mut all: Vec<Self> = (0..dispatchers)
            .map(|place| Self {
                to: (0..dispatchers).map(|_| None).collect(),
                own: VecDeque::with_capacity(if place < queues { SLOTS } else { 0 }),
                from: Vec::new(),
                turn: 0,
            })
            .collect();
        for sender in 0..queues {
            for receiver in (0..dispatchers).filter(|&receiver| receiver != sender) {
                let (producer, consumer) = RingBuffer::new(SLOTS);
                all[sender].to[receiver] = Some(producer);
                all[receiver].from.push(consumer);
            }
        }
        all
    }

    /// Hands on a frame that came in here, or keeps it if it is for this device.
    pub(super) fn pass(&mut self, frame: Mbuf) -> Hop {
        let place = place(&frame, self.to.len());
        match &mut self.to[place] {
            Some(producer) => match producer.push(frame) {
                Ok(()) => Hop::Gone,
                Err(_) => Hop::Full,
            },
            None if self.own.len() < SLOTS => {
                self.own.push_back(frame);
                Hop::Kept
            }
            None => Hop::Overrun,
        }
    }

    /// Takes a frame that came in here, or that another device handed on; each source has its turn.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let sources = self.from.len() + 1;
        for _ in 0..sources {
            self.turn = (self.turn + 1) % sources;
            let taken = match self.from.get_mut(self.turn) {
                Some(other) => other.pop().ok().map(Taken::Others),
                None => self.own.pop_front().map(Taken::Own),
            };
            if taken.is_some() {
                return taken;
            }
        }
        None
    }
}

/// How a device sends.
#[derive(Default)]
pub(super) struct Detour {
    /// By way of another, as it has no queue.
    pub(super) out: Option<Producer<Mbuf>>,
    /// What these have to send, too.
    pub(super) others: Vec<Consumer<Mbuf>>,
}

/// For each device: those without a queue send by way of one that has a queue, device `i` by way of
/// `i % queues`.
pub(super) fn detours(dispatchers: usize, queues: usize) -> Vec<Detour> {
    let mut all: Vec<Detour> = (0..dispatchers).map(|_| Detour::default()).collect();
    for without in queues..dispatchers {
        let (producer, consumer) = RingBuffer::new(SLOTS);
        all[without].out = Some(producer);
        all[without % queues].others.push(consumer);
    }
    all
}

/// Which of `places` a frame goes to: that of its sender.
fn place(frame: &[u8], places: usize) -> usize {
    let hash = flow_hash(frame).unwrap_or(0);
    // The upper bits, not the remainder: within a dispatcher, requests may be spread again.
    ((u128::from(hash) * places as u128) >> 64) as usize
}

/// The same for all datagrams from one address and port to one port. `None`: it is none.
fn flow_hash(frame: &[u8]) -> Option<u64> {
    let ethernet = Ethernet::parse(frame).ok()?;
    if ethernet.ethertype != ethernet::IPV4 {
        return None;
    }
    let packet = Ipv4::parse(ethernet.payload).ok()?;
    if packet.header.protocol() != ipv4::UDP {
        return None;
    }
    let ports = u32::from_be_bytes(*packet.payload.first_chunk()?);
    let key = u64::from(packet.header.source().to_bits()) << 32 | u64::from(ports);
    // Stafford's mix 13, as in SplitMix64, but of a key that the flows of `Arrival` do not have.
    let key = key ^ 0x9e37_79b9_7f4a_7c15;
    let key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(key ^ key >> 31)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn frame(host: u8, port: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, host], [10, 0, 0, 1], 64)
            .udp(port, 9000)
            .write(&mut frame, &[host; 18])
            .unwrap();
        frame
    }

    #[test]
    fn flows_stay_together_and_spread_evenly() {
        for places in [2, 3, 8] {
            let mut counts = vec![0; places];
            for host in 2..12 {
                for port in 1000..1400 {
                    let place = place(&frame(host, port), places);
                    assert_eq!(place, super::place(&frame(host, port), places));
                    counts[place] += 1;
                }
            }
            let even = 4000 / places;
            // Five standard deviations of a fair spread.
            let slack = 5 * (even as f64).sqrt() as usize;
            assert!(
                counts
                    .iter()
                    .all(|&count| count > even - slack && count < even + slack),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn what_is_no_datagram_goes_to_the_first() {
        for length in 0..42 {
            place(&frame(9, 9)[..length], 4);
        }
        assert_eq!(place(&[0; 60], 4), 0);
        assert_eq!(place(&[], 4), 0);
    }
}
