//! The dataplane as a transport, over a wire in memory, with a toy dispatcher: poll, handle,
//! conclude, send.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::panic::{AssertUnwindSafe, catch_unwind};

use shinjuku_dataplane::memory::{MemoryDevice, MemoryFrame, wire};
use shinjuku_dataplane::packet::{MacAddr, ParseError};
use shinjuku_dataplane::{
    Buffer, Checksums, Datagram, DatagramReply, Dataplane, DataplaneConfig, DataplaneCounts,
    DataplaneReplier, Device, DropReason, Interface, InterfaceConfig, InterfaceError, Offload,
    Outbound, Received, RequestId, Verdict, VerifiedChecksums,
};
use shinjuku_net::udp::{ByPort, Classifier, OneClass};
use shinjuku_net::wire::{RackSchedKind, RackSchedMessage, ReassemblyConfig};
use shinjuku_net::{Arrival, Failure, Refusal, Replier, Transport};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 9000);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 1234);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const DEVICE_BUFFERS: usize = 256;

type Answer = Result<Option<DatagramReply<MemoryFrame>>, Failure>;

fn config() -> DataplaneConfig {
    DataplaneConfig::new(InterfaceConfig::new(
        SERVER_MAC,
        *SERVER.ip(),
        &[SERVER.port()],
    ))
    .buffers(8)
    .batch(4)
}

/// The client's end of the wire.
struct Client {
    device: MemoryDevice,
    interface: Interface,
}

impl Client {
    fn send(&mut self, payload: &[u8]) {
        self.send_changed(payload, |_| {});
    }

    fn send_changed(&mut self, payload: &[u8], change: impl FnOnce(&mut [u8])) {
        let mut buffer = self.device.allocate().expect("buffers are enough");
        buffer.set_length(Interface::PAYLOAD + payload.len());
        let frame = buffer.frame_mut();
        frame[Interface::PAYLOAD..].copy_from_slice(payload);
        let checksums = self
            .interface
            .write_datagram(frame, CLIENT.port(), SERVER_MAC, SERVER, Offload::default())
            .unwrap();
        change(frame);
        let mut frames = vec![Outbound { buffer, checksums }];
        self.device.transmit(&mut frames);
        assert!(frames.is_empty(), "the wire is long enough");
    }

    /// The payloads that came.
    fn received(&mut self) -> Vec<Vec<u8>> {
        let datagrams = self.received_from().into_iter();
        let from_the_server = |(peer, payload)| {
            assert_eq!(peer, SERVER);
            payload
        };
        datagrams.map(from_the_server).collect()
    }

    /// The same, and where they came from.
    fn received_from(&mut self) -> Vec<(SocketAddrV4, Vec<u8>)> {
        let mut frames = Vec::new();
        self.device.receive(DEVICE_BUFFERS, &mut frames);
        let mut payloads = Vec::new();
        for Received { mut buffer, .. } in frames {
            let frame = buffer.frame_mut();
            match self
                .interface
                .receive(frame, VerifiedChecksums::default(), 0)
            {
                Verdict::Deliver(delivery) => {
                    let payload = frame[delivery.payload].to_vec();
                    payloads.push((delivery.peer.address, payload));
                }
                other => panic!("{other:?}"),
            }
            self.device.free(buffer);
        }
        payloads
    }
}

struct Server<C: Classifier = OneClass> {
    dataplane: Dataplane<MemoryDevice, C>,
    replier: DataplaneReplier<MemoryFrame>,
}

type Arrived = Arrival<Datagram<MemoryFrame>, RequestId>;

impl<C: Classifier> Server<C> {
    fn poll(&mut self) -> Vec<Arrived> {
        let mut arrivals = Vec::new();
        self.dataplane
            .poll(17, 1000, |arrival| arrivals.push(arrival));
        arrivals
    }

    fn conclude(&mut self, route: RequestId, answer: Answer) {
        self.replier
            .send(Dataplane::<MemoryDevice, C>::conclude(route, answer));
    }

    fn counts(&self) -> DataplaneCounts {
        self.dataplane.counters().read()
    }

    /// Nothing is under way: every buffer is back, and every request has come to one end.
    fn assert_balanced(&mut self) {
        assert!(self.poll().is_empty());
        let counts = self.counts();
        let ends = counts.malformed
            + counts.refused
            + counts.replies
            + counts.unanswered
            + counts.unsendable
            + counts.unfit
            + counts.reassembly.absorbed();
        assert_eq!(counts.interface.delivered, ends, "{counts:?}");
        assert_eq!(counts.out, 0, "{counts:?}");
        let free = self.dataplane.device().free_buffers();
        assert_eq!(free, DEVICE_BUFFERS, "{counts:?}");
    }
}

fn start() -> (Client, Server) {
    start_classified(config(), OneClass)
}

fn start_classified<C: Classifier>(config: DataplaneConfig, classifier: C) -> (Client, Server<C>) {
    let (theirs, ours) = wire(64, DEVICE_BUFFERS, 2048);
    let interface = InterfaceConfig::new(CLIENT_MAC, *CLIENT.ip(), &[CLIENT.port()]);
    let client = Client {
        device: theirs,
        interface: Interface::new(interface).unwrap(),
    };
    let mut dataplane = Dataplane::classified(ours, config, classifier).unwrap();
    let replier = dataplane.replier().unwrap();
    (client, Server { dataplane, replier })
}

#[test]
fn a_request_is_answered_in_its_own_buffer() {
    let (mut client, mut server) = start();
    client.send(b"hello");
    let [arrival] = server.poll().try_into().unwrap();
    assert_eq!(&*arrival.request, b"hello");
    assert_eq!(arrival.request.peer(), CLIENT.into());
    assert_eq!(arrival.request.station().mac, CLIENT_MAC);
    assert_eq!(arrival.request.port(), SERVER.port());
    assert_eq!((arrival.class, arrival.arrived_nanos), (0, 17));
    let at = arrival.request.as_ptr();
    let mut reply = arrival.request.echo();
    reply.make_ascii_uppercase();
    write!(reply, " {}", 42).unwrap();
    assert_eq!(reply.as_ptr(), at);
    server.conclude(arrival.route, Ok(Some(reply)));
    server.assert_balanced();
    assert_eq!(client.received(), [b"HELLO 42"]);
    let counts = server.counts();
    assert_eq!((counts.replies, counts.transmitted), (1, 1));
}

#[test]
fn replies_may_be_as_long_as_the_mtu_allows_and_no_longer() {
    let (mut client, mut server) = start();
    client.send(b"");
    let arrival = server.poll().pop().unwrap();
    let mut reply = arrival.request.reply(&[7; 1000]).unwrap();
    assert_eq!(reply.capacity(), 1472);
    assert_eq!(reply.write(&[8; 1000]).unwrap(), 472);
    let error = reply.extend_from_slice(&[9]).unwrap_err();
    assert_eq!((error.needed, error.capacity), (1473, 1472));
    server.conclude(arrival.route, Ok(Some(reply)));
    server.assert_balanced();
    assert_eq!(client.received(), [[vec![7; 1000], vec![8; 472]].concat()]);
}

/// The reply keeps the place of the request's options, so they are a part of what the MTU allows.
#[test]
fn options_in_a_request_make_no_reply_longer_than_the_mtu() {
    let (mut client, mut server) = start();
    // Two words of options, for which the payload makes room.
    client.send_changed(b"8 bytes:and the payload", |frame| {
        frame.copy_within(34..42, 42);
        frame[34..42].fill(1);
        frame[14] = 0x47;
        frame[48..50].fill(0);
        let length = (frame.len() as u16 - 42).to_be_bytes();
        frame[46..48].copy_from_slice(&length);
        frame[24..26].fill(0);
        let sum = shinjuku_dataplane::packet::checksum::Sum::new().bytes(&frame[14..42]);
        frame[24..26].copy_from_slice(&sum.checksum().to_be_bytes());
    });
    let arrival = server.poll().pop().unwrap();
    assert_eq!(&*arrival.request, b"and the payload");
    let mut reply = arrival.request.into_reply();
    assert_eq!(reply.capacity(), 1500 - 28 - 8);
    while reply.write(&[7; 100]).unwrap() > 0 {}
    server.conclude(arrival.route, Ok(Some(reply)));
    server.poll();
    let mut frames = Vec::new();
    client.device.receive(1, &mut frames);
    assert_eq!(frames[0].buffer.frame().len(), 14 + 1500);
}

/// Frames have 60 bytes at least, and what is behind the packet must not be what the buffer held
/// before.
#[test]
fn short_frames_are_padded_with_zeros() {
    let (mut client, mut server) = start();
    client.send(&[0xaa; 100]);
    let arrival = server.poll().pop().unwrap();
    let reply = arrival.request.reply(b"r").unwrap();
    server.conclude(arrival.route, Ok(Some(reply)));
    server.poll();
    let mut question = client.device.allocate().unwrap();
    question.set_length(100);
    question.frame_mut().fill(0xaa);
    let frame = question.frame_mut();
    client
        .interface
        .write_arp_request(frame, *SERVER.ip())
        .unwrap();
    let checksums = Checksums::default();
    let buffer = question;
    client
        .device
        .transmit(&mut vec![Outbound { buffer, checksums }]);
    server.poll();
    let mut frames = Vec::new();
    client.device.receive(8, &mut frames);
    let lengths = [Interface::PAYLOAD + 1, Interface::ARP_FRAME];
    assert_eq!(frames.len(), lengths.len());
    for (Received { buffer, .. }, length) in frames.iter().zip(lengths) {
        let frame = buffer.frame();
        assert_eq!(frame.len(), 60);
        assert!(frame[length..].iter().all(|&byte| byte == 0), "{frame:x?}");
    }
}

#[test]
fn what_is_dropped_refused_unanswered_or_panicked_loses_no_buffer() {
    let (mut client, mut server) = start();
    for payload in [b"refuse", b"silent", b"panics", b"thread", b"answer"] {
        client.send(payload);
    }
    let mut arrivals = server.poll();
    arrivals.extend(server.poll());
    assert_eq!(arrivals.len(), 5);
    for Arrival { request, route, .. } in arrivals {
        match &*request {
            b"refuse" => server.dataplane.refuse(request, route, Refusal::QueueFull),
            b"silent" => {
                drop(request);
                server.conclude(route, Ok(None));
            }
            b"panics" => {
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    let _request = request;
                    std::panic::resume_unwind(Box::new(()));
                }));
                assert!(caught.is_err());
                server.conclude(route, Err(Failure::Panicked));
            }
            b"thread" => {
                std::thread::spawn(move || drop(request)).join().unwrap();
                server.conclude(route, Ok(None));
            }
            _ => server.conclude(route, Ok(Some(request.echo()))),
        }
    }
    server.assert_balanced();
    assert_eq!(client.received(), [b"answer"]);
    let counts = server.counts();
    assert_eq!((counts.refused, counts.unanswered), (1, 3));
}

#[test]
fn with_all_buffers_out_the_device_keeps_the_rest() {
    let (mut client, mut server) = start();
    for _ in 0..12 {
        client.send(b"many");
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.extend(server.poll());
    }
    assert_eq!((held.len(), server.counts().no_buffer), (8, 1));
    assert_eq!(server.counts().out, 8);
    for Arrival { request, route, .. } in held {
        server.conclude(route, Ok(Some(request.echo())));
    }
    let rest: Vec<_> = (0..3).flat_map(|_| server.poll()).collect();
    assert_eq!(rest.len(), 4);
    drop(rest);
    // Dropped without a conclusion.
    server.poll();
    assert_eq!(server.counts().out, 0);
    assert_eq!(client.received().len(), 8);
}

#[test]
fn a_worker_whose_ring_is_full_loses_no_reply() {
    let (mut client, mut server) = start_classified(config().buffers(100).batch(50), OneClass);
    let mut held = Vec::new();
    for _ in 0..2 {
        for _ in 0..50 {
            client.send(b"x");
        }
        held.extend(server.poll());
    }
    assert_eq!(held.len(), 100);
    for Arrival { request, route, .. } in held {
        server.conclude(route, Ok(Some(request.echo())));
    }
    let replier = format!("{:?}", server.replier);
    assert!(replier.contains("room: 0"), "{replier}");
    let mut received = 0;
    for _ in 0..4 {
        server.poll();
        received += client.received().len();
    }
    assert_eq!(received, 100);
    server.assert_balanced();
}

/// Rings that were never used are not looked at.
#[test]
fn a_worker_that_joins_in_late_is_heard() {
    let (mut client, mut server) = start();
    let mut late: Vec<_> = (0..3)
        .map(|_| server.dataplane.replier().unwrap())
        .collect();
    for turn in [2, 0, 1, 2] {
        client.send(b"request");
        let arrival = server.poll().pop().unwrap();
        let reply = Ok(Some(arrival.request.echo()));
        late[turn].send(Dataplane::<MemoryDevice>::conclude(arrival.route, reply));
        server.poll();
        assert_eq!(client.received(), [b"request"]);
    }
    server.assert_balanced();
}

#[test]
fn what_the_device_has_no_room_for_is_sent_later_and_nothing_is_lost() {
    let (mut client, mut server) = start_classified(config().buffers(32).batch(4), OneClass);
    let mut received = 0;
    // The wire holds 64 frames, and the client takes none off.
    for round in 0..10 {
        for _ in 0..8 {
            client.send(b"x");
        }
        while let arrivals = server.poll()
            && !arrivals.is_empty()
        {
            for Arrival { request, route, .. } in arrivals {
                server.conclude(route, Ok(Some(request.echo())));
            }
        }
        let counts = server.counts();
        assert!(counts.transmitted <= 64, "{round}: {counts:?}");
    }
    while let payloads = client.received()
        && !payloads.is_empty()
    {
        received += payloads.len();
        server.poll();
    }
    assert_eq!(received, 80);
    server.assert_balanced();
}

#[test]
fn a_reply_made_of_another_request_is_not_sent() {
    let (mut client, mut server) = start();
    client.send(b"first");
    client.send(b"second");
    let [first, second] = server.poll().try_into().unwrap();
    server.conclude(first.route, Ok(Some(second.request.echo())));
    drop(first.request);
    server.conclude(second.route, Ok(None));
    server.assert_balanced();
    assert!(client.received().is_empty());
    assert_eq!(server.counts().unsendable, 1);
}

/// Two dispatchers' requests have the same numbers.
#[test]
fn a_reply_made_of_another_dispatchers_request_is_not_sent() {
    let mut both = [start(), start()];
    let [first, second] = both.each_mut().map(|(client, server)| {
        client.send(b"request");
        server.poll().pop().unwrap()
    });
    let swapped = [(first.route, second.request), (second.route, first.request)];
    for ((_, server), (route, request)) in both.iter_mut().zip(swapped) {
        server.conclude(route, Ok(Some(request.echo())));
    }
    for (client, server) in &mut both {
        server.assert_balanced();
        assert!(client.received().is_empty());
        assert_eq!(server.counts().unsendable, 1);
    }
}

#[test]
fn malformed_frames_are_counted_and_do_not_reach_the_handler() {
    let (mut client, mut server) = start();
    client.send_changed(b"payload", |frame| frame[Interface::PAYLOAD] ^= 1);
    client.send_changed(b"payload", |frame| frame[20] |= 0x20);
    client.send_changed(b"payload", |frame| frame[12] = 0x99);
    assert!(server.poll().is_empty());
    let counts = server.counts().interface;
    assert_eq!(counts.received, 3);
    for cause in [
        DropReason::Malformed(ParseError::UdpChecksum),
        DropReason::Malformed(ParseError::Ipv4Checksum),
        DropReason::EtherType,
    ] {
        assert_eq!(counts.dropped_for(cause), 1, "{cause:?}");
    }
    server.assert_balanced();
}

#[test]
fn the_classifier_tells_classes_and_may_decline() {
    let classifier = |datagram: &[u8], peer: std::net::SocketAddr| {
        assert_eq!(peer, CLIENT.into());
        datagram.first().map(|&first| u16::from(first))
    };
    let (mut client, mut server) = start_classified(config(), classifier);
    client.send(&[3]);
    client.send(&[]);
    let classes: Vec<_> = server.poll().iter().map(|arrival| arrival.class).collect();
    assert_eq!(classes, [3]);
    assert_eq!(server.counts().malformed, 1);
}

#[test]
fn every_port_may_be_a_class() {
    let ports = [SERVER.port() + 1, SERVER.port()];
    let interface = InterfaceConfig::new(SERVER_MAC, *SERVER.ip(), &ports);
    let (mut client, mut server) = start_classified(DataplaneConfig::new(interface), ByPort);
    client.send(b"second");
    client.send_changed(b"first", |frame| {
        frame[36..38].copy_from_slice(&ports[0].to_be_bytes());
        frame[40..42].fill(0);
    });
    let classes: Vec<_> = server.poll().iter().map(|arrival| arrival.class).collect();
    assert_eq!(classes, [1, 0]);
}

#[test]
fn replies_come_from_the_port_that_belongs_to_the_one_asked() {
    let ports = [SERVER.port() + 1, SERVER.port()];
    let interface = InterfaceConfig::new(SERVER_MAC, *SERVER.ip(), &ports);
    let config = DataplaneConfig::new(interface.clone().reply_from(&[11234, 11235]));
    let (mut client, mut server) = start_classified(config, ByPort);
    client.send(b"?");
    let arrival = server.poll().pop().unwrap();
    let reply = arrival.request.echo();
    server.conclude(arrival.route, Ok(Some(reply)));
    server.assert_balanced();
    // Checksums and all, or the client's interface would have dropped it.
    let from = SocketAddrV4::new(*SERVER.ip(), 11235);
    assert_eq!(client.received_from(), [(from, b"?".to_vec())]);

    for (wrong, says) in [(&[11234][..], "reply ports is 1"), (&[11234, 0], "port 0")] {
        let error = Interface::new(interface.clone().reply_from(wrong)).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

const HEADER: usize = RackSchedMessage::LENGTH;

fn packet(message: RackSchedMessage, sequence: u16, total: usize, payload: &[u8]) -> Vec<u8> {
    let kind = match sequence {
        0 => RackSchedKind::Request,
        _ => RackSchedKind::Follow,
    };
    let message = RackSchedMessage {
        kind,
        sequence,
        total_length: total as u32,
        ..message
    };
    [&message.to_bytes()[..], payload].concat()
}

#[test]
fn requests_of_several_packets_arrive_as_one_and_replies_tell_the_load() {
    let reassembly = ReassemblyConfig::default()
        .requests(2)
        .packets(4)
        .max_request(4000);
    let (mut client, mut server) = start_classified(config().racksched(1, reassembly), OneClass);
    let message = RackSchedMessage::request(3, 4, 1, 77);
    let total = 3 * HEADER + 6;
    for (sequence, payload) in [(1, b"cd"), (2, b"ef"), (2, b"ef"), (0, b"ab")] {
        client.send(&packet(message, sequence, total, payload));
    }
    // One by itself, and none at all.
    client.send(&packet(
        RackSchedMessage::request(3, 5, 1, 78),
        0,
        HEADER,
        b"",
    ));
    client.send(b"hello");
    let mut arrivals = server.poll();
    arrivals.extend(server.poll());
    let [whole, single] = arrivals.try_into().unwrap();
    let (first, payload) = RackSchedMessage::parse(&whole.request).unwrap();
    assert_eq!((first.generated_nanos, payload), (77, &b"abcdef"[..]));
    server.conclude(whole.route, Ok(Some(whole.request.echo())));
    server.conclude(single.route, Ok(Some(single.request.echo())));
    server.assert_balanced();
    let replies = client.received();
    let (reply, payload) = RackSchedMessage::parse(&replies[0]).unwrap();
    let expected = RackSchedMessage {
        total_length: (HEADER + 6) as u32,
        // The other was there still.
        ..message.reply(1)
    };
    assert_eq!((reply, payload), (expected, &b"abcdef"[..]));
    let (reply, _) = RackSchedMessage::parse(&replies[1]).unwrap();
    assert_eq!(reply.queue_lengths[0], 0);
    let reassembly = server.counts().reassembly;
    assert_eq!((reassembly.whole, reassembly.assembled), (1, 1));
    assert_eq!((reassembly.duplicate, reassembly.not_a_request), (1, 1));
}

#[test]
fn a_request_longer_than_a_packet_is_whole_and_its_echo_cut_and_one_longer_than_a_buffer_is_dropped()
 {
    let reassembly = ReassemblyConfig::default()
        .requests(2)
        .packets(4)
        .max_request(4000);
    let (mut client, mut server) = start_classified(config().racksched(1, reassembly), OneClass);
    // Behind 42 bytes of headers, a buffer of 2048 has room for 2006.
    for (number, length) in [(1, 2006 - HEADER), (2, 2007 - HEADER)] {
        let message = RackSchedMessage::request(3, number, 1, 77);
        let payload = vec![7; length];
        let total = 2 * HEADER + length;
        for (sequence, part) in (0..).zip(payload.chunks(length.div_ceil(2))) {
            client.send(&packet(message, sequence, total, part));
        }
    }
    let [arrival] = server.poll().try_into().unwrap();
    assert_eq!(arrival.request.len(), 2006);
    let reply = arrival.request.echo();
    assert_eq!(reply.len(), 1472);
    server.conclude(arrival.route, Ok(Some(reply)));
    server.assert_balanced();
    assert_eq!(client.received()[0].len(), 1472);
    assert_eq!(server.counts().unfit, 1);
}

#[test]
fn packets_of_others_are_not_put_together_and_what_lacks_a_packet_expires() {
    let reassembly = ReassemblyConfig::default();
    let (mut client, mut server) = start_classified(config().racksched(1, reassembly), OneClass);
    let message = RackSchedMessage::request(3, 4, 1, 77);
    let total = 2 * HEADER + 2;
    client.send(&packet(message, 0, total, b"a"));
    // From another port.
    client.send_changed(&packet(message, 1, total, b"b"), |frame| {
        frame[34] ^= 1;
        frame[40..42].fill(0);
    });
    assert!(server.poll().is_empty());
    assert_eq!(server.counts().reassembly.held, 2);
    let later = 17 + reassembly.timeout.as_nanos() as u64 + 1;
    server
        .dataplane
        .poll(later, 8, |_| unreachable!("nothing comes"));
    assert_eq!(server.counts().reassembly.expired, 2);
    server.assert_balanced();
}

#[test]
fn once_closed_it_turns_away_but_still_sends() {
    let (mut client, mut server) = start();
    client.send(b"before");
    let arrival = server.poll().pop().unwrap();
    server.dataplane.close();
    client.send(b"after");
    assert!(server.poll().is_empty());
    server.conclude(arrival.route, Ok(Some(arrival.request.echo())));
    server.assert_balanced();
    assert_eq!(client.received(), [b"before"]);
    assert_eq!(server.counts().refused, 1);
}

#[test]
fn flows_are_told_apart_and_recognised() {
    let (mut client, mut server) = start();
    client.send(b"a");
    client.send(b"b");
    let flows: Vec<_> = server.poll().iter().map(|arrival| arrival.flow).collect();
    assert_eq!(flows[0], flows[1]);
    client.send_changed(b"c", |frame| {
        frame[34] ^= 1;
        frame[40..42].fill(0);
    });
    assert_ne!(server.poll()[0].flow, flows[0]);
}

#[test]
fn what_is_left_when_the_dataplane_goes_is_sent_or_outlives_it() {
    let (mut client, mut server) = start();
    client.send(b"answered");
    client.send(b"held");
    let [answered, held] = server.poll().try_into().unwrap();
    server.conclude(answered.route, Ok(Some(answered.request.echo())));
    let Server { dataplane, replier } = server;
    drop(dataplane);
    assert_eq!(client.received(), [b"answered"]);
    assert_eq!(&*held.request, b"held");
    let outgoing = Dataplane::<MemoryDevice>::conclude(held.route, Ok(Some(held.request.echo())));
    { replier }.send(outgoing);
}

#[test]
fn settings_out_of_range_are_refused() {
    for (config, says) in [
        (config().buffers(0), "buffers is 0"),
        (config().batch(1025), "batch is 1025"),
        (
            config().racksched(0, ReassemblyConfig::default()),
            "racksched's classes is 0",
        ),
    ] {
        let (_, device) = wire(1, 1, 64);
        let error: InterfaceError = Dataplane::new(device, config).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}
