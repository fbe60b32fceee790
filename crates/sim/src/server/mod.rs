//! A server: one dispatcher, one networker and some workers, scheduled by a policy of the runtime.
//!
//! ```text
//!   arrive --networker--> [network] --> dispatcher --message--> worker: switch, run
//!                                          ^   policy             |
//!                                          +------ [mail] <-------+  finished, or preempted and saved
//! ```
//!
//! - Networker and dispatcher do one thing at a time; messages to a busy dispatcher wait in its
//!   inbox.
//! - A request that has run for its quantum is preempted if a request waits that its worker could
//!   serve. If none waits, the running one is *overdue*, and the longest overdue is preempted when
//!   one comes. Best effort is overdue from the start, and preempted before any other.
//! - With a depth of `n` (JBSQ) a worker holds up to `n` requests, one running and the others
//!   staged; fresh requests go to the worker that holds the fewest.
//! - A preemption reaches the worker after the costs of [`Overheads`]. If the request has ended by
//!   then, the preemption misses; its receipt delays the next request, unless probes deliver it. No
//!   other request is preempted by mistake: the runtime numbers its dispatches.
//!
//! - With [`Shape::works_ns`] the dispatcher serves fresh requests itself while it has nothing else
//!   to do and no worker is free, each for a slice at the most.
//!
//! With all overheads zero this is the policy on ideal cores. Time is in whole nanoseconds. All
//! memory is allocated at construction and depends on the capacity alone.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_policy::{Nanos, Policy, TaskId, Verified, WorkerId};

use crate::calendar::{Calendar, NEVER};
use crate::{Layout, Outcome, Overheads, Request, SimError};

mod dispatcher;
mod worker;
mod works;

use works::Own;

/// No request.
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
    /// Where it dispatches.
    pub layout: Layout,
    /// For how long the dispatcher serves a request at a time when it has nothing else to do; 0:
    /// it serves none. For policies that preempt.
    pub works_ns: u64,
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
            layout: Layout::Central,
            works_ns: 0,
        }
    }
}

#[derive(Clone, Copy)]
struct Slot {
    request: Request,
    remaining_ns: u64,
    /// When the request reached the server.
    arrival_ns: u64,
}

/// What a worker's entry in the calendar means.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Finish,
    /// The quantum is over: the dispatcher examines the request.
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
    /// The time since when the request has been overdue.
    overdue_ns: Option<u64>,
    /// A preemption is on its way, or being taken.
    preempting: bool,
    /// Requests held, those on their way included.
    held: usize,
    /// Staged requests, and when each has come.
    staged: VecDeque<(u32, u64)>,
    /// Worker time that missed preemptions took and that is not yet spent.
    penalty_ns: u64,
}

/// A message to the dispatcher.
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
    /// Preemptions under way: each will serve one waiting request.
    preempting_count: usize,
    /// Some requests run only in what is idle.
    has_best_effort: bool,
    calendar: Calendar,
    /// Requests on their way from the networker to the dispatcher, by time.
    network: VecDeque<(u64, u32)>,
    network_free_ns: u64,
    /// Messages on their way from workers to the dispatcher, by time.
    mail: VecDeque<(u64, Message)>,
    inbox: VecDeque<Message>,
    dispatcher_free_ns: u64,
    /// What the dispatcher serves itself.
    own: Option<Own>,
    run_by_dispatcher: u64,
    /// The first event of network, mail, inbox, and what the dispatcher serves.
    control_ns: u64,
    random: Xoshiro256PlusPlus,
    events: u64,
    preemptions: u64,
    missed: u64,
    /// A request that the policy refused just now.
    refused: Option<Request>,
}

impl Server {
    /// A server of the layout [`Layout::Central`] under `policy`, which must have been built for
    /// this capacity and number of workers. The `seed` draws where probes lie and which preemptions
    /// are late.
    ///
    /// # Errors
    /// [`SimError::Parameter`] for no workers, more than 4096, or a depth of zero;
    /// [`SimError::Policy`] for a capacity that cannot be.
    pub fn new(policy: Box<dyn Policy>, shape: Shape, seed: u64) -> Result<Self, SimError> {
        let policy = Verified::new(policy, shape.capacity)?;
        Self::watched(policy, shape, seed)
    }

    /// As [`new`](Self::new), of a policy that is watched already.
    pub(crate) fn watched(policy: Verified, shape: Shape, seed: u64) -> Result<Self, SimError> {
        if !(1..=4096).contains(&shape.workers) {
            let expected = "choose 1 to 4096";
            return Err(SimError::parameter("workers", shape.workers, expected));
        }
        if shape.depth == 0 {
            let expected = "a worker holds at least one request";
            return Err(SimError::parameter("depth", shape.depth, expected));
        }
        shape.overheads.checked()?;
        if shape.overheads.away_every_ns > 0 {
            let expected =
                "other programs' bursts are simulated in the layouts without a central queue";
            return Err(SimError::parameter(
                "away_every_ns",
                shape.overheads.away_every_ns,
                expected,
            ));
        }
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
            has_best_effort: false,
            calendar: Calendar::new(shape.workers),
            network: VecDeque::new(),
            network_free_ns: 0,
            mail: VecDeque::new(),
            inbox: VecDeque::new(),
            dispatcher_free_ns: 0,
            own: None,
            run_by_dispatcher: 0,
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

    /// How many events it has handled: arrivals, ends of requests and of quanta, preemptions,
    /// messages.
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

    /// A request reaches the server at `now_ns`, not before any event handled so far. Returns the
    /// request if it is refused at once.
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
        if self.own.is_some_and(|own| own.until_ns <= now) {
            let outcome = self.leave_own(now);
            self.set_control();
            return outcome;
        }
        if self.own.is_none() && !self.inbox.is_empty() && self.dispatcher_free_ns <= now {
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

    /// For how long the request `id` may run at a time, in ns; `None`: to completion.
    fn quantum(&self, id: u32) -> Option<u64> {
        let Nanos(quantum) = self.policy.quantum(TaskId(id))?;
        Some(quantum.saturating_mul(self.policy.stretch(TaskId(id))))
    }

    /// The request `id`, which ran at `worker`, was preempted.
    fn preempted(&mut self, id: u32, worker: WorkerId, now: Nanos) {
        let slot = &self.slots[id as usize];
        let ran = Nanos(slot.request.service_ns - slot.remaining_ns);
        self.policy.ran_unfinished(TaskId(id), ran);
        self.policy.preempted(TaskId(id), worker, now);
    }

    fn take_refused(&mut self) -> Option<Outcome> {
        let request = self.refused.take()?;
        Some(Outcome::Refused { request })
    }

    fn set_control(&mut self) {
        let network = self.network.front().map_or(NEVER, |(at, _)| *at);
        let mail = self.mail.front().map_or(NEVER, |(at, _)| *at);
        let inbox = match self.own {
            Some(own) => own.until_ns,
            None if self.inbox.is_empty() => NEVER,
            None => self.dispatcher_free_ns,
        };
        self.control_ns = network.min(mail).min(inbox);
    }
}
