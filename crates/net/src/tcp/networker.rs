//! The networker: which connection is looked at when, and what becomes of it.
//!
//! Nothing here allocates, frees, locks or waits. Buffers are in stacks, so that the next request gets the one that the
//! cache still has.
//!
//! epoll is edge-triggered: a connection is registered once, and what becomes of it while its exchange is away is noted.
//! Level-triggered, it would have to be disarmed meanwhile, by a system call each way. Measured beside each other without
//! that (redis-benchmark over loopback, 50 connections, Linux 6.18 in a virtual machine; CPU time of the server, medians of
//! 5) there is little between them: 0.47 against 0.49 us a request in packets of 16, and 6.7 us one by one for both.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rtrb::Consumer;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::codec::Codec;
use super::counters::{Cause, OutputCounters, add, count};
use super::exchange::{Exchange, Route, Sent, Shared};
use super::input::{Found, Frame};
use super::replier::Outgoing;
use super::request::Request;
use super::slot::{Slot, State, present};
use crate::{Arrival, Refusal};

/// The bell's and the listener's names among epoll's events; slots have others.
pub(super) const BELL: u64 = u64::MAX;
pub(super) const LISTENER: u64 = u64::MAX - 1;

/// Events taken from epoll at once.
const EVENTS: usize = 64;
/// While there is something to do without, epoll is asked this often, in nanoseconds: a loop that polls after every request
/// shall not pay for a system call each.
const LOOK_EVERY: u64 = 20_000;
/// Exchanges taken back in one poll.
const RETURNS: usize = 256;
/// Bytes read at once: a copy of some microseconds.
const READ: usize = 64 << 10;
/// Slots looked at for time-outs in one poll, after a long sleep.
const SWEEP: u64 = 1024;
/// How long a closing connection waits for its peer to close, in nanoseconds.
const LINGER: u64 = 1_000_000_000;
/// How long the transport tries to send what is unsent when it is dropped.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Bytes thrown away at once.
pub(super) const SCRAP: usize = 16 << 10;

pub(super) struct Networker<C: Codec> {
    pub(super) shared: Arc<Shared<C>>,
    pub(super) counters: Arc<OutputCounters>,
    pub(super) epoll: OwnedFd,
    pub(super) slots: Vec<Slot<C>>,
    pub(super) free: Vec<u32>,
    /// Buffers for what comes in, of standard and of full size.
    pub(super) inputs: Vec<BytesMut>,
    pub(super) large_inputs: Vec<BytesMut>,
    pub(super) outputs: Vec<BytesMut>,
    pub(super) scrap: Box<[u8]>,
    /// What each worker has handed back.
    pub(super) rings: Vec<Consumer<Outgoing<C>>>,
    /// Slots to be looked at.
    pub(super) queue: VecDeque<u32>,
    /// Slots that wait for a large buffer.
    pub(super) hungry: VecDeque<u32>,
    pub(super) limits: Limits,
    pub(super) now: u64,
    pub(super) looked: u64,
    pub(super) swept: u64,
    pub(super) sweep_at: usize,
    /// Once closed: slots up to here have been told.
    pub(super) close_at: usize,
    /// A connection may wait to be accepted.
    pub(super) acceptable: bool,
    pub(super) closed: bool,
}

/// Numbers from the configuration; times in nanoseconds.
pub(super) struct Limits {
    pub(super) buffer: usize,
    pub(super) max_request: usize,
    pub(super) batch: usize,
    pub(super) write_timeout: u64,
    pub(super) request_timeout: u64,
    pub(super) idle_timeout: u64,
    /// Every slot is looked at once in this time.
    pub(super) sweep: u64,
}

impl<C: Codec> Networker<C> {
    /// See [`Transport::poll`](crate::Transport::poll).
    pub(super) fn poll(
        &mut self,
        now: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Request<C>, Route<C>>),
    ) {
        self.now = now;
        let returned = self.take_back();
        if self.closed {
            self.close_some();
        }
        let room = room.min(self.limits.batch);
        let delivered = self.serve(room, &mut deliver);
        let idle = returned == 0 && delivered == 0;
        if idle || now.saturating_sub(self.looked) >= LOOK_EVERY {
            self.looked = now;
            self.look(Duration::ZERO);
            self.serve(room - delivered, &mut deliver);
        }
        self.sweep();
    }

    /// See [`Transport::wait`](crate::Transport::wait).
    pub(super) fn wait(&mut self, patience: Duration) {
        if self.closed && self.close_at < self.slots.len() {
            return;
        }
        self.shared.sleeping.store(true, Ordering::Relaxed);
        // Pairs with the fence in `TcpReplier::send`.
        fence(Ordering::SeqCst);
        if self.queue.is_empty() && self.rings.iter().all(Consumer::is_empty) {
            self.look(patience);
        }
        self.shared.sleeping.store(false, Ordering::Relaxed);
    }

    /// Takes down what epoll has to say.
    fn look(&mut self, patience: Duration) {
        let patience = Timespec::try_from(patience).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&patience)) else {
            // A signal came.
            return;
        };
        for event in events {
            let (flags, name) = (event.flags, event.data.u64());
            match name {
                LISTENER => self.acceptable = true,
                BELL => {
                    let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
                }
                _ => self.note(name, flags),
            }
        }
    }

    fn note(&mut self, name: u64, flags: epoll::EventFlags) {
        let at = name as u32;
        let slot = &mut self.slots[at as usize];
        if slot.generation != (name >> 32) as u32 || slot.state == State::Free {
            return;
        }
        let gone = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        slot.hung_up |= flags.intersects(gone);
        slot.readable |= slot.hung_up || flags.contains(epoll::EventFlags::IN);
        if !matches!(slot.state, State::Away | State::Apart) {
            self.enqueue(at);
        }
    }

    fn enqueue(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if !std::mem::replace(&mut slot.queued, true) {
            self.queue.push_back(at);
        }
    }

    /// Looks at slots in the queue, until `room` requests were delivered, each once and a bounded number of them.
    fn serve(
        &mut self,
        room: usize,
        deliver: &mut impl FnMut(Arrival<Request<C>, Route<C>>),
    ) -> usize {
        let mut delivered = 0;
        for _ in 0..self.queue.len().min(self.limits.batch) {
            if delivered == room {
                break;
            }
            let Some(at) = self.queue.pop_front() else {
                break;
            };
            let slot = &mut self.slots[at as usize];
            slot.queued = false;
            match slot.state {
                State::Reading => delivered += usize::from(self.read(at, deliver)),
                State::Writing => self.write(at),
                State::Lingering => self.throw_away(at),
                State::Free | State::Away | State::Apart => {}
            }
        }
        delivered
    }

    // --- requests ------------------------------------------------------------------------------------------

    /// Delivers a request, or reads once. Tells whether it delivered.
    fn read(&mut self, at: u32, deliver: &mut impl FnMut(Arrival<Request<C>, Route<C>>)) -> bool {
        let mut has_read = false;
        loop {
            let slot = &mut self.slots[at as usize];
            let exchange = present(&mut slot.exchange);
            let codec = &self.shared.codec;
            match exchange
                .input
                .next(codec, &exchange.session, self.limits.max_request)
            {
                Found::Frame(frame) => {
                    let class = frame.class;
                    self.begin(at, frame);
                    if self.closed {
                        self.refuse(at, Refusal::ShuttingDown);
                        return false;
                    }
                    self.deliver(at, class, deliver);
                    return true;
                }
                Found::Skipping => {
                    self.enqueue(at);
                    return false;
                }
                Found::TooLong => {
                    // Without room for it the connection closes without a word.
                    self.append(at, C::too_long);
                    self.finish(at, Cause::TooLong);
                    return false;
                }
                Found::Wrong => {
                    self.close(at, Cause::Codec);
                    return false;
                }
                Found::Incomplete => {}
            }
            // What was held back for company must not wait for bytes that may never come.
            if !exchange.output.unsent().is_empty() {
                self.write(at);
                return false;
            }
            if slot.ended {
                self.close(at, Cause::Peer);
                return false;
            }
            if self.closed {
                self.finish(at, Cause::Shutdown);
                return false;
            }
            if !slot.readable {
                self.rest(at);
                return false;
            }
            if has_read {
                self.enqueue(at);
                return false;
            }
            has_read = true;
            if !self.make_room(at) || !self.receive(at) {
                return false;
            }
        }
    }

    /// Gives a connection's input room to read to. Tells whether there is any now.
    fn make_room(&mut self, at: u32) -> bool {
        let slot = &mut self.slots[at as usize];
        let input = &mut present(&mut slot.exchange).input;
        if input.end < input.bytes.len() {
            return true;
        }
        if input.bytes.is_empty() {
            let standard = self.inputs.pop().expect("one for each connection");
            input.move_to(standard);
        } else if input.pending() < input.bytes.len() {
            input.compact();
        } else if let Some(large) = self.large_inputs.pop() {
            self.inputs.push(input.move_to(large));
        } else {
            slot.hungry = true;
            if !std::mem::replace(&mut slot.listed, true) {
                self.hungry.push_back(at);
            }
            return false;
        }
        true
    }

    /// Reads once. Tells whether the connection is still there.
    fn receive(&mut self, at: u32) -> bool {
        let slot = &mut self.slots[at as usize];
        let Exchange { stream, input, .. } = present(&mut slot.exchange);
        let stream = stream.as_ref().expect("open connections have a socket");
        let room = (input.bytes.len() - input.end).min(READ);
        let buffer = &mut input.bytes[input.end..input.end + room];
        count(&self.shared.counters.intake.receives);
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(stream, &mut *buffer, RecvFlags::DONTWAIT)
        });
        match received {
            Ok((_, 0)) => {
                slot.ended = true;
                slot.readable = false;
            }
            Ok((_, length)) => {
                add(&self.shared.counters.intake.bytes_in, length as u64);
                if input.pending() == 0 {
                    slot.since = self.now;
                }
                input.end += length;
                // Less than there was room for: that was all. What comes later makes a new event.
                slot.readable = length == room || slot.hung_up;
            }
            Err(Errno::AGAIN) => slot.readable = false,
            Err(_) => {
                self.close(at, Cause::Broken);
                return false;
            }
        }
        true
    }

    /// The request in `frame` is the connection's present one.
    fn begin(&mut self, at: u32, frame: Frame) {
        self.give_output(at);
        let exchange = present(&mut self.slots[at as usize].exchange);
        exchange.output.begin();
        exchange.close = frame.last.then_some(Cause::Server);
        let Exchange { input, session, .. } = &mut *exchange;
        let limit = self.limits.max_request;
        exchange.more = input.deliver(frame, &self.shared.codec, session, limit);
        count(&self.shared.counters.intake.received);
    }

    fn deliver(
        &mut self,
        at: u32,
        class: u16,
        deliver: &mut impl FnMut(Arrival<Request<C>, Route<C>>),
    ) {
        let slot = &mut self.slots[at as usize];
        let (Some(exchange), Some(route)) = (slot.exchange.take(), slot.route.take()) else {
            unreachable!("both are back while the slot reads");
        };
        slot.state = State::Away;
        deliver(Arrival {
            flow: exchange.id.0,
            request: Request::new(exchange),
            route,
            class,
            arrived_nanos: self.now,
            deadline_nanos: None,
        });
    }

    /// Sees to it that there is something to write to.
    fn give_output(&mut self, at: u32) {
        let output = &mut present(&mut self.slots[at as usize].exchange).output;
        if output.standard.capacity() == 0 {
            output.standard = self.outputs.pop().expect("one for each connection");
        }
    }

    /// Tells the client what the codec wants it to be told, if there is room.
    fn append(&mut self, at: u32, what: impl Fn(&C) -> &'static [u8]) -> bool {
        self.give_output(at);
        let output = &mut present(&mut self.slots[at as usize].exchange).output;
        output.append_within(what(&self.shared.codec))
    }

    /// A connection waits for its peer: parts with what it does not need meanwhile.
    fn rest(&mut self, at: u32) {
        let exchange = present(&mut self.slots[at as usize].exchange);
        if exchange.output.standard.capacity() > 0 {
            self.outputs
                .push(std::mem::take(&mut exchange.output.standard));
        }
        let input = &mut exchange.input;
        if input.pending() == 0 {
            let buffer = input.clear();
            self.put_input(buffer);
        } else if input.bytes.len() > self.limits.buffer
            && input.pending() <= self.limits.buffer / 2
        {
            let standard = self.inputs.pop().expect("one for each connection");
            let large = input.move_to(standard);
            self.put_input(large);
        }
    }

    fn put_input(&mut self, buffer: BytesMut) {
        if buffer.len() == self.limits.buffer {
            self.inputs.push(buffer);
        } else if !buffer.is_empty() {
            self.large_inputs.push(buffer);
            self.feed();
        } else {
            // It never had one, and this owns no memory.
            drop(buffer);
        }
    }

    /// There is a large buffer for the first connection that still waits for one.
    fn feed(&mut self) {
        while let Some(at) = self.hungry.pop_front() {
            let slot = &mut self.slots[at as usize];
            slot.listed = false;
            if std::mem::take(&mut slot.hungry) {
                slot.since = self.now;
                return self.enqueue(at);
            }
        }
    }

    // --- replies -------------------------------------------------------------------------------------------

    /// Takes back what workers are done with; tells how much.
    fn take_back(&mut self) -> usize {
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
                count(&intake.failed);
            }
            return self.home(at);
        }
        // A handler gave back what it was not asked for, or nothing.
        slot.cause = if failed {
            Cause::Failed
        } else {
            Cause::Misdirected
        };
        count(match exchange {
            Some(_) => &intake.misdirected,
            None => &intake.kept,
        });
        self.apart(at);
        if let Some(mut exchange) = exchange {
            let its = exchange.place.slot;
            // What was in the output before this reply is lost with the connection.
            exchange.replies -= 1;
            let slot = &mut self.slots[its as usize];
            slot.exchange = Some(exchange);
            slot.cause = Cause::Misdirected;
            self.apart(its);
        }
    }

    /// A slot whose exchange and route went different ways: closed when both are back.
    fn apart(&mut self, at: u32) {
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
            return self.close(at, Cause::Broken);
        }
        if exchange.is_due() {
            return self.write(at);
        }
        self.go_on(at);
    }

    /// Sends what the kernel takes; no system call if there is nothing.
    fn write(&mut self, at: u32) {
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
            Sent::Broken => self.close(at, Cause::Broken),
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
        count(&self.shared.counters.intake.refused);
        if !self.append(at, |codec| codec.refusal(cause)) {
            present(&mut self.slots[at as usize].exchange).close = Some(Cause::Codec);
        }
        self.home(at);
    }

    /// The runtime does not want a request that was delivered.
    pub(super) fn turn_away(&mut self, request: Request<C>, route: Route<C>, cause: Refusal) {
        let exchange = request.into_exchange();
        let at = route.0.slot;
        let slot = &mut self.slots[at as usize];
        slot.exchange = Some(exchange);
        slot.route = Some(route);
        self.refuse(at, cause);
    }

    // --- closing -------------------------------------------------------------------------------------------

    /// Closes when everything is sent.
    fn finish(&mut self, at: u32, cause: Cause) {
        present(&mut self.slots[at as usize].exchange).close = Some(cause);
        self.write(at);
    }

    /// Everything is sent: shuts the sending side and waits for the peer to close.
    fn linger(&mut self, at: u32, cause: Cause) {
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

    fn throw_away(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        let stream = &present(&mut slot.exchange).stream;
        let stream = stream.as_ref().expect("open connections have a socket");
        match rustix::net::recv(stream, &mut *self.scrap, RecvFlags::DONTWAIT) {
            Ok((_, length)) if length > 0 => {
                add(&self.shared.counters.intake.bytes_in, length as u64);
                self.enqueue(at);
            }
            Err(Errno::AGAIN | Errno::INTR) => slot.readable = false,
            _ => self.close(at, self.slots[at as usize].cause),
        }
    }

    /// Closes now, whatever is unsent. Exchange and route are back.
    pub(super) fn close(&mut self, at: u32, cause: Cause) {
        let slot = &mut self.slots[at as usize];
        let exchange = present(&mut slot.exchange);
        let intake = &self.shared.counters.intake;
        add(&intake.cut_off, std::mem::take(&mut exchange.replies));
        count(&intake.closed[cause as usize]);
        // Closing takes it out of epoll, too.
        exchange.stream = None;
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
    fn close_some(&mut self) {
        let some = self.close_at..self.slots.len().min(self.close_at + self.limits.batch);
        self.close_at = some.end;
        for at in some {
            if self.slots[at].state == State::Reading {
                self.enqueue(at as u32);
            }
        }
    }

    /// The transport goes away, on a thread that may wait: tries for a while to send what is unsent, and closes what can
    /// be closed.
    pub(super) fn end(&mut self) {
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
                State::Reading | State::Writing => self.close(at, Cause::Shutdown),
            }
        }
    }

    /// Looks at the slots that have their turn, for time-outs and what came back on other ways.
    fn sweep(&mut self) {
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
                    self.close(at, Cause::SlowReader);
                }
                State::Reading if slot.queued || slot.hungry => {}
                State::Reading if present(&mut slot.exchange).input.has_more() => {
                    if waited > limits.request_timeout {
                        self.finish(at, Cause::HalfRequest);
                    }
                }
                State::Reading if waited > limits.idle_timeout => self.finish(at, Cause::Idle),
                State::Reading => present(&mut slot.exchange).output.leave_large(),
                State::Writing | State::Lingering => {}
            }
        }
    }
}
