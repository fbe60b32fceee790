//! The sentinel: a thread whose priority is between the one that may run and those that may not.
//!
//! ```text
//!             the one that may run sleeps                 the scheduler lets the next one run
//!    ready ────────────────────────────▶ says so, waits ─────────────────────────────────▶ ready
//!      │                                                                                     ▲
//!      └── all sleep: parks ─────────────── the scheduler wakes it for the next slot ────────┘
//! ```
//!
//! Before the first turn it measures what the scheduler's own sleep costs the thread that runs
//! meanwhile: the sentinel is that thread, and adds up how long it runs.
//!
//! `sched_yield` makes it ready: the call returns once no thread above it is. After start this
//! thread allocates nothing, locks nothing, and calls the kernel to yield, to park and to wake.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Two readings of the clock are further apart only if the sentinel did not run in between.
const ONE_READING: Duration = Duration::from_micros(1);

/// What scheduler and sentinel tell each other.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The scheduler is to end.
    pub(super) stop: AtomicBool,
    /// The one that may run sleeps. The sentinel sets it; the scheduler takes it back when it has
    /// let the next one run.
    pub(super) asleep: AtomicBool,
    /// All sleep, so the sentinel is to park.
    pub(super) idle: AtomicBool,
    /// The sentinel is to end.
    pub(super) over: AtomicBool,
    /// The sentinel is to add up how long it runs.
    pub(super) measures: AtomicBool,
    /// What it has added up, ns.
    pub(super) has_run: AtomicU64,
}

impl Shared {
    /// The sentinel's loop.
    pub(super) fn watch(&self, scheduler: &Thread) {
        while !self.over.load(Ordering::Acquire) {
            if self.measures.load(Ordering::Acquire) {
                self.measure();
            }
            if self.idle.load(Ordering::Acquire) {
                thread::park();
                continue;
            }
            // This returns once no thread above is ready, so once the one that may run sleeps.
            rustix::thread::sched_yield();
            if self.idle.load(Ordering::Acquire) || self.over.load(Ordering::Acquire) {
                continue;
            }
            self.asleep.store(true, Ordering::Release);
            // On the shared core the scheduler runs before this returns.
            scheduler.unpark();
            while self.asleep.load(Ordering::Acquire) && !self.over.load(Ordering::Acquire) {
                hint::spin_loop();
            }
        }
    }

    fn measure(&self) {
        let mut last = Instant::now();
        let mut ran = Duration::ZERO;
        while self.measures.load(Ordering::Acquire) {
            let now = Instant::now();
            let step = now - last;
            if step < ONE_READING {
                ran += step;
            }
            last = now;
            self.has_run.store(ran.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}
