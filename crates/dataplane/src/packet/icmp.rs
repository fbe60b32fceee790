//! ICMP for IPv4 (RFC 792), as far as answering an echo request goes.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ParseError;
use super::checksum::{Sum, updated};

/// "Send this back."
pub const ECHO_REQUEST: u8 = 8;
/// "Here it is."
pub const ECHO_REPLY: u8 = 0;

/// A message's first 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    kind: u8,
    code: u8,
    checksum: U16,
    /// For an echo: identifier and sequence number.
    rest: [u8; 4],
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    header: &'a Header,
    message: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Looks at an IPv4 packet's payload.
    ///
    /// # Errors
    /// If it is too short.
    pub fn parse(message: &'a [u8]) -> Result<Self, ParseError> {
        let (header, _) = Header::ref_from_prefix(message).map_err(|_| ParseError::Truncated)?;
        Ok(Self { header, message })
    }

    /// Checks the checksum over the message.
    ///
    /// # Errors
    /// If it is wrong.
    pub fn verify(&self) -> Result<(), ParseError> {
        if Sum::new().bytes(self.message).is_right() {
            Ok(())
        } else {
            Err(ParseError::IcmpChecksum)
        }
    }

    /// Whether it wants to be sent back.
    #[must_use]
    pub fn is_echo_request(&self) -> bool {
        (self.header.kind, self.header.code) == (ECHO_REQUEST, 0)
    }

    /// Its length in bytes, header included.
    #[must_use]
    pub fn length(&self) -> usize {
        self.message.len()
    }
}

/// Makes the echo request that `message` begins with the reply to it. `None`: it is too short.
pub fn answer(message: &mut [u8]) -> Option<()> {
    let (header, _) = Header::mut_from_prefix(message).ok()?;
    let before = u16::from_be_bytes([header.kind, header.code]);
    header.kind = ECHO_REPLY;
    let after = u16::from_be_bytes([header.kind, header.code]);
    header.checksum = updated(header.checksum.get(), before, after).into();
    Some(())
}
