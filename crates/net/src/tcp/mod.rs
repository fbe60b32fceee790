//! TCP over the kernel's sockets: requests framed by a [`Codec`], one of a connection at a time,
//! replies in order.
//!
//! ```no_run
//! use shinjuku_net::Refusal;
//! use shinjuku_net::tcp::{Codec, Framing, Reply, Request, Tcp, TcpConfig};
//!
//! /// A request is a line.
//! #[derive(Clone)]
//! struct Lines;
//!
//! impl Codec for Lines {
//!     type Progress = ();
//!     type Session = ();
//!     fn frame(&self, bytes: &[u8], _: &mut (), _: &()) -> Framing {
//!         match bytes.iter().position(|&byte| byte == b'\n') {
//!             Some(at) => Framing::Complete { length: at + 1, class: 0 },
//!             None => Framing::Incomplete,
//!         }
//!     }
//!     fn refusal(&self, _: Refusal) -> &'static [u8] {
//!         b"busy\n"
//!     }
//!     fn failure(&self) -> &'static [u8] {
//!         b"failed\n"
//!     }
//! }
//!
//! /// What a handler does.
//! fn echo(mut request: Request<Lines>) -> Reply<Lines> {
//!     let (line, output, _) = request.parts();
//!     output.extend_from_slice(line).expect("lines are short");
//!     request.reply()
//! }
//!
//! let listen = "127.0.0.1:9000".parse().expect("an address");
//! let tcp = Tcp::bind(TcpConfig::new(listen), Lines)?;
//! println!("listening on {}", tcp.local_addr());
//! # Ok::<(), shinjuku_net::tcp::TcpError>(())
//! ```
//!
//! All memory but that of long replies is taken by [`Tcp::bind`]. What belongs to a connection, its
//! socket included, moves as one: to the handler as a [`Request`], back as a [`Reply`], to the
//! worker that sends it, and to the networker again.
//!
//! Requests that a client sends without waiting for replies are run one after the other, and their
//! replies are sent together: with 16 in a packet, there is one read and one write. An early reply
//! thus waits for a slow request behind it, as its client has sent both.

//!
//! What a client can do to others is bounded, and what it loses by trying is counted in
//! [`TcpCounts`]:
//!
//! | it | then |
//! |---|---|
//! | sends a request byte by byte | it is framed in linear time, and must be complete within `request_timeout` |
//! | sends a request longer than `max_request` | [`Codec::too_long`], and the connection closes |
//! | sends requests and reads no replies | none of its requests is taken before the replies are; after `write_timeout` without progress the connection closes |
//! | asks for replies of any length | `max_reply` each, `reply_memory` together; the handler gets the error |
//! | closes its side | what it has sent is answered, then the connection closes |
//! | opens connections | `connections` at the most; more get [`Codec::too_many_connections`] |
//! | says nothing | the connection closes after `idle_timeout`, if there is one |

mod accept;
mod codec;
mod config;
mod counters;
mod exchange;
mod input;
mod memory;
mod networker;
mod output;
mod replier;
mod request;
mod slot;
mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::io::Errno;

pub use codec::{Codec, Framing};
pub use config::{ReplyBy, TcpConfig, TcpError};
pub use counters::{TcpCounters, TcpCounts};
pub use exchange::{ConnectionId, Route};
pub use output::{Output, OutputFull};
pub use replier::{Outgoing, TcpReplier};
pub use request::{Reply, Request};

use crate::{Arrival, Failure, ListenError, Refusal, Transport};
use accept::Acceptor;
use exchange::Shared;
use memory::Memory;
use networker::Networker;

/// The transport: a listening socket, and everything of its connections.
pub struct Tcp<C: Codec> {
    local_addr: SocketAddr,
    acceptor: Acceptor,
    networker: Networker<C>,
}

impl<C: Codec> std::fmt::Debug for Tcp<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tcp")
            .field("local_addr", &self.local_addr)
            .field("connections", &self.networker.slots.len())
            .finish_non_exhaustive()
    }
}

impl<C: Codec> Tcp<C> {
    /// Opens the listening socket and takes all memory. Raises the process's limit of file
    /// descriptors to the hard one.
    ///
    /// # Errors
    /// A setting out of range, too few descriptors, or an address that cannot be had.
    pub fn bind(config: TcpConfig, codec: C) -> Result<Self, TcpError> {
        config.check()?;
        let connections = socket::connections(&config)?;
        let listener = socket::listen(&config)?;
        let failed = |action| {
            let listen = config.listen;
            move |error: Errno| ListenError::system(action, listen, error.into())
        };
        let local_addr = listener
            .local_addr()
            .map_err(|cause| ListenError::system("read the address", config.listen, cause))?;
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let bell = rustix::event::eventfd(0, flags).map_err(failed("make an eventfd"))?;
        let epoll = networker::watch(&bell, &listener).map_err(failed("use epoll"))?;
        let memory = Arc::new(Memory::new(config.max_reply, config.reply_memory));
        let shared = Arc::new(Shared {
            codec,
            send_from: config.buffer / 2,
            workers_send: config.reply_by == ReplyBy::Worker,
            sleeping: AtomicBool::new(false),
            bell,
            memory,
            counters: Arc::default(),
        });
        let networker = Networker::new(&config, connections, epoll, shared);
        Ok(Self {
            local_addr,
            acceptor: Acceptor {
                listener: Some(listener),
                last_id: 0,
                paused_until: 0,
            },
            networker,
        })
    }

    /// Where it listens: the port in use if 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// How many connections there can be at once.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.networker.slots.len()
    }

    /// The counters, to be kept when the transport goes to the runtime.
    #[must_use]
    pub fn counters(&self) -> TcpCounters {
        TcpCounters {
            counters: Arc::clone(&self.networker.shared.counters),
            memory: Arc::clone(&self.networker.shared.memory),
        }
    }
}

impl<C: Codec> Transport for Tcp<C> {
    type Request = Request<C>;
    type Reply = Reply<C>;
    type Route = Route<C>;
    type Outgoing = Outgoing<C>;
    type Replier = TcpReplier<C>;

    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        deliver: impl FnMut(Arrival<Request<C>, Route<C>>),
    ) {
        self.networker.poll(now_nanos, room, deliver);
        self.acceptor.accept(&mut self.networker);
    }

    fn refuse(&mut self, request: Request<C>, route: Route<C>, cause: Refusal) {
        self.networker.turn_away(request, route, cause);
    }

    fn conclude(route: Route<C>, result: Result<Reply<C>, Failure>) -> Outgoing<C> {
        let shared = &route.0.shared;
        shared.memory.tidy();
        let failed = result.is_err();
        let exchange = match result {
            Ok(reply) => {
                let mut exchange = reply.into_exchange();
                exchange.replies += 1;
                Some(exchange)
            }
            Err(_) => route.0.take().map(|mut exchange| {
                exchange.fail(shared.codec.failure());
                exchange
            }),
        };
        Outgoing {
            route,
            exchange,
            failed,
        }
    }

    fn replier(&mut self) -> std::io::Result<TcpReplier<C>> {
        let networker = &mut self.networker;
        let number = networker.rings.len();
        let (back, ring) = rtrb::RingBuffer::new(networker.slots.len());
        networker.rings.push(ring);
        Ok(TcpReplier {
            back,
            counters: networker.shared.counters.output(),
            shared: Arc::clone(&networker.shared),
            number,
            announced: false,
        })
    }

    fn wait(&mut self, patience: Duration) {
        if let Some(patience) = self.acceptor.patience(&self.networker, patience) {
            self.networker.wait(patience);
        }
    }

    fn close(&mut self) {
        self.acceptor.listener = None;
        self.networker.closed = true;
    }
}

impl<C: Codec> Drop for Tcp<C> {
    /// Tries for a second at the most to send what is unsent. Requests that handlers still have
    /// lose their connections when they are dropped.
    fn drop(&mut self) {
        self.acceptor.listener = None;
        self.networker.end();
        for slot in &self.networker.slots {
            slot.place.close();
        }
    }
}
