//! The ways to interrupt a worker, behind one trait.
//!
//! The request itself is always the same: [`Dispatched::request`](crate::Dispatched::request)
//! stores the generation where the context will look. A mechanism only makes the context look
//! sooner. So all mechanisms share the generation check, the rule for deferred preemptions and the
//! counters.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::affinity::Affinity;
use crate::backend::ModeLink;
use crate::counters::{Counters, CountersSnapshot};
use crate::kernel_thread::Seat;

/// A worker as other threads see it: the thread to interrupt, and its counters.
#[derive(Clone, Debug)]
pub struct WorkerLink {
    pub(crate) process: libc::pid_t,
    pub(crate) thread: libc::pid_t,
    pub(crate) counters: Arc<Counters>,
    pub(crate) seat: Arc<Seat>,
    /// The link of the mode that the worker entered.
    pub(crate) mode: Option<Arc<dyn ModeLink>>,
}

impl WorkerLink {
    pub(crate) fn of_this_thread(counters: Arc<Counters>) -> Self {
        // SAFETY: both calls only return numbers.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        Self {
            process,
            thread,
            counters,
            seat: Arc::new(Seat::of_this_thread()),
            mode: None,
        }
    }

    /// The worker's counters now.
    #[must_use]
    pub fn counters(&self) -> CountersSnapshot {
        self.counters.snapshot()
    }

    /// The kernel's number of the worker's thread.
    #[must_use]
    pub fn thread_id(&self) -> i32 {
        self.thread
    }

    /// Whether the worker is blocked in the kernel: its thread, or that of the context that it
    /// runs if that is a kernel thread, neither runs nor waits for its core (its state in
    /// `/proc/self/task` is not `R`). If `/proc` does not tell, it counts as blocked.
    ///
    /// Takes three system calls, some ten microseconds, and does not allocate.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        thread_state(self.seat.running()).is_none_or(|state| state != b'R')
    }

    /// Binds the worker's thread to `core`, by the kernel's number, and the threads of contexts
    /// that it runs from now on, if these are kernel threads. A system call; does not allocate.
    ///
    /// # Errors
    /// The kernel's error, if the process may not use that core, or the thread has ended. The
    /// thread then stays on its cores.
    pub fn pin(&self, core: usize) -> std::io::Result<()> {
        let core_alone = Affinity::of_core(core).ok_or(std::io::ErrorKind::InvalidInput)?;
        core_alone.apply_to(self.thread)?;
        self.seat.is_pinned_to(core);
        Ok(())
    }
}

/// The state of one of this process's threads, as `ps` names it.
fn thread_state(thread: libc::pid_t) -> Option<u8> {
    let mut path = [0; 40];
    write!(path.as_mut_slice(), "/proc/self/task/{thread}/stat").ok()?;
    let length = path.iter().position(|&byte| byte == 0)?;
    let path = std::str::from_utf8(&path[..length]).ok()?;
    // In `1234 (name) S 1 ...` the name has 15 bytes at most, perhaps with parentheses.
    let mut line = [0; 48];
    let length = File::open(path).ok()?.read(&mut line).ok()?;
    let end_of_name = line[..length].iter().rposition(|&byte| byte == b')')?;
    line[..length].get(end_of_name + 2).copied()
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

/// A way to make a worker's running context look at its request word.
pub trait Mechanism: Send + Sync {
    /// The name used in reports: `probe`, `signal`, or a [backend's](crate::BackendKind::name).
    fn name(&self) -> &'static str;

    /// Makes the context that runs on `worker` look now. The dispatcher calls it after storing the
    /// request; it must neither allocate nor lock.
    ///
    /// # Errors
    /// [`InterruptError`] if the interrupt could not be sent; the request stands, and a probe may
    /// still find it.
    fn interrupt(&self, worker: &WorkerLink) -> Result<(), InterruptError>;
}

/// Preemption by probes alone: the context's code polls at its own
/// [`preempt_point`](crate::preempt_point)s, and nothing interrupts it. This needs nothing and is
/// always on. The dispatcher sends no more than its store to the context's cache line (Concord,
/// SOSP'23, section 3.1).
#[derive(Clone, Copy, Default, Debug)]
pub struct Probe;

impl Mechanism for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn interrupt(&self, _: &WorkerLink) -> Result<(), InterruptError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_thread_that_computes_is_told_from_one_that_is_blocked() {
        let compute = Arc::new(AtomicBool::new(true));
        let computes = Arc::new(AtomicBool::new(false));
        let (theirs, begins) = (Arc::clone(&compute), Arc::clone(&computes));
        let (tell, told) = std::sync::mpsc::channel();
        let (let_go, go) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            // The most misleading name possible.
            .name("a) S (b) R (c)".into())
            .spawn(move || {
                tell.send(WorkerLink::of_this_thread(Arc::default()))
                    .unwrap();
                while theirs.load(Ordering::Relaxed) {
                    begins.store(true, Ordering::Relaxed);
                    std::hint::spin_loop();
                }
                let _ = go.recv();
            })
            .unwrap();
        let link = told.recv().unwrap();
        let start = Instant::now();
        while !computes.load(Ordering::Relaxed) {
            assert!(start.elapsed() < Duration::from_secs(20), "it never begins");
            std::thread::yield_now();
        }
        for _ in 0..100 {
            assert!(!link.is_blocked());
        }
        compute.store(false, Ordering::Relaxed);
        let start = Instant::now();
        while !link.is_blocked() {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "it is never blocked"
            );
            std::thread::yield_now();
        }
        assert!(link.pin(usize::MAX).is_err());
        drop(let_go);
        thread.join().unwrap();
        assert!(link.is_blocked(), "it does not run any more");
    }
}
