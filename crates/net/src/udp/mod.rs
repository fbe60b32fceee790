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

mod config;
mod counters;
mod datagram;
mod pool;
mod replier;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

pub use config::{LONGEST_DATAGRAM, UdpConfig, UdpError};
pub use counters::{UdpCounters, UdpCounts};
pub use datagram::{Datagram, DatagramReply, ReplyTooLong};
pub use replier::{Outgoing, UdpReplier};

use crate::{Arrival, Failure, Refusal, Transport};
use counters::{Counters, count};
use pool::{Buffer, Taker};

/// Tells a request's class by looking at it. Closures of the same shape are classifiers.
pub trait Classifier: Send + 'static {
    /// The class of `datagram`, sent by `peer`. `None`: malformed; it is dropped and counted.
    ///
    /// Runs on the dispatcher's thread, for every datagram: it must not allocate, free, lock, wait or panic, and what
    /// it takes, every request waits for.
    fn classify(&mut self, datagram: &[u8], peer: SocketAddr) -> Option<u16>;
}

impl<F: FnMut(&[u8], SocketAddr) -> Option<u16> + Send + 'static> Classifier for F {
    fn classify(&mut self, datagram: &[u8], peer: SocketAddr) -> Option<u16> {
        self(datagram, peer)
    }
}

/// The default: every datagram is a request of class 0.
#[derive(Clone, Copy, Default, Debug)]
pub struct OneClass;

impl Classifier for OneClass {
    fn classify(&mut self, _datagram: &[u8], _peer: SocketAddr) -> Option<u16> {
        Some(0)
    }
}

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
        let socket = open(&config)?;
        let local_addr = socket
            .local_addr()
            .map_err(|error| UdpError::system("read the address", config.listen, error))?;
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

fn open(config: &UdpConfig) -> Result<UdpSocket, UdpError> {
    let listen = config.listen;
    let failed = |action| move |error: Errno| UdpError::system(action, listen, error);
    let family = if listen.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(failed("open a socket"))?;
    if let Some(bytes) = config.receive_buffer {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)
            .map_err(failed("set the receive buffer"))?;
    }
    if config.reuse_port {
        sockopt::set_socket_reuseport(&socket, true).map_err(failed("set SO_REUSEPORT"))?;
    }
    rustix::net::bind(&socket, &listen).map_err(failed("bind"))?;
    Ok(UdpSocket::from(socket))
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
            match if self.closed {
                self.discard()
            } else {
                self.receive()
            } {
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
        Ok(UdpReplier {
            socket: self.socket.try_clone()?,
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

/// The same for all requests of one address and port, spread evenly over 64 bits (the finalizer of SplitMix64).
fn flow(peer: SocketAddr) -> u64 {
    let host = match peer.ip() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => mix(ip.to_bits() as u64) ^ (ip.to_bits() >> 64) as u64,
    };
    mix(mix(host) ^ u64::from(peer.port()))
}

fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
