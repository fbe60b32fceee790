//! The claim to a closure's result, and how a closure that runs learns that its claim is gone.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use shinjuku_preempt::preempt_point;

use super::call::{Cancel, Outcome, current_is_asked_to_stop, current_is_of};
use super::error::RunError;
use crate::answer::{Claim, Found};

/// The claim to the result of a closure that was given to a [`Pool`](crate::Pool).
///
/// Await it (it needs no particular async runtime), block on it with [`wait`](Self::wait) or
/// [`wait_timeout`](Self::wait_timeout), or look with [`try_take`](Self::try_take). All of that
/// works within closures of the same pool, too.
///
/// **Dropping the job cancels the closure**: one that has not started is dropped at once, and one
/// that runs is asked to stop at its next [`cancellation_point`]. [`detach`](Self::detach) lets it
/// go on.
///
/// ```
/// use shinjuku::Pool;
/// use std::time::Duration;
///
/// let pool = Pool::new(["all"])?;
/// assert_eq!(pool.run("all", || 1 + 1).wait()?, 2);
///
/// let mut job = pool.run("all", || "slow");
/// let result = loop {
///     match job.wait_timeout(Duration::from_millis(10)) {
///         Some(result) => break result?,
///         None => println!("not yet"),
///     }
/// };
/// assert_eq!(result, "slow");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a job that is dropped is cancelled; `detach` lets it go on"]
pub struct Job<R: Send + 'static> {
    claim: Claim<dyn Cancel<Out = Outcome<R>>>,
    detached: bool,
}

impl<R: Send + 'static> Job<R> {
    pub(crate) fn new(closure: Arc<dyn Cancel<Out = Outcome<R>>>) -> Self {
        Self {
            claim: Claim::new(closure),
            detached: false,
        }
    }

    /// Blocks the calling thread until the closure has returned. Within a closure of the same pool
    /// the worker goes on with others, after at most some milliseconds.
    ///
    /// # Errors
    /// [`RunError`]: why there is no result.
    pub fn wait(mut self) -> Result<R, RunError> {
        let found = self.wait_until(None);
        outcome(found.unwrap_or_else(|| unreachable!("without a deadline it ends with an outcome")))
    }

    /// As [`wait`](Self::wait), for at most `patience`. `None`: there is no result yet, and the job
    /// can be used further.
    ///
    /// # Errors
    /// [`RunError`]: why there is no result.
    pub fn wait_timeout(&mut self, patience: Duration) -> Option<Result<R, RunError>> {
        // With a patience beyond what the clock can hold, there is no deadline.
        let deadline = Instant::now().checked_add(patience);
        self.wait_until(deadline).map(outcome)
    }

    /// A closure of the same pool that waits without a deadline says so.
    fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Found<Outcome<R>>> {
        let completion_thread = self.claim.source.answer().completion_thread();
        if deadline.is_some() || !current_is_of(completion_thread) {
            return self.claim.wait_until(deadline);
        }
        let completion_thread = Arc::clone(completion_thread);
        let _waiting = completion_thread.standstill.wait();
        self.claim.wait_until(None)
    }

    /// The result if it is there.
    ///
    /// # Errors
    /// [`RunError`]: why no result will come; [`RunError::Taken`] after the result was handed out.
    pub fn try_take(&mut self) -> Option<Result<R, RunError>> {
        self.claim.look().map(outcome)
    }

    /// Cancels the closure, as dropping the job does. If it has not started, the job resolves to
    /// [`RunError::Cancelled`]; if it runs, to its outcome.
    pub fn cancel(&self) {
        self.claim.source.cancel();
    }

    /// Drops the job without cancelling the closure.
    pub fn detach(mut self) {
        self.detached = true;
    }
}

fn outcome<R>(found: Found<Outcome<R>>) -> Outcome<R> {
    match found {
        Found::Answer(outcome) => outcome,
        Found::Taken => Err(RunError::Taken),
        Found::Ended => Err(RunError::RuntimeEnded),
    }
}

/// Resolves to the result, or the reason why there is none. Polled again after that, it resolves to
/// [`RunError::Taken`].
impl<R: Send + 'static> Future for Job<R> {
    type Output = Result<R, RunError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.claim.poll(context).map(outcome)
    }
}

impl<R: Send + 'static> Drop for Job<R> {
    fn drop(&mut self) {
        if !self.detached {
            self.claim.source.cancel();
        }
    }
}

impl<R: Send + 'static> fmt::Debug for Job<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Job")
            .field("state", &self.claim.source.answer().state())
            .finish_non_exhaustive()
    }
}

/// The closure's job was dropped or cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cancelled: no one waits for the result any more")]
pub struct Cancelled;

/// Says whether the result of the closure that the caller runs in is still wanted. Also a
/// [`preempt_point`]. Costs some nanoseconds. On threads that the closure started, and outside of a
/// [`Pool`](crate::Pool), the answer is always `Ok`.
///
/// ```
/// use shinjuku::{Cancelled, Pool, cancellation_point};
///
/// fn sum(numbers: Vec<u64>) -> Result<u64, Cancelled> {
///     let mut sum = 0;
///     for part in numbers.chunks(1000) {
///         cancellation_point()?;
///         sum += part.iter().sum::<u64>();
///     }
///     Ok(sum)
/// }
///
/// let pool = Pool::new(["batch"])?;
/// assert_eq!(pool.run("batch", || sum(vec![1; 10_000])).wait()?, Ok(10_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Cancelled`] once the closure's [`Job`] was dropped or cancelled.
pub fn cancellation_point() -> Result<(), Cancelled> {
    preempt_point();
    if current_is_asked_to_stop() {
        Err(Cancelled)
    } else {
        Ok(())
    }
}

/// As [`cancellation_point`], for code that cannot pass an error on: unwinds to the start of the
/// closure once that is cancelled. Values on the way are dropped as after a panic, and no panic is
/// reported. Where [`cancellation_point`] always answers `Ok`, this never unwinds.
pub fn cancellation_point_or_unwind() {
    if let Err(cancelled) = cancellation_point() {
        resume_unwind(Box::new(cancelled));
    }
}
