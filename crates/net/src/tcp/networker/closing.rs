//! How connections end: when, and in which order.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::Networker;
use crate::tcp::codec::Codec;
use crate::tcp::counters::CloseReason;
use crate::tcp::slot::{Slot, State, present};

/// Slots looked at for time-outs in one poll, after a long sleep.
const SWEEP: u64 = 1024;
/// How long a closing connection waits for its peer to close, in nanoseconds.
const LINGER: u64 = 1_000_000_000;
/// How long the transport tries to send what is unsent when it is dropped.
const LAST_WORD: Duration = Duration::from_secs(1);

impl<C: Codec> Networker<C> {
    /// Closes when everything is sent.
    pub(super) fn finish(&mut self, at: u32, cause: CloseReason) {
        present(&mut self.slots[at as usize].exchange).close = Some(cause);
        self.write(at);
    }

    /// Everything is sent: shuts the sending side and waits for the peer to close.
    pub(super) fn linger(&mut self, at: u32, cause: CloseReason) {
        let slot = &mut self.slots[at as usize];
        let stream = &present(&mut slot.exchange).stream;
        let stream = stream.as_ref().expect("open connections have a socket");
        let shut = rustix::net::shutdown(stream, Shutdown::Write);
        if slot.ended || shut.is_err() {
            return self.close(at, cause);
        }
        slot.state = State::Lingering;
        slot.cause = cause;
        slot.since = self.now;
        if slot.readable {
            self.enqueue(at);
        }
    }

    pub(super) fn throw_away(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        let stream = &present(&mut slot.exchange).stream;
        let stream = stream.as_ref().expect("open connections have a socket");
        match rustix::net::recv(stream, &mut *self.scrap, RecvFlags::DONTWAIT) {
            Ok((_, length)) if length > 0 => {
                self.shared.counters.intake.bytes_in.add(length as u64);
                self.enqueue(at);
            }
            Err(Errno::AGAIN | Errno::INTR) => slot.readable = false,
            _ => self.close(at, self.slots[at as usize].cause),
        }
    }

    /// Closes now, whatever is unsent. Exchange and route are back.
    pub(super) fn close(&mut self, at: u32, cause: CloseReason) {
        let slot = &mut self.slots[at as usize];
        let exchange = present(&mut slot.exchange);
        let intake = &self.shared.counters.intake;
        // Closing takes it out of epoll, too. A thread that reads the count finds it done.
        exchange.stream = None;
        intake.cut_off.add(std::mem::take(&mut exchange.replies));
        intake.closed(cause).count();
        exchange.session = C::Session::default();
        exchange.close = None;
        exchange.broken = false;
        exchange.more = false;
        exchange.output.clear();
        exchange.output.leave_large();
        if exchange.output.standard.capacity() > 0 {
            self.outputs
                .push(std::mem::take(&mut exchange.output.standard));
        }
        let buffer = exchange.input.clear();
        slot.state = State::Free;
        slot.readable = false;
        slot.hung_up = false;
        slot.ended = false;
        slot.hungry = false;
        self.free.push(at);
        self.put_input(buffer);
    }

    /// The transport closes: has some more of the waiting connections looked at.
    pub(super) fn close_some(&mut self) {
        let some = self.close_at..self.slots.len().min(self.close_at + self.limits.batch);
        self.close_at = some.end;
        for at in some {
            if self.slots[at].state == State::Reading {
                self.enqueue(at as u32);
            }
        }
    }

    /// The transport goes away, on a thread that may wait: tries for a while to send what is
    /// unsent, and closes what can be closed.
    pub(in crate::tcp) fn end(&mut self) {
        self.closed = true;
        let (start, began) = (Instant::now(), self.now);
        loop {
            self.poll(began + start.elapsed().as_nanos() as u64, 1, |_| {
                unreachable!("a closed transport delivers nothing")
            });
            let unsent = |slot: &Slot<C>| {
                slot.state == State::Writing || slot.state == State::Reading && slot.queued
            };
            let over = start.elapsed() > LAST_WORD;
            if over || self.close_at == self.slots.len() && !self.slots.iter().any(unsent) {
                break;
            }
            if self.queue.is_empty() && self.close_at == self.slots.len() {
                self.look(Duration::from_millis(10));
            }
        }
        for at in 0..self.slots.len() as u32 {
            match self.slots[at as usize].state {
                State::Free | State::Away | State::Apart => {}
                State::Lingering => self.close(at, self.slots[at as usize].cause),
                State::Reading | State::Writing => self.close(at, CloseReason::Shutdown),
            }
        }
    }

    /// Looks at the slots that have their turn, for time-outs and what came back on other ways.
    pub(super) fn sweep(&mut self) {
        let slots = self.slots.len() as u64;
        let elapsed = self.now.saturating_sub(self.swept);
        let due = slots.saturating_mul(elapsed) / self.limits.sweep;
        if due == 0 {
            return;
        }
        self.swept = self.now;
        for _ in 0..due.min(SWEEP) {
            self.sweep_at = (self.sweep_at + 1) % self.slots.len();
            let at = self.sweep_at as u32;
            let slot = &mut self.slots[self.sweep_at];
            let waited = self.now.saturating_sub(slot.since);
            let limits = &self.limits;
            match slot.state {
                State::Free | State::Away => {}
                State::Apart => self.apart(at),
                State::Lingering if waited > LINGER => {
                    let cause = slot.cause;
                    self.close(at, cause);
                }
                State::Writing if waited > limits.write_timeout => {
                    self.close(at, CloseReason::SlowReader);
                }
                State::Reading if slot.queued || slot.hungry => {}
                State::Reading if present(&mut slot.exchange).input.has_more() => {
                    if waited > limits.request_timeout {
                        self.finish(at, CloseReason::HalfRequest);
                    }
                }
                State::Reading if waited > limits.idle_timeout => {
                    self.finish(at, CloseReason::Idle)
                }
                State::Reading => present(&mut slot.exchange).output.leave_large(),
                State::Writing | State::Lingering => {}
            }
        }
    }
}
