//! A worker's side: requests begin, end, and are preempted.

use rand::RngExt;
use shinjuku_policy::{TaskId, Want, WorkerId};

use super::{Message, NONE, Next, Server};
use crate::Outcome;
use crate::calendar::NEVER;

impl Server {
    /// A worker's event.
    pub(super) fn work(&mut self, at: usize, now: u64) -> Option<Outcome> {
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
        let free_ns = self.dispatcher_free_from();
        if free_ns > now {
            if free_ns - now < left_ns {
                self.calendar.set(at, free_ns);
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

    /// Whether a request waits that worker `at` would be preempted for. With best effort, only what
    /// no preemption under way will serve counts.
    pub(super) fn has_use_for(&self, at: usize) -> bool {
        let running = self.workers[at].running;
        let running = (running != NONE).then_some(TaskId(running));
        let worth = || (self.policy).worth_preempting(WorkerId(at as u16), Want::Any, running);
        let served = match self.has_best_effort {
            true => self.preempting_count,
            false => 0,
        };
        !self.workers[at].staged.is_empty() || worth() > served
    }

    fn finish_ns(&self, at: usize) -> u64 {
        let worker = &self.workers[at];
        worker.from_ns + self.slots[worker.running as usize].remaining_ns
    }

    /// The dispatcher preempts the request that worker `at` runs.
    pub(super) fn send_preemption(&mut self, at: usize, now: u64) {
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
        // An interrupt can come while the worker still switches to the request, which then ran for
        // no time.
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
    pub(super) fn begin(&mut self, at: usize, id: u32, now: u64) {
        let quantum = self.quantum(id);
        let remaining_ns = self.slots[id as usize].remaining_ns;
        let worker = &mut self.workers[at];
        let penalty_ns = std::mem::take(&mut worker.penalty_ns);
        worker.running = id;
        worker.from_ns = now + self.shape.overheads.switch_ns + penalty_ns;
        let (next, after_ns) = match quantum {
            Some(quantum) if quantum < remaining_ns => (Next::Quantum, quantum),
            _ => (Next::Finish, remaining_ns),
        };
        worker.next = next;
        let at_ns = worker.from_ns + after_ns;
        self.calendar.set(at, at_ns);
    }
}
