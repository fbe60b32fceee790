//! What the program and its control share; `bpf/tables.h` has the same layouts.
//!
//! Addresses and ports are in the network's order, as the program compares them with packets.

use std::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most servers of a rack.
pub const SERVERS: usize = 64;
/// The most request types.
pub const TYPES: usize = 8;
/// The most slots of a type: of each open server in proportion to its weight.
pub const SLOTS: usize = 256;
/// Entries of a bucket of the request table.
pub const WAYS: usize = 8;
/// Random numbers that can be injected at once.
pub const DRAWS: usize = 256;
/// How long a tick of the request table is, in nanoseconds.
pub const TICK_NANOS: u64 = 1 << 20;

/// What a request type's packets are; all zero: there is no such type.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TypeSettings {
    /// Where requests go, at the rack's address.
    pub request_port: [u8; 2],
    /// Where servers send replies from.
    pub reply_port: [u8; 2],
    /// A [`Format`](crate::Format)'s number.
    pub format: u8,
    /// A [`Balancer`](crate::Balancer)'s number.
    pub balancer: u8,
    /// How many servers are drawn.
    pub draws: u8,
    /// A [`LoadInfo`](crate::LoadInfo)'s number.
    pub load_info: u8,
}

/// What is fixed when the program is loaded.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Settings {
    /// The rack's address.
    pub address: [u8; 4],
    /// How long a request keeps its entry in the table, in ticks.
    pub age: u32,
    /// Buckets of the request table, a power of two, less one.
    pub bucket_mask: u32,
    /// 1: random numbers and the time are an [`Injection`]'s, for tests.
    pub injected: u32,
    /// The request types.
    pub types: [TypeSettings; TYPES],
}

/// The way to a server or client: a frame's addresses, and the interface that sends it.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Station {
    /// The receiver's address.
    pub to: [u8; 6],
    /// The interface's own.
    pub from: [u8; 6],
    /// The interface's index.
    pub interface: u32,
}

/// A server; all zero: none has this number.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ServerEntry {
    /// Its address.
    pub address: [u8; 4],
    /// The way there.
    pub station: Station,
}

/// The servers that are open for a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Members {
    servers: u32,
    slots: u32,
    server: [u8; SERVERS],
    slot: [u8; SLOTS],
    weight: [u16; SERVERS],
}

impl Default for Members {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Members {
    /// The servers, by number, with their weights. Numbers are below [`SERVERS`], weights at least
    /// one.
    ///
    /// A server has as many slots as its weight, divided by what all weights can be divided by.
    /// Where the sum still exceeds [`SLOTS`], they are scaled down, to one at least. Loads are
    /// compared by the weights as they are. A server's slots lie apart from each other, so that
    /// servers take turns in round robin.
    #[must_use]
    pub fn new(servers: &[(u8, u16)]) -> Self {
        let mut members = Self {
            servers: servers.len().min(SERVERS) as u32,
            slots: 0,
            server: [0; SERVERS],
            slot: [0; SLOTS],
            weight: [0; SERVERS],
        };
        let servers = &servers[..servers.len().min(SERVERS)];
        for (place, (server, weight)) in servers.iter().enumerate() {
            members.server[place] = *server;
            members.weight[usize::from(*server)] = (*weight).max(1);
        }
        let weight_of = |server: u8| u32::from(members.weight[usize::from(server)]);
        let weights = || servers.iter().map(|(server, _)| weight_of(*server));
        let unit = weights().fold(0, gcd).max(1);
        let sum: u32 = weights().map(|weight| weight / unit).sum();
        // What rounding up to one takes at most is left out of the room for the others.
        let room = (SLOTS - SERVERS) as u32;
        let slots = |weight: u32| match sum as usize {
            0..=SLOTS => weight / unit,
            _ => (weight / unit * room / sum).max(1),
        };
        // The n-th of w slots of a server is due at (n + 1/2) / w of the round.
        let mut due: Vec<(u32, u8)> = Vec::new();
        for (server, _) in servers {
            let all = slots(weight_of(*server));
            due.extend((0..all).map(|n| ((2 * n + 1) * (1 << 16) / (2 * all), *server)));
        }
        due.sort_by_key(|(at, _)| *at);
        for (slot, (_, server)) in members.slot.iter_mut().zip(&due) {
            *slot = *server;
        }
        members.slots = due.len() as u32;
        members
    }

    /// The slots, a server's number each.
    #[must_use]
    pub fn slots(&self) -> &[u8] {
        &self.slot[..self.slots as usize]
    }
}

fn gcd(one: u32, other: u32) -> u32 {
    if other == 0 {
        one
    } else {
        gcd(other, one % other)
    }
}

/// What the program knows of the servers' load for a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Loads {
    /// Each server's load.
    pub load: [u32; SERVERS],
    /// With INT2: a server's number plus one, and its load in the low half; 0: none is known.
    pub least: u64,
    /// Turns of round robin.
    pub turn: u64,
}

/// What a server has done for a type.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Activity {
    /// Requests sent to it.
    pub sent: u64,
    /// Replies that came from it.
    pub replies: u64,
    /// How many had been sent when its last reply came.
    pub answered: u64,
    /// When that was, or the first one after it was sent, in nanoseconds of the kernel's clock.
    pub waiting_since: u64,
}

impl Activity {
    /// Requests sent since its last reply.
    #[must_use]
    pub const fn unanswered(&self) -> u64 {
        self.sent.saturating_sub(self.answered)
    }
}

/// What is to be corrected of what the program knows of a server.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Correction {
    pub(crate) server: u8,
    /// The types that no request is out of, from this one ...
    pub(crate) first: u8,
    /// ... to that one; [`TYPES`]: what the program counts itself, too.
    pub(crate) last: u8,
    /// 1: their loads are forgotten, too.
    pub(crate) loads: u8,
    /// Requests that are no longer outstanding.
    pub(crate) lost: u32,
    /// A frame has at least 14 bytes.
    pub(crate) padding: [u32; 2],
}

/// The random numbers and the time of a test.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Injection {
    /// The time, in nanoseconds.
    pub now: u64,
    /// How many numbers have been used.
    pub drawn: u32,
    /// The numbers; after the last comes the first again.
    pub draw: [u32; DRAWS],
    padding: u32,
}

impl Injection {
    /// At this time, with these numbers first and zeros after them.
    ///
    /// # Panics
    /// If there are more than [`DRAWS`] of them.
    #[must_use]
    pub fn new(now: u64, draws: &[u32]) -> Self {
        let mut draw = [0; DRAWS];
        draw[..draws.len()].copy_from_slice(draws);
        Self {
            now,
            drawn: 0,
            draw,
            padding: 0,
        }
    }
}

/// What became of a packet, as the program counts it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Cause {
    /// A request's packet, sent to a server.
    Request,
    /// A reply's packet, sent to its client.
    Reply,
    /// Neither to the rack nor from its servers; the kernel's.
    NotOurs,
    /// To the rack or from a server, in fragments; the kernel's.
    Fragment,
    /// Its headers tell lengths that it does not have; the kernel's.
    BadLength,
    /// Not in its port's format; the kernel's.
    NotTheFormat,
    /// No server is open for its type, nor has any its request; the kernel's.
    NoServer,
    /// A reply to a client that has sent nothing so far; the kernel's.
    UnknownClient,
    /// Its interface is not one of the rack's; dropped.
    NoPort,
    /// Also counted as a request: it went where its request's first packet had gone.
    Affine,
    /// Also counted as a request: the request found no entry, and a hash chose its server.
    TableFull,
    /// No packet: an entry of the request table, freed because of its age.
    Aged,
}

impl Cause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Request,
        Self::Reply,
        Self::NotOurs,
        Self::Fragment,
        Self::BadLength,
        Self::NotTheFormat,
        Self::NoServer,
        Self::UnknownClient,
        Self::NoPort,
        Self::Affine,
        Self::TableFull,
        Self::Aged,
    ];

    /// Its name in a status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "requests",
            Self::Reply => "replies",
            Self::NotOurs => "not-ours",
            Self::Fragment => "fragments",
            Self::BadLength => "bad-lengths",
            Self::NotTheFormat => "not-the-format",
            Self::NoServer => "no-server",
            Self::UnknownClient => "unknown-client",
            Self::NoPort => "no-port",
            Self::Affine => "affine",
            Self::TableFull => "table-full",
            Self::Aged => "aged",
        }
    }
}

/// As the program has it: the address's bytes in their order.
pub(crate) const fn network_order(address: Ipv4Addr) -> [u8; 4] {
    address.octets()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_proportion_and_apart() {
        let members = Members::new(&[(3, 1), (5, 2), (9, 1)]);
        assert_eq!(members.slots().len(), 4);
        assert_ne!(members.slots()[0], members.slots()[1]);
        let of = |server| {
            members
                .slots()
                .iter()
                .filter(|slot| **slot == server)
                .count()
        };
        assert_eq!([of(3), of(5), of(9)], [1, 2, 1]);
        assert_eq!(Members::new(&[(7, 1), (2, 1)]).slots(), [7, 2]);
    }

    #[test]
    fn any_weights_fit() {
        let all: Vec<(u8, u16)> = (0..SERVERS as u8).map(|n| (n, u16::MAX)).collect();
        assert!(Members::new(&all).slots().len() <= SLOTS);
        let uneven: Vec<(u8, u16)> = (0..SERVERS as u8)
            .map(|n| (n, if n == 0 { u16::MAX } else { 1 }))
            .collect();
        let members = Members::new(&uneven);
        assert!(members.slots().len() <= SLOTS);
        assert!((0..SERVERS as u8).all(|n| members.slots().contains(&n)));
    }

    /// 64 servers of 8 workers would have 512 slots.
    #[test]
    fn slots_are_as_few_as_the_weights_allow_and_weights_stay_exact() {
        let all = |one: u16, other: u16| {
            let of = |number| (number, if number % 2 == 0 { one } else { other });
            Members::new(&(0..SERVERS as u8).map(of).collect::<Vec<_>>())
        };
        assert_eq!(all(8, 8).slots().len(), SERVERS);
        assert_eq!(all(4, 12).slots().len(), SERVERS * 2);
        // Rounded to two and three slots each, but a load counts by the workers that there are.
        let members = all(5, 7);
        assert_eq!(members.slots().len(), SERVERS / 2 * 5);
        assert_eq!(members.weight[..2], [5, 7]);
    }

    #[test]
    fn numbers_are_the_order_of_the_list() {
        let numbers = Cause::ALL.map(|cause| cause as usize);
        assert_eq!(numbers, std::array::from_fn(|n| n));
    }
}
