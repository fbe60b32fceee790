//! A device and the stack above it as a transport.

use std::fmt;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rtrb::{Consumer, RingBuffer};
use shinjuku_net::wire::{Added, RackSched};
use shinjuku_net::{
    Arrival, Classifier, Failure, OneClass, Refusal, Transport, due_nanos, flow_of,
};

use crate::counters::TransportCounters;
use crate::datagram::Notes;
use crate::in_flight::{Lender, Lent, Returned};
use crate::packet::Vlans;
use crate::replier::Answer;
use crate::{
    Buffer, Checksums, Datagram, DatagramReply, DataplaneConfig, DataplaneCounters,
    DataplaneReplier, Device, Incoming, Interface, InterfaceError, Offload, Outbound, Outgoing,
    Received, Verdict,
};

/// Replies that wait in a worker's ring; more wait in their slots.
const RING: usize = 64;
/// What is slept at a time while replies may come.
const NAP: Duration = Duration::from_micros(20);

/// The transport: a device, the stack above it, and the buffers that are out.
pub struct Dataplane<D: Device, C = OneClass> {
    device: D,
    offload: Offload,
    interface: Interface,
    /// In the order of the configuration.
    ports: Box<[u16]>,
    classifier: C,
    racksched: Option<RackSched<Sender>>,
    batch: usize,
    lender: Lender<D::Buffer, Notes>,
    next_id: RequestId,
    /// The workers' replies.
    rings: Vec<Consumer<Lent<D::Buffer, Notes>>>,
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

/// How many there have been in this process.
static TRANSPORTS: AtomicU32 = AtomicU32::new(0);

/// A request's number, unique in its transport, the transport's own, and its class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId {
    number: u64,
    transport: u32,
    pub(crate) class: u16,
}

impl<D: Device> Dataplane<D> {
    /// Takes all memory; every request is of class 0.
    ///
    /// # Errors
    /// A setting out of its range, more than the device has room for, or an address that no host
    /// can have.
    pub fn new(device: D, config: DataplaneConfig) -> Result<Self, InterfaceError> {
        Self::classified(device, config, OneClass)
    }
}

impl<D: Device, C: Classifier> Dataplane<D, C> {
    /// As [`new`](Dataplane::new), with `classifier` telling the requests' classes.
    ///
    /// # Errors
    /// A setting out of its range, more than the device has room for, or an address that no host
    /// can have.
    pub fn classified(
        device: D,
        config: DataplaneConfig,
        classifier: C,
    ) -> Result<Self, InterfaceError> {
        config.check()?;
        config.check_room(device.room())?;
        Ok(Self {
            offload: device.offload(),
            device,
            ports: config.interface.ports.clone().into_boxed_slice(),
            interface: Interface::new(config.interface)?,
            classifier,
            racksched: config.racksched.map(RackSched::new).transpose()?,
            batch: config.batch,
            lender: Lender::new(config.buffers),
            next_id: RequestId {
                number: 0,
                transport: TRANSPORTS.fetch_add(1, Ordering::Relaxed),
                class: 0,
            },
            rings: Vec::new(),
            first_ring: 0,
            received: Vec::with_capacity(config.batch),
            outbound: Vec::with_capacity(config.batch * 2),
            starved: false,
            closed: false,
            counters: Arc::default(),
        })
    }

    /// The request that a frame is, or completes. All else is dealt with.
    fn request(
        &mut self,
        received: Received<D::Buffer>,
        now_nanos: u64,
    ) -> Option<Datagram<D::Buffer>> {
        let Received {
            mut buffer,
            verified,
        } = received;
        let verdict = self
            .interface
            .receive(buffer.frame_mut(), verified, now_nanos);
        match verdict {
            Verdict::Deliver(delivery) => self.admit(buffer, delivery, now_nanos),
            Verdict::Answer { length } if self.has_room() => {
                buffer.finish(length);
                let checksums = Checksums::default();
                self.outbound.push(Outbound { buffer, checksums });
                None
            }
            Verdict::Answer { .. } => {
                self.counters.networker.answers_dropped.count();
                self.device.free(buffer);
                None
            }
            Verdict::Learnt | Verdict::Drop(_) => {
                self.device.free(buffer);
                None
            }
        }
    }

    /// The request that a datagram is, or completes.
    fn admit(
        &mut self,
        mut buffer: D::Buffer,
        mut delivery: Incoming,
        now_nanos: u64,
    ) -> Option<Datagram<D::Buffer>> {
        // What came in one packet may go back in one.
        let longest = self.interface.longest_reply(delivery.headers);
        let longest = longest.max(delivery.payload.len());
        let class = match self.classify(&mut buffer, &mut delivery, now_nanos) {
            Ok(class) => class,
            Err(end) => {
                let counters = &self.counters.networker;
                match end {
                    End::Refused => counters.refused.count(),
                    End::Malformed => counters.malformed.count(),
                    End::Unfit => counters.unfit.count(),
                    End::Absorbed => {}
                }
                self.device.free(buffer);
                return None;
            }
        };
        let room = buffer.capacity().saturating_sub(delivery.headers.length());
        let notes = Notes {
            id: RequestId {
                class,
                ..self.next_id
            },
            delivery,
            capacity: room.min(longest),
            length: 0,
            checksums: Checksums::default(),
        };
        match self.lender.lend(buffer, notes) {
            Ok(lent) => {
                if let Some(racksched) = &self.racksched {
                    racksched.load().arrived(class);
                }
                self.next_id.number += 1;
                Some(Datagram(lent))
            }
            // Only if the device gave more than it was asked for.
            Err(buffer) => {
                self.counters.networker.refused.count();
                self.device.free(buffer);
                None
            }
        }
    }

    /// The class of the request that a datagram is; or that it completes, then being the whole
    /// request.
    fn classify(
        &mut self,
        buffer: &mut D::Buffer,
        delivery: &mut Incoming,
        now_nanos: u64,
    ) -> Result<u16, End> {
        if self.closed {
            return Err(End::Refused);
        }
        if let Some(racksched) = &mut self.racksched {
            assemble(racksched, buffer, delivery, now_nanos)?;
        }
        let payload = buffer.frame().get(delivery.payload.clone());
        let payload = payload.unwrap_or_default();
        let listed = self.ports.iter().position(|&port| port == delivery.port);
        let peer = delivery.peer.address.into();
        self.classifier
            .classify_at(listed.unwrap_or_default(), payload, peer)
            .ok_or(End::Malformed)
    }
}

/// A sender whose packets may belong to one request. The same address in another VLAN, or sending
/// to another port, is another sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Sender {
    address: SocketAddrV4,
    vlans: Vlans,
    port: u16,
}

/// What becomes of a datagram that is no request to be handed on.
enum End {
    Refused,
    Malformed,
    /// It completes one that is longer than its buffer.
    Unfit,
    /// It is kept for the rest of its request, or was dropped and counted.
    Absorbed,
}

/// If the datagram in `buffer` completes a request, has it be that.
fn assemble<B: Buffer>(
    racksched: &mut RackSched<Sender>,
    buffer: &mut B,
    delivery: &mut Incoming,
    now_nanos: u64,
) -> Result<(), End> {
    let Incoming { payload, peer, .. } = delivery;
    let packet = buffer.frame().get(payload.clone()).unwrap_or_default();
    let sender = Sender {
        address: peer.address,
        vlans: peer.vlans,
        port: delivery.port,
    };
    match racksched.add(now_nanos, sender, packet) {
        Ok(Added::Whole) => Ok(()),
        Ok(Added::Complete(request)) => {
            let end = payload.start + request.length();
            if end > buffer.capacity() {
                return Err(End::Unfit);
            }
            buffer.set_length(end);
            let place = buffer
                .frame_mut()
                .get_mut(payload.start..)
                .ok_or(End::Unfit)?;
            request.copy_to(place);
            payload.end = end;
            Ok(())
        }
        Ok(Added::Held) | Err(_) => Err(End::Absorbed),
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
            reassembly: self
                .racksched
                .as_ref()
                .map(RackSched::counters)
                .unwrap_or_default(),
        }
    }

    /// Takes back what comes back, sends what is to be sent.
    fn send(&mut self) {
        while self.has_room()
            && let Some(returned) = self.lender.next_returned()
        {
            match returned {
                Returned::Unused(buffer) => self.device.free(buffer),
                Returned::Reply(buffer, notes) => self.put(buffer, &notes),
            }
        }
        // Most are those of spare workers that never had anything to send.
        let in_use = self.counters.repliers_in_use.load(Acquire);
        let in_use = in_use.min(self.rings.len());
        for turn in 0..in_use {
            let at = self.first_ring + turn;
            let at = if at < in_use { at } else { at - in_use };
            while self.has_room()
                && let Ok(reply) = self.rings[at].pop()
            {
                let (buffer, notes) = self.lender.take_back(reply);
                self.put(buffer, &notes);
            }
        }
        self.first_ring += 1;
        if self.first_ring >= in_use {
            self.first_ring = 0;
        }
        self.transmit();
    }

    /// Whether the device can be offered more.
    fn has_room(&self) -> bool {
        self.outbound.len() < self.outbound.capacity()
    }

    fn put(&mut self, buffer: D::Buffer, notes: &Notes) {
        self.counters.networker.replies.count();
        let checksums = notes.checksums;
        self.outbound.push(Outbound { buffer, checksums });
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
    /// `None`: no reply is sent. One made of another request's datagram is not sent, either, but
    /// counted.
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
        if let Some(racksched) = &mut self.racksched {
            racksched.expire(now_nanos);
        }
        let most = room.min(self.batch).min(self.lender.free());
        if most == 0 {
            if room > 0 && !std::mem::replace(&mut self.starved, true) {
                self.counters.networker.no_buffer.count();
            }
        } else {
            self.starved = false;
        }
        let mut received = std::mem::take(&mut self.received);
        // With no room, too: there may be dispatchers that get their frames by way of this device.
        self.device.receive(most, &mut received);
        for frame in received.drain(..) {
            if let Some(request) = self.request(frame, now_nanos) {
                let route = request.0.notes().id;
                let due_nanos = due_nanos(&mut self.classifier, &request, now_nanos);
                let flow = flow_of(request.peer());
                let arrival = Arrival::new(request, route, now_nanos);
                deliver(arrival.class(route.class).flow(flow).due_nanos(due_nanos));
            }
        }
        self.received = received;
        self.transmit();
    }

    fn refuse(&mut self, request: Self::Request, route: RequestId, _cause: Refusal) {
        if let Some(racksched) = &self.racksched {
            racksched.load().left(route.class);
        }
        self.counters.networker.refused.count();
        let (buffer, _) = self.lender.take_back(request.0);
        self.device.free(buffer);
    }

    fn conclude(
        route: RequestId,
        result: Result<Option<DatagramReply<D::Buffer>>, Failure>,
    ) -> Outgoing<D::Buffer> {
        let answer = match result {
            Ok(Some(reply)) if reply.0.notes().id == route => Answer::Reply(reply),
            Ok(Some(reply)) => Answer::Foreign(reply),
            Ok(None) | Err(_) => Answer::None,
        };
        let class = route.class;
        Outgoing { answer, class }
    }

    fn replier(&mut self) -> std::io::Result<Self::Replier> {
        let (ring, replies) = RingBuffer::new(RING);
        let number = self.rings.len();
        self.rings.push(replies);
        Ok(DataplaneReplier {
            ring,
            number,
            announced: false,
            offload: self.offload,
            load: self
                .racksched
                .as_ref()
                .map(|racksched| racksched.load().clone()),
            counters: Arc::clone(&self.counters),
        })
    }

    fn wait(&mut self, patience: Duration) {
        // A worker may send a buffer that is out at any moment, and the device would not wake us
        // for that.
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

/// Sends what is to be sent, as far as the device has room, and gives the device its buffers back,
/// but those that others still hold.
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
            let (Returned::Unused(buffer) | Returned::Reply(buffer, _)) = returned;
            self.device.free(buffer);
        }
        for ring in &mut self.rings {
            while let Ok(reply) = ring.pop() {
                self.device.free(self.lender.take_back(reply).0);
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
