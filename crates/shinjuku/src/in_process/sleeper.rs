//! How a thread sleeps until others have something for it, without a lock between them.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// One thread's sleep at a time: the thread that has the dispatcher, whichever it is now. Whoever
/// has something publishes it first and wakes then; the sleeper says that it sleeps first and looks
/// then. With a fence between the two on either side, at least one sees the other: no wake-up is
/// lost.
///
/// The sleeper waits for the word itself, a futex, so no wake-up depends on which thread slept here
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
    /// Sleeps until woken, `patience` at most, or not at all if there is something already. May
    /// return early for no reason.
    pub(crate) fn sleep(&self, patience: Duration, is_ready: impl FnOnce() -> bool) {
        let before = self.word.fetch_or(ASLEEP, Ordering::Relaxed) | ASLEEP;
        fence(Ordering::SeqCst);
        if !is_ready() {
            // A patience beyond what the kernel counts has no end.
            let timeout = Timespec::try_from(patience).ok();
            // Woken, out of patience, interrupted or called meanwhile: the caller looks around in
            // any case.
            let _ = futex::wait(&self.word, Flags::PRIVATE, before, timeout.as_ref());
        }
        self.word.fetch_and(!ASLEEP, Ordering::Relaxed);
    }

    /// Wakes the thread that sleeps here, if one does; what it is to see has been published before.
    /// A fence and a load if none sleeps. Neither allocates nor locks.
    ///
    /// The flag stays as it is: whoever took it down and was then suspended would keep the others
    /// from waking.
    #[inline]
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) & ASLEEP != 0 {
            self.word.fetch_add(ONE_WAKE_UP, Ordering::Relaxed);
            // The word is valid memory, the one thing that could fail here.
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
    use crate::in_process::tests::bounded;

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
    fn whoever_sleeps_now_is_woken() {
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
                    // Most times it is asleep by then, now and then just about to be.
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

    /// Two threads wake each other in turns; each lost wake-up would cost the whole patience.
    #[test]
    fn no_wake_up_is_lost() {
        bounded(|| {
            const ROUNDS: u32 = 5_000;
            const PATIENCE: Duration = Duration::from_secs(20);
            let start = Instant::now();
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
                            } else {
                                sleepers[who as usize]
                                    .sleep(PATIENCE, || mine(turn.load(Ordering::Acquire)));
                            }
                        }
                    });
                }
            });
            assert!(start.elapsed() < PATIENCE, "a wake-up was lost");
        });
    }
}
