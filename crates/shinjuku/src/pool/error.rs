//! Why a closure has no result.

use std::any::Any;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use shinjuku_net::Refusal;

/// Why a closure has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The closure panicked. The payload is kept, for [`resume_unwind`](std::panic::resume_unwind).
    #[error("the closure panicked{0}")]
    Panicked(Panic),
    /// The pool turned the closure away before it started, and dropped it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The closure was cancelled before it started, or it unwound at
    /// [`cancellation_point_or_unwind`](crate::cancellation_point_or_unwind).
    #[error("the closure was cancelled")]
    Cancelled,
    /// The pool ended with the closure unfinished.
    #[error("the pool ended before the closure was finished")]
    RuntimeEnded,
    /// The result was handed out before.
    #[error("the result of this job has been taken already")]
    Taken,
}

impl RunError {
    /// The payload of the closure's panic, if it panicked.
    ///
    /// ```
    /// use shinjuku::Pool;
    ///
    /// let pool = Pool::new(["all"])?;
    /// let error = pool.run("all", || panic!("a bad day")).wait().unwrap_err();
    /// assert_eq!(error.to_string(), "the closure panicked: a bad day");
    /// let payload = error.into_panic().unwrap();
    /// assert_eq!(payload.downcast_ref(), Some(&"a bad day"));
    /// // As if it had panicked here: std::panic::resume_unwind(payload)
    /// # Ok::<(), shinjuku::StartError>(())
    /// ```
    ///
    /// # Errors
    /// The error itself if it is no panic.
    pub fn into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self {
            Self::Panicked(panic) => Ok(panic.into_payload()),
            other => Err(other),
        }
    }
}

/// A panic that was caught. The mutex makes it `Sync`, which a payload alone is not.
pub struct Panic(Mutex<Box<dyn Any + Send>>);

impl Panic {
    pub(crate) fn new(payload: Box<dyn Any + Send>) -> Self {
        Self(Mutex::new(payload))
    }

    /// What the panic carried.
    #[must_use]
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message, if there is one, as `panic!` makes it.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned())
    }
}

/// `: ` and the message; empty without a message.
impl fmt::Display for Panic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Some(message) => write!(formatter, ": {message}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Panic({:?})", self.message())
    }
}
