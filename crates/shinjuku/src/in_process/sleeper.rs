//! How a thread sleeps until others have something for it, without a lock between them.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Where one thread sleeps at a time: the thread that has the dispatcher, whichever that is. A
/// thread that brings something first publishes it, and then wakes. The sleeper first sets
/// [`ASLEEP`], and then looks. With a fence between the two on either side, at least one sees the
/// other, so no wake-up is lost.
///
/// The sleeper waits on the word itself, a futex, so no wake-up depends on which thread slept here
/// before.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    /// [`ASLEEP`], and above it the number of wake-ups: a sleeper that is woken before it waits
    /// finds another number.
    word: AtomicU32,
}

const ASLEEP: u32 = 1;
const ONE_WAKE_UP: u32 = 2;

impl Sleeper {
    /// Sleeps until it is woken, for at most `patience`, or not at all if something is there. May
    /// return early.
    pub(crate) fn sleep(&self, patience: Duration, is_ready: impl FnOnce() -> bool) {
        let before = self.word.fetch_or(ASLEEP, Ordering::Relaxed) | ASLEEP;
        fence(Ordering::SeqCst);
        if !is_ready() {
            // With a patience beyond what the kernel counts, the sleep has no timeout.
            let timeout = Timespec::try_from(patience).ok();
            // The result does not matter: the caller looks for work in any case.
            let _ = futex::wait(&self.word, Flags::PRIVATE, before, timeout.as_ref());
        }
        self.word.fetch_and(!ASLEEP, Ordering::Relaxed);
    }

    /// Wakes the thread that sleeps here, if one does. The caller has published before what that
    /// thread is to see. Costs a fence and a load if none sleeps. Neither allocates nor locks.
    ///
    /// The flag is left set: a context that cleared it and was then suspended would keep others
    /// from waking the thread.
    #[inline]
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) & ASLEEP != 0 {
            self.word.fetch_add(ONE_WAKE_UP, Ordering::Relaxed);
            // This fails only if the word is not valid memory.
            let _ = futex::wake(&self.word, Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::in_process::tests::{advancing, bounded};

    #[test]
    fn patience_ends() {
        let start = Instant::now();
        Sleeper::default().sleep(Duration::from_millis(5), || false);
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn does_not_sleep_when_there_is_something() {
        let start = Instant::now();
        Sleeper::default().sleep(Duration::from_secs(8), || true);
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    /// The inline layout's dispatcher goes from thread to thread, and each of them sleeps at the
    /// same place.
    #[test]
    fn the_thread_that_sleeps_now_is_woken() {
        bounded(|| {
            const PATIENCE: Duration = Duration::from_secs(600);
            let sleeper = Sleeper::default();
            for round in 0..100 {
                let (is_there, is_woken) = (AtomicU32::new(0), AtomicU32::new(0));
                thread::scope(|scope| {
                    // A thread of its own each time.
                    scope.spawn(|| {
                        while is_there.load(Ordering::Acquire) == 0 {
                            sleeper.sleep(PATIENCE, || is_there.load(Ordering::Acquire) != 0);
                        }
                        is_woken.store(1, Ordering::Release);
                    });
                    // Most times the thread is asleep by then, and now and then about to be.
                    while round % 4 != 0 && sleeper.word.load(Ordering::Relaxed) & ASLEEP == 0 {
                        thread::yield_now();
                    }
                    is_there.store(1, Ordering::Release);
                    sleeper.wake();
                });
                assert_eq!(is_woken.load(Ordering::Acquire), 1);
            }
        });
    }

    #[test]
    fn endless_patience_is_a_patience() {
        bounded(|| {
            let sleeper = Sleeper::default();
            let is_there = AtomicU32::new(0);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while is_there.load(Ordering::Acquire) == 0 {
                        sleeper.sleep(Duration::MAX, || is_there.load(Ordering::Acquire) != 0);
                    }
                });
                is_there.store(1, Ordering::Release);
                sleeper.wake();
            });
        });
    }

    /// Two threads wake each other in turns; a sleep after a lost wake-up would take the whole
    /// patience.
    #[test]
    fn no_wake_up_is_lost() {
        advancing(|turns| {
            const ROUNDS: u32 = 5_000;
            const PATIENCE: Duration = Duration::from_secs(20);
            let sleepers = Arc::new([Sleeper::default(), Sleeper::default()]);
            let turn = Arc::new(AtomicU32::new(0));
            thread::scope(|scope| {
                for who in 0..2 {
                    let (sleepers, turn) = (sleepers.clone(), turn.clone());
                    scope.spawn(move || {
                        loop {
                            let now = turn.load(Ordering::Acquire);
                            if now >= ROUNDS {
                                return;
                            }
                            let mine = |turn: u32| turn % 2 == who || turn >= ROUNDS;
                            if mine(now) {
                                turn.store(now + 1, Ordering::Release);
                                sleepers[1 - who as usize].wake();
                                turns.fetch_add(1, Ordering::Relaxed);
                            } else {
                                let start = Instant::now();
                                sleepers[who as usize]
                                    .sleep(PATIENCE, || mine(turn.load(Ordering::Acquire)));
                                assert!(start.elapsed() < PATIENCE / 2, "a wake-up was lost");
                            }
                        }
                    });
                }
            });
        });
    }
}
