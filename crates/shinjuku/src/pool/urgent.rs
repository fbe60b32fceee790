//! Priorities within a class, under any policy.
//!
//! To the runtime every closure is a *token*, and the policy decides which token is next. With
//! priorities in use, a token runs the most urgent closure of its class in place of its own:
//!
//! - A closure with a priority joins its class's order before its token is sent.
//! - While the order is not empty, a token that comes to run adds its own closure and takes the
//!   first. A closure that runs by another's token leaves that other closure in the order, for its
//!   own token to find. So there are always as many tokens as closures.
//! - A token that is turned away takes its own closure along. If another token has started that
//!   closure, it takes the last one in the order.
//! - A closure that is cancelled or turned away leaves the order at once.
//!
//! Without priorities all of this costs a token one load.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shinjuku_preempt::without_preemption;

use super::call::{Call, Order, refuse_queued};
use crate::ticket::TicketError;

/// A class's closures that stand in order of priority.
#[derive(Default)]
pub(crate) struct Urgent {
    /// How many stand in the order.
    len: AtomicUsize,
    order: Mutex<BTreeMap<Place, Arc<dyn Call>>>,
}

/// Where a closure stands: the higher priority is first, then the earlier arrival. The address
/// tells closures apart that arrived at the same moment.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: Reverse<u8>,
    arrived_nanos: u64,
    address: usize,
}

impl Place {
    fn of(order: &Order) -> Self {
        Self {
            priority: Reverse(order.priority),
            arrived_nanos: order.arrived_nanos,
            address: ptr::from_ref(order).addr(),
        }
    }
}

impl Urgent {
    /// Adds a closure. One with a priority joins before its token is sent.
    pub(crate) fn join(self: &Arc<Self>, call: Arc<dyn Call>) {
        // In this order: a thread that cancels or refuses it from here on removes it, or it is not
        // added.
        call.order().joins(self);
        self.change(|order| match call.order().is_queued() {
            true => order.insert(Place::of(call.order()), call),
            false => Some(call),
        });
    }

    /// Removes a closure that was cancelled or turned away.
    pub(crate) fn leave(&self, order: &Order) {
        self.change(|all| all.remove(&Place::of(order)));
    }

    /// Starts the closure that a token runs, for the caller to call: the first in the order, or
    /// `own` if the order is empty. `None`: its own was cancelled, and no other waits.
    pub(crate) fn start(self: &Arc<Self>, own: Arc<dyn Call>) -> Option<Arc<dyn Call>> {
        if own.order().priority == 0 {
            if self.len.load(Ordering::Acquire) == 0 {
                return own.order().start().then_some(own);
            }
            if own.order().is_queued() {
                self.join(own);
            }
        }
        while let Some((_, first)) = self.change(BTreeMap::pop_first) {
            if first.order().start() {
                return Some(first);
            }
        }
        None
    }

    /// Turns the last closure in the order away.
    pub(crate) fn refuse_least(&self, why: TicketError) {
        while let Some((_, last)) = self.change(BTreeMap::pop_last) {
            if refuse_queued(&*last, why) {
                return;
            }
        }
    }

    /// Changes the order. Not preempted, since the next token needs the lock. The result is dropped
    /// after the lock is released: it may be the last reference to a user's value.
    fn change<Out>(&self, change: impl FnOnce(&mut BTreeMap<Place, Arc<dyn Call>>) -> Out) -> Out {
        without_preemption(|| {
            let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            let out = change(&mut order);
            self.len.store(order.len(), Ordering::Release);
            out
        })
    }
}

#[cfg(test)]
mod tests {
    use shinjuku_net::Refusal;
    use shinjuku_policy::ClassId;

    use super::*;
    use crate::completion_thread::CompletionThread;
    use crate::pool::call::{Cancel, Closure};
    use crate::ticket::Deliver;

    type Returned = Closure<fn() -> usize, usize>;

    fn closure(priority: u8, arrived_nanos: u64) -> Arc<Returned> {
        let completion = Arc::new(CompletionThread::new(4));
        let order = Order::new(ClassId(0), priority, arrived_nanos);
        Arc::new(Closure::new(order, || 1, completion))
    }

    fn len(urgent: &Urgent) -> usize {
        urgent.len.load(Ordering::Relaxed)
    }

    /// The order keeps no reference to a closure that was cancelled or refused, even if no token
    /// ever runs.
    #[test]
    fn cancelled_and_refused_ones_leave_at_once() {
        let urgent = Arc::<Urgent>::default();
        for round in 0..100 {
            let [cancelled, refused] = [closure(1, round), closure(2, round)];
            urgent.join(cancelled.clone());
            urgent.join(refused.clone());
            cancelled.cancel();
            refused.deliver(Err(Refusal::QueueFull.into()));
            assert_eq!(len(&urgent), 0, "round {round}");
            assert_eq!(Arc::strong_count(&cancelled), 1);
            assert_eq!(Arc::strong_count(&refused), 1);
        }
        // A closure without a priority whose token has started an urgent one, and a closure that is
        // cancelled before it would join.
        let [urgent_one, displaced, too_late] = [closure(1, 0), closure(0, 0), closure(3, 0)];
        urgent.join(urgent_one.clone());
        let started = urgent.start(displaced.clone()).unwrap();
        assert_eq!(started.order().priority, 1);
        assert_eq!(len(&urgent), 1);
        displaced.cancel();
        assert_eq!(len(&urgent), 0);
        too_late.cancel();
        urgent.join(too_late.clone());
        assert_eq!(len(&urgent), 0);
        assert_eq!(Arc::strong_count(&too_late), 1);
    }

    #[test]
    fn the_first_starts_and_the_last_is_turned_away() {
        let urgent = Arc::<Urgent>::default();
        let [low, early, late] = [closure(1, 0), closure(5, 1), closure(5, 2)];
        for call in [&low, &late, &early] {
            urgent.join(call.clone());
        }
        urgent.refuse_least(Refusal::QueueFull.into());
        assert!(!low.order().is_queued());
        let start = || {
            urgent
                .start(low.clone())
                .map(|call| call.order().arrived_nanos)
        };
        assert_eq!([start(), start(), start()], [Some(1), Some(2), None]);
    }

    /// A token that is lost at the end takes along the closure that waits in place of its own.
    #[test]
    fn a_lost_token_answers_the_closure_in_its_place() {
        let urgent = Arc::<Urgent>::default();
        let [started, waits] = [closure(2, 0), closure(1, 0)];
        urgent.join(started.clone());
        urgent.join(waits.clone());
        let other = closure(0, 0);
        assert!(urgent.start(other.clone()).is_some());
        started.deliver(Err(TicketError::RuntimeEnded));
        assert!(!other.order().is_queued() && waits.order().is_queued());
        waits.deliver(Err(TicketError::RuntimeEnded));
        assert_eq!(len(&urgent), 0);
    }
}
