//! c-PRE-SQ: centralised, preemptive, single queue.
//!
//! - One queue for all workers, in order of arrival.
//! - A request runs for one quantum; if others wait then, it is preempted and goes to the tail
//!   (or, by choice, to the head) of the queue.
//! - With [`Want::StartedOnly`], the first in the queue that has run already.
//!
//! Source: Kaffes et al., *Shinjuku*, NSDI 2019, section 3.4: its single queue (SQ) policy.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use crate::queue::Queues;
use crate::registry::Registered;
use crate::{ClassId, Full, Nanos, ParameterError, Policy, Requeue, Task, TaskId, Want, WorkerId};

/// One queue, one quantum (c-PRE-SQ). Work conserving.
pub struct SingleQueue {
    queue: Queues,
    quantum: Nanos,
    requeue: Requeue,
}

const QUEUE: usize = 0;

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "c-pre-sq",
    label: "c-PRE-SQ",
    rule: "one queue, one quantum",
    after: "Shinjuku",
    preempts: true,
    needs_slo: false,
    requeues: true,
    by_class: false,
    by_flow: false,
    by_worker: false,
    build: |parameters| {
        let policy = SingleQueue::new(parameters.capacity, parameters.quantum)?;
        Ok(Box::new(
            policy.with_requeue(parameters.requeue.unwrap_or_default()),
        ))
    },
};

impl SingleQueue {
    /// A queue for `capacity` requests, with task slots below `capacity`. Preempted requests go to
    /// the tail. [`Nanos::MAX`] as quantum: run to completion.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`], [`ParameterError::ZeroQuantum`].
    pub fn new(capacity: usize, quantum: Nanos) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        if quantum == Nanos(0) {
            return Err(ParameterError::ZeroQuantum { class: ClassId(0) });
        }
        Ok(Self {
            queue: Queues::new(capacity, 1),
            quantum,
            requeue: Requeue::Tail,
        })
    }

    /// Chooses where a preempted request goes.
    #[must_use]
    pub fn with_requeue(self, requeue: Requeue) -> Self {
        Self { requeue, ..self }
    }
}

impl Policy for SingleQueue {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        if !self.queue.is_free(task.id) {
            return Err(Full);
        }
        self.queue.push_back(QUEUE, task);
        Ok(())
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        match self.requeue {
            Requeue::Tail => self.queue.push_back(QUEUE, task),
            Requeue::Head => self.queue.push_front(QUEUE, task),
        }
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.queue.put_back(QUEUE, task);
    }

    fn next(&mut self, _worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        self.queue.pop(QUEUE, want)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        self.queue.remove(id)
    }

    fn quantum(&self, _task: &Task) -> Option<Nanos> {
        (self.quantum != Nanos::MAX).then_some(self.quantum)
    }

    fn set_requeue(&mut self, _class: ClassId, requeue: Requeue) {
        self.requeue = requeue;
    }

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.queue.total(want)
    }

    fn len(&self) -> usize {
        self.queue.total(Want::Any)
    }

    fn name(&self) -> String {
        match self.requeue {
            Requeue::Tail => format!("c-PRE-SQ({})", self.quantum),
            Requeue::Head => format!("c-PRE-SQ({}, head)", self.quantum),
        }
    }
}
