//! Where a dispatcher lies while no thread is in a turn of it.
//!
//! ```text
//!   whoever has it      state := what waits ─▶ cell := dispatcher ─╮ from here on it is the next one's
//!   whoever takes it    state != 0 ─▶ cell.take() ── empty: no ──▶ state := 0
//! ```
//!
//! Only the thread that has the dispatcher writes the state, and the cell orders one such thread
//! before the next. So the writes have one order, the last one is of whoever left the dispatcher
//! last, and what lies there with requests waiting is seen to. A state written after the dispatcher
//! was left could come after those of threads that had it since, and hide their requests.
//!
//! The state alone is a hint: it is there for a moment before the dispatcher is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_utils::atomic::AtomicCell;
use shinjuku_net::{Glance, Transport};

use crate::dispatcher::Dispatcher;

/// It lies there; above these bits is how many requests wait.
const LIES: usize = 1;
/// It has no room for more requests.
const FULL: usize = 2;
const ONE: usize = 4;

/// What threads take from each other, and a word on its state.
struct Place<Content> {
    content: AtomicCell<Option<Box<Content>>>,
    /// 0: a thread has it, or it is gone. Written only by the thread that has it.
    state: AtomicUsize,
}

impl<Content> Place<Content> {
    /// Nothing lies there yet.
    fn new() -> Self {
        Self {
            content: AtomicCell::new(None),
            state: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> Option<Box<Content>> {
        if self.state.load(Ordering::Acquire) == 0 {
            return None;
        }
        let content = self.content.swap(None)?;
        self.state.store(0, Ordering::Relaxed);
        Some(content)
    }

    /// Leaves what the caller has; `state` is not 0.
    fn leave(&self, content: Box<Content>, state: usize) {
        self.state.store(state, Ordering::Release);
        let was = self.content.swap(Some(content));
        debug_assert!(was.is_none(), "each dispatcher has its own place");
        // Not dropped: that would be a check and a call on the way to every request.
        std::mem::forget(was);
    }
}

/// A dispatcher's place, and what can be told of it while it lies there.
pub(super) struct Part<Tr: Transport> {
    place: Place<Dispatcher<Tr>>,
    /// A thread has answered for a request without having taken the dispatcher.
    news: AtomicBool,
    glance: Option<Glance>,
}

impl<Tr: Transport> Part<Tr> {
    pub(super) fn new(glance: Option<Glance>) -> Self {
        Self {
            place: Place::new(),
            news: AtomicBool::new(false),
            glance,
        }
    }

    /// Takes the dispatcher, if it lies there.
    pub(super) fn take(&self) -> Option<Box<Dispatcher<Tr>>> {
        let dispatcher = self.place.take()?;
        if self.news.load(Ordering::Relaxed) {
            // What was answered before is seen from here on.
            self.news.swap(false, Ordering::AcqRel);
        }
        Some(dispatcher)
    }

    /// As [`take`](Self::take); waits for as long as another thread's turn may last.
    pub(super) fn take_soon(&self) -> Option<Box<Dispatcher<Tr>>> {
        const LOOKS: usize = 50;
        (0..LOOKS).find_map(|_| {
            let dispatcher = self.take();
            if dispatcher.is_none() {
                std::hint::spin_loop();
            }
            dispatcher
        })
    }

    /// Leaves the dispatcher there.
    pub(super) fn leave(&self, dispatcher: Box<Dispatcher<Tr>>) {
        let full = if dispatcher.is_full() { FULL } else { 0 };
        let state = LIES | full | (dispatcher.can_run() * ONE);
        self.place.leave(dispatcher, state);
    }

    /// There is an answer for the dispatcher.
    pub(super) fn tell(&self) {
        self.news.store(true, Ordering::Release);
    }

    /// How many requests wait that could run, as of when it was left.
    pub(super) fn waiting(&self) -> usize {
        self.place.state.load(Ordering::Relaxed) / ONE
    }

    /// Whether the transport tells without being polled.
    pub(super) fn tells(&self) -> bool {
        self.glance.is_some()
    }

    /// Whether it lies there and something is to be done: as far as can be told, or always where
    /// `is_due`.
    pub(super) fn has_work(&self, unless_told: bool, is_due: impl FnOnce() -> bool) -> bool {
        let state = self.place.state.load(Ordering::Acquire);
        if state == 0 {
            return false;
        }
        let has_arrivals = || match &self.glance {
            Some(glance) => state & FULL == 0 && glance(),
            None => unless_told,
        };
        state >= ONE || self.news.load(Ordering::Relaxed) || has_arrivals() || is_due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: usize = 4;
    const TURNS: usize = 50_000;

    /// Whoever has the dispatcher finds the state that it was left with, and leaves the next one.
    #[test]
    fn the_state_is_that_of_whoever_left_it_last() {
        let place = Place::new();
        place.leave(Box::new(1), 1);
        let turns = || {
            for _ in 0..TURNS {
                // As `take`, but that it looks at the state in between.
                let Some(mut count) = place.content.swap(None) else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(place.state.load(Ordering::Relaxed), *count);
                place.state.store(0, Ordering::Relaxed);
                *count += 1;
                let state = *count;
                place.leave(count, state);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(turns);
            }
        });
        let state = place.state.load(Ordering::Relaxed);
        assert_eq!(place.take().as_deref(), Some(&state));
        assert!(place.take().is_none(), "it was taken");
    }
}
