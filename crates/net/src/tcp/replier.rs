//! The worker's side: one system call a reply, or none if the next reply can take this one along.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rtrb::Producer;

use super::codec::Codec;
use super::counters::OutputCounters;
use super::exchange::{Exchange, Route, Shared};
use crate::Replier;

/// What a worker sends when a handler is done.
pub struct Outgoing<C: Codec> {
    pub(super) route: Route<C>,
    /// `None`: the handler has kept the request.
    pub(super) exchange: Option<Box<Exchange<C>>>,
    pub(super) failed: bool,
}

impl<C: Codec> Outgoing<C> {
    /// The exchange and the route are of one connection.
    pub(super) fn is_own(&self) -> bool {
        self.exchange
            .as_ref()
            .is_some_and(|exchange| Arc::ptr_eq(&exchange.place, &self.route.0))
    }
}

impl<C: Codec> std::fmt::Debug for Outgoing<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Outgoing({:?})", self.route)
    }
}

/// A worker's way to the sockets, and to the networker, which gets every exchange back.
pub struct TcpReplier<C: Codec> {
    /// With room for every route that there is.
    pub(super) back: Producer<Outgoing<C>>,
    pub(super) shared: Arc<Shared<C>>,
    pub(super) counters: Arc<OutputCounters>,
    pub(super) number: usize,
    pub(super) announced: bool,
}

impl<C: Codec> std::fmt::Debug for TcpReplier<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TcpReplier({})", self.number)
    }
}

impl<C: Codec> Replier for TcpReplier<C> {
    type Outgoing = Outgoing<C>;

    /// Hands the reply to the kernel, unless another request of the connection is there already,
    /// and the exchange to the networker. What the kernel does not take, the networker sends later.
    fn send(&mut self, mut outgoing: Outgoing<C>) {
        if self.shared.workers_send
            && outgoing.is_own()
            && let Some(exchange) = &mut outgoing.exchange
            && exchange.is_due()
        {
            exchange.send(&self.counters);
        }
        if !std::mem::replace(&mut self.announced, true) {
            let in_use = &self.shared.counters.repliers_in_use;
            in_use.fetch_max(self.number + 1, Ordering::Release);
        }
        if let Err(rtrb::PushError::Full(outgoing)) = self.back.push(outgoing) {
            // There are as many places as routes. Dropping would free.
            debug_assert!(false, "more routes than slots");
            std::mem::forget(outgoing);
        }
        // Pairs with the fence in the networker's `wait`: either it sees what came, or this sees it
        // sleeping.
        fence(Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::Relaxed) {
            // It can only be full of other wake-ups.
            let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
        }
    }
}
