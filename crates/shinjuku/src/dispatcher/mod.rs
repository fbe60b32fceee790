//! The dispatcher: sees every request, hands them out, and stops those that run too long while
//! others wait.
//!
//! One turn of its loop: take the workers' answers and hand out, poll the transport and hand out,
//! stop requests that have run too long, help where a worker is blocked. The policy decides the
//! order; this module keeps the requests and the rules that hold whatever the policy says:
//! - Nothing is preempted while nothing waits. The exceptions are the layouts of `inline.rs`, and a
//!   request with a quantum at a spare whose worker is back.
//! - A preempted request keeps its arrival time.
//! - With no context free, the policy is asked for started requests only.
//! - When a worker has given no answer for `rescue_after` while others wait, the dispatcher recalls
//!   the requests staged there. If the worker's thread is blocked in the kernel, a spare worker
//!   goes on in its place until it answers, with suspended requests and fresh ones; if the thread
//!   computes for long, with suspended ones (ARCHITECTURE.md, "Progress", rule 2; rule 1 is in
//!   [`Verified`]).
//!
//! After start nothing here allocates, frees, locks, or drops a user's value: a suspended context
//! may hold any lock, the allocator's included, and only this thread brings it back. The loop's
//! system calls are the interrupt's and the transport's, those that wake a sleeping worker, and,
//! for a worker that is silent for milliseconds, those that read its thread's state and pin a
//! spare.

mod contexts;
mod end;
mod inline;
mod lock_waiters;
mod watch;
mod works;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use shinjuku_net::{Arrival, Refusal, Transport};
use shinjuku_policy::{ClassId, FlowId, Nanos, Task, TaskId, Verified, Want, WorkerId};
use shinjuku_preempt::{Clock, Completion, CountersSnapshot, Idle, Runnable, Suspended};

pub(crate) use contexts::Contexts;
pub(crate) use end::{BACKGROUND_TURN, ShutdownHandoff};
use inline::Inline;
pub(crate) use inline::{Deadline, Next, Turn};
use lock_waiters::LockWaiters;
pub(crate) use works::{DESKS, DispatcherThread, POLICY_ID, Post, Relay, slice};

use crate::learned::Learned;
use crate::loops::IdleTime;
use crate::preemption::Preemption;
use crate::quantum_floor::PreemptedFor;
use crate::request::{Done, Job, Meta};
use crate::statistics::DispatcherStatistics;
use crate::worker::{Orders, SHARED_PAUSE};
use crate::worker_state::{Answered, WorkerState};

/// Requests taken from the transport in one turn.
const BATCH: usize = 64;
/// While the queue is nearly full, so many slots are searched in one turn for requests whose
/// clients have given up.
const SWEEP: usize = 4 * BATCH;
/// How long an idle dispatcher sleeps at most before it looks for work, even if no thread wakes it.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// What the runtime wants of the dispatcher. The dispatcher reads it each turn, so it has cache
/// lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Control(AtomicU8);

impl Control {
    const SERVE: u8 = 0;
    const DRAIN: u8 = 1;
    const END: u8 = 2;

    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(Self::SERVE))
    }

    /// The dispatcher takes no new requests, and finishes those that are there.
    pub(crate) fn drain(&self) {
        self.0.fetch_max(Self::DRAIN, Ordering::Release);
    }

    /// The time to finish requests is over.
    pub(crate) fn end(&self) {
        self.0.fetch_max(Self::END, Ordering::Release);
    }

    /// Whether requests are wanted.
    pub(crate) fn is_serving(&self) -> bool {
        self.state() == Self::SERVE
    }

    /// Whether the time to finish requests is over.
    pub(crate) fn is_ending(&self) -> bool {
        self.state() == Self::END
    }

    fn state(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }
}

/// One admitted request.
struct Record<Tr: Transport> {
    class: ClassId,
    arrival: Nanos,
    deadline: Nanos,
    /// How long it has run, as far as the dispatcher can know.
    ran: Nanos,
    /// Its thread was found blocked in that time.
    was_blocked: bool,
    /// It runs only in what the other classes leave idle.
    is_best_effort: bool,
    place: Place<Tr>,
}

/// Where a slot's request is.
enum Place<Tr: Transport> {
    /// The slot has no request.
    Free,
    /// The request waits and never ran.
    Fresh(Tr::Request, Tr::Route),
    /// The request was preempted, and waits.
    Suspended(Suspended<Job<Tr>, Done<Tr>>),
    /// The request is at a worker, staged or running.
    Out,
}

/// What comes after a round of the dispatcher's loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    Again,
    /// The thread has a request of its own to run.
    Work,
    /// Everything has finished, or is to end.
    Over,
}

/// What a round knows of those before.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    last: Nanos,
    worked_at: Nanos,
    worked: bool,
    closed: bool,
}

impl Rounds {
    fn new(now: Nanos) -> Self {
        Self {
            last: now,
            worked_at: now,
            worked: false,
            closed: false,
        }
    }
}

pub(crate) struct Dispatcher<Tr: Transport> {
    transport: Tr,
    policy: Verified,
    /// Workers first, then spares, then the desks of a dispatcher that works.
    states: Vec<WorkerState<Tr>>,
    workers: usize,
    /// Where the desks begin, and which of them is that of the thread that has the dispatcher.
    desks: usize,
    active_desk: usize,
    rounds: Rounds,
    /// The workers' cores, to which spares are pinned.
    cores: Vec<Option<usize>>,
    /// For each spare, the worker whose place it takes.
    stands_in: Vec<Option<usize>>,
    /// For each spare, the core that it was pinned to last.
    spare_cores: Vec<Option<usize>>,
    contexts: Contexts<Idle<Job<Tr>, Done<Tr>>>,
    records: Vec<Record<Tr>>,
    free: Vec<TaskId>,
    turned_away: Vec<(Tr::Request, Tr::Route, Refusal)>,
    /// The slot where the next sweep begins.
    next_swept: usize,
    /// How many spares have a request.
    spares_out: usize,
    /// How many spares were ever sent a request. The first free one is taken, so these are the
    /// first spares.
    spares_used: usize,
    rules: Rules,
    preemption: Preemption,
    /// Where what the policy learns is published, if it is published from here.
    learned: Option<Arc<Learned>>,
    next_look: Nanos,
    /// For how long best-effort requests have run since the last look; it counts as idle time.
    best_effort_time: Nanos,
    last_counters: CountersSnapshot,
    /// The worker that is offered the next request first.
    first_served: usize,
    clock: Clock,
    statistics: Arc<DispatcherStatistics>,
    control: Arc<Control>,
    orders: Arc<Orders>,
    shutdown_handoff: Arc<ShutdownHandoff<Tr>>,
    /// Memory for the end, when the dispatcher must not allocate.
    unfinished: Vec<ClassId>,
    lock_waiters: LockWaiters,
    inline: Inline,
}

/// Numbers from the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) depth: usize,
    /// Whether contexts are kernel threads.
    pub(crate) kernel_threads: bool,
    /// Whether the layout is `inline` or `symmetric`: every worker is a thread that may have the
    /// dispatcher, and one has it at a time.
    pub(crate) inline: bool,
    /// How many requests may wait.
    pub(crate) queue: usize,
    /// Whether requests beyond `queue` stay in the transport and are not refused. Later requests
    /// may then go to another part of the transport, which has room.
    pub(crate) leaves_excess: bool,
    pub(crate) rescue_after: Nanos,
    /// How long the dispatcher polls without finding work before it sleeps; `None`: it never
    /// sleeps.
    pub(crate) idle_backoff: Option<Nanos>,
    /// Whether other threads of the runtime may need the dispatcher's core.
    pub(crate) shares_core: bool,
    /// Whether the runtime's threads are under SCHED_FIFO. Of two such threads on a core, one runs
    /// until it sleeps or yields.
    pub(crate) realtime: bool,
    /// Whether some classes run only in what the others leave idle.
    pub(crate) best_effort: bool,
    pub(crate) preempted_for: PreemptedFor,
    /// Whether whoever brings work for a loop, and finds all of them busy, sets the timer of a
    /// request that runs without one.
    pub(crate) is_told_of_work: bool,
    /// For how long the dispatcher runs a request itself when it has nothing else to do; `None`:
    /// it does not.
    pub(crate) works: Option<Nanos>,
    /// Per class: how long after its arrival a request must have started.
    pub(crate) deadlines: Vec<Option<Nanos>>,
}

/// What the dispatcher is made of.
pub(crate) struct Parts<Tr: Transport> {
    pub(crate) transport: Tr,
    pub(crate) policy: Verified,
    pub(crate) workers: Vec<WorkerState<Tr>>,
    pub(crate) spares: Vec<WorkerState<Tr>>,
    /// Of a dispatcher that works, its own threads.
    pub(crate) desks: Vec<WorkerState<Tr>>,
    pub(crate) cores: Vec<Option<usize>>,
    pub(crate) contexts: Contexts<Idle<Job<Tr>, Done<Tr>>>,
    /// Task slots: what the policy was built for.
    pub(crate) capacity: usize,
    pub(crate) rules: Rules,
    pub(crate) preemption: Preemption,
    /// Where what the policy learns is published, of the first dispatcher.
    pub(crate) learned: Option<Arc<Learned>>,
    pub(crate) statistics: Arc<DispatcherStatistics>,
    pub(crate) control: Arc<Control>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) shutdown_handoff: Arc<ShutdownHandoff<Tr>>,
    /// The idle time of all loops, in the layouts that have loops.
    pub(crate) idle_time: Arc<IdleTime>,
}

impl<Tr: Transport> Dispatcher<Tr> {
    /// Takes all memory that it will ever use.
    pub(crate) fn new(parts: Parts<Tr>) -> Self {
        let Parts {
            transport,
            policy,
            mut workers,
            spares,
            desks,
            cores,
            contexts,
            capacity,
            rules,
            preemption,
            learned,
            ..
        } = parts;
        let clock = Clock::get();
        let worker_count = workers.len();
        let stands_in = vec![None; spares.len()];
        let spare_cores = vec![None; spares.len()];
        workers.extend(spares);
        let first_desk = workers.len();
        workers.extend(desks);
        let now = Nanos(clock.now_nanos());
        let record = || Record {
            class: ClassId(0),
            arrival: Nanos(0),
            deadline: Nanos::MAX,
            ran: Nanos(0),
            was_blocked: false,
            is_best_effort: false,
            place: Place::Free,
        };
        let slots = u32::try_from(capacity).expect("the policy was built for it");
        Self {
            transport,
            policy,
            inline: Inline::new(workers.len(), rules.deadlines.len(), parts.idle_time, now),
            states: workers,
            workers: worker_count,
            desks: first_desk,
            active_desk: 0,
            rounds: Rounds::new(now),
            cores,
            stands_in,
            spare_cores,
            contexts,
            unfinished: Vec::with_capacity(capacity),
            lock_waiters: LockWaiters::new(capacity),
            records: std::iter::repeat_with(record).take(capacity).collect(),
            free: (0..slots).rev().map(TaskId).collect(),
            turned_away: Vec::with_capacity(BATCH),
            next_swept: 0,
            spares_out: 0,
            spares_used: 0,
            rules,
            preemption,
            learned,
            next_look: now,
            best_effort_time: Nanos(0),
            last_counters: CountersSnapshot::default(),
            first_served: 0,
            clock,
            statistics: parts.statistics,
            control: parts.control,
            orders: parts.orders,
            shutdown_handoff: parts.shutdown_handoff,
        }
    }

    /// Serves until it is told to end, or is told to drain and has drained. A dispatcher that does
    /// nothing else.
    pub(crate) fn run(mut self) {
        while self.round() != Round::Over {}
        self.end();
    }

    /// One round of the loop: a turn, and rest or work if there was nothing to do in it.
    pub(crate) fn round(&mut self) -> Round {
        let now = self.now();
        let past = now.since(self.rounds.last);
        self.statistics.add_time(past, self.rounds.worked);
        self.rounds.last = now;
        let worked = self.turn(now);
        self.rounds.worked = worked;
        if worked {
            self.rounds.worked_at = now;
        } else if self.takes_work(now) {
            return Round::Work;
        } else {
            self.rest(now);
        }
        match self.control.state() {
            Control::SERVE => Round::Again,
            _ if !self.rounds.closed => {
                self.transport.close();
                self.rounds.closed = true;
                Round::Again
            }
            // What was accepted before the transport closed may still be in it.
            Control::DRAIN if worked || !self.is_quiet() => Round::Again,
            _ => Round::Over,
        }
    }

    /// Nothing to do at this moment, or for long.
    fn rest(&mut self, now: Nanos) {
        let is_quiet = self.is_quiet();
        self.relax(is_quiet);
        let idle = now.since(self.rounds.worked_at);
        let backoff = self.rules.idle_backoff;
        if is_quiet && backoff.is_some_and(|backoff| idle > backoff) {
            self.publish_gauges();
            self.transport.wait(LONGEST_SLEEP);
        }
    }

    /// Called when a turn has found nothing to do. While a worker has a request, the loop does not
    /// pause: the answer may come at any time, and on some CPUs a PAUSE takes as long as several
    /// turns.
    fn relax(&self, is_quiet: bool) {
        if self.rules.shares_core {
            std::thread::sleep(SHARED_PAUSE);
        } else if is_quiet {
            std::hint::spin_loop();
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.clock.now_nanos())
    }

    /// One turn; returns whether there was anything to do.
    pub(crate) fn turn(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        let listening = if self.spares_out == 0 {
            self.workers
        } else {
            self.in_use().len()
        };
        for state in 0..listening {
            worked |= self.take_answers(state, now);
        }
        worked |= self.take_own_answers(now);
        // A worker that has answered may idle, so it gets a request before the network is polled.
        let answered = worked;
        if answered {
            self.hand_out(now);
        }
        let received = self.poll(now);
        worked |= received;
        if received || !answered {
            worked |= self.hand_out(now);
        }
        if self.rules.depth > 1 {
            worked |= self.recall_for_the_idle(now);
        }
        for state in 0..listening {
            self.watch(state, now);
        }
        if now >= self.next_look {
            self.look_around(now);
        }
        worked
    }

    /// The workers, and the spares that were ever sent a request; inline, the threads up to the
    /// highest that has ever had the dispatcher.
    fn in_use(&self) -> &[WorkerState<Tr>] {
        match self.rules.inline {
            true => &self.states[..=self.inline.highest()],
            false => &self.states[..self.workers + self.spares_used],
        }
    }

    /// Whether nothing is at a worker and nothing waits. It takes the spares from a count, since
    /// there can be hundreds.
    fn is_quiet(&self) -> bool {
        let workers = &self.states[..self.workers];
        self.policy.is_empty()
            && self.lock_waiters.is_empty()
            && self.spares_out == 0
            && !self.is_within_own_work()
            && workers.iter().all(|state| state.out() == 0)
    }

    // --- answers -------------------------------------------------------------------------------------------

    fn take_answers(&mut self, at: usize, now: Nanos) -> bool {
        let mut worked = false;
        while let Some((context, completion)) = self.states[at].sender.poll() {
            worked = true;
            let state = &mut self.states[at];
            let Answered {
                sent,
                ran,
                was_blocked,
            } = state.answered(now);
            assert_eq!(
                sent.dispatched.id(),
                context,
                "workers answer in the order in which they were sent"
            );
            let (task, worker) = (sent.task, state.worker);
            let ran = self.on_cpu(ran, completion.away());
            self.note_time(task, ran, at, was_blocked, now);
            match completion {
                Completion::Finished(idle) => {
                    self.contexts.put(idle);
                    self.settle(task, worker);
                }
                Completion::Preempted(suspended) => {
                    let waits = suspended.waits_for_a_lock();
                    let record = &mut self.records[task.0 as usize];
                    record.place = Place::Suspended(suspended);
                    self.policy.ran_unfinished(task, record.ran);
                    self.statistics.preempted(record.class);
                    if self.rules.inline || at >= self.desks {
                        // The deadline was the request to give way.
                        self.statistics.requested();
                    }
                    let suspended = self.policy.waiting_started();
                    if waits && suspended > 0 {
                        self.lock_waiters.stand_aside(task, worker, suspended);
                    } else {
                        self.policy.preempted(task, worker, now);
                    }
                }
            }
            if (self.workers..self.desks).contains(&at) {
                self.stands_in[at - self.workers] = None;
                self.spares_out -= 1;
            }
        }
        worked
    }

    /// A request, which is back at `now`, has run for `ran` at worker `at`.
    fn note_time(&mut self, task: TaskId, ran: Nanos, at: usize, was_blocked: bool, now: Nanos) {
        let record = &mut self.records[task.0 as usize];
        record.ran = Nanos(record.ran.0 + ran.0);
        record.was_blocked |= was_blocked;
        if self.rules.inline {
            // In all: what is preempted at its probes all the time is not short.
            self.inline.learn(record.class, record.ran, at);
        }
        if record.is_best_effort {
            self.note_best_effort(ran, at, now);
        }
    }

    /// A request has finished, and its time was noted.
    fn settle(&mut self, task: TaskId, worker: WorkerId) {
        let record = &self.records[task.0 as usize];
        // The quantum's floor is drawn from requests that make others wait. A blocked request has
        // left its worker to others, and a best-effort one gives way at once.
        if !record.was_blocked && !record.is_best_effort {
            self.preemption.finished(record.ran);
        }
        self.policy.finished_after(task, worker, record.ran);
        self.release(task);
        self.statistics.finished();
    }

    fn release(&mut self, task: TaskId) {
        self.records[task.0 as usize].place = Place::Free;
        self.free.push(task);
    }

    // --- arrivals ------------------------------------------------------------------------------------------

    /// How many requests may be taken from the transport.
    fn room(&self) -> usize {
        let slots = self.free.len();
        match self.rules.leaves_excess {
            true => slots.min(self.rules.queue.saturating_sub(self.fresh())),
            false => slots,
        }
    }

    /// How many requests wait that never ran, without those that are staged.
    fn fresh(&self) -> usize {
        self.policy.len() - self.policy.waiting_started()
    }

    /// Refuses waiting requests whose clients have given up, among the next slots.
    fn sweep(&mut self) {
        let slots = self.records.len();
        let mut found = 0;
        for _ in 0..SWEEP.min(slots) {
            let slot = self.next_swept;
            self.next_swept = (slot + 1) % slots;
            let place = &mut self.records[slot].place;
            if !matches!(place, Place::Fresh(_, route) if !Tr::is_wanted(route)) {
                continue;
            }
            let Place::Fresh(request, route) = std::mem::replace(place, Place::Out) else {
                unreachable!("the place was just matched")
            };
            let id = TaskId(slot as u32);
            let task = self.policy.take_waiting(id, WorkerId(0));
            debug_assert!(task.is_some(), "a fresh request waits in the policy");
            self.policy.finished(id, WorkerId(0));
            self.release(id);
            self.statistics.refused(Refusal::Cancelled);
            self.transport.refuse(request, route, Refusal::Cancelled);
            found += 1;
            if found == BATCH {
                return;
            }
        }
    }

    fn poll(&mut self, now: Nanos) -> bool {
        let staged: usize = if self.rules.depth > 1 {
            let workers = &self.states[..self.workers];
            workers.iter().map(WorkerState::staged_fresh).sum()
        } else {
            0
        };
        if self.fresh() + staged + BATCH > self.rules.queue && !self.policy.is_empty() {
            self.sweep();
        }
        // Admitted requests may have taken every slot; then the transport keeps the rest, or turns
        // it away. It is polled in that case, too, since it has replies to send.
        let room = BATCH.min(self.room());
        let Self {
            transport,
            policy,
            records,
            free,
            turned_away,
            statistics,
            rules,
            ..
        } = self;
        let mut received = 0u64;
        transport.poll(now.0, room, |arrival| {
            received += 1;
            let Arrival {
                request,
                route,
                class,
                flow,
                arrived_nanos,
                deadline_nanos,
                due_nanos,
                ..
            } = arrival;
            let Some(&class_deadline) = rules.deadlines.get(usize::from(class)) else {
                turned_away.push((request, route, Refusal::UnknownClass));
                return;
            };
            let fresh = policy.len() - policy.waiting_started() + staged;
            let id = *free
                .last()
                .expect("the transport delivers no more than there is room for");
            let task = Task {
                id,
                class: ClassId(class),
                flow: FlowId(flow),
                arrival: Nanos(arrived_nanos),
                started: false,
            };
            let due = due_nanos.map(Nanos);
            if fresh >= rules.queue || policy.arrive_due(task, due).is_err() {
                turned_away.push((request, route, Refusal::QueueFull));
                return;
            }
            free.pop();
            let class_deadline =
                class_deadline.map(|allowed| arrived_nanos.saturating_add(allowed.0));
            records[id.0 as usize] = Record {
                class: task.class,
                arrival: task.arrival,
                deadline: Nanos(deadline_nanos.or(class_deadline).unwrap_or(u64::MAX)),
                ran: Nanos(0),
                was_blocked: false,
                is_best_effort: rules.best_effort && policy.is_best_effort(id),
                place: Place::Fresh(request, route),
            };
        });
        if received > 0 {
            statistics.received(received);
            while let Some((request, route, cause)) = turned_away.pop() {
                statistics.refused(cause);
                transport.refuse(request, route, cause);
            }
        }
        received > 0
    }

    // --- handing out ---------------------------------------------------------------------------------------

    /// Gives every worker with room the policy's next request for it, the emptiest first.
    fn hand_out(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        self.bring_lock_waiters_back(now);
        if self.policy.is_empty() {
            return worked;
        }
        for level in 0..self.rules.depth {
            // From `first_served` on, and around.
            let mut at = self.first_served;
            for _ in 0..self.workers {
                let next = if at + 1 < self.workers { at + 1 } else { 0 };
                let state = &self.states[at];
                if state.out() == level && state.silence.is_none() {
                    worked |= self.hand_one(at, at, now);
                    if self.policy.is_empty() {
                        self.first_served = next;
                        return worked;
                    }
                }
                at = next;
            }
        }
        worked
    }

    /// Gives requests back to the policy that have stood aside for long enough.
    fn bring_lock_waiters_back(&mut self, now: Nanos) {
        if !self.lock_waiters.is_empty() {
            let suspended = self.policy.waiting_started();
            for (task, worker) in self.lock_waiters.come_back(suspended) {
                self.policy.preempted(task, worker, now);
            }
        }
    }

    /// Which waiting requests can run.
    fn wanted(&self) -> Want {
        match self.contexts.is_any() {
            true => Want::Any,
            false => Want::StartedOnly,
        }
    }

    /// Sends the policy's next request for `worker` to `at`: that worker, or a spare that stands in
    /// for it. Returns whether there was one.
    fn hand_one(&mut self, at: usize, worker: usize, now: Nanos) -> bool {
        let is_turn = !self.lock_waiters.is_empty() && self.lock_waiters.takes_turn();
        if is_turn && self.hand_one_of(Want::StartedOnly, at, worker, now) {
            if let Some(sent) = self.states[at].running().filter(|_| self.rules.best_effort) {
                self.policy.grant_turn(sent.task);
            }
            return true;
        }
        self.hand_one_of(self.wanted(), at, worker, now)
    }

    /// As [`hand_one`](Self::hand_one), of the requests that are wanted.
    fn hand_one_of(&mut self, want: Want, at: usize, worker: usize, now: Nanos) -> bool {
        let want = match want {
            Want::Any if self.contexts.prepare() => Want::Any,
            _ => Want::StartedOnly,
        };
        let id = self.states[worker].worker;
        let mut refused = 0;
        while let Some(task) = self.policy.next(id, now, want) {
            if let Some(runnable) = self.runnable(task.id, at, now) {
                self.states[at].send(task.id, runnable, now);
                return true;
            }
            refused += 1;
            if refused == BATCH {
                return true;
            }
        }
        false
    }

    /// The request of slot `task`, which the policy has given for the worker `at`, with a context.
    /// `None`: its deadline has passed, and it was refused.
    #[inline]
    fn runnable(
        &mut self,
        task: TaskId,
        at: usize,
        now: Nanos,
    ) -> Option<Runnable<Job<Tr>, Done<Tr>>> {
        let record = &mut self.records[task.0 as usize];
        match std::mem::replace(&mut record.place, Place::Out) {
            Place::Suspended(suspended) => Some(suspended.into()),
            Place::Fresh(request, route) if record.deadline < now => {
                self.policy.finished(task, self.states[at].worker);
                self.release(task);
                self.statistics.refused(Refusal::DeadlinePassed);
                self.transport
                    .refuse(request, route, Refusal::DeadlinePassed);
                None
            }
            Place::Fresh(request, route) => {
                let meta = Meta {
                    class: record.class,
                    arrival: record.arrival,
                };
                let job = Job {
                    meta,
                    request,
                    route,
                };
                Some(self.idle_context(at).load(job).into())
            }
            Place::Free | Place::Out => {
                unreachable!("the watch over the policy knows what waits")
            }
        }
    }

    /// A context for a fresh request at the worker `at`: the one used last, whose stack is in a
    /// cache. Where contexts are kernel threads, the worker's own last one is better, which goes on
    /// without a switch. Each worker has put back at most one context since.
    fn idle_context(&mut self, at: usize) -> Idle<Job<Tr>, Done<Tr>> {
        let last = self.states[at].last_context();
        let recent = match self.rules.kernel_threads {
            true => self.in_use().len(),
            false => 0,
        };
        let own = (self.contexts).take_among(recent, |idle| Some(idle.id()) == last);
        own.or_else(|| self.contexts.take())
            .expect("fresh requests are asked for only with a context free")
    }

    /// If a worker idles while another has a request staged, recalls that request and gives it to
    /// the idle worker.
    fn recall_for_the_idle(&mut self, now: Nanos) -> bool {
        let Some(idle) = (0..self.workers).find(|&at| self.states[at].out() == 0) else {
            return false;
        };
        let Some(at) = (0..self.workers)
            .filter(|&at| self.states[at].staged() > 0 && !self.states[at].recalled_in_vain)
            .max_by_key(|&at| self.states[at].staged())
        else {
            return false;
        };
        if !self.take_back(at, now) {
            return false;
        }
        let helped = self.hand_one(idle, idle, now);
        if !helped {
            // The policy keeps the request for that worker, by its flow or its queue.
            self.states[at].recalled_in_vain = true;
            self.hand_one(at, at, now);
        }
        helped
    }

    /// Recalls the request staged last at a worker, back into the policy's queue.
    fn take_back(&mut self, at: usize, now: Nanos) -> bool {
        self.states[at].staged() > 0 && self.recall(at, now)
    }

    /// Recalls the request sent last to a worker, back into the policy's queue, unless the worker
    /// has begun it.
    fn recall(&mut self, at: usize, now: Nanos) -> bool {
        let state = &mut self.states[at];
        let Some((task, runnable)) = state.recall(now) else {
            return false;
        };
        let worker = state.worker;
        self.records[task.0 as usize].place = match runnable {
            Runnable::Ready(ready) => {
                let (idle, Job { request, route, .. }) = ready.unload();
                self.contexts.put(idle);
                Place::Fresh(request, route)
            }
            Runnable::Suspended(suspended) => Place::Suspended(suspended),
        };
        self.policy.returned(task, worker);
        true
    }

    /// The contexts, for tests that move some.
    #[cfg(test)]
    pub(crate) fn contexts(&mut self) -> &mut Contexts<Idle<Job<Tr>, Done<Tr>>> {
        &mut self.contexts
    }

    /// What is left of a dispatcher that was only turned by hand.
    #[cfg(any(test, feature = "stub-workers"))]
    pub(crate) fn into_idle(mut self) -> Vec<Idle<Job<Tr>, Done<Tr>>> {
        self.contexts.give_up()
    }
}
