//! A server on the dataplane, over an in-memory wire that loses, duplicates and reorders frames:
//! every request that arrives is answered once, with its own bytes, whatever happens to others.
//! Panics, missing replies and refusals cost no buffer.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shinjuku::{
    MechanismKind, Networker, NetworkerConfig, Runtime, Server, handler_fn, preempt_point,
};
use shinjuku_dataplane::memory::{MemoryDevice, MemoryFrame, wire};
use shinjuku_dataplane::{
    Buffer, Datagram, DatagramReply, Dataplane, DataplaneConfig, DataplaneCounters, Device,
    Interface, InterfaceConfig, MacAddr, Offload, Outbound, Received, Resolution, Verdict,
};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, wait_for};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 9000);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 1234);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

const BUFFERS: usize = 64;
const DEVICE_BUFFERS: usize = 256;
const REQUESTS: u64 = 2000;

/// A request's order; its first byte.
const ECHO: u8 = 0;
const LONG: u8 = 1;
const SILENT: u8 = 2;
const PANIC: u8 = 3;

/// A device that loses, duplicates or reorders about one incoming frame in ten.
struct Faulty {
    device: MemoryDevice,
    /// A frame that the next frame overtakes.
    late: Option<Received<MemoryFrame>>,
    /// Empty between calls.
    arrived: Vec<Received<MemoryFrame>>,
    /// How many frames have come, lost ones included.
    came: u64,
    /// How many of them the dataplane has been through with.
    taken: Arc<AtomicU64>,
    random: u64,
}

impl Faulty {
    fn one_in(&mut self, odds: u64) -> bool {
        // Xorshift (Marsaglia 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(odds)
    }
}

impl Device for Faulty {
    type Buffer = MemoryFrame;

    fn offload(&self) -> Offload {
        self.device.offload()
    }

    fn receive(&mut self, most: usize, frames: &mut Vec<Received<MemoryFrame>>) {
        // Those of the call before are delivered.
        self.taken.store(self.came, Ordering::Release);
        // Any frame may be duplicated, and one comes late.
        let mut arrived = std::mem::take(&mut self.arrived);
        self.device
            .receive(most.saturating_sub(1) / 2, &mut arrived);
        self.came += arrived.len() as u64;
        for received in arrived.drain(..) {
            if self.one_in(10) {
                self.device.free(received.buffer);
                continue;
            }
            if self.late.is_none() && self.one_in(10) {
                self.late = Some(received);
                continue;
            }
            if self.one_in(10)
                && let Some(mut buffer) = self.device.allocate()
            {
                let original = received.buffer.frame();
                buffer.set_length(original.len());
                buffer.frame_mut().copy_from_slice(original);
                let verified = received.verified;
                frames.push(Received { buffer, verified });
            }
            frames.push(received);
            frames.extend(self.late.take());
        }
        self.arrived = arrived;
    }

    fn transmit(&mut self, frames: &mut Vec<Outbound<MemoryFrame>>) {
        self.device.transmit(frames);
    }

    fn allocate(&mut self) -> Option<MemoryFrame> {
        self.device.allocate()
    }

    fn free(&mut self, buffer: MemoryFrame) {
        self.device.free(buffer);
    }
}

/// The client's end of the wire, with its own clock, which advances with each turn.
struct Client {
    device: MemoryDevice,
    interface: Interface,
    /// Frames put on the wire, and those that the server is through with.
    sent: u64,
    taken: Arc<AtomicU64>,
    now: u64,
    /// The number of replies to each request.
    replies: HashMap<u64, u32>,
    order: Vec<u64>,
}

impl Client {
    fn new(device: MemoryDevice, taken: Arc<AtomicU64>) -> Self {
        let interface = InterfaceConfig::new(CLIENT_MAC, *CLIENT.ip(), &[CLIENT.port()]);
        Self {
            device,
            interface: Interface::new(interface).unwrap(),
            sent: 0,
            taken,
            now: 0,
            replies: HashMap::new(),
            order: Vec::new(),
        }
    }

    fn transmit(&mut self, buffer: MemoryFrame) {
        let checksums = Default::default();
        let mut frames = vec![Outbound { buffer, checksums }];
        wait_for("room on the wire", || {
            self.device.transmit(&mut frames);
            frames.is_empty()
        });
        self.sent += 1;
    }

    /// Learns the server's MAC address, by a protocol whose packets also get lost.
    fn resolve(&mut self) -> MacAddr {
        let start = Instant::now();
        loop {
            self.turn();
            self.now += 100_000_000;
            match self.interface.resolve(*SERVER.ip(), self.now) {
                Resolution::Known(mac) | Resolution::Renew(mac, _) => return mac,
                Resolution::Ask(ip) => {
                    let mut buffer = self.device.allocate().unwrap();
                    buffer.set_length(Interface::ARP_FRAME);
                    let frame = buffer.frame_mut();
                    self.interface.write_arp_request(frame, ip).unwrap();
                    buffer.finish(Interface::ARP_FRAME);
                    self.transmit(buffer);
                }
                Resolution::Wait | Resolution::Unreachable => {
                    assert!(start.elapsed() < PATIENCE, "no server answers");
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
    }

    fn send(&mut self, station: MacAddr, kind: u8, number: u64) {
        let mut buffer = self.device.allocate().unwrap();
        let payload = request(kind, number);
        buffer.set_length(Interface::PAYLOAD + payload.len());
        let frame = buffer.frame_mut();
        frame[Interface::PAYLOAD..].copy_from_slice(&payload);
        self.interface
            .write_datagram(frame, CLIENT.port(), station, SERVER, Offload::default())
            .unwrap();
        self.transmit(buffer);
    }

    /// Takes the replies that have come.
    fn turn(&mut self) {
        let mut frames = Vec::with_capacity(DEVICE_BUFFERS);
        self.device.receive(DEVICE_BUFFERS, &mut frames);
        for Received {
            mut buffer,
            verified,
        } in frames
        {
            let frame = buffer.frame_mut();
            match self.interface.receive(frame, verified, self.now) {
                Verdict::Deliver(delivery) => {
                    assert_eq!(delivery.peer.address, SERVER);
                    let reply = &frame[delivery.payload];
                    let number = u64::from_le_bytes(reply[1..9].try_into().unwrap());
                    assert_eq!(reply, request(kind_of(number), number));
                    *self.replies.entry(number).or_default() += 1;
                    self.order.push(number);
                }
                Verdict::Learnt => {}
                other => panic!("{other:?}"),
            }
            self.device.free(buffer);
        }
    }
}

fn kind_of(number: u64) -> u8 {
    match number % 16 {
        0 => LONG,
        1 => SILENT,
        2 if number < 200 => PANIC,
        _ => ECHO,
    }
}

/// Requests of various lengths, most of them padded on the wire.
fn request(kind: u8, number: u64) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(number.to_le_bytes());
    bytes.resize(9 + (number % 40) as usize, number as u8);
    bytes
}

fn handle(request: Datagram<MemoryFrame>) -> Option<DatagramReply<MemoryFrame>> {
    match request[0] {
        LONG => {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(300) {
                preempt_point();
            }
        }
        SILENT => return None,
        // Bypasses the panic hook, which would print.
        PANIC => std::panic::resume_unwind(Box::new("asked for")),
        _ => {}
    }
    Some(request.echo())
}

fn device(seed: u64) -> (Client, Dataplane<Faulty>) {
    let (theirs, ours) = wire(128, DEVICE_BUFFERS, 2048);
    let taken = Arc::<AtomicU64>::default();
    let faulty = Faulty {
        device: ours,
        late: None,
        arrived: Vec::with_capacity(16),
        came: 0,
        taken: Arc::clone(&taken),
        random: seed,
    };
    let interface = InterfaceConfig::new(SERVER_MAC, *SERVER.ip(), &[SERVER.port()]);
    let config = DataplaneConfig::new(interface).buffers(BUFFERS).batch(16);
    let dataplane = Dataplane::new(faulty, config).unwrap();
    (Client::new(theirs, taken), dataplane)
}

/// Sends all requests, waits until each has ended, and checks the replies.
fn converse(client: &mut Client, counters: &DataplaneCounters) {
    let station = client.resolve();
    assert_eq!(station, SERVER_MAC);
    let under_way = || {
        let counts = counters.read();
        let ends = counts.refused + counts.replies + counts.unanswered;
        counts.interface.delivered - ends.min(counts.interface.delivered)
    };
    for number in 0..REQUESTS {
        wait_for("room for a request", || {
            client.turn();
            under_way() < BUFFERS as u64 / 2
        });
        client.send(station, kind_of(number), number);
    }
    wait_for("the end of all requests", || {
        client.turn();
        // What is still on the wire is in no count of the server's.
        let is_taken = client.taken.load(Ordering::Acquire) == client.sent;
        let counts = counters.read();
        let is_over = under_way() == 0 && counts.out == 0;
        is_taken && is_over && client.order.len() as u64 == counts.replies
    });
    let answered: u32 = client.replies.values().sum();
    let counts = counters.read();
    assert_eq!(u64::from(answered), counts.replies);
    assert_eq!(counts.interface.dropped.iter().sum::<u64>(), 0);
    for (&number, &replies) in &client.replies {
        assert!([ECHO, LONG].contains(&kind_of(number)), "{number}");
        assert!(number < REQUESTS && replies <= 2, "{number}: {replies}");
    }
    // The faults really happened.
    assert!(client.replies.values().any(|&replies| replies == 2));
    let answerable = (0..REQUESTS).filter(|&number| [ECHO, LONG].contains(&kind_of(number)));
    assert!(client.replies.len() < answerable.count());
    assert!(!client.order.is_sorted());
    assert!(counts.unanswered > 0);
}

#[test]
fn every_request_that_arrives_is_answered_with_its_own_bytes() {
    for (seed, mechanism) in [(1, MechanismKind::Probe), (2, MechanismKind::Signal)] {
        let (mut client, dataplane) = device(seed);
        let counters = dataplane.counters();
        let server = Runtime::builder(handler_fn(handle))
            .config(config(2, mechanism))
            .allow_hard_preemption(token())
            .serve(dataplane)
            .unwrap();
        converse(&mut client, &counters);
        end(server);
    }
}

#[test]
fn the_same_with_a_networker() {
    let (mut client, dataplane) = device(3);
    let counters = dataplane.counters();
    let networker = Networker::new(dataplane, NetworkerConfig::default()).unwrap();
    let server = Runtime::builder(handler_fn(handle))
        .config(config(1, MechanismKind::Probe))
        .serve(networker)
        .unwrap();
    converse(&mut client, &counters);
    let (report, networker) = server.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report:?}");
    all_buffers_are_back(&networker.unwrap().into_inner().unwrap());
}

fn end(server: Server<Dataplane<Faulty>>) {
    let (report, dataplane) = server.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report:?}");
    all_buffers_are_back(&dataplane.unwrap());
}

fn all_buffers_are_back(dataplane: &Dataplane<Faulty>) {
    let Faulty { device, late, .. } = dataplane.device();
    let free = device.free_buffers() + usize::from(late.is_some());
    assert_eq!(free, DEVICE_BUFFERS);
}
