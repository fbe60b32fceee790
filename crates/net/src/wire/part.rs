//! A part of a query that fans out to several servers: 24 bytes, then what the part asks, or what
//! it is answered with.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | the letters `FP` |
//! | 2 | the version: 1 |
//! | 3 | 0 reply, 1 request |
//! | 4..6 | the class: of the request, and the same in the reply |
//! | 6..8 | 0; readers ignore it |
//! | 8..16 | the client's number for the part; comes back as it went |
//! | 16..24 | in a request: how long after its arrival the part is due, *signed*; in a reply: how long the request waited at the server before it first ran; in nanoseconds |
//!
//! Numbers are little endian. The format is ours. A later version may mean anything else by all
//! bytes but the first three, so readers turn down versions that they do not know.
//!
//! The deadline is a length of time, not a moment: client and servers need no common clock. What
//! the network takes counts as part of the unloaded latency that the client measures
//! (`shinjuku-fanout`).
//!
//! Source: Wang et al., *TailGuard*, ICDCS 2023: deadlines come with the tasks, and results bring
//! what the client needs to follow the tasks' times without queueing.

use std::net::SocketAddr;
use std::ops::Range;

use crate::Classifier;

const MARK: [u8; 2] = *b"FP";
const VERSION: u8 = 1;
const KIND: usize = 3;
const CLASS: Range<usize> = 4..6;
const NUMBER: Range<usize> = 8..16;
const NANOS: Range<usize> = 16..24;

/// What a part begins with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartHeader {
    /// The request class.
    pub class: u16,
    /// The client's number for the part.
    pub number: u64,
    /// In which direction it goes, and what it says there.
    pub kind: PartKind,
}

/// What a part is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PartKind {
    /// To a server.
    Request {
        /// How long after its arrival it is due, in nanoseconds; less than zero: it is late.
        budget_nanos: i64,
    },
    /// From a server.
    Reply {
        /// How long the request waited before it first ran, in nanoseconds.
        waited_nanos: u64,
    },
}

impl PartHeader {
    /// Its length on the wire, in bytes.
    pub const LENGTH: usize = 24;

    /// The header of the reply to this part.
    #[must_use]
    pub const fn reply(self, waited_nanos: u64) -> Self {
        let kind = PartKind::Reply { waited_nanos };
        Self { kind, ..self }
    }

    /// Reads what `bytes` begin with; the payload is what is left.
    ///
    /// # Errors
    /// If they are no part, or of a version that this code does not know.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), NotAPart> {
        let too_short = NotAPart::TooShort {
            length: bytes.len(),
        };
        let (header, payload) = bytes
            .split_first_chunk::<{ Self::LENGTH }>()
            .ok_or(too_short)?;
        if header[..2] != MARK {
            return Err(NotAPart::Mark);
        }
        if header[2] != VERSION {
            return Err(NotAPart::Version { version: header[2] });
        }
        let nanos = field(header, NANOS);
        let kind = match header[KIND] {
            0 => PartKind::Reply {
                waited_nanos: u64::from_le_bytes(nanos),
            },
            1 => PartKind::Request {
                budget_nanos: i64::from_le_bytes(nanos),
            },
            kind => return Err(NotAPart::Kind { kind }),
        };
        let part = Self {
            class: u16::from_le_bytes(field(header, CLASS)),
            number: u64::from_le_bytes(field(header, NUMBER)),
            kind,
        };
        Ok((part, payload))
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let (kind, nanos) = match self.kind {
            PartKind::Reply { waited_nanos } => (0, waited_nanos.to_le_bytes()),
            PartKind::Request { budget_nanos } => (1, budget_nanos.to_le_bytes()),
        };
        let mut bytes = [0; Self::LENGTH];
        bytes[..2].copy_from_slice(&MARK);
        bytes[2] = VERSION;
        bytes[KIND] = kind;
        bytes[CLASS].copy_from_slice(&self.class.to_le_bytes());
        bytes[NUMBER].copy_from_slice(&self.number.to_le_bytes());
        bytes[NANOS].copy_from_slice(&nanos);
        bytes
    }

    /// Makes a reply of what a handler answered, if that begins as its request did (an echo does).
    pub fn stamp(reply: &mut [u8], waited_nanos: u64) {
        if let Ok((part, _)) = Self::parse(reply) {
            reply[..Self::LENGTH].copy_from_slice(&part.reply(waited_nanos).to_bytes());
        }
    }
}

fn field<const SIZE: usize>(header: &[u8; PartHeader::LENGTH], place: Range<usize>) -> [u8; SIZE] {
    header[place].try_into().expect("as long as its number")
}

/// Tells class and deadline of a part by its header. Everything else is malformed.
#[derive(Clone, Copy, Default, Debug)]
pub struct ByPart;

impl Classifier for ByPart {
    fn classify(&mut self, datagram: &[u8], _peer: SocketAddr) -> Option<u16> {
        match PartHeader::parse(datagram) {
            Ok((part, _)) if matches!(part.kind, PartKind::Request { .. }) => Some(part.class),
            _ => None,
        }
    }

    fn budget_nanos(&mut self, datagram: &[u8]) -> Option<i64> {
        match PartHeader::parse(datagram).ok()?.0.kind {
            PartKind::Request { budget_nanos } => Some(budget_nanos),
            PartKind::Reply { .. } => None,
        }
    }
}

/// What came is not a part of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotAPart {
    /// It ends too early.
    #[error(
        "a part of a query has {} bytes or more, not {length}",
        PartHeader::LENGTH
    )]
    TooShort {
        /// How many bytes came.
        length: usize,
    },
    /// It begins otherwise.
    #[error("a part of a query begins with the letters FP")]
    Mark,
    /// A version of the format that this code does not know.
    #[error("a part of a query of version {version}: this code knows version {VERSION}")]
    Version {
        /// The version.
        version: u8,
    },
    /// Neither reply nor request.
    #[error("a part of a query is 0 (reply) or 1 (request), not {kind}")]
    Kind {
        /// What it says.
        kind: u8,
    },
}
