//! ARP for IPv4 over Ethernet (RFC 826): 28 bytes.

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{MacAddr, ParseError, ethernet};

const ETHERNET: u16 = 1;
/// "Who has this address?"
pub const REQUEST: u16 = 1;
/// "I have it."
pub const REPLY: u16 = 2;

/// A message as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Arp {
    hardware: U16,
    protocol: U16,
    hardware_length: u8,
    protocol_length: u8,
    operation: U16,
    sender_mac: MacAddr,
    sender_ip: [u8; 4],
    target_mac: MacAddr,
    target_ip: [u8; 4],
}

impl Arp {
    /// Its length in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Looks at an Ethernet frame's payload.
    ///
    /// # Errors
    /// If it is too short, not for IPv4 over Ethernet, or neither request nor reply.
    pub fn parse(payload: &[u8]) -> Result<&Self, ParseError> {
        let (message, _padding) =
            Self::ref_from_prefix(payload).map_err(|_| ParseError::Truncated)?;
        let fits = message.hardware == ETHERNET
            && message.protocol == ethernet::IPV4
            && message.hardware_length == 6
            && message.protocol_length == 4
            && [REQUEST, REPLY].contains(&message.operation.get());
        if fits {
            Ok(message)
        } else {
            Err(ParseError::Arp)
        }
    }

    /// A request: who has `target`?
    #[must_use]
    pub fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self {
            hardware: ETHERNET.into(),
            protocol: ethernet::IPV4.into(),
            hardware_length: 6,
            protocol_length: 4,
            operation: REQUEST.into(),
            sender_mac,
            sender_ip: sender_ip.octets(),
            target_mac: MacAddr::ZERO,
            target_ip: target.octets(),
        }
    }

    /// The answer to this request: what it asks for, `mac` has.
    #[must_use]
    pub fn answer(&self, mac: MacAddr) -> Self {
        Self {
            operation: REPLY.into(),
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
            ..*self
        }
    }

    /// [`REQUEST`] or [`REPLY`].
    #[must_use]
    pub fn operation(&self) -> u16 {
        self.operation.get()
    }

    /// The station that sent the message.
    #[must_use]
    pub fn sender_mac(&self) -> MacAddr {
        self.sender_mac
    }

    /// The address the sender claims; 0.0.0.0 if it only asks whether the target is taken (RFC
    /// 5227).
    #[must_use]
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.sender_ip.into()
    }

    /// The address that is asked for, or whose owner is told.
    #[must_use]
    pub fn target_ip(&self) -> Ipv4Addr {
        self.target_ip.into()
    }
}
