//! What a handler gets and gives back.

use std::net::SocketAddr;
use std::ops::Deref;

use super::codec::Codec;
use super::counters::CloseReason;
use super::exchange::{ConnectionId, Exchange, Held};
use super::output::Output;

/// A request; dereferences to its bytes, as the codec has found them.
///
/// It carries its connection, so it has to come back: as the [`Reply`] that [`reply`](Self::reply)
/// makes of it. If it is dropped without that, or by a panic, the client is told [`Codec::failure`]
/// and the connection closes.
pub struct Request<C: Codec>(Held<C>);

impl<C: Codec> Request<C> {
    pub(super) fn new(exchange: Box<Exchange<C>>) -> Self {
        Self(Held::new(exchange))
    }

    pub(super) fn into_exchange(self) -> Box<Exchange<C>> {
        self.0.into_exchange()
    }

    /// The connection it came on.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        self.0.exchange().id
    }

    /// The address at the other end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.exchange().peer
    }

    /// Whether the connection closes after it, whatever the handler says: to the codec it was the
    /// last ([`Framing::Last`](super::Framing::Last)).
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.0.exchange().close.is_some()
    }

    /// The connection's state.
    #[must_use]
    pub fn session(&self) -> &C::Session {
        &self.0.exchange().session
    }

    /// The connection's state, to be changed; the next request sees it.
    pub fn session_mut(&mut self) -> &mut C::Session {
        &mut self.0.exchange_mut().session
    }

    /// The request, where to write the reply, and the connection's state, all at once.
    pub fn parts(&mut self) -> (&[u8], &mut Output, &mut C::Session) {
        let exchange = self.0.exchange_mut();
        (
            exchange.input.frame(),
            &mut exchange.output,
            &mut exchange.session,
        )
    }

    /// What was written is the reply. It may be empty: then nothing is sent.
    pub fn reply(self) -> Reply<C> {
        Reply(self.0)
    }
}

impl<C: Codec> Deref for Request<C> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.exchange().input.frame()
    }
}

impl<C: Codec> std::fmt::Debug for Request<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Request")
            .field("connection", &self.connection())
            .field("peer", &self.peer())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// What a handler answers: a [`Request`] whose reply is written.
#[must_use = "a reply that is dropped closes its connection"]
pub struct Reply<C: Codec>(Held<C>);

impl<C: Codec> Reply<C> {
    pub(super) fn into_exchange(self) -> Box<Exchange<C>> {
        self.0.into_exchange()
    }

    /// When it is sent, the connection closes.
    pub fn close_after(mut self) -> Self {
        self.0.exchange_mut().close = Some(CloseReason::Server);
        self
    }
}

impl<C: Codec> std::fmt::Debug for Reply<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reply")
            .field("connection", &self.0.exchange().id)
            .field("len", &self.0.exchange().output.len())
            .finish_non_exhaustive()
    }
}
