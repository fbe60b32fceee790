//! The threads of the layouts `inline` and `symmetric`: loops that are networker, dispatcher and
//! worker in turn, one of them inline, as many as cores otherwise.
//!
//! ```text
//!             part 0: dispatcher, its transport          part 1
//!                │ lies there while no thread is in a turn of it; a thread that finds it takes it
//!        ┌───────┴────────┐                         ┌───────┴────────┐
//!        │ loop 0, home 0 │ ─────── helps ────────▶ │ loop 1, home 1 │
//!        └────────────────┘                         └────────────────┘
//!   a loop:  home first ─▶ turn ─▶ request: dispatcher lent ─▶ taken back ─▶ turn ...
//!            nothing at home ─▶ two others at random, the fuller ─▶ turn, request, home again
//!            nothing anywhere ─▶ spins for a moment ─▶ looks once more ─▶ parks
//! ```
//!
//! Every dispatcher has its own part of the transport, its own policy, requests and contexts. A
//! thread that is about to run a request leaves the dispatcher lying in its [`Part`]. Any other
//! thread takes it from there with one exchange, takes the answers that lie in its mailboxes, polls
//! its transport, runs its next request, fresh or suspended, and leaves it lying again. So nothing
//! is copied between queues, and idle loops serve requests that wait at a busy one. While Linux has
//! taken a thread off its core within a request, only that request waits for Linux.
//!
//! A thread that is back from its request answers by its mailbox, and takes the dispatcher if that
//! lies there. If not, it leaves word by [`Part::tell`] for the thread that takes the dispatcher
//! next.
//!
//! A request that blocks its thread in the kernel leaves the dispatcher lying, and so does one that
//! computes and does not give way. While other loops are idle, they serve the requests that come.
//! Otherwise a standby thread takes the place of the loop (ARCHITECTURE.md, "Progress", rule 2),
//! and the relieved thread stands by when it is back. That happens in two cases. The request has
//! run for `rescue_after` beyond the policy's quantum, or beyond its start without one, and the
//! kernel says that its thread is blocked. Or it has run for `rescue_after` beyond its deadline,
//! which floors put off; then it does not matter what the thread does.
//!
//! A request beside which nobody waits is not interrupted: `alarm.rs`.
//!
//! The lock on the roster is taken only when a thread begins to stand by or relieves another, and
//! never within a request. Nothing here allocates, frees or drops a user's value before the end.

mod alarm;
mod idling;
mod part;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod visit_tests;

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use shinjuku_net::{Glance, Transport};
use shinjuku_preempt::{Clock, Cycles, DeadlineTimer, RemoteTimer, Worker, WorkerLink};

use crate::config::Help;
use crate::dispatcher::{
    BACKGROUND_TURN, Control, Deadline, Dispatcher, LONGEST_SLEEP, Next, Turn,
};
use crate::on_cpu::OnCpu;
use crate::statistics::WorkerStatistics;
use crate::timeline::Lane;
use crate::worker::{LONGEST_SLEEP as LONGEST_STAND_BY, Orders, Port, SHARED_PAUSE};
pub(crate) use alarm::Alarm;
use alarm::{AT_THE_END, NEVER, Seat};
use idling::Spin;
pub(crate) use idling::{IdleTime, Idling};
use part::{Part, Work};

/// The watcher if no standby thread is left.
const NOBODY: usize = usize::MAX;

/// An idle loop polls this often a transport whose requests only polling finds.
const POLL_EVERY: Duration = Duration::from_micros(10);
/// A loop looks after its home this often, whether something is to be done there or not.
const VISIT_EVERY: Duration = Duration::from_millis(10);
/// How long a loop waits in such a transport at most, where other loops may need its help.
const LONGEST_WAIT: Duration = Duration::from_millis(1);
/// How long a loop rests instead while others are within requests of that dispatcher.
const REST_BESIDE_OTHERS: Duration = Duration::from_micros(50);

/// What the loops' threads share.
pub(crate) struct Loops<Tr: Transport> {
    parts: Box<[CachePadded<Part<Tr>>]>,
    alarm: Arc<Alarm>,
    idle_time: Arc<IdleTime>,
    /// The links of all threads.
    links: OnceLock<Vec<WorkerLink>>,
    /// Tells whether the reserve of contexts has any.
    reserve: OnceLock<Glance>,
    /// The standby thread that looks for stuck loops.
    watcher: AtomicUsize,
    /// The other standby threads.
    roster: Mutex<Vec<usize>>,
    /// How long a request may leave its deadline unanswered.
    rescue_after: Duration,
    /// Whether some classes run only in what the others leave idle.
    best_effort: bool,
    control: Arc<Control>,
    orders: Arc<Orders>,
}

/// What [`Loops`] are made of.
pub(crate) struct LoopsParts {
    /// For each dispatcher's transport, what tells whether requests are there.
    pub(crate) glances: Vec<Option<Glance>>,
    /// How many loops and standby threads there are.
    pub(crate) threads: usize,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) idle_time: Arc<IdleTime>,
    pub(crate) rescue_after: Duration,
    pub(crate) best_effort: bool,
    pub(crate) control: Arc<Control>,
    pub(crate) orders: Arc<Orders>,
}

impl<Tr: Transport> Loops<Tr> {
    pub(crate) fn new(parts: LoopsParts) -> Self {
        let LoopsParts {
            glances,
            threads,
            alarm,
            idle_time,
            rescue_after,
            best_effort,
            control,
            orders,
        } = parts;
        let part = |glance| CachePadded::new(Part::new(glance));
        Self {
            parts: glances.into_iter().map(part).collect(),
            alarm,
            idle_time,
            links: OnceLock::new(),
            reserve: OnceLock::new(),
            watcher: AtomicUsize::new(NOBODY),
            roster: Mutex::new(Vec::with_capacity(threads)),
            rescue_after,
            best_effort,
            control,
            orders,
        }
    }

    /// Gives the loops all threads, so that they can wake each other, and a dispatcher for each
    /// part.
    pub(crate) fn begin(
        &self,
        threads: Vec<Thread>,
        links: Vec<WorkerLink>,
        dispatchers: Vec<Box<Dispatcher<Tr>>>,
    ) {
        let loops = threads[..self.alarm.seats.len()].to_vec();
        let are_new = self.alarm.threads.set(threads).is_ok() && self.links.set(links).is_ok();
        assert!(are_new, "the loops begin once");
        if let Some(one) = dispatchers.first() {
            let _ = self.reserve.set(one.glance_at_reserve());
        }
        for (part, dispatcher) in self.parts.iter().zip(dispatchers) {
            part.leave(dispatcher);
        }
        for thread in loops {
            thread.unpark();
        }
    }

    /// How many dispatchers there are.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Whether a part's transport tells of requests without being polled.
    pub(crate) fn tells(&self, part: usize) -> bool {
        self.parts[part].tells()
    }

    fn home_of(&self, seat: usize) -> usize {
        seat % self.parts.len()
    }

    /// Whether the loop of this seat polls in its turns of a part. At the end every loop does.
    fn polls(&self, seat: usize, part: usize) -> bool {
        self.alarm.help == Help::All || part == self.home_of(seat) || !self.control.is_serving()
    }

    fn is_over(&self) -> bool {
        self.orders.get() == Orders::END
    }

    fn is_relieved(&self, seat: usize, thread: usize) -> bool {
        self.alarm.seats[seat].occupant.load(Ordering::Relaxed) != thread
    }

    /// Whether a loop that takes the dispatcher of this part finds something to do, as far as that
    /// can be known. `unless_told` is the answer for a transport that only polling tells of.
    fn has_work(&self, part: usize, work: Work, unless_told: bool) -> bool {
        self.parts[part].has_work(work, unless_told, || !self.control.is_serving())
            || self.is_starved_in_vain(part)
    }

    /// Whether a loop that helps elsewhere goes home. From `next_visit` on it does so for
    /// best-effort requests as well: these may hold a lock that others want.
    fn is_wanted_at_home(&self, home: usize, next_visit: Cycles) -> bool {
        let is_due = || self.best_effort && Cycles::now() >= next_visit;
        self.has_work(home, Work::Urgent, true) || is_due() && self.has_work(home, Work::Any, false)
    }

    /// Whether something has come for this part since it was left there, as far as that can be
    /// known.
    fn has_news_of(&self, part: usize) -> bool {
        self.parts[part].has_news() || self.is_starved_in_vain(part)
    }

    /// Wakes a loop for each part whose requests wait for a context, after the reserve was
    /// refilled.
    fn wake_the_starved(&self) {
        for part in 0..self.parts() {
            if self.is_starved_in_vain(part) {
                self.alarm.wake(part);
            }
        }
    }

    /// Leaves a dispatcher in its part. Wakes a loop for what came for it meanwhile, since who
    /// looked for work there found no dispatcher; if it has refilled the reserve, wakes those who
    /// starved.
    fn leave(&self, part: usize, mut dispatcher: Box<Dispatcher<Tr>>) {
        let has_refilled = dispatcher.takes_note_of_refill();
        self.parts[part].leave(dispatcher);
        if self.alarm.seats.len() == 1 && !self.tells(part) {
            return;
        }
        // Whoever parks says that it starves, and then looks at the reserve.
        fence(Ordering::SeqCst);
        if has_refilled {
            self.wake_the_starved();
        }
        if self.alarm.can_be_told(part) && self.has_news_of(part) {
            self.alarm.tell_of_news(part);
        }
    }

    /// Whether requests of this part wait for a context although the reserve has some: other
    /// dispatchers have put them back since.
    fn is_starved_in_vain(&self, part: usize) -> bool {
        self.parts[part].is_starved() && self.reserve.get().is_some_and(|has_any| has_any())
    }

    /// As [`has_work`](Self::has_work), for the loop of this seat: away from home, `help` limits
    /// what it may do.
    fn has_work_for(&self, seat: usize, part: usize, work: Work, unless_told: bool) -> bool {
        let is_home = part == self.home_of(seat);
        match self.alarm.help {
            Help::Polled if !is_home && self.control.is_serving() => {
                self.parts[part].has_polled(work) || self.is_starved_in_vain(part)
            }
            Help::None if !is_home && self.control.is_serving() => false,
            _ => self.has_work(part, work, unless_told),
        }
    }

    /// Whether all loops that are at home at this part are within requests.
    fn is_within_requests(&self, part: usize) -> bool {
        let seats = self.alarm.seats.iter().skip(part).step_by(self.parts());
        seats.into_iter().all(|seat| seat.is_within_a_request())
    }

    /// The thread in this seat is about to run a request of `part`. Leaves the dispatcher for other
    /// threads to take meanwhile.
    fn lend(
        &self,
        (seat, me): (usize, usize),
        part: usize,
        dispatcher: Box<Dispatcher<Tr>>,
        deadline: Deadline,
    ) {
        let rescue_after = |moment: Option<Cycles>| {
            moment.map_or(AT_THE_END, |moment| {
                moment
                    .0
                    .saturating_add(self.alarm.rescue_after.0)
                    .min(AT_THE_END)
            })
        };
        let Seat {
            stuck_if_blocked_at,
            stuck_at,
            ..
        } = &*self.alarm.seats[seat];
        stuck_if_blocked_at.store(rescue_after(deadline.expected), Ordering::Relaxed);
        stuck_at.store(rescue_after(deadline.soft), Ordering::Relaxed);
        if let Some(end) = deadline.if_wanted {
            // After `stuck_at`, which the thread that takes this away sets anew.
            self.alarm.stand_by((seat, me), part, end);
        }
        self.leave(part, dispatcher);
        if self.alarm.parking.has_parked() && self.has_work(part, Work::Any, true) {
            self.alarm.wake(part);
        } else if self.parts[part].waiting() > 0 {
            // What waits was no reason to stop this request, but may be one to stop others of the
            // part.
            self.alarm.hurry_beside(part, Some(seat));
        }
        if deadline.if_wanted.is_some() {
            let home = self.home_of(seat);
            if home != part && self.has_work(home, Work::Any, false) {
                self.alarm.wake_at_home(home);
            }
            if self.is_relieved(seat, me) || !self.control.is_serving() {
                // Nobody finds this thread by its seat any more, or all have been hurried already.
                let _ = self.alarm.hurry_thread(me);
            }
        }
    }

    /// The loop of this seat has searched until now, and will not for long. Who brought work
    /// meanwhile counted on it, so it wakes another loop if there is any left, or hurries those at
    /// home there.
    fn pass_the_search_on(&self, seat: usize) {
        fence(Ordering::SeqCst);
        let is_left = |&part: &usize| self.has_work_for(seat, part, Work::Any, false);
        let mut left = (0..self.parts()).filter(is_left);
        if !self.alarm.parking.has_parked() {
            left.for_each(|part| self.alarm.hurry(part));
        } else if let Some(part) = left.next() {
            self.alarm.wake(part);
        }
    }

    /// Thread `me` in this seat is back from its request.
    fn returned(&self, seat: usize, me: usize) {
        let _ = self.alarm.end_standing_by(me);
        if !self.is_relieved(seat, me) {
            self.alarm.seats[seat].clear();
        }
    }

    /// Leaves word that there is an answer, and wakes a loop to take it.
    fn tell(&self, part: usize) {
        self.parts[part].tell();
        self.alarm.wake(part);
    }

    /// Stands by until thread `me` is to relieve a loop. Returns which loop, and whether other
    /// threads still stand by; `None`: the runtime ends.
    fn stand_by(&self, me: usize) -> Option<(usize, bool)> {
        {
            let mut roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
            if self.watcher.load(Ordering::Relaxed) == NOBODY {
                self.watcher.store(me, Ordering::Relaxed);
            } else {
                roster.push(me);
            }
        }
        while !self.is_over() {
            if self.watcher.load(Ordering::Acquire) != me {
                std::thread::park_timeout(LONGEST_STAND_BY);
                continue;
            }
            std::thread::park_timeout(self.rescue_after);
            if let Some(seat) = (0..self.alarm.seats.len()).find(|&seat| self.relieve(seat, me)) {
                return Some((seat, self.pass_the_watch_on()));
            }
        }
        None
    }

    /// Takes a seat whose thread is stuck, unless an idle loop can serve in its place.
    fn relieve(&self, seat: usize, me: usize) -> bool {
        let Seat {
            occupant, stuck_at, ..
        } = &*self.alarm.seats[seat];
        let before = occupant.load(Ordering::Relaxed);
        let since = stuck_at.load(Ordering::Relaxed);
        let is_stuck = || {
            self.is_blocked(seat, before)
                || Cycles::now().0 >= since
                // At the end a thread is relieved whatever its deadline: the dispatcher has to
                // report the request.
                || self.control.is_ending() && since != NEVER
        };
        let is_helped = self.alarm.help == Help::All && self.alarm.parking.has_idle();
        if is_helped || !is_stuck() {
            return false;
        }
        // If another request has begun meanwhile, its thread is relieved as well, which does no
        // harm.
        let taken = occupant.compare_exchange(before, me, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            self.alarm.seats[seat].clear();
            // Either this sees that it stands by, or that thread sees that it is relieved.
            fence(Ordering::SeqCst);
            // From now on its request is one too many for the cores.
            let _ = self.alarm.hurry_thread(before);
        }
        taken.is_ok()
    }

    /// Whether the request in this seat has run for so long that its thread, `occupant`, should be
    /// back, and the kernel says that the thread is blocked. A thread that computes is left alone:
    /// a floor may have put its deadline off.
    fn is_blocked(&self, seat: usize, occupant: usize) -> bool {
        let from = &self.alarm.seats[seat].stuck_if_blocked_at;
        let before = from.load(Ordering::Relaxed);
        if Cycles::now().0 < before {
            return false;
        }
        let link = self.links.get().and_then(|links| links.get(occupant));
        link.is_some_and(WorkerLink::is_blocked)
            // The thread may have come back meanwhile, and be parked.
            && from.load(Ordering::Relaxed) == before
    }

    /// Makes another standby thread the watcher; returns whether there is one.
    fn pass_the_watch_on(&self) -> bool {
        let mut roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
        // Always the first one, so that only few threads' rings and counters are used.
        let first = (0..roster.len()).min_by_key(|&place| roster[place]);
        let next = first.map_or(NOBODY, |place| roster.swap_remove(place));
        self.watcher.store(next, Ordering::Release);
        let threads = self.alarm.threads.get();
        let thread = threads.and_then(|threads| threads.get(next));
        thread.inspect(|thread| thread.unpark()).is_some()
    }
}

/// A thread of these layouts: a loop, or on standby.
pub(crate) struct LoopThread<Tr: Transport> {
    me: usize,
    worker: Worker,
    /// For each dispatcher, its mailbox and its transport's replier.
    ports: Vec<Port<Tr>>,
    statistics: Arc<WorkerStatistics>,
    lane: Lane,
    /// The hard mechanism, where there is one.
    timer: Option<DeadlineTimer>,
    loops: Arc<Loops<Tr>>,
    /// `None`: it never parks.
    spin: Option<Spin>,
    shares_core: bool,
    clock: Clock,
    on_cpu: OnCpu,
    /// Since when it has nothing to do, and counts as searching.
    idle_since: Option<Cycles>,
    /// When it next looks after its home, whether something is to be done there or not.
    next_visit: Cycles,
    /// When it next polls transports that only polling tells of.
    next_poll: Cycles,
    /// Whether the last such poll was for another part.
    polls_away: bool,
    random: u64,
    /// A part with urgent work, seen while this loop served best effort.
    seen: Option<usize>,
    /// The part that it served last, at the end.
    last_found: usize,
    /// Set when it has relieved another thread: whether others still stand by.
    relief: Option<bool>,
}

/// What [`LoopThread`]s are made of.
pub(crate) struct LoopThreadParts<Tr: Transport> {
    pub(crate) me: usize,
    pub(crate) worker: Worker,
    pub(crate) ports: Vec<Port<Tr>>,
    pub(crate) statistics: Arc<WorkerStatistics>,
    pub(crate) lane: Lane,
    pub(crate) timer: Option<DeadlineTimer>,
    pub(crate) remote_timer: Option<RemoteTimer>,
    pub(crate) loops: Arc<Loops<Tr>>,
    pub(crate) idling: Idling,
}

impl<Tr: Transport> LoopThread<Tr> {
    pub(crate) fn new(parts: LoopThreadParts<Tr>) -> Self {
        let LoopThreadParts {
            me,
            worker,
            ports,
            statistics,
            lane,
            timer,
            remote_timer,
            loops,
            idling,
        } = parts;
        if let Some(timer) = remote_timer {
            loops.alarm.interrupts_by(me, timer);
        }
        Self {
            me,
            on_cpu: OnCpu::new(worker.processor_time()),
            worker,
            ports,
            statistics,
            lane,
            timer,
            loops,
            spin: (idling.backoff).map(|longest| Spin::new(longest, idling.learns)),
            shares_core: idling.shares_core,
            clock: Clock::get(),
            idle_since: None,
            next_visit: Cycles(0),
            next_poll: Cycles(0),
            polls_away: false,
            random: me as u64,
            seen: None,
            last_found: me,
            relief: None,
        }
    }

    /// Runs until the runtime ends.
    pub(crate) fn run(mut self) {
        if self.me < self.loops.alarm.seats.len() {
            self.attend(self.me);
        }
        while let Some((seat, spares_left)) = self.loops.stand_by(self.me) {
            self.relief = Some(spares_left);
            self.attend(seat);
        }
    }

    /// Is the loop of this seat until another thread relieves it, or the runtime ends.
    fn attend(&mut self, seat: usize) {
        while !self.loops.is_relieved(seat, self.me) && !self.loops.is_over() {
            let has_worked = match self.find(seat) {
                Some(part) => self.visit(seat, part),
                None => false,
            };
            if !has_worked {
                self.idle(seat);
            }
        }
        if self.stop_idling(seat) {
            self.loops.pass_the_search_on(seat);
        }
    }

    /// A part to serve: home, or of two others at random the one where more requests wait. At the
    /// end, all of them in rotation.
    fn find(&mut self, seat: usize) -> Option<usize> {
        let loops = &*self.loops;
        let (home, parts) = (loops.home_of(seat), loops.parts.len());
        if !loops.control.is_serving() {
            // Every dispatcher has to come to its end, and the loop that is at home there may be
            // within a request for long.
            let found = (1..=parts)
                .map(|step| (self.last_found + step) % parts)
                .find(|&part| loops.has_work(part, Work::Any, true))?;
            self.last_found = found;
            return Some(found);
        }
        let now = Cycles::now();
        let polls = now >= self.next_poll;
        if polls {
            self.next_poll = Cycles(now.0 + self.cycles(POLL_EVERY).0);
            self.polls_away = !self.polls_away;
        }
        if now >= self.next_visit {
            self.next_visit = Cycles(now.0 + self.cycles(VISIT_EVERY).0);
            return Some(home);
        }
        if let Some(part) = self.seen.take() {
            return Some(part);
        }
        let best_effort = loops.best_effort;
        let urgent = self.find_work(seat, Work::Urgent, polls);
        match best_effort {
            true => urgent.or_else(|| self.find_work(seat, Work::Any, polls)),
            false => urgent,
        }
    }

    /// A part with such work: home, or one of the others. Where only polling tells of requests,
    /// every other poll is for a part whose own loops are within requests, if there is one.
    fn find_work(&mut self, seat: usize, work: Work, polls: bool) -> Option<usize> {
        let home = self.loops.home_of(seat);
        let polls_away = polls && self.polls_away;
        if self.loops.has_work(home, work, polls && !polls_away) {
            return Some(home);
        }
        let found = self.find_elsewhere(seat, home, work, polls_away);
        found.or_else(|| (polls_away && self.loops.has_work(home, work, true)).then_some(home))
    }

    /// Picks two parts other than `part` at random. Gives the one with such work where more
    /// requests wait, if either has any.
    fn find_elsewhere(
        &mut self,
        seat: usize,
        part: usize,
        work: Work,
        polls: bool,
    ) -> Option<usize> {
        let loops = &*self.loops;
        let parts = loops.parts.len();
        if parts == 1 || loops.alarm.help == Help::None {
            return None;
        }
        let mut other = || {
            // Knuth's linear congruential generator (MMIX).
            self.random = (self.random)
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let step = 1 + (self.random >> 33) as usize % (parts - 1);
            (part + step) % parts
        };
        [other(), other()]
            .into_iter()
            .filter(|&part| {
                loops.has_work_for(seat, part, work, polls && loops.is_within_requests(part))
            })
            .max_by_key(|&part| loops.parts[part].waiting())
    }

    fn cycles(&self, time: Duration) -> Cycles {
        self.clock.to_cycles(time.as_nanos() as u64)
    }

    /// Serves a part until nothing is to be done there, or the loop is wanted elsewhere. Returns
    /// whether there was anything to do.
    fn visit(&mut self, seat: usize, part: usize) -> bool {
        let Some(mut dispatcher) = self.loops.parts[part].take() else {
            return false;
        };
        dispatcher.served_by(self.me);
        dispatcher.may_poll(self.loops.polls(seat, part));
        if let Some(spares_left) = self.relief.take() {
            dispatcher.has_relief(spares_left);
        }
        let mut has_worked = false;
        loop {
            match dispatcher.inline_turn(self.timer.as_mut()) {
                Turn::Run(deadline) => {
                    let has_searched = self.stop_idling(seat);
                    has_worked = true;
                    if part != self.loops.home_of(seat) {
                        self.statistics.record_help();
                    }
                    self.loops.lend((seat, self.me), part, dispatcher, deadline);
                    if has_searched {
                        self.loops.pass_the_search_on(seat);
                    }
                    match self.run_requests(seat, part, deadline.start) {
                        Some(back) => dispatcher = back,
                        None => return true,
                    }
                    if self.is_wanted_elsewhere(seat, part)
                        || self.sees_urgent_work(seat, part, &mut dispatcher)
                    {
                        dispatcher.inline_pause();
                        self.loops.leave(part, dispatcher);
                        self.loops.alarm.wake(part);
                        return true;
                    }
                }
                Turn::Again => {}
                Turn::Idle => {
                    self.loops.leave(part, dispatcher);
                    return has_worked;
                }
                Turn::Over => {
                    // The end may wait for the allocator, which a request of another dispatcher may
                    // hold. No standby thread would help that request while this loop seems idle.
                    self.stop_idling(seat);
                    dispatcher.inline_end();
                    return true;
                }
            }
        }
    }

    /// Whether there is work at home, or another thread has relieved this one, or it is the end,
    /// when each loop serves all parts in rotation.
    fn is_wanted_elsewhere(&self, seat: usize, part: usize) -> bool {
        let loops = &*self.loops;
        let home = loops.home_of(seat);
        part != home && loops.is_wanted_at_home(home, self.next_visit)
            || loops.is_relieved(seat, self.me)
            || loops.parts.len() > 1 && !loops.control.is_serving()
    }

    /// Whether this part has only best-effort requests, and another part has urgent ones.
    fn sees_urgent_work(
        &mut self,
        seat: usize,
        part: usize,
        dispatcher: &mut Dispatcher<Tr>,
    ) -> bool {
        if !self.loops.best_effort {
            return false;
        }
        // With its answer taken, the request that was just stopped waits again.
        dispatcher.inline_answers();
        if dispatcher.has_only_best_effort() {
            self.seen = self.find_elsewhere(seat, part, Work::Urgent, false);
        }
        self.seen.is_some()
    }

    /// Runs the request that was sent at `start`, and then those that can follow it at once. Gives
    /// the dispatcher back, unless another thread has it.
    fn run_requests(
        &mut self,
        seat: usize,
        part: usize,
        start: Cycles,
    ) -> Option<Box<Dispatcher<Tr>>> {
        let Self {
            me,
            worker,
            ports,
            statistics,
            lane,
            timer,
            loops,
            clock,
            on_cpu,
            next_visit,
            ..
        } = self;
        let (home, next_visit) = (loops.home_of(seat), *next_visit);
        let mut back = None;
        lane.takes_from((part != home).then_some(part));
        let told = (&**statistics, &*lane);
        ports[part].step_inline(worker, told, (*clock, on_cpu), start, |end, away| {
            if let Some(timer) = timer {
                timer.disarm();
            }
            loops.returned(seat, *me);
            if loops.is_relieved(seat, *me)
                || part != home && loops.is_wanted_at_home(home, next_visit)
            {
                return None;
            }
            let mut dispatcher = loops.parts[part].take_soon()?;
            dispatcher.served_by(*me);
            dispatcher.may_poll(loops.polls(seat, part));
            match dispatcher.inline_next(end, away, timer.as_mut()) {
                Some(Next {
                    job,
                    generation,
                    deadline,
                }) => {
                    if part != home {
                        statistics.record_help();
                    }
                    loops.lend((seat, *me), part, dispatcher, deadline);
                    Some((job, generation, deadline.start))
                }
                None => {
                    back = Some(dispatcher);
                    None
                }
            }
        });
        if let Some(timer) = timer {
            timer.disarm();
        }
        loops.returned(seat, *me);
        let dispatcher = back.or_else(|| {
            let mut dispatcher = loops.parts[part].take_soon()?;
            dispatcher.served_by(*me);
            dispatcher.may_poll(loops.polls(seat, part));
            Some(dispatcher)
        });
        if dispatcher.is_none() {
            loops.tell(part);
        }
        dispatcher
    }

    /// Called when the loop has found nothing to do: spins, sleeps or parks for a moment.
    fn idle(&mut self, seat: usize) {
        let now = Cycles::now();
        let since = *self.idle_since.get_or_insert_with(|| {
            self.loops.alarm.parking.search();
            self.loops.idle_time.begin(seat, now);
            now
        });
        if self.loops.orders.get() == Orders::BACKGROUND {
            return std::thread::sleep(BACKGROUND_TURN);
        }
        let is_idle_for_long = match self.spin {
            Some(spin) => self.shares_core || now.since(since) > spin.now,
            None if self.shares_core => return std::thread::sleep(SHARED_PAUSE),
            None => false,
        };
        if !is_idle_for_long {
            return std::hint::spin_loop();
        }
        if !self.loops.control.is_serving() {
            return std::thread::sleep(REST_BESIDE_OTHERS);
        }
        match self.loops.tells(self.loops.home_of(seat)) {
            true => self.park(seat, LONGEST_SLEEP),
            false => self.wait_for_the_network(seat),
        }
    }

    /// Returns whether the loop was idle, and so has searched.
    fn stop_idling(&mut self, seat: usize) -> bool {
        let Some(since) = self.idle_since.take() else {
            return false;
        };
        let now = Cycles::now();
        self.loops.alarm.parking.found();
        self.loops.idle_time.end(seat, now);
        if let Some(spin) = &mut self.spin {
            spin.learn(now.since(since));
        }
        true
    }

    fn park(&mut self, seat: usize, longest: Duration) {
        let loops = &*self.loops;
        loops.alarm.parking.park(seat, self.me, longest, || {
            let is_needed = |part| loops.has_work_for(seat, part, Work::Any, false);
            loops.is_over() || (0..loops.parts.len()).any(is_needed)
        });
        // The next search polls at once.
        self.next_poll = Cycles(0);
    }

    /// Waits, with the dispatcher, in a transport that only polling tells of. One thread at a time
    /// does so.
    fn wait_for_the_network(&mut self, seat: usize) {
        let loops = Arc::clone(&self.loops);
        let home = loops.home_of(seat);
        let Some(mut dispatcher) = loops.parts[home].take() else {
            // Another thread waits there.
            return self.park(seat, LONGEST_SLEEP);
        };
        dispatcher.served_by(self.me);
        dispatcher.may_poll(true);
        self.next_poll = Cycles(0);
        // An answer that is there would otherwise wait until the network brings something.
        dispatcher.inline_pause();
        let is_alone = loops.alarm.seats.len() == 1;
        let longest = match (is_alone, dispatcher.is_within_requests()) {
            _ if dispatcher.can_run() > 0 || dispatcher.has_surplus() => {
                return loops.leave(home, dispatcher);
            }
            (true, false) => LONGEST_SLEEP,
            (true, true) => REST_BESIDE_OTHERS,
            (false, false) => LONGEST_WAIT,
            (false, true) => {
                loops.leave(home, dispatcher);
                return self.park(seat, REST_BESIDE_OTHERS);
            }
        };
        // Meanwhile the thread does not search.
        loops.alarm.parking.found();
        loops.pass_the_search_on(seat);
        if dispatcher.takes_note_of_refill() {
            loops.wake_the_starved();
        }
        dispatcher.inline_wait(longest);
        loops.alarm.parking.search();
        loops.leave(home, dispatcher);
    }
}
