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
//! All memory is taken by [`Udp::bind`]: a fixed set of buffers. The kernel copies a datagram into
//! one; from then on the buffer itself moves: to the handler as a [`Datagram`], back as a
//! [`DatagramReply`], to the worker that sends it, and to the free ones again. With none left the
//! transport stops receiving, and the kernel queues and drops.
//!
//! A reply goes to the request's sender. A handler that answers `None`, or panics, sends
//! nothing: over UDP a client cannot tell that from loss, and times out.
//!
//! [`UdpConfig::and_listen`] gives it further addresses, and [`ByPort`] makes a class of each;
//! [`UdpConfig::reply_from`] has replies leave from others.
//! [`UdpConfig::racksched`] has it put requests of several packets together, and tell the load in
//! its replies; everything else goes to the handler as it came, so that any format of one datagram
//! can be served.
//!
//! Batches are received by one `recvfrom` a datagram, and a reply is sent by one `sendto`.
//! `recvmmsg` and `sendmmsg`, several in one system call, were measured beside them (the `nix`
//! crate's, and `rustix`'s `sendmmsg`, which is the same; over loopback, Linux 6.18 in a virtual
//! machine, medians of 2000) and are no gain there, however many datagrams wait. In ns for each of
//! 41 bytes, `recvfrom` with the call in vain that ends its batch, `recvmmsg` with room for 64:
//!
//! | waiting | `recvfrom` | `recvmmsg` | `sendto` | `sendmmsg` |
//! |---|---|---|---|---|
//! | 0 | 211 | 370 | | |
//! | 1 | 821 | 1052 | 2704 | 2894 |
//! | 8 | 457 | 563 | 2639 | 2648 |
//! | 32 | 452 | 466 | 2614 | 2607 |
//! | 64 | 440 | 448 | 2623 | 2613 |
//!
//! With 16 and 1024 bytes it is the same. Where entering the kernel costs more, that may turn
//! round.

mod config;
mod counters;
mod datagram;
mod pool;
mod replier;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketAddrAny, SocketFlags, SocketType, sockopt};

pub use config::{LONGEST_DATAGRAM, MOST_ADDRESSES, UdpConfig, UdpError};
pub use counters::{UdpCounters, UdpCounts};
pub use datagram::{Datagram, DatagramReply, ReplyTooLong};
pub use replier::{Outgoing, UdpReplier, UdpRoute};

use crate::listen::{self, Options};
use crate::wire::{Added, RackSched};
use crate::{Arrival, Failure, ListenError, Refusal, Transport, due_nanos, flow_of};
pub use crate::{ByPort, Classifier, OneClass};
use counters::Counters;
use pool::{Buffer, Taker};

/// The transport: sockets and their buffers.
#[derive(Debug)]
pub struct Udp<C = OneClass> {
    sockets: Arc<[UdpSocket]>,
    /// Where replies leave from, by the number of the socket that was asked.
    reply_sockets: Arc<[UdpSocket]>,
    local_addrs: Box<[SocketAddr]>,
    reply_addrs: Box<[SocketAddr]>,
    /// The socket that the next poll begins with.
    turn: usize,
    classifier: C,
    /// A peer is its address and the socket that it sent to.
    racksched: Option<RackSched<(SocketAddr, usize)>>,
    batch: usize,
    free: Taker,
    /// What the next datagram goes into. Kept from poll to poll, so that polling in vain does not
    /// touch the pool.
    ready: Option<Buffer>,
    /// The buffers have run out, and that has been counted.
    starved: bool,
    closed: bool,
    counters: Arc<Counters>,
}

impl Udp {
    /// Opens the sockets and takes all memory; every request is of class 0.
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
        let (sockets, local_addrs) = open_all(&config, &config.listen)?;
        let (reply_sockets, reply_addrs) = match &config.reply_from[..] {
            [] => (Arc::clone(&sockets), local_addrs.clone()),
            addresses => open_all(&config, addresses)?,
        };
        let mut free = Taker::new(config.buffers, config.max_datagram);
        let ready = free.take();
        Ok(Self {
            sockets,
            reply_sockets,
            local_addrs,
            reply_addrs,
            turn: 0,
            classifier,
            racksched: config.racksched.map(RackSched::new).transpose()?,
            batch: config.batch,
            free,
            ready,
            starved: false,
            closed: false,
            counters: Arc::default(),
        })
    }

    /// Where it listens: the port in use if 0 was asked for. The first, if there are several
    /// addresses.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addrs[0]
    }

    /// All addresses where it listens, in the order of the configuration.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Where replies to what came to each of them leave from; most often the same.
    #[must_use]
    pub fn reply_addrs(&self) -> &[SocketAddr] {
        &self.reply_addrs
    }

    /// The size of the kernel's receive queue of each socket in bytes, as it accounts for it
    /// (Linux: twice what was asked for, as every datagram costs more than its payload).
    ///
    /// # Errors
    /// What the operating system says.
    pub fn receive_buffer(&self) -> std::io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.sockets[0])?)
    }

    /// The counters, to be kept when the transport goes to the runtime.
    #[must_use]
    pub fn counters(&self) -> UdpCounters {
        let reassembly = self.racksched.as_ref().map(RackSched::counters);
        UdpCounters {
            counters: Arc::clone(&self.counters),
            reassembly: reassembly.unwrap_or_default(),
            pool: Arc::clone(self.free.pool()),
        }
    }

    /// One request for the dispatcher from the `socket`-th socket, or why not.
    fn receive(&mut self, socket: usize, now_nanos: u64) -> Received {
        let Some(mut buffer) = self.ready.take().or_else(|| self.free.take()) else {
            if !std::mem::replace(&mut self.starved, true) {
                self.counters.intake.no_buffer.count();
            }
            return Received::Nothing;
        };
        self.starved = false;
        // With TRUNC the kernel tells a datagram's true length, longer than the buffer or not.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let received = rustix::net::recvfrom(&self.sockets[socket], &mut *buffer.bytes, flags);
        let (length, peer) = match received {
            Ok((_, length, peer)) => (length, peer),
            Err(error) => {
                self.ready = Some(buffer);
                return self.failed(error);
            }
        };
        self.counters.intake.received.count();
        match self.request(&mut buffer.bytes, length, peer, socket, now_nanos) {
            Some((length, route)) => {
                Received::Request(Datagram::new(buffer, length, route.peer), route)
            }
            None => {
                self.ready = Some(buffer);
                Received::Dropped
            }
        }
    }

    /// What `length` bytes in `buffer` came to: a request of that length, or nothing, which is
    /// counted.
    fn request(
        &mut self,
        buffer: &mut [u8],
        length: usize,
        peer: Option<SocketAddrAny>,
        socket: usize,
        now_nanos: u64,
    ) -> Option<(usize, UdpRoute)> {
        let intake = &self.counters.intake;
        if length > buffer.len() {
            intake.truncated.count();
            return None;
        }
        // UDP sockets of IPv4 and IPv6 have peers of IPv4 and IPv6: an unknown one cannot be
        // answered.
        let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else {
            intake.malformed.count();
            return None;
        };
        let length = match &mut self.racksched {
            Some(racksched) => {
                let packet = &buffer[..length];
                match racksched.add(now_nanos, (peer, socket), packet).ok()? {
                    Added::Whole => length,
                    Added::Complete(request) => {
                        request.copy_to(buffer);
                        request.length()
                    }
                    Added::Held => return None,
                }
            }
            None => length,
        };
        let request = &buffer[..length];
        let Some(class) = self.classifier.classify_at(socket, request, peer) else {
            intake.malformed.count();
            return None;
        };
        if let Some(racksched) = &self.racksched {
            racksched.load().arrived(class);
        }
        let route = UdpRoute {
            peer,
            socket,
            class,
        };
        Some((length, route))
    }

    /// Takes a datagram off the kernel's queue unread.
    fn discard(&mut self, socket: usize) -> Received {
        match rustix::net::recvfrom(&self.sockets[socket], &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok(_) => {
                self.counters.intake.received.count();
                self.counters.intake.refused.count();
                Received::Dropped
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&self, error: Errno) -> Received {
        if error != Errno::AGAIN && error != Errno::INTR {
            self.counters.intake.receive_failed.count();
        }
        Received::Nothing
    }
}

/// Sockets bound to `addresses`, and where they are bound in fact.
type Sockets = (Arc<[UdpSocket]>, Box<[SocketAddr]>);

fn open_all(config: &UdpConfig, addresses: &[SocketAddr]) -> Result<Sockets, ListenError> {
    let sockets = addresses
        .iter()
        .map(|&listen| open(config, listen))
        .collect::<Result<Arc<[_]>, _>>()?;
    let local_addrs = addresses.iter().zip(&*sockets).map(|(&listen, socket)| {
        let address = socket.local_addr();
        address.map_err(|cause| ListenError::system("read the address", listen, cause))
    });
    let local_addrs = local_addrs.collect::<Result<_, _>>()?;
    Ok((sockets, local_addrs))
}

/// A socket bound to `listen`, as `config` wants it.
fn open(config: &UdpConfig, listen: SocketAddr) -> Result<UdpSocket, ListenError> {
    let options = Options {
        kind: SocketType::DGRAM,
        flags: SocketFlags::CLOEXEC,
        reuse_port: config.reuse_port,
        busy_poll: config.busy_poll,
    };
    let socket = listen::bound(listen, options, |socket| {
        let Some(bytes) = config.receive_buffer else {
            return Ok(());
        };
        sockopt::set_socket_recv_buffer_size(socket, bytes)
            .map_err(|error| ListenError::system("set the receive buffer", listen, error.into()))
    })?;
    Ok(UdpSocket::from(socket))
}

/// What one attempt to receive came to.
enum Received {
    Request(Datagram, UdpRoute),
    Dropped,
    Nothing,
}

impl<C: Classifier> Transport for Udp<C> {
    type Request = Datagram;
    /// `None`: no reply is sent.
    type Reply = Option<DatagramReply>;
    /// The sender's address, and where it sent to.
    type Route = UdpRoute;
    type Outgoing = Outgoing;
    type Replier = UdpReplier;

    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Datagram, UdpRoute>),
    ) {
        if let Some(racksched) = &mut self.racksched {
            racksched.expire(now_nanos);
        }
        let mut room = room.min(self.batch);
        for _ in 0..self.sockets.len() {
            let socket = self.turn;
            while room > 0 {
                let received = if self.closed {
                    self.discard(socket)
                } else {
                    self.receive(socket, now_nanos)
                };
                match received {
                    Received::Request(request, route) => deliver(Arrival {
                        due_nanos: due_nanos(&mut self.classifier, &request, now_nanos),
                        request,
                        route,
                        class: route.class,
                        flow: flow_of(route.peer),
                        arrived_nanos: now_nanos,
                        deadline_nanos: None,
                    }),
                    Received::Dropped => {}
                    Received::Nothing => break,
                }
                room -= 1;
            }
            // One that always has something does not keep the others from theirs.
            self.turn = (socket + 1) % self.sockets.len();
            if room == 0 {
                break;
            }
        }
    }

    fn refuse(&mut self, _request: Datagram, route: UdpRoute, _cause: Refusal) {
        if let Some(racksched) = &self.racksched {
            racksched.load().left(route.class);
        }
        self.counters.intake.refused.count();
    }

    fn conclude(route: UdpRoute, result: Result<Option<DatagramReply>, Failure>) -> Outgoing {
        Outgoing {
            reply: result.unwrap_or(None),
            route,
        }
    }

    fn replier(&mut self) -> std::io::Result<UdpReplier> {
        Ok(UdpReplier {
            sockets: Arc::clone(&self.reply_sockets),
            load: self
                .racksched
                .as_ref()
                .map(|racksched| racksched.load().clone()),
            counters: Arc::clone(&self.counters),
        })
    }

    fn wait(&mut self, patience: Duration) {
        if !self.closed && self.ready.is_none() && self.free.pool().free() == 0 {
            // Someone keeps the buffers. A socket may well be readable, which would make a busy
            // loop of this.
            return std::thread::sleep(patience.min(Duration::from_millis(1)));
        }
        let patience = Timespec::try_from(patience).ok();
        let sockets = &self.sockets;
        let mut polled: [_; MOST_ADDRESSES] =
            std::array::from_fn(|at| PollFd::new(&sockets[at % sockets.len()], PollFlags::IN));
        // An error (a signal came) is an early return, which is allowed.
        let _ = rustix::event::poll(&mut polled[..sockets.len()], patience.as_ref());
    }

    fn close(&mut self) {
        self.closed = true;
    }
}
