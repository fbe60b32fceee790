//! d-FCFS: distributed first come, first served.
//!
//! - A queue per worker; a request goes to the worker that its flow hashes to, and to no other.
//! - Every request runs to completion: there is no quantum. A request that comes back although it
//!   has no quantum (its handler yielded) goes to the tail of its queue.
//! - With [`Want::StartedOnly`], the first in the worker's queue that has run already.
//! - The optional bound on a queue stands for the NIC's receive ring; all requests that wait in the
//!   queue count.
//!
//! Not work conserving: a worker idles while others have work. This is the *policy* of IX,
//! idealised: none of IX's own costs (batching, the network stack) is in it.
//!
//! Source: Belay et al., *IX: A Protected Dataplane Operating System for High Throughput and Low
//! Latency*, OSDI 2014; named d-FCFS in Kaffes et al., *Shinjuku*, NSDI 2019, section 1.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use crate::flow::home;
use crate::queue::Queues;
use crate::registry::Registered;
use crate::{Full, Nanos, ParameterError, Policy, Task, TaskId, Want, WorkerId};

/// A queue per worker, chosen by flow, run to completion (d-FCFS). Not work conserving.
pub struct DFcfs {
    /// A queue per worker.
    queues: Queues,
    workers: usize,
    bound: usize,
}

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "d-fcfs",
    label: "d-FCFS",
    rule: "a queue per worker, flows hashed to it, run to completion",
    after: "IX",
    preempts: false,
    needs_slo: false,
    requeues: false,
    by_class: false,
    by_flow: true,
    by_worker: true,
    build: |parameters| {
        Ok(Box::new(DFcfs::new(
            parameters.capacity,
            parameters.workers,
        )?))
    },
};

impl DFcfs {
    /// Queues for `capacity` requests in all, with task slots below `capacity`, over workers
    /// `0..workers`.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`], [`ParameterError::Workers`].
    pub fn new(capacity: usize, workers: usize) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        ParameterError::check_workers(workers)?;
        Ok(Self {
            queues: Queues::new(capacity, workers),
            workers,
            bound: capacity,
        })
    }

    /// Refuses arrivals for a worker at which `bound` requests wait already.
    ///
    /// # Errors
    /// [`ParameterError::ZeroQueueBound`].
    pub fn with_queue_bound(self, bound: usize) -> Result<Self, ParameterError> {
        ParameterError::check_queue_bound(bound)?;
        Ok(Self { bound, ..self })
    }

    fn queue_of(&self, task: &Task) -> usize {
        home(task.flow, self.workers)
    }

    fn queue_at(&self, worker: WorkerId) -> Option<usize> {
        Some(usize::from(worker.0)).filter(|&worker| worker < self.workers)
    }
}

impl Policy for DFcfs {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        let queue = self.queue_of(&task);
        if !self.queues.is_free(task.id) || self.queues.len(queue, Want::Any) >= self.bound {
            return Err(Full);
        }
        self.queues.push_back(queue, task);
        Ok(())
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.queues.push_back(self.queue_of(&task), task);
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.queues.put_back(self.queue_of(&task), task);
    }

    fn next(&mut self, worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        let queue = self.queue_at(worker)?;
        self.queues.pop(queue, want)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        self.queues.remove(id)
    }

    fn waiting(&self, worker: WorkerId, want: Want) -> usize {
        self.queue_at(worker)
            .map_or(0, |queue| self.queues.len(queue, want))
    }

    fn len(&self) -> usize {
        self.queues.total(Want::Any)
    }

    fn name(&self) -> String {
        format!("d-FCFS({} workers)", self.workers)
    }
}
