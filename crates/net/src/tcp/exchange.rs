//! All that belongs to a connection, moving as one: from the networker with a request to the
//! handler, with the reply to the worker, and back.
//!
//! The socket is part of it. So while a request is in flight nothing else can close it, or be given
//! its descriptor's number, and a connection has one request at a handler at a time, because it has
//! one exchange. Both ways there is a [`Route`], too, which the core keeps: what comes back is the
//! request's own reply only if the two belong together.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::accept::UNKNOWN_PEER;
use super::codec::Codec;
use super::counters::{CloseReason, Counters, OutputCounters};
use super::input::Input;
use super::memory::Memory;
use super::output::Output;

/// Names a connection; no two of a transport have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ConnectionId(pub(super) u64);

impl ConnectionId {
    /// As a number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// What networker, handlers and workers of a transport share.
pub(super) struct Shared<C> {
    pub(super) codec: C,
    /// With so many bytes unsent, the worker sends even if another request follows.
    pub(super) send_from: usize,
    pub(super) workers_send: bool,
    /// The networker sleeps, or is about to.
    pub(super) sleeping: AtomicBool,
    /// Wakes it.
    pub(super) bell: OwnedFd,
    pub(super) memory: Arc<Memory>,
    pub(super) counters: Arc<Counters>,
}

pub(super) struct Exchange<C: Codec> {
    pub(super) place: Arc<Place<C>>,
    /// `None`: no connection.
    pub(super) stream: Option<OwnedFd>,
    pub(super) id: ConnectionId,
    pub(super) peer: SocketAddr,
    pub(super) session: C::Session,
    pub(super) input: Input<C>,
    pub(super) output: Output,
    /// Another complete request follows the one at the handler: its reply can be sent with that
    /// one's.
    pub(super) more: bool,
    /// To be closed when the output is sent.
    pub(super) close: Option<CloseReason>,
    /// The kernel would not send.
    pub(super) broken: bool,
    /// Replies of handlers in the output.
    pub(super) replies: u64,
}

/// What an attempt to send came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    All,
    Part,
    Broken,
}

impl<C: Codec> Exchange<C> {
    /// Of no connection yet.
    pub(super) fn new(place: Place<C>) -> Self {
        let memory = Arc::clone(&place.shared.memory);
        Self {
            place: Arc::new(place),
            stream: None,
            id: ConnectionId::default(),
            peer: UNKNOWN_PEER,
            session: C::Session::default(),
            input: Input::new(),
            output: Output::new(memory),
            more: false,
            close: None,
            broken: false,
            replies: 0,
        }
    }

    /// Hands the kernel what it takes of the output, without waiting, in one system call.
    pub(super) fn send(&mut self, counters: &OutputCounters) -> Sent {
        let Some(stream) = &self.stream else {
            return Sent::Broken;
        };
        let unsent = self.output.unsent();
        if unsent.is_empty() {
            counters.answered.add(std::mem::take(&mut self.replies));
            return Sent::All;
        }
        counters.sends.count();
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::send(stream, unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        });
        match sent {
            Ok(length) => {
                counters.bytes_out.add(length as u64);
                if !self.output.sent(length) {
                    return Sent::Part;
                }
                counters.answered.add(std::mem::take(&mut self.replies));
                Sent::All
            }
            Err(Errno::AGAIN) => Sent::Part,
            Err(_) => {
                self.broken = true;
                Sent::Broken
            }
        }
    }

    /// In place of the reply, whatever of it is written, the client is told `sorry`.
    pub(super) fn fail(&mut self, sorry: &[u8]) {
        self.output.truncate(0);
        // If there is no memory for it, the connection closes without a word.
        let _ = self.output.extend_from_slice(sorry);
        self.close = Some(CloseReason::Failed);
    }

    /// Whether a worker shall send: not if it can be done with the next reply.
    pub(super) fn is_due(&self) -> bool {
        !self.more
            || self.close.is_some()
            || self.output.unsent().len() >= self.place.shared.send_from
    }
}

/// Where an exchange goes that comes back without its reply. There is one for each slot, and it
/// never goes away.
pub(super) struct Place<C: Codec> {
    pub(super) slot: u32,
    pub(super) shared: Arc<Shared<C>>,
    /// Held for the time of a move, and only tried by the networker.
    parked: Mutex<Parked<C>>,
}

enum Parked<C: Codec> {
    Nothing,
    Exchange(Box<Exchange<C>>),
    /// The transport is gone: what comes is dropped.
    Closed,
}

impl<C: Codec> Place<C> {
    pub(super) fn new(slot: u32, shared: Arc<Shared<C>>) -> Self {
        Self {
            slot,
            shared,
            parked: Mutex::new(Parked::Nothing),
        }
    }

    fn park(&self, exchange: Box<Exchange<C>>) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*parked, Parked::Closed) {
            *parked = Parked::Exchange(exchange);
        }
    }

    /// What was parked, if that can be told without waiting.
    pub(super) fn take(&self) -> Option<Box<Exchange<C>>> {
        let mut parked = self.parked.try_lock().ok()?;
        match std::mem::replace(&mut *parked, Parked::Nothing) {
            Parked::Exchange(exchange) => Some(exchange),
            Parked::Nothing => None,
            Parked::Closed => {
                *parked = Parked::Closed;
                None
            }
        }
    }

    /// The transport goes away.
    pub(super) fn close(&self) {
        *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = Parked::Closed;
    }
}

/// The way back to a connection, kept by the core while the handler has the request.
pub struct Route<C: Codec>(pub(super) Arc<Place<C>>);

impl<C: Codec> std::fmt::Debug for Route<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Route(to slot {})", self.0.slot)
    }
}

/// An exchange in a handler's hands. Dropped, it goes to its place.
pub(super) struct Held<C: Codec>(Option<Box<Exchange<C>>>);

impl<C: Codec> Held<C> {
    pub(super) fn new(exchange: Box<Exchange<C>>) -> Self {
        Self(Some(exchange))
    }

    pub(super) fn exchange(&self) -> &Exchange<C> {
        self.0.as_ref().expect("there until it is taken out")
    }

    pub(super) fn exchange_mut(&mut self) -> &mut Exchange<C> {
        self.0.as_mut().expect("there until it is taken out")
    }

    pub(super) fn into_exchange(mut self) -> Box<Exchange<C>> {
        self.0.take().expect("there until it is taken out")
    }
}

impl<C: Codec> Drop for Held<C> {
    fn drop(&mut self) {
        if let Some(exchange) = self.0.take() {
            let place = Arc::clone(&exchange.place);
            place.park(exchange);
        }
    }
}
