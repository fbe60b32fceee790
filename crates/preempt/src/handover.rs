//! Where threads leave a value for each other, and what can be told of it while it lies there.
//!
//! ```text
//!   the one that has it   state := what is told of it ─▶ cell := value ─╮ from here on it is the next one's
//!   one that takes it     state != 0 ─▶ cell.take() ── empty: no ──────▶ state := 0 ─▶ news := no
//!   one that has it not   news := yes: the next one to take it finds out what that is about
//! ```
//!
//! Only the thread that has the value writes the state, and the cell orders one such thread before
//! the next. So the writes have one order, the last one is of the thread that left the value last,
//! and what lies there with something to do is seen to. A state written after the value was left
//! could come after those of threads that had it since, and hide what they left.
//!
//! The state alone is a hint: it is there for a moment before the value is.

use std::fmt;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(not(loom))]
use crossbeam_utils::atomic::AtomicCell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A value's place between threads.
pub struct Handover<Value> {
    value: AtomicCell<Option<Box<Value>>>,
    /// 0: a thread has it, or it is gone. Written only by the thread that has it.
    state: AtomicUsize,
    /// Something was told to the next thread that takes the value.
    news: AtomicBool,
}

impl<Value> fmt::Debug for Handover<Value> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Handover");
        shown.field("state", &self.state()).finish_non_exhaustive()
    }
}

impl<Value> Default for Handover<Value> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Value> Handover<Value> {
    /// Nothing lies there yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            value: AtomicCell::new(None),
            state: AtomicUsize::new(0),
            news: AtomicBool::new(false),
        }
    }

    /// Takes the value, if it lies there. What was [told](Self::tell) before is seen from then on.
    #[inline]
    pub fn take(&self) -> Option<Box<Value>> {
        if self.state.load(Ordering::Acquire) == 0 {
            return None;
        }
        let value = self.value.swap(None)?;
        self.state.store(0, Ordering::Relaxed);
        if self.news.load(Ordering::Relaxed) {
            self.news.swap(false, Ordering::AcqRel);
        }
        Some(value)
    }

    /// Leaves the value, with a word on it that is not 0. It must be the one that was taken, or the
    /// first: one that lies there is lost.
    #[inline]
    pub fn leave(&self, value: Box<Value>, state: usize) {
        debug_assert_ne!(state, 0, "0 says that nothing lies there");
        self.state.store(state, Ordering::Release);
        let was = self.value.swap(Some(value));
        debug_assert!(was.is_none(), "each value has its own place");
        // Not dropped: that would be a check and a call on the way to every request.
        std::mem::forget(was);
    }

    /// Tells the next thread that takes the value that there is something for it.
    #[inline]
    pub fn tell(&self) {
        self.news.store(true, Ordering::Release);
    }

    /// Whether something was told since the value was taken last.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// The word that the value was left with; 0: a thread has it.
    #[inline]
    #[must_use]
    pub fn state(&self) -> usize {
        self.state.load(Ordering::Acquire)
    }
}

/// As crossbeam's, which loom does not know: an exchange that acquires and releases.
#[cfg(loom)]
struct AtomicCell<Value>(loom::sync::Mutex<Value>);

#[cfg(loom)]
impl<Value> AtomicCell<Value> {
    fn new(value: Value) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    fn swap(&self, value: Value) -> Value {
        std::mem::replace(&mut self.0.lock().unwrap(), value)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const THREADS: usize = 4;
    const TURNS: usize = 50_000;

    /// The thread that has the value finds the state that it was left with, and leaves the next
    /// one.
    #[test]
    fn the_state_is_that_of_the_thread_that_left_it_last() {
        let place = Handover::new();
        place.leave(Box::new(1), 1);
        let turns = || {
            for _ in 0..TURNS {
                // As `take`, but that it looks at the state in between.
                let Some(mut count) = place.value.swap(None) else {
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
        let state = place.state();
        assert_eq!(place.take().as_deref(), Some(&state));
        assert!(place.take().is_none(), "it was taken");
    }

    #[test]
    fn news_last_until_the_value_is_taken() {
        let place = Handover::new();
        place.tell();
        assert!(place.take().is_none() && place.has_news());
        place.leave(Box::new(()), 1);
        assert!(place.take().is_some() && !place.has_news());
    }
}

/// The stealing protocol of the layout `symmetric`: loops take a dispatcher from where it lies,
/// take requests of its queue, leave it, run the request, and answer; and park with nothing to do.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::time::Duration;

    use loom::sync::Arc;
    use loom::sync::atomic::fence;
    use loom::thread;

    use super::*;
    use crate::Parking;

    /// What lies there: a dispatcher with requests, to be taken one a turn.
    struct Dispatcher {
        waiting: usize,
    }

    /// A dispatcher lies there with so many requests; the state is their number and 1.
    struct Part {
        place: Handover<Dispatcher>,
        /// Answers for the next thread that takes the dispatcher, as in the mailboxes.
        answers: AtomicUsize,
        /// Answers that were taken.
        taken: AtomicUsize,
        parking: Parking,
    }

    fn part(waiting: usize, loops: usize) -> Part {
        let place = Handover::new();
        place.leave(Box::new(Dispatcher { waiting }), waiting + 1);
        Part {
            place,
            answers: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            parking: Parking::new(loops),
        }
    }

    impl Part {
        fn has_work(&self) -> bool {
            let state = self.place.state();
            state > 1 || state > 0 && self.place.has_news()
        }

        /// A turn: answers are taken, and a request, if one waits. `None`: another has it.
        fn turn(&self) -> Option<bool> {
            let mut dispatcher = self.place.take()?;
            let answers = self.answers.swap(0, Ordering::Relaxed);
            self.taken.fetch_add(answers, Ordering::Relaxed);
            let runs = dispatcher.waiting > 0;
            dispatcher.waiting -= usize::from(runs);
            let state = dispatcher.waiting + 1;
            self.place.leave(dispatcher, state);
            Some(runs)
        }

        /// A thread's own request is done: the thread answers, and takes the dispatcher or leaves
        /// word.
        fn answer(&self, wake: impl FnOnce()) {
            self.answers.fetch_add(1, Ordering::Relaxed);
            if self.turn().is_none() {
                self.place.tell();
                wake();
            }
        }
    }

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(check);
    }

    /// Two loops, one at home and one that helps, and as many requests: each is run by one of them.
    #[test]
    fn loom_each_request_is_taken_once() {
        model(|| {
            let part = Arc::new(part(2, 2));
            let serve = |part: Arc<Part>| {
                let mut ran = 0;
                for _ in 0..2 {
                    ran += usize::from(part.turn() == Some(true));
                }
                ran
            };
            let other = {
                let part = Arc::clone(&part);
                thread::spawn(move || serve(part))
            };
            let ran = serve(Arc::clone(&part)) + other.join().unwrap();
            let left = part.place.take().expect("it lies there").waiting;
            assert_eq!(ran + left, 2);
        });
    }

    /// A thread leaves the dispatcher with a request while the only other loop looks for work,
    /// finds none, and parks: the loop is woken, or sees the request. And then the thread is away.
    #[test]
    fn loom_what_is_lent_with_a_request_is_served() {
        model(|| {
            let part = Arc::new(part(2, 1));
            // The thread has taken the dispatcher, and one request for itself.
            let mut dispatcher = part.place.take().expect("it lies there");
            dispatcher.waiting -= 1;
            let idle = {
                let part = Arc::clone(&part);
                thread::spawn(move || {
                    part.parking.search();
                    while part.turn() != Some(true) {
                        // The state is there before the dispatcher is.
                        thread::yield_now();
                        part.parking.park(0, 0, Duration::MAX, || part.has_work());
                    }
                    part.parking.found();
                })
            };
            part.place.leave(dispatcher, 2);
            fence(Ordering::SeqCst);
            if part.has_work() && part.parking.claim(0).is_some() {
                idle.thread().unpark();
            }
            idle.join().unwrap();
            assert_eq!(part.place.take().expect("it lies there").waiting, 0);
        });
    }

    /// A thread comes back from its request while another has the dispatcher, in a turn that began
    /// before: the answer is taken although the thread goes on elsewhere.
    #[test]
    fn loom_an_answer_beside_a_turn_is_taken() {
        model(|| {
            let part = Arc::new(part(0, 1));
            let idle = {
                let part = Arc::clone(&part);
                thread::spawn(move || {
                    part.parking.search();
                    while part.taken.load(Ordering::Relaxed) == 0 {
                        if part.turn().is_none() || part.taken.load(Ordering::Relaxed) == 0 {
                            part.parking.park(0, 0, Duration::MAX, || {
                                part.has_work() || part.taken.load(Ordering::Relaxed) > 0
                            });
                        }
                    }
                    part.parking.found();
                })
            };
            let thread = idle.thread().clone();
            part.answer(|| {
                if part.parking.claim(0).is_some() {
                    thread.unpark();
                }
            });
            // A turn of this thread that has taken the answer wakes no loop, and here the loop
            // waits for that.
            if part.taken.load(Ordering::Relaxed) > 0 && part.parking.claim(0).is_some() {
                thread.unpark();
            }
            idle.join().unwrap();
            assert_eq!(part.taken.load(Ordering::Relaxed), 1);
        });
    }

    /// The checks have teeth: a state that is written after the value was left hides the request
    /// that another left since.
    #[test]
    #[should_panic(expected = "lies there with a request, and its state does not tell")]
    fn loom_a_state_written_too_late_hides_a_request() {
        model(|| {
            let part = Arc::new(part(0, 1));
            let empty = part.place.take().expect("it lies there");
            let other = {
                let part = Arc::clone(&part);
                thread::spawn(move || {
                    // A request comes to the thread that takes the dispatcher.
                    let Some(mut dispatcher) = part.place.value.swap(None) else {
                        return false;
                    };
                    part.place.state.store(0, Ordering::Relaxed);
                    dispatcher.waiting = 1;
                    part.place.leave(dispatcher, 2);
                    true
                })
            };
            // `leave`, the other way round.
            drop(part.place.value.swap(Some(empty)));
            part.place.state.store(1, Ordering::Release);
            let has_come = other.join().unwrap();
            assert!(
                !has_come || part.has_work(),
                "lies there with a request, and its state does not tell"
            );
        });
    }
}
