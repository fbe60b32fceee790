//! A device and the stack above it as a transport.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rtrb::{Consumer, RingBuffer};

use super::counters::TransportCounters;
use super::lending::{Finished, Lender, Returned};
use super::replier::Answer;
use super::{
    Buffer, Checksums, Datagram, DatagramReply, DataplaneConfig, DataplaneCounters,
    DataplaneReplier, Delivery, Device, Interface, InterfaceError, Offload, Outbound, Outgoing,
    Peer, Received, Verdict,
};
use crate::udp::{Classifier, OneClass};
use crate::{Arrival, Failure, Refusal, Transport};

/// Replies that wait in a worker's ring; more wait in their slots.
const RING: usize = 64;
/// What is slept at a time while replies may come.
const NAP: Duration = Duration::from_micros(20);

/// The transport: a device, the stack above it, and the buffers that are out.
pub struct Dataplane<D: Device, C = OneClass> {
    device: D,
    offload: Offload,
    interface: Interface,
    classifier: C,
    batch: usize,
    lender: Lender<D::Buffer>,
    next_id: u64,
    /// The workers' replies.
    rings: Vec<Consumer<Finished<D::Buffer>>>,
    /// The ring that is looked at first; takes turns.
    first_ring: usize,
    /// Empty between polls.
    received: Vec<Received<D::Buffer>>,
    /// What the device had no room for, in its order.
    outbound: Vec<Outbound<D::Buffer>>,
    /// As many buffers are out as can be, and that has been counted.
    starved: bool,
    closed: bool,
    counters: Arc<TransportCounters>,
}

/// A request's number, unique in its transport.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(u64);

impl<D: Device> Dataplane<D> {
    /// Takes all memory; every request is of class 0.
    ///
    /// # Errors
    /// A setting out of its range, or an address that no host can have.
    pub fn new(device: D, config: DataplaneConfig) -> Result<Self, InterfaceError> {
        Self::classified(device, config, OneClass)
    }
}

impl<D: Device, C: Classifier> Dataplane<D, C> {
    /// As [`new`](Dataplane::new), with `classifier` telling the requests' classes.
    ///
    /// # Errors
    /// A setting out of its range, or an address that no host can have.
    pub fn classified(
        device: D,
        config: DataplaneConfig,
        classifier: C,
    ) -> Result<Self, InterfaceError> {
        config.check()?;
        Ok(Self {
            offload: device.offload(),
            device,
            interface: Interface::new(config.interface)?,
            classifier,
            batch: config.batch,
            lender: Lender::new(config.buffers),
            next_id: 0,
            rings: Vec::new(),
            first_ring: 0,
            received: Vec::with_capacity(config.batch),
            outbound: Vec::with_capacity(config.batch * 2),
            starved: false,
            closed: false,
            counters: Arc::default(),
        })
    }

    /// The request that a frame is, and its class. All else is dealt with.
    fn request(
        &mut self,
        received: Received<D::Buffer>,
        now_nanos: u64,
    ) -> Option<(Datagram<D::Buffer>, u16)> {
        let Received {
            mut buffer,
            verified,
        } = received;
        let verdict = self
            .interface
            .receive(buffer.frame_mut(), verified, now_nanos);
        match verdict {
            Verdict::Deliver(delivery) => self.admit(buffer, delivery),
            Verdict::Answer { length } if self.has_room() => {
                buffer.finish(length);
                let checksums = Checksums::default();
                self.outbound.push(Outbound { buffer, checksums });
                None
            }
            Verdict::Answer { .. } => {
                self.counters.networker.answers_dropped.add(1);
                self.device.free(buffer);
                None
            }
            Verdict::Learnt | Verdict::Drop(_) => {
                self.device.free(buffer);
                None
            }
        }
    }

    fn admit(
        &mut self,
        buffer: D::Buffer,
        delivery: Delivery,
    ) -> Option<(Datagram<D::Buffer>, u16)> {
        let turned_away = if self.closed {
            &self.counters.networker.refused
        } else {
            let payload = buffer.frame().get(delivery.payload.clone());
            let peer = delivery.peer.address.into();
            match self.classifier.classify(payload.unwrap_or_default(), peer) {
                Some(class) => match self.lender.lend(buffer) {
                    Ok(lent) => {
                        let id = RequestId(self.next_id);
                        self.next_id += 1;
                        let longest = self.interface.longest_payload();
                        return Some((Datagram::new(lent, id, delivery, longest), class));
                    }
                    // Cannot be: no more are received than can be lent.
                    Err(buffer) => {
                        self.counters.networker.refused.add(1);
                        self.device.free(buffer);
                        return None;
                    }
                },
                None => &self.counters.networker.malformed,
            }
        };
        turned_away.add(1);
        self.device.free(buffer);
        None
    }
}

impl<D: Device, C> Dataplane<D, C> {
    /// The device, to ask it what it has counted.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The counters, to be kept when the transport goes to the runtime.
    #[must_use]
    pub fn counters(&self) -> DataplaneCounters {
        DataplaneCounters {
            interface: self.interface.counters(),
            transport: Arc::clone(&self.counters),
        }
    }

    /// Takes back what comes back, sends what is to be sent.
    fn send(&mut self) {
        while self.has_room()
            && let Some(returned) = self.lender.next_returned()
        {
            match returned {
                Returned::Unused(buffer) => self.device.free(buffer),
                Returned::Reply(reply) => self.put(reply),
            }
        }
        for turn in 0..self.rings.len() {
            let at = (self.first_ring + turn) % self.rings.len();
            while self.has_room()
                && let Ok(reply) = self.rings[at].pop()
            {
                let reply = self.lender.take_reply(reply);
                self.put(reply);
            }
        }
        self.first_ring = (self.first_ring + 1) % self.rings.len().max(1);
        self.transmit();
    }

    /// Whether the device can be offered more.
    fn has_room(&self) -> bool {
        self.outbound.len() < self.outbound.capacity()
    }

    fn put(&mut self, reply: Outbound<D::Buffer>) {
        self.counters.networker.replies.add(1);
        self.outbound.push(reply);
    }

    fn transmit(&mut self) {
        if !self.outbound.is_empty() {
            let before = self.outbound.len();
            self.device.transmit(&mut self.outbound);
            let sent = before.saturating_sub(self.outbound.len());
            self.counters.networker.transmitted.add(sent as u64);
        }
        self.counters.networker.out.set(self.lender.out() as u64);
    }
}

impl<D: Device, C: Classifier> Transport for Dataplane<D, C> {
    type Request = Datagram<D::Buffer>;
    /// `None`: no reply is sent. One made of another request's datagram is not sent, either, but counted.
    type Reply = Option<DatagramReply<D::Buffer>>;
    type Route = RequestId;
    type Outgoing = Outgoing<D::Buffer>;
    type Replier = DataplaneReplier<D::Buffer>;

    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Self::Request, RequestId>),
    ) {
        self.send();
        let most = room.min(self.batch).min(self.lender.free());
        if most == 0 {
            if room > 0 && !std::mem::replace(&mut self.starved, true) {
                self.counters.networker.no_buffer.add(1);
            }
            return;
        }
        self.starved = false;
        let mut received = std::mem::take(&mut self.received);
        self.device.receive(most, &mut received);
        for frame in received.drain(..) {
            if let Some((request, class)) = self.request(frame, now_nanos) {
                deliver(Arrival {
                    route: request.id(),
                    flow: flow(request.station()),
                    request,
                    class,
                    arrived_nanos: now_nanos,
                    deadline_nanos: None,
                });
            }
        }
        self.received = received;
        self.transmit();
    }

    fn refuse(&mut self, request: Self::Request, _route: RequestId, _cause: Refusal) {
        self.counters.networker.refused.add(1);
        let buffer = self.lender.take_back(request.into_lent());
        self.device.free(buffer);
    }

    fn conclude(
        route: RequestId,
        result: Result<Option<DatagramReply<D::Buffer>>, Failure>,
    ) -> Outgoing<D::Buffer> {
        Outgoing(match result {
            Ok(Some(reply)) if reply.id == route => Answer::Reply(reply),
            Ok(Some(reply)) => Answer::Foreign(reply),
            Ok(None) | Err(_) => Answer::None,
        })
    }

    fn replier(&mut self) -> std::io::Result<Self::Replier> {
        let (ring, replies) = RingBuffer::new(RING);
        self.rings.push(replies);
        Ok(DataplaneReplier {
            ring,
            offload: self.offload,
            counters: Arc::clone(&self.counters),
        })
    }

    fn wait(&mut self, patience: Duration) {
        // Whoever holds a buffer may send it any moment, and the device would not wake us for that.
        if self.outbound.is_empty() && self.lender.out() == 0 {
            self.device.wait(patience);
        } else {
            std::thread::sleep(patience.min(NAP));
        }
    }

    fn close(&mut self) {
        self.closed = true;
    }
}

/// Sends what is to be sent, as far as the device has room, and gives the device its buffers back, but those that others
/// still hold.
impl<D: Device, C> Drop for Dataplane<D, C> {
    fn drop(&mut self) {
        let mut before = usize::MAX;
        while self.lender.out() < before {
            before = self.lender.out();
            self.send();
        }
        for Outbound { buffer, .. } in self.outbound.drain(..) {
            self.device.free(buffer);
        }
        while let Some(returned) = self.lender.next_returned() {
            let (Returned::Unused(buffer) | Returned::Reply(Outbound { buffer, .. })) = returned;
            self.device.free(buffer);
        }
        for ring in &mut self.rings {
            while let Ok(reply) = ring.pop() {
                self.device.free(self.lender.take_reply(reply).buffer);
            }
        }
    }
}

/// By hand, so that devices and buffers need not have it.
impl<D: Device, C> fmt::Debug for Dataplane<D, C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Dataplane")
            .field("interface", &self.interface)
            .field("lender", &self.lender)
            .field("outbound", &self.outbound.len())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

/// The same for all requests of one address and port, different for all others, spread evenly over 64 bits (the
/// finalizer of SplitMix64).
fn flow(peer: &Peer) -> u64 {
    let address = peer.address;
    let word = u64::from(address.ip().to_bits()) << 16 | u64::from(address.port());
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
