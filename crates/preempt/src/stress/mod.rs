//! The stress test: ordinary code under hostile preemption, with migration, checking itself.
//!
//! Some contexts run operations that verify their own results (allocation, thread-locals, locks,
//! panics, registers, blocking calls and so on). A dispatcher of its own moves them between pinned
//! workers through the crate's mailboxes. It interrupts every worker once a quantum of some tens of
//! microseconds, also with requests and signals that come too late on purpose. Errors are counted
//! by name. With one defence of [`fault`](crate::fault) removed the test must fail, which shows
//! that it can. `docs/stress.md` lists the checks.
//!
//! | module | what it holds |
//! |---|---|
//! | `scheduler`, `dispatcher`, `worker` | a small scheduler on the crate's public interface, and its checks |
//! | `quantum` | how often to interrupt, from a preemption's cost here |
//! | `watchdog`, `report` | hangs and their kinds, and the report |
//! | `world` | the contexts' shared state: counters, locks, pipes |
//! | `job` | the list of operations, and the job that draws from it |
//! | `memory`, `thread`, `locks`, `blocking`, `system`, `unwinding` | operations by subject |
//! | `registers`, `vectors` | operations that hold values in registers over a preemption |
//! | `early` | fault injection: a context handed on before it is saved |
//! | `allocator` | a counting allocator, for tests of threads that must not allocate |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::{
    Backend, BackendError, ContextKind, HardPreemption, Mechanism, PoolError, Probe, Signal,
    SignalError, Worker,
};

mod allocator;
mod blocking;
mod dispatcher;
#[cfg(feature = "fault-injection")]
mod early;
mod job;
mod locks;
mod memory;
mod quantum;
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
    blocks_taken, contexts_in_the_allocator,
};
pub use quantum::Quantum;
pub use report::Report;
pub use watchdog::Hang;

use scheduler::Scheduler;
use watchdog::Watchdog;
use world::{Check, World};

/// The settings of the stress test.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long contexts run.
    pub duration: Duration,
    /// A worker is interrupted about this often. [`Quantum::measured`] finds one that suits the
    /// machine.
    pub quantum: Duration,
    /// Worker threads, 2 to [`Config::MAX_WORKERS`], pinned to the allowed cores in turn.
    pub workers: usize,
    /// Contexts, up to [`Config::MAX_CONTEXTS`]. More than twice the workers, or nothing ever
    /// waits, nor migrates.
    pub contexts: usize,
    /// How contexts are preempted.
    pub interruption: Interruption,
    /// Whether operations write to standard output, a line each time. Send descriptor 1 to
    /// /dev/null first.
    pub write_stdout: bool,
    /// End at the first error instead of counting on.
    pub stop_at_first_error: bool,
    /// A context that finishes no operation for this long hangs.
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
    /// At any instruction, by signal, with contexts that are kernel threads.
    KernelThread,
    /// At the operations' own probes.
    Probe,
    /// At any instruction, with the workers in the mode of the [backend](crate::BACKENDS) of this
    /// name.
    Backend(&'static str),
}

/// The mechanism, ready for use.
enum Chosen {
    Probe,
    Signal(Signal),
    KernelThread(Signal),
    Backend(Arc<dyn Backend>),
}

impl Chosen {
    fn install(interruption: Interruption) -> Result<Self, StressError> {
        // SAFETY: only this module's jobs run in the contexts, and they rely on nothing that the
        // contract excludes.
        let token = unsafe { HardPreemption::allow() };
        Ok(match interruption {
            Interruption::Probe => Self::Probe,
            Interruption::Signal => Self::Signal(Signal::install(token)?),
            Interruption::KernelThread => Self::KernelThread(Signal::for_kernel_threads()?),
            Interruption::Backend(name) => Self::Backend(install(name, token)?),
        })
    }

    fn mechanism(&self) -> Arc<dyn Mechanism> {
        match self {
            Self::Probe => Arc::new(Probe),
            Self::Signal(signal) | Self::KernelThread(signal) => Arc::new(*signal),
            Self::Backend(backend) => Arc::clone(backend) as _,
        }
    }

    fn backend(&self) -> Option<&dyn Backend> {
        match self {
            Self::Backend(backend) => Some(&**backend),
            Self::Probe | Self::Signal(_) | Self::KernelThread(_) => None,
        }
    }

    fn contexts(&self) -> ContextKind {
        match self {
            Self::KernelThread(_) => ContextKind::KernelThread,
            _ => ContextKind::Stack,
        }
    }

    /// Called by each worker on its thread.
    fn prepare(&self, worker: &mut Worker) -> std::io::Result<()> {
        match self.backend() {
            Some(backend) => worker.enter(backend).map_err(std::io::Error::other),
            None => Ok(()),
        }
    }
}

fn install(name: &'static str, token: HardPreemption) -> Result<Arc<dyn Backend>, StressError> {
    let kind = (crate::BACKENDS.iter()).find(|kind| kind.name() == name);
    Ok(kind.ok_or(StressError::NotBuilt { name })?.install(token)?)
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
    /// The backend cannot be used.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// This build has no such backend.
    #[error("this build has no backend \"{name}\": its feature is off")]
    NotBuilt {
        /// The backend's name.
        name: &'static str,
    },
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
/// After a hang (an error of that name in the report) its threads and contexts are left as they
/// are: end the process. With a defence removed the process may crash, so run it in a child.
///
/// # Errors
/// [`StressError`] if it cannot start. Its findings are in the report, not an error.
pub fn run(config: &Config, mut progress: impl FnMut(&Report)) -> Result<Report, StressError> {
    check_ranges(config)?;
    let mechanism = Chosen::install(config.interruption)?;
    unwinding::silence_panics_on_purpose();
    let world = Arc::new(World::new(config)?);
    let echo = world.start_echo()?;
    let scheduler = Scheduler::start(config, mechanism, &world)?;
    let start = Instant::now();
    let report = |scheduler: &Scheduler| Report {
        elapsed: start.elapsed(),
        counters: scheduler.counters(),
        mode: scheduler.mode_events(),
        delivery: None,
        requests: world.requests.load(Ordering::Relaxed),
        operations: world.operations_run(),
        errors: world.errors(),
        hang: None,
    };
    let mut watchdog = Watchdog::new(config, &world);
    let mut next_progress = Duration::from_secs(1);
    while start.elapsed() < config.duration {
        std::thread::sleep(Duration::from_millis(20));
        let now = report(&scheduler);
        if now.elapsed >= next_progress {
            progress(&now);
            next_progress += Duration::from_secs(1);
        }
        if let Some(mut hang) = watchdog.sees_a_hang(&now) {
            world.wrong(Check::Hang);
            watchdog.find_out(&mut hang, config.patience);
            return Ok(Report {
                hang: Some(hang),
                errors: world.errors(),
                ..now
            });
        }
        if config.stop_at_first_error && now.errors_total() > 0 {
            return Ok(now);
        }
    }
    let before_the_end = Report {
        delivery: scheduler.delivery(),
        ..report(&scheduler)
    };
    let mut hang = None;
    if !scheduler.jobs_end(config.patience) {
        let now = report(&scheduler);
        world.interrupt_seldom.store(true, Ordering::Relaxed);
        hang = Some(Hang {
            contexts: Vec::new(),
            time: config.patience,
            quantum: config.quantum,
            interrupts: now.interrupts() - before_the_end.interrupts(),
            preemptions: now.counters.taken() - before_the_end.counters.taken(),
            got_on: scheduler.jobs_end(config.patience),
        });
    } else if let Some(end) = scheduler.end(config.patience)
        && end.returned == config.contexts
    {
        world.stop_echo(echo);
    } else {
        world.wrong(Check::NotHandedBack);
    }
    if hang.is_some() {
        world.wrong(Check::Hang);
    }
    Ok(Report {
        requests: world.requests.load(Ordering::Relaxed),
        operations: world.operations_run(),
        errors: world.errors(),
        hang,
        ..before_the_end
    })
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
            quantum: Quantum::measured(interruption).unwrap().length,
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
    fn half_a_second_on_kernel_threads_finds_nothing_wrong() {
        let report = short(Interruption::KernelThread);
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
