//! Requests that were stopped while they waited for a lock.
//!
//! A preempted request may hold a lock. A request that wants the lock sleeps in the kernel with its
//! worker until a signal stops it, and each fresh request may be the next to want it: they stop one
//! after the other, while the holder waits its turn behind them.
//!
//! ```text
//!   stopped as it waits for a lock ──▶ aside ──each suspended request has had a turn──▶ waits again
//!                                        │                                   ▲
//!                                        └── none is left that is suspended ─┘
//! ```
//!
//! So a request that waits stands aside, and each that is suspended by then has a turn before it
//! comes back: one of them may have the lock. Every other turn is a fresh request's, which need not
//! want that lock, until one more request has run into a lock: then the suspended ones go first, or
//! fresh ones would take all contexts, to wait. Where none is suspended the holder runs elsewhere,
//! or the request waits for something else.

use shinjuku_policy::{TaskId, WorkerId};

/// Requests that stand aside, and the turns that others have before them.
#[derive(Debug)]
pub(super) struct LockWaiters {
    /// With the worker that each ran on.
    aside: Vec<(TaskId, WorkerId)>,
    /// How many suspended requests are to have a turn.
    turns: usize,
    /// The last turn was a suspended request's, and the next is a fresh one's.
    had_turn: bool,
    /// No other request has run into a lock since the first turn.
    is_alone: bool,
}

impl LockWaiters {
    /// Takes the memory for so many requests.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            aside: Vec::with_capacity(capacity),
            turns: 0,
            had_turn: false,
            is_alone: true,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.aside.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.aside.is_empty()
    }

    /// A request that waits for a lock stands aside until `suspended` others have had a turn, or
    /// those have that had to before the last one.
    pub(super) fn stand_aside(&mut self, task: TaskId, worker: WorkerId, suspended: usize) {
        self.is_alone = self.aside.is_empty();
        if self.is_alone {
            (self.turns, self.had_turn) = (suspended, false);
        }
        self.aside.push((task, worker));
    }

    /// Whether the next request to be handed out is to be one of the suspended; that is a turn.
    pub(super) fn takes_turn(&mut self) -> bool {
        self.had_turn = self.turns > 0 && !(self.had_turn && self.is_alone);
        self.turns -= usize::from(self.had_turn);
        self.had_turn
    }

    /// The requests that need not stand aside any more, with so many suspended.
    pub(super) fn come_back(
        &mut self,
        suspended: usize,
    ) -> impl Iterator<Item = (TaskId, WorkerId)> {
        if suspended == 0 {
            self.turns = 0;
        }
        let all = match self.turns {
            0 => self.aside.len(),
            _ => 0,
        };
        self.aside.drain(..all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(0);

    fn back(waiters: &mut LockWaiters, suspended: usize) -> Vec<u32> {
        let back = waiters.come_back(suspended);
        back.map(|(task, _)| task.0).collect()
    }

    #[test]
    fn those_that_wait_come_back_after_the_suspended_have_had_their_turns() {
        let mut waiters = LockWaiters::new(4);
        assert!(!waiters.takes_turn());
        waiters.stand_aside(TaskId(7), WORKER, 2);
        assert!(back(&mut waiters, 2).is_empty());
        // Every other turn is a fresh request's.
        assert!(waiters.takes_turn() && !waiters.takes_turn());
        assert!(back(&mut waiters, 2).is_empty());
        assert!(waiters.takes_turn() && !waiters.takes_turn() && !waiters.takes_turn());
        assert_eq!(back(&mut waiters, 2), [7]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn fresh_requests_wait_where_one_more_has_run_into_a_lock() {
        let mut waiters = LockWaiters::new(4);
        waiters.stand_aside(TaskId(7), WORKER, 3);
        assert!(waiters.takes_turn() && !waiters.takes_turn());
        waiters.stand_aside(TaskId(8), WORKER, 3);
        assert!(waiters.takes_turn() && waiters.takes_turn() && !waiters.takes_turn());
        assert_eq!(back(&mut waiters, 3), [7, 8]);
        // Those that had to had their turns, and the next one comes before they are back.
        waiters.stand_aside(TaskId(7), WORKER, 1);
        assert!(waiters.takes_turn());
        waiters.stand_aside(TaskId(8), WORKER, 1);
        assert!(!waiters.takes_turn());
        assert_eq!(back(&mut waiters, 1), [7, 8]);
        // The next time anew.
        waiters.stand_aside(TaskId(7), WORKER, 2);
        assert!(waiters.takes_turn() && !waiters.takes_turn());
    }

    #[test]
    fn none_stands_aside_for_nobody() {
        let mut waiters = LockWaiters::new(4);
        waiters.stand_aside(TaskId(7), WORKER, 3);
        // What was suspended runs elsewhere, or has finished.
        assert_eq!(back(&mut waiters, 0), [7]);
        assert!(!waiters.takes_turn());
    }
}
