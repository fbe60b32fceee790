//! What comes back: replies, refusals, and requests that went astray.

use std::sync::atomic::Ordering;

use super::Networker;
use crate::Refusal;
use crate::tcp::codec::Codec;
use crate::tcp::counters::CloseReason;
use crate::tcp::exchange::{Route, Sent};
use crate::tcp::replier::Outgoing;
use crate::tcp::request::Request;
use crate::tcp::slot::{State, present};

/// Exchanges taken back in one poll.
const RETURNS: usize = 256;

impl<C: Codec> Networker<C> {
    /// Takes back what workers are done with; tells how much.
    pub(super) fn take_back(&mut self) -> usize {
        let in_use = &self.shared.counters.repliers_in_use;
        let in_use = in_use.load(Ordering::Acquire).min(self.rings.len());
        let mut budget = RETURNS;
        for ring in 0..in_use {
            while budget > 0
                && let Ok(outgoing) = self.rings[ring].pop()
            {
                budget -= 1;
                self.returned(outgoing);
            }
        }
        RETURNS - budget
    }

    fn returned(&mut self, outgoing: Outgoing<C>) {
        let is_own = outgoing.is_own();
        let Outgoing {
            route,
            exchange,
            failed,
        } = outgoing;
        let at = route.0.slot;
        let intake = &self.shared.counters.intake;
        let slot = &mut self.slots[at as usize];
        slot.route = Some(route);
        if is_own {
            slot.exchange = exchange;
            if failed {
                intake.failed.count();
            }
            return self.home(at);
        }
        // A handler gave back what it was not asked for, or nothing.
        slot.cause = if failed {
            CloseReason::Failed
        } else {
            CloseReason::Misdirected
        };
        match exchange {
            Some(_) => intake.misdirected.count(),
            None => intake.kept.count(),
        }
        self.apart(at);
        if let Some(mut exchange) = exchange {
            let its = exchange.place.slot;
            // What was in the output before this reply is lost with the connection.
            exchange.replies -= 1;
            let slot = &mut self.slots[its as usize];
            slot.exchange = Some(exchange);
            slot.cause = CloseReason::Misdirected;
            self.apart(its);
        }
    }

    /// A slot whose exchange and route went different ways: closed when both are back.
    pub(super) fn apart(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        slot.state = State::Apart;
        if slot.route.is_some() && slot.exchange.is_none() {
            slot.exchange = slot.place.take();
        }
        if slot.route.is_some() && slot.exchange.is_some() {
            self.close(at, self.slots[at as usize].cause);
        }
    }

    /// An exchange is back with its reply.
    fn home(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        slot.since = self.now;
        let exchange = present(&mut slot.exchange);
        exchange.input.done(&exchange.session);
        if exchange.broken {
            return self.close(at, CloseReason::Broken);
        }
        if exchange.is_due() {
            return self.write(at);
        }
        self.go_on(at);
    }

    /// Sends what the kernel takes; no system call if there is nothing.
    pub(super) fn write(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        let exchange = present(&mut slot.exchange);
        let before = exchange.output.unsent().len();
        match exchange.send(&self.counters) {
            Sent::All => {
                slot.since = self.now;
                self.go_on(at);
            }
            Sent::Part => {
                if slot.state != State::Writing || exchange.output.unsent().len() < before {
                    slot.since = self.now;
                }
                slot.state = State::Writing;
            }
            Sent::Broken => self.close(at, CloseReason::Broken),
        }
    }

    /// Nothing needs to be sent at the moment.
    fn go_on(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        let exchange = present(&mut slot.exchange);
        if exchange.output.unsent().is_empty() {
            exchange.output.leave_large();
        }
        if let Some(cause) = exchange.close {
            return self.linger(at, cause);
        }
        slot.state = State::Reading;
        if exchange.input.has_more() || slot.readable || slot.ended || self.closed {
            self.enqueue(at);
        } else {
            self.rest(at);
        }
    }

    /// Turns away the request that was found last; its exchange and route are back.
    pub(super) fn refuse(&mut self, at: u32, cause: Refusal) {
        self.shared.counters.intake.refused.count();
        if !self.append(at, |codec| codec.refusal(cause)) {
            present(&mut self.slots[at as usize].exchange).close = Some(CloseReason::Codec);
        }
        self.home(at);
    }

    /// The runtime does not want a request that was delivered.
    pub(in crate::tcp) fn turn_away(
        &mut self,
        request: Request<C>,
        route: Route<C>,
        cause: Refusal,
    ) {
        let exchange = request.into_exchange();
        let at = route.0.slot;
        let slot = &mut self.slots[at as usize];
        slot.exchange = Some(exchange);
        slot.route = Some(route);
        self.refuse(at, cause);
    }
}
