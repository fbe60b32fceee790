//! Tiny Quanta's dispatcher: it gives each arrival to the worker with the fewest requests, and
//! never sees a preemption.
//!
//! It knows what workers have reported, a message ago: how many requests they have finished, and
//! how many quanta the requests that they hold have had. Among workers with equally few requests
//! the one goes first whose requests have had more quanta: they are likely nearer their end.
//!
//! Source: *Tiny Quanta*, ASPLOS 2024, and its published code.

use std::cmp::Reverse;
use std::collections::VecDeque;

use shinjuku_policy::Nanos;

use super::Loops;
use crate::calendar::NEVER;
use crate::{Overheads, Request};

/// A worker as the dispatcher sees it.
#[derive(Clone, Copy, Default)]
struct Seen {
    requests: u64,
    /// Of the requests that it holds.
    quanta: u64,
}

/// A worker's report on its way.
struct Report {
    at_ns: u64,
    worker: usize,
    /// A request has ended, after so many quanta; `None`: one has had a quantum.
    ended: Option<u64>,
}

pub(super) struct Front {
    seen: Box<[Seen]>,
    reports: VecDeque<Report>,
    free_ns: u64,
    /// Requests, when they came, and when the dispatcher is done with them.
    requests: VecDeque<(Nanos, u64, Request)>,
    /// Requests on their way to a worker, when they came, and when they are there.
    sent: VecDeque<(Nanos, u64, Request, usize)>,
}

impl Front {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            seen: vec![Seen::default(); workers].into_boxed_slice(),
            reports: VecDeque::new(),
            free_ns: 0,
            requests: VecDeque::new(),
            sent: VecDeque::new(),
        }
    }

    pub(super) fn arrive(&mut self, now: u64, request: Request, costs: &Overheads) {
        self.free_ns = self.free_ns.max(now) + costs.network_ns + costs.dispatch_ns;
        self.requests.push_back((Nanos(now), self.free_ns, request));
    }

    pub(super) fn report(&mut self, at_ns: u64, worker: usize, ended: Option<u64>) {
        self.reports.push_back(Report {
            at_ns,
            worker,
            ended,
        });
    }

    /// The worker for a request now.
    fn choose(&mut self, now: u64) -> usize {
        while let Some(report) = self.reports.pop_front_if(|report| report.at_ns <= now) {
            let seen = &mut self.seen[report.worker];
            match report.ended {
                Some(quanta) => {
                    seen.requests -= 1;
                    seen.quanta -= quanta;
                }
                None => seen.quanta += 1,
            }
        }
        let order = |worker: &usize| {
            let seen = self.seen[*worker];
            (seen.requests, Reverse(seen.quanta))
        };
        let worker = (0..self.seen.len()).min_by_key(order).unwrap_or(0);
        self.seen[worker].requests += 1;
        worker
    }

    fn next_ns(&self) -> u64 {
        let chosen = self.requests.front().map_or(NEVER, |(_, at, _)| *at);
        chosen.min(self.sent.front().map_or(NEVER, |(_, at, ..)| *at))
    }
}

impl Loops {
    pub(super) fn set_front(&mut self) {
        if let Some(front) = &self.front {
            self.calendar.set(self.loops.len(), front.next_ns());
        }
    }

    /// The dispatcher is done with a request, or a request has reached its worker.
    pub(super) fn front_event(&mut self, now: u64) {
        let Some(front) = &mut self.front else {
            return;
        };
        if let Some((arrival, _, request, worker)) =
            front.sent.pop_front_if(|(_, at, ..)| *at <= now)
        {
            self.put(worker, request, arrival.0, now);
        } else if let Some((arrival, _, request)) =
            front.requests.pop_front_if(|(_, at, _)| *at <= now)
        {
            let worker = front.choose(now);
            let there_ns = now + self.overheads.message_ns;
            front.sent.push_back((arrival, there_ns, request, worker));
        }
        self.set_front();
    }
}
