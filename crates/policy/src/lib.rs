//! Scheduling policies behind one trait.
//!
//! A policy decides which request runs next on which worker, and for how long. It has no clock (time is an
//! argument), no knowledge of threads, takes all memory when it is built, and answers "full" instead of
//! growing. The same code runs in the dispatcher, in the simulator and in the property tests.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod task;

pub use task::{ClassId, FlowId, Nanos, Task, TaskId, WorkerId};

/// The policy has no room for another request. The request stays with the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// Which waiting requests the dispatcher can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Any waiting request.
    Any,
    /// Only requests that have run already: no context is free for a fresh one.
    StartedOnly,
}

/// Decides which request runs next.
///
/// The life of a task, seen from the policy: `arrive` once; then, alternately, it is answered by `next` and
/// comes back by `preempted` (it ran a quantum) or `returned` (it never started: the dispatcher staged it and
/// took it back); at last `finished`, exactly once, while it is out. `remove` takes it out of the queues like
/// `next` does, by name.
pub trait Policy: Send {
    /// A request arrives and waits.
    ///
    /// # Errors
    /// [`Full`] if there is no room (in all, or in its class's or worker's queue); the policy is unchanged.
    fn arrive(&mut self, task: Task) -> Result<(), Full>;

    /// `task`, last answered by [`next`](Self::next), was preempted on `worker` at `now` and waits again.
    /// There is always room: what was admitted once keeps its place.
    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos);

    /// `task`, last answered by [`next`](Self::next) for `worker`, was not started after all: it goes back to
    /// where it was (the front of its queue).
    fn returned(&mut self, task: Task, worker: WorkerId);

    /// `task`, which is out, is over: finished, failed, or refused after it was answered.
    fn finished(&mut self, task: Task, worker: WorkerId);

    /// The next request for `worker`, which leaves the queues.
    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task>;

    /// Takes a waiting task out of the queues by name, as if [`next`](Self::next) had answered it for `worker`.
    /// The core uses it for its progress rule; it may take time linear in the number of waiting requests.
    fn remove(&mut self, id: TaskId, worker: WorkerId) -> Option<Task>;

    /// How long `task` may run before it is preempted if others wait; `None`: to completion.
    fn quantum(&self, task: &Task) -> Option<Nanos>;

    /// How many waiting requests [`next`](Self::next) could answer for `worker` now. Zero means that
    /// preempting `worker` would serve nobody.
    fn waiting(&self, worker: WorkerId, want: Want) -> usize;

    /// How many requests wait in all.
    fn len(&self) -> usize;

    /// Whether nothing waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name that the literature uses, with its parameters: `c-PRE-SQ(5us)`.
    fn name(&self) -> alloc::string::String;
}
