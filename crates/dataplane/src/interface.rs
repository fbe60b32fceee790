//! A host's small IP stack, as a machine without input or output: frames and the time go in,
//! verdicts come out.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::config::Net;
use crate::counters::Counters;
use crate::neighbours::Neighbours;
use crate::packet::ethernet::Header;
use crate::packet::{
    Arp, Ethernet, Icmp, Ipv4, MacAddr, ParseError, Udp, Vlans, arp, ethernet, icmp, ipv4, udp,
};
use crate::{
    Checksums, DropReason, InterfaceConfig, InterfaceCounters, InterfaceError, Offload, Resolution,
    VerifiedChecksums,
};

/// One Ethernet and one IPv4 address, and some UDP ports. Answers ARP and echo requests for them,
/// delivers datagrams, and drops and counts all else.
#[derive(Debug)]
pub struct Interface {
    mac: MacAddr,
    ip: Ipv4Addr,
    net: Net,
    gateway: Option<Ipv4Addr>,
    /// Rising; each with the port that its replies come from.
    ports: Box<[(u16, u16)]>,
    mtu: usize,
    neighbours: Neighbours,
    counters: Arc<Counters>,
}

/// What is to be done with a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is a datagram for one of the interface's ports.
    Deliver(Incoming),
    /// It has been made the answer to itself: its first `length` bytes are to be sent back, all
    /// checksums done.
    Answer {
        /// How long the answer is, in bytes; not above what came, and without padding.
        length: usize,
    },
    /// It was for the interface itself, which has learnt from it; its buffer is free.
    Learnt,
    /// It is good for nothing, and counted; its buffer is free.
    Drop(DropReason),
}

/// A datagram that came in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Where in the frame its payload is.
    pub payload: Range<usize>,
    /// The sender.
    pub peer: Peer,
    /// For which of the interface's ports it is.
    pub port: u16,
    /// What lies before the payload; a reply in the same frame needs it.
    pub headers: Headers,
}

/// The sender of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    /// Its station on this wire: its own, or its gateway's.
    pub mac: MacAddr,
    /// Its address and port; the sender's word for it.
    pub address: SocketAddrV4,
    /// The VLANs that the frame was tagged with. A reply in the same frame has the same tags.
    pub vlans: Vlans,
}

/// The lengths of a datagram's headers, to find them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    ethernet: u8,
    ipv4: u8,
    /// Where the reply comes from.
    reply_port: u16,
}

impl Headers {
    /// Where the payload begins, in the request and in the reply.
    #[must_use]
    pub fn length(self) -> usize {
        usize::from(self.ethernet) + usize::from(self.ipv4) + udp::Header::LENGTH
    }

    /// Turns the headers of a request, which `frame` begins with, into those of the reply to it:
    /// source and destination change places. The payload is the rest of `frame`, and in place.
    /// Tells what is left to the device.
    ///
    /// `None`: `frame` is not what these headers were found in, or is too long for a packet.
    #[must_use]
    #[inline]
    pub fn reply(self, frame: &mut [u8], offload: Offload) -> Option<Checksums> {
        let (station, packet) = ethernet::split_mut(frame, self.ethernet.into())?;
        (station.destination, station.source) = (station.source, station.destination);
        let ipv4_length = usize::from(self.ipv4);
        let datagram_length = packet.len().checked_sub(ipv4_length)?;
        let ipv4 = *ipv4::turn_round(packet, ipv4_length, datagram_length, !offload.ipv4)?;
        let datagram = packet.get_mut(ipv4_length..)?;
        let request = *udp::header(datagram)?;
        udp::write(
            datagram,
            &ipv4,
            self.reply_port,
            request.source(),
            offload.udp,
        )?;
        Some(self.left(offload))
    }

    fn left(self, offload: Offload) -> Checksums {
        if offload == Offload::default() {
            return Checksums::default();
        }
        Checksums {
            ipv4: offload.ipv4,
            udp: offload.udp,
            ethernet_length: self.ethernet,
            ipv4_length: self.ipv4,
        }
    }
}

impl Interface {
    /// Where the payload of a datagram begins that is not a reply: behind headers without tags and
    /// options.
    pub const PAYLOAD: usize =
        Self::PLAIN.ethernet as usize + Self::PLAIN.ipv4 as usize + udp::Header::LENGTH;

    const PLAIN: Headers = Headers {
        ethernet: Header::LENGTH as u8,
        ipv4: ipv4::Header::LENGTH as u8,
        reply_port: 0,
    };

    /// The length of an ARP message's frame, without padding.
    pub const ARP_FRAME: usize = Header::LENGTH + Arp::LENGTH;

    /// Takes all memory.
    ///
    /// # Errors
    /// A setting out of its range, or an address that no host can have.
    pub fn new(config: InterfaceConfig) -> Result<Self, InterfaceError> {
        let mac = config.check()?;
        let mut ports: Box<[_]> = config.ports_with_replies().collect();
        ports.sort_unstable();
        Ok(Self {
            mac,
            ip: config.ip,
            net: config.net(),
            gateway: config.gateway,
            mtu: config.mtu,
            neighbours: Neighbours::new(config.neighbours, &config.given),
            ports,
            counters: Arc::default(),
        })
    }

    /// The longest payload of a datagram that needs no fragments, in bytes.
    #[must_use]
    pub fn longest_payload(&self) -> usize {
        self.mtu - ipv4::Header::LENGTH - udp::Header::LENGTH
    }

    /// The longest payload of a reply behind the headers of its request, whose options it keeps the
    /// place of, in bytes.
    pub(crate) fn longest_reply(&self, request: Headers) -> usize {
        let headers = usize::from(request.ipv4) + udp::Header::LENGTH;
        self.mtu.saturating_sub(headers)
    }

    /// The counters, to be kept when the interface goes elsewhere.
    #[must_use]
    pub fn counters(&self) -> InterfaceCounters {
        InterfaceCounters(Arc::clone(&self.counters))
    }

    /// What to do with `frame`, which came in at `now_nanos` (of any clock that does not go back).
    /// Checksums that are `verified` are not looked at.
    pub fn receive(
        &mut self,
        frame: &mut [u8],
        verified: VerifiedChecksums,
        now_nanos: u64,
    ) -> Verdict {
        self.counters.taken.received.count();
        let judgement = self.judge(frame, verified, now_nanos);
        match judgement.and_then(|judgement| self.act(judgement, frame)) {
            Ok(verdict) => verdict,
            Err(cause) => {
                self.counters.dropped[cause.index()].count();
                Verdict::Drop(cause)
            }
        }
    }

    /// What `frame` is to this interface.
    #[inline]
    fn judge(
        &mut self,
        frame: &[u8],
        verified: VerifiedChecksums,
        now: u64,
    ) -> Result<Judgement, DropReason> {
        let ethernet = Ethernet::parse(frame)?;
        let Header {
            source,
            destination,
            ..
        } = *ethernet.header;
        if !source.is_station() || source == self.mac {
            return Err(DropReason::Source);
        }
        match ethernet.ethertype {
            ethernet::ARP if destination == self.mac || destination == MacAddr::BROADCAST => {
                let arp = Arp::parse(ethernet.payload)?;
                self.judge_arp(arp, &ethernet, now)
            }
            ethernet::IPV4 if destination == self.mac => self.judge_ipv4(&ethernet, verified),
            ethernet::ARP | ethernet::IPV4 => Err(DropReason::NotForUs),
            _ => Err(DropReason::EtherType),
        }
    }

    fn judge_arp(
        &mut self,
        arp: &Arp,
        frame: &Ethernet<'_>,
        now: u64,
    ) -> Result<Judgement, DropReason> {
        let (mac, ip) = (arp.sender_mac(), arp.sender_ip());
        // 0.0.0.0 asks whether our address is free (RFC 5227). It is not, and the answer says so.
        let probe = arp.operation() == arp::REQUEST && ip.is_unspecified();
        if !mac.is_station() || mac == self.mac || !(probe || self.is_other_host(ip)) {
            return Err(DropReason::Source);
        }
        // RFC 826: a known station's messages update its entry, whatever they say, and to which
        // station; a station that asks for us gets an entry. But a VLAN is another wire: unasked
        // packets leave untagged, and would not reach a station there.
        let near = self.net.contains(ip) && !frame.vlans.any();
        let merged = near && self.neighbours.merge(ip, mac, now);
        let for_us = arp.target_ip() == self.ip;
        if for_us && arp.operation() == arp::REQUEST {
            if near && !merged {
                self.neighbours.add(ip, mac, now);
            }
            let ethernet = frame.header_length;
            return Ok(Judgement::ArpRequest { ethernet });
        }
        match (merged, for_us) {
            (true, _) => Ok(Judgement::ArpNews),
            (false, true) => Err(DropReason::Unasked),
            (false, false) => Err(DropReason::NotForUs),
        }
    }

    #[inline]
    fn judge_ipv4(
        &self,
        frame: &Ethernet<'_>,
        verified: VerifiedChecksums,
    ) -> Result<Judgement, DropReason> {
        let packet = Ipv4::parse(frame.payload)?;
        if !verified.ipv4 {
            packet.verify()?;
        }
        if packet.header.destination() != self.ip {
            return Err(DropReason::NotForUs);
        }
        if !self.is_other_host(packet.header.source()) {
            return Err(DropReason::Source);
        }
        if packet.header.is_fragment() {
            return Err(DropReason::Fragment);
        }
        let headers = Headers {
            ethernet: frame.header_length as u8,
            ipv4: packet.header_length() as u8,
            reply_port: 0,
        };
        match packet.header.protocol() {
            ipv4::UDP => self.judge_udp(frame, &packet, headers, verified),
            ipv4::ICMP => {
                let message = Icmp::parse(packet.payload)?;
                message.verify()?;
                if !message.is_echo_request() {
                    return Err(DropReason::IcmpKind);
                }
                let length = message.length();
                Ok(Judgement::EchoRequest { headers, length })
            }
            _ => Err(DropReason::Protocol),
        }
    }

    #[inline]
    fn judge_udp(
        &self,
        frame: &Ethernet<'_>,
        packet: &Ipv4<'_>,
        headers: Headers,
        verified: VerifiedChecksums,
    ) -> Result<Judgement, DropReason> {
        let datagram = Udp::parse(packet.payload)?;
        if !verified.udp {
            datagram.verify(packet)?;
        }
        let port = datagram.header.destination();
        let listed = self.ports.binary_search_by_key(&port, |&(port, _)| port);
        let Ok(listed) = listed else {
            return Err(DropReason::ClosedPort);
        };
        let (_, reply_port) = self.ports[listed];
        if datagram.header.source() == 0 {
            return Err(DropReason::Source);
        }
        let start = headers.length();
        Ok(Judgement::Datagram(Incoming {
            payload: start..start + datagram.payload.len(),
            peer: Peer {
                mac: frame.header.source,
                address: SocketAddrV4::new(packet.header.source(), datagram.header.source()),
                vlans: frame.vlans,
            },
            port,
            headers: Headers {
                reply_port,
                ..headers
            },
        }))
    }

    /// Whether packets may come from `ip`.
    #[inline]
    fn is_other_host(&self, ip: Ipv4Addr) -> bool {
        ip != self.ip && self.net.can_be_host(ip)
    }

    /// Does what is to be done with `frame` in place.
    #[inline]
    fn act(&self, judgement: Judgement, frame: &mut [u8]) -> Result<Verdict, DropReason> {
        let verdict = match judgement {
            Judgement::Datagram(delivery) => {
                self.counters.taken.delivered.count();
                Verdict::Deliver(delivery)
            }
            Judgement::ArpNews => {
                self.counters.taken.arp_learnt.count();
                Verdict::Learnt
            }
            Judgement::ArpRequest { ethernet } => {
                let length = self
                    .answer_arp(frame, ethernet)
                    .ok_or(ParseError::Truncated)?;
                self.counters.taken.arp_answered.count();
                Verdict::Answer { length }
            }
            Judgement::EchoRequest { headers, length } => {
                let length = answer_echo(frame, headers, length).ok_or(ParseError::Truncated)?;
                self.counters.taken.echo_answered.count();
                Verdict::Answer { length }
            }
        };
        Ok(verdict)
    }

    fn answer_arp(&self, frame: &mut [u8], ethernet: usize) -> Option<usize> {
        let (station, message) = ethernet::split_mut(frame, ethernet)?;
        let answer = Arp::parse(message).ok()?.answer(self.mac);
        (station.destination, station.source) = (station.source, self.mac);
        answer.write_to_prefix(message).ok()?;
        Some(ethernet + Arp::LENGTH)
    }

    // --- sending without having been asked ------------------------------------------------------------------

    /// To which station packets for `ip` go, or what to do to find out.
    pub fn resolve(&mut self, ip: Ipv4Addr, now_nanos: u64) -> Resolution {
        if !self.is_other_host(ip) {
            return Resolution::Unreachable;
        }
        let next = if self.net.contains(ip) {
            Some(ip)
        } else {
            self.gateway
        };
        next.map_or(Resolution::Unreachable, |next| {
            self.neighbours.look_up(next, now_nanos)
        })
    }

    /// Writes the ARP request for `ip` to the first [`ARP_FRAME`](Self::ARP_FRAME) bytes of
    /// `frame`. `None`: it is shorter.
    #[must_use]
    pub fn write_arp_request(&self, frame: &mut [u8], ip: Ipv4Addr) -> Option<()> {
        let station = Header {
            destination: MacAddr::BROADCAST,
            source: self.mac,
            ethertype: ethernet::ARP.into(),
        };
        let request = Arp::request(self.mac, self.ip, ip);
        station.write_to_prefix(frame).ok()?;
        let message = frame.get_mut(Header::LENGTH..)?;
        request.write_to_prefix(message).ok()
    }

    /// Writes the headers of a datagram, which is all of `frame`, from `port` to `destination` at
    /// the station `mac`. Its payload, from [`PAYLOAD`](Self::PAYLOAD) on, is in place. Tells what
    /// is left to the device.
    ///
    /// `None`: `frame` is too short for the headers or too long for a packet.
    #[must_use]
    pub fn write_datagram(
        &self,
        frame: &mut [u8],
        port: u16,
        mac: MacAddr,
        destination: SocketAddrV4,
        offload: Offload,
    ) -> Option<Checksums> {
        let packet_length = frame.len().checked_sub(Header::LENGTH)?;
        let ipv4 = ipv4::Header::new(
            ipv4::UDP,
            self.ip,
            *destination.ip(),
            u16::try_from(packet_length).ok()?,
        );
        let ipv4 = if offload.ipv4 {
            ipv4
        } else {
            ipv4.with_checksum()
        };
        let station = Header {
            destination: mac,
            source: self.mac,
            ethertype: ethernet::IPV4.into(),
        };
        station.write_to_prefix(frame).ok()?;
        let packet = frame.get_mut(Header::LENGTH..)?;
        ipv4.write_to_prefix(packet).ok()?;
        let datagram = packet.get_mut(ipv4::Header::LENGTH..)?;
        udp::write(datagram, &ipv4, port, destination.port(), offload.udp)?;
        Some(Self::PLAIN.left(offload))
    }
}

/// What a frame is to an interface.
enum Judgement {
    Datagram(Incoming),
    /// For our address; the message lies behind this many bytes.
    ArpRequest {
        ethernet: usize,
    },
    /// The address of a station that was asked for or is known; it has been learnt.
    ArpNews,
    /// The ICMP message is this long.
    EchoRequest {
        headers: Headers,
        length: usize,
    },
}

fn answer_echo(frame: &mut [u8], headers: Headers, message: usize) -> Option<usize> {
    let (station, packet) = ethernet::split_mut(frame, headers.ethernet.into())?;
    (station.destination, station.source) = (station.source, station.destination);
    let ipv4 = usize::from(headers.ipv4);
    ipv4::turn_round(packet, ipv4, message, true)?;
    icmp::answer(packet.get_mut(ipv4..)?)?;
    Some(usize::from(headers.ethernet) + ipv4 + message)
}
