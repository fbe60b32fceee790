//! c-FCFS: centralised first come, first served.
//!
//! - One queue for all workers, in order of arrival.
//! - Every request runs to completion: there is no quantum.
//! - A request that comes back although it has no quantum (its handler yielded) goes to the tail,
//!   so that the requests it waits for get their turn.
//! - With [`Want::StartedOnly`], the first in the queue that has run already.
//!
//! Source: Kaffes et al., *Shinjuku: Preemptive Scheduling for Microsecond-scale Tail Latency*,
//! NSDI 2019, section 2: optimal for light-tailed service times, far from it for widely dispersed
//! ones. ZygOS (SOSP 2017) approximates it (section 1).

use alloc::boxed::Box;
use alloc::string::String;

use crate::queue::Queues;
use crate::registry::Registered;
use crate::{Full, Nanos, ParameterError, Policy, Task, TaskId, Want, WorkerId};

/// One queue, run to completion (c-FCFS). Work conserving.
pub struct CFcfs {
    queue: Queues,
}

const QUEUE: usize = 0;

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "c-fcfs",
    label: "c-FCFS",
    rule: "one queue, run to completion",
    after: "the classic",
    preempts: false,
    needs_slo: false,
    requeues: false,
    by_class: false,
    by_flow: false,
    by_worker: false,
    build: |parameters| Ok(Box::new(CFcfs::new(parameters.capacity)?)),
};

impl CFcfs {
    /// A queue for `capacity` requests, with task slots below `capacity`.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`].
    pub fn new(capacity: usize) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        Ok(Self {
            queue: Queues::new(capacity, 1),
        })
    }
}

impl Policy for CFcfs {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        if !self.queue.is_free(task.id) {
            return Err(Full);
        }
        self.queue.push_back(QUEUE, task);
        Ok(())
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.queue.push_back(QUEUE, task);
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

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.queue.total(want)
    }

    fn len(&self) -> usize {
        self.queue.total(Want::Any)
    }

    fn name(&self) -> String {
        String::from("c-FCFS")
    }
}
