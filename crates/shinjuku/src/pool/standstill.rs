//! Telling in words that a pool stands still: its contexts are taken by closures that wait for
//! closures of the same pool, and no context is left for those.
//!
//! ```text
//!   a closure begins to wait ──a second without its result──▶ do all that have started wait,
//!                                                             and has none begun or ceased to?
//!                                                             then it is told, once
//! ```
//!
//! Nothing of the runtime is in a position to notice: every worker is blocked, as far as it knows
//! for a while. So who waits looks, and it is the last one to wait that finds it so.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::Dispatch;

use crate::started::Started;

/// A waiting closure looks after this.
pub(crate) const LOOKS_AFTER: Duration = Duration::from_secs(1);

/// What a pool's waiting closures know of each other.
#[derive(Default)]
pub(crate) struct Standstill {
    waiting: AtomicUsize,
    /// How often one has begun or ceased to wait.
    changes: AtomicU64,
    is_told: AtomicBool,
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
        Waiting {
            begun: self.changes.fetch_add(1, Ordering::SeqCst) + 1,
            standstill: self,
        }
    }
}

/// A closure that waits, while this lives.
pub(crate) struct Waiting<'a> {
    standstill: &'a Standstill,
    /// The changes, its own included.
    begun: u64,
}

impl Waiting<'_> {
    /// Its result has not come for [`LOOKS_AFTER`].
    pub(crate) fn look(&self) {
        let Standstill {
            waiting,
            changes,
            is_told,
            pool,
        } = self.standstill;
        let Some((started, subscriber)) = pool.get() else {
            return;
        };
        let waiting = waiting.load(Ordering::SeqCst);
        let is_last = changes.load(Ordering::SeqCst) == self.begun;
        let contexts = started.contexts();
        // Loops keep some contexts for their own parts. With many left there is another reason.
        let stands_still = is_last && waiting == started.all().count() && 2 * waiting > contexts;
        if stands_still && !is_told.swap(true, Ordering::Relaxed) {
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
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.standstill.changes.fetch_add(1, Ordering::SeqCst);
        self.standstill.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
