//! A dispatcher's idle contexts, and the reserve that several dispatchers share.
//!
//! Each dispatcher keeps a few and leaves what is over in the reserve, where any other finds it. So
//! requests that hold many contexts without an end, all at one dispatcher, stand still only when
//! most of all contexts are in use. What a dispatcher keeps is always its own, so none is without.
//!
//! Until the end a lock on the reserve is only tried: a thread that Linux has stopped under it
//! holds up no other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use shinjuku_net::Glance;

/// Of all contexts, the dispatchers together keep this part to themselves.
const KEPT: usize = 4;

/// Idle contexts for any dispatcher.
struct Reserve<Context> {
    contexts: Mutex<Vec<Context>>,
    len: AtomicUsize,
    /// How many have not come to their end. Changed under the lock.
    dispatchers: AtomicUsize,
}

impl<Context> Reserve<Context> {
    /// `None`, too, if another dispatcher is at it this moment.
    fn change<Out>(&self, change: impl FnOnce(&mut Vec<Context>) -> Out) -> Option<Out> {
        let mut contexts = match self.contexts.try_lock() {
            Ok(contexts) => contexts,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let out = change(&mut contexts);
        self.len.store(contexts.len(), Ordering::Relaxed);
        Some(out)
    }
}

/// A dispatcher's idle contexts, the one used last on top.
pub(crate) struct Contexts<Context> {
    idle: Vec<Context>,
    /// What comes back beyond that goes to the reserve.
    keeps: usize,
    in_use: usize,
    reserve: Arc<Reserve<Context>>,
    has_refilled: bool,
    /// Taken at start for the end: there may be no allocating then.
    afterwards: Vec<Context>,
}

impl<Context> Contexts<Context> {
    /// Shares `all` among so many dispatchers: one has them all, several leave most in the reserve.
    pub(crate) fn share(mut all: Vec<Context>, dispatchers: usize) -> Vec<Self> {
        let total = all.len();
        let keeps = match dispatchers {
            1 => total,
            several => (total / KEPT / several).max(1),
        };
        let mut idle: Vec<Vec<_>> = Vec::with_capacity(dispatchers);
        for _ in 0..dispatchers {
            let mut own = Vec::with_capacity(total);
            own.extend(all.split_off(all.len().saturating_sub(keeps)));
            idle.push(own);
        }
        let mut rest = Vec::with_capacity(total);
        rest.append(&mut all);
        let reserve = Arc::new(Reserve {
            len: AtomicUsize::new(rest.len()),
            dispatchers: AtomicUsize::new(dispatchers),
            contexts: Mutex::new(rest),
        });
        let contexts = idle.into_iter().map(|idle| Self {
            idle,
            keeps,
            in_use: 0,
            reserve: Arc::clone(&reserve),
            has_refilled: false,
            afterwards: Vec::with_capacity(total),
        });
        contexts.collect()
    }

    /// Whether one seems to be there.
    pub(super) fn is_any(&self) -> bool {
        !self.idle.is_empty() || self.reserve.len.load(Ordering::Relaxed) > 0
    }

    /// Whether the reserve has any, for other threads.
    pub(super) fn glance_at_reserve(&self) -> Glance
    where
        Context: Send + 'static,
    {
        let reserve = Arc::clone(&self.reserve);
        Box::new(move || reserve.len.load(Ordering::Relaxed) > 0)
    }

    /// Whether this dispatcher has put something into an empty reserve since the last time of
    /// asking.
    pub(super) fn takes_note_of_refill(&mut self) -> bool {
        std::mem::take(&mut self.has_refilled)
    }

    /// Sees to it that the next [`take`](Self::take) finds one; tells whether it does.
    pub(super) fn prepare(&mut self) -> bool {
        if self.idle.is_empty() && self.is_any() {
            let one = self.reserve.change(Vec::pop).flatten();
            self.idle.extend(one);
        }
        !self.idle.is_empty()
    }

    /// The one used last.
    pub(super) fn take(&mut self) -> Option<Context> {
        let context = self.idle.pop();
        self.in_use += usize::from(context.is_some());
        context
    }

    /// The one that is wanted, if it is among so many that were used last.
    pub(super) fn take_among(
        &mut self,
        last: usize,
        is_wanted: impl Fn(&Context) -> bool,
    ) -> Option<Context> {
        let mut recent = self.idle.iter().enumerate().rev().take(last);
        let (found, _) = recent.find(|(_, context)| is_wanted(context))?;
        self.in_use += 1;
        Some(self.idle.swap_remove(found))
    }

    /// One is idle again.
    pub(super) fn put(&mut self, context: Context) {
        self.in_use -= 1;
        self.idle.push(context);
        if self.idle.len() > self.keeps {
            let Self {
                idle,
                keeps,
                reserve,
                has_refilled,
                ..
            } = self;
            // Those that were idle for longest stay, which costs fewer moves. More than one is
            // over where another dispatcher was at the reserve.
            reserve.change(|rest| {
                *has_refilled |= rest.is_empty();
                rest.extend(idle.drain(*keeps..));
            });
        }
    }

    /// How many requests of this dispatcher have one.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// This dispatcher comes to its end, and leaves what is idle to the others. The last one gets
    /// all of it, for whoever hands the contexts back.
    pub(super) fn give_up(&mut self) -> Vec<Context> {
        let afterwards = std::mem::take(&mut self.afterwards);
        let mut idle = std::mem::replace(&mut self.idle, afterwards);
        let mut rest = (self.reserve.contexts.lock()).unwrap_or_else(PoisonError::into_inner);
        match self.reserve.dispatchers.fetch_sub(1, Ordering::Relaxed) {
            1 => idle.append(&mut rest),
            _ => rest.append(&mut idle),
        }
        self.reserve.len.store(rest.len(), Ordering::Relaxed);
        idle
    }

    /// All of them before any was used, for whoever hands them back.
    pub(crate) fn unused(contexts: impl IntoIterator<Item = Self>) -> Vec<Context> {
        let all = contexts.into_iter().flat_map(|mut own| own.give_up());
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One dispatcher can use all but what the others keep, and nothing is lost on the way.
    #[test]
    fn one_dispatcher_gets_nearly_all_and_everything_comes_back() {
        let mut shared = Contexts::share((0..256).collect(), 16);
        let mut taken = Vec::new();
        while shared[3].prepare() {
            taken.extend(shared[3].take());
        }
        assert_eq!(taken.len(), 256 - 15 * 4);
        assert_eq!(shared[3].in_use(), taken.len());
        assert!(!shared[3].is_any() && shared[4].is_any());
        for context in taken {
            shared[3].put(context);
        }
        assert_eq!(shared[3].in_use(), 0);
        let mut all = Contexts::unused(shared);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..256));
    }

    #[test]
    fn what_one_dispatcher_puts_back_is_seen_by_the_others() {
        let [mut one, mut other] = <[_; 2]>::try_from(Contexts::share((0..16).collect(), 2))
            .ok()
            .unwrap();
        let mut taken = Vec::new();
        while one.prepare() {
            taken.extend(one.take());
        }
        let seen = other.glance_at_reserve();
        assert!(!seen() && !one.takes_note_of_refill());
        for _ in 0..3 {
            one.put(taken.pop().unwrap());
        }
        assert!(seen() && one.takes_note_of_refill() && !one.takes_note_of_refill());
        while other.prepare() {
            taken.extend(other.take());
        }
        assert_eq!(other.in_use(), 3);
    }

    #[test]
    fn what_is_over_goes_to_the_reserve_as_soon_as_no_one_else_is_at_it() {
        let mut shared = Contexts::share((0..16).collect(), 2);
        let mut taken = Vec::new();
        while shared[0].prepare() {
            taken.extend(shared[0].take());
        }
        let reserve = Arc::clone(&shared[0].reserve);
        {
            let _at_it = reserve.contexts.lock().unwrap();
            for _ in 0..6 {
                shared[0].put(taken.pop().unwrap());
            }
            assert_eq!(shared[0].idle.len(), 6);
        }
        shared[0].put(taken.pop().unwrap());
        assert_eq!(
            (shared[0].idle.len(), reserve.len.load(Ordering::Relaxed)),
            (2, 5)
        );
    }

    /// At the end, too, requests may need more than their dispatcher keeps.
    #[test]
    fn the_first_dispatcher_at_its_end_leaves_its_contexts_to_the_others() {
        let [mut first, mut last] = <[_; 2]>::try_from(Contexts::share((0..16).collect(), 2))
            .ok()
            .unwrap();
        assert!(first.give_up().is_empty());
        let mut taken = Vec::new();
        while last.prepare() {
            taken.extend(last.take());
        }
        assert_eq!(taken.len(), 16);
        for context in taken {
            last.put(context);
        }
        assert_eq!(last.give_up().len(), 16);
    }

    #[test]
    fn a_single_dispatcher_has_all_of_them_at_hand() {
        let [mut own] = <[_; 1]>::try_from(Contexts::share(vec![1, 2, 3], 1))
            .ok()
            .unwrap();
        assert_eq!(own.take_among(2, |&context| context == 1), None);
        assert_eq!(own.take_among(3, |&context| context == 1), Some(1));
        own.put(1);
        assert_eq!((own.take(), own.in_use()), (Some(1), 1));
    }

    /// Fewer than would be right for all.
    #[test]
    fn each_dispatcher_has_one_of_its_own() {
        let shared = Contexts::share((0..5).collect(), 4);
        assert!(shared.iter().all(|own| own.idle.len() == 1));
        assert_eq!(Contexts::unused(shared).len(), 5);
    }
}
