//! Priorities within a class, whatever the policy.
//!
//! To the runtime every closure is a *token*, and the policy decides which token is next. With
//! priorities in use, a token runs the most urgent closure of its class in the place of its own:
//!
//! - A closure with a priority joins its class's heap before its token is sent.
//! - While the heap is not empty, a token that comes to run adds its own closure to the heap and
//!   takes the first. A closure that runs at another's token leaves that other one in the heap, for
//!   its own token to find. So there are as many tokens as closures, always.
//! - A token that is turned away takes its own closure along. If that runs already, it takes the
//!   last in the heap.
//!
//! Without priorities a token costs a load more.

use std::cmp::Ordering as Compare;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shinjuku_net::Refusal;
use shinjuku_preempt::without_preemption;

use super::call::{Call, refuse_queued};

/// A class's closures that stand in order of priority.
#[derive(Default)]
pub(crate) struct Urgent {
    /// As many as are in the heap.
    len: AtomicUsize,
    heap: Mutex<BinaryHeap<Entry>>,
}

struct Entry(Arc<dyn Call>);

impl Urgent {
    /// One with a priority joins, before its token is sent.
    pub(crate) fn join(&self, call: Arc<dyn Call>) {
        self.change(|heap| heap.push(Entry(call)));
    }

    /// Which closure a token runs: `own`, or the first. It is started for the caller. `None`: its
    /// own was cancelled, and no other waits.
    pub(crate) fn start(&self, own: Arc<dyn Call>) -> Option<Arc<dyn Call>> {
        if own.order().priority == 0 {
            if self.len.load(Ordering::Acquire) == 0 {
                return own.order().start().then_some(own);
            }
            if own.order().is_queued() {
                self.join(own);
            }
        }
        // Outside of the lock, since the last reference to what was cancelled may be dropped.
        while let Some(Entry(first)) = self.change(BinaryHeap::pop) {
            if first.order().start() {
                return Some(first);
            }
        }
        None
    }

    /// Turns the last away.
    pub(crate) fn refuse_least(&self, cause: Refusal) {
        while let Some(Entry(last)) = self.change(take_last) {
            if refuse_queued(&*last, cause) {
                return;
            }
        }
    }

    /// Not preempted, since the next token needs the lock.
    fn change<Out>(&self, change: impl FnOnce(&mut BinaryHeap<Entry>) -> Out) -> Out {
        without_preemption(|| {
            let mut heap: MutexGuard<'_, _> =
                self.heap.lock().unwrap_or_else(PoisonError::into_inner);
            let out = change(&mut heap);
            self.len.store(heap.len(), Ordering::Release);
            out
        })
    }
}

/// Linear: it takes a queue that is full, and a closure that was started by another's token.
fn take_last(heap: &mut BinaryHeap<Entry>) -> Option<Entry> {
    let mut entries = std::mem::take(heap).into_vec();
    let last = (0..entries.len()).min_by_key(|&at| &entries[at]);
    let last = last.map(|at| entries.swap_remove(at));
    *heap = entries.into();
    last
}

/// The greatest goes first: the higher priority, then the earlier arrival.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Compare {
        let (own, other) = (self.0.order(), other.0.order());
        let by_priority = own.priority.cmp(&other.priority);
        by_priority.then(other.arrived_nanos.cmp(&own.arrived_nanos))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Compare> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Compare::Equal
    }
}

impl Eq for Entry {}
