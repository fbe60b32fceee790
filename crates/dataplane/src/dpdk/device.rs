//! One dispatcher's queue, as the dataplane wants it.

use std::sync::Arc;

use rtrb::{Consumer, Producer};
use shinjuku_dpdk_sys::{BURST, Checksum, Mbuf, Mempool, Queue};

use super::counters::QueueCounters;
use super::spread::{Hop, SoftwareRss, Taken};
use crate::packet::ethernet::Header;
use crate::{Buffer, Device, Offload, Outbound, Received, Room, VerifiedChecksums};

impl Buffer for Mbuf {
    #[inline]
    fn frame(&self) -> &[u8] {
        self
    }

    #[inline]
    fn frame_mut(&mut self) -> &mut [u8] {
        self
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.room()
    }

    #[inline]
    fn set_length(&mut self, length: usize) {
        // Not above the capacity, so there is room; and if not, no frame is longer than its buffer.
        let _ = self.set_len(length.min(self.room()));
    }
}

/// A receive and a send queue, and a pool of mbufs; or, where there are more dispatchers than
/// queues, a share of another's. Made by [`Nic::open`](super::Nic::open).
#[derive(Debug)]
pub struct DpdkDevice {
    // The pool is in `side`, dropped after these, so that what they hold is collected.
    /// Received, and about to be handed on.
    incoming: Vec<Mbuf>,
    /// Taken from the dataplane, and not yet in the send queue.
    outgoing: Vec<Mbuf>,
    rss: Option<SoftwareRss>,
    side: Side,
    /// For frames as long as the port was set up for.
    room: Room,
    counters: Arc<QueueCounters>,
}

/// How it reaches the network.
#[derive(Debug)]
pub(super) enum Side {
    /// By its own queue, by which it also sends what others have to send.
    Queue {
        queue: Queue,
        others: Vec<Consumer<Mbuf>>,
    },
    /// Through another device.
    Detour { pool: Mempool, out: Producer<Mbuf> },
}

impl DpdkDevice {
    pub(super) fn new(
        side: Side,
        rss: Option<SoftwareRss>,
        room: Room,
        counters: Arc<QueueCounters>,
    ) -> Self {
        Self {
            incoming: Vec::with_capacity(BURST),
            outgoing: Vec::with_capacity(BURST),
            rss,
            side,
            room,
            counters,
        }
    }

    /// Gives the send queue what waits for it.
    fn flush(&mut self) {
        let counters = &*self.counters;
        match &mut self.side {
            Side::Queue { queue, others } => {
                counters.sent.add(queue.send(&mut self.outgoing) as u64);
                for other in others {
                    while self.outgoing.len() < BURST
                        && let Ok(frame) = other.pop()
                    {
                        self.outgoing.push(frame);
                    }
                    counters.sent.add(queue.send(&mut self.outgoing) as u64);
                }
            }
            Side::Detour { out, .. } => {
                let room = out.slots().min(self.outgoing.len());
                for frame in self.outgoing.drain(..room) {
                    // There is room, and only this device fills the ring.
                    let _ = out.push(frame);
                }
            }
        }
        if !self.outgoing.is_empty() {
            counters.send_queue_full.count();
        }
    }

    /// Frames of its own queue into `incoming`, at most `most`.
    fn take_own(&mut self, most: usize) {
        match &mut self.side {
            Side::Queue { queue, .. } => {
                let count = queue.receive(&mut self.incoming, most);
                self.counters.received.add(count as u64);
                self.counters.unusable.set(queue.unusable());
            }
            Side::Detour { pool, .. } => {
                pool.collect(BURST);
            }
        }
    }
}

#[inline]
fn received(buffer: Mbuf) -> Received<Mbuf> {
    let verified = VerifiedChecksums {
        ipv4: buffer.ip_checksum() == Checksum::Good,
        udp: buffer.udp_checksum() == Checksum::Good,
    };
    Received { buffer, verified }
}

impl Device for DpdkDevice {
    type Buffer = Mbuf;

    fn offload(&self) -> Offload {
        let offers = match &self.side {
            Side::Queue { queue, .. } => queue.sends_checksums(),
            // Its frames would have to take along what is left to do; they are done here instead.
            Side::Detour { .. } => false,
        };
        Offload {
            ipv4: offers,
            udp: offers,
        }
    }

    fn room(&self) -> Room {
        self.room
    }

    fn receive(&mut self, most: usize, frames: &mut Vec<Received<Mbuf>>) {
        self.flush();
        if self.rss.is_none() {
            self.take_own(most);
            return frames.extend(self.incoming.drain(..).map(received));
        }
        // All that came, whatever the room here: others wait for theirs.
        self.take_own(BURST);
        let counters = &*self.counters;
        let Some(rss) = &mut self.rss else { return };
        for frame in self.incoming.drain(..) {
            match rss.pass(frame) {
                Hop::Kept => {}
                Hop::Gone => counters.handed_on.count(),
                Hop::Overrun => counters.overrun.count(),
                Hop::Full => counters.handing_on_failed.count(),
            }
        }
        for _ in 0..most {
            match rss.take() {
                Some(Taken::Own(frame)) => frames.push(received(frame)),
                Some(Taken::Others(frame)) => {
                    counters.taken_over.count();
                    frames.push(received(frame));
                }
                None => break,
            }
        }
    }

    fn transmit(&mut self, frames: &mut Vec<Outbound<Mbuf>>) {
        loop {
            let room = (BURST - self.outgoing.len()).min(frames.len());
            for Outbound {
                mut buffer,
                checksums,
            } in frames.drain(..room)
            {
                let offloaded = !(checksums.ipv4 || checksums.udp)
                    || buffer
                        .offload_checksums(
                            checksums.ethernet_length.into(),
                            checksums.ipv4_length.into(),
                        )
                        .is_ok();
                // Some drivers keep one that is too long at the head of their queue for good.
                let fits = (Header::LENGTH..=self.room.frame).contains(&buffer.len());
                if offloaded && fits {
                    self.outgoing.push(buffer);
                } else {
                    self.counters.unsendable.count();
                }
            }
            self.flush();
            if frames.is_empty() || !self.outgoing.is_empty() {
                return;
            }
        }
    }

    fn allocate(&mut self) -> Option<Mbuf> {
        let pool = match &mut self.side {
            Side::Queue { queue, .. } => queue.pool(),
            Side::Detour { pool, .. } => pool,
        };
        let buffer = pool.alloc();
        if buffer.is_none() {
            self.counters.no_buffer.count();
        }
        buffer
    }

    fn free(&mut self, buffer: Mbuf) {
        // Onto the list of its own pool, which need not be this device's.
        drop(buffer);
    }
}
