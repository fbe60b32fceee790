//! What the engine asks of a protocol, and how a connection is chosen for a request.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::record::{Record, Sent};
use crate::requests::Draws;

/// Nanoseconds since the start of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn starting(start: Instant) -> Self {
        Self { start }
    }

    /// Now; 0 before the start.
    pub(crate) fn now_ns(&self) -> u64 {
        // Runs are bounded: it fits.
        Instant::now()
            .saturating_duration_since(self.start)
            .as_nanos() as u64
    }
}

/// Which connections a request may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Those that carry the load.
    Load,
    /// Those that only measure.
    Probe,
}

/// Connections or flows of one thread.
pub(crate) trait Client {
    /// Writes a request for a connection of `side` into what goes out with the next
    /// [`flush`](Self::flush). False, and nothing done, if there is no connection left.
    fn submit(&mut self, side: Side, request: Sent, class: u16, draws: &mut Draws) -> bool;

    /// Sends what was submitted. What the kernel does not take waits, in order, for the next flush.
    fn flush(&mut self, record: &mut Record);

    /// Reads from one connection that has something to read; false if none has.
    fn receive(&mut self, clock: &Clock, record: &mut Record) -> bool;

    /// Gives up requests due before `before_ns`.
    fn expire(&mut self, before_ns: u64, now_ns: u64, record: &mut Record);

    /// Gives up all.
    fn end(&mut self, now_ns: u64, record: &mut Record);

    /// How many requests are under way.
    fn outstanding(&self) -> usize;

    /// Whether a connection of `side` could take a request without going over its depth.
    fn has_vacancy(&mut self, side: Side) -> bool;

    /// Whether no connection is left.
    fn is_dead(&self) -> bool;

    /// How many connections were lost so far.
    fn lost(&self) -> usize;
}

/// Chooses connections: those with fewer requests under way than their depth first, the longest
/// waiting of them first.
///
/// A connection is in `vacant` once for each request that it could take.
#[derive(Debug)]
pub(crate) struct Pool {
    members: Range<u32>,
    depth: usize,
    vacant: VecDeque<u32>,
}

impl Pool {
    pub(crate) fn new(members: Range<u32>, depth: usize) -> Self {
        let mut vacant = VecDeque::with_capacity(members.len() * depth);
        // A connection's places beside each other: pipelined requests then leave in one write.
        vacant.extend(
            members
                .clone()
                .flat_map(|one| std::iter::repeat_n(one, depth)),
        );
        Self {
            members,
            depth,
            vacant,
        }
    }

    /// The number after its last connection.
    pub(crate) fn end(&self) -> u32 {
        self.members.end
    }

    /// The next connection, if one has room; those that `alive` denies are forgotten.
    pub(crate) fn take(&mut self, alive: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.peek(alive);
        if found.is_some() {
            self.vacant.pop_front();
        }
        found
    }

    /// The same, left where it is.
    pub(crate) fn peek(&mut self, alive: impl Fn(u32) -> bool) -> Option<u32> {
        while let Some(&one) = self.vacant.front() {
            if alive(one) {
                return Some(one);
            }
            self.vacant.pop_front();
        }
        None
    }

    /// A request of `one` is done, and `left` are under way on it.
    pub(crate) fn give_back(&mut self, one: u32, left: usize) {
        if left < self.depth {
            self.vacant.push_back(one);
        }
    }

    /// A connection without regard to what is under way on it: the first alive from a random one
    /// on.
    pub(crate) fn any(&self, draws: &mut Draws, alive: impl Fn(u32) -> bool) -> Option<u32> {
        let count = self.members.len();
        if count == 0 {
            return None;
        }
        let first = draws.below(count);
        (0..count)
            .map(|step| self.members.start + ((first + step) % count) as u32)
            .find(|&one| alive(one))
    }
}
