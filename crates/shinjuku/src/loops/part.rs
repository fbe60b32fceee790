//! Where a dispatcher lies while no thread is in a turn of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_utils::atomic::AtomicCell;
use shinjuku_net::{Glance, Transport};

use crate::dispatcher::Dispatcher;

/// It lies there; above these bits is how many requests wait.
const LIES: usize = 1;
/// It has no room for more requests.
const FULL: usize = 2;
const ONE: usize = 4;

/// A dispatcher's place, and what can be told of it while it lies there.
pub(super) struct Part<Tr: Transport> {
    dispatcher: AtomicCell<Option<Box<Dispatcher<Tr>>>>,
    /// 0: a thread has it, or it is gone. Written only by the thread that has it or has just left
    /// it, and nobody takes it while this is 0.
    state: AtomicUsize,
    /// A thread has answered for a request without having taken the dispatcher.
    news: AtomicBool,
    glance: Option<Glance>,
}

impl<Tr: Transport> Part<Tr> {
    pub(super) fn new(glance: Option<Glance>) -> Self {
        Self {
            dispatcher: AtomicCell::new(None),
            state: AtomicUsize::new(0),
            news: AtomicBool::new(false),
            glance,
        }
    }

    /// Takes the dispatcher, if it lies there.
    pub(super) fn take(&self) -> Option<Box<Dispatcher<Tr>>> {
        if self.state.load(Ordering::Acquire) == 0 {
            return None;
        }
        let dispatcher = self.dispatcher.swap(None)?;
        self.state.store(0, Ordering::Relaxed);
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
        let was = self.dispatcher.swap(Some(dispatcher));
        debug_assert!(was.is_none(), "each dispatcher has its own place");
        // Not dropped: that would be a check and a call on the way to every request.
        std::mem::forget(was);
        self.state.store(state, Ordering::Release);
    }

    /// There is an answer for the dispatcher.
    pub(super) fn tell(&self) {
        self.news.store(true, Ordering::Release);
    }

    /// How many requests wait that could run, as of when it was left.
    pub(super) fn waiting(&self) -> usize {
        self.state.load(Ordering::Relaxed) / ONE
    }

    /// Whether the transport tells without being polled.
    pub(super) fn tells(&self) -> bool {
        self.glance.is_some()
    }

    /// Whether it lies there and something is to be done: as far as can be told, or always where
    /// `is_due`.
    pub(super) fn has_work(&self, unless_told: bool, is_due: impl FnOnce() -> bool) -> bool {
        let state = self.state.load(Ordering::Acquire);
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
