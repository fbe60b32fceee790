//! Why scheduling could not begin, or ended early.

use std::io;
use std::time::Duration;

use shinjuku_preempt::RealtimeError;

use crate::TableError;

/// Why scheduling could not begin, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ElevateError {
    /// SCHED_FIFO is not permitted; the message says what to do.
    #[error(transparent)]
    Refused(#[from] RealtimeError),
    /// The order cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Table and targets do not match.
    #[error("the table is for {slots} and there are {targets}: name each of the scheduled once")]
    Count {
        /// How many the table has slots for.
        slots: usize,
        targets: usize,
    },
    /// A slice out of range.
    #[error("a slice of {slice:?} is out of range: it must be 1 us to 100 ms")]
    Slice { slice: Duration },
    /// Priorities out of range.
    #[error("the lowest priority is {lowest}, but must be 1 to {most}")]
    Priority {
        lowest: u32,
        /// The highest that the lowest can be.
        most: u32,
    },
    /// No workers, or too many.
    #[error("there are to be {workers} workers, but 1 to {most} are possible")]
    Workers { workers: usize, most: usize },
    /// The scheduler would have to be where the scheduled are.
    #[error("core {core} cannot be both the scheduler's own and the scheduled's: name two cores")]
    OneCore { core: usize },
    /// A core that there is not, or that this process may not use.
    #[error("core {core} cannot be used ({cause}): name one that `taskset -cp $$` lists")]
    Core { core: usize, cause: io::Error },
    /// One of the scheduled does not exist.
    #[error("{target} has no threads to schedule: it has ended, or was never there")]
    Nothing {
        /// The target, as it was written.
        target: String,
    },
    /// Two targets have a thread in common.
    #[error("{first} and {second} both have thread {tid}: name each of the scheduled once")]
    Twice {
        first: String,
        second: String,
        tid: u32,
    },
    /// Threads of another process, and no supervisor to give them back if this process is killed.
    #[error("{target} is not of this process: scheduling it takes a supervisor")]
    Unsupervised {
        /// The target, as it was written.
        target: String,
    },
    /// The supervisor cannot be started, or does not answer.
    #[error("the supervisor, which gives back what is elevated, cannot be started: {0}")]
    Supervisor(io::Error),
    /// The supervisor has gone: without it nothing stays elevated.
    #[error("the supervisor has gone, so the scheduled have their old classes again")]
    SupervisorGone,
    /// The scheduler itself was stopped for longer than the supervisor waits.
    #[error(
        "the scheduler stood still for {0:?}, so the scheduled have their old classes again: was it stopped?"
    )]
    StoodStill(Duration),
    /// One of the scheduled has not got its class and its cores back.
    #[error(
        "thread {tid} does not get its class and its cores back ({cause}): `chrt -p {tid}` and `taskset -cp {tid}` \
         tell what it has"
    )]
    NotGivenBack { tid: u32, cause: io::Error },
    /// Linux refuses something else.
    #[error("cannot {what}: {cause}")]
    System { what: String, cause: io::Error },
}

impl ElevateError {
    /// Makes [`Self::System`] of the kernel's answer, for `map_err`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System {
            what: what.into(),
            cause,
        }
    }

    /// The error of an attempt to give a class.
    pub(crate) fn class(cause: io::Error) -> Self {
        Self::Refused(RealtimeError::Refused(cause))
    }
}
