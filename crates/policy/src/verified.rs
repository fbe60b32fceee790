//! The core's watch over a policy: [`Verified`] checks each answer, and makes sure that every
//! started request makes progress.
//!
//! Dispatcher and simulator call a policy only through [`Verified`]; servers and policies do not
//! need it. It keeps a record per task slot:
//!
//! ```text
//!               arrive                    next                  preempted
//!   (absent) ----------> (waiting fresh) ------> (      ) --------------------> (waiting started)
//!      ^                        ^                ( out  )                               |
//!      |                        +--- returned -- (      ) <------------ next -----------+
//!      |                                         (      ) --- returned, had started --->+
//!      +----------------- finished ------------- (      )
//! ```
//!
//! and its own queue of waiting tasks: the fresh in order of arrival, the started in order of when
//! they last stopped running. The caller's own mistakes (a task preempted that is not out) panic in
//! debug builds and are ignored otherwise.
//!
//! # Checks
//!
//! An answer must be a waiting task, unaltered, and a started one if only those were wanted. When
//! the policy answers nothing although something waits, its [`len`](Policy::len) must be right. It
//! has stalled when it goes on answering nothing for 10 ms and 100 times, although it says that
//! requests wait for that very worker, or although no request is out at any worker.
//!
//! At the first [`PolicyError`] the policy is set aside for good (not dropped: that would free
//! memory). This file's own queue goes on: tasks in the order in which they came to wait, quantum
//! as under *Quantum* below. That queue knows every waiting task, and the tasks out at workers come
//! back to it as before, so nothing is lost.
//!
//! # Progress
//!
//! A suspended request may hold a lock for which another spins. A policy that keeps answering the
//! spinner would hang both. Therefore a request that was preempted `k` times in a row, each time
//! while other started requests waited, stands behind a *barrier*: all started requests that wait
//! at that moment run before it. They precede it in the list of started requests, since it joins
//! that list at the end. So the rule is: *a request behind a barrier is answered only as the first
//! of the list*. When the policy answers it earlier, [`Verified`] returns it, pulls the first of
//! the list out with [`Policy::remove`], and answers that one instead.
//!
//! Bound: **while a started request H waits, no other request gets more than k quanta.** A request
//! that does is preempted k times in a row while H waits (a run of preemptions begun before only
//! makes it fewer), and joins the list behind H with a barrier. A request whose barrier dates from
//! before H waited is before H in the list; it passes the barrier once, counts from zero, and has k
//! quanta, too.
//!
//! Fresh requests cannot get around this bound. Let C be the number of contexts. A request that
//! starts while H waits either finishes within k quanta (the server makes progress) or keeps its
//! context. At most C - 1 others keep one; when all are taken, the dispatcher asks with
//! [`Want::StartedOnly`]. So while H waits, at most k (C - 1) quanta go to requests that do not
//! finish, all others to requests that do. In particular, if nothing finishes until H has run (all
//! spin for its lock), H runs after at most k (C - 1) quanta. A policy may still favour fresh
//! requests that *finish* over H, for as long as they come.
//!
//! The bound needs a policy that answers something; the checks catch one that does not. It also
//! needs quanta to end. A policy whose [`waiting`](Policy::waiting) is always zero would never
//! cause a preemption, so the dispatcher preempts after [`PROGRESS_QUANTUM`] whenever
//! [`Verified::waiting_started`] is not zero.
//!
//! # Quantum
//!
//! A request that runs to completion could spin forever for a lock whose holder waits, and never be
//! preempted. So while started requests wait, a request without a quantum gets one of 1 ms
//! ([`PROGRESS_QUANTUM`]).
//!
//! A request that gives way at once, as best-effort ones do, hardly gets further when the progress
//! rule runs it. So every `k`th time it has a *turn*: the quantum of the request in whose place it
//! runs. It has no turn each time, since most requests in whose place it runs do not wait for it.
//!
//! # Longer quanta
//!
//! By choice, a request that was preempted often runs for longer at a time: for twice its quantum
//! after 8 preemptions, and for four times after 16 ([`Verified::stretch`]). It is long, and has
//! let others pass often enough to pay for fewer preemptions. Short requests meet more of their
//! worker's time that way, since less of it goes into preemptions; each waits for longer, so there
//! is a bound. The idea is Aspen's (NSDI 2025); the numbers are ours, by simulation.
//!
//! # Cost
//!
//! Each call takes constant time and allocates nothing after construction: a few list operations
//! beside the policy's own.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;

use crate::queue::Queues;
use crate::{
    ClassId, FlowId, Full, Learner, Lesson, Nanos, ParameterError, Policy, PolicyError, Task,
    TaskId, Want, WorkerId,
};

/// The quantum, while started requests wait, of a request that would run to completion.
pub const PROGRESS_QUANTUM: Nanos = Nanos::from_millis(1);

/// The default of `k`: preemptions in a row after which a request lets the others run first.
pub const PROGRESS_LIMIT: u32 = 16;

/// After so many preemptions a request's quantum is twice as long, where quanta grow.
pub const LONGER_AFTER: u16 = 8;

/// Quanta grow up to so many times the policy's.
pub const LONGEST_STRETCH: u64 = 4;

/// The quantum of a request that runs only in what others leave idle.
pub const GIVES_WAY: Nanos = Nanos(0);

/// A policy that answers nothing has stalled after this time and this many answers.
const STALLED_AFTER: Nanos = Nanos::from_millis(10);
const STALLED_ANSWERS: u32 = 100;

/// A policy under watch: its answers are checked, and the progress rule holds. See the
/// [module](self).
pub struct Verified {
    policy: Box<dyn Policy>,
    name: String,
    /// Once this is set, `policy` is not called.
    error: Option<PolicyError>,
    /// All waiting tasks: what the policy should hold, and the queue that replaces it if it fails.
    waiting: Queues,
    records: Box<[Record]>,
    /// Tasks out at workers.
    out: usize,
    progress_limit: u32,
    interventions: u64,
    silence: Option<Silence>,
    /// What learns what the policy was not given.
    learner: Option<Learner>,
    /// Whether requests that are preempted often have longer quanta.
    stretches: bool,
}

#[derive(Clone, Copy)]
struct Record {
    state: State,
    /// Preemptions in a row while other started requests waited.
    stuck: u32,
    /// Preemptions in all.
    preemptions: u16,
    /// How often the progress rule has run it since its last turn.
    hurried: u32,
    /// Its turn: the quantum while it is out, for a request that otherwise gives way at once.
    turn: Option<Nanos>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Waiting,
    Out,
}

/// A run of empty answers that should not have been empty.
#[derive(Clone, Copy)]
struct Silence {
    since: Nanos,
    answers: u32,
}

const QUEUE: usize = 0;

impl Verified {
    /// Watches `policy`, which has no tasks yet, with task slots below `capacity`.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`].
    pub fn new(policy: Box<dyn Policy>, capacity: usize) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        let record = Record {
            state: State::Absent,
            stuck: 0,
            preemptions: 0,
            hurried: 0,
            turn: None,
        };
        Ok(Self {
            name: policy.name(),
            policy,
            error: None,
            waiting: Queues::new(capacity, 1),
            records: vec![record; capacity].into_boxed_slice(),
            out: 0,
            progress_limit: PROGRESS_LIMIT,
            interventions: 0,
            silence: None,
            learner: None,
            stretches: false,
        })
    }

    /// Sets `k`: how often in a row a request may be preempted, while other started requests wait,
    /// before these run first.
    ///
    /// # Errors
    /// [`ParameterError::ZeroProgressLimit`].
    pub fn with_progress_limit(self, k: u32) -> Result<Self, ParameterError> {
        if k == 0 {
            return Err(ParameterError::ZeroProgressLimit);
        }
        Ok(Self {
            progress_limit: k,
            ..self
        })
    }

    /// Lets the policy learn what it was not given.
    #[must_use]
    pub fn with_learner(self, learner: Option<Learner>) -> Self {
        Self { learner, ..self }
    }

    /// Whether requests that are preempted often have longer quanta. By default they do not.
    #[must_use]
    pub fn with_longer_quanta(self, stretches: bool) -> Self {
        Self { stretches, ..self }
    }

    /// What learns what the policy was not given, if anything does.
    #[must_use]
    pub fn learner(&self) -> Option<&Learner> {
        self.learner.as_ref()
    }

    /// A request arrives and waits. See [`Policy::arrive`].
    ///
    /// # Errors
    /// [`Full`] if the policy has no room, or the slot is beyond the capacity; nothing has changed.
    #[inline]
    pub fn arrive(&mut self, task: Task) -> Result<(), Full> {
        self.arrive_due(task, None)
    }

    /// As [`arrive`](Self::arrive), for a request that may bring a deadline. See
    /// [`Policy::arrive_due`].
    ///
    /// # Errors
    /// As [`arrive`](Self::arrive).
    #[inline]
    pub fn arrive_due(&mut self, task: Task, due: Option<Nanos>) -> Result<(), Full> {
        debug_assert!(!task.started, "{task:?} arrives started");
        let record = self.records.get_mut(task.id.0 as usize).ok_or(Full)?;
        debug_assert!(
            record.state == State::Absent,
            "{task:?} is in the system already"
        );
        if record.state != State::Absent {
            return Err(Full);
        }
        if self.error.is_none() {
            match due {
                Some(due) => self.policy.arrive_due(task, due)?,
                None => self.policy.arrive(task)?,
            }
        }
        *record = Record {
            state: State::Waiting,
            stuck: 0,
            preemptions: 0,
            hurried: 0,
            turn: None,
        };
        self.waiting.push_back(QUEUE, task);
        Ok(())
    }

    /// The next request for `worker`, which is out from now on. See [`Policy::next`].
    #[inline]
    pub fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
        if self.waiting.total(want) == 0 {
            return None;
        }
        let answer = match self.error {
            None => self.ask(worker, now, want).unwrap_or_else(|error| {
                self.error = Some(error);
                self.first_come(want)
            }),
            Some(_) => self.first_come(want),
        };
        answer.map(|id| self.send_out(id))
    }

    /// The request of slot `id` was preempted on `worker` at `now`: it has started and waits again.
    pub fn preempted(&mut self, id: TaskId, worker: WorkerId, now: Nanos) {
        let Some(task) = self.take_in(id, State::Waiting) else {
            return;
        };
        let task = Task {
            started: true,
            ..task
        };
        let record = &mut self.records[id.0 as usize];
        record.preemptions = record.preemptions.saturating_add(1);
        record.stuck = match self.waiting.total(Want::StartedOnly) {
            0 => 0,
            _ => record.stuck.saturating_add(1),
        };
        self.waiting.push_back(QUEUE, task);
        if self.error.is_none() {
            self.policy.preempted(task, worker, now);
        }
    }

    /// The request of slot `id`, which was out for `worker`, did not run and waits again where it
    /// was.
    pub fn returned(&mut self, id: TaskId, worker: WorkerId) {
        let Some(task) = self.take_in(id, State::Waiting) else {
            return;
        };
        self.waiting.put_back(QUEUE, task);
        if self.error.is_none() {
            self.policy.returned(task, worker);
        }
    }

    /// The request of slot `id`, which was out for `worker`, has ended; the slot is free.
    #[inline]
    pub fn finished(&mut self, id: TaskId, worker: WorkerId) {
        let Some(task) = self.take_in(id, State::Absent) else {
            return;
        };
        if self.error.is_none() {
            self.policy.finished(task, worker);
        }
    }

    /// As [`finished`](Self::finished), with the time that the request ran in all. See
    /// [`Policy::finished_after`].
    #[inline]
    pub fn finished_after(&mut self, id: TaskId, worker: WorkerId, ran: Nanos) {
        let Some(task) = self.take_in(id, State::Absent) else {
            return;
        };
        if self.error.is_none() {
            self.policy.finished_after(task, worker, ran);
            let learner = self.learner.as_mut();
            if let Some(lesson) = learner.and_then(|one| one.finished(task.class, ran)) {
                self.teach(lesson);
            }
        }
    }

    /// The request of slot `id`, which is out, was preempted and has run for `ran` in all. The
    /// caller says so before [`preempted`](Self::preempted).
    #[inline]
    pub fn ran_unfinished(&mut self, id: TaskId, ran: Nanos) {
        let class = self.waiting.task(id).class;
        let learner = self.learner.as_mut();
        if let Some(lesson) = learner.and_then(|one| one.preempted(class, ran)) {
            self.teach(lesson);
        }
    }

    /// Tells the policy what was learnt.
    #[cold]
    fn teach(&mut self, lesson: Lesson) {
        if self.error.is_some() {
            return;
        }
        let class = lesson.class.unwrap_or_default();
        if let Some(slo) = lesson.slo {
            self.policy.set_slo(class, slo);
        }
        if let Some(requeue) = lesson.requeue {
            self.policy.set_requeue(class, requeue);
        }
    }

    /// Takes out a request that never ran, to refuse it at shutdown; `None`: all waiting requests
    /// have run. It is out for `worker` now: call [`finished`](Self::finished) when it is refused.
    pub fn take_fresh(&mut self, worker: WorkerId) -> Option<Task> {
        let first = self.waiting.first_fresh(QUEUE)?.id;
        self.take_waiting(first, worker)
    }

    /// As [`take_fresh`](Self::take_fresh), for the request of slot `id`, which may have run.
    /// `None`: it does not wait.
    pub fn take_waiting(&mut self, id: TaskId, worker: WorkerId) -> Option<Task> {
        let record = self.records.get(id.0 as usize)?;
        if record.state != State::Waiting {
            return None;
        }
        let task = *self.waiting.task(id);
        if self.error.is_none() {
            self.error = self.pull(task, worker).err();
        }
        Some(self.send_out(id))
    }

    /// How long the request of slot `id`, which is out, may run before it is preempted if others
    /// wait; `None`: to completion. The answer changes when started requests begin to wait, so ask
    /// again while the request runs.
    #[must_use]
    #[inline]
    pub fn quantum(&self, id: TaskId) -> Option<Nanos> {
        let quantum = match self.error {
            None => self.policy.quantum(self.waiting.task(id)),
            Some(_) => None,
        };
        let quantum = match quantum {
            Some(GIVES_WAY) => self.records[id.0 as usize].turn.or(quantum),
            _ => quantum.filter(|&quantum| quantum != Nanos::MAX),
        };
        if self.waiting_started() > 0 {
            quantum.or(Some(PROGRESS_QUANTUM))
        } else {
            quantum
        }
    }

    /// How many times its quantum the request of slot `id` may run, since it was preempted often: 1
    /// to [`LONGEST_STRETCH`]. Not where it may hold up others, which is what
    /// [`PROGRESS_QUANTUM`] is about.
    #[must_use]
    #[inline]
    pub fn stretch(&self, id: TaskId) -> u64 {
        match self.stretches {
            true => {
                let doublings = self.records[id.0 as usize].preemptions / LONGER_AFTER;
                (1 << doublings.min(8)).min(LONGEST_STRETCH)
            }
            false => 1,
        }
    }

    /// The policy's quantum for requests of this class, whatever waits; `None`: to completion.
    #[must_use]
    pub fn quantum_of(&self, class: ClassId) -> Option<Nanos> {
        let task = Task {
            id: TaskId(0),
            class,
            flow: FlowId(0),
            arrival: Nanos(0),
            started: false,
        };
        let quantum = self.policy.quantum(&task);
        quantum.filter(|&quantum| quantum != Nanos::MAX)
    }

    /// How many waiting requests could run on `worker` now. See [`Policy::waiting`].
    #[must_use]
    pub fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        match (self.waiting.total(want), self.error) {
            (0, _) => 0,
            (waiting, None) => self.policy.waiting(worker, want).min(waiting),
            (waiting, Some(_)) => waiting,
        }
    }

    /// For how many of the [`waiting`](Self::waiting) requests `worker` is preempted while it runs
    /// the request of slot `running`, or whatever it runs. See [`Policy::worth_preempting`].
    #[must_use]
    pub fn worth_preempting(&self, worker: WorkerId, want: Want, running: Option<TaskId>) -> usize {
        let running = || running.map(|id| self.waiting.task(id));
        match (self.waiting.total(want), self.error) {
            (0, _) => 0,
            (waiting, None) => (self.policy.worth_preempting(worker, want, running())).min(waiting),
            (waiting, Some(_)) => waiting,
        }
    }

    /// Whether the request of slot `id` runs only in what others leave idle, and gives way at once.
    #[must_use]
    #[inline]
    pub fn is_best_effort(&self, id: TaskId) -> bool {
        let quantum = || self.policy.quantum(self.waiting.task(id));
        self.error.is_none() && quantum() == Some(GIVES_WAY)
    }

    /// Gives the request of slot `id`, which is out, a turn of [`PROGRESS_QUANTUM`], if it
    /// otherwise gives way at once: it may hold a lock for which a blocked request waits.
    pub fn grant_turn(&mut self, id: TaskId) {
        self.records[id.0 as usize].turn = Some(PROGRESS_QUANTUM);
    }

    /// How many requests that have run already wait, in all. Each holds a context, and perhaps a
    /// lock. While there are any, no worker should run one request for longer than
    /// [`PROGRESS_QUANTUM`], whatever [`waiting`](Self::waiting) says.
    #[must_use]
    #[inline]
    pub fn waiting_started(&self) -> usize {
        self.waiting.total(Want::StartedOnly)
    }

    /// How many requests wait in all.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.waiting.total(Want::Any)
    }

    /// Whether nothing waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The requests that wait and never ran, in the order in which they arrived.
    pub fn fresh(&self) -> impl Iterator<Item = &Task> {
        self.waiting.fresh(QUEUE)
    }

    /// The policy's name, whether or not it has failed since.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the policy did wrong; since then its tasks are served first come, first served.
    #[must_use]
    pub fn error(&self) -> Option<&PolicyError> {
        self.error.as_ref()
    }

    /// How often the progress rule ran another request than the one the policy answered.
    #[must_use]
    pub fn progress_interventions(&self) -> u64 {
        self.interventions
    }

    /// The first task in this file's own queue.
    fn first_come(&self, want: Want) -> Option<TaskId> {
        self.waiting.first(QUEUE, want).map(|task| task.id)
    }

    /// The policy's answer, checked, or what the progress rule puts in its place.
    #[inline]
    fn ask(
        &mut self,
        worker: WorkerId,
        now: Nanos,
        want: Want,
    ) -> Result<Option<TaskId>, PolicyError> {
        let Some(answer) = self.policy.next(worker, now, want) else {
            self.check_silence(worker, now, want)?;
            return Ok(None);
        };
        self.silence = None;
        self.check(&answer, worker, want)?;
        self.let_others_run(answer, worker).map(Some)
    }

    #[inline]
    fn check(&self, answer: &Task, worker: WorkerId, want: Want) -> Result<(), PolicyError> {
        let task = answer.id;
        match self.records.get(task.0 as usize).map(|record| record.state) {
            None | Some(State::Absent) => return Err(PolicyError::Unknown { task, worker }),
            Some(State::Out) => return Err(PolicyError::NotWaiting { task, worker }),
            Some(State::Waiting) => {}
        }
        let given = self.waiting.task(task);
        if answer != given {
            return Err(PolicyError::Altered {
                answered: *answer,
                given: *given,
            });
        }
        if want == Want::StartedOnly && !given.started {
            return Err(PolicyError::NotStarted { task, worker });
        }
        Ok(())
    }

    /// Checks a policy that answered nothing although a wanted request waits.
    fn check_silence(
        &mut self,
        worker: WorkerId,
        now: Nanos,
        want: Want,
    ) -> Result<(), PolicyError> {
        let waiting = self.len();
        let claimed = self.policy.len();
        if claimed != waiting {
            return Err(PolicyError::Miscounted { claimed, waiting });
        }
        if self.out > 0 && self.policy.waiting(worker, want) == 0 {
            return Ok(());
        }
        let silence = self.silence.get_or_insert(Silence {
            since: now,
            answers: 0,
        });
        silence.answers = silence.answers.saturating_add(1);
        let lasted = now.since(silence.since);
        if silence.answers >= STALLED_ANSWERS && lasted >= STALLED_AFTER {
            return Err(PolicyError::Stalled {
                worker,
                want,
                waiting,
                lasted,
            });
        }
        Ok(())
    }

    /// Applies the progress rule: the result is `answer` or, if that stands behind a barrier, the
    /// started request that has waited longest.
    fn let_others_run(&mut self, answer: Task, worker: WorkerId) -> Result<TaskId, PolicyError> {
        if self.records[answer.id.0 as usize].stuck < self.progress_limit {
            return Ok(answer.id);
        }
        // `answer` itself is among the started ones, so there is a first.
        let first = *self
            .waiting
            .first(QUEUE, Want::StartedOnly)
            .unwrap_or(&answer);
        if first.id != answer.id {
            let turn = self.turn_instead_of(&answer, first.id);
            self.policy.returned(answer, worker);
            self.pull(first, worker)?;
            self.interventions += 1;
            self.records[first.id.0 as usize].turn = turn;
        }
        // The first of the list passes its own barrier, if it stands behind one.
        self.records[first.id.0 as usize].stuck = 0;
        Ok(first.id)
    }

    /// The turn of the request of slot `id`, which runs in place of `answer`; `None`: it has none
    /// this time.
    fn turn_instead_of(&mut self, answer: &Task, id: TaskId) -> Option<Nanos> {
        let hurried = &mut self.records[id.0 as usize].hurried;
        *hurried += 1;
        if *hurried < self.progress_limit {
            return None;
        }
        *hurried = 0;
        match self.policy.quantum(answer) {
            None | Some(Nanos::MAX) => Some(PROGRESS_QUANTUM),
            quantum => quantum,
        }
    }

    /// Takes `task`, which waits, out of the policy by name.
    fn pull(&mut self, task: Task, worker: WorkerId) -> Result<(), PolicyError> {
        match self.policy.remove(task.id, worker) {
            Some(answered) if answered == task => Ok(()),
            answered => Err(PolicyError::NotRemoved {
                task: task.id,
                answered,
            }),
        }
    }

    /// Takes the task of slot `id`, which waits, out of this file's own queue.
    #[inline]
    fn send_out(&mut self, id: TaskId) -> Task {
        self.waiting.unlink(id);
        self.records[id.0 as usize].state = State::Out;
        self.out += 1;
        *self.waiting.task(id)
    }

    /// Takes the task of slot `id`, which is out, back into `state`.
    #[inline]
    fn take_in(&mut self, id: TaskId, state: State) -> Option<Task> {
        let record = self
            .records
            .get_mut(id.0 as usize)
            .filter(|record| record.state == State::Out);
        debug_assert!(record.is_some(), "{id:?} is not out at a worker");
        let record = record?;
        record.state = state;
        record.turn = None;
        self.out -= 1;
        Some(*self.waiting.task(id))
    }
}
