//! Requests that were stopped while they waited for a lock.
//!
//! A preempted request may hold a lock. A request that wants the lock sleeps in the kernel with its
//! worker until a signal stops it, and each fresh request may be the next to want it: they stop one
//! after the other, while the holder waits its turn behind them.
//!
//! ```text
//!   stopped as it waits for a lock ──▶ aside ──it would not sleep any more──────────▶ waits again
//!                                        └───each suspended request has had a turn─────────▲
//! ```
//!
//! So a request that waits stands aside, and the suspended requests have their turns first, since
//! one of them may have the lock. Before each hand-out the kernel is asked whether one of those
//! that stand aside would sleep again ([`LockWait::would_sleep`]): one each time, in turn. A
//! request that would not comes back. So the others need not all run into the lock again.
//!
//! The request that was suspended last has its turn first. Where most requests want the lock, that
//! request has the lock: each that finished later had found the lock free.
//!
//! A round in which each suspended request has had its turn in vain tells that the holder is not
//! among them, or that the waiting requests wait for something else. Then one of these comes back,
//! to try. The next rounds give every other turn to fresh requests, which may have to do what
//! others wait for, until a wait has ended again.

use std::collections::VecDeque;

use shinjuku_policy::{TaskId, WorkerId};
use shinjuku_preempt::LockWait;

/// A request that stands aside.
#[derive(Debug)]
pub(super) struct Waiter {
    pub task: TaskId,
    /// The one that it ran on.
    pub worker: WorkerId,
    pub wait: LockWait,
}

/// So many of those suspended last are remembered.
const RECENT: usize = 64;

/// A request, and how often it has been suspended.
type Suspension = (TaskId, u32);

/// Requests that stand aside, and the turns that others have before them.
#[derive(Debug)]
pub(super) struct LockWaiters {
    /// The one that is asked next is in front.
    aside: VecDeque<Waiter>,
    /// How many suspended requests are to have a turn in this round.
    turns: usize,
    /// The last round ended no wait.
    is_in_vain: bool,
    /// The last turn was a suspended request's.
    had_turn: bool,
    /// How many have their turn and are not back.
    out: usize,
    /// The request that has the next turn is at the end. Some have run again since.
    recent: VecDeque<Suspension>,
}

impl LockWaiters {
    /// Takes the memory for so many requests.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            aside: VecDeque::with_capacity(capacity),
            turns: 0,
            is_in_vain: false,
            had_turn: false,
            out: 0,
            recent: VecDeque::with_capacity(RECENT),
        }
    }

    /// A request is suspended.
    pub(super) fn note_suspended(&mut self, suspension: Suspension) {
        if !self.aside.is_empty() {
            // Another turn only after all others.
            if self.recent.len() < RECENT {
                self.recent.push_front(suspension);
            }
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(suspension);
    }

    /// The request that is to have a turn, of those that are `suspended` still. `None`: any.
    pub(super) fn next_turn(&mut self, suspended: impl Fn(Suspension) -> bool) -> Option<TaskId> {
        while let Some(suspension) = self.recent.pop_back() {
            if suspended(suspension) {
                return Some(suspension.0);
            }
        }
        None
    }

    pub(super) fn len(&self) -> usize {
        self.aside.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.aside.is_empty()
    }

    /// A request that waits for a lock stands aside. `suspended` others have a turn, or those that
    /// are left of the round that others stand aside for.
    pub(super) fn stand_aside(&mut self, waiter: Waiter, suspended: usize) {
        if self.aside.is_empty() {
            self.turns = suspended;
        }
        self.aside.push_back(waiter);
    }

    /// One request that need not stand aside any more, with so many suspended.
    pub(super) fn come_back(&mut self, suspended: usize) -> Option<Waiter> {
        let next = self.aside.pop_front()?;
        if !next.wait.would_sleep() {
            self.is_in_vain = false;
        } else if self.out > 0 || suspended > 0 && self.turns > 0 {
            self.aside.push_back(next);
            return None;
        } else {
            self.is_in_vain = true;
            // The one that tries is among them.
            self.turns = suspended + 1;
        }
        if self.aside.is_empty() {
            (self.turns, self.had_turn) = (0, false);
        }
        Some(next)
    }

    /// Whether the next request to be handed out is to be one of the suspended; that is a turn.
    pub(super) fn takes_turn(&mut self) -> bool {
        let is_a_fresh_ones = self.is_in_vain && self.had_turn;
        self.had_turn = self.turns > 0 && self.out == 0 && !is_a_fresh_ones;
        self.turns -= usize::from(self.had_turn);
        self.had_turn
    }

    /// Whether suspended requests have their turns.
    pub(super) fn are_in_a_round(&self) -> bool {
        self.turns > 0 || self.out > 0
    }

    /// The request whose turn it is was handed out.
    pub(super) fn turn_began(&mut self) {
        self.out += 1;
    }

    /// A request is back that had a turn. Whether that ended a wait.
    pub(super) fn turn_is_over(&mut self) -> bool {
        self.out -= 1;
        // The one that was asked last, and would have slept.
        let asked = self.aside.back();
        asked.is_some_and(|waiter| !waiter.wait.would_sleep())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A lock's word, which is 2 while the lock is taken and waited for.
    struct Lock(AtomicU32);

    impl Lock {
        fn taken() -> Self {
            Self(AtomicU32::new(2))
        }

        fn waiter(&self, task: u32) -> Waiter {
            Waiter {
                task: TaskId(task),
                worker: WorkerId(0),
                wait: LockWait::at(&self.0, 2),
            }
        }

        fn release(&self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Who comes back before the next hand-out, and whether that is a turn.
    fn next(waiters: &mut LockWaiters, suspended: usize) -> (Option<u32>, bool) {
        let back = waiters.come_back(suspended);
        (back.map(|waiter| waiter.task.0), waiters.takes_turn())
    }

    #[test]
    fn the_suspended_go_first_until_the_lock_is_free() {
        let (mut waiters, lock) = (LockWaiters::new(4), Lock::taken());
        assert_eq!(next(&mut waiters, 3), (None, false));
        waiters.stand_aside(lock.waiter(7), 3);
        assert_eq!(next(&mut waiters, 3), (None, true));
        waiters.stand_aside(lock.waiter(8), 2);
        assert_eq!(next(&mut waiters, 3), (None, true));
        waiters.turn_began();
        waiters.turn_began();
        assert!(!waiters.turn_is_over());
        lock.release();
        assert!(waiters.turn_is_over());
        // One at a time, and no more turns than are left.
        assert_eq!(next(&mut waiters, 3), (Some(8), true));
        assert_eq!(next(&mut waiters, 3), (Some(7), false));
        assert!(waiters.is_empty());
    }

    #[test]
    fn after_a_round_in_vain_one_tries_and_fresh_requests_have_turns() {
        let (mut waiters, lock) = (LockWaiters::new(4), Lock::taken());
        let other = Lock::taken();
        waiters.stand_aside(lock.waiter(7), 2);
        waiters.stand_aside(other.waiter(8), 2);
        assert_eq!(next(&mut waiters, 2), (None, true));
        assert_eq!(next(&mut waiters, 2), (None, true));
        assert_eq!(next(&mut waiters, 2), (Some(7), false));
        assert_eq!(next(&mut waiters, 3), (None, true));
        assert_eq!(next(&mut waiters, 2), (None, false));
        other.release();
        assert_eq!(next(&mut waiters, 2), (Some(8), false));
    }

    #[test]
    fn none_stands_aside_for_nobody() {
        let (mut waiters, lock) = (LockWaiters::new(4), Lock::taken());
        waiters.stand_aside(lock.waiter(7), 1);
        assert_eq!(next(&mut waiters, 1), (None, true));
        waiters.turn_began();
        // The one that may have the lock runs. Then it blocks, or has finished, without.
        assert_eq!(next(&mut waiters, 0), (None, false));
        assert!(!waiters.turn_is_over());
        assert_eq!(next(&mut waiters, 0), (Some(7), false));
    }
}
