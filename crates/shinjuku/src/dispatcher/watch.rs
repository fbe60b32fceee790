//! Stopping requests that run too long while others wait, and going on without workers that do not
//! answer.
//!
//! ARCHITECTURE.md draws a worker's states. A worker is silent that has given no answer for
//! `rescue_after` while others wait, asked or not. What is staged there is recalled. If its thread
//! is blocked in the kernel, a spare goes on in its place. If its thread runs or is runnable, it
//! computes; without an answer for `SPINS_AFTER` times as long it may spin for a lock, and a spare
//! takes suspended requests, one of which may have that.
//!
//! A spare shares the core of the worker that it stands in for. Beside a worker that computes, the
//! spare takes half of the core. So it comes late there, and runs only requests that the worker may
//! be waiting for. Under SCHED_FIFO a worker that computes gets no spare: the spare would never
//! have the core, and would keep the request that it was sent.

use shinjuku_net::Transport;
use shinjuku_policy::verified::{GIVES_WAY, PROGRESS_QUANTUM};
use shinjuku_policy::{Learner, Nanos, TaskId, Want, WorkerId};
use shinjuku_preempt::CountersSnapshot;

use super::Dispatcher;
use crate::preemption::Preemption;
use crate::quantum_floor::{PERIOD, PreemptedFor};
use crate::request::Meta;
use crate::worker_state::{Asked, Silence, WorkerState};

/// A request that has run for less than this is not looked at.
const SHORTEST_QUANTUM: Nanos = Nanos(500);
/// An interrupt without an answer is repeated after twice this time, then after twice as long each
/// time, up to 2^8 times this.
const INTERRUPT_AGAIN: Nanos = Nanos::from_micros(500);
/// Most requests that give way at all do so within this time; with a hard mechanism, within this
/// time after the grace.
const ANSWERS_WITHIN: Nanos = Nanos::from_micros(20);
/// While a worker stays silent, the dispatcher looks at its thread again whenever the silence has
/// doubled, or has lasted this much longer.
const LOOK_AGAIN: Nanos = Nanos::from_millis(100);
/// A worker that leaves its preemption unanswered and computes for so many times `rescue_after` may
/// be spinning for a lock that a suspended request holds.
const SPINS_AFTER: u64 = 10;

impl<Tr: Transport> Dispatcher<Tr> {
    /// Looks after a worker or spare that has a request: sees to it that the thread is awake, that
    /// the request gives way in time, and that others do not wait for a blocked worker.
    pub(super) fn watch(&mut self, at: usize, now: Nanos) {
        let state = &mut self.states[at];
        if state.out() == 0 || now.since(state.running_since) < SHORTEST_QUANTUM {
            return;
        }
        state.wake(now);
        if !self.preemption.enabled {
            return;
        }
        // This comes before the next interrupt: the interrupt would make a blocked thread run for a
        // moment, and the thread would seem to compute.
        if self.is_silent(at, now) {
            self.look_after_silent(at, now);
        }
        self.stop_in_time(at, now);
    }

    /// Whether a worker has been silent for `rescue_after`. It is in three cases: it leaves its
    /// preemption unanswered for so long; it has run for so long beyond the policy's quantum while
    /// a floor puts off the preemption; or it has run for so long without a quantum. A request that
    /// has run for long only because nothing waited is not silent before it was asked. A spare
    /// counts as silent whether it was asked or not: a spare that never has its core keeps a
    /// request from workers that idle.
    fn is_silent(&self, at: usize, now: Nanos) -> bool {
        let state = &self.states[at];
        let rescue_after = self.rules.rescue_after;
        let is_long_ago = now.since(state.silent_since()) > rescue_after;
        let ran = now.since(state.running_since);
        let is_never_asked = |task| {
            self.policy.quantum(task).is_none_or(|quantum| {
                ran.0 > quantum.0.saturating_add(rescue_after.0)
                    // A best-effort request is never asked to give way for another one.
                    && (quantum == GIVES_WAY || ran < self.in_force(task, quantum).0)
            })
        };
        state.silence.is_some()
            || is_long_ago
                && (at >= self.workers
                    || state.asked.is_some()
                    || state
                        .running()
                        .is_some_and(|sent| is_never_asked(sent.task)))
    }

    /// After how long a request whose quantum by the policy is `quantum` is asked to give way, and
    /// after how long it is interrupted: above the floors, and longer where it was preempted often.
    pub(super) fn in_force(&self, task: TaskId, quantum: Nanos) -> (Nanos, Nanos) {
        let Preemption {
            probe_floor,
            hard_floor,
            grace,
            ..
        } = &self.preemption;
        let graced = Nanos(quantum.0.saturating_add(grace.0));
        let stretch = self.policy.stretch(task);
        let stretched = |quantum: Nanos| Nanos(quantum.0.saturating_mul(stretch));
        let (soft, hard) = (probe_floor.raise(quantum), hard_floor.raise(graced));
        (stretched(soft), stretched(hard))
    }

    /// Asks the request that runs at a worker to give way if it has run for too long. If it was
    /// asked before, interrupts it when the time for that has come.
    fn stop_in_time(&mut self, at: usize, now: Nanos) {
        // Asked before it begins, a request would come back as it went.
        if at >= self.workers && !self.states[at].begins(now) {
            return;
        }
        let state = &self.states[at];
        let Some(running) = state.running() else {
            return;
        };
        if let Some(asked) = &state.asked {
            if asked.interrupt_at <= now {
                self.interrupt(at, now);
            }
            return;
        }
        let ran = now.since(state.running_since);
        let (worker, task) = (state.worker, running.task);
        let Some(quantum) = self.policy.quantum(task) else {
            return;
        };
        if quantum == GIVES_WAY {
            return self.stop_best_effort(at, now);
        }
        let graced = Nanos(quantum.0.saturating_add(self.preemption.grace.0));
        // Progress goes before the floors: the request that runs may want a lock that a suspended
        // one has.
        let (ask_after, interrupt_after) = if self.may_hold_up_others(ran) {
            (quantum, graced)
        } else {
            self.in_force(running.task, quantum)
        };
        // A suspended request that goes after this one may have a lock that this one wants.
        let beside = (self.policy.waiting_started() == 0).then_some(task);
        let is_worth_it = || {
            self.states[at].staged() > 0
                || self.policy.worth_preempting(worker, self.wanted(), beside)
                    > self.with_best_effort(now)
                || self.may_hold_up_others(ran)
        };
        if ran >= ask_after && is_worth_it() {
            let interrupt_at = Nanos(state.running_since.0.saturating_add(interrupt_after.0));
            self.ask(at, now, interrupt_at);
            self.statistics.requested();
        }
    }

    /// Asks a best-effort request to give way if another request waits that no other worker is
    /// about to have room for.
    fn stop_best_effort(&mut self, at: usize, now: Nanos) {
        let state = &self.states[at];
        let ran = now.since(state.running_since);
        let waiting = (self.policy).worth_preempting(state.worker, self.wanted(), None);
        if waiting > 0 && waiting > self.about_to_answer(now) || self.may_hold_up_others(ran) {
            let interrupt_at = Nanos(now.0.saturating_add(self.preemption.grace.0));
            self.ask(at, now, interrupt_at);
            self.statistics.requested();
        }
    }

    /// How many workers were asked to give way a moment ago. A worker that has not answered within
    /// [`ANSWERS_WITHIN`] may take long, and is not counted.
    fn about_to_answer(&self, now: Nanos) -> usize {
        let within = match &self.preemption.hard {
            Some(_) => Nanos(ANSWERS_WITHIN.0.saturating_add(self.preemption.grace.0)),
            None => ANSWERS_WITHIN,
        };
        let workers = self.states[..self.workers].iter();
        workers
            .filter(|state| state.was_asked_since(now, within))
            .count()
    }

    /// How many workers are about to answer, or run best effort and will be asked to give way. No
    /// other request has to give way for the requests that these workers can serve.
    fn with_best_effort(&self, now: Nanos) -> usize {
        if !self.rules.best_effort {
            return 0;
        }
        let gives_way = |state: &&WorkerState<Tr>| {
            let running = state.running().filter(|_| state.asked.is_none());
            running.is_some_and(|sent| self.policy.quantum(sent.task) == Some(GIVES_WAY))
        };
        let workers = self.states[..self.workers].iter();
        workers.filter(gives_way).count() + self.about_to_answer(now)
    }

    /// Asks the request that runs at `at` to give way, and interrupts it from `interrupt_at` on.
    fn ask(&mut self, at: usize, now: Nanos, interrupt_at: Nanos) {
        let state = &mut self.states[at];
        let Some(running) = state.running() else {
            return;
        };
        let at_entries = match self.preemption.compiled {
            Some(compiled) => Some(compiled.request(&running.dispatched)),
            None => {
                running.dispatched.request();
                None
            }
        };
        state.asked = Some(Asked {
            at: now,
            interrupt_at,
            interrupts: 0,
            at_entries,
        });
        if interrupt_at <= now {
            self.interrupt(at, now);
        }
    }

    /// Whether a request waits that the worker could serve if it were free.
    fn has_waiting(&self, at: usize, worker: WorkerId, ran: Nanos) -> bool {
        self.states[at].staged() > 0
            || self.policy.waiting(worker, self.wanted()) > 0
            // This holds whatever the policy says.
            || self.may_hold_up_others(ran)
    }

    /// Whether a request that has run for so long may be spinning for a lock that a suspended
    /// request holds.
    fn may_hold_up_others(&self, ran: Nanos) -> bool {
        ran > PROGRESS_QUANTUM && self.policy.waiting_started() > 0
    }

    fn interrupt(&mut self, at: usize, now: Nanos) {
        let state = &mut self.states[at];
        let (Some(hard), Some(asked)) = (&self.preemption.hard, &mut state.asked) else {
            return;
        };
        asked.interrupts += 1;
        // The code has entered no function in time, or none where it could be stopped.
        asked.at_entries = None;
        // The interrupt may meet the context where it cannot leave, in a guard or with too little
        // stack. So it is repeated, at growing intervals.
        asked.interrupt_at = Nanos(now.0 + (INTERRUPT_AGAIN.0 << asked.interrupts.min(8)));
        if hard.interrupt(&state.link).is_ok() {
            self.statistics.interrupted();
        } else {
            self.statistics.interrupt_failed();
        }
    }

    /// Helps where a worker or spare is silent.
    fn look_after_silent(&mut self, at: usize, now: Nanos) {
        let is_spare = at >= self.workers;
        if now >= self.states[at].look_at && !(is_spare && self.recall_unbegun(at, now)) {
            self.look_at_silent(at, now);
        }
        if is_spare {
            return;
        }
        while self.take_back(at, now) {}
        let state = &self.states[at];
        let ran = now.since(state.running_since);
        if self.has_waiting(at, state.worker, ran)
            && let Some(want) = self.wanted_beside(at, now)
            && (want == Want::Any || self.policy.waiting_started() > 0)
        {
            self.stand_in(at, want, now);
        }
    }

    /// Finds out why a worker is silent, if that matters to any request.
    fn look_at_silent(&mut self, at: usize, now: Nanos) {
        let state = &self.states[at];
        let lasted = now.since(state.silent_since()).max(self.rules.rescue_after);
        let ran = now.since(state.running_since);
        if self.spares_out == 0 && !self.has_waiting(at, state.worker, ran) {
            return;
        }
        let state = &mut self.states[at];
        state.look_at = Nanos(now.0 + lasted.0.min(LOOK_AGAIN.0));
        let was_blocked = state.is_blocked();
        state.silence = Some(match state.silence {
            // In this order: a thread that sleeps after its last answer is not blocked.
            _ if state.link.is_blocked() && !state.sender.has_answer() => Silence::Blocked,
            Some(Silence::Computing { since }) => Silence::Computing { since },
            _ => Silence::Computing { since: now },
        });
        state.was_blocked |= state.is_blocked();
        if state.is_blocked() && !was_blocked {
            let relieved = match at.checked_sub(self.workers) {
                Some(spare) => self.stands_in[spare].unwrap_or(at),
                None => at,
            };
            self.states[relieved].suspended_first = self.policy.waiting_started();
            if at < self.workers {
                self.statistics.stuck();
            }
        }
    }

    /// Takes back the request that a spare was sent and has not begun, since the spare does not get
    /// its core. Returns whether there was one.
    fn recall_unbegun(&mut self, spare: usize, now: Nanos) -> bool {
        let recalled = self.recall(spare, now);
        if recalled {
            self.spares_out -= 1;
            if let Some(relieved) = self.stands_in[spare - self.workers].take() {
                // That request has not had its turn.
                self.states[relieved].suspended_first += 1;
            }
        }
        recalled
    }

    /// Which requests may run beside the one at this worker: any if its thread has left its core,
    /// suspended ones if the thread may spin for a lock that one of these holds. `None`: no
    /// request.
    fn allowed_beside(&self, state: &WorkerState<Tr>, now: Nanos) -> Option<Want> {
        match state.silence? {
            Silence::Blocked => Some(Want::Any),
            Silence::Computing { since } => {
                let unanswered = now.since(since.max(state.asked.as_ref()?.at));
                let patience = self.rules.rescue_after.0.saturating_mul(SPINS_AFTER);
                (!self.rules.realtime && unanswered.0 > patience).then_some(Want::StartedOnly)
            }
        }
    }

    /// Which requests one more spare may run in the place of `worker`. `None`: no request, since
    /// the worker or one of its spares needs the core.
    fn wanted_beside(&self, worker: usize, now: Nanos) -> Option<Want> {
        let spares = self.stands_in.iter().zip(&self.states[self.workers..]);
        let its_spares = spares
            .filter(|&(&stands_in_for, _)| stands_in_for == Some(worker))
            .map(|(_, spare)| spare);
        std::iter::once(&self.states[worker])
            .chain(its_spares)
            .try_fold(self.wanted(), |wanted, state| {
                match self.allowed_beside(state, now)? {
                    Want::Any => Some(wanted),
                    Want::StartedOnly => Some(Want::StartedOnly),
                }
            })
    }

    /// Sends a spare, in the place of the worker `silent`, the policy's next request for that
    /// worker, of those that are wanted.
    fn stand_in(&mut self, silent: usize, want: Want, now: Nanos) {
        let mut free =
            (0..self.stands_in.len()).filter(|&spare| self.states[self.workers + spare].out() == 0);
        let (spare, is_last) = (free.next(), free.next().is_none());
        let Some(spare) = spare else {
            if !std::mem::replace(&mut self.states[silent].without_spare, true) {
                self.statistics.spares_exhausted();
            }
            return;
        };
        let at = self.workers + spare;
        let core = self.cores[silent];
        if core.is_some() && std::mem::replace(&mut self.spare_cores[spare], core) != core {
            // A spare that cannot be pinned serves from where it is.
            let _ = core.map(|core| self.states[at].link.pin(core));
        }
        self.states[at].worker = self.states[silent].worker;
        // Fresh requests might all want the same lock, and take a spare each. So each suspended
        // request has one turn first. Then fresh ones run too: the worker may wait for one of them.
        // A turn may end before the lock is released, so the last spare is for suspended requests.
        let of_suspended = &mut self.states[silent].suspended_first;
        let is_first = (*of_suspended > 0 || is_last) && self.policy.waiting_started() > 0;
        *of_suspended = of_suspended.saturating_sub(1);
        let want = if is_first { Want::StartedOnly } else { want };
        self.hand_one_of(want, at, silent, now);
        // The spare has no request if all that the policy gave were past their deadlines.
        if self.states[at].out() > 0 {
            if is_first && let Some(running) = self.states[at].running() {
                self.policy.grant_turn(running.task);
                // That is a turn for the requests that stand aside, too.
                self.lock_waiters.takes_turn();
            }
            self.stands_in[spare] = Some(silent);
            self.spares_out += 1;
            self.spares_used = self.spares_used.max(spare + 1);
            self.statistics.rescued();
        }
    }

    /// A spare's worker is back. The dispatcher recalls the spare's request, or, if the spare has
    /// begun it, asks it to give way, whether others wait or not. A request without a quantum may
    /// finish: preempted, it would stand behind later ones.
    fn make_way(&mut self, spare: usize, now: Nanos) {
        if self.recall_unbegun(spare, now) || self.states[spare].asked.is_some() {
            return;
        }
        let running = self.states[spare].running();
        if running.is_some_and(|running| self.policy.quantum(running.task).is_some()) {
            self.ask(spare, now, now);
        }
    }

    /// What is due once in a [`PERIOD`]: gauges, contexts for the reserve, deadlines of staged
    /// requests, spares to call back, floors.
    pub(super) fn look_around(&mut self, now: Nanos) {
        let period = Nanos(PERIOD.0 + now.since(self.next_look).0);
        self.next_look = Nanos(now.0 + PERIOD.0);
        self.publish_gauges();
        self.contexts.leave_the_others();
        if self.rules.realtime && self.is_within_own_work() {
            // Under SCHED_FIFO the thread that was left behind has the core only if this one gives
            // way.
            std::thread::yield_now();
        }
        for at in 0..self.workers {
            if self.states[at]
                .staged_tasks()
                .any(|task| self.is_expired(task, now))
            {
                // Back in the queue, requests past their deadline are refused when their turn
                // comes.
                while self.take_back(at, now) {}
            }
        }
        // Spares make way for a worker that is back on its core.
        for spare in 0..self.spares_used {
            let worker = self.stands_in[spare].map(|worker| &self.states[worker]);
            if worker.is_some_and(|worker| self.allowed_beside(worker, now).is_none()) {
                self.make_way(self.workers + spare, now);
            }
        }
        let mut counters = CountersSnapshot::default();
        for state in self.in_use() {
            counters += state.link.counters();
        }
        let of_best_effort = self.take_best_effort_time(now, period);
        let worker_time = Nanos(period.0 * self.workers as u64);
        let idle = Nanos(
            self.states[..self.workers]
                .iter_mut()
                .map(|state| state.take_idle_time(now).0)
                .sum::<u64>()
                + of_best_effort.0,
        );
        self.adapt_floors(counters, worker_time, idle);
    }

    /// A best-effort request, which is back at `now`, has run for `ran` at worker `at`.
    pub(super) fn note_best_effort(&mut self, ran: Nanos, at: usize, now: Nanos) {
        if self.rules.inline {
            return self.inline.as_good_as_idle(at, self.clock.to_cycles(ran.0));
        }
        // The last look has counted the time before it.
        let last_look = Nanos(self.next_look.0.saturating_sub(PERIOD.0));
        self.best_effort_time.0 += ran.min(now.since(last_look)).0;
    }

    /// For how long workers ran best-effort requests in this period, which ends now. To the floors
    /// that time is no load, since any other request can have it.
    fn take_best_effort_time(&mut self, now: Nanos, period: Nanos) -> Nanos {
        let workers = &self.states[..self.workers];
        let is_best_effort = |state: &&WorkerState<Tr>| {
            let running = state.running();
            running.is_some_and(|sent| self.records[sent.task.0 as usize].is_best_effort)
        };
        let running = workers.iter().filter(is_best_effort);
        let so_far = running.map(|state| now.since(state.running_since).min(period).0);
        Nanos(so_far.sum::<u64>() + std::mem::take(&mut self.best_effort_time).0)
    }

    /// Adapts the mechanisms' floors to what a period has shown, and publishes what was learnt.
    pub(super) fn adapt_floors(
        &mut self,
        counters: CountersSnapshot,
        worker_time: Nanos,
        idle: Nanos,
    ) {
        let last = std::mem::replace(&mut self.last_counters, counters);
        let hard = counters.taken_by_interrupt - last.taken_by_interrupt;
        let all = counters.taken() - last.taken();
        let learner = self.policy.learner();
        let preempted_for = match learner.is_some_and(Learner::is_first_come) {
            true => PreemptedFor::Nobody,
            false => self.rules.preempted_for,
        };
        if let (Some(learned), Some(learner)) = (&self.learned, learner) {
            learned.publish(learner.lessons());
        }
        let by_probe = all.saturating_sub(hard);
        self.preemption
            .adapt(worker_time, idle, by_probe, hard, preempted_for);
    }

    fn is_expired(&self, task: TaskId, now: Nanos) -> bool {
        let record = &self.records[task.0 as usize];
        record.deadline < now && record.ran == Nanos(0)
    }

    pub(super) fn publish_gauges(&self) {
        // Inline, nothing is staged, and many threads may be in use.
        let (staged, running) = match self.rules.inline {
            true => (0, self.inline_running()),
            false => self.staged_and_running(),
        };
        self.statistics.gauges(
            self.policy.len() + self.lock_waiters.len() + staged,
            self.contexts.in_use(),
            running,
            self.policy.progress_interventions(),
            self.policy.error().is_some(),
        );
        if self.statistics.queued.is_wanted() {
            self.tell_of_queued(staged);
        }
    }

    /// How many requests are staged that never ran, and at how many workers and desks one runs.
    fn staged_and_running(&self) -> (usize, usize) {
        let states = self.in_use();
        let staged = states.iter().map(WorkerState::staged_fresh).sum();
        let all = states.iter().chain(&self.states[self.desks..]);
        (staged, all.filter(|state| state.out() > 0).count())
    }

    /// Tells readers what waits and never ran, what is staged included: that has arrived first.
    #[cold]
    fn tell_of_queued(&self, staged_fresh: usize) {
        let waiting = self.policy.fresh().map(|task| Meta {
            class: task.class,
            arrival: task.arrival,
        });
        let staged = self.in_use().iter().flat_map(WorkerState::staged_tasks);
        let records = staged.map(|task| &self.records[task.0 as usize]);
        let staged = records.filter(|record| record.ran == Nanos(0));
        let staged = staged.map(|record| Meta {
            class: record.class,
            arrival: record.arrival,
        });
        let all = self.policy.len() - self.policy.waiting_started() + staged_fresh;
        self.statistics.queued.tell(staged.chain(waiting), all);
    }
}
