//! Views over the bytes of packets: checked once when parsed, safe to use afterwards.
//!
//! A layer is a file. Each has the header as it lies on the wire, a view made by `parse`, which
//! borrows the bytes and hands on a payload of the length that the header claims and the bytes bear
//! out, and what it takes to write one.
//!
//! ```
//! use shinjuku_dataplane::packet::{Ethernet, Ipv4, Udp};
//!
//! fn payload(frame: &[u8]) -> Result<&[u8], shinjuku_dataplane::packet::ParseError> {
//!     let ethernet = Ethernet::parse(frame)?;
//!     let ipv4 = Ipv4::parse(ethernet.payload)?;
//!     let udp = Udp::parse(ipv4.payload)?;
//!     ipv4.verify()?;
//!     udp.verify(&ipv4)?;
//!     Ok(udp.payload)
//! }
//! # assert!(payload(&[0; 60]).is_err());
//! ```
//!
//! Nothing here allocates, and no bytes make it panic. The dataplane is made of it; it is no part
//! of the API, and may change in any version.
//!
//! # Why not a library's
//!
//! Nanoseconds to parse a datagram's frame, check both checksums and write the reply in place, and
//! how many times as long smoltcp's `wire` (0.14) and etherparse (0.20) take for it, by
//! `examples/packet_libraries.rs` (a virtual machine at 2.5 GHz):
//!
//! | payload, bytes | here | smoltcp | etherparse |
//! |---|---|---|---|
//! | 18 | 43 | 1.14 | 2.58 |
//! | 64 | 48 | 1.16 | 2.36 |
//! | 256 | 63 | 1.15 | 2.19 |
//! | 1024 | 126 | 1.10 | 2.13 |
//! | 1458 | 163 | 1.10 | 2.09 |
//!
//! smoltcp is near, and this module stays for what smoltcp does not do: it has no VLAN tags, one
//! error for everything (each [`ParseError`] is counted by itself), and it takes a datagram that is
//! shorter than its packet. ARP and ICMP echo are 180 lines; for these alone it would bring six
//! crates. etherparse is what the tests compare this module with, so it must stay another
//! implementation.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
mod mac;
pub mod udp;

pub use arp::Arp;
pub use ethernet::{Ethernet, Vlans};
pub use icmp::Icmp;
pub use ipv4::Ipv4;
pub use mac::{MacAddr, MacAddrError};
pub use udp::Udp;

/// What is wrong with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// It ends before its headers do.
    #[error("it ends within a header")]
    Truncated,
    /// It has more VLAN tags than 802.1ad's two.
    #[error("it has more than two VLAN tags")]
    VlanTags,
    /// Its ARP message is not one of IPv4 over Ethernet, or neither request nor reply.
    #[error("it is ARP, but not for IPv4 over Ethernet")]
    Arp,
    /// Its IPv4 header is of another version, or shorter than a header can be.
    #[error("its IPv4 header is of another version or too short")]
    Ipv4Header,
    /// It claims a length in its IPv4 header that it does not have, or that does not hold the
    /// header itself.
    #[error("it does not have the length that its IPv4 header claims")]
    Ipv4Length,
    /// The checksum over its IPv4 header is wrong.
    #[error("the checksum of its IPv4 header is wrong")]
    Ipv4Checksum,
    /// The checksum over its ICMP message is wrong.
    #[error("the checksum of its ICMP message is wrong")]
    IcmpChecksum,
    /// Its UDP header claims another length than IPv4 carries.
    #[error("its UDP header and its IPv4 header disagree about its length")]
    UdpLength,
    /// The checksum over its UDP datagram is wrong.
    #[error("the checksum of its UDP datagram is wrong")]
    UdpChecksum,
}

impl ParseError {
    /// All errors, in the order of their declaration: `ALL[error as usize] == error`.
    pub const ALL: [Self; 9] = [
        Self::Truncated,
        Self::VlanTags,
        Self::Arp,
        Self::Ipv4Header,
        Self::Ipv4Length,
        Self::Ipv4Checksum,
        Self::IcmpChecksum,
        Self::UdpLength,
        Self::UdpChecksum,
    ];
}
