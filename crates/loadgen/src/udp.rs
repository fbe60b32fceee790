//! Datagrams in the formats of Shinjuku and RackSched: one flow is one socket, so that each has a port of its own.
//!
//! Replies may come in any order, or not at all. They are known by the stamp that the server sends back unread (the
//! formats' `gen_ns`): the intended moment in ns, made unique.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use shinjuku_net::wire::{RackSchedKind, RackSchedMessage, ShinjukuRequest};

use crate::client::{Client, Clock, Pool, Side};
use crate::error::LoadError;
use crate::readiness::Readiness;
use crate::record::{GivenUp, Record, Sent};
use crate::requests::{Draws, Format};
use crate::tcp::Shape;

/// Longer than any reply that is one.
const DATAGRAM: usize = 2048;

/// Flows, and what is under way on them.
#[derive(Debug)]
pub(crate) struct Udp {
    format: Format,
    sockets: Vec<UdpSocket>,
    pools: [Pool; 2],
    /// Requests under way on each flow.
    loads: Vec<usize>,
    idle_first: bool,
    readiness: Readiness,
    /// By rising stamp; those done go when they are in front.
    waiting: VecDeque<Waiting>,
    outstanding: usize,
    /// Submitted and not sent.
    queue: Vec<u32>,
    queued: Vec<u8>,
    last_stamp: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    stamp: u64,
    request: Sent,
    flow: u32,
    done: bool,
}

impl Udp {
    /// Opens all flows.
    ///
    /// # Errors
    /// The operating system gives no socket or no epoll.
    pub(crate) fn open(
        target: SocketAddr,
        shape: Shape,
        format: Format,
    ) -> Result<Self, LoadError> {
        let system = |action| move |cause: std::io::Error| LoadError::System { action, cause };
        let readiness = Readiness::new()?;
        let wanted = shape.connections + shape.probes;
        let any: SocketAddr = match target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let mut sockets = Vec::with_capacity(wanted);
        for flow in 0..wanted {
            let socket = UdpSocket::bind(any).map_err(system("open a UDP socket"))?;
            socket
                .connect(target)
                .map_err(system("connect a UDP socket"))?;
            socket
                .set_nonblocking(true)
                .map_err(system("set up a UDP socket"))?;
            readiness.add(&socket, flow as u32)?;
            sockets.push(socket);
        }
        let load = shape.connections as u32;
        Ok(Self {
            format,
            pools: [
                Pool::new(0..load, shape.depth),
                Pool::new(load..wanted as u32, 1),
            ],
            loads: vec![0; wanted],
            sockets,
            idle_first: shape.idle_first,
            readiness,
            waiting: VecDeque::new(),
            outstanding: 0,
            queue: Vec::new(),
            queued: Vec::new(),
            last_stamp: 0,
        })
    }

    /// The stamp of a reply; `None` if it is none.
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

impl Client for Udp {
    fn submit(&mut self, side: Side, request: Sent, class: u16, draws: &mut Draws) -> bool {
        let pool = &mut self.pools[side as usize];
        let idle = self.idle_first.then(|| pool.take(|_| true)).flatten();
        let Some(flow) = idle.or_else(|| pool.any(draws, |_| true)) else {
            return false;
        };
        let stamp = request.due_ns.max(self.last_stamp + 1);
        self.last_stamp = stamp;
        draws.write(class, stamp, &mut self.queued);
        self.queue.push(flow);
        self.waiting.push_back(Waiting {
            stamp,
            request,
            flow,
            done: false,
        });
        self.loads[flow as usize] += 1;
        self.outstanding += 1;
        true
    }

    fn flush(&mut self, record: &mut Record) {
        if self.queue.is_empty() {
            return;
        }
        let length = self.queued.len() / self.queue.len();
        let first = self.waiting.len() - self.queue.len();
        for (at, &flow) in self.queue.iter().enumerate() {
            let datagram = &self.queued[at * length..][..length];
            let sent = self.sockets[flow as usize].send(datagram);
            if let Err(error) = sent {
                let text = format!("sending: {}", error.kind());
                record.stray_error(Some(text.as_bytes()));
                self.waiting[first + at].done = true;
                record.lost(self.waiting[first + at].request);
            }
        }
        for at in 0..self.queue.len() {
            if self.waiting[first + at].done {
                self.done(self.queue[at]);
            }
        }
        self.queue.clear();
        self.queued.clear();
        self.forget_done();
    }

    fn receive(&mut self, clock: &Clock, record: &mut Record) -> bool {
        let Some(ready) = self.readiness.next() else {
            return false;
        };
        let mut buffer = [0; DATAGRAM];
        match self.sockets[ready.socket as usize].recv(&mut buffer) {
            Ok(length) => {
                let now_ns = clock.now_ns();
                match self.stamp(&buffer[..length]) {
                    Some(stamp) => self.answered(stamp, now_ns, record),
                    None => record.malformed += 1,
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // What an earlier datagram met on its way: it is waited for until its time-out.
            Err(error) => {
                let text = format!("receiving: {}", error.kind());
                record.stray_error(Some(text.as_bytes()));
            }
        }
        true
    }

    fn expire(&mut self, before_ns: u64, now_ns: u64, record: &mut Record) {
        while let Some(&first) = self.waiting.front() {
            if !first.done && first.request.due_ns >= before_ns {
                break;
            }
            self.waiting.pop_front();
            if !first.done {
                record.given_up(first.request, now_ns, GivenUp::TimeOut);
                self.done(first.flow);
            }
        }
    }

    fn end(&mut self, now_ns: u64, record: &mut Record) {
        for waiting in self.waiting.drain(..) {
            if !waiting.done {
                record.given_up(waiting.request, now_ns, GivenUp::End);
            }
        }
        self.outstanding = 0;
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn has_vacancy(&mut self, side: Side) -> bool {
        self.pools[side as usize].peek(|_| true).is_some()
    }

    fn is_dead(&self) -> bool {
        false
    }

    fn lost(&self) -> usize {
        0
    }
}
