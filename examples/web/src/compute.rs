//! Where the service computes: in the pool, or in one of the ways that a pool replaces.
//!
//! A service of your own has one of these and calls it by its name. All of them are here so that
//! they can be tried with the same routes, and so that `cargo xtask bench service` compares them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::ThreadPool;
use shinjuku::{Pool, RunError, RunOptions};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How long a request is expected to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Microseconds.
    Interactive,
    /// Milliseconds.
    Batch,
}

impl Class {
    /// The pool's classes.
    pub const NAMES: [&'static str; 2] = ["interactive", "batch"];

    /// Its name in the pool.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Batch => "batch",
        }
    }
}

/// Where the service computes.
#[derive(Debug)]
pub enum Compute {
    /// In a pool with the classes [`Class::NAMES`].
    Pool(Arc<Pool>),
    /// In the handler, on tokio's own thread.
    Inline,
    /// On tokio's threads for blocking work.
    SpawnBlocking,
    /// Short requests in the handler, long ones on tokio's threads for blocking work.
    SpawnBlockingLong,
    /// On rayon's threads, with a channel back.
    Rayon(ThreadPool),
    /// Short requests in the handler, long ones in a tokio runtime of their own.
    SecondRuntime(Handle),
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum NoResult {
    /// The pool says why.
    #[error(transparent)]
    Pool(#[from] RunError),
    /// The computation panicked, elsewhere than in the pool.
    #[error("the computation panicked")]
    Panicked,
    /// The computation would have started too late, elsewhere than in the pool.
    #[error("not started by its deadline")]
    Late,
}

impl Compute {
    /// Computes something.
    ///
    /// # Errors
    /// [`NoResult`]: why there is no result.
    pub async fn run<R: Send + 'static>(
        &self,
        class: Class,
        compute: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        match self {
            Self::Pool(pool) => Ok(pool.run(class.name(), compute).await?),
            _ => self.elsewhere(class, compute).await,
        }
    }

    /// As [`run`](Self::run), unless it cannot start within `allowed`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_within<R: Send + 'static>(
        &self,
        class: Class,
        allowed: Duration,
        compute: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        if let Self::Pool(pool) = self {
            let options = RunOptions::new(class.name()).deadline(allowed);
            return Ok(pool.run(options, compute).await?);
        }
        let asked = Instant::now();
        let in_time = move || (asked.elapsed() <= allowed).then(compute);
        self.elsewhere(class, in_time).await?.ok_or(NoResult::Late)
    }

    async fn elsewhere<R: Send + 'static>(
        &self,
        class: Class,
        compute: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        let is_long = class == Class::Batch;
        let joined = match self {
            Self::Rayon(threads) => {
                let (send, result) = oneshot::channel();
                // The client may have hung up.
                threads.spawn(move || drop(send.send(compute())));
                return result.await.map_err(|_| NoResult::Panicked);
            }
            Self::SecondRuntime(handle) if is_long => handle.spawn(async { compute() }).await,
            Self::SpawnBlocking => tokio::task::spawn_blocking(compute).await,
            Self::SpawnBlockingLong if is_long => tokio::task::spawn_blocking(compute).await,
            _ => return Ok(compute()),
        };
        joined.map_err(|_| NoResult::Panicked)
    }
}
