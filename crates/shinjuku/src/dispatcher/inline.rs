//! The dispatcher's part of the layouts `inline` and `symmetric`: networker, dispatcher and worker
//! take turns on one thread (`crate::loops` has that thread's loop).
//!
//! ```text
//!        ┌──▶ answers ─▶ poll ─▶ next request ─┬─▶ its deadline set, it runs: the dispatcher is lent out ─┐
//!        │                                     └─▶ none: the thread idles, the dispatcher lies there      │
//!        └────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! While a request runs, its thread does not look at the network. So every request gets its
//! deadline before it starts, and one that reaches it is preempted whether others wait or not; if
//! none do, it goes on at once. A best-effort request is stopped so every [`POLL_EVERY`], whatever
//! the floors say, since it is to give way at once.
//!
//! The timer that stops code without probes costs microseconds whenever it fires, and among short
//! requests it would fire once a quantum for nothing. So a class whose last requests were all short
//! gets the timer late; a request of it that is long all the same pays that once, and has its class
//! known for what it is.
//!
//! While a request runs or blocks its thread, another thread can take the dispatcher and go on with
//! the next request. Each answers like a worker when it is back. So a worker stands for a thread
//! here, and to the policy all threads are one worker.

use std::sync::Arc;
use std::time::Duration;

use shinjuku_net::{Glance, Transport};
use shinjuku_policy::verified::{GIVES_WAY, PROGRESS_QUANTUM};
use shinjuku_policy::{ClassId, Nanos, TaskId, Want};
use shinjuku_preempt::{CountersSnapshot, Cycles, DeadlineTimer, Generation};

use super::end::LAST_WORD;
use super::{Control, Dispatcher, Place};
use crate::loops::IdleTime;
use crate::quantum_floor::PERIOD;
use crate::request::{Job, Meta};

/// While requests wait, the network is looked at this often, and whenever none wait.
const POLL_EVERY: Nanos = Nanos::from_micros(10);
/// While requests run one after the other, readers of the statistics are told this often.
const TELL_EVERY: Nanos = Nanos::from_millis(1);
/// So many requests of a class in a row that were short make it a class of short ones.
const SHORT_IN_A_ROW: u8 = 32;
/// The timer's deadline for those is so many times as long: every time it fires costs microseconds,
/// needed or not.
const LENIENCE: u64 = 8;

/// No deadline is sooner: entering a context takes some of it, and the request shall get on.
const SHORTEST: Nanos = Nanos(1_000);
/// The same where a signal can have stopped the request: going back takes microseconds.
const SHORTEST_BESIDE_SIGNALS: Nanos = Nanos(5_000);

/// What the thread has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Run what was sent to it.
    Run(Deadline),
    /// Take another turn.
    Again,
    /// There is nothing to do at this moment.
    Idle,
    /// Everything is over.
    Over,
}

/// How long a request may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadline {
    /// It begins now.
    pub(crate) start: Cycles,
    /// From here on its probes give way; `None`: it runs to completion.
    pub(crate) soft: Option<Cycles>,
    /// The end of the policy's quantum, whatever the floors say, or the start without one. A
    /// thread that is blocked long after that counts as stuck. `None`: nothing is preempted at all.
    pub(crate) expected: Option<Cycles>,
}

/// A request that follows another at once, on the same context.
pub(crate) struct Next<Tr: Transport> {
    pub(crate) job: Job<Tr>,
    pub(crate) generation: Generation,
    pub(crate) deadline: Deadline,
}

/// How far the end has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Serving,
    /// No more requests; the last ones may finish until this moment.
    LastWord(Nanos),
    /// The rest was reported, and no one waits for it.
    Background,
}

/// What only these layouts need.
#[derive(Debug)]
pub(crate) struct Inline {
    /// The worker of the thread that has the dispatcher, or had it last.
    active: usize,
    /// Workers of other threads that are within a request.
    elsewhere: Vec<usize>,
    /// No thread of a higher number has served yet.
    highest: usize,
    /// Whether the active thread polls the transport.
    polls: bool,
    phase: Phase,
    closed: bool,
    next_poll: Nanos,
    /// When readers of the statistics are told next that requests run.
    next_telling: Nanos,
    last_turn: Nanos,
    rested: bool,
    idle_time: Arc<IdleTime>,
    /// What that was when the floors were looked at last.
    idle_before: Cycles,
    threads: Box<[ThreadNotes]>,
    /// For each class, 0: its last requests were all short. Else how many more it takes.
    to_be_short: Box<[u8]>,
}

/// What is noted of a thread's request when that starts.
#[derive(Clone, Debug)]
struct ThreadNotes {
    /// When the timer is meant to stop it: after so long, leniently or not.
    timer_after: Nanos,
}

impl Inline {
    pub(super) fn new(
        threads: usize,
        classes: usize,
        idle_time: Arc<IdleTime>,
        now: Nanos,
    ) -> Self {
        let notes = ThreadNotes {
            timer_after: Nanos::MAX,
        };
        Self {
            active: 0,
            elsewhere: Vec::with_capacity(threads),
            highest: 0,
            polls: true,
            phase: Phase::Serving,
            closed: false,
            next_poll: now,
            next_telling: now,
            last_turn: now,
            rested: false,
            idle_before: idle_time.sum(),
            idle_time,
            threads: vec![notes; threads].into(),
            to_be_short: vec![SHORT_IN_A_ROW; classes].into(),
        }
    }

    /// No thread of a higher number has served yet.
    pub(super) fn highest(&self) -> usize {
        self.highest
    }

    /// A request of `class` ran for `ran` at thread `at`.
    pub(super) fn learn(&mut self, class: ClassId, ran: Nanos, at: usize) {
        let left = &mut self.to_be_short[usize::from(class.0)];
        *left = if ran >= self.threads[at].timer_after {
            SHORT_IN_A_ROW
        } else {
            left.saturating_sub(1)
        };
    }

    /// Thread `at` was within a best-effort request for so long.
    pub(super) fn as_good_as_idle(&self, at: usize, time: Cycles) {
        self.idle_time.add(at, time);
    }
}

impl<Tr: Transport> Dispatcher<Tr> {
    /// One turn on the thread that has the dispatcher; `timer` is that thread's.
    pub(crate) fn inline_turn(&mut self, timer: Option<&mut DeadlineTimer>) -> Turn {
        let mut moment = Cycles::now();
        let mut now = Nanos(self.clock.nanos_at(moment));
        let past = now.since(self.inline.last_turn);
        self.statistics.add_time(past, !self.inline.rested);
        self.inline.rested = false;
        self.inline.last_turn = now;

        let mut worked = self.take_answers(self.inline.active, now);
        if !self.inline.elsewhere.is_empty() {
            worked |= self.answers_from_elsewhere(now);
        }
        if let Some(over) = self.inline_phase(now) {
            return over;
        }
        let is_idle = self.policy.is_empty() || self.has_only_best_effort();
        if self.inline.polls && (is_idle || now >= self.inline.next_poll) {
            if self.poll(now) {
                // That can have taken longer than a quantum, and none of it is the next request's.
                moment = Cycles::now();
                now = Nanos(self.clock.nanos_at(moment));
                worked = true;
            }
            self.inline.next_poll = Nanos(now.0 + POLL_EVERY.0);
        }
        if now >= self.next_look {
            self.inline_look_around(now);
            if self.rules.realtime && !self.inline.elsewhere.is_empty() {
                // Under SCHED_FIFO, threads that are back from the kernel have the core only if
                // this one gives way.
                std::thread::yield_now();
                moment = Cycles::now();
                now = Nanos(self.clock.nanos_at(moment));
            }
        }
        if !self.policy.is_empty() || self.bring_lock_waiter_back(now) {
            let active = self.inline.active;
            worked |= self.hand_one(active, active, now);
            if self.states[active].out() > 0 {
                self.tell_of_running(now);
                return Turn::Run(self.set_deadline(active, moment, timer));
            }
        }
        if worked {
            return Turn::Again;
        }
        self.inline.rested = true;
        self.publish_idle(now);
        Turn::Idle
    }

    /// Tells readers that nothing runs here; of what comes after this they are told at once.
    fn publish_idle(&mut self, now: Nanos) {
        self.publish_gauges();
        self.inline.next_telling = now;
    }

    /// A request is about to run, and nothing is told before it is back: that can be long.
    fn tell_of_running(&mut self, now: Nanos) {
        if now >= self.inline.next_telling {
            self.inline.next_telling = Nanos(now.0 + TELL_EVERY.0);
            self.publish_gauges();
        }
    }

    /// Takes the answers that are there, and nothing else: for a thread that goes on elsewhere.
    pub(crate) fn inline_answers(&mut self) {
        let now = self.now();
        self.take_answers(self.inline.active, now);
        self.answers_from_elsewhere(now);
    }

    /// Waits in the transport for requests, `patience` at most.
    pub(crate) fn inline_wait(&mut self, patience: Duration) {
        self.publish_idle(self.now());
        self.transport.wait(patience);
    }

    /// Whether other threads are within requests.
    pub(crate) fn is_within_requests(&self) -> bool {
        !self.inline.elsewhere.is_empty()
    }

    /// How many requests wait that could run.
    pub(crate) fn can_run(&self) -> usize {
        let worker = self.states[self.inline.active].worker;
        self.policy.waiting(worker, self.wanted())
    }

    /// Whether requests that never ran wait, and no context is there for them.
    pub(crate) fn is_starved(&self) -> bool {
        self.fresh() > 0 && !self.contexts.is_any()
    }

    /// Whether the reserve of contexts has any, for those who do not have the dispatcher.
    pub(crate) fn glance_at_reserve(&self) -> Glance {
        self.contexts.glance_at_reserve()
    }

    /// Whether the reserve was empty and is not any more, since the last time of asking.
    pub(crate) fn takes_note_of_refill(&mut self) -> bool {
        self.contexts.takes_note_of_refill()
    }

    /// Whether something waits, and all of it only for what is idle.
    pub(crate) fn has_only_best_effort(&self) -> bool {
        let worker = self.states[self.inline.active].worker;
        self.rules.best_effort
            && !self.policy.is_empty()
            && self.policy.worth_preempting(worker, self.wanted()) == 0
    }

    /// Whether there is no room for another request.
    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// The active thread's request has finished at `end`, in whose time the thread was `away` from
    /// its CPU for so long: what follows it on the same context, if that is a request that never
    /// ran, and nothing else is to be done first. `None`: the request's end is answered for as
    /// ever.
    ///
    /// Runs on the context's stack (see [`Worker::run_on`](shinjuku_preempt::Worker::run_on)), so
    /// it stays away from the network, whose code may have thread-locals.
    pub(crate) fn inline_next(
        &mut self,
        end: Cycles,
        away: Cycles,
        timer: Option<&mut DeadlineTimer>,
    ) -> Option<Next<Tr>> {
        let now = Nanos(self.clock.nanos_at(end));
        if !self.inline.elsewhere.is_empty() {
            self.answers_from_elsewhere(now);
        }
        let is_nothing_else_due = (now < self.inline.next_poll || !self.inline.polls)
            && now < self.next_look
            && self.policy.waiting_started() == 0
            && self.lock_waiters.is_empty()
            && self.control.state() == Control::SERVE;
        if !is_nothing_else_due {
            return None;
        }
        let at = self.inline.active;
        let worker = self.states[at].worker;
        let task = self.policy.next(worker, now, Want::Any)?.id;
        let record = &mut self.records[task.0 as usize];
        if record.deadline < now {
            // The usual way refuses it.
            self.policy.returned(task, worker);
            return None;
        }
        let Place::Fresh(request, route) = std::mem::replace(&mut record.place, Place::Out) else {
            unreachable!("no request waits that has run")
        };
        let meta = Meta {
            class: record.class,
            arrival: record.arrival,
        };
        let state = &mut self.states[at];
        let done = state.running().expect("it has just finished").task;
        let ran = now.since(state.running_since);
        let generation = state.went_on(task, now);
        let ran = self.on_cpu(ran, away);
        self.note_time(done, ran, at, false, now);
        self.settle(done, worker);
        self.tell_of_running(now);
        let deadline = self.set_deadline(at, end, timer);
        Some(Next {
            job: Job {
                meta,
                request,
                route,
            },
            generation,
            deadline,
        })
    }

    /// Whether the thread that has the dispatcher polls the transport.
    pub(crate) fn may_poll(&mut self, may: bool) {
        self.inline.polls = may;
    }

    /// Thread `thread` has the dispatcher from now on.
    pub(crate) fn served_by(&mut self, thread: usize) {
        let inline = &mut self.inline;
        let before = std::mem::replace(&mut inline.active, thread);
        if before == thread {
            return;
        }
        inline.elsewhere.retain(|&at| at != thread);
        if self.states[before].out() > 0 {
            inline.elsewhere.push(before);
        }
        // What those have counted so far is no news.
        for state in self
            .states
            .get(inline.highest + 1..=thread)
            .unwrap_or_default()
        {
            self.last_counters += state.link.counters();
        }
        inline.highest = inline.highest.max(thread);
    }

    /// The thread that has the dispatcher has relieved one whose request did not give way in time.
    pub(crate) fn has_relief(&self, spares_left: bool) {
        self.statistics.stuck();
        self.statistics.rescued();
        if !spares_left {
            self.statistics.spares_exhausted();
        }
    }

    fn answers_from_elsewhere(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        let mut place = 0;
        while let Some(&at) = self.inline.elsewhere.get(place) {
            worked |= self.take_answers(at, now);
            if self.states[at].out() == 0 {
                self.inline.elsewhere.swap_remove(place);
            } else {
                place += 1;
            }
        }
        worked
    }

    /// Looks at what is wanted of the runtime; tells if the loop is to do something about it.
    fn inline_phase(&mut self, now: Nanos) -> Option<Turn> {
        let state = self.control.state();
        if state == Control::SERVE {
            return None;
        }
        if !self.inline.closed {
            self.inline.closed = true;
            // What came while its loop was busy is not too late.
            self.poll(now);
            self.transport.close();
        }
        let is_quiet = self.policy.is_empty()
            && self.lock_waiters.is_empty()
            && self.inline.elsewhere.is_empty();
        let phase = self.inline.phase;
        match phase {
            // What was accepted before the transport closed may still be in it.
            Phase::Serving if is_quiet && !self.poll(now) => return Some(Turn::Over),
            Phase::Serving if state == Control::DRAIN => {}
            Phase::Serving => {
                self.turn_away_the_rest();
                self.inline.phase = Phase::LastWord(Nanos(now.0 + LAST_WORD.0));
            }
            Phase::LastWord(_) | Phase::Background if is_quiet => return Some(Turn::Over),
            Phase::LastWord(until) if now >= until => {
                let over = self.is_over_or_report();
                debug_assert!(!over, "it is not quiet");
                self.inline.phase = Phase::Background;
            }
            Phase::LastWord(_) | Phase::Background => {}
        }
        None
    }

    /// Everything is over: leaves the remaining requests, unless that was done.
    pub(crate) fn inline_end(self) {
        if self.inline.phase == Phase::Background {
            self.dismiss();
        } else {
            self.leave();
        }
    }

    /// Sets until when the request that was sent at `moment` may run.
    fn set_deadline(
        &mut self,
        at: usize,
        moment: Cycles,
        timer: Option<&mut DeadlineTimer>,
    ) -> Deadline {
        self.inline.threads[at].timer_after = Nanos::MAX;
        let running = self.states[at].running();
        let quantum = running
            .filter(|_| self.preemption.enabled)
            .and_then(|running| Some((running, self.quantum(running.task)?)));
        let Some((running, quantum)) = quantum else {
            return Deadline {
                start: moment,
                soft: None,
                expected: self.preemption.enabled.then_some(moment),
            };
        };
        let gives_way = quantum == GIVES_WAY;
        // Nobody can tell it that something waits, so it is stopped for a look at that.
        let quantum = match gives_way {
            true => POLL_EVERY,
            false => self.for_its_turn(running.task, quantum),
        };
        let graced = Nanos(quantum.0.saturating_add(self.preemption.grace.0));
        let mut soft = match gives_way {
            true => quantum,
            false => self.preemption.probe_floor.raise(quantum),
        };
        let mut hard = self.preemption.hard_floor.raise(graced);
        if self.policy.waiting_started() > 0 {
            // No floor holds up progress: the one that runs may want a lock that a suspended one
            // has.
            soft = soft.min(quantum.max(PROGRESS_QUANTUM));
            hard = hard.min(graced.max(PROGRESS_QUANTUM));
        }
        let shortest = match timer {
            Some(_) => SHORTEST_BESIDE_SIGNALS,
            None => SHORTEST,
        };
        soft = soft.max(shortest);
        hard = hard.max(shortest);
        let record = &self.records[running.task.0 as usize];
        let is_short =
            self.inline.to_be_short[usize::from(record.class.0)] == 0 && record.ran == Nanos(0);
        self.inline.threads[at].timer_after = hard;
        if is_short {
            hard = Nanos(hard.0.saturating_mul(LENIENCE));
        }
        let cycles = |time: Nanos| self.clock.to_cycles(time.0);
        // For a timer that fires before the moment is known: it shall find that its own is not that
        // of this request.
        if timer.is_some() {
            running.dispatched.request_after(moment, cycles(soft), true);
        }
        let has_timer = timer.is_some();
        let start = timer.map_or(moment, |timer| timer.arm(cycles(hard)));
        (running.dispatched).request_after(start, cycles(soft), has_timer);
        Deadline {
            start,
            soft: Some(Cycles(start.0.saturating_add(cycles(soft).0))),
            expected: Some(Cycles(start.0.saturating_add(cycles(quantum).0))),
        }
    }

    /// As the policy says. With best effort, loops look at home now and then, also where nothing
    /// has a quantum: a best-effort request there may hold what this one waits for.
    fn quantum(&self, task: TaskId) -> Option<Nanos> {
        let has_homes = self.rules.best_effort && self.rules.leaves_excess;
        let quantum = self.policy.quantum(task);
        quantum.or_else(|| has_homes.then_some(PROGRESS_QUANTUM))
    }

    /// What is left of a time if the thread was away from its CPU for so long.
    #[inline]
    pub(super) fn on_cpu(&self, time: Nanos, away: Cycles) -> Nanos {
        match away.0 {
            0 => time,
            _ => Nanos(time.0.saturating_sub(self.clock.to_nanos(away))),
        }
    }

    fn inline_look_around(&mut self, now: Nanos) {
        let period = PERIOD.0 + now.since(self.next_look).0;
        self.next_look = Nanos(now.0 + PERIOD.0);
        self.publish_gauges();
        // Of all dispatchers' requests: what is worth it depends on all loops together.
        let mut counters = CountersSnapshot::default();
        for state in &self.states[..=self.inline.highest] {
            counters += state.link.counters();
        }
        let worker_time = Nanos(period * self.inline.idle_time.loops() as u64);
        let idle = self.inline.idle_time.sum();
        let before = std::mem::replace(&mut self.inline.idle_before, idle);
        let idle = Nanos(self.clock.to_nanos(Cycles(idle.0.saturating_sub(before.0))));
        self.adapt_floors(counters, worker_time, idle);
    }
}
