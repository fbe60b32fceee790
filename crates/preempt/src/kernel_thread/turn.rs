//! The word on which a context's thread waits for its turn, and the one on which a worker's own
//! thread waits for the worker's part.
//!
//! A futex each. Nothing here allocates or locks, and what a request's thread calls of it may run
//! in a signal's handler: atomics and one system call.

use std::sync::atomic::{AtomicU32, Ordering};

/// Its thread waits, or is about to.
const RESTS: u32 = 0;
/// Its thread runs the job, or is about to.
const RUNS: u32 = 1;
/// Its handle is out, and its thread has not gone to rest: it plays a worker's part.
const SERVES: u32 = 2;

/// Whose turn it is: the context's thread's, or that of the thread that holds the context's handle.
///
/// ```text
///          give (by the holder of the handle)              hand_out (by the thread)
///   RESTS ────────────────────────────────────▶ RUNS ───────────────────────────────▶ SERVES
///     ▲                                          ▲  │                                  │  │
///     │ rest, before the handle is out           └──┼──── give, or own_turn ───────────┘  │
///     ├─────────────────────────────────────────────┘                                     │
///     └──────────────────────────── wait, if no turn was given meanwhile ─────────────────┘
/// ```
#[derive(Debug)]
pub(crate) struct Turn(AtomicU32);

impl Turn {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(RESTS))
    }

    /// A new thread waits for its first turn.
    pub(crate) fn reset(&self) {
        self.0.store(RESTS, Ordering::Relaxed);
    }

    /// The holder of the context's handle gives the turn to its thread, and the context with it.
    pub(crate) fn give(&self) {
        // Release: the thread finds what was written to the context before.
        if self.0.swap(RUNS, Ordering::AcqRel) == RESTS {
            wake(&raw const self.0);
        }
    }

    /// Whether the context is its thread's. Asked by that thread.
    pub(crate) fn is_given(&self) -> bool {
        self.0.load(Ordering::Acquire) == RUNS
    }

    /// The thread gives the context up, and only waits from now on. What publishes the context
    /// comes after, and orders this.
    pub(crate) fn rest(&self) {
        self.0.store(RESTS, Ordering::Relaxed);
    }

    /// The thread gives the context up and runs on for a worker. What publishes the context comes
    /// after, and orders this.
    pub(crate) fn hand_out(&self) {
        self.0.store(SERVES, Ordering::Relaxed);
    }

    /// The thread, playing a worker's part, got the handle itself.
    pub(crate) fn own_turn(&self) {
        self.0.store(RUNS, Ordering::Relaxed);
    }

    /// The thread waits for its turn.
    pub(crate) fn wait(&self) {
        // If this fails, there is a turn already, or the thread has announced its rest.
        let _ = self
            .0
            .compare_exchange(SERVES, RESTS, Ordering::AcqRel, Ordering::Acquire);
        while !self.is_given() {
            wait(&self.0, RESTS);
        }
    }
}

/// Where a worker's own thread waits until the worker's part is its own again.
#[derive(Debug, Default)]
pub(crate) struct Home(AtomicU32);

const AWAY: u32 = 0;
const BACK: u32 = 1;

impl Home {
    /// The worker's thread is about to give the part away.
    pub(crate) fn leave(&self) {
        self.0.store(AWAY, Ordering::Relaxed);
    }

    /// The worker's thread waits for the part.
    pub(crate) fn wait(&self) {
        while self.0.load(Ordering::Acquire) == AWAY {
            wait(&self.0, AWAY);
        }
    }

    /// Gives the part back. The worker may be gone as soon as its thread sees that.
    ///
    /// # Safety
    /// `home` must be valid, and the caller must have the part of its worker.
    pub(crate) unsafe fn give_back(home: *const Self) {
        let word = home.cast::<AtomicU32>();
        // SAFETY: the worker's thread waits, or will look, before it frees the word.
        unsafe { (*word).store(BACK, Ordering::Release) };
        // By now there may be no such word: then this wakes no thread, or one that looks again.
        wake(word);
    }
}

/// Sleeps while the word is `value`. May return early.
fn wait(word: &AtomicU32, value: u32) {
    // SAFETY: the kernel only reads the word, which outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(word),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

/// Wakes a thread that sleeps on the word. To the kernel the address is only a name.
fn wake(word: *const AtomicU32) {
    // SAFETY: a private futex's memory is not touched by waking.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        )
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    /// Two threads pass the one turn to and fro, and each finds the other's writes.
    #[test]
    fn turns_are_neither_lost_nor_doubled() {
        const ROUNDS: u64 = 20_000;
        const ENOUGH: Duration = Duration::from_secs(10);
        struct Shared {
            turn: Turn,
            home: Home,
            is_over: AtomicBool,
            count: std::cell::UnsafeCell<u64>,
        }
        // SAFETY: only the thread that has the turn touches the count.
        unsafe impl Sync for Shared {}
        let shared = Arc::new(Shared {
            turn: Turn::new(),
            home: Home::default(),
            is_over: AtomicBool::new(false),
            count: std::cell::UnsafeCell::new(0),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for round in 0u64.. {
                theirs.turn.wait();
                if theirs.is_over.load(Ordering::Relaxed) {
                    return;
                }
                // SAFETY: it is this thread's turn.
                unsafe { *theirs.count.get() += 1 };
                match round % 2 {
                    0 => theirs.turn.rest(),
                    _ => theirs.turn.hand_out(),
                }
                // SAFETY: it lives as long as this thread's share.
                unsafe { Home::give_back(&raw const theirs.home) };
            }
        });
        let start = Instant::now();
        // On a busy machine a round can take milliseconds.
        let rounds = (1..=ROUNDS).take_while(|_| start.elapsed() < ENOUGH);
        for round in rounds {
            shared.home.leave();
            shared.turn.give();
            shared.home.wait();
            // SAFETY: the other thread has given it back.
            assert_eq!(unsafe { *shared.count.get() }, round);
        }
        shared.is_over.store(true, Ordering::Relaxed);
        shared.turn.give();
        thread.join().unwrap();
    }

    #[test]
    fn a_thread_that_serves_finds_a_turn_that_was_given_meanwhile() {
        let turn = Turn::new();
        turn.hand_out();
        assert!(!turn.is_given());
        turn.give();
        assert!(turn.is_given());
        // Returns at once.
        turn.wait();
        turn.hand_out();
        turn.own_turn();
        turn.wait();
    }
}
