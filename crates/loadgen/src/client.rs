//! The engine's interface to a protocol, and the choice of a connection for a request.

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
        // Runs are bounded, so the value fits.
        Instant::now()
            .saturating_duration_since(self.start)
            .as_nanos() as u64
    }
}

/// Which connections a request may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The connections that carry the load.
    Load,
    /// The connections that only measure.
    Probe,
}

/// Connections or flows of one thread.
pub(crate) trait Client {
    /// Writes a request for a connection of `side` into the output of the next
    /// [`flush`](Self::flush). Returns false, and does nothing, if no connection is left.
    fn submit(&mut self, side: Side, request: Sent, class: u16, draws: &mut Draws) -> bool;

    /// Sends what was submitted. The rest waits, in order, for the next flush if the kernel takes
    /// only a part.
    fn flush(&mut self, record: &mut Record);

    /// Reads from one connection that has something to read; returns false if there is none.
    fn receive(&mut self, clock: &Clock, record: &mut Record) -> bool;

    /// Gives up requests due before `before_ns`.
    fn expire(&mut self, before_ns: u64, now_ns: u64, record: &mut Record);

    /// Gives up all requests.
    fn end(&mut self, now_ns: u64, record: &mut Record);

    /// How many requests are under way.
    fn outstanding(&self) -> usize;

    /// Whether a connection of `side` could take a request within its depth.
    fn has_vacancy(&mut self, side: Side) -> bool;

    /// Whether no connection is left.
    fn is_dead(&self) -> bool;

    /// How many connections were lost so far.
    fn lost(&self) -> usize;
}

/// Chooses connections: those with fewer requests under way than their depth first, and of these
/// the one that has waited longest.
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
        // A connection's places are adjacent: pipelined requests then leave in one write.
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

    /// The next connection, if one has room; connections for which `alive` is false are forgotten.
    pub(crate) fn take(&mut self, alive: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.peek(alive);
        if found.is_some() {
            self.vacant.pop_front();
        }
        found
    }

    /// As [`take`](Self::take), but the connection stays in its place.
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

    /// A connection whatever is under way on it: the first that is alive, from a random one on.
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
