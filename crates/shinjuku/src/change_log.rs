//! The log of what changes while a runtime serves.
//!
//! A subscriber of events is a user's code, which the dispatcher never calls: it only publishes
//! numbers. So another thread looks once a second whether something has changed, and logs to the
//! subscriber that was current when the runtime started.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::Dispatch;

use crate::start_error::StartError;

/// How often the thread looks for changes.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Something that changes, and says what it is now and why.
pub(crate) trait Changing: Display + Send + Sync {
    /// How often it has changed since the start.
    fn changes(&self) -> u64;
}

/// The thread that logs changes.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl ChangeLog {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`StartError::Thread`] if the system gives no thread.
    pub(crate) fn start(of: Vec<Arc<dyn Changing>>) -> Result<Self, StartError> {
        let name = "shinjuku-auto".to_owned();
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&is_over);
        let subscriber = tracing::dispatcher::get_default(Dispatch::clone);
        let body = move || {
            tracing::dispatcher::with_default(&subscriber, || log_changes(&of, &end));
        };
        let thread = (std::thread::Builder::new().name(name.clone()).spawn(body))
            .map_err(|cause| StartError::Thread { name, cause })?;
        Ok(Self { is_over, thread })
    }

    /// Tells the thread to end, and gives its handle.
    pub(crate) fn end(self) -> JoinHandle<()> {
        self.is_over.store(true, Relaxed);
        self.thread.thread().unpark();
        self.thread
    }
}

/// Logs changes until the end, the last ones included.
fn log_changes(of: &[Arc<dyn Changing>], end: &AtomicBool) {
    let mut logged = vec![0; of.len()];
    loop {
        std::thread::park_timeout(LOOKS_EVERY);
        let is_last = end.load(Relaxed);
        for (one, logged) in of.iter().zip(&mut logged) {
            let changes = one.changes();
            if changes != *logged {
                tracing::info!(target: "shinjuku", changes, "auto: {one}");
                *logged = changes;
            }
        }
        if is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_ends_when_it_is_told_to() {
        let thread = ChangeLog::start(Vec::new()).unwrap().end();
        thread.join().unwrap();
    }
}
