//! A server whose cores each have a queue: the runtime's layout `symmetric`, Tiny Quanta's two
//! levels, IX and ZygOS. [`Layout`] has them in a table.
//!
//! ```text
//!   arrive -- by flow, or by [dispatcher] --> ring of a part --turn--> policy of the part
//!                                                                         |
//!       a loop:  home has work?  else others help: a turn of theirs  <----+
//!                turn: replies, poll the ring, ask the policy --> switch, run --> finished,
//!                or the quantum is over: saved, back to the policy; the next turn
//! ```
//!
//! - As many *loops* as cores, and as many *parts*: a ring of arrivals, a policy, its requests.
//!   A loop takes turns of its home first. One loop at a time is in a turn of a part.
//! - Its own deadline preempts a loop, so the loop looks at what waits after every quantum, whether
//!   something waits or not. No message is sent; [`Overheads::preempt_send_ns`] is not paid, and
//!   [`Overheads::message_ns`] is paid between dispatcher and workers only.
//! - An idle loop helps the fuller of two other parts drawn at random, or any if these have
//!   nothing. It knows at once that something waits, and pays [`Overheads::steal_ns`].
//! - Other programs may have a core ([`Overheads::away_ns`]): the loop's request waits for it, and
//!   so does a turn that it is in. What waits at its part can be served by others.
//! - The room is divided evenly among the parts.
//!
//! Not simulated: parking and waking, and the warm cache of the loop that served a part last.
//!
//! [`Layout`]: crate::Layout

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_policy::{Nanos, TaskId, Verified, WorkerId};

use crate::calendar::{Calendar, NEVER};
use crate::machine::spread;
use crate::presence::Presence;
use crate::scheduler::{Built, Scheduler};
use crate::server::Shape;
use crate::source::split_mix;
use crate::{Layout, Outcome, Overheads, Request, SimError};

mod front;
mod turn;

use front::Front;

/// To a part's policy all loops are one worker.
const ANYONE: WorkerId = WorkerId(0);

#[derive(Clone, Copy)]
struct Slot {
    request: Request,
    remaining_ns: u64,
    arrival_ns: u64,
    /// Quanta that it has had.
    quanta: u64,
}

/// What is one core's own.
struct Part {
    policy: Verified,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// What has arrived and was not polled.
    ring: VecDeque<u32>,
    /// Replies that the home loop has to send.
    replies: VecDeque<Request>,
    /// Until then a loop is in a turn of it.
    held_until_ns: u64,
}

/// What a loop does until its entry in the calendar.
#[derive(Clone, Copy, PartialEq)]
enum Doing {
    /// Nothing; its entry is when another program leaves the core, if one has it.
    Idle,
    /// A turn that found no request to run.
    Turn,
    /// A request of `part`, of which `ran_ns` are done then.
    Request { part: usize, id: u32, ran_ns: u64 },
}

struct Loop {
    doing: Doing,
    presence: Presence,
    /// Turns since it polled its ring.
    unpolled: u32,
    /// Until then it handles an interrupt.
    interrupted_until_ns: u64,
}

/// A simulated server whose cores each have a queue.
pub struct Loops {
    layout: Layout,
    overheads: Overheads,
    /// Some requests run only in what the others leave idle.
    has_best_effort: bool,
    parts: Box<[Part]>,
    loops: Box<[Loop]>,
    /// Loops that do nothing and have their core.
    idle_count: usize,
    /// An entry a loop, and one of the front's.
    calendar: Calendar,
    /// Tiny Quanta's dispatcher.
    front: Option<Front>,
    random: Xoshiro256PlusPlus,
    /// What has happened and was not yet told.
    outcomes: VecDeque<Outcome>,
    now_ns: u64,
    inside: usize,
    events: u64,
    preemptions: u64,
    helps: u64,
    interrupts: u64,
}

impl Loops {
    /// A server of this shape, whose layout is not [`Layout::Central`].
    ///
    /// # Errors
    /// [`SimError::Parameter`] for no workers, more than 4096, a depth other than one, or
    /// processor sharing; [`SimError::Policy`] for a capacity that cannot be.
    pub fn new(scheduler: &Scheduler, shape: Shape, seed: u64) -> Result<Self, SimError> {
        let Shape {
            workers,
            capacity,
            overheads,
            layout,
            depth,
            works_ns,
        } = shape;
        if !(1..=4096).contains(&workers) {
            let expected = "choose 1 to 4096";
            return Err(SimError::parameter("workers", workers, expected));
        }
        if depth != 1 {
            let expected = "requests are staged in the layout `central` alone: choose 1";
            return Err(SimError::parameter("depth", depth, expected));
        }
        if works_ns != 0 {
            let expected = "the layout `central` alone has a dispatcher that can work: choose 0";
            return Err(SimError::parameter("works_ns", works_ns, expected));
        }
        overheads.checked()?;
        let room = capacity.div_ceil(workers);
        let part = |number: usize| -> Result<Part, SimError> {
            let built = scheduler.build(room, 1, split_mix(seed, number as u64))?;
            let Built::Policy(policy) = built else {
                let expected = "processor sharing has no layout: choose `central`";
                return Err(SimError::parameter("layout", layout, expected));
            };
            Ok(Part::new(*policy, room))
        };
        let core = |number: usize| Loop {
            doing: Doing::Idle,
            presence: Presence::new(&overheads, split_mix(!seed, number as u64)),
            unpolled: 0,
            interrupted_until_ns: 0,
        };
        Ok(Self {
            layout,
            overheads,
            has_best_effort: scheduler.has_best_effort(),
            parts: (0..workers).map(part).collect::<Result<_, _>>()?,
            loops: (0..workers).map(core).collect(),
            idle_count: workers,
            calendar: Calendar::new(workers + 1),
            front: (layout == Layout::TwoLevel).then(|| Front::new(workers)),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            outcomes: VecDeque::new(),
            now_ns: 0,
            inside: 0,
            events: 0,
            preemptions: 0,
            helps: 0,
            interrupts: 0,
        })
    }

    /// The time of the next event, in ns; `u64::MAX` if there is none.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        if self.outcomes.is_empty() {
            self.calendar.first_ns()
        } else {
            self.now_ns
        }
    }

    /// Requests in the server.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inside
    }

    /// Whether the server has no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inside == 0
    }

    /// How many events it has handled.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How many quanta ended before their request.
    #[must_use]
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// How many turns loops took of parts that are not their home.
    #[must_use]
    pub fn helps(&self) -> u64 {
        self.helps
    }

    /// How many interrupts were sent to loops within requests.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// Whether the policies have kept their contract.
    ///
    /// # Errors
    /// [`SimError::Contract`] if not.
    pub fn check(&self) -> Result<(), SimError> {
        let policies = self.parts.iter().map(|part| &part.policy);
        for policy in policies {
            if let Some(error) = policy.error() {
                return Err(SimError::Contract {
                    policy: policy.name().to_owned(),
                    error: *error,
                });
            }
        }
        Ok(())
    }

    /// A request reaches the server at `now_ns`, not before any event handled so far. Returns the
    /// request if it is refused at once.
    pub fn arrive(&mut self, now_ns: u64, request: Request) -> Option<Outcome> {
        self.events += 1;
        self.now_ns = now_ns;
        self.inside += 1;
        if let Some(front) = &mut self.front {
            front.arrive(now_ns, request, &self.overheads);
            self.set_front();
        } else {
            let part = spread(request.flow, self.parts.len());
            self.put(part, request, now_ns, now_ns);
        }
        self.outcomes.pop_front()
    }

    /// Handles the next event, of time [`next_ns`](Self::next_ns).
    pub fn step(&mut self) -> Option<Outcome> {
        if let Some(outcome) = self.outcomes.pop_front() {
            return Some(outcome);
        }
        let now = self.calendar.first_ns();
        if now == NEVER {
            return None;
        }
        self.events += 1;
        self.now_ns = now;
        let at = self.calendar.first_slot();
        if at < self.loops.len() {
            self.end_of_turn(at, now);
        } else {
            self.front_event(now);
        }
        self.outcomes.pop_front()
    }

    /// A request of a part is there to be polled.
    fn put(&mut self, at: usize, request: Request, arrival_ns: u64, now: u64) {
        let part = &mut self.parts[at];
        let Some(id) = part.free.pop() else {
            return self.refuse(request);
        };
        part.slots[id as usize] = Slot {
            request,
            remaining_ns: request.service_ns,
            arrival_ns,
            quanta: 0,
        };
        part.ring.push_back(id);
        self.call_for_help(at, now);
    }

    fn refuse(&mut self, request: Request) {
        self.inside -= 1;
        self.outcomes.push_back(Outcome::Refused { request });
    }

    fn answered(&mut self, request: Request, at_ns: u64) {
        self.inside -= 1;
        self.outcomes
            .push_back(Outcome::Finished { request, at_ns });
    }

    /// What loop `at` did has come to its end.
    fn end_of_turn(&mut self, at: usize, now: u64) {
        let doing = std::mem::replace(&mut self.loops[at].doing, Doing::Turn);
        if let Doing::Request {
            part: number,
            id,
            ran_ns,
        } = doing
        {
            let part = &mut self.parts[number];
            let slot = &mut part.slots[id as usize];
            slot.remaining_ns -= ran_ns;
            let (request, quanta) = (slot.request, slot.quanta);
            let ran = Nanos(request.service_ns - slot.remaining_ns);
            let has_ended = slot.remaining_ns == 0;
            if has_ended {
                part.policy.finished_after(TaskId(id), ANYONE, ran);
                part.free.push(id);
                if number == at || !self.layout.replies_at_home() {
                    self.answered(request, now);
                } else {
                    part.replies.push_back(request);
                }
            } else {
                slot.quanta += 1;
                self.preemptions += 1;
                part.policy.ran_unfinished(TaskId(id), ran);
                part.policy.preempted(TaskId(id), ANYONE, Nanos(now));
            }
            if let Some(front) = &mut self.front {
                let there_ns = now + self.overheads.message_ns;
                front.report(there_ns, at, has_ended.then_some(quanta));
            }
            self.look(at, now);
            if number != at {
                self.call_for_help(number, now);
            }
        } else {
            self.look(at, now);
        }
    }
}

impl Part {
    fn new(policy: Verified, room: usize) -> Self {
        let request = Request {
            sent_ns: 0,
            service_ns: 1,
            flow: 0,
            class: 0,
            tag: 0,
        };
        let slot = Slot {
            request,
            remaining_ns: 0,
            arrival_ns: 0,
            quanta: 0,
        };
        Self {
            policy,
            slots: vec![slot; room].into_boxed_slice(),
            free: (0..room as u32).rev().collect(),
            ring: VecDeque::new(),
            replies: VecDeque::new(),
            held_until_ns: 0,
        }
    }
}
