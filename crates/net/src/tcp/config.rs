//! What a TCP transport is told at start.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{ListenError, OutOfRange};

/// Which thread writes replies to the sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ReplyBy {
    /// The worker that ran the handler.
    #[default]
    Worker,
    /// The networker: saves the workers the system call.
    Networker,
}

/// Settings of a [`Tcp`](super::Tcp) transport; checked by [`Tcp::bind`](super::Tcp::bind).
#[derive(Clone, Debug)]
#[must_use]
pub struct TcpConfig {
    pub(super) listen: SocketAddr,
    pub(super) connections: Option<usize>,
    pub(super) buffer: usize,
    pub(super) max_request: usize,
    pub(super) large_buffers: usize,
    pub(super) max_reply: usize,
    pub(super) reply_memory: usize,
    pub(super) batch: usize,
    pub(super) backlog: usize,
    pub(super) write_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) keep_alive: Option<Duration>,
    pub(super) reuse_port: bool,
    pub(super) busy_poll: Option<u32>,
    pub(super) reply_by: ReplyBy,
}

/// What `connections` is if it is not set and descriptors suffice.
pub(super) const CONNECTIONS: usize = 10_240;

impl TcpConfig {
    /// Listens on `listen` (port 0: one that the kernel picks; `[::]`: IPv4, too, unless the system
    /// says otherwise).
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            connections: None,
            buffer: 16 << 10,
            max_request: 1 << 20,
            large_buffers: 64,
            max_reply: 64 << 20,
            reply_memory: 256 << 20,
            batch: 16,
            backlog: 1024,
            write_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            idle_timeout: None,
            keep_alive: Some(Duration::from_secs(300)),
            reuse_port: false,
            busy_poll: None,
            reply_by: ReplyBy::Worker,
        }
    }

    setters! {
        /// Connections at the most, 1 to 65,536; more are told so and closed. By default 10,240, or
        /// as many as the process's limit of descriptors allows. For each there is room for
        /// `buffer` bytes each way, which the kernel gives when it is first used.
        connections: usize;
        /// The standard buffers' size in bytes, 256 to 1 MiB, by default 16 KiB. Requests and
        /// replies within it cost nothing; once half of it is full of replies, they are sent even
        /// if further requests are there.
        buffer: usize;
        /// The longest request in bytes, up to 1 GiB, by default 1 MiB. A client that sends a
        /// longer one is told so, and the connection closes.
        max_request: usize;
        /// Buffers of `max_request` bytes for requests longer than `buffer`, up to 65,536, by
        /// default 64, at least one if there can be such requests. When all are in use, further
        /// connections with long requests wait.
        large_buffers: usize;
        /// The longest reply in bytes, `buffer` to 1 TiB, by default 64 MiB. Handlers that write
        /// more get an error.
        max_reply: usize;
        /// All replies longer than `buffer` together, in bytes, up to 1 TiB, by default 256 MiB;
        /// memory that is taken when it is needed.
        reply_memory: usize;
        /// The most requests that one poll delivers, and the most system calls for them, 1 to 1024,
        /// by default 16. Meanwhile no request is dispatched or preempted: at roughly a microsecond
        /// each, keep it well below the quantum's worth.
        batch: usize;
        /// Connections that the kernel completes before they are accepted, 1 to 65,535, by
        /// default 1024. It grants no more than `net.core.somaxconn`.
        backlog: usize;
        /// A client that takes no byte of its replies for so long is cut off. 1 ms to a day, by
        /// default 10 s.
        write_timeout: Duration;
        /// A request must be complete so long after its first byte. 1 ms to a day, by default 30 s.
        request_timeout: Duration;
        /// A connection without a request for so long is closed. 1 ms to a day; by default it is
        /// not.
        idle_timeout: Option<Duration>;
        /// After so long without traffic the kernel asks whether the peer is still there
        /// (`SO_KEEPALIVE`). 1 s to 32,767 s, by default 300 s; `None`: never.
        keep_alive: Option<Duration>;
        /// Lets several sockets of this user share the address (`SO_REUSEPORT`); the kernel spreads
        /// connections over them.
        reuse_port: bool;
        /// Has the kernel look at the network card's queue itself for so many microseconds when a
        /// connection has nothing (`SO_BUSY_POLL`), instead of waiting for the card's interrupt.
        /// Drivers without it, the loopback interface among them, ignore it. More than
        /// `net.core.busy_read` needs CAP_NET_ADMIN.
        busy_poll: u32;
        /// Which thread writes replies, by default the worker.
        reply_by: ReplyBy;
    }

    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        let in_range = OutOfRange::check;
        const LONGEST: usize = 1 << 40;
        let large = usize::from(self.max_request > self.buffer);
        in_range("connections", self.connections.unwrap_or(1), 1, 65_536)?;
        in_range("buffer", self.buffer, 256, 1 << 20)?;
        in_range("max_request", self.max_request, 1, 1 << 30)?;
        in_range("large_buffers", self.large_buffers, large, 65_536)?;
        in_range("max_reply", self.max_reply, self.buffer, LONGEST)?;
        in_range("reply_memory", self.reply_memory, 0, LONGEST)?;
        in_range("batch", self.batch, 1, 1024)?;
        in_range("backlog", self.backlog, 1, 65_535)?;
        time_in_range("write_timeout", self.write_timeout)?;
        time_in_range("request_timeout", self.request_timeout)?;
        time_in_range("idle_timeout", self.idle_timeout.unwrap_or(LEAST_TIME))?;
        let busy_poll = self.busy_poll.unwrap_or(0) as usize;
        in_range("busy_poll", busy_poll, 0, i32::MAX as usize)?;
        let keep_alive = self.keep_alive.map_or(1, |after| after.as_secs() as usize);
        in_range("keep_alive", keep_alive, 1, 32_767)
    }

    /// Whether there are requests that need the large buffers.
    pub(super) fn large_buffers_needed(&self) -> usize {
        if self.max_request > self.buffer {
            self.large_buffers
        } else {
            0
        }
    }
}

const LEAST_TIME: Duration = Duration::from_millis(1);

fn time_in_range(setting: &'static str, value: Duration) -> Result<(), OutOfRange> {
    let micros = usize::try_from(value.as_micros()).unwrap_or(usize::MAX);
    OutOfRange::check(setting, micros, 1000, 86_400_000_000)
}

/// Why [`Tcp::bind`](super::Tcp::bind) did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum TcpError {
    /// A setting is out of its range.
    #[error("TCP: {0}")]
    Setting(OutOfRange),
    /// The process may not open so many files.
    #[error(
        "TCP: {connections} connections need as many file descriptors, but this process may have {limit}, {reserve} of \
         them for other things: raise the hard limit (`ulimit -Hn`, LimitNOFILE), or lower `connections`"
    )]
    TooFewDescriptors {
        connections: usize,
        limit: u64,
        /// What is left for the rest of the process.
        reserve: u64,
    },
    /// The address cannot be listened on.
    #[error("TCP: {0}")]
    Listen(ListenError),
}

impl From<OutOfRange> for TcpError {
    fn from(cause: OutOfRange) -> Self {
        Self::Setting(cause)
    }
}

impl From<ListenError> for TcpError {
    fn from(cause: ListenError) -> Self {
        Self::Listen(cause)
    }
}
