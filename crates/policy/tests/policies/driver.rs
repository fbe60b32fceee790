//! Drives a policy through random lives of requests, the way a dispatcher does.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shinjuku_policy::{ClassId, FlowId, Nanos, Policy, Task, TaskId, Verified, Want, WorkerId};

pub const CAPACITY: usize = 12;
pub const WORKERS: u16 = 3;

/// One thing that happens. A `pick` chooses among the requests for which it can happen.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Arrive { class: u16, flow: u64 },
    Next { worker: u16, want: Want },
    Preempt { pick: usize },
    Return { pick: usize },
    Finish { pick: usize },
    Remove { pick: usize },
    Tick { nanos: u64 },
}

pub fn step() -> impl Strategy<Value = Step> {
    let want = prop_oneof![2 => Just(Want::Any), 1 => Just(Want::StartedOnly)];
    let pick = 0_usize..64;
    prop_oneof![
        6 => (0_u16..4, 0_u64..6).prop_map(|(class, flow)| Step::Arrive { class, flow }),
        8 => (0..WORKERS, want).prop_map(|(worker, want)| Step::Next { worker, want }),
        4 => pick.clone().prop_map(|pick| Step::Preempt { pick }),
        2 => pick.clone().prop_map(|pick| Step::Return { pick }),
        3 => pick.clone().prop_map(|pick| Step::Finish { pick }),
        1 => pick.prop_map(|pick| Step::Remove { pick }),
        4 => (0_u64..500).prop_map(|nanos| Step::Tick { nanos }),
    ]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..200)
}

/// The calls that a bare policy and a verified one have in common.
pub trait Subject {
    fn arrive(&mut self, task: Task) -> bool;
    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task>;
    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos);
    fn returned(&mut self, task: Task, worker: WorkerId);
    fn finished(&mut self, task: Task, worker: WorkerId);
    /// Takes `task`, which waits; a verified policy chooses a fresh one itself, or none.
    fn remove(&mut self, task: Task, worker: WorkerId) -> Option<Task>;
    fn len(&self) -> usize;
}

impl Subject for Box<dyn Policy> {
    fn arrive(&mut self, task: Task) -> bool {
        (**self).arrive(task).is_ok()
    }
    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
        (**self).next(worker, now, want)
    }
    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos) {
        (**self).preempted(task, worker, now);
    }
    fn returned(&mut self, task: Task, worker: WorkerId) {
        (**self).returned(task, worker);
    }
    fn finished(&mut self, task: Task, worker: WorkerId) {
        (**self).finished(task, worker);
    }
    fn remove(&mut self, task: Task, worker: WorkerId) -> Option<Task> {
        let removed = (**self).remove(task.id, worker);
        assert_eq!(removed, Some(task), "must hand out a waiting task");
        removed
    }
    fn len(&self) -> usize {
        let len = (**self).len();
        assert_eq!((**self).is_empty(), len == 0);
        len
    }
}

impl Subject for Verified {
    fn arrive(&mut self, task: Task) -> bool {
        self.arrive(task).is_ok()
    }
    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
        self.next(worker, now, want)
    }
    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos) {
        self.preempted(task.id, worker, now);
    }
    fn returned(&mut self, task: Task, worker: WorkerId) {
        self.returned(task.id, worker);
    }
    fn finished(&mut self, task: Task, worker: WorkerId) {
        self.finished(task.id, worker);
    }
    fn remove(&mut self, _task: Task, worker: WorkerId) -> Option<Task> {
        self.take_fresh(worker)
    }
    fn len(&self) -> usize {
        self.len()
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Nothing,
    Admitted(Task),
    Refused(Task),
    Answered {
        worker: WorkerId,
        want: Want,
        answer: Option<Task>,
    },
    Preempted(Task),
    Returned(Task),
    Finished(Task),
    Removed(Task),
}

/// A subject, and where every request is.
pub struct Driver<S> {
    pub subject: S,
    pub now: Nanos,
    pub waiting: BTreeMap<TaskId, Task>,
    pub out: BTreeMap<TaskId, (Task, WorkerId)>,
}

impl<S: Subject> Driver<S> {
    pub fn new(subject: S) -> Self {
        Self {
            subject,
            now: Nanos(0),
            waiting: BTreeMap::new(),
            out: BTreeMap::new(),
        }
    }

    /// Makes `step` happen if it can; panics if a request is lost, duplicated or altered.
    pub fn step(&mut self, step: Step) -> Event {
        let event = self.try_step(step);
        assert_eq!(self.subject.len(), self.waiting.len(), "after {event:?}");
        event
    }

    fn try_step(&mut self, step: Step) -> Event {
        match step {
            Step::Arrive { class, flow } => {
                let ids = (0..CAPACITY as u32).map(TaskId);
                let mut free =
                    ids.filter(|id| !self.waiting.contains_key(id) && !self.out.contains_key(id));
                let Some(id) = free.next() else {
                    return Event::Nothing;
                };
                let (class, flow) = (ClassId(class), FlowId(flow));
                let task = Task {
                    id,
                    class,
                    flow,
                    arrival: self.now,
                    started: false,
                };
                if self.subject.arrive(task) {
                    self.waiting.insert(id, task);
                    Event::Admitted(task)
                } else {
                    Event::Refused(task)
                }
            }
            Step::Next { worker, want } => {
                let worker = WorkerId(worker);
                let answer = self.subject.next(worker, self.now, want);
                if let Some(task) = answer {
                    assert!(task.started || want == Want::Any, "{task:?} was not wanted");
                    self.send_out(task, worker);
                }
                Event::Answered {
                    worker,
                    want,
                    answer,
                }
            }
            Step::Preempt { pick } => {
                let Some((task, worker)) = self.take_in(pick) else {
                    return Event::Nothing;
                };
                let task = Task {
                    started: true,
                    ..task
                };
                self.waiting.insert(task.id, task);
                self.subject.preempted(task, worker, self.now);
                Event::Preempted(task)
            }
            Step::Return { pick } => {
                let Some((task, worker)) = self.take_in(pick) else {
                    return Event::Nothing;
                };
                self.waiting.insert(task.id, task);
                self.subject.returned(task, worker);
                Event::Returned(task)
            }
            Step::Finish { pick } => {
                let Some((task, worker)) = self.take_in(pick) else {
                    return Event::Nothing;
                };
                self.subject.finished(task, worker);
                Event::Finished(task)
            }
            Step::Remove { pick } => {
                let nth = pick % self.waiting.len().max(1);
                let Some(&task) = self.waiting.values().nth(nth) else {
                    return Event::Nothing;
                };
                let worker = WorkerId(0);
                let Some(task) = self.subject.remove(task, worker) else {
                    return Event::Nothing;
                };
                self.send_out(task, worker);
                Event::Removed(task)
            }
            Step::Tick { nanos } => {
                self.now.0 += nanos;
                Event::Nothing
            }
        }
    }

    /// Finishes every request; panics if one never comes. Time passes, so that the checks catch a
    /// policy that answers nothing.
    pub fn drain(&mut self) {
        for round in 0.. {
            while !self.out.is_empty() {
                self.step(Step::Finish { pick: 0 });
            }
            if self.waiting.is_empty() {
                return;
            }
            assert!(round < 2_000, "never answered: {:?}", self.waiting);
            for worker in 0..WORKERS {
                self.step(Step::Next {
                    worker,
                    want: Want::Any,
                });
            }
            self.step(Step::Tick { nanos: 20_000 });
        }
    }

    fn send_out(&mut self, task: Task, worker: WorkerId) {
        assert_eq!(
            self.waiting.remove(&task.id),
            Some(task),
            "must be waiting, and unaltered"
        );
        self.out.insert(task.id, (task, worker));
    }

    fn take_in(&mut self, pick: usize) -> Option<(Task, WorkerId)> {
        let nth = pick % self.out.len().max(1);
        let &id = self.out.keys().nth(nth)?;
        self.out.remove(&id)
    }
}
