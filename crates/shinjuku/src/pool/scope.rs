//! Closures that borrow: [`Pool::scope`].

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shinjuku_preempt::{Lender, Work};

use super::error::{Panic, RunError};
use super::{Job, Pool, RunOptions};
use crate::answer::put;

/// Runs closures that borrow; see [`Pool::scope`].
///
/// ```
/// use shinjuku::Pool;
///
/// let pool = Pool::new(["batch"])?;
/// let mut halves = [[1, 2], [3, 4]];
/// pool.scope(|scope| {
///     for half in &mut halves {
///         scope.run("batch", move || half.iter_mut().for_each(|n| *n *= 10));
///     }
/// });
/// assert_eq!(halves, [[10, 20], [30, 40]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Scope<'scope, 'env: 'scope> {
    pub(super) lender: &'scope Lender<'scope, 'env>,
    pub(super) pool: &'scope Pool,
}

impl<'scope> Scope<'scope, '_> {
    /// As [`Pool::run`], for a closure that may borrow from outside of the scope. Takes two
    /// allocations. The closure runs whether the job is kept or not.
    pub fn run<'a, F, R>(
        &self,
        options: impl Into<RunOptions<'a>>,
        closure: F,
    ) -> ScopedJob<'scope, R>
    where
        F: FnOnce() -> R + Send + 'scope,
        R: Send + 'scope,
    {
        let borrowing = Arc::new(Borrowing {
            closure: Mutex::new(Some(closure)),
            result: Mutex::new(None),
            lender: self.lender,
        });
        let lent = self.lender.lend(Arc::clone(&borrowing) as _);
        ScopedJob {
            job: Some(self.pool.run(options, move || lent.run())),
            borrowing,
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Scope({:?})", self.lender)
    }
}

/// The claim to the result of a closure of a [`Scope`]. Dropped, it lets the closure go on.
pub struct ScopedJob<'scope, R> {
    /// `None` only in `drop`.
    job: Option<Job<()>>,
    borrowing: Arc<dyn Holds<R> + 'scope>,
}

impl<R> ScopedJob<'_, R> {
    /// As [`Job::wait`].
    ///
    /// # Errors
    /// [`RunError`]: why there is no result.
    pub fn wait(mut self) -> Result<R, RunError> {
        loop {
            // `Job::wait` would consume the job.
            if let Some(outcome) = self.wait_timeout(Duration::MAX) {
                return outcome;
            }
        }
    }

    /// As [`Job::wait_timeout`].
    ///
    /// # Errors
    /// [`RunError`]: why there is no result.
    pub fn wait_timeout(&mut self, patience: Duration) -> Option<Result<R, RunError>> {
        let ended = self.job.as_mut()?.wait_timeout(patience)?;
        Some(self.outcome(ended))
    }

    /// As [`Job::try_take`].
    ///
    /// # Errors
    /// [`RunError`]: why no result will come.
    pub fn try_take(&mut self) -> Option<Result<R, RunError>> {
        let ended = self.job.as_mut()?.try_take()?;
        Some(self.outcome(ended))
    }

    fn outcome(&self, ended: Result<(), RunError>) -> Result<R, RunError> {
        match (self.borrowing.take(), ended) {
            (Some(Ok(result)), _) => Ok(result),
            (Some(Err(payload)), _) => Err(RunError::Panicked(Panic::new(payload))),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(RunError::Taken),
        }
    }
}

impl<R> Drop for ScopedJob<'_, R> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            job.detach();
        }
    }
}

impl<R> fmt::Debug for ScopedJob<'_, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Scoped{:?}", self.job)
    }
}

/// A borrowing closure, and its result. Two values refer to it: its `Lent`, for which the scope
/// waits, and its [`ScopedJob`], which has the lifetime.
struct Borrowing<'scope, 'env, F, R> {
    closure: Mutex<Option<F>>,
    result: Mutex<Option<Result<R, Box<dyn Any + Send>>>>,
    lender: &'scope Lender<'scope, 'env>,
}

/// A borrowing closure as its job sees it.
trait Holds<R>: Send + Sync {
    /// Its result, if it ran. A closure that did not run is dropped here: the caller learns of that
    /// by the job.
    fn take(&self) -> Option<Result<R, Box<dyn Any + Send>>>;
}

impl<F: Send, R: Send> Holds<R> for Borrowing<'_, '_, F, R> {
    fn take(&self) -> Option<Result<R, Box<dyn Any + Send>>> {
        drop(put(&self.closure, None));
        put(&self.result, None)
    }
}

impl<F, R> Work for Borrowing<'_, '_, F, R>
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    fn run(&self) {
        let closure = put(&self.closure, None).expect("it is lent once");
        let result = catch_unwind(AssertUnwindSafe(closure));
        let panicked = result.is_err();
        put(&self.result, Some(result));
        if panicked {
            // The payload is kept above; this unwinding tells the pool that the closure failed.
            resume_unwind(Box::new(()));
        }
    }
}

/// Makes the scope panic at its end if the closure panicked or was refused, and nothing has looked
/// at that.
impl<F, R> Drop for Borrowing<'_, '_, F, R> {
    fn drop(&mut self) {
        let closure = self
            .closure
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let result = self
            .result
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if closure.is_some() || matches!(result, Some(Err(_))) {
            self.lender.fail();
        }
    }
}
