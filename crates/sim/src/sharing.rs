//! Ideal processor sharing, computed exactly: all requests in the server share its cores equally,
//! none gets more than one core.
//!
//! With n requests on c cores each runs at the rate min(1, c / n). *Virtual time* passes at that
//! rate: a request of service time x that arrives at virtual time v ends at v + x, whatever arrives
//! later, and the request with the earliest end finishes next. Every event takes logarithmic time,
//! however small the shares.
//!
//! Source: Kleinrock, *Queueing Systems*, volume 2, chapter 4 (as the limit of round robin), and
//! the virtual time of Demers, Keshav and Shenker, *Analysis and Simulation of a Fair Queueing
//! Algorithm*, SIGCOMM 1989.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::calendar::NEVER;
use crate::{Outcome, Request};

/// A request, and the virtual time at which it ends.
struct Sharer {
    end: f64,
    number: u64,
    request: Request,
}

impl PartialEq for Sharer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Sharer {}

impl PartialOrd for Sharer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Reversed: a heap gives the greatest first, which is the first to end.
impl Ord for Sharer {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .end
            .total_cmp(&self.end)
            .then(other.number.cmp(&self.number))
    }
}

/// Cores shared equally by all requests.
pub struct Sharing {
    cores: f64,
    capacity: usize,
    sharers: BinaryHeap<Sharer>,
    /// The virtual time at the instant `at`.
    virtual_ns: f64,
    at: f64,
    number: u64,
    events: u64,
}

impl Sharing {
    /// This many cores, one at least, with room for `capacity` requests.
    #[must_use]
    pub fn new(cores: usize, capacity: usize) -> Self {
        Self {
            cores: cores.max(1) as f64,
            capacity,
            sharers: BinaryHeap::new(),
            virtual_ns: 0.0,
            at: 0.0,
            number: 0,
            events: 0,
        }
    }

    fn rate(&self) -> f64 {
        (self.cores / self.sharers.len() as f64).min(1.0)
    }

    /// When the first request ends, unrounded.
    fn end(&self) -> Option<f64> {
        let first = self.sharers.peek()?;
        Some(self.at + ((first.end - self.virtual_ns) / self.rate()).max(0.0))
    }

    fn pass(&mut self, to: f64) {
        if !self.sharers.is_empty() {
            self.virtual_ns += (to - self.at).max(0.0) * self.rate();
        }
        self.at = self.at.max(to);
    }

    /// The time of the next event, in ns, rounded up; `u64::MAX` if there is none.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        self.end().map_or(NEVER, |end| end.ceil() as u64)
    }

    /// How many events it has handled.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Requests in the server.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sharers.len()
    }

    /// Whether the server has no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sharers.is_empty()
    }

    /// A request arrives.
    pub fn arrive(&mut self, now_ns: u64, request: Request) -> Option<Outcome> {
        self.events += 1;
        if self.sharers.len() >= self.capacity {
            return Some(Outcome::Refused { request });
        }
        self.pass(now_ns as f64);
        if self.sharers.is_empty() {
            // Virtual time starts from zero again, so that it loses no digits over a long run.
            self.virtual_ns = 0.0;
        }
        self.number += 1;
        self.sharers.push(Sharer {
            end: self.virtual_ns + request.service_ns as f64,
            number: self.number,
            request,
        });
        None
    }

    /// The first request ends.
    pub fn step(&mut self) -> Option<Outcome> {
        let end = self.end()?;
        self.events += 1;
        self.pass(end);
        let first = self.sharers.pop()?;
        Some(Outcome::Finished {
            request: first.request,
            at_ns: end.round() as u64,
        })
    }
}
