//! The scheduler: lets others run, one after the other, by priorities alone.
//!
//! SCHED_FIFO always runs the thread of the highest priority. So a thread that sets the others'
//! priorities schedules them (Yasukata and Ishiguro, *Developing Process Scheduling Policies in
//! User Space with Common OS Features*, "Priority Elevation"):
//!
//! ```text
//!    priority   shared pattern: one core                 dedicated pattern: two cores
//!    base + 4   the supervisor, asleep                   the supervisor, asleep
//!    base + 3   the scheduler, asleep for a slice        the scheduler, on its own core, never asleep
//!    base + 2   the one that may run                     the one that may run
//!    base + 1   the sentinel                             the sentinel
//!    base       those that may not run                   those that may not run
//! ```
//!
//! The *sentinel* is not in the slides. It is a thread that is always ready, and runs when the one
//! that may run sleeps, and at no other time. That is how the scheduler notices at once, for the
//! price of one switch when it happens and for nothing while it does not.
//!
//! | file | what it holds |
//! |---|---|
//! | `turns` | the scheduler's loop |
//! | `sentinel` | the sentinel's loop, and what scheduler and sentinel share |
//! | `group` | one of the scheduled: its threads |

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::thread::CpuSet;

use crate::{ElevateError, Table, Target};

mod group;
mod sentinel;
mod turns;

use sentinel::Shared;
use turns::Turns;

/// Where the scheduler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern {
    /// On the core of those whom it schedules, asleep between two switches. Each switch costs them
    /// the time that it takes.
    Shared,
    /// On a core of its own, which it keeps busy. The scheduled are switched to the microsecond.
    Dedicated {
        /// That core.
        core: usize,
    },
}

/// What happens when one of the scheduled sleeps in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnSleep {
    /// The next slot begins at once. While all sleep, the first to wake runs.
    #[default]
    Next,
    /// Nothing, as in the slides: those that may not run do run, in the order in which they came,
    /// until the slot is over.
    Keep,
}

/// How to schedule.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Config {
    /// The core of the scheduled.
    pub core: usize,
    /// Where the scheduler runs.
    pub pattern: Pattern,
    /// The order.
    pub table: Table,
    /// For how long one runs, in its slot: 1 us to 100 ms. What the scheduler's own sleep takes of
    /// a slot is measured at the start and added.
    pub slice: Duration,
    /// What happens when one sleeps.
    pub on_sleep: OnSleep,
    /// The lowest of five priorities in a row.
    pub lowest_priority: u32,
    /// When everything ends at the latest: the supervisor sees to that.
    pub at_most: Option<Duration>,
}

/// Most for [`Config::lowest_priority`].
const HIGHEST: u32 = 99 - 4;
const SLICES: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(1)..=Duration::from_millis(100);

impl Config {
    /// Slices of 100 us on a core, by the shared pattern; one that sleeps is passed over;
    /// priorities from 1 on.
    pub fn new(core: usize, table: Table) -> Self {
        Self {
            core,
            pattern: Pattern::Shared,
            table,
            slice: Duration::from_micros(100),
            on_sleep: OnSleep::Next,
            lowest_priority: 1,
            at_most: None,
        }
    }

    /// Sets [`core`](field@Self::core).
    pub fn core(self, core: usize) -> Self {
        Self { core, ..self }
    }

    /// Sets [`pattern`](field@Self::pattern).
    pub fn pattern(self, pattern: Pattern) -> Self {
        Self { pattern, ..self }
    }

    /// Sets [`slice`](field@Self::slice).
    pub fn slice(self, slice: Duration) -> Self {
        Self { slice, ..self }
    }

    /// Sets [`on_sleep`](field@Self::on_sleep).
    pub fn on_sleep(self, on_sleep: OnSleep) -> Self {
        Self { on_sleep, ..self }
    }

    /// Sets [`lowest_priority`](field@Self::lowest_priority).
    pub fn lowest_priority(self, lowest_priority: u32) -> Self {
        Self {
            lowest_priority,
            ..self
        }
    }

    /// Sets [`at_most`](field@Self::at_most).
    pub fn at_most(self, at_most: impl Into<Option<Duration>>) -> Self {
        let at_most = at_most.into();
        Self { at_most, ..self }
    }

    fn check(&self, targets: &[Target]) -> Result<(), ElevateError> {
        let (slots, targets) = (self.table.scheduled(), targets.len());
        if slots != targets {
            return Err(ElevateError::Count { slots, targets });
        }
        if !SLICES.contains(&self.slice) {
            let slice = self.slice;
            return Err(ElevateError::Slice { slice });
        }
        let (lowest, most) = (self.lowest_priority, HIGHEST);
        if !(1..=most).contains(&lowest) {
            return Err(ElevateError::Priority { lowest, most });
        }
        if self.pattern == (Pattern::Dedicated { core: self.core }) {
            return Err(ElevateError::OneCore { core: self.core });
        }
        let cores = [self.core, self.scheduler_core()];
        match cores.into_iter().find(|core| *core >= CpuSet::MAX_CPU) {
            Some(core) => Err(ElevateError::Core {
                core,
                cause: std::io::ErrorKind::InvalidInput.into(),
            }),
            None => Ok(()),
        }
    }

    fn scheduler_core(&self) -> usize {
        match self.pattern {
            Pattern::Shared => self.core,
            Pattern::Dedicated { core } => core,
        }
    }
}

/// What the scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Slots that began.
    pub slots: u64,
    /// Times that another one than before was let run.
    pub switches: u64,
    /// Slots that ended early, because the one that had the slot slept.
    pub slept: u64,
    /// Times that all slept.
    pub all_slept: u64,
    /// Slots that ended more than a slice late: interrupts, the hypervisor, what Linux keeps for
    /// ordinary threads.
    pub late: u64,
    /// The latest one, by so much.
    pub latest: Duration,
    /// How much longer each slot was than the slice: what the scheduler's own sleep takes.
    pub added: Duration,
}

/// A scheduler at work. Dropped, it ends, and the scheduled have their classes and cores again.
#[derive(Debug)]
pub struct Elevation {
    shared: Arc<Shared>,
    scheduler: Option<JoinHandle<Result<Report, ElevateError>>>,
}

impl Elevation {
    /// Starts to schedule `targets`, numbered as in the table.
    ///
    /// `supervisor` is a program that calls [`supervise`](crate::supervise) with its standard input
    /// and output; `shinjuku-elevate supervise` is one. Only threads of this process can do
    /// without: they end with their scheduler.
    ///
    /// # Errors
    /// [`ElevateError`]. Then nothing is elevated.
    pub fn start(
        config: Config,
        targets: &[Target],
        supervisor: Option<Command>,
    ) -> Result<Self, ElevateError> {
        config.check(targets)?;
        let shared = Arc::new(Shared::default());
        let (ready, answer) = mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let targets = targets.to_vec();
        let scheduler = thread::Builder::new()
            .name("elevate".to_owned())
            .spawn(move || {
                let turns = Turns::begin(config, &targets, supervisor, of_thread)?;
                // The receiver waits.
                let _ = ready.send(());
                turns.run()
            })
            .map_err(ElevateError::system("start a thread"))?;
        let mut elevation = Self {
            shared,
            scheduler: Some(scheduler),
        };
        match answer.recv() {
            Ok(()) => Ok(elevation),
            Err(_) => elevation.end().map(|_| elevation),
        }
    }

    /// Whether it has ended by itself: all targets have ended, or something went wrong.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let scheduler = self.scheduler.as_ref();
        scheduler.is_none_or(JoinHandle::is_finished)
    }

    /// Ends it. The scheduled have their classes and cores again when this returns.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn stop(mut self) -> Result<Report, ElevateError> {
        self.end()
    }

    fn end(&mut self) -> Result<Report, ElevateError> {
        match self.join() {
            None => Ok(Report::default()),
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    fn join(&mut self) -> Option<thread::Result<Result<Report, ElevateError>>> {
        let scheduler = self.scheduler.take()?;
        self.shared.stop.store(true, Ordering::Release);
        scheduler.thread().unpark();
        Some(scheduler.join())
    }
}

impl Drop for Elevation {
    fn drop(&mut self) {
        // A caller that wants to know how it ended calls `stop`.
        let _ = self.join();
    }
}
