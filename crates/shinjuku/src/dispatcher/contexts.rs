//! A dispatcher's idle contexts, and the reserve that several dispatchers share.
//!
//! Each dispatcher keeps a few and leaves the others in the reserve, where any dispatcher finds
//! them. So one dispatcher whose requests hold many contexts for long can use most of all contexts.
//! No other can take the contexts that a dispatcher keeps, so each always has some.
//!
//! Until the end the reserve's lock is only tried. So a thread that Linux stops while it has the
//! lock holds up no other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use shinjuku_net::Glance;

/// The dispatchers together keep one in so many of all contexts.
const KEPT: usize = 4;

/// Idle contexts for any dispatcher.
struct Reserve<Context> {
    contexts: Mutex<Vec<Context>>,
    len: AtomicUsize,
    /// How many dispatchers have not ended. Changed under the lock.
    dispatchers: AtomicUsize,
}

impl<Context> Reserve<Context> {
    /// Changes the reserve. `None` if another dispatcher has the lock at this moment.
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
    /// How many stay here; the others go to the reserve.
    keeps: usize,
    in_use: usize,
    reserve: Arc<Reserve<Context>>,
    has_refilled: bool,
    /// Memory for the end, when the dispatcher must not allocate.
    afterwards: Vec<Context>,
}

impl<Context> Contexts<Context> {
    /// Shares `all` among so many dispatchers. A single one has all of them; several leave most in
    /// the reserve.
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

    /// Whether a context seems to be free, here or in the reserve.
    pub(super) fn is_any(&self) -> bool {
        !self.idle.is_empty() || self.reserve.len.load(Ordering::Relaxed) > 0
    }

    /// Tells other threads whether the reserve has any contexts.
    pub(super) fn glance_at_reserve(&self) -> Glance
    where
        Context: Send + 'static,
    {
        let reserve = Arc::clone(&self.reserve);
        Box::new(move || reserve.len.load(Ordering::Relaxed) > 0)
    }

    /// Whether this dispatcher has refilled an empty reserve since the last call.
    pub(super) fn takes_note_of_refill(&mut self) -> bool {
        std::mem::take(&mut self.has_refilled)
    }

    /// Sees to it that the next [`take`](Self::take) finds a context; returns whether it does.
    pub(super) fn prepare(&mut self) -> bool {
        if self.idle.is_empty() && self.is_any() {
            let one = self.reserve.change(Vec::pop).flatten();
            self.idle.extend(one);
        }
        !self.idle.is_empty()
    }

    /// Takes the context that was used last.
    pub(super) fn take(&mut self) -> Option<Context> {
        let context = self.idle.pop();
        self.in_use += usize::from(context.is_some());
        context
    }

    /// Takes the context that is wanted, if it is among the `last` ones used.
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

    /// A context is idle again.
    pub(super) fn put(&mut self, context: Context) {
        self.in_use -= 1;
        self.idle.push(context);
        self.leave_the_others();
    }

    /// Leaves what is more than this dispatcher keeps to the reserve, unless another dispatcher has
    /// the lock. Each look around tries this again: a failed attempt must not hide contexts until
    /// the next request ends here.
    pub(super) fn leave_the_others(&mut self) {
        if !self.has_surplus() {
            return;
        }
        let Self {
            idle,
            keeps,
            reserve,
            has_refilled,
            ..
        } = self;
        // The contexts that were idle for longest stay, which costs fewer moves.
        reserve.change(|rest| {
            *has_refilled |= rest.is_empty();
            rest.extend(idle.drain(*keeps..));
        });
    }

    /// Whether an attempt to leave the others what is more than this dispatcher keeps has failed.
    pub(super) fn has_surplus(&self) -> bool {
        self.idle.len() > self.keeps
    }

    /// How many contexts are free, here and in the reserve.
    pub(super) fn free(&self) -> usize {
        self.idle.len() + self.reserve.len.load(Ordering::Relaxed)
    }

    /// How many requests of this dispatcher have a context.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// This dispatcher ends, and leaves its idle contexts to the others. The last dispatcher gets
    /// all idle contexts, to hand them back.
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

    /// All contexts, before any was used, to hand them back.
    pub(crate) fn unused(contexts: impl IntoIterator<Item = Self>) -> Vec<Context> {
        let all = contexts.into_iter().flat_map(|mut own| own.give_up());
        all.collect()
    }
}

/// For tests of those who move contexts.
#[cfg(test)]
impl<Context> Contexts<Context> {
    /// Takes all of the reserve, as if these could not be left there.
    pub(crate) fn hoard(&mut self) {
        let idle = &mut self.idle;
        self.reserve.change(|rest| idle.append(rest));
    }

    /// Leaves everything to the reserve, and takes no note of that.
    pub(crate) fn give_away(&mut self) {
        let idle = &mut self.idle;
        self.reserve.change(|rest| rest.append(idle));
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
            shared[0].leave_the_others();
            assert_eq!(shared[0].idle.len(), 6);
        }
        assert!(!shared[0].takes_note_of_refill());
        // No further request of this dispatcher needs to end.
        shared[0].leave_the_others();
        assert_eq!(
            (shared[0].idle.len(), reserve.len.load(Ordering::Relaxed)),
            (2, 4)
        );
        assert!(shared[0].takes_note_of_refill());
    }

    /// At the end, too, a dispatcher's requests may need more contexts than it keeps.
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

    /// A quarter of the contexts is fewer than there are dispatchers.
    #[test]
    fn each_dispatcher_has_one_of_its_own() {
        let shared = Contexts::share((0..5).collect(), 4);
        assert!(shared.iter().all(|own| own.idle.len() == 1));
        assert_eq!(Contexts::unused(shared).len(), 5);
    }
}
