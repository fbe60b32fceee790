//! Where a dispatcher lies while no thread is in a turn of it, and what can be told of it:
//! [`Handover`] says how threads take it from each other.

use shinjuku_net::{Glance, Transport};
use shinjuku_preempt::Handover;

use crate::dispatcher::Dispatcher;

/// It lies there; above these bits is how many requests wait.
const LIES: usize = 1;
/// It has no room for more requests.
const FULL: usize = 2;
/// Requests that never ran wait there, and there was no context for them.
const STARVED: usize = 4;
/// All that waits there runs only in what is idle.
const BEST_EFFORT: usize = 8;
/// It has contexts to leave to the other parts, whose dispatchers cannot see them.
const SURPLUS: usize = 16;
const ONE: usize = 32;

/// Which requests are looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Any,
    /// All but best-effort ones, as far as can be told before polling.
    Urgent,
}

/// A dispatcher's place, and what can be told of it while it lies there.
pub(super) struct Part<Tr: Transport> {
    /// Its news: a thread has answered for a request without having taken the dispatcher.
    place: Handover<Dispatcher<Tr>>,
    glance: Option<Glance>,
}

impl<Tr: Transport> Part<Tr> {
    pub(super) fn new(glance: Option<Glance>) -> Self {
        Self {
            place: Handover::new(),
            glance,
        }
    }

    /// Takes the dispatcher, if it lies there.
    pub(super) fn take(&self) -> Option<Box<Dispatcher<Tr>>> {
        self.place.take()
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
        let starved = if dispatcher.is_starved() { STARVED } else { 0 };
        let idle_only = match dispatcher.has_only_best_effort() {
            true => BEST_EFFORT,
            false => 0,
        };
        let surplus = if dispatcher.has_surplus() { SURPLUS } else { 0 };
        let state = LIES | full | starved | idle_only | surplus | (dispatcher.can_run() * ONE);
        self.place.leave(dispatcher, state);
    }

    /// There is an answer for the dispatcher.
    pub(super) fn tell(&self) {
        self.place.tell();
    }

    /// How many requests wait that could run, as of when it was left.
    pub(super) fn waiting(&self) -> usize {
        self.place.state() / ONE
    }

    /// Whether it lies there with requests that wait for a context.
    pub(super) fn is_starved(&self) -> bool {
        self.place.state() & STARVED != 0
    }

    /// Whether something is to be done there beside polling.
    pub(super) fn has_polled(&self, work: Work) -> bool {
        let state = self.place.state();
        is_needed(state, work) || state > 0 && self.place.has_news()
    }

    /// Whether the transport tells without being polled.
    pub(super) fn tells(&self) -> bool {
        self.glance.is_some()
    }

    /// Whether it lies there and something is to be done: as far as can be told, or always where
    /// `is_due`.
    pub(super) fn has_work(
        &self,
        work: Work,
        unless_told: bool,
        is_due: impl FnOnce() -> bool,
    ) -> bool {
        let state = self.place.state();
        state > 0 && (is_needed(state, work) || self.has_come(state, unless_told) || is_due())
    }

    /// Whether it lies there and something has come since it was left.
    pub(super) fn has_news(&self) -> bool {
        let state = self.place.state();
        state > 0 && self.has_come(state, false)
    }

    fn has_come(&self, state: usize, unless_told: bool) -> bool {
        let has_arrivals = || match &self.glance {
            Some(glance) => state & FULL == 0 && glance(),
            None => unless_told,
        };
        self.place.has_news() || has_arrivals()
    }
}

/// Whether such requests wait in a dispatcher of this state, or contexts for the other parts.
fn is_needed(state: usize, work: Work) -> bool {
    let waits = state >= ONE && (work == Work::Any || state & BEST_EFFORT == 0);
    waits || state & SURPLUS != 0
}
