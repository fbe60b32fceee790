//! The parsers and the stack against any bytes: the corpus beside them, and some random input each
//! time. What they accept, an independent implementation (`etherparse`) must accept, and read
//! alike.
//!
//! For millions of inputs:
//! `BOLERO_RANDOM_ITERATIONS=10000000 cargo test --release -p shinjuku-dataplane fuzz`, or
//! `cargo bolero test` with a fuzzer.

use std::collections::VecDeque;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use bolero::check;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use shinjuku_dataplane::memory::{MemoryDevice, MemoryFrame, wire};
use shinjuku_dataplane::packet::{Arp, Ethernet, Icmp, Ipv4, MacAddr, Udp};
use shinjuku_dataplane::{
    Buffer, Datagram, Dataplane, DataplaneConfig, DataplaneCounts, DataplaneReplier, Device,
    DropReason, Interface, InterfaceConfig, Offload, Outbound, RequestId, Verdict,
    VerifiedChecksums,
};
use shinjuku_net::wire::{RackSchedKind, RackSchedMessage, ReassemblyConfig};
use shinjuku_net::{Arrival, Failure, Refusal, Replier, Transport};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 9000;
/// Where the frames of the corpus are, for the fuzzer, and under their names for the test that
/// knows what they are.
const CORPUS: &str = "tests/stack/__fuzz__/fuzz__any_frame_comes_to_one_end/corpus";
const STEPS: &str = "tests/stack/__fuzz__/fuzz__any_steps_keep_the_balance/corpus";

fn config() -> InterfaceConfig {
    InterfaceConfig::new(MAC, IP, &[PORT])
}

#[test]
fn any_frame_comes_to_one_end() {
    check!().for_each(comes_to_one_end);
}

/// The corpus's frames, changed in places: the first byte says which frame, the second what is made
/// right again, and three by three follow where and to what.
#[test]
fn likely_frames_come_to_one_end() {
    let corpus: Vec<_> = corpus().map(|(_, frame)| frame).collect();
    check!().for_each(|input: &[u8]| {
        let [which, mend, changes @ ..] = input else {
            return;
        };
        let mut frame = corpus[usize::from(*which) % corpus.len()].clone();
        for change in changes.chunks_exact(3) {
            let [high, low, value] = *change else {
                continue;
            };
            let at = usize::from(u16::from_be_bytes([high & 1, low]));
            match frame.get_mut(at) {
                Some(byte) => *byte = value,
                None => frame.resize(at, value),
            }
        }
        if mend & 1 != 0 {
            mend_ipv4(&mut frame);
        }
        if mend & 2 != 0
            && let Some(checksum) = frame.get_mut(40..42)
        {
            checksum.fill(0);
        }
        comes_to_one_end(&frame);
    });
}

/// Makes the checksum of an IPv4 header behind an untagged one right, so that what is behind it is
/// looked at.
fn mend_ipv4(frame: &mut [u8]) {
    if let Some(packet) = frame.get_mut(14..)
        && let Ok((header, _)) = etherparse::Ipv4Header::from_slice(packet)
    {
        packet[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    }
}

fn comes_to_one_end(input: &[u8]) {
    let mut interface = Interface::new(config()).unwrap();
    let counters = interface.counters();
    let mut frame = input.to_vec();
    let verdict = interface.receive(&mut frame, VerifiedChecksums::default(), 0);
    let counts = counters.read();
    let dropped: u64 = counts.dropped.iter().sum();
    let answered = counts.arp_answered + counts.echo_answered;
    assert_eq!(counts.received, 1);
    assert_eq!(counts.delivered + answered + counts.arp_learnt + dropped, 1);
    match verdict {
        Verdict::Deliver(delivery) => {
            assert_eq!(counts.delivered, 1);
            let payload = &input[delivery.payload.clone()];
            assert_eq!(
                payload,
                oracle_delivers(input),
                "the oracle sees another payload"
            );
            // Any answer has its place.
            frame.truncate(delivery.payload.start);
            frame.extend(payload.iter().rev());
            let checksums = delivery.headers.reply(&mut frame, Offload::default());
            assert!(checksums.is_some());
            let reversed: Vec<u8> = payload.iter().rev().copied().collect();
            assert_eq!(oracle_reads(&frame), reversed);
        }
        Verdict::Answer { length } => {
            assert_eq!(answered, 1);
            assert!(length <= frame.len());
            oracle_sees_an_answer(&frame[..length]);
        }
        Verdict::Learnt => assert_eq!(counts.arp_learnt, 1),
        Verdict::Drop(cause) => {
            assert_eq!(counts.dropped_for(cause), 1);
            assert_eq!(frame, input, "what is dropped is left alone");
        }
    }
}

/// The payload, if the oracle finds nothing wrong with the datagram, and it is for us.
fn oracle_delivers(frame: &[u8]) -> &[u8] {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(NetSlice::Ipv4(ip)) = packet.net else {
        panic!("the oracle sees no IPv4");
    };
    assert_eq!(ip.header().destination_addr(), IP);
    assert!(!ip.header().is_fragmenting_payload());
    oracle_reads(frame)
}

/// A datagram's payload, its checksums right.
fn oracle_reads(frame: &[u8]) -> &[u8] {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (packet.net, packet.transport)
    else {
        panic!("the oracle sees no datagram");
    };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    let checksum = udp
        .to_header()
        .calc_checksum_ipv4(&header, udp.payload())
        .unwrap();
    // Some write zero as all ones, and mean the same.
    let (found, right) = (udp.checksum(), checksum);
    assert!(found == 0 || found == right || found == 0xffff && right == 0);
    udp.payload()
}

fn oracle_sees_an_answer(frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    match packet.net {
        Some(NetSlice::Arp(arp)) => {
            assert_eq!(arp.operation(), etherparse::ArpOperation::REPLY);
            assert_eq!(arp.sender_hw_addr(), MAC.0);
        }
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else {
                panic!("the oracle sees no ICMP");
            };
            let kind = icmp.icmp_type();
            assert!(matches!(kind, etherparse::Icmpv4Type::EchoReply(_)));
            let right = kind.calc_checksum(icmp.payload());
            let found = icmp.checksum();
            // Zero has two forms in ones' complement; an update may give the other.
            assert!(found == right || found == !right && found % 0xffff == 0);
        }
        other => panic!("the oracle sees {other:?}"),
    }
}

#[test]
fn every_layer_reads_any_bytes() {
    check!().for_each(|input: &[u8]| {
        if let Ok(ethernet) = Ethernet::parse(input) {
            assert_eq!(ethernet.payload, &input[ethernet.header_length..]);
        }
        let _ = Arp::parse(input);
        if let Ok(icmp) = Icmp::parse(input) {
            assert_eq!(icmp.length(), input.len());
            let _ = (icmp.verify(), icmp.is_echo_request());
        }
        if let Ok(ipv4) = Ipv4::parse(input) {
            let length = ipv4.header_length() + ipv4.payload.len();
            assert_eq!(length, usize::from(ipv4.header.total_length()));
            let _ = ipv4.verify();
            if let Ok(udp) = Udp::parse(ipv4.payload) {
                assert_eq!(udp.payload, &ipv4.payload[8..]);
                let _ = udp.verify(&ipv4);
            }
        }
    });
}

/// What may happen to a server, as the fuzzer's bytes have it.
struct Steps<'a> {
    bytes: std::slice::Iter<'a, u8>,
    /// The client's end of the wire, and its stack.
    theirs: MemoryDevice,
    client: Interface,
    server: Dataplane<MemoryDevice>,
    replier: DataplaneReplier<MemoryFrame>,
    held: VecDeque<Arrival<Datagram<MemoryFrame>, RequestId>>,
    now: u64,
}

impl<'a> Steps<'a> {
    const BUFFERS: usize = 64;

    fn new(bytes: &'a [u8]) -> Self {
        let (theirs, ours) = wire(8, Self::BUFFERS, 2048);
        let reassembly = ReassemblyConfig::default()
            .requests(2)
            .packets(4)
            .max_request(150)
            .timeout(Duration::from_nanos(1000));
        let config = DataplaneConfig::new(config())
            .buffers(8)
            .batch(4)
            .racksched(2, reassembly);
        let mut server = Dataplane::new(ours, config).unwrap();
        let client = InterfaceConfig::new(MacAddr([2; 6]), Ipv4Addr::new(10, 0, 0, 2), &[1234]);
        Self {
            bytes: bytes.iter(),
            theirs,
            client: Interface::new(client).unwrap(),
            replier: server.replier().unwrap(),
            server,
            held: VecDeque::new(),
            now: 0,
        }
    }

    fn byte(&mut self) -> usize {
        self.bytes.next().copied().unwrap_or(0).into()
    }

    /// A packet in RackSched's format whose numbers are small, so that some belong together.
    fn racksched(&mut self) -> Vec<u8> {
        let [kind, numbers, total, length] = [(); 4].map(|()| self.byte());
        let mut message = RackSchedMessage::request(0, 0, 0, 0);
        message.client = (numbers & 1) as u16;
        message.request = (numbers >> 1 & 1) as u32;
        message.sequence = (numbers >> 2 & 7) as u16;
        message.total_length = total as u32;
        let mut packet = message.to_bytes().to_vec();
        packet[0] = kind as u8 & 3;
        packet.resize(packet.len() + length % 32, length as u8);
        let mut frame = vec![0; Interface::PAYLOAD];
        frame.extend(packet);
        let to = SocketAddrV4::new(IP, PORT);
        let written = self
            .client
            .write_datagram(&mut frame, 1234, MAC, to, Offload::default());
        written.unwrap();
        frame
    }

    fn send(&mut self, frame: &[u8]) {
        if let Some(mut buffer) = self.theirs.allocate() {
            buffer.set_length(frame.len());
            buffer.frame_mut().copy_from_slice(frame);
            let checksums = Default::default();
            let mut frames = vec![Outbound { buffer, checksums }];
            self.theirs.transmit(&mut frames);
            // There may be no room on the wire.
            frames
                .into_iter()
                .for_each(|frame| self.theirs.free(frame.buffer));
        }
    }

    fn poll(&mut self, room: usize) {
        let held = &mut self.held;
        let before = held.len();
        self.server
            .poll(self.now, room, |arrival| held.push_back(arrival));
        assert!(held.len() <= before + room);
        for Arrival { request, .. } in held.iter().skip(before) {
            let (message, _) = RackSchedMessage::parse(request).unwrap();
            assert_eq!(
                (message.kind, message.sequence),
                (RackSchedKind::Request, 0)
            );
        }
    }

    /// Has the request that has been here for longest come to an end, of one kind or another.
    fn end_one(&mut self, how: usize) {
        let Some(Arrival { request, route, .. }) = self.held.pop_front() else {
            return;
        };
        let answer = match how % 4 {
            0 => return self.server.refuse(request, route, Refusal::QueueFull),
            1 => Ok(None),
            2 => Err(Failure::Panicked),
            _ => Ok(Some(request.echo())),
        };
        let outgoing = Dataplane::<MemoryDevice>::conclude(route, answer);
        self.replier.send(outgoing);
    }

    /// Takes off the wire what is there; how much that was.
    fn receive(&mut self) -> usize {
        let mut frames = Vec::new();
        self.theirs.receive(8, &mut frames);
        let count = frames.len();
        frames
            .into_iter()
            .for_each(|frame| self.theirs.free(frame.buffer));
        count
    }
}

/// Frames, replies and time in any order: nothing is lost, and whatever reaches the handler is a
/// request.
#[test]
fn any_steps_keep_the_balance() {
    let corpus: Vec<_> = corpus().map(|(_, frame)| frame).collect();
    check!().for_each(|input: &[u8]| {
        keeps_the_balance(&corpus, input);
    });
}

/// Its corpus leads to every end that a packet can come to.
#[test]
fn the_corpus_of_steps_leads_everywhere() {
    let corpus: Vec<_> = corpus().map(|(_, frame)| frame).collect();
    let counts = files(STEPS).map(|(_, input)| keeps_the_balance(&corpus, &input));
    let counts: Vec<_> = counts.collect();
    let ends: [fn(&DataplaneCounts) -> u64; 13] = [
        |counts| counts.replies,
        |counts| counts.refused,
        |counts| counts.unanswered,
        |counts| counts.no_buffer,
        |counts| counts.interface.arp_answered,
        |counts| counts.interface.dropped.iter().sum(),
        |counts| counts.reassembly.assembled,
        |counts| counts.reassembly.expired,
        |counts| counts.reassembly.evicted,
        |counts| counts.reassembly.not_a_request,
        |counts| counts.reassembly.sequence,
        |counts| counts.reassembly.length,
        |counts| counts.reassembly.duplicate,
    ];
    for (number, end) in ends.iter().enumerate() {
        assert!(counts.iter().any(|counts| end(counts) > 0), "end {number}");
    }
}

fn keeps_the_balance(corpus: &[Vec<u8>], input: &[u8]) -> DataplaneCounts {
    let mut steps = Steps::new(input);
    while !steps.bytes.as_slice().is_empty() {
        match steps.byte() % 8 {
            0 => {
                let which = steps.byte();
                steps.send(&corpus[which % corpus.len()]);
            }
            1..=3 => {
                let frame = steps.racksched();
                steps.send(&frame);
            }
            4 => {
                let how = steps.byte();
                steps.end_one(how);
            }
            5 => steps.now += steps.byte() as u64 * 16,
            6 => {
                steps.receive();
            }
            _ => {
                let room = steps.byte() % 8;
                steps.poll(room);
            }
        }
    }
    steps.server.close();
    for how in 0.. {
        let before = steps.server.counters().read();
        steps.end_one(how);
        steps.now += 10_000;
        steps.poll(8);
        let received = steps.receive();
        let counts = steps.server.counters().read();
        if received == 0 && steps.held.is_empty() && counts == before {
            break;
        }
    }
    let counts = steps.server.counters().read();
    let ends = counts.malformed
        + counts.refused
        + counts.replies
        + counts.unanswered
        + counts.unsendable
        + counts.unfit
        + counts.reassembly.absorbed();
    assert_eq!(counts.interface.delivered, ends, "{counts:?}");
    assert_eq!((counts.out, counts.reassembly.held), (0, 0), "{counts:?}");
    assert_eq!(steps.server.device().free_buffers(), Steps::BUFFERS);
    assert_eq!(steps.theirs.free_buffers(), Steps::BUFFERS);
    counts
}

/// The corpus's files and what they say, by name.
fn corpus() -> impl Iterator<Item = (String, Vec<u8>)> {
    files(CORPUS)
}

fn files(folder: &str) -> impl Iterator<Item = (String, Vec<u8>)> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
    let mut frames: Vec<_> = files
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect();
    frames.sort();
    frames.into_iter()
}

/// A file's name begins with what becomes of it: a cause in small letters, `delivered`, or
/// `answered`. Through the whole transport: what is dropped is counted under that cause alone, and
/// does not reach the handler.
#[test]
fn the_corpus_is_judged_as_its_names_say() {
    let mut seen = [false; DropReason::COUNT];
    for (name, frame) in corpus() {
        let expected = name.split('-').next().unwrap();
        let (mut theirs, ours) = wire(1, 4, 2048);
        let dataplane = DataplaneConfig::new(config()).buffers(1);
        let mut dataplane = Dataplane::new(ours, dataplane).unwrap();
        let mut buffer = theirs.allocate().unwrap();
        buffer.set_length(frame.len());
        buffer.frame_mut().copy_from_slice(&frame);
        let checksums = Default::default();
        theirs.transmit(&mut vec![Outbound { buffer, checksums }]);
        let mut delivered = 0;
        dataplane.poll(0, 1, |Arrival { .. }| delivered += 1);
        let counts = dataplane.counters().read().interface;
        assert_eq!(counts.received, 1, "{name}");
        assert_eq!(delivered, counts.delivered, "{name}");
        let causes: Vec<_> = DropReason::all()
            .filter(|cause| counts.dropped_for(*cause) > 0)
            .collect();
        match expected {
            "delivered" => assert_eq!(delivered, 1, "{name}: {causes:?}"),
            "answered" => assert_eq!(counts.arp_answered + counts.echo_answered, 1, "{name}"),
            _ => {
                let [cause] = causes[..] else {
                    panic!("{name}: {counts:?}");
                };
                let told = match cause {
                    DropReason::Malformed(error) => format!("{error:?}"),
                    cause => format!("{cause:?}"),
                };
                assert_eq!(told.to_lowercase(), expected, "{name}");
                seen[cause.index()] = true;
            }
        }
        assert_eq!(
            dataplane.device().free_buffers() + dataplane.counters().read().out as usize,
            4,
            "{name}"
        );
    }
    for cause in DropReason::all() {
        assert!(seen[cause.index()], "no frame in the corpus for {cause:?}");
    }
}
