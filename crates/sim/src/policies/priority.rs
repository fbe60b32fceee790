//! Strict priority by class, first come, first served within a priority: the baseline PRIQ of TailGuard.
//!
//! - A class has a priority; the lower number goes first. A class number beyond the last counts as the last.
//! - Every request runs to completion.

use shinjuku_policy::{Full, Nanos, Policy, Task, TaskId, Want, WorkerId};

use super::waiting::Ranked;
use crate::SimError;

/// Strict priority by class, run to completion.
pub struct Priority {
    waiting: Ranked,
    priorities: Vec<u16>,
}

impl Priority {
    /// Room for `capacity` requests, with task slots below it, and a priority a class; lower goes first.
    ///
    /// # Errors
    /// [`SimError::Parameter`] without a class.
    pub fn new(capacity: usize, priorities: &[u16]) -> Result<Self, SimError> {
        if priorities.is_empty() {
            let expected = "give one priority a class";
            return Err(SimError::parameter("number of priorities", 0, expected));
        }
        Ok(Self {
            waiting: Ranked::new(capacity),
            priorities: priorities.to_vec(),
        })
    }
}

impl Policy for Priority {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        let class = usize::from(task.class.0).min(self.priorities.len() - 1);
        if self
            .waiting
            .arrive(task, i128::from(self.priorities[class]))
        {
            Ok(())
        } else {
            Err(Full)
        }
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        self.waiting.insert(task);
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.waiting.insert(task);
    }

    fn finished(&mut self, _task: Task, _worker: WorkerId) {}

    fn next(&mut self, _worker: WorkerId, _now: Nanos, want: Want) -> Option<Task> {
        self.waiting.pop(want)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        self.waiting.remove(id)
    }

    fn quantum(&self, _task: &Task) -> Option<Nanos> {
        None
    }

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.waiting.len(want)
    }

    fn len(&self) -> usize {
        self.waiting.len(Want::Any)
    }

    fn name(&self) -> String {
        String::from("priority")
    }
}
