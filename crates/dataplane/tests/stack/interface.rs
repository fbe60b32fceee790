//! The IP stack's verdicts on frames that an independent implementation (`etherparse`) wrote, and
//! its answers as that implementation reads them.

use std::net::{Ipv4Addr, SocketAddrV4};

use etherparse::{
    ArpHardwareId, ArpOperation, EtherType, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
    VlanId,
};
use proptest::prelude::*;
use shinjuku_dataplane::packet::{MacAddr, ParseError, Vlans};
use shinjuku_dataplane::{
    Checksums, DropReason, Interface, InterfaceConfig, InterfaceError, Offload, Resolution,
    Verdict, VerifiedChecksums,
};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const THEIRS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIR_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 9000;
const SECOND: u64 = 1_000_000_000;

fn config() -> InterfaceConfig {
    InterfaceConfig::new(OURS, OUR_IP, &[PORT, 7])
}

fn interface() -> Interface {
    Interface::new(config()).unwrap()
}

/// A datagram's frame from them to us.
fn datagram(vlans: &[u16], options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut header = etherparse::Ipv4Header::new(
        (8 + payload.len()).try_into().unwrap(),
        17,
        etherparse::IpNumber::UDP,
        THEIR_IP.octets(),
        OUR_IP.octets(),
    )
    .unwrap();
    header.options = options.try_into().unwrap();
    let ip = etherparse::IpHeaders::Ipv4(header, Default::default());
    let ethernet = PacketBuilder::ethernet2(THEIRS.0, OURS.0);
    let id = |vlan: u16| VlanId::try_new(vlan).unwrap();
    let builder = match vlans {
        [] => ethernet.ip(ip),
        [vlan] => ethernet.single_vlan(id(*vlan)).ip(ip),
        [outer, inner] => ethernet.double_vlan(id(*outer), id(*inner)).ip(ip),
        _ => unreachable!("two tags at most"),
    };
    let mut frame = Vec::new();
    builder.udp(1234, PORT).write(&mut frame, payload).unwrap();
    frame
}

fn judged(interface: &mut Interface, frame: &mut [u8]) -> Verdict {
    interface.receive(frame, VerifiedChecksums::default(), 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_the_oracle_writes_is_delivered_and_the_reply_is_as_it_should_be(
        vlans in prop::collection::vec(0..4095_u16, 0..=2),
        option_words in 0..=10_usize,
        payload in prop::collection::vec(any::<u8>(), 0..300),
        padding in prop::collection::vec(any::<u8>(), 0..20),
        answer in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let options = vec![0x44; option_words * 4];
        let mut interface = interface();
        let mut frame = datagram(&vlans, &options, &payload);
        let sent = frame.len();
        frame.extend(&padding);
        let Verdict::Deliver(request) = judged(&mut interface, &mut frame) else {
            panic!("not delivered");
        };
        prop_assert_eq!(&frame[request.payload.clone()], &*payload);
        prop_assert_eq!(request.payload.end, sent);
        prop_assert_eq!(request.port, PORT);
        prop_assert_eq!(request.peer.mac, THEIRS);
        prop_assert_eq!(request.peer.address, SocketAddrV4::new(THEIR_IP, 1234));
        let outer_first = [vlans.first().copied(), vlans.get(1).copied()];
        prop_assert_eq!(request.peer.vlans, Vlans(outer_first));

        frame.truncate(request.payload.start);
        frame.extend(&answer);
        prop_assert_eq!(request.headers.reply(&mut frame, Offload::default()), Some(Checksums::default()));
        let reply = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(etherparse::LinkSlice::Ethernet2(link)) = reply.link.clone() else { panic!("no Ethernet") };
        prop_assert_eq!((link.source(), link.destination()), (OURS.0, THEIRS.0));
        let Some(NetSlice::Ipv4(ip)) = reply.net.clone() else { panic!("no IPv4") };
        let ip = ip.header().to_header();
        prop_assert_eq!((ip.source, ip.destination), (OUR_IP.octets(), THEIR_IP.octets()));
        prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        prop_assert_eq!(ip.time_to_live, 64);
        let nothing = vec![1; option_words * 4];
        prop_assert_eq!(ip.options.as_slice(), &*nothing, "their options are not ours");
        let Some(TransportSlice::Udp(udp)) = reply.transport else { panic!("no UDP") };
        prop_assert_eq!((udp.source_port(), udp.destination_port()), (PORT, 1234));
        prop_assert_eq!(udp.payload(), &*answer);
        let checksum = udp.to_header().calc_checksum_ipv4(&ip, &answer).unwrap();
        prop_assert_eq!(udp.checksum(), checksum);
        prop_assert_eq!(interface.counters().read().delivered, 1);
    }
}

/// An ARP message's frame from them.
fn arp(operation: ArpOperation, ip: Ipv4Addr, to: MacAddr, target: Ipv4Addr) -> Vec<u8> {
    let message = etherparse::ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &THEIRS.0,
        &ip.octets(),
        &OURS.0,
        &target.octets(),
    )
    .unwrap();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(THEIRS.0, to.0)
        .arp(message)
        .write(&mut frame)
        .unwrap();
    frame
}

fn arp_of(frame: &[u8]) -> etherparse::ArpPacket {
    match SlicedPacket::from_ethernet(frame).unwrap().net {
        Some(NetSlice::Arp(arp)) => arp.to_packet(),
        other => panic!("no ARP: {other:?}"),
    }
}

#[test]
fn a_question_for_our_address_is_answered() {
    let mut interface = interface();
    for (sender, to) in [
        (THEIR_IP, MacAddr::BROADCAST),
        (THEIR_IP, OURS),
        (Ipv4Addr::UNSPECIFIED, MacAddr::BROADCAST),
    ] {
        let mut frame = arp(ArpOperation::REQUEST, sender, to, OUR_IP);
        let length = frame.len();
        let verdict = judged(&mut interface, &mut frame);
        assert_eq!(verdict, Verdict::Answer { length });
        let answer = arp_of(&frame);
        assert_eq!(answer.operation, ArpOperation::REPLY);
        assert_eq!(answer.sender_hw_addr(), OURS.0);
        assert_eq!(answer.sender_protocol_addr(), OUR_IP.octets());
        assert_eq!(answer.target_hw_addr(), THEIRS.0);
        assert_eq!(answer.target_protocol_addr(), sender.octets());
        assert_eq!((&frame[..6], &frame[6..12]), (&THEIRS.0[..], &OURS.0[..]));
    }
    // The station that asks is remembered.
    assert_eq!(interface.resolve(THEIR_IP, 0), Resolution::Known(THEIRS));
    assert_eq!(interface.counters().read().arp_answered, 3);
}

#[test]
fn an_address_is_asked_for_until_it_answers_or_the_tries_are_used_up() {
    let mut interface = interface();
    assert_eq!(interface.resolve(THEIR_IP, 0), Resolution::Ask(THEIR_IP));
    let mut request = [0; Interface::ARP_FRAME];
    interface.write_arp_request(&mut request, THEIR_IP).unwrap();
    let request = arp_of(&request);
    assert_eq!(request.operation, ArpOperation::REQUEST);
    assert_eq!(request.target_protocol_addr(), THEIR_IP.octets());
    assert_eq!(interface.resolve(THEIR_IP, SECOND - 1), Resolution::Wait);
    for second in 1..3 {
        let now = second * SECOND;
        assert_eq!(interface.resolve(THEIR_IP, now), Resolution::Ask(THEIR_IP));
        assert_eq!(interface.resolve(THEIR_IP, now + 1), Resolution::Wait);
    }
    let unreachable = interface.resolve(THEIR_IP, 3 * SECOND);
    assert_eq!(unreachable, Resolution::Unreachable);
    // It answers late; that holds a minute.
    let mut answer = arp(ArpOperation::REPLY, THEIR_IP, OURS, OUR_IP);
    let answered = 3 * SECOND + 1;
    let learnt = interface.receive(&mut answer, VerifiedChecksums::default(), answered);
    assert_eq!(learnt, Verdict::Learnt);
    let known = Resolution::Known(THEIRS);
    assert_eq!(interface.resolve(THEIR_IP, answered), known);
    let nearly = answered + 60 * SECOND - 1;
    assert_eq!(interface.resolve(THEIR_IP, nearly), known);
    // Then it is asked for again, and used as long as that goes on.
    for second in 0..3 {
        let now = nearly + 1 + second * SECOND;
        let renewed = interface.resolve(THEIR_IP, now);
        assert_eq!(renewed, Resolution::Renew(THEIRS, THEIR_IP));
        assert_eq!(interface.resolve(THEIR_IP, now + SECOND - 1), known);
    }
    let given_up = interface.resolve(THEIR_IP, nearly + 1 + 3 * SECOND);
    assert_eq!(given_up, Resolution::Ask(THEIR_IP));
    // An entry that was long unused is not used while it is asked for.
    let answered = answered + 1000 * SECOND;
    interface.receive(&mut answer, VerifiedChecksums::default(), answered);
    let later = interface.resolve(THEIR_IP, answered + 120 * SECOND);
    assert_eq!(later, Resolution::Ask(THEIR_IP));
}

#[test]
fn what_is_silent_is_asked_again_later() {
    let mut interface = interface();
    for second in 0..3 {
        interface.resolve(THEIR_IP, second * SECOND);
    }
    for now in [3 * SECOND, 4 * SECOND - 1] {
        let silent = interface.resolve(THEIR_IP, now);
        assert_eq!(silent, Resolution::Unreachable);
    }
    let anew = interface.resolve(THEIR_IP, 4 * SECOND);
    assert_eq!(anew, Resolution::Ask(THEIR_IP));
}

#[test]
fn other_nets_are_reached_by_the_gateway_or_not_at_all() {
    let elsewhere = Ipv4Addr::new(192, 0, 2, 1);
    let lost = interface().resolve(elsewhere, 0);
    assert_eq!(lost, Resolution::Unreachable);
    let config = config().gateway(THEIR_IP).neighbour(THEIR_IP, THEIRS);
    let mut interface = Interface::new(config).unwrap();
    let known = Resolution::Known(THEIRS);
    assert_eq!(interface.resolve(elsewhere, 100 * SECOND), known);
    for nobody in [OUR_IP, Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 0, 255)] {
        let never = interface.resolve(nobody, 0);
        assert_eq!(never, Resolution::Unreachable);
    }
}

#[test]
fn the_cache_is_bounded_and_forgets_what_is_oldest() {
    let mut interface = Interface::new(config().neighbours(2).neighbour(THEIR_IP, THEIRS)).unwrap();
    let host = |last| Ipv4Addr::new(10, 0, 0, last);
    for (now, last) in (0..).zip(10..20) {
        let mut question = arp(ArpOperation::REQUEST, host(last), OURS, OUR_IP);
        interface.receive(&mut question, VerifiedChecksums::default(), now);
    }
    let known = Resolution::Known(THEIRS);
    assert_eq!(interface.resolve(THEIR_IP, 10), known, "given for ever");
    assert_eq!(interface.resolve(host(19), 10), known);
    assert_eq!(interface.resolve(host(18), 10), known);
    assert_eq!(interface.resolve(host(17), 10), Resolution::Ask(host(17)));
}

/// RFC 826: a station that has moved says so to all, and those who know it believe it.
#[test]
fn who_is_known_may_move() {
    let mut interface =
        Interface::new(config().neighbour(Ipv4Addr::new(10, 0, 0, 3), OURS)).unwrap();
    let mut question = arp(ArpOperation::REQUEST, THEIR_IP, OURS, OUR_IP);
    question[22..28].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    judged(&mut interface, &mut question);
    let before = Resolution::Known(MacAddr([2, 9, 9, 9, 9, 9]));
    assert_eq!(interface.resolve(THEIR_IP, 0), before);
    let to_all = |ip| arp(ArpOperation::REQUEST, ip, MacAddr::BROADCAST, ip);
    let verdict = judged(&mut interface, &mut to_all(THEIR_IP));
    assert_eq!(verdict, Verdict::Learnt);
    assert_eq!(interface.resolve(THEIR_IP, 0), Resolution::Known(THEIRS));
    // Strangers are not remembered for that, nor is what was given changed.
    let stranger = Ipv4Addr::new(10, 0, 0, 4);
    let verdict = judged(&mut interface, &mut to_all(stranger));
    assert_eq!(verdict, Verdict::Drop(DropReason::NotForUs));
    assert_eq!(interface.resolve(stranger, 0), Resolution::Ask(stranger));
    let given = Ipv4Addr::new(10, 0, 0, 3);
    judged(&mut interface, &mut to_all(given));
    assert_eq!(interface.resolve(given, 0), Resolution::Known(OURS));
}

/// What is sent unasked is not tagged. A station in a VLAN would not get it, and must not stand in
/// for a station that would.
#[test]
fn questions_in_a_vlan_are_answered_and_teach_nothing() {
    for (tag, known) in [(5_u16, false), (0, true)] {
        let mut interface = interface();
        let mut question = arp(ArpOperation::REQUEST, THEIR_IP, OURS, OUR_IP);
        let [high, low] = tag.to_be_bytes();
        question.splice(12..12, [0x81, 0, high, low]);
        let length = question.len();
        let verdict = judged(&mut interface, &mut question);
        assert_eq!(verdict, Verdict::Answer { length });
        assert_eq!(question[12..16], [0x81, 0, high, low]);
        let resolution = interface.resolve(THEIR_IP, 0);
        assert_eq!(resolution == Resolution::Known(THEIRS), known, "{tag}");
    }
}

#[test]
fn answers_that_nobody_asked_for_teach_nothing() {
    let mut interface = interface();
    let mut answer = arp(ArpOperation::REPLY, THEIR_IP, OURS, OUR_IP);
    let verdict = judged(&mut interface, &mut answer);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unasked));
    assert_eq!(interface.resolve(THEIR_IP, 0), Resolution::Ask(THEIR_IP));
}

#[test]
fn an_echo_request_is_sent_back() {
    let mut interface = interface();
    for payload in [&b""[..], b"odd", b"0123456789abcdef"] {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(THEIRS.0, OURS.0)
            .ipv4(THEIR_IP.octets(), OUR_IP.octets(), 3)
            .icmpv4_echo_request(77, 5)
            .write(&mut frame, payload)
            .unwrap();
        let length = frame.len();
        frame.resize(length.max(60), 0xee);
        let verdict = judged(&mut interface, &mut frame);
        assert_eq!(verdict, Verdict::Answer { length });
        let reply = SlicedPacket::from_ethernet(&frame[..length]).unwrap();
        let Some(TransportSlice::Icmpv4(icmp)) = reply.transport else {
            panic!("no ICMP");
        };
        let echo = etherparse::IcmpEchoHeader { id: 77, seq: 5 };
        let kind = etherparse::Icmpv4Type::EchoReply(echo);
        assert_eq!(icmp.icmp_type(), kind);
        assert_eq!(icmp.payload(), payload);
        assert_eq!(icmp.checksum(), kind.calc_checksum(payload));
        let Some(NetSlice::Ipv4(ip)) = reply.net else {
            panic!("no IPv4");
        };
        assert_eq!(ip.header().destination_addr(), THEIR_IP);
    }
    assert_eq!(interface.counters().read().echo_answered, 3);
}

/// A frame and why it is dropped.
type Dropped = (Vec<u8>, DropReason);

/// A good datagram's frame, changed by `change`.
fn changed(change: fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = datagram(&[], &[], b"twelve bytes");
    change(&mut frame);
    frame
}

/// A good datagram's frame with another byte in its IPv4 header, whose checksum is right.
fn with_header(at: usize, value: u8) -> Vec<u8> {
    let mut frame = datagram(&[], &[], b"twelve bytes");
    frame[14 + at] = value;
    let slice = etherparse::Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap();
    let checksum = slice.to_header().calc_header_checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn echo_reply() -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(THEIRS.0, OURS.0)
        .ipv4(THEIR_IP.octets(), OUR_IP.octets(), 3)
        .icmpv4_echo_reply(77, 5)
        .write(&mut frame, b"")
        .unwrap();
    frame
}

fn asking_for(target: Ipv4Addr) -> Vec<u8> {
    arp(ArpOperation::REQUEST, THEIR_IP, MacAddr::BROADCAST, target)
}

fn malformed_frames() -> Vec<Dropped> {
    let mut three_tags = datagram(&[1, 2], &[], b"");
    three_tags.splice(12..12, [0x88, 0xa8, 0, 3]);
    let mut token_ring = asking_for(OUR_IP);
    token_ring[15] = 6;
    let mut broken_echo = echo_reply();
    broken_echo[40] ^= 1;
    let frames = [
        (changed(|frame| frame.truncate(13)), ParseError::Truncated),
        (changed(|frame| frame.truncate(30)), ParseError::Truncated),
        (three_tags, ParseError::VlanTags),
        (token_ring, ParseError::Arp),
        (changed(|frame| frame[14] = 0x65), ParseError::Ipv4Header),
        (changed(|frame| frame[14] = 0x44), ParseError::Ipv4Header),
        (changed(|frame| frame.truncate(50)), ParseError::Ipv4Length),
        (changed(|frame| frame[17] = 19), ParseError::Ipv4Length),
        (changed(|frame| frame[22] ^= 1), ParseError::Ipv4Checksum),
        (broken_echo, ParseError::IcmpChecksum),
        (changed(|frame| frame[39] += 1), ParseError::UdpLength),
        (changed(|frame| frame[39] -= 1), ParseError::UdpLength),
        (changed(|frame| frame[42] ^= 1), ParseError::UdpChecksum),
    ];
    frames
        .map(|(frame, error)| (frame, DropReason::Malformed(error)))
        .into()
}

fn frames_for_others_or_of_other_kinds() -> Vec<Dropped> {
    let closed_port = changed(|frame| {
        frame[37] = 1;
        frame[40..42].fill(0);
    });
    vec![
        (changed(|frame| frame[12] = 0x86), DropReason::EtherType),
        (changed(|frame| frame[5] = 9), DropReason::NotForUs),
        (changed(|frame| frame[..6].fill(0xff)), DropReason::NotForUs),
        (asking_for(THEIR_IP), DropReason::NotForUs),
        (with_header(19, 9), DropReason::NotForUs),
        (with_header(6, 0x20), DropReason::Fragment),
        (with_header(7, 1), DropReason::Fragment),
        (with_header(9, 6), DropReason::Protocol),
        (echo_reply(), DropReason::IcmpKind),
        (closed_port, DropReason::ClosedPort),
        (
            arp(ArpOperation::REPLY, THEIR_IP, OURS, OUR_IP),
            DropReason::Unasked,
        ),
    ]
}

fn frames_from_impossible_sources() -> Vec<Dropped> {
    let from_port_0 = changed(|frame| {
        frame[34..36].fill(0);
        frame[40..42].fill(0);
    });
    let frames = [
        changed(|frame| frame[6] |= 1),
        changed(|frame| frame[6..12].copy_from_slice(&OURS.0)),
        with_header(15, 1),
        with_header(15, 255),
        with_header(12, 127),
        with_header(12, 224),
        with_header(12, 0),
        from_port_0,
    ];
    frames.map(|frame| (frame, DropReason::Source)).into()
}

#[test]
fn every_cause_is_told_and_counted_and_nothing_else_is() {
    let cases = [
        malformed_frames(),
        frames_for_others_or_of_other_kinds(),
        frames_from_impossible_sources(),
    ];
    let mut interface = interface();
    let counters = interface.counters();
    for (mut frame, cause) in cases.into_iter().flatten() {
        let mut expected = counters.read();
        expected.received += 1;
        expected.dropped[cause.index()] += 1;
        let before = frame.clone();
        let verdict = judged(&mut interface, &mut frame);
        assert_eq!(verdict, Verdict::Drop(cause), "{before:02x?}");
        assert_eq!(counters.read(), expected);
        assert_eq!(frame, before, "what is dropped is left alone");
    }
    let counts = counters.read();
    for cause in DropReason::all() {
        assert_ne!(counts.dropped_for(cause), 0, "no case for {cause:?}");
    }
}

#[test]
fn checksums_that_are_absent_or_verified_already_are_not_looked_at() {
    let mut interface = interface();
    let mut none = datagram(&[], &[], b"payload");
    none[40..42].fill(0);
    assert!(matches!(
        judged(&mut interface, &mut none),
        Verdict::Deliver(_)
    ));
    let mut wrong = datagram(&[], &[], b"payload");
    wrong[24] ^= 1;
    wrong[40] ^= 1;
    let verified = VerifiedChecksums {
        ipv4: true,
        udp: true,
    };
    let verdict = interface.receive(&mut wrong, verified, 0);
    assert!(matches!(verdict, Verdict::Deliver(_)));
}

#[test]
fn what_is_left_to_the_device_is_prepared_for_it() {
    let mut frame = datagram(&[5], &[1; 4], b"payload");
    let Verdict::Deliver(request) = judged(&mut interface(), &mut frame) else {
        panic!("not delivered");
    };
    let offload = Offload {
        ipv4: true,
        udp: true,
    };
    let left = request.headers.reply(&mut frame, offload).unwrap();
    let all = Checksums {
        ipv4: true,
        udp: true,
        ethernet_length: 18,
        ipv4_length: 24,
    };
    assert_eq!(left, all);
    assert_eq!(frame[28..30], [0, 0], "the IPv4 checksum is the device's");
    // As a device would: the complement of the sum over the datagram, which has the pseudo-header's
    // sum in it.
    let sum = shinjuku_dataplane::packet::checksum::Sum::new().bytes(&frame[42..]);
    frame[48..50].copy_from_slice(&sum.checksum().to_be_bytes());
    let reply = SlicedPacket::from_ethernet(&frame).unwrap();
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (reply.net, reply.transport)
    else {
        panic!("no datagram");
    };
    let ip = ip.header().to_header();
    let expected = udp.to_header().calc_checksum_ipv4(&ip, udp.payload());
    assert_eq!(udp.checksum(), expected.unwrap());
}

#[test]
fn a_datagram_that_is_no_reply_is_as_it_should_be() {
    let payload = b"unasked";
    let mut frame = [&[0; Interface::PAYLOAD][..], payload].concat();
    let to = SocketAddrV4::new(THEIR_IP, 53);
    let left = interface().write_datagram(&mut frame, PORT, THEIRS, to, Offload::default());
    assert_eq!(left, Some(Checksums::default()));
    let sent = SlicedPacket::from_ethernet(&frame).unwrap();
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (sent.net, sent.transport)
    else {
        panic!("no datagram");
    };
    let ip = ip.header().to_header();
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    assert_eq!(ip.destination, THEIR_IP.octets());
    let expected = udp.to_header().calc_checksum_ipv4(&ip, payload).unwrap();
    assert_eq!(udp.checksum(), expected);
    assert_eq!((udp.source_port(), udp.destination_port()), (PORT, 53));
}

#[test]
fn settings_that_cannot_be_are_refused_with_what_to_do() {
    let refused = |config: InterfaceConfig| Interface::new(config).unwrap_err();
    let multicast = MacAddr([1; 6]);
    assert!(matches!(
        refused(InterfaceConfig::new(multicast, OUR_IP, &[1])),
        InterfaceError::Mac { mac } if mac == multicast
    ));
    for (config, says) in [
        (
            InterfaceConfig::new(OURS, OUR_IP, &[]),
            "number of ports is 0",
        ),
        (InterfaceConfig::new(OURS, OUR_IP, &[0]), "from 1 to 65535"),
        (config().prefix(33), "prefix is 33"),
        (config().mtu(67), "mtu is 67"),
        (config().neighbours(0), "neighbours is 0"),
        (
            InterfaceConfig::new(OURS, Ipv4Addr::new(10, 0, 0, 255), &[1]),
            "10.0.0.255/24",
        ),
        (config().gateway(OUR_IP), "gateway 10.0.0.1 must be another"),
        (
            config().gateway(Ipv4Addr::new(10, 0, 1, 1)),
            "in the net of 10.0.0.1/24",
        ),
    ] {
        let error = refused(config).to_string();
        assert!(error.contains(says), "{error}");
    }
}
