//! RackSched's: 41 bytes, packed.
//!
//! | bytes | content | in the original |
//! |---|---|---|
//! | 0 | 0 reply, 1 request (its first packet), 2 a packet that follows | `type` |
//! | 1..3 | the packet's place in the request: 0 for the first | `seq_num` |
//! | 3..15 | three queue lengths, *big endian*: the switch between client and server reads them | `queue_length` |
//! | 15..17 | which client | `client_id` |
//! | 17..21 | which request | `req_id` |
//! | 21..25 | bytes of all the request's packets together, these 41 of each among them | `pkts_length` |
//! | 25..33 | how long the server shall work on it, in nanoseconds | `run_ns` |
//! | 33..41 | when the client made it, in nanoseconds of the client's clock | `gen_ns` |
//!
//! All are unsigned, and little endian where nothing else is said. The original's packets end here;
//! ours may go on with a payload. In a reply the first queue length is how many requests of that
//! type the server still has, by which the switch chooses a server for the next one; the original's
//! server leaves the other two as they are. Source: client and server in RackSched's repository
//! (netx-repo/RackSched, OSDI'20).

use std::ops::Range;

const KIND: usize = 0;
const SEQUENCE: Range<usize> = 1..3;
const QUEUE_LENGTHS: [Range<usize>; 3] = [3..7, 7..11, 11..15];
const CLIENT: Range<usize> = 15..17;
const REQUEST: Range<usize> = 17..21;
const TOTAL: Range<usize> = 21..25;
const RUN: Range<usize> = 25..33;
const GENERATED: Range<usize> = 33..41;

/// What a packet is, in the direction it goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RackSchedKind {
    /// From the server.
    Reply = 0,
    /// A request's first packet, most often its only one.
    Request = 1,
    /// A further packet of the same request.
    Follow = 2,
}

/// What every packet begins with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RackSchedMessage {
    /// What the packet is.
    pub kind: RackSchedKind,
    /// Its place in the request, from 0.
    pub sequence: u16,
    /// In a reply: what the server still has to do, as it counts that. See [`reply`](Self::reply).
    pub queue_lengths: [u32; 3],
    /// Which client.
    pub client: u16,
    /// Which of the client's requests.
    pub request: u32,
    /// Length of all the request's packets together, in bytes, with what each begins with.
    pub total_length: u32,
    /// How long the server shall work on it, in nanoseconds. The original's RocksDB server takes 0
    /// as a scan, all else as a get.
    pub run_nanos: u64,
    /// When the client made it, in nanoseconds of the client's clock; for the client alone.
    pub generated_nanos: u64,
}

impl RackSchedMessage {
    /// Its length on the wire, in bytes.
    pub const LENGTH: usize = 41;

    /// A request of one packet without a payload, as the original's client sends it.
    #[must_use]
    pub const fn request(client: u16, request: u32, run_nanos: u64, generated_nanos: u64) -> Self {
        Self {
            kind: RackSchedKind::Request,
            sequence: 0,
            queue_lengths: [0; 3],
            client,
            request,
            total_length: Self::LENGTH as u32,
            run_nanos,
            generated_nanos,
        }
    }

    /// The reply to this request, in one packet without a payload: the client's numbers as they
    /// came, and that the server has `queue_length` more requests of its type.
    #[must_use]
    pub const fn reply(self, queue_length: u32) -> Self {
        Self {
            kind: RackSchedKind::Reply,
            sequence: 0,
            queue_lengths: [queue_length, 0, 0],
            total_length: Self::LENGTH as u32,
            ..self
        }
    }

    /// Reads what `bytes` begin with; the payload is what is left.
    ///
    /// # Errors
    /// If they are too few, or the kind is none of the three. Everything else can be any number.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), NotRackSched> {
        let (header, payload) =
            bytes
                .split_first_chunk::<{ Self::LENGTH }>()
                .ok_or(NotRackSched::TooShort {
                    length: bytes.len(),
                })?;
        let kind = match header[KIND] {
            0 => RackSchedKind::Reply,
            1 => RackSchedKind::Request,
            2 => RackSchedKind::Follow,
            kind => return Err(NotRackSched::Kind { kind }),
        };
        let message = Self {
            kind,
            sequence: u16::from_le_bytes(field(header, SEQUENCE)),
            queue_lengths: QUEUE_LENGTHS.map(|place| u32::from_be_bytes(field(header, place))),
            client: u16::from_le_bytes(field(header, CLIENT)),
            request: u32::from_le_bytes(field(header, REQUEST)),
            total_length: u32::from_le_bytes(field(header, TOTAL)),
            run_nanos: u64::from_le_bytes(field(header, RUN)),
            generated_nanos: u64::from_le_bytes(field(header, GENERATED)),
        };
        Ok((message, payload))
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[KIND] = self.kind as u8;
        bytes[SEQUENCE].copy_from_slice(&self.sequence.to_le_bytes());
        for (place, length) in QUEUE_LENGTHS.into_iter().zip(self.queue_lengths) {
            bytes[place].copy_from_slice(&length.to_be_bytes());
        }
        bytes[CLIENT].copy_from_slice(&self.client.to_le_bytes());
        bytes[REQUEST].copy_from_slice(&self.request.to_le_bytes());
        bytes[TOTAL].copy_from_slice(&self.total_length.to_le_bytes());
        bytes[RUN].copy_from_slice(&self.run_nanos.to_le_bytes());
        bytes[GENERATED].copy_from_slice(&self.generated_nanos.to_le_bytes());
        bytes
    }
}

fn field<const SIZE: usize>(
    header: &[u8; RackSchedMessage::LENGTH],
    place: Range<usize>,
) -> [u8; SIZE] {
    header[place].try_into().expect("as long as its number")
}

/// What came is not a packet in RackSched's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRackSched {
    /// It ends too early.
    #[error(
        "a packet in RackSched's format has {} bytes or more, not {length}",
        RackSchedMessage::LENGTH
    )]
    TooShort {
        /// How many bytes came.
        length: usize,
    },
    /// Neither reply nor request.
    #[error(
        "a packet in RackSched's format begins with 0 (reply), 1 (request) or 2 (follows), not {kind}"
    )]
    Kind {
        /// What it begins with.
        kind: u8,
    },
}
