//! The dispatcher's side: it takes messages, one at a time, asks the policy, and hands out
//! requests.

use shinjuku_policy::{ClassId, FlowId, Nanos, Task, TaskId, Want, WorkerId};

use super::{Message, NONE, Server, Slot};

impl Server {
    /// A worker sends the dispatcher a message.
    pub(super) fn post(&mut self, now: u64, message: Message) {
        if self.shape.overheads.message_ns == 0 {
            self.tell(now, message);
        } else {
            self.mail
                .push_back((now + self.shape.overheads.message_ns, message));
        }
    }

    /// A message reaches the dispatcher.
    pub(super) fn tell(&mut self, now: u64, message: Message) {
        self.look_up(now, message);
        let is_busy = self.own.is_some() || self.dispatcher_free_ns > now;
        if is_busy || !self.inbox.is_empty() {
            self.inbox.push_back(message);
        } else {
            self.handle(now, message);
        }
    }

    pub(super) fn handle(&mut self, now: u64, message: Message) {
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
                self.has_best_effort |= self.policy.is_best_effort(task.id);
            }
            Message::Finished(id, at) => {
                let ran = Nanos(self.slots[id as usize].request.service_ns);
                self.policy
                    .finished_after(TaskId(id), WorkerId(at as u16), ran);
                self.free.push(id);
                self.release(at, now);
            }
            Message::Preempted(id, at) => {
                self.preempted(id, WorkerId(at as u16), Nanos(now));
                self.release(at, now);
            }
        }
        self.place(now);
        self.work_itself(now);
    }

    /// Worker `at` holds one request fewer and gets another.
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

    fn runs_best_effort(&self, at: usize) -> bool {
        let id = self.workers[at].running;
        self.has_best_effort && id != NONE && self.policy.is_best_effort(TaskId(id))
    }

    /// Gives waiting requests to workers with room, the emptiest first; then preempts overdue
    /// requests for the rest, best effort first.
    pub(super) fn place(&mut self, now: u64) {
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
                .min_by_key(|&(overdue_ns, at)| (!self.runs_best_effort(at), overdue_ns));
            match oldest {
                Some((_, at)) => self.send_preemption(at, now),
                None => return,
            }
        }
    }
}
