//! A worker's loop, and what dispatcher, switcher and workers share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Names no worker, in [`Control::current`].
pub(super) const NO_WORKER: usize = usize::MAX;

/// Flags and counts of all threads.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) dispatcher_ends: AtomicBool,
    pub(super) others_end: AtomicBool,
    /// The worker that the dispatcher lets run.
    pub(super) current: AtomicUsize,
    pub(super) panics: AtomicU64,
    pub(super) states: Box<[State]>,
}

/// What one worker and the threads above it tell each other.
#[derive(Debug, Default)]
pub(super) struct State {
    /// It has a request.
    pub(super) busy: AtomicBool,
    /// It has lost its priority since the dispatcher gave it.
    pub(super) preempted: AtomicBool,
}

impl Control {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            dispatcher_ends: AtomicBool::new(false),
            others_end: AtomicBool::new(false),
            current: AtomicUsize::new(NO_WORKER),
            panics: AtomicU64::new(0),
            states: (0..workers).map(|_| State::default()).collect(),
        }
    }
}

/// The requests that workers have been given and have not begun. A lock is held for a move, by the
/// dispatcher while the worker is parked, and by the worker while the dispatcher does not run.
pub(super) struct Slots<R>(Box<[Mutex<Option<R>>]>);

impl<R> Slots<R> {
    pub(super) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::default()).collect())
    }

    pub(super) fn slot(&self, worker: usize) -> MutexGuard<'_, Option<R>> {
        self.0[worker]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's loop. It parks when it has no request.
    pub(super) fn work(&self, worker: usize, control: &Control, handler: &impl Fn(R)) {
        loop {
            let request = self.slot(worker).take();
            match request {
                Some(request) => {
                    if catch_unwind(AssertUnwindSafe(|| handler(request))).is_err() {
                        control.panics.fetch_add(1, Ordering::Relaxed);
                    }
                    control.states[worker].busy.store(false, Ordering::Release);
                }
                None if control.others_end.load(Ordering::Acquire) => return,
                None => thread::park(),
            }
        }
    }
}
