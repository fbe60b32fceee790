//! What a policy did wrong.

use core::fmt;

use crate::{Nanos, Task, TaskId, Want, WorkerId};

/// A broken promise of a [`Policy`](crate::Policy), found by [`Verified`](crate::Verified).
///
/// The defect is the policy's, not the requests': none of them is lost.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyError {
    /// It answered a task that is not in the system.
    Unknown {
        /// The task answered.
        task: TaskId,
        /// The worker it was answered for.
        worker: WorkerId,
    },
    /// It answered a task that is at a worker already, so twice the same task.
    NotWaiting {
        /// The task answered.
        task: TaskId,
        /// The worker it was answered for.
        worker: WorkerId,
    },
    /// It answered a task that never ran, though only started ones were wanted.
    NotStarted {
        /// The task answered.
        task: TaskId,
        /// The worker it was answered for.
        worker: WorkerId,
    },
    /// It answered a task whose fields differ from those it was given.
    Altered {
        /// The task answered.
        answered: Task,
        /// The task as it was given.
        given: Task,
    },
    /// It did not hand out a waiting task that was asked for by name.
    NotRemoved {
        /// The task asked for.
        task: TaskId,
        /// What it answered instead.
        answered: Option<Task>,
    },
    /// It had nothing to run, and its count of waiting tasks is wrong: some are lost or counted
    /// twice.
    Miscounted {
        /// How many tasks wait by its own count.
        claimed: usize,
        /// How many tasks wait.
        waiting: usize,
    },
    /// For too long it answered nothing, although it said that tasks wait for that worker, or
    /// although every worker was idle.
    Stalled {
        /// The worker asked for last.
        worker: WorkerId,
        /// What was asked for last.
        want: Want,
        /// How many tasks wait.
        waiting: usize,
        /// For how long.
        lasted: Nanos,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { task, worker } => {
                write!(
                    f,
                    "answered task {} for worker {}: no such task",
                    task.0, worker.0
                )
            }
            Self::NotWaiting { task, worker } => {
                write!(
                    f,
                    "answered task {} for worker {}: it is at a worker already",
                    task.0, worker.0
                )
            }
            Self::NotStarted { task, worker } => write!(
                f,
                "answered task {} for worker {}: it never ran, and only started ones were asked for",
                task.0, worker.0
            ),
            Self::Altered { answered, given } => {
                write!(f, "answered {answered:?}: was given {given:?}")
            }
            Self::NotRemoved {
                task,
                answered: None,
            } => {
                write!(f, "did not hand out waiting task {}", task.0)
            }
            Self::NotRemoved {
                task,
                answered: Some(answered),
            } => {
                write!(
                    f,
                    "handed out {answered:?}: was asked for waiting task {}",
                    task.0
                )
            }
            Self::Miscounted { claimed, waiting } => {
                write!(f, "counts {claimed} waiting tasks: there are {waiting}")
            }
            Self::Stalled {
                worker,
                want,
                waiting,
                lasted,
            } => write!(
                f,
                "answered nothing for {lasted} (last asked for worker {}, {want:?}): {waiting} tasks wait",
                worker.0
            ),
        }
    }
}

impl core::error::Error for PolicyError {}
