//! The parsers and the stack against any bytes: the corpus beside them, and some random input each time. What they
//! accept, an independent implementation (`etherparse`) must accept, and read alike.
//!
//! For millions of inputs: `BOLERO_RANDOM_ITERATIONS=10000000 cargo test --release -p shinjuku-net --test dataplane_fuzz`,
//! or `cargo bolero test` with a fuzzer.
#![forbid(unsafe_code)]

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use bolero::check;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use shinjuku_net::dataplane::memory::wire;
use shinjuku_net::dataplane::{
    Buffer, Cause, Dataplane, DataplaneConfig, Device, Interface, InterfaceConfig, Offload,
    Outbound, Verdict, Verified,
};
use shinjuku_net::packet::{Arp, Ethernet, Icmp, Ipv4, MacAddr, Udp};
use shinjuku_net::{Arrival, Transport};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 9000;
/// Where the frames of the corpus are, for the fuzzer, and under their names for the test that knows what they are.
const CORPUS: &str = "tests/__fuzz__/any_frame_comes_to_one_end/corpus";

fn config() -> InterfaceConfig {
    InterfaceConfig::new(MAC, IP, &[PORT])
}

#[test]
fn any_frame_comes_to_one_end() {
    check!().for_each(comes_to_one_end);
}

/// The corpus's frames, changed in places: the first byte says which frame, the second what is made right again, and
/// three by three follow where and to what.
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

/// Makes the checksum of an IPv4 header behind an untagged one right, so that what is behind it is looked at.
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
    let verdict = interface.receive(&mut frame, Verified::default(), 0);
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

/// The corpus's files and what they say, by name.
fn corpus() -> impl Iterator<Item = (String, Vec<u8>)> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(CORPUS)).unwrap();
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

/// A file's name begins with what becomes of it: a cause in small letters, `delivered`, or `answered`. Through the whole
/// transport: what is dropped is counted under that cause alone, and reaches nobody.
#[test]
fn the_corpus_is_judged_as_its_names_say() {
    let mut seen = [false; Cause::COUNT];
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
        let causes: Vec<_> = Cause::all()
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
                    Cause::Malformed(flaw) => format!("{flaw:?}"),
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
    for cause in Cause::all() {
        assert!(seen[cause.index()], "no frame in the corpus for {cause:?}");
    }
}
