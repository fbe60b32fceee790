//! Requests of several packets, put together again.
//!
//! ```text
//!             first packet                    last missing packet
//!   (unknown) ────────────▶ (held in a place) ────────────────────▶ (complete: handed on)
//!                                  │ time-out, or the oldest when a place is needed
//!                                  ▼
//!                              (dropped)
//! ```
//!
//! Bytes in, bytes out: it knows no sockets and no clock, so that any transport can have one. A
//! packet belongs to the request that its peer, client and request numbers name. Packets may come
//! in any order; a request is complete when they are as long together as each says, without a gap.
//! It is then what the first packet begins with, and all payloads in their order.
//!
//! No packet is trusted: one that contradicts the others of its request is dropped, and counted by
//! [`Rejected`]. (The original indexes an array of eight with the number from the packet.) A packet
//! that comes again after its request was complete begins one that will not be, and goes by
//! time-out.
//!
//! All memory is taken at construction.

mod counts;
mod table;

use std::hash::Hash;
use std::time::Duration;

pub use counts::{ReassemblyCounters, ReassemblyCounts};

use super::{RackSchedKind, RackSchedMessage};
use crate::OutOfRange;
use table::Table;

const HEADER: usize = RackSchedMessage::LENGTH;

/// Bounds of a [`Reassembly`]. It takes `requests` times `max_request` bytes, and 8 for each
/// packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use]
pub struct ReassemblyConfig {
    /// Incomplete requests at a time, 1 to 65,536. For one more, the oldest is dropped.
    pub requests: usize,
    /// Packets of a request at the most, 2 to 1024.
    pub packets: usize,
    /// The longest request put together, in bytes, 41 to 65,507: what every packet begins with
    /// counts once.
    pub max_request: usize,
    /// How long after its first packet a request must be complete.
    pub timeout: Duration,
}

impl Default for ReassemblyConfig {
    /// 64 requests of 8 packets (the original's bound) and 2048 bytes, within 100 ms.
    fn default() -> Self {
        Self {
            requests: 64,
            packets: 8,
            max_request: 2048,
            timeout: Duration::from_millis(100),
        }
    }
}

impl ReassemblyConfig {
    setters! {
        /// Sets [`requests`](field@Self::requests).
        requests: usize;
        /// Sets [`packets`](field@Self::packets).
        packets: usize;
        /// Sets [`max_request`](field@Self::max_request).
        max_request: usize;
        /// Sets [`timeout`](field@Self::timeout).
        timeout: Duration;
    }

    /// Whether the bounds are in their ranges.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), OutOfRange> {
        OutOfRange::check("reassembly's requests", self.requests, 1, 65_536)?;
        OutOfRange::check("reassembly's packets", self.packets, 2, 1024)?;
        OutOfRange::check("reassembly's max_request", self.max_request, HEADER, 65_507)
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// Not RackSched's, or a reply.
    #[error("not a request in RackSched's format")]
    NotARequest,
    /// A first packet with a number, one that follows without, or more packets than allowed.
    #[error("a sequence number that cannot be")]
    Sequence,
    /// The lengths contradict each other, or what came before.
    #[error("lengths that contradict each other")]
    Length,
    /// The request is longer than allowed.
    #[error("the request is too long")]
    TooLong,
    /// This packet of the request is there already.
    #[error("a packet that was there already")]
    Duplicate,
}

impl Rejected {
    /// All causes.
    pub const ALL: [Self; 5] = [
        Self::NotARequest,
        Self::Sequence,
        Self::Length,
        Self::TooLong,
        Self::Duplicate,
    ];
}

/// What a packet came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added<'a> {
    /// It is a request by itself: use it as it is.
    Whole,
    /// It was copied, and waits for others.
    Held,
    /// It was the last one missing.
    Complete(Assembled<'a>),
}

/// A request put together, still in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assembled<'a> {
    bytes: &'a [u8],
    /// In their order, with no `None` among them.
    pieces: &'a [Option<Piece>],
}

impl Assembled<'_> {
    /// Its length in bytes, `max_request` at most.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Writes it to the beginning of `buffer`.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`length`](Self::length).
    pub fn copy_to(&self, buffer: &mut [u8]) {
        let mut rest = &mut buffer[..self.bytes.len()];
        for piece in self.pieces.iter().flatten() {
            let (room, left) = rest.split_at_mut(piece.length as usize);
            room.copy_from_slice(&self.bytes[piece.start as usize..][..room.len()]);
            rest = left;
        }
    }
}

/// Where a packet's bytes are, within those of its request: the first packet whole, of the others
/// the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    start: u32,
    length: u32,
}

/// What packets of the same request have in common.
type Key<Peer> = (Peer, u16, u32);

/// An incomplete request.
#[derive(Clone, Copy, Default, Debug)]
struct Partial {
    since_nanos: u64,
    /// Length of all its packets, as each says.
    total: usize,
    /// Length of those that have come.
    received: usize,
    /// Bytes kept.
    used: usize,
    packets: usize,
    /// The highest sequence number, plus one.
    span: usize,
}

/// Puts requests together. `Peer` is whatever the transport knows a sender by.
#[derive(Debug)]
pub struct Reassembly<Peer> {
    config: ReassemblyConfig,
    table: Table<Key<Peer>>,
    /// By place.
    partial: Box<[Partial]>,
    /// `packets` for each place.
    pieces: Box<[Option<Piece>]>,
    /// `max_request` for each place.
    bytes: Box<[u8]>,
    counters: ReassemblyCounters,
}

impl<Peer: Copy + Eq + Hash> Reassembly<Peer> {
    /// Takes all its memory.
    ///
    /// # Errors
    /// A bound out of its range.
    pub fn new(config: ReassemblyConfig) -> Result<Self, OutOfRange> {
        config.check()?;
        Ok(Self {
            config,
            table: Table::new(config.requests),
            partial: vec![Partial::default(); config.requests].into(),
            pieces: vec![None; config.requests * config.packets].into(),
            bytes: vec![0; config.requests * config.max_request].into(),
            counters: ReassemblyCounters::default(),
        })
    }

    /// The counters, to be kept.
    #[must_use]
    pub fn counters(&self) -> ReassemblyCounters {
        self.counters.clone()
    }

    /// A packet has come from `peer`. `now_nanos` is of any clock that does not go back. Drops what
    /// is too old, too.
    ///
    /// # Errors
    /// Why the packet was dropped; it is counted.
    pub fn add(
        &mut self,
        now_nanos: u64,
        peer: Peer,
        packet: &[u8],
    ) -> Result<Added<'_>, Rejected> {
        self.expire(now_nanos);
        match self.take(now_nanos, peer, packet) {
            Ok(Taken::Whole) => {
                self.counters.0.whole.count();
                Ok(Added::Whole)
            }
            Ok(Taken::Held) => {
                self.counters.0.held.count();
                Ok(Added::Held)
            }
            Ok(Taken::Last(at)) => Ok(Added::Complete(self.complete(at))),
            Err(cause) => {
                self.counters.0.rejected(cause).count();
                Err(cause)
            }
        }
    }

    /// Drops the requests whose time is over. Only needed where packets may cease to come.
    pub fn expire(&mut self, now_nanos: u64) {
        let timeout = u64::try_from(self.config.timeout.as_nanos()).unwrap_or(u64::MAX);
        while let Some(at) = self.table.oldest()
            && now_nanos.saturating_sub(self.partial[at].since_nanos) > timeout
        {
            let packets = self.forget(at);
            self.counters.0.expired.add(packets);
        }
    }

    fn take(&mut self, now_nanos: u64, peer: Peer, packet: &[u8]) -> Result<Taken, Rejected> {
        let (message, payload) =
            RackSchedMessage::parse(packet).map_err(|_| Rejected::NotARequest)?;
        let sequence = usize::from(message.sequence);
        let total = message.total_length as usize;
        let kept = match message.kind {
            RackSchedKind::Reply => return Err(Rejected::NotARequest),
            RackSchedKind::Request if sequence == 0 && total == packet.len() => {
                return Ok(Taken::Whole);
            }
            RackSchedKind::Request if sequence == 0 => packet,
            RackSchedKind::Follow if sequence != 0 && sequence < self.config.packets => payload,
            _ => return Err(Rejected::Sequence),
        };
        // There is another packet, and it is no shorter than this.
        if total < packet.len() + HEADER {
            return Err(Rejected::Length);
        }
        // Though it had as many packets as it may.
        let headers = HEADER * (self.config.packets - 1);
        if total.saturating_sub(headers) > self.config.max_request {
            return Err(Rejected::TooLong);
        }
        let key = (peer, message.client, message.request);
        let known = self.table.find(&key);
        let mut partial = known.map_or(
            Partial {
                since_nanos: now_nanos,
                total,
                ..Partial::default()
            },
            |at| self.partial[at],
        );
        if known.is_some_and(|at| self.pieces_of(at)[sequence].is_some()) {
            return Err(Rejected::Duplicate);
        }
        let start = partial.used;
        partial.received += packet.len();
        partial.used += kept.len();
        partial.packets += 1;
        partial.span = partial.span.max(sequence + 1);
        let all_there = partial.received == total;
        if total != partial.total
            || partial.received > total
            || all_there && partial.packets != partial.span
        {
            return Err(Rejected::Length);
        }
        if partial.used > self.config.max_request {
            return Err(Rejected::TooLong);
        }
        let at = known.unwrap_or_else(|| self.place(key));
        self.partial[at] = partial;
        let piece = Piece {
            start: start as u32,
            length: kept.len() as u32,
        };
        self.pieces_of(at)[sequence] = Some(piece);
        let bytes = &mut self.bytes[at * self.config.max_request..];
        bytes[start..partial.used].copy_from_slice(kept);
        Ok(if all_there {
            Taken::Last(at)
        } else {
            Taken::Held
        })
    }

    /// A place for a request that is new, if need be the oldest one's.
    fn place(&mut self, key: Key<Peer>) -> usize {
        let at = self.table.insert(key).or_else(|| {
            let oldest = self.table.oldest()?;
            let packets = self.forget(oldest);
            self.counters.0.evicted.add(packets);
            self.table.insert(key)
        });
        let at = at.expect("there is a place, or an oldest request that has one");
        self.pieces_of(at).fill(None);
        at
    }

    /// Gives up the place; how many packets were in it.
    fn forget(&mut self, at: usize) -> u64 {
        self.table.remove(at);
        let packets = self.partial[at].packets as u64;
        self.counters.0.held.subtract(packets);
        packets
    }

    /// The place is free for others from now on, but what is in it stays until the next packet
    /// comes.
    fn complete(&mut self, at: usize) -> Assembled<'_> {
        let partial = self.partial[at];
        let joined = partial.packets as u64 - 1;
        self.table.remove(at);
        self.counters.0.held.subtract(joined);
        self.counters.0.joined.add(joined);
        self.counters.0.assembled.count();
        Assembled {
            bytes: &self.bytes[at * self.config.max_request..][..partial.used],
            pieces: &self.pieces[at * self.config.packets..][..partial.packets],
        }
    }

    fn pieces_of(&mut self, at: usize) -> &mut [Option<Piece>] {
        &mut self.pieces[at * self.config.packets..][..self.config.packets]
    }
}

/// As [`Added`], before it is counted.
enum Taken {
    Whole,
    Held,
    /// Everything is in this place.
    Last(usize),
}
