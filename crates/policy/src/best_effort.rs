//! Best effort: classes that run only in what another policy leaves idle, and give way at once.
//!
//! - The requests of all other classes are the other policy's, which never sees best-effort ones.
//! - A worker gets a best-effort request only when the other policy has no request for the worker.
//!   Started ones go first, in the order in which they last stopped; then fresh ones, in order of
//!   arrival.
//! - A best-effort request is stopped as soon as a request of the other policy waits that its
//!   worker could serve, and goes behind the other started ones. Only the core's progress rule
//!   stops it for another best-effort request.
//! - Where the other policy always has requests, best effort waits for ever. Only the core's
//!   progress rule gives it a turn, since a best-effort request may hold a lock.
//! - Two bounds: how many best-effort requests may wait unstarted, beyond which they are refused;
//!   and how many may hold a context, so that others find one.
//!
//! ```text
//!   arrive ── other classes ──▶ [ the other policy ] ──▶ next: first
//!        └─── best effort ────▶ [ started | fresh ] ───▶ next: only if there is nothing else
//!                                    ▲                     │
//!                                    └──── preempted ◀─────┘ its quantum is zero
//! ```
//!
//! A worker is idle where the other policy has no request for it: the workers that `darc` reserves
//! for short requests run best-effort ones meanwhile. A best-effort request keeps no order within
//! its flow.
//!
//! Source: ours. The notion is that of Linux's SCHED_IDLE, and of the batch tasks that Shenango
//! (NSDI 2019) and Caladan (OSDI 2020) run in what latency-critical ones leave.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use crate::queue::Queues;
use crate::verified::GIVES_WAY;
use crate::{
    BestEffortParameters, ClassId, Full, Nanos, ParameterError, Policy, Requeue, Task, TaskId,
    Want, WorkerId,
};

const QUEUE: usize = 0;

/// Another policy, with best-effort classes behind it. Work conserving at least where the other
/// policy is.
pub struct BestEffort {
    inner: Box<dyn Policy>,
    /// By class number; classes beyond the last are not best effort.
    classes: Box<[bool]>,
    queue: Queues,
    /// How many may wait unstarted.
    bound: usize,
    /// How many may have started.
    most_started: usize,
    /// How many have started, or are handed out to start.
    started: usize,
}

impl BestEffort {
    /// Puts these classes behind `inner`, which was built for `capacity` tasks.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`]; [`ParameterError::ZeroQueueBound`] for either bound.
    pub fn around(
        inner: Box<dyn Policy>,
        capacity: usize,
        parameters: &BestEffortParameters,
    ) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        ParameterError::check_queue_bound(parameters.queue.min(parameters.started))?;
        let last = parameters.classes.iter().max();
        let mut classes = vec![false; last.map_or(0, |class| usize::from(class.0) + 1)];
        for class in &parameters.classes {
            classes[usize::from(class.0)] = true;
        }
        Ok(Self {
            inner,
            classes: classes.into_boxed_slice(),
            queue: Queues::new(capacity, 1),
            bound: parameters.queue,
            most_started: parameters.started,
            started: 0,
        })
    }

    fn is_best_effort(&self, class: ClassId) -> bool {
        self.classes.get(usize::from(class.0)) == Some(&true)
    }

    /// Which of the requests asked for may be handed out.
    fn allowed(&self, want: Want) -> Want {
        match self.started < self.most_started {
            true => want,
            false => Want::StartedOnly,
        }
    }

    /// Counts a task that has left the queue.
    fn taken(&mut self, task: Task) -> Task {
        self.started += usize::from(!task.started);
        task
    }

    fn admit(&self, task: &Task) -> Result<(), Full> {
        let fresh = self.queue.total(Want::Any) - self.queue.total(Want::StartedOnly);
        match self.queue.is_free(task.id) && fresh < self.bound {
            true => Ok(()),
            false => Err(Full),
        }
    }
}

impl Policy for BestEffort {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        if !self.is_best_effort(task.class) {
            return self.inner.arrive(task);
        }
        self.admit(&task)?;
        self.queue.push_back(QUEUE, task);
        Ok(())
    }

    fn arrive_due(&mut self, task: Task, due: Nanos) -> Result<(), Full> {
        match self.is_best_effort(task.class) {
            true => self.arrive(task),
            false => self.inner.arrive_due(task, due),
        }
    }

    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos) {
        match self.is_best_effort(task.class) {
            true => self.queue.push_back(QUEUE, task),
            false => self.inner.preempted(task, worker, now),
        }
    }

    fn returned(&mut self, task: Task, worker: WorkerId) {
        if !self.is_best_effort(task.class) {
            return self.inner.returned(task, worker);
        }
        self.started -= usize::from(!task.started);
        self.queue.put_back(QUEUE, task);
    }

    fn finished(&mut self, task: Task, worker: WorkerId) {
        match self.is_best_effort(task.class) {
            true => self.started -= 1,
            false => self.inner.finished(task, worker),
        }
    }

    fn finished_after(&mut self, task: Task, worker: WorkerId, ran: Nanos) {
        match self.is_best_effort(task.class) {
            true => self.started -= 1,
            false => self.inner.finished_after(task, worker, ran),
        }
    }

    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
        if let Some(task) = self.inner.next(worker, now, want) {
            return Some(task);
        }
        let want = self.allowed(want);
        let started = self.queue.pop(QUEUE, Want::StartedOnly);
        let task = started.or_else(|| self.queue.pop(QUEUE, want))?;
        Some(self.taken(task))
    }

    fn remove(&mut self, id: TaskId, worker: WorkerId) -> Option<Task> {
        match self.queue.remove(id) {
            Some(task) => Some(self.taken(task)),
            None => self.inner.remove(id, worker),
        }
    }

    fn quantum(&self, task: &Task) -> Option<Nanos> {
        match self.is_best_effort(task.class) {
            true => Some(GIVES_WAY),
            false => self.inner.quantum(task),
        }
    }

    fn set_slo(&mut self, class: ClassId, slo: Nanos) {
        self.inner.set_slo(class, slo);
    }

    fn set_requeue(&mut self, class: ClassId, requeue: Requeue) {
        self.inner.set_requeue(class, requeue);
    }

    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        self.inner.waiting(worker, want) + self.queue.total(self.allowed(want))
    }

    fn worth_preempting(&self, worker: WorkerId, want: Want, running: Option<&Task>) -> usize {
        let running = running.filter(|running| !self.is_best_effort(running.class));
        self.inner.worth_preempting(worker, want, running)
    }

    fn len(&self) -> usize {
        self.inner.len() + self.queue.total(Want::Any)
    }

    /// `c-PRE-SQ(5us) before best effort`
    fn name(&self) -> String {
        format!("{} before best effort", self.inner.name())
    }
}
