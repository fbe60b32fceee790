//! What a datagram and the reply to it cost by this crate's packets, by smoltcp's and by
//! etherparse's: parse a frame, check both checksums, and turn it round in place.
//!
//! ```sh
//! cargo run --release -p shinjuku-dataplane --example packet_libraries
//! ```
//!
//! The three are measured by turns, and must write the same bytes. A row tells our nanoseconds a
//! frame, and how many times as long the others take: medians of 301 rounds.

use std::hint::black_box;
use std::time::Instant;

use etherparse::{Ethernet2Header, LinkSlice, NetSlice, PacketBuilder, SlicedPacket};
use etherparse::{TransportSlice, UdpHeader};
use shinjuku_dataplane::packet::{Ethernet, Ipv4, Udp, ethernet, ipv4, udp};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, UdpPacket};

/// Turns a request round; the port that it was for. `None`: something is wrong with it.
type Reply = fn(&mut [u8]) -> Option<u16>;

const ROUNDS: usize = 301;
const FRAMES: u32 = 2000;

fn request(payload: usize) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 7], [10, 0, 0, 1], 64)
        .udp(1234, 9000);
    let payload: Vec<u8> = (0..payload).map(|at| at as u8).collect();
    let mut frame = Vec::new();
    builder.write(&mut frame, &payload).expect("there is room");
    frame
}

#[inline(never)]
fn ours(frame: &mut [u8]) -> Option<u16> {
    let ethernet = Ethernet::parse(frame).ok()?;
    let packet = Ipv4::parse(ethernet.payload).ok()?;
    packet.verify().ok()?;
    if packet.header.is_fragment() || packet.header.protocol() != ipv4::UDP {
        return None;
    }
    let datagram = Udp::parse(packet.payload).ok()?;
    datagram.verify(&packet).ok()?;
    let (source, destination) = (datagram.header.source(), datagram.header.destination());
    let (before_packet, before_datagram) = (ethernet.header_length, packet.header_length());

    let (station, packet) = ethernet::split_mut(frame, before_packet)?;
    (station.destination, station.source) = (station.source, station.destination);
    let length = packet.len() - before_datagram;
    let header = *ipv4::turn_round(packet, before_datagram, length, true)?;
    let datagram = packet.get_mut(before_datagram..)?;
    udp::write(datagram, &header, destination, source, false)?;
    Some(destination)
}

#[inline(never)]
fn by_smoltcp(frame: &mut [u8]) -> Option<u16> {
    let mut ethernet = EthernetFrame::new_checked(frame).ok()?;
    if ethernet.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let (from, to) = (ethernet.src_addr(), ethernet.dst_addr());
    ethernet.set_src_addr(to);
    ethernet.set_dst_addr(from);
    let mut packet = Ipv4Packet::new_checked(ethernet.payload_mut()).ok()?;
    let fragment = packet.more_frags() || packet.frag_offset() != 0;
    if packet.version() != 4
        || !packet.verify_checksum()
        || fragment
        || packet.next_header() != IpProtocol::Udp
    {
        return None;
    }
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    let datagram = UdpPacket::new_checked(packet.payload_mut()).ok()?;
    if !datagram.verify_checksum(&from.into(), &to.into()) {
        return None;
    }
    let (source, destination) = (datagram.src_port(), datagram.dst_port());

    packet.set_src_addr(to);
    packet.set_dst_addr(from);
    packet.set_hop_limit(64);
    packet.set_ident(0);
    packet.set_dont_frag(true);
    packet.fill_checksum();
    let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
    datagram.set_src_port(destination);
    datagram.set_dst_port(source);
    datagram.fill_checksum(&to.into(), &from.into());
    Some(destination)
}

#[inline(never)]
fn by_etherparse(frame: &mut [u8]) -> Option<u16> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let (Some(LinkSlice::Ethernet2(ethernet)), Some(NetSlice::Ipv4(packet))) =
        (&sliced.link, &sliced.net)
    else {
        return None;
    };
    let Some(TransportSlice::Udp(datagram)) = &sliced.transport else {
        return None;
    };
    let mut header = packet.header().to_header();
    let udp = datagram.to_header();
    if header.calc_header_checksum() != header.header_checksum
        || udp.checksum != 0
            && udp.calc_checksum_ipv4(&header, datagram.payload()).ok()? != udp.checksum
    {
        return None;
    }
    let ethernet = ethernet.to_header();
    let payload = Ethernet2Header::LEN + header.header_len() + UdpHeader::LEN;
    drop(sliced);

    let ethernet = Ethernet2Header {
        source: ethernet.destination,
        destination: ethernet.source,
        ..ethernet
    };
    std::mem::swap(&mut header.source, &mut header.destination);
    header.time_to_live = 64;
    header.identification = 0;
    header.dont_fragment = true;
    header.header_checksum = header.calc_header_checksum();
    let mut reply = UdpHeader {
        source_port: udp.destination_port,
        destination_port: udp.source_port,
        ..udp
    };
    reply.checksum = reply.calc_checksum_ipv4(&header, &frame[payload..]).ok()?;
    let (headers, _) = frame.split_at_mut(payload);
    let (link, rest) = headers.split_at_mut(Ethernet2Header::LEN);
    let (net, transport) = rest.split_at_mut(header.header_len());
    link.copy_from_slice(&ethernet.to_bytes());
    net.copy_from_slice(&header.to_bytes());
    transport.copy_from_slice(&reply.to_bytes());
    Some(udp.destination_port)
}

fn nanos_a_frame(reply: Reply, frame: &[u8]) -> f64 {
    let mut frame = frame.to_vec();
    let start = Instant::now();
    for _ in 0..FRAMES {
        black_box(reply(black_box(&mut frame)));
    }
    start.elapsed().as_nanos() as f64 / f64::from(FRAMES)
}

fn main() {
    let libraries: [(&str, Reply); 3] = [
        ("ours", ours),
        ("smoltcp", by_smoltcp),
        ("etherparse", by_etherparse),
    ];
    println!(
        "payload {:>10} {:>10} {:>10}",
        "ours", "smoltcp", "etherparse"
    );
    for payload in [18, 64, 256, 1024, 1458] {
        let frame = request(payload);
        let written = libraries.map(|(name, reply)| {
            let mut frame = frame.clone();
            assert_eq!(reply(&mut frame), Some(9000), "{name}");
            frame
        });
        assert!(written.iter().all(|frame| *frame == written[0]));
        let mut nanos = libraries.map(|_| Vec::with_capacity(ROUNDS));
        for _ in 0..ROUNDS {
            for ((_, reply), nanos) in libraries.iter().zip(&mut nanos) {
                nanos.push(nanos_a_frame(*reply, &frame));
            }
        }
        let [mut ours, mut smoltcp, mut etherparse] = nanos;
        divide(&mut smoltcp, &ours);
        divide(&mut etherparse, &ours);
        let [ours, smoltcp, etherparse] =
            [&mut ours, &mut smoltcp, &mut etherparse].map(|of| median(of));
        println!("{payload:>7} {ours:>10.1} {smoltcp:>10.2} {etherparse:>10.2}");
    }
}

/// Each round by its partner.
fn divide(theirs: &mut [f64], ours: &[f64]) {
    for (theirs, ours) in theirs.iter_mut().zip(ours) {
        *theirs /= ours;
    }
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
