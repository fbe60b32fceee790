//! A loop's turn: where it finds work, what it does there, and which other loops it calls for the
//! rest.

use rand::RngExt;
use shinjuku_policy::verified::GIVES_WAY;
use shinjuku_policy::{ClassId, FlowId, Nanos, Task, TaskId, Want};

use super::{ANYONE, Doing, Loops, Part};
use crate::Layout;
use crate::calendar::NEVER;

/// A turn polls so many requests at most.
const BATCH: usize = 64;
/// A best-effort request is stopped this often, for its loop to see whether another request waits:
/// as in the runtime.
const LOOK_EVERY_NS: u64 = 10_000;
/// A worker of Tiny Quanta's polls its ring after so many turns, or with nothing else to do.
const TURNS_A_POLL: u32 = 4;

impl Part {
    /// How many of its requests [`Loops::turn`] could run, those of the ring included or not.
    fn waiting(&self, with_ring: bool) -> usize {
        let ring = if with_ring { self.ring.len() } else { 0 };
        ring + self.policy.waiting(ANYONE, Want::Any)
    }

    /// The same without best-effort requests, as far as can be told before polling.
    fn urgent(&self, with_ring: bool) -> usize {
        let ring = if with_ring { self.ring.len() } else { 0 };
        ring + self.policy.worth_preempting(ANYONE, Want::Any, None)
    }
}

impl Loops {
    /// Loop `at`, which has nothing to do, looks for something.
    pub(super) fn look(&mut self, at: usize, now: u64) {
        let there_ns = self.loops[at].presence.after(now, 0);
        if there_ns > now {
            self.loops[at].doing = Doing::Turn;
            return self.calendar.set(at, there_ns);
        }
        if let Some(part) = self.find(at) {
            return self.turn(at, part, now);
        }
        self.loops[at].doing = Doing::Idle;
        self.idle_count += 1;
        self.calendar.set(at, NEVER);
        if self.layout.interrupts() {
            // It sees what others have not polled.
            for part in 0..self.parts.len() {
                self.call_for_help(part, now);
            }
        }
    }

    /// A part with work for loop `at`; best effort only if none has other work.
    fn find(&mut self, at: usize) -> Option<usize> {
        let urgent = self.find_by(at, Part::urgent);
        match self.has_best_effort {
            true => urgent.or_else(|| self.find_by(at, Part::waiting)),
            false => urgent,
        }
    }

    /// A part where by this count something waits: home; or the fuller of two others, or any other.
    fn find_by(&mut self, at: usize, count: fn(&Part, bool) -> usize) -> Option<usize> {
        if count(&self.parts[at], true) > 0 || !self.parts[at].replies.is_empty() {
            return Some(at);
        }
        let others = self.parts.len() - 1;
        if others == 0 || !self.layout.steals() {
            return None;
        }
        let with_ring = self.layout.polls_for_others();
        let [one, two] = [(); 2].map(|()| self.random.random_range(0..others));
        let other = |step: usize| (at + 1 + step) % self.parts.len();
        let waiting = |part: &usize| count(&self.parts[*part], with_ring);
        let fuller = [other(one), other(two)].into_iter().max_by_key(waiting)?;
        if waiting(&fuller) > 0 {
            return Some(fuller);
        }
        let mut rest = (0..others).map(|step| other((one + step) % others));
        rest.find(|part| waiting(part) > 0)
    }

    /// Loop `at` takes a turn of a part with work: it runs a request of it for a quantum at most.
    fn turn(&mut self, at: usize, number: usize, now: u64) {
        let costs = self.overheads;
        let is_home = at == number;
        let start_ns = now.max(self.parts[number].held_until_ns);
        // The dispatcher of two levels has paid for both.
        let mut cost_ns = if self.front.is_some() {
            0
        } else {
            costs.dispatch_ns
        };
        if !is_home {
            self.helps += 1;
            cost_ns += costs.steal_ns;
        }
        if self.polls(at, is_home) {
            cost_ns += self.poll(number, start_ns, cost_ns);
        }
        let part = &mut self.parts[number];
        let task = part.policy.next(ANYONE, Nanos(now), Want::Any);
        let presence = &mut self.loops[at].presence;
        let begin_ns = presence.after(start_ns, cost_ns);
        part.held_until_ns = begin_ns;
        let Some(task) = task else {
            self.loops[at].doing = Doing::Turn;
            return self.calendar.set(at, begin_ns);
        };
        let (ran_ns, to_save_ns) = self.run_time(number, task.id);
        let work_ns = costs.switch_ns + ran_ns + to_save_ns;
        let loop_ = &mut self.loops[at];
        let end_ns = loop_.presence.after(begin_ns, work_ns);
        loop_.doing = Doing::Request {
            part: number,
            id: task.id.0,
            ran_ns,
        };
        self.calendar.set(at, end_ns);
        self.call_for_help(number, now);
    }

    /// How long a request runs in its turn, and how long it takes to be saved then.
    fn run_time(&mut self, number: usize, id: TaskId) -> (u64, u64) {
        let costs = self.overheads;
        let part = &self.parts[number];
        let remaining_ns = part.slots[id.0 as usize].remaining_ns;
        let quantum_ns = match part.policy.quantum(id) {
            None => return (remaining_ns, 0),
            Some(GIVES_WAY) => LOOK_EVERY_NS,
            Some(Nanos(quantum_ns)) => quantum_ns.saturating_mul(part.policy.stretch(id)),
        };
        let mut late_ns = costs.preempt_delay_ns;
        if costs.probe_interval_ns > 0 {
            late_ns += self.random.random_range(0..=costs.probe_interval_ns);
        }
        if costs.late_share > 0.0 && self.random.random::<f64>() < costs.late_share {
            late_ns += costs.late_ns;
        }
        let ran_ns = quantum_ns.saturating_add(late_ns);
        if ran_ns < remaining_ns {
            (ran_ns, costs.preempt_receive_ns)
        } else {
            (remaining_ns, 0)
        }
    }

    /// Whether a turn of loop `at` polls.
    fn polls(&mut self, at: usize, is_home: bool) -> bool {
        if self.layout != Layout::TwoLevel {
            return is_home || self.layout.polls_for_others();
        }
        let unpolled = &mut self.loops[at].unpolled;
        *unpolled += 1;
        let polls = *unpolled >= TURNS_A_POLL || self.parts[at].waiting(false) == 0;
        if polls {
            *unpolled = 0;
        }
        polls
    }

    /// Replies are sent, requests are taken from the ring: how long that takes, after `before_ns`.
    fn poll(&mut self, number: usize, start_ns: u64, before_ns: u64) -> u64 {
        let each_ns = if self.front.is_some() {
            0
        } else {
            self.overheads.network_ns
        };
        let mut took_ns = 0;
        while let Some(request) = self.parts[number].replies.pop_front() {
            took_ns += each_ns;
            self.answered(request, start_ns + before_ns + took_ns);
        }
        for _ in 0..BATCH {
            let part = &mut self.parts[number];
            let Some(id) = part.ring.pop_front() else {
                break;
            };
            took_ns += each_ns;
            let slot = part.slots[id as usize];
            let task = Task {
                id: TaskId(id),
                class: ClassId(slot.request.class),
                flow: FlowId(slot.request.flow),
                arrival: Nanos(slot.arrival_ns),
                started: false,
            };
            if part.policy.arrive(task).is_err() {
                part.free.push(id);
                self.refuse(slot.request);
            }
        }
        took_ns
    }

    /// Something may wait at a part: its home loop takes it up, or idle loops help, or the home
    /// loop is interrupted.
    pub(super) fn call_for_help(&mut self, number: usize, now: u64) {
        let with_ring = self.layout.polls_for_others();
        if self.loops[number].doing == Doing::Idle {
            let part = &self.parts[number];
            if part.waiting(true) > 0 || !part.replies.is_empty() {
                self.wake(number, now);
            }
        } else if self.layout.interrupts() {
            let part = &self.parts[number];
            let helps = self.idle_count > 0 && !part.ring.is_empty();
            if helps || !part.replies.is_empty() {
                self.interrupt(number, now);
            }
        }
        while self.layout.steals()
            && self.idle_count > 0
            && self.parts[number].waiting(with_ring) > 0
        {
            let Some(helper) = self.any_idle() else {
                return;
            };
            self.wake(helper, now);
        }
    }

    fn wake(&mut self, at: usize, now: u64) {
        self.idle_count -= 1;
        self.look(at, now);
    }

    /// An idle loop, by chance.
    fn any_idle(&mut self) -> Option<usize> {
        let start = self.random.random_range(0..self.loops.len());
        let all = (0..self.loops.len()).map(|step| (start + step) % self.loops.len());
        let mut idle = all.filter(|at| self.loops[*at].doing == Doing::Idle);
        idle.next()
    }

    /// The home loop of a part, within a request, is interrupted: it polls, sends replies, and goes
    /// on. Its request ends so much later; what it polled can be stolen from then on.
    fn interrupt(&mut self, at: usize, now: u64) {
        let Doing::Request { .. } = self.loops[at].doing else {
            return;
        };
        // One that it still handles polls this, too.
        let before_ns = self.loops[at].interrupted_until_ns;
        let mut interrupt_ns = 0;
        if before_ns <= now {
            self.interrupts += 1;
            interrupt_ns = self.overheads.interrupt_ns;
        }
        let from_ns = now.max(before_ns);
        let took_ns = interrupt_ns + self.poll(at, from_ns, interrupt_ns);
        let until_ns = from_ns + took_ns;
        self.loops[at].interrupted_until_ns = until_ns;
        let part = &mut self.parts[at];
        part.held_until_ns = part.held_until_ns.max(until_ns);
        let end_ns = self.calendar.at_ns(at);
        let end_ns = self.loops[at].presence.after(end_ns, took_ns);
        self.calendar.set(at, end_ns);
    }
}
