//! How an idle worker sleeps, and how the dispatcher wakes it.
//!
//! ```text
//!   worker                                     dispatcher
//!   sleeping = true                            puts a message
//!   no message? then it parks                  until the answer, again and again: sleeping? then unparks, once
//!   sleeping = false
//! ```
//!
//! The worker's decision to sleep and a message can cross: the worker sees no message, and the
//! dispatcher sees no sleeper. Two fences would exclude that, and the dispatcher would pay for its
//! own with every message. Instead the dispatcher looks again, once a turn, while the message is
//! unanswered. A store becomes visible in the end, and a parked worker's `sleeping` stays true
//! until the dispatcher wakes it. So a look costs a load, from a line that changes only when the
//! worker sleeps; and nothing depends on the dispatcher's knowledge of the worker, which can be
//! long out of date. One unpark after the message is enough: it ends a park, now or later, after
//! which the worker looks into the mailbox and sees the message.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(loom)]
use loom::thread::Thread;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::thread::Thread;
use std::time::Duration;

/// A worker's sleep, shared by the worker and its dispatcher. On a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Parker {
    sleeping: AtomicBool,
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

impl Parker {
    /// The state of a worker that is awake.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sleeping: AtomicBool::new(false),
        }
    }

    /// Worker: parks the calling thread until it is woken, for `longest` at most, unless
    /// `is_needed` returns true. May return early.
    pub fn sleep(&self, longest: Duration, is_needed: impl FnOnce() -> bool) {
        self.sleeping.store(true, Ordering::Relaxed);
        if !is_needed() {
            park(longest);
        }
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Dispatcher: unparks the worker `thread` if it sleeps; returns whether it did. `false` may be
    /// out of date: after a message, ask again, once a turn, until this returns `true` or the
    /// worker's answer is there.
    #[inline]
    pub fn wake(&self, thread: &Thread) -> bool {
        let sleeps = self.sleeping.load(Ordering::Relaxed);
        if sleeps {
            thread.unpark();
        }
        sleeps
    }
}

#[cfg(not(loom))]
fn park(longest: Duration) {
    std::thread::park_timeout(longest);
}

/// Has no end: a lost wake-up is a deadlock, which loom reports.
#[cfg(loom)]
fn park(_: Duration) {
    loom::thread::park();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_sleeping_thread_is_woken_and_one_that_is_needed_does_not_sleep() {
        const FOR_EVER: Duration = Duration::from_secs(3600);
        let (parker, awake) = (Arc::new(Parker::new()), Arc::new(AtomicBool::new(false)));
        parker.sleep(FOR_EVER, || true);
        assert!(!parker.wake(&std::thread::current()), "it does not sleep");
        let sleeper = {
            let (parker, awake) = (Arc::clone(&parker), Arc::clone(&awake));
            std::thread::spawn(move || {
                while !awake.load(Ordering::Relaxed) {
                    parker.sleep(FOR_EVER, || awake.load(Ordering::Relaxed));
                }
            })
        };
        let start = Instant::now();
        while !parker.sleeping.load(Ordering::Relaxed) {
            assert!(start.elapsed() < Duration::from_secs(20), "it never sleeps");
            std::thread::yield_now();
        }
        awake.store(true, Ordering::Relaxed);
        while !parker.wake(sleeper.thread()) && !sleeper.is_finished() {
            std::thread::yield_now();
        }
        while !sleeper.is_finished() {
            assert!(start.elapsed() < Duration::from_secs(20), "it sleeps on");
            std::thread::yield_now();
        }
        sleeper.join().unwrap();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::slots::{Answers, Slots, Turn};
    use loom::sync::Arc;
    use loom::sync::atomic::fence;
    use loom::thread;

    /// When the dispatcher checks whether the worker sleeps.
    #[derive(Clone, Copy, PartialEq)]
    enum Look {
        /// Once a turn until the answer.
        EachTurn,
        /// After a message to a worker that, as far as the dispatcher knows, is idle; and not
        /// again.
        WhenIdle,
    }

    /// A worker that sleeps whenever it finds no message gets two messages, the second one before
    /// the dispatcher has taken the answer to the first; the worker serves both.
    fn serve_two(look: Look) {
        let (there, back) = (Arc::new(Slots::new()), Arc::new(Answers::new()));
        let parker = Arc::new(Parker::new());
        let worker = {
            let (there, back, parker) =
                (Arc::clone(&there), Arc::clone(&back), Arc::clone(&parker));
            thread::spawn(move || {
                let (mut take, mut put) = (Turn::default(), Turn::default());
                let mut served = 0;
                while served < 2 {
                    if let Some((word, _)) = there.take(&mut take) {
                        back.put(&mut put, word);
                        served += 1;
                    } else {
                        parker.sleep(Duration::MAX, || {
                            if look == Look::WhenIdle {
                                fence(Ordering::SeqCst);
                            }
                            there.peek(take) != 0
                        });
                    }
                }
            })
        };
        let (mut put, mut take) = (Turn::default(), Turn::default());
        there.put(&mut put, 1, 0);
        if look == Look::WhenIdle {
            fence(Ordering::SeqCst);
            parker.wake(worker.thread());
        }
        // The worker may have answered, and may sleep by now.
        there.put(&mut put, 2, 0);
        let (mut answers, mut is_woken) = (0, false);
        while answers < 2 {
            if back.take(&mut take).is_some() {
                answers += 1;
            } else if look == Look::EachTurn && !is_woken {
                is_woken = parker.wake(worker.thread());
            }
            thread::yield_now();
        }
        worker.join().unwrap();
    }

    #[test]
    fn loom_a_worker_does_not_sleep_over_a_message() {
        loom::model(|| serve_two(Look::EachTurn));
    }

    /// The check above can fail: a dispatcher that looks only when it believes the worker to be
    /// idle loses a wake-up, despite all its fences.
    #[test]
    // The dispatcher's turns have no end: the answer that it waits for never comes.
    #[should_panic(expected = "maximum number of branches")]
    fn loom_a_look_when_idle_alone_loses_a_wake_up() {
        loom::model(|| serve_two(Look::WhenIdle));
    }
}
