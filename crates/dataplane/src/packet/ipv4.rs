//! IPv4 (RFC 791). Options are skipped; fragments are recognised, not put together.

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ParseError;
use super::checksum::Sum;

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// The time to live that packets start with (RFC 1700 recommends it).
pub const TIME_TO_LIVE: u8 = 64;

/// Version 4, and a header of five words.
const PLAIN: u8 = 0x45;
const DO_NOT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;
/// The option that means nothing; may be repeated.
const NO_OPERATION: u8 = 1;

/// A header's first 20 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    version_and_length: u8,
    service: u8,
    total_length: U16,
    identification: U16,
    fragment: U16,
    time_to_live: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

impl Header {
    /// Its length in bytes without options.
    pub const LENGTH: usize = size_of::<Self>();

    /// A header without options for a packet of `total_length` bytes, itself included. Its checksum
    /// is still to be set.
    #[must_use]
    #[inline]
    pub fn new(protocol: u8, source: Ipv4Addr, destination: Ipv4Addr, total_length: u16) -> Self {
        Self {
            version_and_length: PLAIN,
            service: 0,
            total_length: total_length.into(),
            // Never a fragment: then the identification has no meaning (RFC 6864).
            identification: 0.into(),
            fragment: DO_NOT_FRAGMENT.into(),
            time_to_live: TIME_TO_LIVE,
            protocol,
            checksum: 0.into(),
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Sets the checksum of a header without options.
    #[must_use]
    pub fn with_checksum(self) -> Self {
        let unset = Self {
            checksum: 0.into(),
            ..self
        };
        let checksum = Sum::new().bytes(unset.as_bytes()).checksum().into();
        Self { checksum, ..unset }
    }

    /// The host that sent the packet.
    #[must_use]
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// The host that the packet is for.
    #[must_use]
    pub fn destination(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// What it carries: [`ICMP`], [`UDP`] or another.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The length of header and payload in bytes, as claimed.
    #[must_use]
    pub fn total_length(&self) -> u16 {
        self.total_length.get()
    }

    /// Whether it carries only a part of what was sent.
    #[must_use]
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get() & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// The length of the header with options in bytes, as claimed: 0 to 60.
    fn length(&self) -> usize {
        usize::from(self.version_and_length & 0x0f) * 4
    }

    /// The sum over what UDP's checksum covers of the header.
    #[inline]
    pub fn pseudo_header(&self, length: u16) -> Sum {
        Sum::new()
            .bytes(&self.source)
            .bytes(&self.destination)
            .word(self.protocol.into())
            .word(length)
    }
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    /// The header's fixed part.
    pub header: &'a Header,
    /// The header's options, 0 to 40 bytes.
    pub options: &'a [u8],
    /// What it carries, without the padding behind it.
    pub payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Looks at an Ethernet frame's payload.
    ///
    /// # Errors
    /// If it is of another version, or its lengths do not bear each other out.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) = Header::ref_from_prefix(packet).map_err(|_| ParseError::Truncated)?;
        if header.version_and_length >> 4 != 4 {
            return Err(ParseError::Ipv4Header);
        }
        let options = header
            .length()
            .checked_sub(Header::LENGTH)
            .ok_or(ParseError::Ipv4Header)?;
        let (options, rest) = rest
            .split_at_checked(options)
            .ok_or(ParseError::Truncated)?;
        let payload = usize::from(header.total_length())
            .checked_sub(header.length())
            .and_then(|length| rest.get(..length))
            .ok_or(ParseError::Ipv4Length)?;
        Ok(Self {
            header,
            options,
            payload,
        })
    }

    /// Header and options, in bytes: 20 to 60.
    #[must_use]
    pub fn header_length(&self) -> usize {
        Header::LENGTH + self.options.len()
    }

    /// Checks the checksum over the header.
    ///
    /// # Errors
    /// If it is wrong.
    #[inline]
    pub fn verify(&self) -> Result<(), ParseError> {
        let sum = Sum::new().bytes(self.header.as_bytes()).bytes(self.options);
        if sum.is_right() {
            Ok(())
        } else {
            Err(ParseError::Ipv4Checksum)
        }
    }
}

/// Turns the packet that `packet` begins with, whose header is `header_length` bytes long, into one
/// that goes back to its sender with `payload_length` bytes. Options become ones that mean nothing.
/// With `checksum` off the field is zero, for a device to fill. Returns the header's fixed part.
///
/// `None`: it is not such a packet, or would be longer than packets can be.
#[inline]
pub fn turn_round(
    packet: &mut [u8],
    header_length: usize,
    payload_length: usize,
    checksum: bool,
) -> Option<&Header> {
    let total_length = u16::try_from(header_length.checked_add(payload_length)?).ok()?;
    let (header, rest) = Header::mut_from_prefix(packet).ok()?;
    if header.length() != header_length {
        return None;
    }
    let options = rest.get_mut(..header_length.checked_sub(Header::LENGTH)?)?;
    options.fill(NO_OPERATION);
    *header = Header {
        version_and_length: header.version_and_length,
        ..Header::new(
            header.protocol,
            header.destination(),
            header.source(),
            total_length,
        )
    };
    if checksum {
        let sum = Sum::new().bytes(header.as_bytes()).bytes(options);
        header.checksum = sum.checksum().into();
    }
    Some(header)
}
