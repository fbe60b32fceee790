//! Datagrams in the formats of Shinjuku and RackSched, over any carrier.
//!
//! Replies may come in any order, or not at all. A reply is matched by the stamp that the server
//! sends back unread (the formats' `gen_ns`): the request's intended moment in ns, made unique.

use std::collections::VecDeque;

use shinjuku_net::wire::{RackSchedKind, RackSchedMessage, ShinjukuRequest};

use crate::client::{Client, Clock, Pool, Side};
use crate::record::{GivenUp, Record, Sent};
use crate::requests::{Draws, Format};
use crate::tcp::Shape;

/// What a carrier delivers: a datagram of the server's, or an error in words.
pub(crate) type Came<'a> = Result<&'a [u8], String>;

/// Flows to one server; each flow has a local port of its own.
pub(crate) trait Carrier {
    /// Sends a datagram on a flow, at the latest with the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The reason, in words, why the datagram was not sent.
    fn send(&mut self, flow: u32, datagram: &[u8]) -> Result<(), String>;

    /// Sends the datagrams that wait for a flush.
    fn flush(&mut self);

    /// Hands some of the received datagrams to `deliver`; false if there were none.
    fn receive(&mut self, deliver: &mut dyn FnMut(Came<'_>)) -> bool;

    /// The first stamp to use, in ns: above all stamps that an earlier load's replies can still
    /// have.
    fn first_stamp(&self) -> u64;

    /// The carrier's description, for reports.
    fn describe(&self) -> String;
}

/// Flows, and what is under way on them.
#[derive(Debug)]
pub(crate) struct Datagrams<C> {
    carrier: C,
    pending: Pending,
    /// Submitted and not sent.
    queue: Vec<u32>,
    queued: Vec<u8>,
    idle_first: bool,
    first_stamp: u64,
    last_stamp: u64,
}

/// Which requests wait for their replies, and on which flows.
#[derive(Debug)]
struct Pending {
    format: Format,
    pools: [Pool; 2],
    /// Requests under way on each flow.
    loads: Vec<usize>,
    /// By rising stamp; finished ones leave when they are at the front.
    waiting: VecDeque<Waiting>,
    outstanding: usize,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    stamp: u64,
    request: Sent,
    flow: u32,
    done: bool,
}

impl<C: Carrier> Datagrams<C> {
    /// `carrier` has as many flows as `shape` has connections and probes.
    pub(crate) fn new(carrier: C, shape: Shape, format: Format) -> Self {
        let load = shape.connections as u32;
        let all = load + shape.probes as u32;
        Self {
            first_stamp: carrier.first_stamp(),
            carrier,
            pending: Pending {
                format,
                pools: [Pool::new(0..load, shape.depth), Pool::new(load..all, 1)],
                loads: vec![0; all as usize],
                waiting: VecDeque::new(),
                outstanding: 0,
            },
            queue: Vec::new(),
            queued: Vec::new(),
            idle_first: shape.idle_first,
            last_stamp: 0,
        }
    }
}

impl Pending {
    /// The stamp of a reply; `None` if the datagram is no reply.
    fn stamp(&self, datagram: &[u8]) -> Option<u64> {
        match self.format {
            Format::Shinjuku => {
                let reply = ShinjukuRequest::parse(datagram).ok()?;
                Some(reply.generated_nanos)
            }
            Format::RackSched => {
                let (reply, _) = RackSchedMessage::parse(datagram).ok()?;
                (reply.kind == RackSchedKind::Reply).then_some(reply.generated_nanos)
            }
        }
    }

    fn answered(&mut self, stamp: u64, now_ns: u64, record: &mut Record) {
        let found = self.waiting.binary_search_by_key(&stamp, |one| one.stamp);
        let Some(waiting) = found.ok().map(|at| &mut self.waiting[at]) else {
            record.strays += 1;
            return;
        };
        if waiting.done {
            record.strays += 1;
            return;
        }
        waiting.done = true;
        let waiting = *waiting;
        record.answered(waiting.request, now_ns, None);
        self.done(waiting.flow);
        self.forget_done();
    }

    fn done(&mut self, flow: u32) {
        self.outstanding -= 1;
        let load = &mut self.loads[flow as usize];
        *load -= 1;
        self.pools[usize::from(flow >= self.pools[0].end())].give_back(flow, *load);
    }

    fn forget_done(&mut self) {
        while self.waiting.front().is_some_and(|one| one.done) {
            self.waiting.pop_front();
        }
    }
}

impl<C: Carrier> Client for Datagrams<C> {
    fn submit(&mut self, side: Side, request: Sent, class: u16, draws: &mut Draws) -> bool {
        let pool = &mut self.pending.pools[side as usize];
        let idle = self.idle_first.then(|| pool.take(|_| true)).flatten();
        let Some(flow) = idle.or_else(|| pool.any(draws, |_| true)) else {
            return false;
        };
        let intended = self.first_stamp + request.due_ns;
        let stamp = intended.max(self.last_stamp + 1);
        self.last_stamp = stamp;
        draws.write(class, stamp, &mut self.queued);
        self.queue.push(flow);
        self.pending.waiting.push_back(Waiting {
            stamp,
            request,
            flow,
            done: false,
        });
        self.pending.loads[flow as usize] += 1;
        self.pending.outstanding += 1;
        true
    }

    fn flush(&mut self, record: &mut Record) {
        if self.queue.is_empty() {
            return;
        }
        let Self {
            carrier, pending, ..
        } = self;
        let length = self.queued.len() / self.queue.len();
        let first = pending.waiting.len() - self.queue.len();
        for (at, &flow) in self.queue.iter().enumerate() {
            let datagram = &self.queued[at * length..][..length];
            if let Err(error) = carrier.send(flow, datagram) {
                record.stray_error(Some(format!("sending: {error}").as_bytes()));
                pending.waiting[first + at].done = true;
                record.lost(pending.waiting[first + at].request);
            }
        }
        carrier.flush();
        for at in 0..self.queue.len() {
            if pending.waiting[first + at].done {
                pending.done(self.queue[at]);
            }
        }
        self.queue.clear();
        self.queued.clear();
        pending.forget_done();
    }

    fn receive(&mut self, clock: &Clock, record: &mut Record) -> bool {
        let Self {
            carrier, pending, ..
        } = self;
        carrier.receive(&mut |came| {
            let now_ns = clock.now_ns();
            match came.map(|datagram| pending.stamp(datagram)) {
                Ok(Some(stamp)) => pending.answered(stamp, now_ns, record),
                Ok(None) => record.malformed += 1,
                // The error belongs to an earlier datagram, which is waited for until its time-out.
                Err(error) => {
                    record.stray_error(Some(format!("receiving: {error}").as_bytes()));
                }
            }
        })
    }

    fn expire(&mut self, before_ns: u64, now_ns: u64, record: &mut Record) {
        let pending = &mut self.pending;
        while let Some(&first) = pending.waiting.front() {
            if !first.done && first.request.due_ns >= before_ns {
                break;
            }
            pending.waiting.pop_front();
            if !first.done {
                record.given_up(first.request, now_ns, GivenUp::TimeOut);
                pending.done(first.flow);
            }
        }
    }

    fn end(&mut self, now_ns: u64, record: &mut Record) {
        for waiting in self.pending.waiting.drain(..) {
            if !waiting.done {
                record.given_up(waiting.request, now_ns, GivenUp::End);
            }
        }
        self.pending.outstanding = 0;
    }

    fn outstanding(&self) -> usize {
        self.pending.outstanding
    }

    fn has_vacancy(&mut self, side: Side) -> bool {
        self.pending.pools[side as usize].peek(|_| true).is_some()
    }

    fn is_dead(&self) -> bool {
        false
    }

    fn lost(&self) -> usize {
        0
    }
}
