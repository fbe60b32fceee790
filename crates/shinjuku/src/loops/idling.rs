//! How loops idle: for how long they spin, and how long they have been idle in all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use shinjuku_preempt::Cycles;

/// For how long each loop has been idle, for the dispatchers.
#[derive(Debug)]
pub(crate) struct IdleTime(Box<[CachePadded<LoopIdle>]>);

#[derive(Debug, Default)]
struct LoopIdle {
    before: AtomicU64,
    /// Since when the loop is idle; 0: it is not.
    since: AtomicU64,
}

impl IdleTime {
    pub(crate) fn new(loops: usize) -> Arc<Self> {
        Arc::new(Self((0..loops).map(|_| CachePadded::default()).collect()))
    }

    /// The idle time of all loops together. That of a loop that begins or stops idling meanwhile
    /// may be off.
    pub(crate) fn sum(&self) -> Cycles {
        let now = Cycles::now().0;
        let of_one = |idle: &CachePadded<LoopIdle>| {
            let since = idle.since.load(Ordering::Relaxed);
            let lasts = if since == 0 {
                0
            } else {
                now.saturating_sub(since)
            };
            idle.before.load(Ordering::Relaxed) + lasts
        };
        Cycles(self.0.iter().map(of_one).sum())
    }

    pub(crate) fn loops(&self) -> usize {
        self.0.len()
    }

    pub(super) fn begin(&self, at: usize, now: Cycles) {
        self.0[at].since.store(now.0, Ordering::Relaxed);
    }

    /// Counts time of thread `at` as idle.
    pub(crate) fn add(&self, at: usize, time: Cycles) {
        let idle = &self.0[at % self.0.len()];
        idle.before.fetch_add(time.0, Ordering::Relaxed);
    }

    pub(super) fn end(&self, at: usize, now: Cycles) {
        let idle = &self.0[at];
        let since = idle.since.swap(0, Ordering::Relaxed);
        if since > 0 {
            idle.before
                .fetch_add(now.0.saturating_sub(since), Ordering::Relaxed);
        }
    }
}

/// How a loop idles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idling {
    /// How long it spins at most before it parks; `None`: it never parks.
    pub(crate) backoff: Option<Cycles>,
    /// Whether it spins for less where spinning is in vain, since other threads have use for the
    /// core.
    pub(crate) learns: bool,
    /// Whether other threads of the runtime may need its core.
    pub(crate) shares_core: bool,
}

/// How long a loop spins before it parks.
///
/// Beside other threads a loop that spins in vain takes processor time from them. So if no work
/// came within `longest`, the loop spins for half as long the next time. If work came, it spins for
/// twice as long, even if it had parked by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spin {
    pub(super) now: Cycles,
    longest: Cycles,
    learns: bool,
}

impl Spin {
    /// The shortest spin is the longest divided by this.
    const SHORTEST: u64 = 16;

    pub(super) fn new(longest: Cycles, learns: bool) -> Self {
        Self {
            now: longest,
            longest,
            learns,
        }
    }

    /// The loop has had nothing to do for so long.
    pub(super) fn learn(&mut self, idle: Cycles) {
        if !self.learns {
            return;
        }
        self.now = Cycles(if idle.0 <= self.longest.0 {
            self.longest.0.min(2 * self.now.0)
        } else {
            (self.longest.0 / Self::SHORTEST).max(self.now.0 / 2)
        });
    }
}
