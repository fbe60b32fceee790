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
//! deadline before it starts. A request that reaches its deadline is preempted whether others wait
//! or not; if none wait, it resumes at once. Where whoever brings work tells the loops of it, the
//! timer is left to them (`loops/`), and only probes stop a request for nobody. A best-effort
//! request has a deadline of [`POLL_EVERY`], whatever the floors say, since it is to give way at
//! once.
//!
//! The timer that stops code without probes, or raises the gate of compiled ones, costs
//! microseconds whenever it fires, and among short requests it would fire once a quantum for
//! nothing. So a class whose last requests were all short gets the timer late; a request of it that
//! is long all the same pays that once, and has its class known for what it is.
//!
//! While a request runs or blocks its thread, another thread can take the dispatcher and go on with
//! the next request. Each thread answers as a worker does when it is back. So here each worker
//! stands for a thread, and to the policy all threads are one worker.

use std::sync::Arc;
use std::time::Duration;

use shinjuku_net::{Glance, Transport};
use shinjuku_policy::verified::{GIVES_WAY, PROGRESS_QUANTUM};
use shinjuku_policy::{ClassId, Nanos, TaskId, Want};
use shinjuku_preempt::{CountersSnapshot, Cycles, DeadlineTimer, Generation, QuantumEnd};

use super::end::LAST_WORD;
use super::{Control, Dispatcher, Place};
use crate::loops::IdleTime;
use crate::quantum_floor::PERIOD;
use crate::request::{Job, Meta};

/// While requests wait, the network is polled this often. While none wait, every turn polls it.
const POLL_EVERY: Nanos = Nanos::from_micros(10);
/// While requests run one after the other, the gauges are published this often.
const PUBLISH_EVERY: Nanos = Nanos::from_millis(1);
/// After so many short requests in a row, a class counts as one of short requests.
const SHORT_IN_A_ROW: u8 = 32;
/// For a class of short requests, the timer's deadline is so many times as long.
const LENIENCE: u64 = 8;

/// The shortest deadline. Entering a context takes some of it, and the request has to get on.
const SHORTEST: Nanos = Nanos(1_000);
/// The shortest deadline where a signal can have stopped the request: returning from a signal takes
/// microseconds.
const SHORTEST_BESIDE_SIGNALS: Nanos = Nanos(5_000);

/// What the thread has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Run the request that was sent to it.
    Run(Deadline),
    /// Take another turn.
    Again,
    /// There is nothing to do at this moment.
    Idle,
    /// The dispatcher has come to its end.
    Over,
}

/// How long a request may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadline {
    /// When the request begins.
    pub(crate) start: Cycles,
    /// From when on its probes give way; `None`: it runs to completion.
    pub(crate) soft: Option<Cycles>,
    /// The end of the policy's quantum, whatever the floors say; without a quantum, the start. A
    /// thread that is blocked long after that counts as stuck. `None`: nothing is preempted at all.
    pub(crate) expected: Option<Cycles>,
    /// When the timer is to be set for, by whoever has work for the loop: nobody waits now.
    pub(crate) if_wanted: Option<Cycles>,
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
    /// No requests are taken; the last ones may finish until this moment.
    LastWord(Nanos),
    /// The unfinished requests are reported, and the shutdown does not wait for them.
    Background,
}

/// What only these layouts need.
#[derive(Debug)]
pub(crate) struct Inline {
    /// The worker of the thread that has the dispatcher, or had it last.
    active: usize,
    /// Workers of other threads that are within a request.
    elsewhere: Vec<usize>,
    /// The highest thread that has had the dispatcher.
    highest: usize,
    /// Whether the active thread polls the transport.
    polls: bool,
    phase: Phase,
    closed: bool,
    next_poll: Nanos,
    /// When the gauges are published next while requests run.
    next_publishing: Nanos,
    last_turn: Nanos,
    rested: bool,
    idle_time: Arc<IdleTime>,
    /// The loops' idle time when the floors were adapted last.
    idle_before: Cycles,
    threads: Box<[ThreadNotes]>,
    /// For each class, how many more short requests in a row make it a class of short ones.
    to_be_short: Box<[u8]>,
}

/// What the dispatcher notes of a thread's request when the request starts.
#[derive(Clone, Debug)]
struct ThreadNotes {
    /// After how long the timer stops the request, without [`LENIENCE`]: a request that runs for
    /// less is short.
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
            next_publishing: now,
            last_turn: now,
            rested: false,
            idle_before: idle_time.sum(),
            idle_time,
            threads: vec![notes; threads].into(),
            to_be_short: vec![SHORT_IN_A_ROW; classes].into(),
        }
    }

    /// The highest thread that has had the dispatcher.
    pub(super) fn highest(&self) -> usize {
        self.highest
    }

    /// A request of `class`, which was at thread `at`, has run for `ran` in all.
    pub(super) fn learn(&mut self, class: ClassId, ran: Nanos, at: usize) {
        let left = &mut self.to_be_short[usize::from(class.0)];
        *left = if ran >= self.threads[at].timer_after {
            SHORT_IN_A_ROW
        } else {
            left.saturating_sub(1)
        };
    }

    /// Thread `at` was within a best-effort request for so long, which counts as idle time.
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
        // The last attempt may have failed, and this part may be idle for long.
        self.contexts.leave_the_others();
        self.bring_lock_waiters_back(now);
        if let Some(over) = self.inline_phase(now) {
            return over;
        }
        let is_idle = self.policy.is_empty() || self.has_only_best_effort();
        if self.inline.polls && (is_idle || now >= self.inline.next_poll) {
            if self.poll(now) {
                // Polling can take longer than a quantum, and is no part of the next request's
                // time.
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
                // this one yields.
                std::thread::yield_now();
                moment = Cycles::now();
                now = Nanos(self.clock.nanos_at(moment));
            }
        }
        if !self.policy.is_empty() {
            let active = self.inline.active;
            worked |= self.hand_one(active, active, now);
            // If that was the last one that was suspended, those that stand aside wait again. The
            // request has a deadline then, and idle loops find them.
            self.bring_lock_waiters_back(now);
            if self.states[active].out() > 0 {
                self.publish_running(now);
                return Turn::Run(self.set_deadline(active, moment, timer));
            }
        }
        if worked {
            return Turn::Again;
        }
        self.inline.rested = true;
        self.publish_at_rest(now);
        Turn::Idle
    }

    /// Publishes what is at this moment, since no thread may look here for long. The next request
    /// to run is published at once.
    fn publish_at_rest(&mut self, now: Nanos) {
        self.publish_gauges();
        self.inline.next_publishing = now;
    }

    /// Publishes that a request is about to run: nothing is published before it is back, which can
    /// take long. While other threads are within requests of this part, each request is published:
    /// it may be the last one for long, if the thread that is at home here is one of those.
    fn publish_running(&mut self, now: Nanos) {
        if now >= self.inline.next_publishing || self.is_within_requests() {
            self.inline.next_publishing = Nanos(now.0 + PUBLISH_EVERY.0);
            self.publish_gauges();
        }
    }

    /// How many threads are within requests.
    pub(super) fn inline_running(&self) -> usize {
        let Inline {
            active, elsewhere, ..
        } = &self.inline;
        elsewhere.len() + usize::from(self.states[*active].out() > 0)
    }

    /// Takes the answers that are there, and does nothing else: for a thread that looks what waits.
    pub(crate) fn inline_answers(&mut self) {
        let now = self.now();
        self.take_answers(self.inline.active, now);
        self.answers_from_elsewhere(now);
    }

    /// Takes the answers that are there, and publishes what is then: for a thread that serves
    /// another dispatcher next, or waits.
    pub(crate) fn inline_pause(&mut self) {
        self.inline_answers();
        self.publish_at_rest(self.now());
    }

    /// Waits in the transport for requests, `patience` at most.
    pub(crate) fn inline_wait(&mut self, patience: Duration) {
        self.transport.wait(patience);
    }

    /// Whether other threads are within requests.
    pub(crate) fn is_within_requests(&self) -> bool {
        !self.inline.elsewhere.is_empty()
    }

    /// How many waiting requests could run.
    pub(crate) fn can_run(&self) -> usize {
        let worker = self.states[self.inline.active].worker;
        self.policy.waiting(worker, self.wanted())
    }

    /// Whether fresh requests wait and no context is free for them.
    pub(crate) fn is_starved(&self) -> bool {
        self.fresh() > 0 && !self.contexts.is_any()
    }

    /// Tells threads that do not have the dispatcher whether the reserve has any contexts.
    pub(crate) fn glance_at_reserve(&self) -> Glance {
        self.contexts.glance_at_reserve()
    }

    /// Whether contexts lie here that are to go to the reserve.
    pub(crate) fn has_surplus(&self) -> bool {
        self.contexts.has_surplus()
    }

    /// Whether this dispatcher has refilled an empty reserve since the last call.
    pub(crate) fn takes_note_of_refill(&mut self) -> bool {
        self.contexts.takes_note_of_refill()
    }

    /// Whether requests wait and all of them are best effort.
    pub(crate) fn has_only_best_effort(&self) -> bool {
        let worker = self.states[self.inline.active].worker;
        self.rules.best_effort
            && !self.policy.is_empty()
            && self.policy.worth_preempting(worker, self.wanted(), None) == 0
    }

    /// Whether there is no room for another request.
    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// The active thread's request has finished at `end`; the thread was `away` from its CPU for so
    /// long meanwhile. Gives the request that follows on the same context, if the next one never
    /// ran and nothing else is to be done first. `None`: the thread leaves the context and answers.
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
            // `hand_one` refuses it.
            self.policy.returned(task, worker);
            return None;
        }
        let Place::Fresh(request, route) = std::mem::replace(&mut record.place, Place::Out) else {
            unreachable!("no suspended request waits")
        };
        let meta = Meta {
            class: record.class,
            arrival: record.arrival,
        };
        let state = &mut self.states[at];
        let done = state.running().expect("a request has just finished").task;
        let ran = now.since(state.running_since);
        let generation = state.went_on(task, now);
        let ran = self.on_cpu(ran, away);
        self.note_time(done, ran, at, false, now);
        self.settle(done, worker);
        self.publish_running(now);
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

    /// Sets whether the thread that has the dispatcher polls the transport.
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
        // What these threads have counted so far was for other dispatchers.
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

    /// Looks whether the runtime shuts down, and does the dispatcher's part. `Some`: the turn ends
    /// with that.
    fn inline_phase(&mut self, now: Nanos) -> Option<Turn> {
        let state = self.control.state();
        if state == Control::SERVE {
            return None;
        }
        if !self.inline.closed {
            self.inline.closed = true;
            // Requests that came while the loop was busy are taken.
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
                debug_assert!(!over, "a request waits, or is at a thread");
                self.inline.phase = Phase::Background;
            }
            Phase::LastWord(_) | Phase::Background => {}
        }
        None
    }

    /// Everything has finished: hands over what remains, unless the report has done that.
    pub(crate) fn inline_end(self) {
        if self.inline.phase == Phase::Background {
            self.dismiss();
        } else {
            self.leave();
        }
    }

    /// Sets the deadline of the request that thread `at` was sent at `moment`.
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
                if_wanted: None,
            };
        };
        let gives_way = quantum == GIVES_WAY;
        // No thread can tell a best-effort request that another waits, so it is stopped to look.
        let quantum = if gives_way { POLL_EVERY } else { quantum };
        let graced = Nanos(quantum.0.saturating_add(self.preemption.grace.0));
        let (mut soft, mut hard) = self.in_force(running.task, quantum);
        if gives_way {
            soft = quantum;
            hard = self.preemption.hard_floor.raise(graced);
        }
        if self.policy.waiting_started() > 0 {
            // Progress goes before the floors: the request that runs may want a lock that a
            // suspended one has.
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
        let stands_by = timer.is_some() && self.may_run_on(running.task);
        if is_short && !stands_by {
            hard = Nanos(hard.0.saturating_mul(LENIENCE));
        }
        let cycles = |time: Nanos| self.clock.to_cycles(time.0);
        // For a timer that fires before the moment is known: it shall find that its own is not that
        // of this request.
        let end = match (&timer, self.preemption.compiled) {
            (None, _) => QuantumEnd::Probes,
            (Some(_), None) => QuantumEnd::Timer,
            (Some(_), Some(compiled)) => QuantumEnd::Entries(compiled),
        };
        if timer.is_some() {
            running.dispatched.request_after(moment, cycles(soft), end);
        }
        let start = match timer {
            None => moment,
            Some(timer) if stands_by => timer.stand_by(),
            Some(timer) => timer.arm(cycles(hard)),
        };
        running.dispatched.request_after(start, cycles(soft), end);
        let after = |time: Nanos| Some(Cycles(start.0.saturating_add(cycles(time).0)));
        Deadline {
            start,
            soft: after(soft).filter(|_| !stands_by),
            expected: after(quantum),
            if_wanted: after(hard).filter(|_| stands_by),
        }
    }

    /// Whether nobody waits for whom `task`, which runs, would be preempted, and whoever comes can
    /// tell its loop. A suspended request may have a lock that `task` wants.
    fn may_run_on(&self, task: TaskId) -> bool {
        let worker = self.states[self.inline.active].worker;
        self.rules.is_told_of_work
            && self.control.is_serving()
            && self.lock_waiters.is_empty()
            && self.policy.waiting_started() == 0
            && (self.policy).worth_preempting(worker, self.wanted(), Some(task)) == 0
    }

    /// The policy's quantum. With best effort, a request without a quantum gets one in the layout
    /// `symmetric`, so that a loop looks at its home now and then: a best-effort request there may
    /// hold what this request waits for.
    fn quantum(&self, task: TaskId) -> Option<Nanos> {
        let has_homes = self.rules.best_effort && self.rules.leaves_excess;
        let quantum = self.policy.quantum(task);
        quantum.or_else(|| has_homes.then_some(PROGRESS_QUANTUM))
    }

    /// `time` without the time that the thread was away from its CPU.
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
        self.publish_at_rest(now);
        // The threads' counters are of all dispatchers' requests: whether preempting is worth it
        // depends on all loops together.
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
