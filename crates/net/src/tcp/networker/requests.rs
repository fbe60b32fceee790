//! From bytes to requests.

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Networker;
use crate::tcp::codec::Codec;
use crate::tcp::counters::CloseReason;
use crate::tcp::exchange::{Exchange, Route};
use crate::tcp::input::{Found, Frame};
use crate::tcp::request::Request;
use crate::tcp::slot::{State, present};
use crate::{Arrival, Refusal};

/// Bytes read at once: a copy of some microseconds.
const READ: usize = 64 << 10;

impl<C: Codec> Networker<C> {
    /// Delivers a request, or reads once. Tells whether it delivered.
    pub(super) fn read(
        &mut self,
        at: u32,
        deliver: &mut impl FnMut(Arrival<Request<C>, Route<C>>),
    ) -> bool {
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
                    self.finish(at, CloseReason::TooLong);
                    return false;
                }
                Found::Wrong => {
                    self.close(at, CloseReason::Codec);
                    return false;
                }
                Found::Incomplete => {}
            }
            // Replies that were held back, to be sent with the next, must not wait for bytes that
            // may never come.
            if !exchange.output.unsent().is_empty() {
                self.write(at);
                return false;
            }
            if slot.ended {
                self.close(at, CloseReason::Peer);
                return false;
            }
            if self.closed {
                self.finish(at, CloseReason::Shutdown);
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
        self.shared.counters.intake.receives.count();
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(stream, &mut *buffer, RecvFlags::DONTWAIT)
        });
        match received {
            Ok((_, 0)) => {
                slot.ended = true;
                slot.readable = false;
            }
            Ok((_, length)) => {
                self.shared.counters.intake.bytes_in.add(length as u64);
                if input.pending() == 0 {
                    slot.since = self.now;
                }
                input.end += length;
                // Less than there was room for: that was all. What comes later makes a new event.
                slot.readable = length == room || slot.hung_up;
            }
            Err(Errno::AGAIN) => slot.readable = false,
            Err(_) => {
                self.close(at, CloseReason::Broken);
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
        exchange.close = frame.last.then_some(CloseReason::Server);
        let Exchange { input, session, .. } = &mut *exchange;
        let limit = self.limits.max_request;
        exchange.more = input.deliver(frame, &self.shared.codec, session, limit);
        self.shared.counters.intake.received.count();
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
            due_nanos: None,
        });
    }

    /// Sees to it that there is something to write to.
    pub(super) fn give_output(&mut self, at: u32) {
        let output = &mut present(&mut self.slots[at as usize].exchange).output;
        if output.standard.capacity() == 0 {
            output.standard = self.outputs.pop().expect("one for each connection");
        }
    }

    /// Tells the client what the codec wants it to be told, if there is room.
    pub(super) fn append(&mut self, at: u32, what: impl Fn(&C) -> &'static [u8]) -> bool {
        self.give_output(at);
        let output = &mut present(&mut self.slots[at as usize].exchange).output;
        output.append_within(what(&self.shared.codec))
    }

    /// A connection waits for its peer: parts with what it does not need meanwhile.
    pub(super) fn rest(&mut self, at: u32) {
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

    pub(super) fn put_input(&mut self, buffer: BytesMut) {
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
}
