//! What is left when a runtime has shut down.

use shinjuku_policy::PolicyError;

use crate::statistics::Statistics;

/// What a shutdown left.
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{Runtime, handler_fn};
/// use std::time::Duration;
///
/// let runtime = Runtime::builder(handler_fn(|n: u64| n)).contexts(8).start()?;
/// runtime.handle().submit(ClassId(0), 1)?.wait()?;
/// let report = runtime.shutdown(Duration::from_secs(5));
/// assert!(report.is_clean(), "{report}");
/// assert_eq!(report.contexts_returned, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Requests that started and did not finish by the deadline, by the name of their class.
    pub unfinished: Vec<String>,
    /// Contexts whose backing threads have ended.
    pub contexts_returned: usize,
    /// Contexts that are leaked, with their backing threads and the handler: those of the
    /// unfinished requests, which go on in the background until they finish. (Suspended for good,
    /// one could hold any lock, the allocator's included.)
    pub contexts_leaked: usize,
    /// Worker threads that were still within a request.
    pub workers_leaked: usize,
    /// All that was counted; taken after the last request that finished in time.
    pub statistics: Option<Statistics>,
    /// What the policy did wrong, if it did; the runtime went on first come, first served.
    pub policy_error: Option<PolicyError>,
}

impl ShutdownReport {
    /// Whether everything that was admitted finished, and every thread ended.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.unfinished.is_empty() && self.contexts_leaked == 0 && self.workers_leaked == 0
    }
}

impl std::fmt::Display for ShutdownReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_clean() {
            write!(
                formatter,
                "everything finished; {} contexts returned",
                self.contexts_returned
            )?;
        } else {
            write!(
                formatter,
                "{} requests unfinished ({}); {} contexts and {} worker threads leaked, {} contexts returned",
                self.unfinished.len(),
                self.unfinished.join(", "),
                self.contexts_leaked,
                self.workers_leaked,
                self.contexts_returned
            )?;
        }
        match &self.policy_error {
            Some(error) => write!(formatter, "; the policy was set aside: {error}"),
            None => Ok(()),
        }
    }
}
