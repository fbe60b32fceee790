//! The client: queries out, replies in, and what became of each part.
//!
//! One socket, no thread of its own. A part's number says where its query is: the place, how often
//! the place has been used before (so that a reply to an older query is recognised), and which part
//! it is. A reply counts only if it comes from the server that the part went to.

use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use shinjuku_net::wire::{PartHeader, PartKind};

use crate::config::{ClientConfig, ClientError, Deadline, LONGEST_PAYLOAD};
use crate::latencies::{Latencies, unloaded_nanos};

/// Parts of a query, at the most: as many as their numbers can tell apart.
const MOST_PARTS: usize = 1 << 16;

/// Datagrams that one poll receives, at the most.
const BATCH: usize = 1024;

/// What is asked of one server.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Which server, from 0, in the order of the configuration.
    pub server: usize,
    /// What is asked.
    pub payload: &'a [u8],
}

/// What goes to several servers, and ends with the last answer.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Its request class at the servers.
    pub class: u16,
    /// How long it may take.
    pub slo: Duration,
    /// Its parts.
    pub parts: &'a [Part<'a>],
}

/// A query under way. Not used again before 2^32 others had the same place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueryId {
    place: u16,
    use_of_place: u32,
}

impl QueryId {
    fn number(self, part: usize) -> u64 {
        u64::from(self.use_of_place) << 32 | u64::from(self.place) << 16 | part as u64
    }

    fn of(number: u64) -> (Self, usize) {
        let id = Self {
            place: (number >> 16) as u16,
            use_of_place: (number >> 32) as u32,
        };
        (id, usize::from(number as u16))
    }
}

/// A part's answer.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// Whose part it answers.
    pub query: QueryId,
    /// Which part, in the order of the query.
    pub part: usize,
    /// The answer.
    pub payload: &'a [u8],
}

/// A query's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Ended {
    /// Which query.
    pub query: QueryId,
    /// Its class.
    pub class: u16,
    /// Its parts.
    pub fanout: usize,
    /// How long it was allowed to take.
    pub slo: Duration,
    /// From [`Client::send`] to the last reply, or to giving up.
    pub latency: Duration,
    /// Parts without an answer.
    pub missing: usize,
}

impl Ended {
    /// Whether all parts were answered within the SLO.
    #[must_use]
    pub fn met(&self) -> bool {
        self.missing == 0 && self.latency <= self.slo
    }
}

/// What became of everything sent and received. `parts` is always `answered` and `missing` and what
/// is under way.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// Queries sent.
    pub queries: u64,
    /// Queries that were given up with parts missing.
    pub given_up: u64,
    /// Their parts together.
    pub parts: u64,
    /// Parts answered.
    pub answered: u64,
    /// Parts that had no answer when their query was given up.
    pub missing: u64,
    /// Parts that the system did not send; they are missing, or still under way.
    pub not_sent: u64,
    /// Replies to parts that have been answered.
    pub duplicate: u64,
    /// Replies to no part that is under way, most often too late; or from another server.
    pub stray: u64,
    /// Datagrams that are no reply.
    pub malformed: u64,
    /// Errors of the system on receiving.
    pub receive_failed: u64,
}

/// Why a query was not sent. Nothing of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No parts, or too many.
    #[error("a query of {given} parts: it has 1 to {MOST_PARTS}")]
    Parts {
        /// How many were given.
        given: usize,
    },
    /// There is no such server.
    #[error("a part for server {given}: there are {servers}, numbered from 0")]
    Server {
        /// The number given.
        given: usize,
        /// How many there are.
        servers: usize,
    },
    /// Too long for a datagram.
    #[error("a part's payload of {given} bytes: it has {LONGEST_PAYLOAD} at most")]
    Payload {
        /// Its length.
        given: usize,
    },
    /// As many queries are under way as the configuration allows.
    #[error("{open} queries are under way: poll the client until one ends")]
    Busy {
        /// How many.
        open: usize,
    },
}

struct Server {
    address: SocketAddr,
    latencies: Latencies,
}

/// Where a query is while it is under way.
#[derive(Default)]
struct Place {
    used: u32,
    class: u16,
    slo: Duration,
    sent_nanos: u64,
    parts: Vec<Sent>,
    /// Parts without an answer; 0: no query is here.
    left: usize,
}

struct Sent {
    server: u32,
    at_nanos: u64,
    answered: bool,
}

/// Sends queries to servers, and receives their answers.
pub struct Client {
    socket: UdpSocket,
    servers: Box<[Server]>,
    deadline: Deadline,
    percentile: f64,
    give_up_nanos: u64,
    start: Instant,
    places: Box<[Place]>,
    free: Vec<u16>,
    /// No query is to be given up before.
    next_look_nanos: u64,
    datagram: Box<[u8]>,
    counts: Counts,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.places.len() - self.free.len();
        write!(
            formatter,
            "Client({} servers, {open} queries under way)",
            self.servers.len()
        )
    }
}

impl Client {
    /// Opens its socket and takes its memory.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        config.check()?;
        let any = match config.servers[0] {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any)?;
        socket.set_nonblocking(true)?;
        let server = |address| Server {
            address,
            latencies: Latencies::new(config.window),
        };
        let give_up_nanos = config.give_up_after.as_nanos();
        Ok(Self {
            socket,
            servers: config.servers.into_iter().map(server).collect(),
            deadline: config.deadline,
            percentile: config.percentile,
            give_up_nanos: u64::try_from(give_up_nanos).unwrap_or(u64::MAX),
            start: Instant::now(),
            places: (0..config.open).map(|_| Place::default()).collect(),
            free: (0..config.open).rev().map(|place| place as u16).collect(),
            next_look_nanos: 0,
            datagram: vec![0; LONGEST_PAYLOAD + PartHeader::LENGTH].into_boxed_slice(),
            counts: Counts::default(),
        })
    }

    fn now_nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// What became of everything.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Queries under way.
    #[must_use]
    pub fn open(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The latencies without waiting that were measured of a server.
    #[must_use]
    pub fn latencies(&self, server: usize) -> Option<&Latencies> {
        Some(&self.servers.get(server)?.latencies)
    }

    /// How long after the start of a query its parts are due, in nanoseconds; less than zero where
    /// the SLO is too short for these servers.
    fn budget_nanos(&self, query: &Query<'_>) -> i64 {
        let slo = i64::try_from(query.slo.as_nanos()).unwrap_or(i64::MAX);
        match self.deadline {
            Deadline::Slo => slo,
            Deadline::SloAndFanout => {
                let latencies = |part: &Part<'_>| &self.servers[part.server].latencies;
                let unloaded = unloaded_nanos(query.parts.iter().map(latencies), self.percentile);
                slo.saturating_sub_unsigned(unloaded)
            }
        }
    }

    fn check(&self, query: &Query<'_>) -> Result<(), SendError> {
        let given = query.parts.len();
        if !(1..=MOST_PARTS).contains(&given) {
            return Err(SendError::Parts { given });
        }
        for part in query.parts {
            let (given, servers) = (part.server, self.servers.len());
            if given >= servers {
                return Err(SendError::Server { given, servers });
            }
            let given = part.payload.len();
            if given > LONGEST_PAYLOAD {
                return Err(SendError::Payload { given });
            }
        }
        Ok(())
    }

    /// Sends all parts of a query. A part that the system does not take is counted, and missing.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, query: Query<'_>) -> Result<QueryId, SendError> {
        self.check(&query)?;
        let open = self.open();
        let place = self.free.pop().ok_or(SendError::Busy { open })?;
        let sent_nanos = self.now_nanos();
        let due_nanos = self
            .budget_nanos(&query)
            .saturating_add_unsigned(sent_nanos);
        let at = &mut self.places[usize::from(place)];
        let id = QueryId {
            place,
            use_of_place: at.used,
        };
        (at.class, at.slo, at.sent_nanos) = (query.class, query.slo, sent_nanos);
        at.left = query.parts.len();
        at.parts.clear();
        for (number, part) in query.parts.iter().enumerate() {
            let at_nanos = self.start.elapsed().as_nanos() as u64;
            let header = PartHeader {
                class: query.class,
                number: id.number(number),
                kind: PartKind::Request {
                    budget_nanos: due_nanos.saturating_sub_unsigned(at_nanos),
                },
            };
            let address = &self.servers[part.server].address;
            if !send(&self.socket, address, &header.to_bytes(), part.payload) {
                self.counts.not_sent += 1;
            }
            at.parts.push(Sent {
                server: part.server as u32,
                at_nanos,
                answered: false,
            });
        }
        self.counts.queries += 1;
        self.counts.parts += query.parts.len() as u64;
        Ok(id)
    }

    /// Receives what is there, without waiting, until a query ends; `None`: none has. Every answer
    /// goes to `on_reply`, and is recorded in the latencies of its server. Queries whose time is
    /// over are given up.
    pub fn poll(&mut self, mut on_reply: impl FnMut(Reply<'_>)) -> Option<Ended> {
        for _ in 0..BATCH {
            let (length, from) = match self.socket.recv_from(&mut self.datagram) {
                Ok(received) => received,
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        self.counts.receive_failed += 1;
                    }
                    break;
                }
            };
            let now_nanos = self.now_nanos();
            let Some((query, part)) = self.answered(length, from, now_nanos) else {
                continue;
            };
            on_reply(Reply {
                query,
                part,
                payload: &self.datagram[PartHeader::LENGTH..length],
            });
            if self.places[usize::from(query.place)].left == 0 {
                return Some(self.end(query.place, now_nanos));
            }
        }
        self.give_up()
    }

    /// Which part the first `length` bytes of the buffer answer; `None`: none, which is counted.
    fn answered(
        &mut self,
        length: usize,
        from: SocketAddr,
        now_nanos: u64,
    ) -> Option<(QueryId, usize)> {
        let counts = &mut self.counts;
        let (number, waited_nanos) = match PartHeader::parse(&self.datagram[..length]) {
            Ok((
                PartHeader {
                    number,
                    kind: PartKind::Reply { waited_nanos },
                    ..
                },
                _,
            )) => (number, waited_nanos),
            _ => {
                counts.malformed += 1;
                return None;
            }
        };
        let (query, part) = QueryId::of(number);
        let place = self.places.get_mut(usize::from(query.place));
        let place = place.filter(|at| at.left > 0 && at.used == query.use_of_place);
        let found = place.and_then(|at| Some((at.parts.get_mut(part)?, &mut at.left)));
        let Some((sent, left)) = found else {
            counts.stray += 1;
            return None;
        };
        let server = &mut self.servers[sent.server as usize];
        if server.address != from {
            counts.stray += 1;
            return None;
        }
        if std::mem::replace(&mut sent.answered, true) {
            counts.duplicate += 1;
            return None;
        }
        *left -= 1;
        counts.answered += 1;
        let took_nanos = now_nanos.saturating_sub(sent.at_nanos);
        server
            .latencies
            .record(took_nanos.saturating_sub(waited_nanos));
        Some((query, part))
    }

    /// Ends a query whose time is over, if there is one.
    fn give_up(&mut self) -> Option<Ended> {
        let now_nanos = self.now_nanos();
        if now_nanos < self.next_look_nanos {
            return None;
        }
        // Queries sent from now on end later than any of these. So between two looks there is about
        // as much time as a query is given.
        let ends = |place: &Place| place.sent_nanos.saturating_add(self.give_up_nanos);
        let open = self.places.iter().enumerate();
        let first = open
            .filter(|(_, place)| place.left > 0)
            .map(|(number, place)| (ends(place), number))
            .min();
        match first {
            Some((end_nanos, place)) if end_nanos <= now_nanos => {
                self.counts.given_up += 1;
                Some(self.end(place as u16, now_nanos))
            }
            first => {
                let latest = now_nanos.saturating_add(self.give_up_nanos);
                self.next_look_nanos = first.map_or(latest, |(end_nanos, _)| end_nanos);
                None
            }
        }
    }

    /// The query at `place` is over.
    fn end(&mut self, place: u16, now_nanos: u64) -> Ended {
        let at = &mut self.places[usize::from(place)];
        let ended = Ended {
            query: QueryId {
                place,
                use_of_place: at.used,
            },
            class: at.class,
            fanout: at.parts.len(),
            slo: at.slo,
            latency: Duration::from_nanos(now_nanos.saturating_sub(at.sent_nanos)),
            missing: at.left,
        };
        self.counts.missing += at.left as u64;
        at.left = 0;
        at.used = at.used.wrapping_add(1);
        self.free.push(place);
        ended
    }

    /// Sleeps until a datagram is there, or `patience` is over; may return early.
    pub fn wait(&self, patience: Duration) {
        let patience = Timespec::try_from(patience).ok();
        let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
        // An error (a signal came) is an early return, which is allowed.
        let _ = rustix::event::poll(&mut socket, patience.as_ref());
    }

    /// Asks each server `rounds` times, one part at a time, so that its latency without waiting is
    /// known before the first query. Call it before others load the servers.
    ///
    /// # Errors
    /// [`SendError`]; `Busy` if queries are under way.
    pub fn warm_up(&mut self, rounds: usize, class: u16, payload: &[u8]) -> Result<(), SendError> {
        if self.open() > 0 {
            return Err(SendError::Busy { open: self.open() });
        }
        for _ in 0..rounds {
            for server in 0..self.servers.len() {
                let parts = [Part { server, payload }];
                self.send(Query {
                    class,
                    slo: Duration::MAX,
                    parts: &parts,
                })?;
                while self.poll(|_| {}).is_none() {
                    self.wait(Duration::from_millis(10));
                }
            }
        }
        for server in &mut self.servers {
            server.latencies.refresh();
        }
        Ok(())
    }
}

/// One datagram of both; whether the system has taken it.
fn send(socket: &UdpSocket, to: &SocketAddr, header: &[u8], payload: &[u8]) -> bool {
    let pieces = [IoSlice::new(header), IoSlice::new(payload)];
    let mut nothing_else = SendAncillaryBuffer::default();
    loop {
        let flags = SendFlags::DONTWAIT;
        match rustix::net::sendmsg_addr(socket, to, &pieces, &mut nothing_else, flags) {
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
