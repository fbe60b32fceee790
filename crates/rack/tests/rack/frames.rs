//! Frames, written and read by etherparse.

use std::net::Ipv4Addr;

use etherparse::{
    Ipv4Header, NetSlice, PacketBuilder, PacketBuilderStep, SlicedPacket, TransportSlice, VlanId,
};
use shinjuku_net::wire::{RackSchedKind, RackSchedMessage, ShinjukuRequest};
use shinjuku_rack::tables::Station;

use crate::{CLIENT, LOOPBACK, RACK, RACKSCHED_PORT, SHINJUKU_PORT, SHINJUKU_REPLY_PORT, address};

pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];
pub const SWITCH_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];
pub const CLIENT_PORT: u16 = 4321;

/// The way back to the client that sends these requests.
pub fn to_client() -> Station {
    Station {
        to: CLIENT_MAC,
        from: SWITCH_MAC,
        interface: LOOPBACK,
    }
}

pub fn ethernet() -> PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2(CLIENT_MAC, SWITCH_MAC)
}

/// A datagram within a frame.
pub fn datagram(
    from: (Ipv4Addr, u16),
    to: (Ipv4Addr, u16),
    options: &[u8],
    tags: usize,
    payload: &[u8],
) -> Vec<u8> {
    let length = payload.len() as u16 + 8;
    let protocol = etherparse::IpNumber::UDP;
    let mut header = Ipv4Header::new(length, 64, protocol, from.0.octets(), to.0.octets()).unwrap();
    header.options = options.try_into().unwrap();
    let header = etherparse::IpHeaders::Ipv4(header, Default::default());
    let id = |n| VlanId::try_new(n).unwrap();
    let builder = match tags {
        0 => ethernet().ip(header),
        1 => ethernet().single_vlan(id(5)).ip(header),
        _ => ethernet().double_vlan(id(5), id(6)).ip(header),
    };
    let mut frame = Vec::new();
    let builder = builder.udp(from.1, to.1);
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// A packet of RackSched's format to the rack.
pub fn racksched(message: RackSchedMessage) -> Vec<u8> {
    racksched_from((CLIENT, CLIENT_PORT), message)
}

pub fn racksched_from(client: (Ipv4Addr, u16), message: RackSchedMessage) -> Vec<u8> {
    datagram(client, (RACK, RACKSCHED_PORT), &[], 0, &message.to_bytes())
}

/// The only packet of the request with this number.
pub fn request(number: u32) -> Vec<u8> {
    racksched(RackSchedMessage::request(3, number, 1000, 5))
}

/// A later packet of the request with this number.
pub fn following(number: u32) -> Vec<u8> {
    racksched(RackSchedMessage {
        kind: RackSchedKind::Follow,
        sequence: 1,
        ..RackSchedMessage::request(3, number, 1000, 5)
    })
}

/// The reply to that request, from a server that has `queue_length` more.
pub fn reply(server: u8, number: u32, queue_length: u32) -> Vec<u8> {
    let message = RackSchedMessage::request(3, number, 1000, 5).reply(queue_length);
    let from = (address(server), RACKSCHED_PORT);
    datagram(from, (CLIENT, CLIENT_PORT), &[], 0, &message.to_bytes())
}

fn shinjuku() -> [u8; 16] {
    let request = ShinjukuRequest {
        run_nanos: 1000,
        generated_nanos: 77,
    };
    request.to_bytes()
}

/// A request of Shinjuku's format.
pub fn shinjuku_request() -> Vec<u8> {
    let from = (CLIENT, CLIENT_PORT);
    datagram(from, (RACK, SHINJUKU_PORT), &[], 0, &shinjuku())
}

/// A reply to one.
pub fn shinjuku_reply(server: u8) -> Vec<u8> {
    let from = (address(server), SHINJUKU_REPLY_PORT);
    datagram(from, (CLIENT, CLIENT_PORT), &[], 0, &shinjuku())
}

/// Where the IPv4 header begins.
pub fn ip_offset(frame: &[u8]) -> usize {
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0] | [0x88, 0xa8]) {
        at += 4;
    }
    at + 2
}

pub fn udp_offset(frame: &[u8]) -> usize {
    let ip = ip_offset(frame);
    ip + usize::from(frame[ip] & 15) * 4
}

pub fn destination(frame: &[u8]) -> Ipv4Addr {
    let at = ip_offset(frame) + 16;
    let bytes: [u8; 4] = frame[at..at + 4].try_into().unwrap();
    bytes.into()
}

pub fn has_udp_checksum(frame: &[u8]) -> bool {
    let at = udp_offset(frame) + 6;
    frame[at..at + 2] != [0, 0]
}

/// The frame with other addresses, and with checksums computed anew.
pub fn readdressed(
    frame: &[u8],
    station: &Station,
    source: Option<Ipv4Addr>,
    destination: Option<Ipv4Addr>,
) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&station.to);
    frame[6..12].copy_from_slice(&station.from);
    let (ip, udp) = (ip_offset(&frame), udp_offset(&frame));
    if let Some(source) = source {
        frame[ip + 12..ip + 16].copy_from_slice(&source.octets());
    }
    if let Some(destination) = destination {
        frame[ip + 16..ip + 20].copy_from_slice(&destination.octets());
    }
    let (header, rest) = Ipv4Header::from_slice(&frame[ip..]).unwrap();
    let checksum = header.calc_header_checksum();
    let payload_end = usize::from(header.total_len) - header.header_len();
    let (datagram, _) = etherparse::UdpHeader::from_slice(rest).unwrap();
    let sum = datagram.calc_checksum_ipv4(&header, &rest[8..payload_end]);
    frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
    if has_udp_checksum(&frame) {
        frame[udp + 6..udp + 8].copy_from_slice(&sum.unwrap().to_be_bytes());
    }
    frame
}

/// Both checksums are right, or there is no UDP checksum where there was none.
pub fn assert_checksums(frame: &[u8], of_udp: bool) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (packet.net, packet.transport)
    else {
        panic!("no datagram: {frame:02x?}");
    };
    let ip = ip.header().to_header();
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    let expected = if of_udp {
        let checksum = udp.to_header().calc_checksum_ipv4(&ip, udp.payload());
        checksum.unwrap()
    } else {
        0
    };
    assert_eq!(udp.checksum(), expected);
}
