//! UDP over the kernel's sockets: one datagram is one request, at most one goes back.
//!
//! ```no_run
//! use shinjuku_net::udp::{Udp, UdpConfig};
//!
//! let listen = "127.0.0.1:9000".parse().expect("an address");
//! let udp = Udp::bind(UdpConfig::new(listen).buffers(4096))?;
//! println!("listening on {}", udp.local_addr());
//! # Ok::<(), shinjuku_net::udp::UdpError>(())
//! ```
//!
//! All memory is taken by [`Udp::bind`]: a fixed set of buffers. The kernel copies a datagram into one; from then on
//! the buffer itself moves: to the handler as a [`Datagram`], back as a [`DatagramReply`], to the worker that sends
//! it, and to the free ones again. With none left the transport stops receiving, and the kernel queues and drops.
//!
//! A reply goes to whoever sent the request. A handler that answers `None`, or panics, sends nothing: over UDP a
//! client cannot tell that from loss, and times out.
//!
//! Batches are received by one `recvfrom` a datagram. `recvmmsg`, several in one system call, was measured beside it
//! (the `nix` crate's, over loopback, 16 bytes each, Linux 6.18 in a virtual machine; medians of 20,000 batches) and is
//! no gain there: 0.45 us a datagram in batches of 8, against 0.37 us; for one datagram and the call in vain that ends
//! its batch 0.85 us, against 0.70 us. Where entering the kernel costs more, that may turn round.

mod classifier;
mod config;
mod counters;
mod datagram;
mod flow;
mod pool;
mod replier;
mod socket;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};

pub use classifier::{Classifier, OneClass};
pub use config::{LONGEST_DATAGRAM, UdpConfig, UdpError};
pub use counters::{UdpCounters, UdpCounts};
pub use datagram::{Datagram, DatagramReply, ReplyTooLong};
pub use replier::{Outgoing, UdpReplier};

use crate::{Arrival, Failure, Refusal, Transport};
use counters::{Counters, count};
use flow::flow;
use pool::{Buffer, Taker};

/// The transport: a socket and its buffers.
#[derive(Debug)]
pub struct Udp<C = OneClass> {
    socket: UdpSocket,
    local_addr: SocketAddr,
    classifier: C,
    batch: usize,
    free: Taker,
    /// What the next datagram goes into. Kept from poll to poll, so that polling in vain does not touch the pool.
    ready: Option<Buffer>,
    /// The buffers have run out, and that has been counted.
    starved: bool,
    closed: bool,
    counters: Arc<Counters>,
}

impl Udp {
    /// Opens the socket and takes all memory; every request is of class 0.
    ///
    /// # Errors
    /// A setting out of range, or an address that cannot be had.
    pub fn bind(config: UdpConfig) -> Result<Self, UdpError> {
        Udp::bind_classified(config, OneClass)
    }
}

impl<C: Classifier> Udp<C> {
    /// As [`bind`](Udp::bind), with `classifier` telling the requests' classes.
    ///
    /// # Errors
    /// A setting out of range, or an address that cannot be had.
    pub fn bind_classified(config: UdpConfig, classifier: C) -> Result<Self, UdpError> {
        config.check()?;
        let socket = socket::open(&config)?;
        let local_addr = socket
            .local_addr()
            .map_err(|cause| UdpError::system("read the address", config.listen, cause))?;
        let mut free = Taker::new(config.buffers, config.max_datagram);
        let ready = free.take();
        let counters = Arc::default();
        Ok(Self {
            socket,
            local_addr,
            classifier,
            batch: config.batch,
            free,
            ready,
            starved: false,
            closed: false,
            counters,
        })
    }

    /// Where it listens: the port in use if 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The size of the kernel's receive queue in bytes, as it accounts for it (Linux: twice what was asked for, as
    /// every datagram costs more than its payload).
    ///
    /// # Errors
    /// What the operating system says.
    pub fn receive_buffer(&self) -> std::io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.socket)?)
    }

    /// The counters, to be kept when the transport goes to the runtime.
    #[must_use]
    pub fn counters(&self) -> UdpCounters {
        UdpCounters {
            counters: Arc::clone(&self.counters),
            pool: Arc::clone(self.free.pool()),
        }
    }

    /// One datagram for the dispatcher, or why not.
    fn receive(&mut self) -> Received {
        let Some(mut buffer) = self.ready.take().or_else(|| self.free.take()) else {
            if !std::mem::replace(&mut self.starved, true) {
                count(&self.counters.intake.no_buffer);
            }
            return Received::Nothing;
        };
        self.starved = false;
        // With TRUNC the kernel tells a datagram's true length, longer than the buffer or not.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (length, peer) = match rustix::net::recvfrom(&self.socket, &mut *buffer.bytes, flags) {
            Ok((_, length, peer)) => (length, peer),
            Err(error) => {
                self.ready = Some(buffer);
                return self.failed(error);
            }
        };
        count(&self.counters.intake.received);
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let dropped = match (buffer.bytes.get(..length), peer) {
            (None, _) => &self.counters.intake.truncated,
            // UDP sockets of IPv4 and IPv6 have peers of IPv4 and IPv6: an unknown one cannot be answered.
            (_, None) => &self.counters.intake.malformed,
            (Some(payload), Some(peer)) => match self.classifier.classify(payload, peer) {
                Some(class) => {
                    return Received::Request(Datagram::new(buffer, length, peer), class);
                }
                None => &self.counters.intake.malformed,
            },
        };
        count(dropped);
        self.ready = Some(buffer);
        Received::Dropped
    }

    /// Takes a datagram off the kernel's queue unread.
    fn discard(&mut self) -> Received {
        match rustix::net::recvfrom(&self.socket, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok(_) => {
                count(&self.counters.intake.received);
                count(&self.counters.intake.refused);
                Received::Dropped
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&self, error: Errno) -> Received {
        if error != Errno::AGAIN && error != Errno::INTR {
            count(&self.counters.intake.receive_failed);
        }
        Received::Nothing
    }
}

/// What one attempt to receive came to.
enum Received {
    Request(Datagram, u16),
    Dropped,
    Nothing,
}

impl<C: Classifier> Transport for Udp<C> {
    type Request = Datagram;
    /// `None`: no reply is sent.
    type Reply = Option<DatagramReply>;
    /// The sender's address.
    type Route = SocketAddr;
    type Outgoing = Outgoing;
    type Replier = UdpReplier;

    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Datagram, SocketAddr>),
    ) {
        for _ in 0..room.min(self.batch) {
            let received = if self.closed {
                self.discard()
            } else {
                self.receive()
            };
            match received {
                Received::Request(request, class) => {
                    let route = request.peer();
                    let flow = flow(route);
                    deliver(Arrival {
                        request,
                        route,
                        class,
                        flow,
                        arrived_nanos: now_nanos,
                        deadline_nanos: None,
                    });
                }
                Received::Dropped => {}
                Received::Nothing => break,
            }
        }
    }

    fn refuse(&mut self, _request: Datagram, _route: SocketAddr, _cause: Refusal) {
        count(&self.counters.intake.refused);
    }

    fn conclude(peer: SocketAddr, result: Result<Option<DatagramReply>, Failure>) -> Outgoing {
        Outgoing {
            reply: result.unwrap_or(None),
            peer,
        }
    }

    fn replier(&mut self) -> std::io::Result<UdpReplier> {
        let socket = self.socket.try_clone().map_err(|cause| {
            let kind = cause.kind();
            let error = UdpError::system("give a worker its socket", self.local_addr, cause);
            std::io::Error::new(kind, error)
        })?;
        Ok(UdpReplier {
            socket,
            counters: Arc::clone(&self.counters),
        })
    }

    fn wait(&mut self, patience: Duration) {
        if !self.closed && self.ready.is_none() && self.free.pool().free() == 0 {
            // Someone keeps the buffers. The socket may well be readable, which would make a busy loop of this.
            return std::thread::sleep(patience.min(Duration::from_millis(1)));
        }
        let patience = Timespec::try_from(patience).ok();
        // An error (a signal came) is an early return, which is allowed.
        let _ = rustix::event::poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN)],
            patience.as_ref(),
        );
    }

    fn close(&mut self) {
        self.closed = true;
    }
}
