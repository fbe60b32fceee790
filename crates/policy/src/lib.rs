//! Scheduling policies behind one trait.
//!
//! A policy decides which request runs next on which worker, and for how long. It has no clock
//! (time is an argument), no knowledge of threads, takes all memory when it is built, and answers
//! "full" instead of growing. The same code runs in the dispatcher, in the simulator and in the
//! property tests.
//!
//! | policy | name | queues | quantum | source |
//! |---|---|---|---|---|
//! | [`SingleQueue`] | `c-pre-sq` | one | one | Shinjuku |
//! | [`MultiQueue`] | `c-pre-mq` | one per class, picked by waiting time / SLO | per class | Shinjuku |
//! | [`CFcfs`] | `c-fcfs` | one | none | the classic |
//! | [`DFcfs`] | `d-fcfs` | one per worker, flows hashed to it | none | IX |
//! | [`Stealing`] | `stealing` | one of flows per worker, idle workers steal | none | ZygOS |
//! | [`Darc`] | `darc` | one per class, cores reserved by measured demand | none | Perséphone |
//! | [`edf`] | `edf` | one, by deadline | per class | TailGuard |
//! | [`priority`] | `priority` | one, by class | per class | TailGuard |
//!
//! [`registry`] lists them by name and builds them from [`Parameters`]. [`BestEffort`] puts classes
//! behind any of them, which run only in what that policy leaves idle. A [`Learner`] measures SLOs
//! and places for preempted requests that were not given.
//!
//! [`Verified`] stands between the core and a policy. It checks the policy's answers, so that a
//! wrong policy causes an error and nothing worse. It enforces the progress rule, so that a request
//! spinning for a lock cannot starve the lock's holder.
//!
//! # Example
//!
//! A long request and a short one share worker 0 under a quantum of 5 us:
//!
//! ```
//! use shinjuku_policy::{
//!     ClassId, FlowId, Nanos, SingleQueue, Task, TaskId, Verified, Want, WorkerId,
//! };
//!
//! let policy = SingleQueue::new(1024, Nanos::from_micros(5))?;
//! let mut policy = Verified::new(Box::new(policy), 1024)?;
//!
//! let request = |slot, arrival| Task {
//!     id: TaskId(slot),
//!     class: ClassId(0),
//!     flow: FlowId(0),
//!     arrival: Nanos::from_micros(arrival),
//!     started: false,
//! };
//! let (long, short) = (request(0, 0), request(1, 3));
//! let worker = WorkerId(0);
//!
//! assert!(policy.arrive(long).is_ok());
//! assert_eq!(policy.next(worker, Nanos(0), Want::Any), Some(long));
//! assert!(policy.arrive(short).is_ok());
//!
//! // The long request has run for its quantum, and another waits: it is preempted.
//! let now = Nanos::from_micros(5);
//! assert_eq!(policy.quantum(long.id), Some(now));
//! assert_eq!(policy.waiting(worker, Want::Any), 1);
//! policy.preempted(long.id, worker, now);
//!
//! assert_eq!(policy.next(worker, now, Want::Any), Some(short));
//! policy.finished(short.id, worker);
//! assert_eq!(policy.next(worker, now, Want::Any), Some(Task { started: true, ..long }));
//! policy.finished(long.id, worker);
//! assert!(policy.is_empty());
//! assert_eq!(policy.error(), None);
//! # Ok::<(), shinjuku_policy::ParameterError>(())
//! ```
//!
//! # Writing a policy
//!
//! Implement [`Policy`], and let [`Verified`] run it. Each policy here is one file that states its
//! rules at the top; start from [`single_queue`]. [`registry`] says how a policy gets a name.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod best_effort;
pub mod cfcfs;
pub mod darc;
pub mod dfcfs;
pub mod edf;
pub mod learner;
pub mod multi_queue;
pub mod priority;
pub mod registry;
pub mod single_queue;
pub mod stealing;
pub mod verified;

mod flow;
mod parameters;
mod policy_error;
mod queue;
mod ranked;
mod service_times;
mod task;

#[doc(inline)]
pub use best_effort::BestEffort;
#[doc(inline)]
pub use cfcfs::CFcfs;
#[doc(inline)]
pub use darc::Darc;
#[doc(inline)]
pub use dfcfs::DFcfs;
#[doc(inline)]
pub use learner::{Learner, Lesson};
#[doc(inline)]
pub use multi_queue::{ClassRule, MultiQueue};
pub use parameters::{BestEffortParameters, ClassParameters, ParameterError, Parameters, Requeue};
pub use policy_error::PolicyError;
#[doc(inline)]
pub use registry::{PolicyName, Registered};
pub use service_times::ServiceTimes;
#[doc(inline)]
pub use single_queue::SingleQueue;
#[doc(inline)]
pub use stealing::Stealing;
#[doc(hidden)]
pub use verified::Verified;

pub use task::{ClassId, FlowId, Nanos, Task, TaskId, WorkerId};

/// The policy has no room for another request. The request stays with the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(
            "no room for another request: refuse it, or build the policy with a larger capacity",
        )
    }
}

impl core::error::Error for Full {}

/// Which waiting requests the dispatcher can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Any waiting request.
    Any,
    /// Only requests that have run already: no context is free for a fresh one.
    StartedOnly,
}

impl Want {
    /// Whether `task` is one of the requests wanted.
    #[must_use]
    pub const fn includes(self, task: &Task) -> bool {
        matches!(self, Self::Any) || task.started
    }
}

/// Decides which request runs next.
///
/// The life of a task, seen from the policy: `arrive` brings it once. Then `next` answers it, and
/// it is out. It comes back by `preempted`, after it has run, or by `returned`, if it has not run:
/// the dispatcher staged it and took it back. That may happen any number of times. At last comes
/// `finished`, exactly once, while the task is out. `remove` takes a task out of the queues as
/// `next` does, but by name.
pub trait Policy: Send {
    /// A request arrives and waits.
    ///
    /// # Errors
    /// [`Full`] if there is no room (in all, or in its class's or worker's queue); the policy is
    /// unchanged.
    fn arrive(&mut self, task: Task) -> Result<(), Full>;

    /// As [`arrive`](Self::arrive), for a request that brings a deadline of its own, `due`. By
    /// default the deadline is ignored.
    ///
    /// # Errors
    /// As [`arrive`](Self::arrive).
    fn arrive_due(&mut self, task: Task, due: Nanos) -> Result<(), Full> {
        let _ = due;
        self.arrive(task)
    }

    /// `task`, last answered by [`next`](Self::next), was preempted on `worker` at `now` and waits
    /// again. There is always room: an admitted request keeps its place.
    fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos);

    /// `task`, last answered by [`next`](Self::next) for `worker`, did not run: it goes back to its
    /// place (the front of its queue). Usually it never started; the core's progress rule also
    /// returns started tasks.
    fn returned(&mut self, task: Task, worker: WorkerId);

    /// Called once when a dispatched task has finished, failed or been refused. By default it does
    /// nothing.
    fn finished(&mut self, task: Task, worker: WorkerId) {
        let _ = (task, worker);
    }

    /// As [`finished`](Self::finished), with the time that the task ran in all: its service time.
    /// By default the time is ignored.
    fn finished_after(&mut self, task: Task, worker: WorkerId, ran: Nanos) {
        let _ = ran;
        self.finished(task, worker);
    }

    /// The next request for `worker`, which leaves the queues.
    fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task>;

    /// Takes a waiting task out of the queues by name, as if [`next`](Self::next) had answered it
    /// for `worker`. The core uses it for its progress rule; it may take time linear in the number
    /// of waiting requests.
    fn remove(&mut self, id: TaskId, worker: WorkerId) -> Option<Task>;

    /// How long `task` may run before it is preempted, if others wait for which that is
    /// [worth it](Self::worth_preempting). `None` (the default) and [`Nanos::MAX`]: the task runs
    /// to completion. Zero: the task runs only in what others leave idle, and gives way at once,
    /// whatever a preemption costs.
    fn quantum(&self, task: &Task) -> Option<Nanos> {
        let _ = task;
        None
    }

    /// The SLO of `class`, which was given none, is this from now on, as was
    /// [learnt](crate::learner). By default it is ignored.
    fn set_slo(&mut self, class: ClassId, slo: Nanos) {
        let _ = (class, slo);
    }

    /// The preempted requests of `class` go there from now on, as was [learnt](crate::learner). A
    /// policy that has one queue for all classes is told so of class 0. By default it is ignored.
    fn set_requeue(&mut self, class: ClassId, requeue: Requeue) {
        let _ = (class, requeue);
    }

    /// How many waiting requests [`next`](Self::next) could answer for `worker` now. The count must
    /// agree with `next` and may be less than `len`: requests may wait for other workers, or for an
    /// earlier request of their flow.
    fn waiting(&self, worker: WorkerId, want: Want) -> usize;

    /// For how many of the [`waiting`](Self::waiting) requests `worker` is preempted while it runs
    /// `running`, or whatever it runs: all of them, unless some run only in what others leave idle,
    /// or after `running` in any case. 0 is exact, other counts may be too high.
    fn worth_preempting(&self, worker: WorkerId, want: Want, running: Option<&Task>) -> usize {
        let _ = running;
        self.waiting(worker, want)
    }

    /// How many requests wait in all.
    fn len(&self) -> usize;

    /// Whether no request waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name that the literature uses, with its parameters: `c-PRE-SQ(5us)`.
    fn name(&self) -> alloc::string::String;
}
