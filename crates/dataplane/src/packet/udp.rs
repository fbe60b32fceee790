//! UDP over IPv4 (RFC 768).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Ipv4, ParseError, ipv4};

/// A datagram's first 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    source: U16,
    destination: U16,
    length: U16,
    checksum: U16,
}

impl Header {
    /// Its length in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// The sender's port; 0: it wants no answer.
    #[must_use]
    pub fn source(&self) -> u16 {
        self.source.get()
    }

    /// The receiver's port.
    #[must_use]
    pub fn destination(&self) -> u16 {
        self.destination.get()
    }
}

/// A datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    /// Its ports.
    pub header: &'a Header,
    /// What it carries.
    pub payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Looks at an IPv4 packet's payload.
    ///
    /// # Errors
    /// If it is too short, or its length is not the payload's. (A shorter one could carry the
    /// options of RFC 9868 behind it; this crate does not read them, and a wrong length is more
    /// often a forgery.)
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let (header, payload) =
            Header::ref_from_prefix(datagram).map_err(|_| ParseError::Truncated)?;
        if usize::from(header.length.get()) != datagram.len() {
            return Err(ParseError::UdpLength);
        }
        Ok(Self { header, payload })
    }

    /// Checks the checksum over the datagram that `ipv4` carries. Zero means that the sender made
    /// none.
    ///
    /// # Errors
    /// If it is wrong.
    #[inline]
    pub fn verify(&self, ipv4: &Ipv4<'_>) -> Result<(), ParseError> {
        let sum = ipv4
            .header
            .pseudo_header(self.header.length.get())
            .bytes(self.header.as_bytes())
            .bytes(self.payload);
        if self.header.checksum == 0 || sum.is_right() {
            Ok(())
        } else {
            Err(ParseError::UdpChecksum)
        }
    }
}

/// The header that `datagram` begins with. `None`: it is too short.
#[must_use]
#[inline]
pub fn header(datagram: &[u8]) -> Option<&Header> {
    Header::ref_from_prefix(datagram)
        .ok()
        .map(|(header, _)| header)
}

/// Writes the header of the datagram that is all of `datagram`, its payload being in place, into a
/// packet with the header `ipv4`. If the checksum is `offloaded`, its field is left with what
/// devices want there: the sum over the pseudo-header. `None`: it is too short or too long.
#[inline]
pub fn write(
    datagram: &mut [u8],
    ipv4: &ipv4::Header,
    source: u16,
    destination: u16,
    offloaded: bool,
) -> Option<()> {
    let length = u16::try_from(datagram.len()).ok()?;
    let (header, payload) = Header::mut_from_prefix(datagram).ok()?;
    *header = Header {
        source: source.into(),
        destination: destination.into(),
        length: length.into(),
        checksum: 0.into(),
    };
    let pseudo_header = ipv4.pseudo_header(length);
    let checksum = if offloaded {
        pseudo_header.folded()
    } else {
        let sum = pseudo_header.bytes(header.as_bytes()).bytes(payload);
        match sum.checksum() {
            // Zero would mean that there is none; all ones is the same number in ones' complement.
            0 => 0xffff,
            checksum => checksum,
        }
    };
    header.checksum = checksum.into();
    Some(())
}
