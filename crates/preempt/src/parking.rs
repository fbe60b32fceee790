//! How loops that serve each other's queues park, and how a thread that has work for one more wakes
//! one.
//!
//! ```text
//!   loop                                        thread that has work
//!   says that it parks, and searches no more    publishes the work
//!   ── fence ──                                 ── fence ──
//!   looks for work once more; none: parks       no loop searches, one parks? claims and unparks it
//!   searches
//! ```
//!
//! With a fence between the two steps on either side, at least one side sees the other: the loop
//! sees the work, or the claim finds the loop parked or another one searching. A loop that searches
//! finds the work before it parks, by the same argument. So at most one wake-up is on its way for
//! work that comes while a loop searches (the rule of Go's and tokio's schedulers), and none is
//! lost. A loop that has found something to do searches no more, and others may have counted on it:
//! it looks for further work and claims a parked loop for that.
//!
//! Nothing here allocates or locks.

#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

/// A word that loops write often, on a line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Word(AtomicUsize);

impl Word {
    fn new(value: usize) -> Self {
        Self(AtomicUsize::new(value))
    }
}

/// Which loops are parked, and how many search for work.
#[derive(Debug)]
pub struct Parking {
    searching: Word,
    /// Places below that are taken.
    parked: Word,
    /// For each loop, 0, or the number of the thread that parks there and 1.
    places: Box<[Word]>,
}

impl Parking {
    /// For so many loops, none of which searches yet.
    #[must_use]
    pub fn new(loops: usize) -> Self {
        Self {
            searching: Word::new(0),
            parked: Word::new(0),
            places: (0..loops).map(|_| Word::new(0)).collect(),
        }
    }

    /// How many loops there are.
    #[must_use]
    pub fn loops(&self) -> usize {
        self.places.len()
    }

    /// The calling loop begins to search.
    #[inline]
    pub fn search(&self) {
        self.searching.0.fetch_add(1, Ordering::SeqCst);
    }

    /// The calling loop has found something to do. Work that came while it searched has woken
    /// nobody: it [claims](Self::claim) a loop for what it leaves.
    #[inline]
    pub fn found(&self) {
        self.searching.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a loop is there for whatever comes: one that searches, or is parked.
    #[must_use]
    pub fn has_idle(&self) -> bool {
        self.searching.0.load(Ordering::Relaxed) > 0 || self.parked.0.load(Ordering::Relaxed) > 0
    }

    /// Whether a loop is parked. Asked after a fence, before which work was published, `false` says
    /// that each loop will look for it before it parks.
    #[inline]
    #[must_use]
    pub fn has_parked(&self) -> bool {
        self.parked.0.load(Ordering::Acquire) > 0
    }

    /// Parks the calling thread, number `thread`, which searches as loop `at`: until it is claimed
    /// and unparked, for `longest` at most, unless `is_needed` says that there is something to do.
    /// May return early; the thread searches again then.
    ///
    /// # Panics
    /// If there is no such loop.
    pub fn park(
        &self,
        at: usize,
        thread: usize,
        longest: Duration,
        is_needed: impl FnOnce() -> bool,
    ) {
        let place = &self.places[at].0;
        if place.swap(thread + 1, Ordering::AcqRel) == 0 {
            self.parked.0.fetch_add(1, Ordering::SeqCst);
        }
        self.searching.0.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !is_needed() {
            park(longest);
        }
        self.searching.0.fetch_add(1, Ordering::SeqCst);
        self.take(place, thread + 1);
    }

    /// Work was published before: the thread that is to be unparked for it, the one of loop `first`
    /// if that is parked. `None`: a loop searches, or none is parked, and each will look for work
    /// before it parks.
    ///
    /// A thread that is stopped between this and the unparking keeps that loop asleep.
    #[must_use = "the thread sleeps on unless it is unparked"]
    #[inline]
    pub fn claim(&self, first: usize) -> Option<usize> {
        fence(Ordering::SeqCst);
        let is_needed = self.has_parked() && self.searching.0.load(Ordering::Relaxed) == 0;
        if is_needed {
            self.claim_parked(first)
        } else {
            None
        }
    }

    /// As [`claim`](Self::claim), for work that only loop `at` can do: whether others search does
    /// not matter.
    #[must_use = "the thread sleeps on unless it is unparked"]
    #[inline]
    pub fn claim_only(&self, at: usize) -> Option<usize> {
        fence(Ordering::SeqCst);
        let place = &self.places[at].0;
        let thread = place.load(Ordering::Acquire);
        (thread > 0 && self.take(place, thread)).then(|| thread - 1)
    }

    #[cold]
    fn claim_parked(&self, first: usize) -> Option<usize> {
        let (before, from) = self.places.split_at(first.min(self.places.len()));
        from.iter().chain(before).find_map(|place| {
            let thread = place.0.load(Ordering::Relaxed);
            (thread > 0 && self.take(&place.0, thread)).then(|| thread - 1)
        })
    }

    /// Takes `thread` off its place; tells whether it was there.
    fn take(&self, place: &AtomicUsize, thread: usize) -> bool {
        let taken = place
            .compare_exchange(thread, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if taken {
            self.parked.0.fetch_sub(1, Ordering::SeqCst);
        }
        taken
    }
}

#[cfg(not(loom))]
fn park(longest: Duration) {
    std::thread::park_timeout(longest);
}

/// Without an end: a wake-up that is lost is a deadlock, which loom reports.
#[cfg(loom)]
fn park(_: Duration) {
    loom::thread::park();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn one_is_claimed_for_each_piece_of_work_the_preferred_one_first() {
        let parking = Parking::new(3);
        assert_eq!(parking.claim(0), None, "no loop is parked");
        for at in 0..3 {
            parking.search();
            parking.park(at, 10 + at, FOR_EVER, || {
                assert!(parking.has_idle());
                if at < 2 {
                    return true;
                }
                // The others say that they park, too.
                for other in 0..2 {
                    parking.places[other].0.store(11 + other, Ordering::Relaxed);
                    parking.parked.0.fetch_add(1, Ordering::Relaxed);
                }
                assert_eq!(parking.claim(1), Some(11));
                assert_eq!(parking.claim(1), Some(12));
                assert_eq!(parking.claim(1), Some(10));
                assert_eq!(parking.claim(1), None);
                true
            });
            parking.found();
        }
        assert!(!parking.has_idle());
    }

    #[test]
    fn nobody_is_woken_while_another_searches() {
        let parking = Parking::new(2);
        parking.search();
        parking.park(0, 0, FOR_EVER, || {
            parking.search();
            assert_eq!(parking.claim(0), None);
            parking.found();
            assert_eq!(parking.claim(0), Some(0));
            true
        });
        parking.found();
    }

    #[test]
    fn who_alone_can_do_it_is_woken_though_another_searches() {
        let parking = Parking::new(2);
        parking.search();
        parking.park(0, 7, FOR_EVER, || {
            parking.search();
            assert_eq!(parking.claim_only(1), None);
            assert_eq!(parking.claim_only(0), Some(7));
            assert_eq!(parking.claim_only(0), None);
            parking.found();
            true
        });
        parking.found();
        assert!(!parking.has_idle());
    }

    /// A loop's thread can be relieved by another, and both park there for a moment.
    #[test]
    fn two_threads_of_a_loop_count_once() {
        let parking = Parking::new(1);
        parking.search();
        parking.search();
        parking.park(0, 0, FOR_EVER, || {
            parking.park(0, 1, FOR_EVER, || true);
            true
        });
        parking.found();
        parking.found();
        assert!(!parking.has_idle());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A queue of one word that loops take from, as they take a dispatcher that lies there.
    struct Work {
        waiting: AtomicUsize,
        done: AtomicUsize,
    }

    impl Work {
        fn take(&self) -> bool {
            let taken = self
                .waiting
                .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
            if taken {
                self.done.fetch_add(1, Ordering::Release);
            }
            taken
        }
    }

    /// The loop of a thread, until one piece of work is done by whichever loop.
    fn serve(parking: &Parking, work: &Work, at: usize, looks_again: bool) {
        parking.search();
        while work.done.load(Ordering::Acquire) == 0 {
            if work.take() {
                break;
            }
            parking.park(at, at, Duration::MAX, || {
                looks_again
                    && (work.waiting.load(Ordering::Relaxed) > 0
                        || work.done.load(Ordering::Relaxed) > 0)
            });
        }
        parking.found();
    }

    fn one_piece_of_work(loops: usize, looks_again: bool) {
        let parking = Arc::new(Parking::new(loops));
        let work = Arc::new(Work {
            waiting: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        });
        let threads: Vec<_> = (0..loops)
            .map(|at| {
                let (parking, work) = (Arc::clone(&parking), Arc::clone(&work));
                thread::spawn(move || serve(&parking, &work, at, looks_again))
            })
            .collect();
        work.waiting.store(1, Ordering::Relaxed);
        if let Some(thread) = parking.claim(0) {
            threads[thread].thread().unpark();
        }
        // No thread but a loop does the work: were the wake-up lost, this would wait for ever.
        while work.done.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        for thread in threads {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        loom::model(|| one_piece_of_work(1, true));
    }

    /// Work that only the first loop can do, while another searches and parks.
    #[test]
    fn loom_who_alone_can_do_it_is_woken() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let parking = Arc::new(Parking::new(2));
            let work = Arc::new(Work {
                waiting: AtomicUsize::new(0),
                done: AtomicUsize::new(0),
            });
            let first = {
                let (parking, work) = (Arc::clone(&parking), Arc::clone(&work));
                thread::spawn(move || serve(&parking, &work, 0, true))
            };
            let other = {
                let parking = Arc::clone(&parking);
                thread::spawn(move || {
                    parking.search();
                    parking.found();
                })
            };
            work.waiting.store(1, Ordering::Relaxed);
            if parking.claim_only(0).is_some() {
                first.thread().unpark();
            }
            first.join().unwrap();
            other.join().unwrap();
            assert_eq!(work.done.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn loom_no_wake_up_is_lost_between_two_loops() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| one_piece_of_work(2, true));
    }

    /// A dispatcher that is in a thread's hand while a request comes, and is lent after that: the
    /// thread polls before, and is away within a request afterwards.
    fn a_request_comes_while_its_dispatcher_is_lent(wakes_when_lending: bool) {
        let parking = Arc::new(Parking::new(1));
        let (ring, lies, done) = (flag(), flag(), flag());
        let idle = {
            let (parking, ring, lies, done) =
                (parking.clone(), ring.clone(), lies.clone(), done.clone());
            thread::spawn(move || {
                let is_there =
                    || lies.load(Ordering::Acquire) > 0 && ring.load(Ordering::Relaxed) > 0;
                parking.search();
                while done.load(Ordering::Acquire) == 0 {
                    if is_there() {
                        done.store(1, Ordering::Release);
                        break;
                    }
                    parking.park(0, 0, Duration::MAX, || {
                        is_there() || done.load(Ordering::Relaxed) > 0
                    });
                }
                parking.found();
            })
        };
        let wakes = {
            let thread = idle.thread().clone();
            let parking = parking.clone();
            move || {
                if parking.claim(0).is_some() {
                    thread.unpark();
                }
            }
        };
        let submitter = {
            let (ring, wakes) = (ring.clone(), wakes.clone());
            thread::spawn(move || {
                ring.store(1, Ordering::Release);
                wakes();
            })
        };
        if ring.load(Ordering::Acquire) > 0 {
            done.store(1, Ordering::Release);
        } else {
            lies.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if wakes_when_lending && parking.has_parked() && ring.load(Ordering::Relaxed) > 0 {
                wakes();
            }
        }
        submitter.join().unwrap();
        while done.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        idle.thread().unpark();
        idle.join().unwrap();
    }

    fn flag() -> Arc<AtomicUsize> {
        Arc::new(AtomicUsize::new(0))
    }

    #[test]
    fn loom_a_request_that_comes_while_its_dispatcher_is_lent_is_served() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| a_request_comes_while_its_dispatcher_is_lent(true));
    }

    /// The submitter finds the idle loop searching, and that finds no dispatcher and parks.
    #[test]
    #[should_panic(expected = "maximum number of branches")]
    fn loom_a_lender_that_does_not_look_loses_the_request() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| a_request_comes_while_its_dispatcher_is_lent(false));
    }

    /// The checks above have teeth: a loop that does not look once more sleeps over its work.
    #[test]
    // The work is never done.
    #[should_panic(expected = "maximum number of branches")]
    fn loom_a_loop_that_does_not_look_again_sleeps_over_its_work() {
        loom::model(|| one_piece_of_work(1, false));
    }
}
