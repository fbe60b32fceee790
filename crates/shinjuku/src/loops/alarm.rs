//! The alarm of loops: wakes parked ones, and has busy ones stop at the end of a quantum.
//!
//! A signal costs more than most requests, so a request beside which nobody waits is not
//! interrupted. Its loop leaves the end of its quantum here and sets no timer; a thread that brings
//! work while all loops are busy sets the timer for it. That takes transports that tell of requests
//! without being polled. Under SCHED_FIFO the timer is always set: a thread that is back from the
//! kernel with an answer has the core only once the request has given way.
//!
//! ```text
//!   the loop:  quantum_end = t ─▶ dispatcher left ─▶ fence ─▶ looks for what has come ─▶ request
//!   others:    work published  ─▶ fence ─▶ no loop is idle ─▶ quantum_end = 0 ─▶ timer set for t
//!   the loop, back from its request: quantum_end = 0 ─▶ timer unset
//! ```
//!
//! One of the two sees the other's: the loop the work, or whoever brings it the end of the quantum.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crossbeam_utils::CachePadded;
use shinjuku_net::Wake;
use shinjuku_preempt::{Clock, Cycles, Parking, RemoteTimer, without_preemption};

use crate::config::{Config, Help};

/// When a loop is stuck that runs no request.
pub(super) const NEVER: u64 = u64::MAX;
/// When a loop is stuck that runs a request without a deadline.
pub(super) const AT_THE_END: u64 = u64::MAX - 1;

/// Wakes parked loops, and has busy ones stop at the end of a quantum.
pub(crate) struct Alarm {
    pub(super) parking: Parking,
    parts: usize,
    pub(super) help: Help,
    pub(super) threads: OnceLock<Vec<Thread>>,
    pub(super) seats: Box<[CachePadded<Seat>]>,
    /// For each thread.
    standing_by: Box<[CachePadded<StandingBy>]>,
    /// How many of them are away from home.
    pub(super) away: AtomicUsize,
    /// How long a request may leave its deadline unanswered.
    pub(super) rescue_after: Cycles,
}

/// The thread's home is not where its request is from.
const AWAY: u64 = 1;

/// A thread within a request that no timer stops.
#[derive(Default)]
struct StandingBy {
    /// When the request's quantum is over (TSC), but for [`AWAY`]. 0: its own timer sees to that,
    /// or there is nothing to interrupt.
    quantum_end: AtomicU64,
    /// Where the request is from.
    part: AtomicUsize,
    /// By which others have the thread interrupted.
    timer: OnceLock<RemoteTimer>,
}

impl Alarm {
    /// Makes the alarm of so many loops over so many parts; `config` has what else there is to
    /// know.
    pub(crate) fn new(loops: usize, parts: usize, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            parking: Parking::new(loops),
            parts,
            help: config.help,
            threads: OnceLock::new(),
            seats: (0..loops)
                .map(|thread| CachePadded::new(Seat::new(thread)))
                .collect(),
            standing_by: (0..loops + config.spares())
                .map(|_| CachePadded::default())
                .collect(),
            away: AtomicUsize::new(0),
            rescue_after: Clock::get().to_cycles(config.rescue_after().0),
        })
    }

    /// What wakes a loop for the transport that is the home of loop `first`.
    pub(crate) fn wake_for(self: &Arc<Self>, first: usize) -> Wake {
        let alarm = Arc::clone(self);
        Box::new(move || alarm.tell_of_news(first))
    }

    /// Something has come that is to be polled in this part: wakes a loop that may do so.
    pub(super) fn tell_of_news(&self, part: usize) {
        match self.help {
            Help::All => self.wake(part),
            Help::Polled | Help::None => self.wake_at_home(part),
        }
    }

    /// Wakes a loop, `first` if that is parked, unless one searches. If all are busy, hurries those
    /// that are at home in this part. A context is not preempted meanwhile: a loop that it has
    /// claimed sleeps until the context unparks it.
    pub(super) fn wake(&self, first: usize) {
        if self.help == Help::None {
            return self.wake_at_home(first);
        }
        without_preemption(|| match self.parking.claim(first) {
            None if !self.parking.has_idle() => self.hurry(first),
            thread => self.unpark(thread),
        });
    }

    /// Wakes the loops that are at home in this part, or hurries them. No others can serve it.
    pub(super) fn wake_at_home(&self, part: usize) {
        without_preemption(|| {
            for seat in self.at_home(part) {
                self.unpark(self.parking.claim_only(seat));
            }
            self.hurry(part);
        });
    }

    fn at_home(&self, part: usize) -> impl Iterator<Item = usize> {
        (part..self.seats.len()).step_by(self.parts)
    }

    /// Others can have this thread interrupted by `timer`. Each thread says so once.
    pub(super) fn interrupts_by(&self, thread: usize, timer: RemoteTimer) {
        let _ = self.standing_by[thread].timer.set(timer);
    }

    /// The thread in this seat is about to run a request of `part` whose quantum is over at `end`,
    /// and which no timer stops.
    pub(super) fn stand_by(&self, (seat, thread): (usize, usize), part: usize, end: Cycles) {
        let one = &self.standing_by[thread];
        let away = if part == seat % self.parts { 0 } else { AWAY };
        one.part.store(part, Ordering::Relaxed);
        self.away.fetch_add(away as usize, Ordering::Relaxed);
        one.quantum_end
            .store(end.0.max(2) & !AWAY | away, Ordering::Release);
    }

    /// The end of the quantum of this thread's request, if the thread stands by. Then it no longer
    /// does.
    pub(super) fn end_standing_by(&self, thread: usize) -> Option<u64> {
        let quantum_end = &self.standing_by[thread].quantum_end;
        if quantum_end.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let end = quantum_end.swap(0, Ordering::AcqRel);
        if end & AWAY > 0 {
            self.away.fetch_sub(1, Ordering::Relaxed);
        }
        (end > 0).then_some(end)
    }

    /// Has the thread's request interrupted when its quantum is over, or at once, if the thread
    /// stands by. Returns when that is. The thread may run another request by then, which is not
    /// due.
    pub(super) fn hurry_thread(&self, thread: usize) -> Option<u64> {
        let end = self.end_standing_by(thread)?;
        let (now, timer) = (Cycles::now().0, self.standing_by[thread].timer.get()?);
        timer.set(Cycles(end.saturating_sub(now)));
        Some(end.max(now))
    }

    /// Work was published before in this part, and a fence was passed. Loops that are at home
    /// there, or run a request of the part, and stand by, have the request interrupted when its
    /// quantum is over.
    pub(super) fn hurry(&self, part: usize) {
        self.hurry_beside(part, None);
    }

    /// As [`hurry`](Self::hurry), but for the loop of one seat.
    pub(super) fn hurry_beside(&self, part: usize, beside: Option<usize>) {
        let others = |seat: &usize| Some(*seat) != beside;
        self.at_home(part)
            .filter(others)
            .for_each(|seat| self.hurry_seat(seat));
        if self.away.load(Ordering::Relaxed) > 0 {
            let is_of_part = |seat: &usize| {
                let thread = self.seats[*seat].occupant.load(Ordering::Relaxed);
                let standing_by = self.standing_by.get(thread);
                standing_by.is_some_and(|one| one.part.load(Ordering::Relaxed) == part)
            };
            let seats = (0..self.seats.len()).filter(others).filter(is_of_part);
            seats.for_each(|seat| self.hurry_seat(seat));
        }
    }

    fn hurry_seat(&self, seat: usize) {
        let Seat {
            occupant, stuck_at, ..
        } = &*self.seats[seat];
        if let Some(end) = self.hurry_thread(occupant.load(Ordering::Relaxed)) {
            // The seat may have another occupant or request by now. Then a thread is relieved too
            // soon at worst, which does no harm.
            let rescue = end.saturating_add(self.rescue_after.0).min(AT_THE_END);
            let (unset, relaxed) = (AT_THE_END, Ordering::Relaxed);
            let _ = stuck_at.compare_exchange(unset, rescue, relaxed, relaxed);
        }
    }

    /// Whether a loop can be woken for this part, or a request be interrupted.
    pub(super) fn can_be_told(&self, part: usize) -> bool {
        let stands_by =
            |seat: usize| self.stands_by(self.seats[seat].occupant.load(Ordering::Relaxed));
        self.parking.has_parked()
            || self.away.load(Ordering::Relaxed) > 0
            || self.at_home(part).any(stands_by)
    }

    /// Whether a thread runs a request that no timer stops.
    pub(crate) fn stands_by(&self, thread: usize) -> bool {
        let one = self.standing_by.get(thread);
        one.is_some_and(|one| one.quantum_end.load(Ordering::Relaxed) != 0)
    }

    /// Hurries all loops: the runtime ends.
    pub(crate) fn hurry_all(&self) {
        fence(Ordering::SeqCst);
        (0..self.parts).for_each(|part| self.hurry(part));
    }

    fn unpark(&self, thread: Option<usize>) {
        let threads = self.threads.get();
        if let Some(thread) = thread.and_then(|thread| threads?.get(thread)) {
            thread.unpark();
        }
    }
}

/// A loop's place, which another thread can take.
pub(super) struct Seat {
    /// The thread that is the loop.
    pub(super) occupant: AtomicUsize,
    /// From when on its request counts as stuck if the thread is blocked in the kernel (TSC).
    pub(super) stuck_if_blocked_at: AtomicU64,
    /// From when on its request counts as stuck whatever the thread does (TSC); [`NEVER`] while it
    /// runs none.
    pub(super) stuck_at: AtomicU64,
}

impl Seat {
    pub(super) fn new(thread: usize) -> Self {
        Self {
            occupant: AtomicUsize::new(thread),
            stuck_if_blocked_at: AtomicU64::new(NEVER),
            stuck_at: AtomicU64::new(NEVER),
        }
    }

    /// Whether a request runs there.
    pub(super) fn is_within_a_request(&self) -> bool {
        self.stuck_at.load(Ordering::Relaxed) != NEVER
    }

    /// Notes that no request runs there.
    pub(super) fn clear(&self) {
        self.stuck_if_blocked_at.store(NEVER, Ordering::Relaxed);
        self.stuck_at.store(NEVER, Ordering::Relaxed);
    }
}
