//! Stopping a closure that runs, where it agrees.

use std::panic::resume_unwind;

use shinjuku_preempt::preempt_point;

use super::call::current_is_asked_to_stop;

/// This closure's result is no longer waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cancelled: no one waits for the result any more")]
pub struct Cancelled;

/// Says whether the closure that the caller runs in is still wanted. Also a
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
/// [`Cancelled`] once the closure's [`Job`](crate::Job) was dropped or cancelled.
pub fn cancellation_point() -> Result<(), Cancelled> {
    preempt_point();
    if current_is_asked_to_stop() {
        Err(Cancelled)
    } else {
        Ok(())
    }
}

/// As [`cancellation_point`], for code that cannot pass an error on: unwinds to the start of the
/// closure once it is cancelled. Values on the way are dropped as after a panic; no panic is
/// reported. Nothing unwinds anywhere else.
pub fn cancellation_point_or_unwind() {
    if let Err(cancelled) = cancellation_point() {
        resume_unwind(Box::new(cancelled));
    }
}
