//! Where the service computes: in the pool, or in one of the ways that a pool replaces.
//!
//! A service of your own has one of these and calls it by its name. All of them are here so that
//! they can be tried with the same routes, and so that `cargo xtask bench service` compares them.

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
#[expect(clippy::large_enum_variant, reason = "a service has one")]
pub enum Compute {
    /// In a pool with the classes [`Class::NAMES`].
    Pool(Pool),
    /// In the handler, on tokio's own thread.
    Inline,
    /// On tokio's threads for blocking work.
    SpawnBlocking,
    /// On rayon's threads, with a channel back.
    Rayon(ThreadPool),
    /// Short ones in the handler, long ones in a tokio runtime of their own.
    SecondRuntime(Handle),
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum NoResult {
    /// The pool says why.
    #[error(transparent)]
    Pool(#[from] RunError),
    /// Elsewhere only a panic keeps a result from coming.
    #[error("the computation panicked")]
    Panicked,
}

impl Compute {
    /// Computes something. Only the pool knows of priorities and deadlines.
    ///
    /// # Errors
    /// [`NoResult`]: why there is no result.
    pub async fn run<R: Send + 'static>(
        &self,
        class: Class,
        compute: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        self.run_with(class, |options| options, compute).await
    }

    /// The same with options for the pool.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_with<R: Send + 'static>(
        &self,
        class: Class,
        options: impl FnOnce(RunOptions<'static>) -> RunOptions<'static>,
        compute: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        let joined = match self {
            Self::Pool(pool) => {
                let options = options(RunOptions::new(class.name()));
                return Ok(pool.run(options, compute).await?);
            }
            Self::Rayon(threads) => {
                let (send, result) = oneshot::channel();
                // Whoever asked may have hung up.
                threads.spawn(move || drop(send.send(compute())));
                return result.await.map_err(|_| NoResult::Panicked);
            }
            Self::SecondRuntime(handle) if class == Class::Batch => {
                handle.spawn(async { compute() }).await
            }
            Self::SpawnBlocking => tokio::task::spawn_blocking(compute).await,
            Self::Inline | Self::SecondRuntime(_) => return Ok(compute()),
        };
        joined.map_err(|_| NoResult::Panicked)
    }
}
