//! The dispatcher: sees every request, hands them out, and stops those that run too long while
//! others wait.
//!
//! One turn of its loop: take the workers' answers and hand out, poll the transport and hand out,
//! look at who has run too long, help where a worker is blocked. The policy decides the order; this
//! file keeps the requests and the rules that hold whatever the policy says:
//! - nothing is preempted while nothing waits, but what has a quantum and runs at a spare whose
//!   worker is back;
//! - a preempted request keeps its arrival time;
//! - with no context free, only started requests are asked for;
//! - when a worker has given no answer for `rescue_after` while others wait, what was staged for it
//!   is recalled; if its thread is blocked in the kernel, a spare worker goes on in its place until
//!   it answers, with suspended requests and fresh ones; if it computes for long, with suspended
//!   ones (ARCHITECTURE.md, "Progress", rule 2; rule 1 is in [`Verified`]).
//!
//! After start nothing here allocates, frees, locks, or drops a user's value: a suspended context
//! may hold any lock, the allocator's included, and only this thread brings it back. Its system
//! calls are the interrupt's, the transport's, waking a worker that sleeps, and, of one that is
//! silent for milliseconds, its thread's state and core.

mod contexts;
mod end;
mod inline;
mod lock_waiters;
mod watch;

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

use crate::loops::IdleTime;
use crate::preemption::Preemption;
use crate::request::{Done, Job, Meta};
use crate::statistics::DispatcherStatistics;
use crate::worker::{Orders, SHARED_PAUSE};
use crate::worker_state::{Answered, WorkerState};

/// Requests taken from the transport in one turn.
const BATCH: usize = 64;
/// While the queue is full, so many slots are looked through in one turn for requests that are no
/// longer wanted.
const SWEEP: usize = 4 * BATCH;
/// An idle dispatcher looks around this often even if no thread wakes it.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// What the runtime wants of the dispatcher, which looks each turn: on cache lines of its own.
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

    /// No new requests; finish those that are there.
    pub(crate) fn drain(&self) {
        self.0.fetch_max(Self::DRAIN, Ordering::Release);
    }

    /// The time for that is over.
    pub(crate) fn end(&self) {
        self.0.fetch_max(Self::END, Ordering::Release);
    }

    /// Whether requests are wanted.
    pub(crate) fn is_serving(&self) -> bool {
        self.state() == Self::SERVE
    }

    /// Whether that time is over.
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
    /// Some of that time its thread was blocked.
    was_blocked: bool,
    /// It runs only in what is idle.
    is_best_effort: bool,
    place: Place<Tr>,
}

enum Place<Tr: Transport> {
    /// No request in this slot.
    Free,
    /// Waits, never ran.
    Fresh(Tr::Request, Tr::Route),
    /// Waits, preempted.
    Suspended(Suspended<Job<Tr>, Done<Tr>>),
    /// At a worker, staged or running.
    Out,
}

pub(crate) struct Dispatcher<Tr: Transport> {
    transport: Tr,
    policy: Verified,
    /// Workers first, then spares.
    states: Vec<WorkerState<Tr>>,
    workers: usize,
    /// Cores of the workers, for the spares to go to.
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
    spares_out: usize,
    /// Spares that were ever sent anything: those before this one, since the first that is free is
    /// taken.
    spares_used: usize,
    rules: Rules,
    preemption: Preemption,
    next_look: Nanos,
    /// For how long best-effort requests have run since the last look: as good as idle.
    best_effort_time: Nanos,
    last_counters: CountersSnapshot,
    first_served: usize,
    clock: Clock,
    statistics: Arc<DispatcherStatistics>,
    control: Arc<Control>,
    orders: Arc<Orders>,
    shutdown_handoff: Arc<ShutdownHandoff<Tr>>,
    /// Taken at start for the end: there may be no allocating then.
    unfinished: Vec<ClassId>,
    lock_waiters: LockWaiters,
    inline: Inline,
}

/// Numbers from the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) depth: usize,
    /// Contexts are kernel threads.
    pub(crate) kernel_threads: bool,
    /// Every worker is a thread's that may have the dispatcher, and one has it at a time.
    pub(crate) inline: bool,
    /// Waiting requests at the most.
    pub(crate) queue: usize,
    /// What is over that stays in the transport, whose other parts may have room for what comes
    /// then, and is not refused.
    pub(crate) leaves_excess: bool,
    pub(crate) rescue_after: Nanos,
    /// Idle for so long, the dispatcher sleeps; `None`: never.
    pub(crate) idle_backoff: Option<Nanos>,
    /// Whether other threads of the runtime may need the dispatcher's core.
    pub(crate) shares_core: bool,
    /// Whether the runtime's threads are under SCHED_FIFO: of two on a core, one runs until it
    /// gives way.
    pub(crate) realtime: bool,
    /// Whether some classes run only in what is idle.
    pub(crate) best_effort: bool,
    /// Per class: how long after its arrival a request must have started.
    pub(crate) deadlines: Vec<Option<Nanos>>,
}

/// What the dispatcher is made of.
pub(crate) struct Parts<Tr: Transport> {
    pub(crate) transport: Tr,
    pub(crate) policy: Verified,
    pub(crate) workers: Vec<WorkerState<Tr>>,
    pub(crate) spares: Vec<WorkerState<Tr>>,
    pub(crate) cores: Vec<Option<usize>>,
    pub(crate) contexts: Contexts<Idle<Job<Tr>, Done<Tr>>>,
    /// Task slots: what the policy was built for.
    pub(crate) capacity: usize,
    pub(crate) rules: Rules,
    pub(crate) preemption: Preemption,
    pub(crate) statistics: Arc<DispatcherStatistics>,
    pub(crate) control: Arc<Control>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) shutdown_handoff: Arc<ShutdownHandoff<Tr>>,
    /// Of the loops, in the layouts that have them.
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
            cores,
            contexts,
            capacity,
            rules,
            preemption,
            ..
        } = parts;
        let clock = Clock::get();
        let worker_count = workers.len();
        let stands_in = vec![None; spares.len()];
        let spare_cores = vec![None; spares.len()];
        workers.extend(spares);
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
            inline: Inline::new(
                workers.len(),
                rules.deadlines.len(),
                parts.idle_time,
                Nanos(clock.now_nanos()),
            ),
            states: workers,
            workers: worker_count,
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
            next_look: Nanos(clock.now_nanos()),
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

    /// Serves until told to end, or to drain and drained.
    pub(crate) fn run(mut self) {
        let mut last = self.now();
        let mut worked_at = last;
        let mut worked = false;
        let mut closed = false;
        loop {
            let now = self.now();
            self.statistics.add_time(now.since(last), worked);
            last = now;
            worked = self.turn(now);
            if worked {
                worked_at = now;
            } else {
                let is_quiet = self.is_quiet();
                self.relax(is_quiet);
                let backoff = self.rules.idle_backoff;
                if is_quiet && backoff.is_some_and(|backoff| now.since(worked_at) > backoff) {
                    self.publish_gauges();
                    self.transport.wait(LONGEST_SLEEP);
                }
            }
            match self.control.state() {
                Control::SERVE => {}
                _ if !closed => {
                    self.transport.close();
                    closed = true;
                }
                // What was accepted before the transport closed may still be in it.
                Control::DRAIN if worked || !self.is_quiet() => {}
                _ => return self.end(),
            }
        }
    }

    /// Nothing to do at this moment. While something is out its answer may come at any time, and a
    /// PAUSE takes as long as several turns on some CPUs.
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

    /// One turn; tells whether there was anything to do.
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
        // Whoever has answered may wait for more: the network is polled after that.
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

    /// The workers, and the spares that were ever sent anything; inline, the threads that ever had
    /// a part.
    fn in_use(&self) -> &[WorkerState<Tr>] {
        match self.rules.inline {
            true => &self.states[..=self.inline.highest()],
            false => &self.states[..self.workers + self.spares_used],
        }
    }

    /// Nothing is at a worker and nothing waits. The spares are counted, not looked at: there can
    /// be hundreds.
    fn is_quiet(&self) -> bool {
        let workers = &self.states[..self.workers];
        self.policy.is_empty()
            && self.lock_waiters.is_empty()
            && self.spares_out == 0
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
                    self.statistics.preempted(record.class);
                    if self.rules.inline {
                        // Its deadline asked it to.
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
            if at >= self.workers {
                self.stands_in[at - self.workers] = None;
                self.spares_out -= 1;
            }
        }
        worked
    }

    /// A request, which is back at `now`, has run for so long at `at`.
    fn note_time(&mut self, task: TaskId, ran: Nanos, at: usize, was_blocked: bool, now: Nanos) {
        let record = &mut self.records[task.0 as usize];
        record.ran = Nanos(record.ran.0 + ran.0);
        record.was_blocked |= was_blocked;
        if self.rules.inline {
            self.inline.learn(record.class, ran, at);
        }
        if record.is_best_effort {
            self.note_best_effort(ran, at, now);
        }
    }

    /// A request has finished, and its time was noted.
    fn settle(&mut self, task: TaskId, worker: WorkerId) {
        let record = &self.records[task.0 as usize];
        // What blocks takes no worker's time, and what gives way at once none that others want: no
        // quantum could make others wait less.
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

    /// How many requests wait that never ran, but for those that are staged.
    fn fresh(&self) -> usize {
        self.policy.len() - self.policy.waiting_started()
    }

    /// Refuses waiting requests that no one wants any more, among the next slots.
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
                unreachable!("it was just looked at")
            };
            let id = TaskId(slot as u32);
            let task = self.policy.take_waiting(id, WorkerId(0));
            debug_assert!(task.is_some(), "what never ran and is not out waits");
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
        // Every slot may be taken by admitted requests; then the transport keeps the rest, or turns
        // it away. It has replies to send all the same.
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

    /// Gives every worker with room what the policy says, the emptiest first.
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

    /// Requests that need not stand aside any more wait again.
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

    /// Sends the next request for `worker` to the worker `at` (its own, or a spare's that stands in
    /// for it).
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

    /// The same of such requests only.
    fn hand_one_of(&mut self, want: Want, at: usize, worker: usize, now: Nanos) -> bool {
        let want = match want {
            Want::Any if self.contexts.prepare() => Want::Any,
            _ => Want::StartedOnly,
        };
        let id = self.states[worker].worker;
        let mut refused = 0;
        while let Some(task) = self.policy.next(id, now, want) {
            let record = &mut self.records[task.id.0 as usize];
            let runnable: Runnable<_, _> = match std::mem::replace(&mut record.place, Place::Out) {
                Place::Suspended(suspended) => suspended.into(),
                Place::Fresh(request, route) if record.deadline < now => {
                    self.policy.finished(task.id, id);
                    self.release(task.id);
                    self.statistics.refused(Refusal::DeadlinePassed);
                    self.transport
                        .refuse(request, route, Refusal::DeadlinePassed);
                    refused += 1;
                    if refused == BATCH {
                        return true;
                    }
                    continue;
                }
                Place::Fresh(request, route) => {
                    let meta = Meta {
                        class: record.class,
                        arrival: record.arrival,
                    };
                    self.idle_context(at)
                        .load(Job {
                            meta,
                            request,
                            route,
                        })
                        .into()
                }
                Place::Free | Place::Out => {
                    unreachable!("the watch over the policy knows what waits")
                }
            };
            self.states[at].send(task.id, runnable, now);
            return true;
        }
        false
    }

    /// A context for a fresh request at the worker `at`: the one used last, whose stack is in a
    /// cache. One that is a kernel thread is better the worker's own last one, which goes on
    /// without a switch; each worker has put back one since, at the most.
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

    /// A worker is idle, nothing waits for it, and others have requests staged: those come back.
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
            // It belongs to that worker (its flow, its queue).
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

    /// What is left of a dispatcher that was only turned by hand.
    #[cfg(feature = "stub-workers")]
    pub(crate) fn into_idle(mut self) -> Vec<Idle<Job<Tr>, Done<Tr>>> {
        self.contexts.give_up()
    }
}
