//! How a thread sleeps until others have something for it, without a lock between them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

/// One thread's sleep. Whoever has something publishes it first and wakes then; the sleeper says that it sleeps first
/// and looks then. With a fence between the two on either side, at least one sees the other: no wake-up is lost.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    asleep: AtomicBool,
    /// The first thread that slept here.
    thread: OnceLock<Thread>,
}

impl Sleeper {
    /// Sleeps until woken, `patience` at most, or not at all if there is something already. May return early for no
    /// reason. Always for the same thread: another one sleeps out its patience.
    pub(crate) fn sleep(&self, patience: Duration, is_ready: impl FnOnce() -> bool) {
        self.thread.get_or_init(thread::current);
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !is_ready() {
            thread::park_timeout(patience);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes the thread if it sleeps; what it is to see has been published before. A fence and a load if it does not
    /// sleep. Neither allocates nor locks.
    ///
    /// The flag stays as it is: whoever took it down and was then suspended would keep the others from waking.
    #[inline]
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
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
