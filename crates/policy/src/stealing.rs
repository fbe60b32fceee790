//! Work stealing over connections, the policy of ZygOS.
//!
//! - A queue of *flows* per worker; a flow belongs to the worker that it hashes to, and is in that
//!   queue at most once, however many of its requests wait.
//! - A worker takes the first flow of its own queue. If that queue is empty, it takes the first
//!   flow of a victim drawn uniformly at random among the workers that have one.
//! - It runs the flow's first request. Until that request has finished, the flow is in no queue: a
//!   flow never runs at two workers, and its requests run in order. Then, if more of its requests
//!   wait, the flow goes to the tail of its home queue.
//! - Every request runs to completion: there is no quantum. A request that comes back although it
//!   has no quantum (its handler yielded) stays its flow's first, and the flow goes to the tail of
//!   its home queue.
//! - With [`Want::StartedOnly`], a worker takes only flows whose first request has run already,
//!   from its own queue or a victim's.
//! - [`remove`](Policy::remove) of a request that waits behind its flow breaks the flow's order, as
//!   asked; the flow moves on when all its requests ahead have finished. (The core removes only
//!   started requests, which never wait behind, and unstarted ones at shutdown.)
//!
//! Here neither stealing nor waiting for a thief has a cost: this is ZygOS *idealised*, without its
//! shuffle queue's locks, remote system calls and inter-processor interrupts.
//!
//! Source: Prekas, Kogias and Bugnion, *ZygOS: Achieving Low Tail Latency for Microsecond-scale
//! Networked Tasks*, SOSP 2017. Drawing among non-empty victims gives the same choice as its trying
//! victims in random order until one has work.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use crate::flow::{FlowTable, home, scale, scramble};
use crate::queue::Queues;
use crate::registry::Registered;
use crate::{Full, Nanos, ParameterError, Parameters, Policy, Task, TaskId, Want, WorkerId};

/// A queue of flows per worker; idle workers steal (ZygOS). Work conserving up to the order within
/// flows.
pub struct Stealing {
    /// A queue per worker: its flows, each represented by its first request.
    ready: Queues,
    /// A queue per flow, by its entry in `flows`: the requests behind its first.
    behind: Queues,
    flows: FlowTable,
    workers: usize,
    draws: u64,
}

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "stealing",
    label: "work stealing",
    rule: "as d-fcfs; an idle worker takes the flows of others",
    after: "ZygOS",
    preempts: false,
    needs_slo: false,
    requeues: false,
    by_class: false,
    by_flow: true,
    by_worker: true,
    build: |parameters| {
        let Parameters {
            capacity,
            workers,
            seed,
            ..
        } = *parameters;
        Ok(Box::new(Stealing::new(capacity, workers, seed)?))
    },
};

impl Stealing {
    /// Queues for `capacity` requests in all, with task slots below `capacity`, over workers
    /// `0..workers`. The same `seed` gives the same choice of victims.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`], [`ParameterError::Workers`].
    pub fn new(capacity: usize, workers: usize, seed: u64) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        ParameterError::check_workers(workers)?;
        Ok(Self {
            ready: Queues::new(capacity, workers),
            behind: Queues::new(capacity, capacity),
            flows: FlowTable::new(capacity),
            workers,
            draws: scramble(seed),
        })
    }

    fn queue_of(&self, task: &Task) -> usize {
        home(task.flow, self.workers)
    }

    /// A worker with something to steal for `thief`, all equally likely.
    fn victim(&mut self, thief: usize, want: Want) -> Option<usize> {
        let ready = &self.ready;
        let mut victims =
            (0..self.workers).filter(|&worker| worker != thief && ready.len(worker, want) > 0);
        let count = victims.clone().count();
        if count < 2 {
            return victims.next();
        }
        self.draws = self.draws.wrapping_add(1);
        victims.nth(scale(scramble(self.draws), count))
    }
}

impl Policy for Stealing {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        if !self.ready.is_free(task.id) || !self.behind.is_free(task.id) {
            return Err(Full);
        }
        if let Some(flow) = self.flows.find(task.flow) {
            self.behind.push_back(flow, task);
        } else {
            // There are as many entries as task slots, so this fails for no admitted request.
            self.flows.insert(task.flow).ok_or(Full)?;
            self.ready.push_back(self.queue_of(&task), task);
        }
        Ok(())
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.ready.push_back(self.queue_of(&task), task);
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.ready.put_back(self.queue_of(&task), task);
    }

    fn finished(&mut self, task: Task, _worker: WorkerId) {
        let Some(flow) = self.flows.find(task.flow) else {
            return;
        };
        let ahead = self.flows.ahead(flow);
        *ahead = ahead.saturating_sub(1);
        if *ahead > 0 {
            return;
        }
        if let Some(next) = self.behind.pop(flow, Want::Any) {
            *ahead = 1;
            self.ready.push_back(self.queue_of(&next), next);
        } else {
            self.flows.remove(flow);
        }
    }

    fn next(&mut self, worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        if self.ready.total(want) == 0 {
            return None;
        }
        let own = usize::from(worker.0);
        let queue = if own < self.workers && self.ready.len(own, want) > 0 {
            own
        } else {
            self.victim(own, want)?
        };
        self.ready.pop(queue, want)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        if let Some(task) = self.ready.remove(id) {
            return Some(task);
        }
        let task = self.behind.remove(id)?;
        if let Some(flow) = self.flows.find(task.flow) {
            *self.flows.ahead(flow) += 1;
        }
        Some(task)
    }

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.ready.total(want)
    }

    fn len(&self) -> usize {
        self.ready.total(Want::Any) + self.behind.total(Want::Any)
    }

    fn name(&self) -> String {
        format!("stealing({} workers)", self.workers)
    }
}
