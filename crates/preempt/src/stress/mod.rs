//! The stress test: ordinary code under hostile preemption, with migration, checking itself.
//!
//! Some contexts run operations that verify their own results (allocation, thread-locals, locks, panics, registers,
//! blocking calls and so on). A dispatcher of its own moves them between pinned workers through the crate's
//! mailboxes and interrupts every worker once a quantum of some tens of microseconds, also with requests and signals
//! that come too late on purpose. What goes wrong is counted by name. With one defence of [`fault`](crate::fault)
//! taken out it must fail: that shows it can see what it looks for. `docs/stress.md` lists what is checked.
//!
//! | room | what it holds |
//! |---|---|
//! | `scheduler`, `dispatcher`, `worker` | a small scheduler on the crate's public interface, and what it checks |
//! | `watchdog`, `report` | hangs, and what is told in the end |
//! | `world` | what contexts share: counters, locks, pipes |
//! | `job` | the list of operations, and the job that draws from it |
//! | `memory`, `thread`, `locks`, `blocking`, `system`, `unwinding` | operations by subject |
//! | `registers`, `vectors` | operations that hold values in registers over a preemption |
//! | `early` | fault injection: a context handed on before it is saved |
//! | `allocator` | a counting allocator, for tests of who must not allocate |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::{HardPreemption, Mechanism, PoolError, Probe, Signal, SignalError, Worker};

mod allocator;
mod blocking;
mod dispatcher;
#[cfg(feature = "fault-injection")]
mod early;
mod job;
mod locks;
mod memory;
mod registers;
mod report;
mod scheduler;
mod system;
mod thread;
mod unwinding;
mod vectors;
mod watchdog;
mod worker;
mod world;

#[cfg(feature = "fault-injection")]
pub(crate) use early::publish_early;

pub use allocator::{
    Allocations, CountingAllocator, allocations_between_jobs, allocations_of_this_thread,
    contexts_in_the_allocator,
};
pub use report::Report;

use scheduler::Scheduler;
use watchdog::Watchdog;
use world::{Check, World};

/// What the stress test shall do.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long contexts run.
    pub duration: Duration,
    /// A worker is interrupted about this often.
    pub quantum: Duration,
    /// Worker threads, 2 to [`Config::MAX_WORKERS`], pinned to the allowed cores in turn.
    pub workers: usize,
    /// Contexts, up to [`Config::MAX_CONTEXTS`]. More than twice the workers, or nothing ever waits, nor migrates.
    pub contexts: usize,
    /// How contexts are preempted.
    pub interruption: Interruption,
    /// Whether operations write to standard output, a line each time. Send descriptor 1 to /dev/null first.
    pub write_stdout: bool,
    /// End at the first error instead of counting on.
    pub stop_at_first_error: bool,
    /// A context that finishes no operation for so long hangs.
    pub patience: Duration,
}

impl Config {
    /// Most worker threads.
    pub const MAX_WORKERS: usize = 16;
    /// Most contexts.
    pub const MAX_CONTEXTS: usize = 64;
}

impl Default for Config {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(10),
            quantum: Duration::from_micros(50),
            workers: 2,
            contexts: 8,
            interruption: Interruption::Signal,
            write_stdout: false,
            stop_at_first_error: false,
            patience: Duration::from_secs(10),
        }
    }
}

/// The mechanism under stress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// At any instruction.
    Signal,
    /// At the operations' own probes.
    Probe,
    /// At any instruction, with the workers in guest mode.
    #[cfg(feature = "guest")]
    Guest(crate::guest::GuestConfig),
}

/// The mechanism, ready for use.
enum Chosen {
    Probe,
    Signal(Signal),
    #[cfg(feature = "guest")]
    Guest(crate::guest::Guest),
}

impl Chosen {
    fn mechanism(&self) -> Box<dyn Mechanism> {
        match self {
            Self::Probe => Box::new(Probe),
            Self::Signal(signal) => Box::new(*signal),
            #[cfg(feature = "guest")]
            Self::Guest(guest) => Box::new(guest.clone()),
        }
    }

    /// Called by each worker on its thread.
    fn prepare(&self, worker: &mut Worker) -> std::io::Result<()> {
        #[cfg(feature = "guest")]
        if let Self::Guest(guest) = self {
            return worker
                .enter_guest_mode(guest)
                .map_err(std::io::Error::other);
        }
        let _ = worker;
        Ok(())
    }
}

/// Why the stress test could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StressError {
    /// A number is out of range.
    #[error("{key} is {value}, but must be {least} to {most}")]
    OutOfRange {
        /// The field's name.
        key: &'static str,
        /// Its value.
        value: usize,
        /// The smallest that is allowed; for contexts it depends on the workers.
        least: usize,
        /// The largest that is allowed.
        most: usize,
    },
    /// No contexts could be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The signal handler could not be installed.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// Guest mode cannot be used.
    #[cfg(feature = "guest")]
    #[error(transparent)]
    Guest(#[from] crate::guest::GuestError),
    /// The system gave no pipe or thread.
    #[error("no pipe or thread for the stress test: {0}")]
    System(std::io::Error),
}

impl From<std::io::Error> for StressError {
    fn from(cause: std::io::Error) -> Self {
        Self::System(cause)
    }
}

/// Runs the stress test, calling `progress` about once a second. Once a process at a time.
///
/// After a hang (an error of that name in the report) its threads and contexts are left as they are: end the
/// process. With a defence taken out the process may crash, so run it in a child.
///
/// # Errors
/// [`StressError`] if it cannot start. What it finds is in the report, not an error.
pub fn run(config: &Config, mut progress: impl FnMut(&Report)) -> Result<Report, StressError> {
    check_ranges(config)?;
    // SAFETY: only this module's jobs run in the contexts, and they rely on nothing that the contract excludes.
    let token = unsafe { HardPreemption::allow() };
    let mechanism = match config.interruption {
        Interruption::Probe => Chosen::Probe,
        Interruption::Signal => Chosen::Signal(Signal::install(token)?),
        #[cfg(feature = "guest")]
        Interruption::Guest(guest) => Chosen::Guest(crate::guest::Guest::install(token, guest)?),
    };
    unwinding::silence_panics_on_purpose();
    let world = Arc::new(World::new(config)?);
    let echo = world.start_echo()?;
    let scheduler = Scheduler::start(config, mechanism, &world)?;
    let start = Instant::now();
    let report = |scheduler: &Scheduler| Report {
        elapsed: start.elapsed(),
        counters: scheduler.counters(),
        #[cfg(feature = "guest")]
        guest: scheduler.guest_counters(),
        requests: world.requests.load(Ordering::Relaxed),
        operations: world.operations_run(),
        errors: world.errors(),
    };
    let mut watchdog = Watchdog::new(config, &world);
    let mut next_progress = Duration::from_secs(1);
    while start.elapsed() < config.duration {
        std::thread::sleep(Duration::from_millis(20));
        if start.elapsed() >= next_progress {
            progress(&report(&scheduler));
            next_progress += Duration::from_secs(1);
        }
        if watchdog.sees_a_hang() {
            world.wrong(Check::Hang);
            return Ok(report(&scheduler));
        }
        if config.stop_at_first_error && report(&scheduler).errors_total() > 0 {
            return Ok(report(&scheduler));
        }
    }
    let report_before_the_end = report(&scheduler);
    match scheduler.end(config.patience) {
        Some((counters, end)) => {
            world.stop_echo(echo);
            if end.returned != config.contexts {
                world.wrong(Check::NotHandedBack);
            }
            Ok(Report {
                counters,
                requests: world.requests.load(Ordering::Relaxed),
                operations: world.operations_run(),
                errors: world.errors(),
                ..report_before_the_end
            })
        }
        None => {
            world.wrong(Check::Hang);
            Ok(Report {
                errors: world.errors(),
                ..report_before_the_end
            })
        }
    }
}

fn check_ranges(config: &Config) -> Result<(), StressError> {
    let fewest_contexts = scheduler::DEPTH * config.workers.min(Config::MAX_WORKERS) + 1;
    for (key, value, least, most) in [
        ("workers", config.workers, 2, Config::MAX_WORKERS),
        (
            "contexts",
            config.contexts,
            fewest_contexts,
            Config::MAX_CONTEXTS,
        ),
    ] {
        if !(least..=most).contains(&value) {
            return Err(StressError::OutOfRange {
                key,
                value,
                least,
                most,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(interruption: Interruption) -> Report {
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = ONE_AT_A_TIME
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let config = Config {
            duration: Duration::from_millis(500),
            // Where the hypervisor has parted the cores, a signal takes longer than the default, and code gets nowhere.
            quantum: Duration::from_micros(200),
            patience: Duration::from_secs(60),
            interruption,
            ..Config::default()
        };
        run(&config, |_| ()).unwrap()
    }

    #[test]
    fn half_a_second_under_signals_finds_nothing_wrong() {
        let report = short(Interruption::Signal);
        assert_eq!(report.failure(), None);
        assert!(report.counters.taken_by_interrupt > 0);
    }

    #[test]
    fn half_a_second_under_probes_finds_nothing_wrong() {
        let report = short(Interruption::Probe);
        assert_eq!(report.failure(), None);
        assert!(report.counters.taken_by_probe > 0);
        assert_eq!(report.counters.taken_by_interrupt, 0);
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let error = |workers, contexts| {
            let config = Config {
                workers,
                contexts,
                ..Config::default()
            };
            run(&config, |_| ()).unwrap_err().to_string()
        };
        assert_eq!(error(2, 65), "contexts is 65, but must be 5 to 64");
        assert_eq!(error(4, 8), "contexts is 8, but must be 9 to 64");
        assert_eq!(error(1, 8), "workers is 1, but must be 2 to 16");
    }
}
