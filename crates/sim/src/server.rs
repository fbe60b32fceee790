//! A server: one dispatcher, one networker and some workers, scheduled by a policy of the runtime.
//!
//! ```text
//!   arrive --networker--> [network] --> dispatcher --message--> worker: switch, run
//!                                          ^   policy             |
//!                                          +------ [mail] <-------+  finished, or preempted and saved
//! ```
//!
//! - Networker and dispatcher do one thing at a time; what reaches a busy dispatcher waits in its inbox.
//! - A request that has run for its quantum is preempted if somebody waits whom its worker could serve; if nobody does
//!   it is *overdue*, and preempted when somebody comes, the longest overdue first.
//! - With a depth of `n` (JBSQ) a worker holds up to `n` requests, one running and the others staged; fresh requests go
//!   to a worker that holds the fewest.
//! - A preemption reaches the worker after the costs of [`Overheads`]; if the request has ended by then it misses, and,
//!   unless probes deliver it, its receipt delays the next request. Nothing is preempted by mistake: the runtime numbers
//!   its dispatches.
//!
//! With all overheads zero this is the policy on ideal cores. Time is in whole nanoseconds; memory is taken when
//! it is built and depends on the capacity alone.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_policy::{ClassId, FlowId, Nanos, Policy, Task, TaskId, Verified, Want, WorkerId};

use crate::calendar::{Calendar, NEVER};
use crate::{Outcome, Overheads, Request, SimError};

const NONE: u32 = u32::MAX;

/// The shape of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Worker cores.
    pub workers: usize,
    /// Requests a worker may hold, the running one included: 1, or n for JBSQ(n).
    pub depth: usize,
    /// The most requests in the server; more are refused.
    pub capacity: usize,
    /// What scheduling costs.
    pub overheads: Overheads,
}

impl Shape {
    /// Ideal workers that hold one request each, with room for 65,536 requests.
    #[must_use]
    pub const fn ideal(workers: usize) -> Self {
        Self {
            workers,
            depth: 1,
            capacity: 1 << 16,
            overheads: Overheads::IDEAL,
        }
    }
}

#[derive(Clone, Copy)]
struct Slot {
    request: Request,
    remaining_ns: u64,
    /// When it reached the server.
    arrival_ns: u64,
}

/// What a worker's entry in the calendar means.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Finish,
    /// The quantum is over: the dispatcher looks at it.
    Quantum,
    /// A preemption takes effect.
    Interrupt,
    /// The preempted request is saved.
    Saved,
}

struct Worker {
    /// The request that runs, or is being saved; `NONE` if there is none.
    running: u32,
    next: Next,
    /// When the running request's own instructions began.
    from_ns: u64,
    /// Since when it has been overdue.
    overdue_ns: Option<u64>,
    /// A preemption is on its way, or being taken.
    preempting: bool,
    /// Requests held, those on their way included.
    held: usize,
    /// Staged requests, and when each has come.
    staged: VecDeque<(u32, u64)>,
    /// Worker time taken by preemptions that missed, not yet spent.
    penalty_ns: u64,
}

/// What the dispatcher is told.
#[derive(Clone, Copy)]
enum Message {
    Arrived(u32),
    Finished(u32, usize),
    Preempted(u32, usize),
}

/// A simulated server under a policy.
pub struct Server {
    policy: Verified,
    shape: Shape,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    workers: Box<[Worker]>,
    /// Workers that hold nothing, a bit each.
    idle: Box<[u64]>,
    idle_count: usize,
    overdue_count: usize,
    /// Preemptions under way: each will serve one that waits.
    preempting_count: usize,
    calendar: Calendar,
    /// Requests on their way from the networker to the dispatcher, by time.
    network: VecDeque<(u64, u32)>,
    network_free_ns: u64,
    /// Messages on their way from workers to the dispatcher, by time.
    mail: VecDeque<(u64, Message)>,
    inbox: VecDeque<Message>,
    dispatcher_free_ns: u64,
    /// The first event of network, mail and inbox.
    control_ns: u64,
    random: Xoshiro256PlusPlus,
    events: u64,
    preemptions: u64,
    missed: u64,
    /// A request that the policy refused just now.
    refused: Option<Request>,
}

impl Server {
    /// A server under `policy`, which must have been built for this capacity and number of workers. The `seed` draws
    /// the places of probes and which preemptions are late.
    ///
    /// # Errors
    /// [`SimError::Parameter`] for no workers, more than 4096, or a depth of zero; [`SimError::Policy`] for a capacity
    /// that cannot be.
    pub fn new(policy: Box<dyn Policy>, shape: Shape, seed: u64) -> Result<Self, SimError> {
        if !(1..=4096).contains(&shape.workers) {
            let expected = "choose 1 to 4096";
            return Err(SimError::parameter("workers", shape.workers, expected));
        }
        if shape.depth == 0 {
            let expected = "a worker holds at least one request";
            return Err(SimError::parameter("depth", shape.depth, expected));
        }
        shape.overheads.checked()?;
        let policy = Verified::new(policy, shape.capacity)?;
        let nothing = Request {
            sent_ns: 0,
            service_ns: 1,
            flow: 0,
            class: 0,
            tag: 0,
        };
        let slot = Slot {
            request: nothing,
            remaining_ns: 0,
            arrival_ns: 0,
        };
        let worker = |_| Worker {
            running: NONE,
            next: Next::Finish,
            from_ns: 0,
            overdue_ns: None,
            preempting: false,
            held: 0,
            staged: VecDeque::with_capacity(shape.depth - 1),
            penalty_ns: 0,
        };
        let mut idle = vec![0_u64; shape.workers.div_ceil(64)];
        for worker in 0..shape.workers {
            idle[worker / 64] |= 1 << (worker % 64);
        }
        Ok(Self {
            policy,
            shape,
            slots: vec![slot; shape.capacity].into_boxed_slice(),
            free: (0..shape.capacity as u32).rev().collect(),
            workers: (0..shape.workers).map(worker).collect(),
            idle: idle.into_boxed_slice(),
            idle_count: shape.workers,
            overdue_count: 0,
            preempting_count: 0,
            calendar: Calendar::new(shape.workers),
            network: VecDeque::new(),
            network_free_ns: 0,
            mail: VecDeque::new(),
            inbox: VecDeque::new(),
            dispatcher_free_ns: 0,
            control_ns: NEVER,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            events: 0,
            preemptions: 0,
            missed: 0,
            refused: None,
        })
    }

    /// The time of the next event, in ns; `u64::MAX` if there is none.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        self.calendar.first_ns().min(self.control_ns)
    }

    /// Requests in the server, finished ones that the dispatcher has not heard of included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.capacity - self.free.len()
    }

    /// Whether the server has no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many events it has handled: arrivals, ends of requests and of quanta, preemptions, messages.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How many preemptions took effect.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// How many preemptions came after the request had ended.
    #[must_use]
    pub fn missed_preemptions(&self) -> u64 {
        self.missed
    }

    /// Whether the policy has kept its contract.
    ///
    /// # Errors
    /// [`SimError::Contract`] if not.
    pub fn check(&self) -> Result<(), SimError> {
        match self.policy.error() {
            None => Ok(()),
            Some(error) => Err(SimError::Contract {
                policy: self.policy.name().to_owned(),
                error: *error,
            }),
        }
    }

    /// A request reaches the server at `now_ns`, not before any event handled so far. What comes back is the request
    /// itself if it is refused at once.
    pub fn arrive(&mut self, now_ns: u64, request: Request) -> Option<Outcome> {
        self.events += 1;
        let Some(id) = self.free.pop() else {
            return Some(Outcome::Refused { request });
        };
        self.slots[id as usize] = Slot {
            request,
            remaining_ns: request.service_ns,
            arrival_ns: now_ns,
        };
        let Overheads {
            network_ns,
            message_ns,
            ..
        } = self.shape.overheads;
        if network_ns + message_ns == 0 {
            self.tell(now_ns, Message::Arrived(id));
        } else {
            self.network_free_ns = self.network_free_ns.max(now_ns) + network_ns;
            self.network
                .push_back((self.network_free_ns + message_ns, id));
        }
        self.set_control();
        self.take_refused()
    }

    /// Handles the next event, of time [`next_ns`](Self::next_ns).
    pub fn step(&mut self) -> Option<Outcome> {
        let now = self.next_ns();
        if now == NEVER {
            return None;
        }
        self.events += 1;
        if now == self.calendar.first_ns() {
            let outcome = self.work(self.calendar.first_slot(), now);
            self.set_control();
            return outcome;
        }
        if !self.inbox.is_empty() && self.dispatcher_free_ns <= now {
            if let Some(message) = self.inbox.pop_front() {
                self.handle(now, message);
            }
        } else if let Some((_, message)) = self.mail.pop_front_if(|(at, _)| *at <= now) {
            self.tell(now, message);
        } else if let Some((_, id)) = self.network.pop_front_if(|(at, _)| *at <= now) {
            self.tell(now, Message::Arrived(id));
        }
        self.set_control();
        self.take_refused()
    }

    fn take_refused(&mut self) -> Option<Outcome> {
        let request = self.refused.take()?;
        Some(Outcome::Refused { request })
    }

    fn set_control(&mut self) {
        let network = self.network.front().map_or(NEVER, |(at, _)| *at);
        let mail = self.mail.front().map_or(NEVER, |(at, _)| *at);
        let inbox = if self.inbox.is_empty() {
            NEVER
        } else {
            self.dispatcher_free_ns
        };
        self.control_ns = network.min(mail).min(inbox);
    }

    /// A worker's event.
    fn work(&mut self, at: usize, now: u64) -> Option<Outcome> {
        match self.workers[at].next {
            Next::Finish => return Some(self.finish(at, now)),
            Next::Quantum => self.look_at(at, now),
            Next::Interrupt => self.interrupt(at, now),
            Next::Saved => self.saved(at, now),
        }
        None
    }

    /// The running request of worker `at` ends.
    fn finish(&mut self, at: usize, now: u64) -> Outcome {
        let worker = &mut self.workers[at];
        let id = worker.running;
        worker.running = NONE;
        if worker.overdue_ns.take().is_some() {
            self.overdue_count -= 1;
        }
        if std::mem::take(&mut worker.preempting) {
            self.preempting_count -= 1;
            self.missed += 1;
            if self.shape.overheads.probe_interval_ns == 0 {
                worker.penalty_ns += self.shape.overheads.preempt_receive_ns;
            }
        }
        self.calendar.set(at, NEVER);
        let request = self.slots[id as usize].request;
        self.begin_staged(at, now);
        self.post(now, Message::Finished(id, at));
        Outcome::Finished {
            request,
            at_ns: now,
        }
    }

    /// The dispatcher sees that the request of worker `at` has had its quantum.
    fn look_at(&mut self, at: usize, now: u64) {
        let left_ns = self.finish_ns(at) - now;
        if self.dispatcher_free_ns > now {
            let wait_ns = self.dispatcher_free_ns - now;
            if wait_ns < left_ns {
                self.calendar.set(at, self.dispatcher_free_ns);
                return;
            }
        } else if self.has_use_for(at) {
            self.send_preemption(at, now);
            return;
        }
        let worker = &mut self.workers[at];
        worker.next = Next::Finish;
        worker.overdue_ns = Some(now);
        self.overdue_count += 1;
        self.calendar.set(at, now + left_ns);
    }

    /// Whether somebody waits whom worker `at` could serve.
    fn has_use_for(&self, at: usize) -> bool {
        !self.workers[at].staged.is_empty()
            || self.policy.waiting(WorkerId(at as u16), Want::Any) > 0
    }

    fn finish_ns(&self, at: usize) -> u64 {
        let worker = &self.workers[at];
        worker.from_ns + self.slots[worker.running as usize].remaining_ns
    }

    /// The dispatcher preempts the request that worker `at` runs.
    fn send_preemption(&mut self, at: usize, now: u64) {
        let costs = self.shape.overheads;
        self.dispatcher_free_ns = self.dispatcher_free_ns.max(now) + costs.preempt_send_ns;
        let mut taken_ns = self.dispatcher_free_ns + costs.message_ns + costs.preempt_delay_ns;
        if costs.probe_interval_ns > 0 {
            taken_ns += self.random.random_range(0..=costs.probe_interval_ns);
        }
        if costs.late_share > 0.0 && self.random.random::<f64>() < costs.late_share {
            taken_ns += costs.late_ns;
        }
        let finish_ns = self.finish_ns(at);
        let worker = &mut self.workers[at];
        if worker.overdue_ns.take().is_some() {
            self.overdue_count -= 1;
        }
        worker.preempting = true;
        self.preempting_count += 1;
        if taken_ns == now {
            self.interrupt(at, now);
        } else if taken_ns < finish_ns {
            worker.next = Next::Interrupt;
            self.calendar.set(at, taken_ns);
        } else {
            worker.next = Next::Finish;
            self.calendar.set(at, finish_ns);
        }
    }

    /// The request of worker `at` is interrupted.
    fn interrupt(&mut self, at: usize, now: u64) {
        let worker = &mut self.workers[at];
        // An interrupt can come while the worker still switches to the request: then it ran for no time.
        let ran_ns = now.saturating_sub(worker.from_ns);
        self.slots[worker.running as usize].remaining_ns -= ran_ns;
        self.preemptions += 1;
        let receive_ns = self.shape.overheads.preempt_receive_ns;
        if receive_ns == 0 {
            self.saved(at, now);
        } else {
            worker.next = Next::Saved;
            self.calendar.set(at, now + receive_ns);
        }
    }

    /// The interrupted request of worker `at` is saved.
    fn saved(&mut self, at: usize, now: u64) {
        let worker = &mut self.workers[at];
        let id = std::mem::replace(&mut worker.running, NONE);
        worker.preempting = false;
        self.preempting_count -= 1;
        self.calendar.set(at, NEVER);
        self.begin_staged(at, now);
        self.post(now, Message::Preempted(id, at));
    }

    fn begin_staged(&mut self, at: usize, now: u64) {
        if let Some((id, come_ns)) = self.workers[at].staged.pop_front() {
            self.begin(at, id, now.max(come_ns));
        }
    }

    /// Worker `at`, which runs nothing, takes up a request at `now`.
    fn begin(&mut self, at: usize, id: u32, now: u64) {
        let quantum = self.policy.quantum(TaskId(id));
        let remaining_ns = self.slots[id as usize].remaining_ns;
        let worker = &mut self.workers[at];
        let penalty_ns = std::mem::take(&mut worker.penalty_ns);
        worker.running = id;
        worker.from_ns = now + self.shape.overheads.switch_ns + penalty_ns;
        let (next, after_ns) = match quantum {
            Some(Nanos(quantum)) if quantum < remaining_ns => (Next::Quantum, quantum),
            _ => (Next::Finish, remaining_ns),
        };
        worker.next = next;
        let at_ns = worker.from_ns + after_ns;
        self.calendar.set(at, at_ns);
    }

    /// A worker sends the dispatcher a message.
    fn post(&mut self, now: u64, message: Message) {
        if self.shape.overheads.message_ns == 0 {
            self.tell(now, message);
        } else {
            self.mail
                .push_back((now + self.shape.overheads.message_ns, message));
        }
    }

    /// A message reaches the dispatcher.
    fn tell(&mut self, now: u64, message: Message) {
        if self.dispatcher_free_ns > now || !self.inbox.is_empty() {
            self.inbox.push_back(message);
        } else {
            self.handle(now, message);
        }
    }

    fn handle(&mut self, now: u64, message: Message) {
        match message {
            Message::Arrived(id) => {
                let Slot {
                    request,
                    arrival_ns,
                    ..
                } = self.slots[id as usize];
                let task = Task {
                    id: TaskId(id),
                    class: ClassId(request.class),
                    flow: FlowId(request.flow),
                    arrival: Nanos(arrival_ns),
                    started: false,
                };
                if self.policy.arrive(task).is_err() {
                    self.free.push(id);
                    self.refused = Some(request);
                    return;
                }
            }
            Message::Finished(id, at) => {
                self.policy.finished(TaskId(id), WorkerId(at as u16));
                self.free.push(id);
                self.release(at, now);
            }
            Message::Preempted(id, at) => {
                self.policy
                    .preempted(TaskId(id), WorkerId(at as u16), Nanos(now));
                self.release(at, now);
            }
        }
        self.place(now);
    }

    /// Worker `at` holds one request fewer: it gets another.
    fn release(&mut self, at: usize, now: u64) {
        let worker = &mut self.workers[at];
        worker.held -= 1;
        if worker.held == 0 {
            self.idle[at / 64] |= 1 << (at % 64);
            self.idle_count += 1;
        }
        self.offer(at, now);
    }

    /// Asks the policy for a request for worker `at`, which has room.
    fn offer(&mut self, at: usize, now: u64) {
        let Some(task) = self.policy.next(WorkerId(at as u16), Nanos(now), Want::Any) else {
            return;
        };
        let costs = &self.shape.overheads;
        self.dispatcher_free_ns = self.dispatcher_free_ns.max(now) + costs.dispatch_ns;
        let come_ns = self.dispatcher_free_ns + costs.message_ns;
        let worker = &mut self.workers[at];
        if worker.held == 0 {
            self.idle[at / 64] &= !(1 << (at % 64));
            self.idle_count -= 1;
        }
        worker.held += 1;
        if worker.running == NONE && worker.staged.is_empty() {
            self.begin(at, task.id.0, come_ns);
        } else {
            worker.staged.push_back((task.id.0, come_ns));
            if worker.overdue_ns.is_some() {
                self.send_preemption(at, now);
            }
        }
    }

    /// Gives what waits to workers with room, the emptiest first; then preempts the overdue for what still waits.
    fn place(&mut self, now: u64) {
        if self.policy.is_empty() {
            return;
        }
        if self.idle_count > 0 {
            for word in 0..self.idle.len() {
                let mut bits = self.idle[word];
                while bits != 0 {
                    self.offer(64 * word + bits.trailing_zeros() as usize, now);
                    if self.policy.is_empty() {
                        return;
                    }
                    bits &= bits - 1;
                }
            }
        }
        for held in 1..self.shape.depth {
            for at in 0..self.workers.len() {
                if self.workers[at].held == held {
                    self.offer(at, now);
                }
            }
        }
        while self.overdue_count > 0 && self.policy.len() > self.preempting_count {
            let oldest = (0..self.workers.len())
                .filter(|&at| self.has_use_for(at))
                .filter_map(|at| Some((self.workers[at].overdue_ns?, at)))
                .min();
            match oldest {
                Some((_, at)) => self.send_preemption(at, now),
                None => return,
            }
        }
    }
}
