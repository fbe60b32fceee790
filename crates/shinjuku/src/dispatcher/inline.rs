//! The dispatcher's part of the inline layout: networker, dispatcher and worker take turns on one
//! thread (`crate::inline` has that thread's loop).
//!
//! ```text
//!        ┌──▶ answers ─▶ poll ─▶ next request ─┬─▶ its deadline set, it runs: the dispatcher is lent out ─┐
//!        │                                     └─▶ none: rest                                             │
//!        └────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! While a request runs, nobody looks at the network. So every request gets its deadline before it
//! starts, and one that reaches it is preempted whether others wait or not; if none do, it goes on
//! at once.
//!
//! The timer that stops code without probes costs microseconds whenever it fires, and among short
//! requests it would fire once a quantum for nothing. So a class whose last requests were all short
//! gets the timer late; a request of it that is long all the same pays that once, and has its class
//! known for what it is.
//!
//! A request that blocks its thread in the kernel stops all of that. Then another thread takes the
//! dispatcher, goes on in its place, and the blocked one answers like any worker when it is back.
//! So a worker stands for a thread here.

use shinjuku_net::Transport;
use shinjuku_policy::verified::PROGRESS_QUANTUM;
use shinjuku_policy::{ClassId, Nanos, Want};
use shinjuku_preempt::{Cycles, DeadlineTimer, Generation};

use super::end::{BACKGROUND_TURN, LAST_WORD};
use super::{Control, Dispatcher, LONGEST_SLEEP, Place};
use crate::quantum_floor::PERIOD;
use crate::request::{Job, Meta};
use crate::worker::SHARED_PAUSE;
use crate::worker_state::Silence;

/// While requests wait, the network is looked at this often, and whenever none wait.
const POLL_EVERY: Nanos = Nanos::from_micros(10);
/// While other threads are within requests, nobody sleeps for longer: their answers wake no one.
const REST_BESIDE_OTHERS: std::time::Duration = std::time::Duration::from_micros(200);

/// So many requests of a class in a row that were short make it a class of short ones.
const SHORT_IN_A_ROW: u8 = 32;
/// The timer's deadline for those is so many times as long: every time it fires costs microseconds,
/// needed or not.
const LENIENCE: u64 = 8;

/// No deadline is sooner: entering a context, and more so going back into what a signal stopped,
/// takes some of it, and the request shall get on.
const SHORTEST: Nanos = Nanos(5_000);

/// What the thread has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Run what was sent to it.
    Run(Deadline),
    /// Take another turn.
    Again,
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
    /// The rest was reported, and nobody waits for it.
    Background,
}

/// What only this layout needs.
#[derive(Debug)]
pub(crate) struct Inline {
    /// The worker of the thread whose turn it is.
    active: usize,
    /// Desks of threads that are within a request, and did not give way in time: blocked, for all
    /// that is known.
    elsewhere: Vec<usize>,
    phase: Phase,
    closed: bool,
    next_poll: Nanos,
    last_turn: Nanos,
    worked_at: Nanos,
    rested: bool,
    /// Since the floors were looked at last.
    idle: Nanos,
    /// Interrupts taken when the active thread's counters were last looked at.
    interrupts: u64,
    /// When the timer is meant to stop what the active thread runs: after so long, leniently or
    /// not.
    timer_after: Nanos,
    /// For each class, 0: its last requests were all short. Else how many more it takes.
    to_be_short: Box<[u8]>,
}

impl Inline {
    pub(super) fn new(threads: usize, classes: usize, now: Nanos) -> Self {
        Self {
            active: 0,
            elsewhere: Vec::with_capacity(threads),
            phase: Phase::Serving,
            closed: false,
            next_poll: now,
            last_turn: now,
            worked_at: now,
            rested: false,
            idle: Nanos(0),
            interrupts: 0,
            timer_after: Nanos::MAX,
            to_be_short: vec![SHORT_IN_A_ROW; classes].into(),
        }
    }

    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// A request of `class` ran for `ran` at thread `at`; if that is not the active one, it was
    /// stuck there.
    pub(super) fn learn(&mut self, class: ClassId, ran: Nanos, at: usize) {
        let left = &mut self.to_be_short[usize::from(class.0)];
        *left = if at != self.active || ran >= self.timer_after {
            SHORT_IN_A_ROW
        } else {
            left.saturating_sub(1)
        };
    }
}

impl<Tr: Transport> Dispatcher<Tr> {
    /// One turn on the thread that has the dispatcher; `timer` is that thread's.
    pub(crate) fn inline_turn(&mut self, timer: Option<&mut DeadlineTimer>) -> Turn {
        let mut moment = Cycles::now();
        let mut now = Nanos(self.clock.nanos_at(moment));
        let past = now.since(self.inline.last_turn);
        self.statistics.add_time(past, !self.inline.rested);
        if std::mem::take(&mut self.inline.rested) {
            self.inline.idle.0 += past.0;
        }
        self.inline.last_turn = now;

        let mut worked = self.take_answers(self.inline.active, now);
        if !self.inline.elsewhere.is_empty() {
            worked |= self.answers_from_elsewhere(now);
        }
        if let Some(over) = self.inline_phase(now) {
            return over;
        }
        if self.policy.is_empty() || now >= self.inline.next_poll {
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
        if !self.policy.is_empty() {
            let active = self.inline.active;
            worked |= self.hand_one(active, active, now);
            if self.states[active].out() > 0 {
                self.inline.worked_at = now;
                return Turn::Run(self.set_deadline(active, moment, timer));
            }
        }
        if worked {
            self.inline.worked_at = now;
        } else {
            self.rest(now);
        }
        Turn::Again
    }

    /// The active thread's request has finished at `end`: what follows it on the same context, if
    /// that is a request that never ran, and nothing else is to be done first. `None`: the
    /// request's end is answered for as ever.
    ///
    /// Runs on the context's stack (see [`Worker::run_on`](shinjuku_preempt::Worker::run_on)), so
    /// it stays away from the network, whose code may have thread-locals.
    pub(crate) fn inline_next(
        &mut self,
        end: Cycles,
        timer: Option<&mut DeadlineTimer>,
    ) -> Option<Next<Tr>> {
        let now = Nanos(self.clock.nanos_at(end));
        let is_nothing_else_due = now < self.inline.next_poll
            && now < self.next_look
            && self.inline.elsewhere.is_empty()
            && self.policy.waiting_started() == 0
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
        let record = &mut self.records[done.0 as usize];
        record.ran = Nanos(record.ran.0 + ran.0);
        self.inline.learn(record.class, ran, at);
        self.settle(done, worker, now);
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

    /// The active thread is within a request that did not give way in time: thread `successor` goes
    /// on in its place.
    pub(crate) fn taken_over_by(&mut self, successor: usize, spares_left: bool) {
        let blocked = self.inline.active;
        self.states[blocked].silence = Some(Silence::Blocked);
        self.inline.elsewhere.push(blocked);
        self.inline.active = successor;
        self.inline.interrupts = self.states[successor].link.counters().taken_by_interrupt;
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
            self.transport.close();
        }
        let is_quiet = self.policy.is_empty() && self.inline.elsewhere.is_empty();
        match self.inline.phase {
            Phase::Serving if is_quiet => return Some(Turn::Over),
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
        self.inline.timer_after = Nanos::MAX;
        let running = self.states[at].running();
        let quantum = running
            .filter(|_| self.preemption.enabled)
            .and_then(|running| Some((running, self.policy.quantum(running.task)?)));
        let Some((running, quantum)) = quantum else {
            return Deadline {
                start: moment,
                soft: None,
            };
        };
        let graced = Nanos(quantum.0.saturating_add(self.preemption.grace.0));
        let mut soft = self.preemption.probe_floor.raise(quantum);
        let mut hard = self.preemption.hard_floor.raise(graced);
        if self.policy.waiting_started() > 0 {
            // No floor holds up progress: the one that runs may want a lock that a suspended one
            // has.
            soft = soft.min(quantum.max(PROGRESS_QUANTUM));
            hard = hard.min(graced.max(PROGRESS_QUANTUM));
        }
        soft = soft.max(SHORTEST);
        hard = hard.max(SHORTEST);
        let record = &self.records[running.task.0 as usize];
        let is_short = self.inline.to_be_short[usize::from(record.class.0)] == 0
            && record.first_preempted.is_none();
        self.inline.timer_after = hard;
        if is_short {
            hard = Nanos(hard.0.saturating_mul(LENIENCE));
        }
        let cycles = |time: Nanos| self.clock.to_cycles(time.0);
        // For a timer that fires before the moment is known: it shall find that its own is not that
        // of this request.
        if timer.is_some() {
            let about = Cycles(moment.0.saturating_add(cycles(soft).0));
            running.dispatched.request_at(about);
        }
        let start = timer.map_or(moment, |timer| timer.arm(cycles(hard)));
        let soft = Cycles(start.0.saturating_add(cycles(soft).0));
        running.dispatched.request_at(soft);
        Deadline {
            start,
            soft: Some(soft),
        }
    }

    /// Whether it took the timer to stop what the active thread ran last.
    pub(super) fn was_interrupted(&mut self) -> bool {
        let taken = self.states[self.inline.active]
            .link
            .counters()
            .taken_by_interrupt;
        std::mem::replace(&mut self.inline.interrupts, taken) != taken
    }

    /// Nothing to do at this moment.
    fn rest(&mut self, now: Nanos) {
        self.inline.rested = true;
        if self.inline.phase == Phase::Background {
            return std::thread::sleep(BACKGROUND_TURN);
        }
        let is_idle_for_long = match self.rules.idle_backoff {
            Some(backoff) => self.rules.shares_core || now.since(self.inline.worked_at) > backoff,
            None if self.rules.shares_core => return std::thread::sleep(SHARED_PAUSE),
            None => false,
        };
        if !is_idle_for_long {
            return std::hint::spin_loop();
        }
        let patience = if self.inline.elsewhere.is_empty() {
            self.publish_gauges();
            LONGEST_SLEEP
        } else {
            REST_BESIDE_OTHERS
        };
        self.transport.wait(patience);
    }

    fn inline_look_around(&mut self, now: Nanos) {
        let worker_time = Nanos(PERIOD.0 + now.since(self.next_look).0);
        self.next_look = Nanos(now.0 + PERIOD.0);
        self.publish_gauges();
        let mut counters = self.states[self.inline.active].link.counters();
        for &at in &self.inline.elsewhere {
            counters += self.states[at].link.counters();
        }
        let idle = std::mem::take(&mut self.inline.idle);
        self.adapt_floors(counters, worker_time, idle);
    }
}
