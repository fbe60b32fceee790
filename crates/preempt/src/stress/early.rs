//! Fault injection: a context is handed on while it still runs, as a scheduler does that publishes
//! a preemption from the interrupt handler, before the stack is saved. Only the feature
//! `fault-injection` compiles this file.
//!
//! ```text
//!   publish_early: OFFERED ──dispatcher: take──▶ queue ──▶ another worker enters the stack, still in use
//!   the true answer of the first worker ──was_taken──▶ dropped, since the context was handed on already
//! ```

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::Config;
use crate::Suspended;
use crate::clock::Cycles;
use crate::context::{Handle, Head};

/// How long the context stays in place: a millisecond or two, as if the kernel had descheduled its
/// worker.
const DELAY: Cycles = Cycles(4_000_000);

/// One context at a time; otherwise all workers would wait here for each other.
static BUSY: AtomicBool = AtomicBool::new(false);
static OFFERED: AtomicPtr<Head> = AtomicPtr::new(std::ptr::null_mut());
static TAKEN: [AtomicU32; Config::MAX_CONTEXTS] =
    [const { AtomicU32::new(0) }; Config::MAX_CONTEXTS];

/// Called on the context's way out, guard up.
#[cold]
pub(crate) fn publish_early(head: &Head) {
    if BUSY.swap(true, Ordering::AcqRel) {
        return;
    }
    TAKEN[usize::from(head.id.get().0)].fetch_add(1, Ordering::AcqRel);
    OFFERED.store(std::ptr::from_ref(head).cast_mut(), Ordering::Release);
    let start = Cycles::now();
    while Cycles::now().since(start) < DELAY {
        std::hint::spin_loop();
    }
    BUSY.store(false, Ordering::Release);
}

/// Dispatcher: a context that was handed on too early, if there is one.
pub(super) fn take<T, R>() -> Option<Suspended<T, R>> {
    let head = OFFERED.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: heads are never freed, and the pool's types are the scheduler's. The second handle is
    // the injected fault: what follows is undefined, in a process that is meant to fail.
    (!head.is_null()).then(|| Suspended(unsafe { Handle::new(&*head) }))
}

/// Dispatcher: whether this true handle comes after an early one, and must be dropped.
pub(super) fn was_taken<T, R>(suspended: &Suspended<T, R>) -> bool {
    let taken = &TAKEN[usize::from(suspended.id().0)];
    let late = taken.load(Ordering::Acquire) > 0;
    if late {
        taken.fetch_sub(1, Ordering::AcqRel);
    }
    late
}
