//! The ways to interrupt a worker, behind one trait.
//!
//! The request itself is always the same: [`Dispatched::request`](crate::Dispatched::request) stores the
//! generation where the context will look. A mechanism only makes it look sooner. So all share the generation
//! check, the rule for deferred preemptions and the counters.

use std::sync::Arc;

use crate::counters::{Counters, CountersSnapshot};

/// What others need of a worker: whom to interrupt, and what happened.
#[derive(Clone, Debug)]
pub struct WorkerLink {
    pub(crate) process: libc::pid_t,
    pub(crate) thread: libc::pid_t,
    pub(crate) counters: Arc<Counters>,
    #[cfg(feature = "guest")]
    pub(crate) guest: Option<Arc<crate::guest::GuestLink>>,
    #[cfg(feature = "dune")]
    pub(crate) dune: Option<Arc<crate::dune::Target>>,
}

impl WorkerLink {
    pub(crate) fn of_this_thread(counters: Arc<Counters>) -> Self {
        // SAFETY: both calls only return numbers.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        Self {
            process,
            thread,
            counters,
            #[cfg(feature = "guest")]
            guest: None,
            #[cfg(feature = "dune")]
            dune: None,
        }
    }

    /// The worker's counters now.
    #[must_use]
    pub fn counters(&self) -> CountersSnapshot {
        self.counters.snapshot()
    }

    /// What happened to the worker in guest mode, if it [entered](crate::Worker::enter_guest_mode) it before this link was
    /// taken.
    #[cfg(feature = "guest")]
    #[must_use]
    pub fn guest_counters(&self) -> Option<crate::guest::GuestCounters> {
        self.guest.as_ref().map(|guest| guest.counters())
    }

    /// What KVM counted for the worker's vCPU; `None` without one, or where the kernel does not tell.
    #[cfg(feature = "guest")]
    #[must_use]
    pub fn kernel_counters(&self) -> Option<crate::guest::KernelCounters> {
        self.guest.as_ref()?.kernel_counters()
    }

    /// The worker's OS thread, as the kernel numbers it.
    #[must_use]
    pub fn thread_id(&self) -> i32 {
        self.thread
    }
}

/// Why an interrupt could not be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterruptError {
    /// The kernel refused.
    #[error("interrupting worker thread {thread} failed: {cause}")]
    Refused {
        /// The kernel's number of the thread.
        thread: i32,
        /// The kernel's answer.
        cause: std::io::Error,
    },
}

/// A way to make a worker's running context look at what is requested of it.
pub trait Mechanism: Send + Sync {
    /// The name used in reports: `probe`, `signal`, `guest`, `dune`.
    fn name(&self) -> &'static str;

    /// Makes the context that runs on `worker` look now. Called by the dispatcher after the request was stored;
    /// must neither allocate nor lock.
    ///
    /// # Errors
    /// [`InterruptError`] if it could not be sent; the request stands, and a probe may still find it.
    fn interrupt(&self, worker: &WorkerLink) -> Result<(), InterruptError>;
}
