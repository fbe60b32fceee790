//! What a client is told at start, and what can be wrong with it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use shinjuku_net::setters;
use shinjuku_net::udp::LONGEST_DATAGRAM;
use shinjuku_net::wire::PartHeader;

/// Queries that can be under way at once, at the most.
pub const MOST_OPEN: usize = 1 << 16;
/// The longest payload of a part, in bytes: what a datagram has room for behind the header.
pub const LONGEST_PAYLOAD: usize = LONGEST_DATAGRAM - PartHeader::LENGTH;

/// What a part's deadline is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Deadline {
    /// The query's SLO, whatever its fan-out: T-EDFQ.
    Slo,
    /// The SLO less the query's latency in an empty system, by its servers: TailGuard's TF-EDFQ.
    SloAndFanout,
}

/// Settings of a [`Client`](crate::Client); checked by [`Client::new`](crate::Client::new).
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientConfig {
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) deadline: Deadline,
    pub(crate) percentile: f64,
    pub(crate) open: usize,
    pub(crate) give_up_after: Duration,
    pub(crate) window: u32,
}

impl ClientConfig {
    /// A client of these servers. Deadlines from SLO and fan-out at the 99th percentile, 1024
    /// queries under way at most, given up after one second, and about the last 10,000 latencies of
    /// a server.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            deadline: Deadline::SloAndFanout,
            percentile: 0.99,
            open: 1024,
            give_up_after: Duration::from_secs(1),
            window: 10_000,
        }
    }

    setters! {
        /// What deadlines are made of.
        deadline: Deadline;
        /// The percentile that SLOs bound, such as 0.99: above 0, below 1.
        percentile: f64;
        /// Queries that can be under way at once: 1 to [`MOST_OPEN`].
        open: usize;
        /// A query without all its replies after this long is ended.
        give_up_after: Duration;
        /// About how many of a server's last latencies count.
        window: u32;
    }

    pub(crate) fn check(&self) -> Result<(), ClientError> {
        let Some(first) = self.servers.first() else {
            return Err(ClientError::NoServers);
        };
        let other = |server: &&SocketAddr| server.is_ipv4() != first.is_ipv4();
        if let Some(&other) = self.servers.iter().find(other) {
            return Err(ClientError::Families {
                first: *first,
                other,
            });
        }
        if !(self.percentile > 0.0 && self.percentile < 1.0) {
            return Err(ClientError::Percentile {
                given: self.percentile,
            });
        }
        if !(1..=MOST_OPEN).contains(&self.open) {
            return Err(ClientError::Open { given: self.open });
        }
        Ok(())
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ClientError {
    /// No server.
    #[error("a client needs a server at least: name its address")]
    NoServers,
    /// One socket cannot reach both.
    #[error("{first} and {other}: name IPv4 addresses only, or IPv6 addresses only")]
    Families {
        first: SocketAddr,
        /// One of the other family.
        other: SocketAddr,
    },
    /// The percentile is none.
    #[error("percentile is {given}: choose one above 0 and below 1, such as 0.99")]
    Percentile { given: f64 },
    /// Too few or too many queries at once.
    #[error("{given} queries under way at once: choose 1 to {MOST_OPEN}")]
    Open { given: usize },
    /// The system gives no socket.
    #[error("cannot open a UDP socket")]
    Socket(#[from] io::Error),
}
