//! The claim to a closure's result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::call::{Cancel, Outcome, current_is_of};
use super::error::RunError;
use super::standstill::LOOKS_AFTER;
use crate::answer::{Claim, Found};

/// The claim to the result of a closure that was given to a [`Pool`](crate::Pool).
///
/// Await it (it needs no particular async runtime), block on it with [`wait`](Self::wait) or
/// [`wait_timeout`](Self::wait_timeout), or look with [`try_take`](Self::try_take). All of that
/// works within closures of the same pool, too.
///
/// **Dropped, it cancels the closure**: one that has not started is dropped there and then, and one
/// that runs is asked to stop at its next [`cancellation_point`](crate::cancellation_point).
/// [`detach`](Self::detach) lets it go on.
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

    /// Like [`wait`](Self::wait) for `patience` at most. `None`: not yet, and the job is as good as
    /// before.
    ///
    /// # Errors
    /// [`RunError`]: why there is no result.
    pub fn wait_timeout(&mut self, patience: Duration) -> Option<Result<R, RunError>> {
        // A patience beyond what the clock can hold is no deadline.
        let deadline = Instant::now().checked_add(patience);
        self.wait_until(deadline).map(outcome)
    }

    /// A closure of the same pool that waits without a deadline looks whether all of them do.
    fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Found<Outcome<R>>> {
        let completion_thread = self.claim.source.answer().completion_thread();
        if deadline.is_some() || !current_is_of(completion_thread) {
            return self.claim.wait_until(deadline);
        }
        let completion_thread = Arc::clone(completion_thread);
        let waiting = completion_thread.standstill.wait();
        let look_at = Instant::now() + LOOKS_AFTER;
        if let Some(found) = self.claim.wait_until(Some(look_at)) {
            return Some(found);
        }
        waiting.look();
        self.claim.wait_until(None)
    }

    /// The result if it is there.
    ///
    /// # Errors
    /// [`RunError`]: why there is none and none will come; [`RunError::Taken`] after the result was
    /// handed out.
    pub fn try_take(&mut self) -> Option<Result<R, RunError>> {
        self.claim.look().map(outcome)
    }

    /// Cancels the closure, as dropping the job does. One that has not started is answered with
    /// [`RunError::Cancelled`] and dropped; one that runs, with whatever comes of it.
    pub fn cancel(&self) {
        self.claim.source.cancel();
    }

    /// Lets the closure go on with no one waiting for its result.
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
