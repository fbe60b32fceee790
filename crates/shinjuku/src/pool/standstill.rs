//! Telling in words that a pool stands still: its contexts are taken by closures that wait for
//! closures of the same pool, and no context is left for those.
//!
//! ```text
//!   the completion thread, each second ──▶ do all that have started wait, and has none begun or
//!                                          ceased to since the last look? then it is told, once
//! ```
//!
//! No other thread of the runtime is in a position to notice: every worker is blocked, as far as
//! the dispatcher knows for a while. Who waits does not look itself: with a time limit its wait
//! would not seem one for another request (`dispatcher/lock_waiters.rs`).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tracing::Dispatch;

use crate::started::Started;

/// How often somebody looks.
const LOOKS_AFTER: Duration = Duration::from_secs(1);

/// What a pool's waiting closures tell of themselves.
#[derive(Default)]
pub(crate) struct Standstill {
    waiting: AtomicUsize,
    /// How often one has begun or ceased to wait.
    changes: AtomicU64,
    pool: OnceLock<(Arc<Started>, Dispatch)>,
}

impl Standstill {
    /// The pool's notes of what has started. It is told the calling thread's subscriber.
    pub(crate) fn watch(&self, started: Arc<Started>) {
        let subscriber = tracing::dispatcher::get_default(Dispatch::clone);
        let _ = self.pool.set((started, subscriber));
    }

    /// A closure of the pool begins to wait for another one, for as long as that takes.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// Tells that `waiting` closures wait for others, with nothing left that could go on.
    fn tell(waiting: usize, contexts: usize, subscriber: &Dispatch) {
        tracing::dispatcher::with_default(subscriber, || {
            tracing::error!(
                target: "shinjuku",
                waiting,
                contexts,
                "the pool stands still: all {waiting} closures that have started wait for \
                 closures of the same pool, and no context is left for those; raise \
                 `contexts` ({contexts}), or wait outside of the pool"
            );
        });
    }
}

/// A closure that waits, while this lives.
pub(crate) struct Waiting<'a>(&'a Standstill);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.changes.fetch_add(1, Ordering::SeqCst);
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Who looks, and what it saw last.
pub(crate) struct Lookout {
    looked: Instant,
    changes: u64,
    has_told: bool,
}

impl Lookout {
    pub(crate) fn new() -> Self {
        Self {
            looked: Instant::now(),
            changes: 0,
            has_told: false,
        }
    }

    /// Looks, if it is time to. Tells for how long the caller may sleep before the next look.
    pub(crate) fn look(&mut self, standstill: &Standstill) -> Duration {
        let Some((started, subscriber)) = standstill.pool.get() else {
            return Duration::MAX;
        };
        if self.looked.elapsed() < LOOKS_AFTER {
            return LOOKS_AFTER;
        }
        let waiting = standstill.waiting.load(Ordering::SeqCst);
        let changes = standstill.changes.load(Ordering::SeqCst);
        let before = std::mem::replace(&mut self.changes, changes);
        let contexts = started.contexts();
        // Loops keep some contexts for their own parts. With many left there is another reason.
        let stands_still =
            changes == before && 2 * waiting > contexts && waiting == started.all().count();
        if stands_still && !std::mem::replace(&mut self.has_told, true) {
            Standstill::tell(waiting, contexts, subscriber);
        }
        self.looked = Instant::now();
        LOOKS_AFTER
    }
}
