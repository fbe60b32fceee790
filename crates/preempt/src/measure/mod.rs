//! What switches, contexts, probes and interrupts cost on this machine: the measurements behind a
//! table like tables 1 and 2 of the Shinjuku paper (NSDI'19). The table itself, with what each row
//! means, is `cargo xtask bench`'s.
//!
//! Absolute times say little on a virtual machine, where an interrupt can cost three times what it
//! costs on bare metal. What carries over is how a whole compares with its parts, so the parts are
//! measured beside the whole: every *round* measures everything once, for some tens of
//! milliseconds, and a cost is the median over the rounds.
//!
//! | file | rows |
//! |---|---|
//! | `switches` | `switch/...`: stacks by several means, kernel threads; `wrfsbase`, `rdfsbase`, `syscall/empty` |
//! | `in_context` | `context/...`, `probe/...`, `guard/...`: what code in a context pays |
//! | `cache_line` | `cache-line/...`: a word from core to core |
//! | `signals` | `signal/...`: an interrupt whose handler does nothing |
//! | `preemptions` | `preempt/...`: whole preemptions |
//! | `guest` | `guest/...`: the speed of code in guest mode |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::Backend;
#[cfg(feature = "kvm")]
use crate::guest::{Guest, GuestConfig, Sending};
use crate::platform::{Unsupported, check_platform};
use crate::pool::PoolError;
use crate::realtime::Realtime;
use crate::signal::SignalError;
use crate::token::HardPreemption;

mod cache_line;
mod cores;
#[cfg(feature = "kvm")]
mod guest;
mod in_context;
mod preemptions;
mod samples;
mod signals;
mod switches;
mod work;

use samples::Samples;

/// Where and how to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Core of the thread that sends requests and interrupts; what needs one core is measured here
    /// as well.
    pub sender_core: usize,
    /// Core of the thread that is interrupted.
    pub worker_core: usize,
    /// Measure under SCHED_FIFO, one round at a time, if that is permitted.
    pub realtime: bool,
    /// With the permission, whole preemptions by signal are measured, too.
    pub hard: Option<HardPreemption>,
    /// Fewer rounds: about 3 s in all instead of 10 s.
    pub quick: bool,
}

/// One row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Cost {
    /// What was measured, as `group/row`.
    pub name: &'static str,
    /// One figure a round, in nanoseconds, at least one. A difference of two measurements
    /// (`probe/...`, what a preemption loses) that is smaller than the noise can come out below 0.
    pub rounds: Vec<f64>,
    /// What is to be said of the row on this machine.
    pub remark: Option<String>,
}

impl Cost {
    /// The median over the rounds.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// The rows of all parts, in the table's order.
const ALL: &[samples::Rows] = &[
    switches::ROWS,
    in_context::ROWS,
    cache_line::ROWS,
    signals::ROWS,
    preemptions::ROWS,
    #[cfg(feature = "kvm")]
    guest::ROWS,
];

/// The names of all rows that a machine may have.
pub fn rows() -> impl Iterator<Item = &'static str> {
    ALL.iter().copied().flatten().copied()
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The machine or kernel lacks something.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// No contexts to measure with.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No signals to measure with.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// A message to oneself cannot be timed.
    #[error("sender and worker need a core each, but both were given core {0}")]
    SameCore(usize),
    /// A core is not there, or not for this process.
    #[error("cannot pin a thread to core {core}: {cause}. `taskset -p` shows the allowed ones")]
    Pin {
        /// The core's number.
        core: usize,
        /// The kernel's answer.
        cause: std::io::Error,
    },
    /// The system gave no memory for a stack, or no thread.
    #[error("no memory or thread for the measurement: {0}")]
    Resources(std::io::Error),
}

impl From<std::io::Error> for MeasureError {
    fn from(cause: std::io::Error) -> Self {
        Self::Resources(cause)
    }
}

/// Something measured once a round.
trait Part {
    fn round(&mut self, samples: &mut Samples);

    /// What is to be said of a row in the end.
    fn remark(&self) -> Option<(&'static str, String)> {
        None
    }
}

/// What interrupts the worker whose loss [`preemption`] measures.
#[derive(Clone)]
pub enum Interrupter {
    /// Signals.
    Signal(HardPreemption),
    /// Signals, with contexts that are kernel threads.
    KernelThread,
    /// Interrupts in this backend's mode.
    Backend(Arc<dyn Backend>),
}

const ROUNDS: usize = 500;
const QUICK_ROUNDS: usize = 150;
/// Above ordinary threads is enough.
const PRIORITY: i32 = 10;

/// Measures the table on threads of its own. `progress` is told now and then how far it is.
///
/// Under SCHED_FIFO a round takes a few per cent of a second and is followed by a rest, so that the
/// cores stay usable.
///
/// # Errors
/// [`MeasureError`] says what is missing. A refused SCHED_FIFO is no error: `progress` is told.
pub fn costs(
    options: Options,
    mut progress: impl FnMut(&str) + Send,
) -> Result<Vec<Cost>, MeasureError> {
    let rounds = if options.quick { QUICK_ROUNDS } else { ROUNDS };
    on_its_own_thread(|| measure(options, rounds, &mut progress))
}

/// Measures what a preemption takes of a worker's time, the next context staged: the median over a
/// few rounds, which take about a second. `None` if no preemption happened, as on a machine that is
/// busy throughout.
///
/// # Errors
/// [`MeasureError`] says what is missing, the second core for example.
pub fn preemption(
    by: &Interrupter,
    sender_core: usize,
    worker_core: usize,
) -> Result<Option<Duration>, MeasureError> {
    const LEAST_ROUNDS: usize = 3;
    const MOST_ROUNDS: usize = 15;
    const ENOUGH: Duration = Duration::from_secs(1);
    let median = || {
        let _alone = alone();
        place(sender_core, worker_core)?;
        let (mut part, row) = match by {
            Interrupter::Signal(token) => (
                preemptions::Preemptions::new(worker_core, Some(*token))?,
                "preempt/signal",
            ),
            Interrupter::KernelThread => (
                preemptions::Preemptions::on_kernel_threads(worker_core)?,
                "preempt/kernel-thread",
            ),
            Interrupter::Backend(backend) => {
                let row = format!("preempt/{}", backend.name());
                let Some(row) = preemptions::ROWS.iter().find(|name| **name == row) else {
                    return Ok(None);
                };
                let backend = Arc::clone(backend);
                (
                    preemptions::Preemptions::in_mode(worker_core, backend, row)?,
                    *row,
                )
            }
        };
        let mut samples = Samples::new(&[preemptions::ROWS]);
        let start = Instant::now();
        for round in 0..MOST_ROUNDS {
            if round >= LEAST_ROUNDS && start.elapsed() > ENOUGH {
                break;
            }
            // Where it is refused, other programs disturb some of the rounds.
            let fifo = Realtime::enter(PRIORITY).ok();
            rest_after(|| part.round(&mut samples), fifo);
        }
        let costs = samples.into_costs();
        let cost = costs.iter().find(|cost| cost.name == row);
        Ok(cost.map(|cost| Duration::from_nanos(cost.median().max(0.0) as u64)))
    };
    on_its_own_thread(median)
}

/// Pinning and binding a worker leave traces on a thread.
fn on_its_own_thread<T: Send>(
    measure: impl FnOnce() -> Result<T, MeasureError> + Send,
) -> Result<T, MeasureError> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("measure-sender".to_owned())
            .spawn_scoped(scope, measure)?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Two at a time would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pins the calling thread to `sender_core`, once it is clear that a worker can have `worker_core`.
fn place(sender_core: usize, worker_core: usize) -> Result<(), MeasureError> {
    check_platform()?;
    if sender_core == worker_core {
        return Err(MeasureError::SameCore(sender_core));
    }
    cores::pin(worker_core)?;
    cores::pin(sender_core)
}

/// The kernel takes real-time threads off their cores for 50 ms if they leave others less than 5 %.
fn rest_after(round: impl FnOnce(), fifo: Option<Realtime>) {
    let start = Instant::now();
    round();
    drop(fifo);
    std::thread::sleep((start.elapsed() / 10).max(Duration::from_micros(100)));
}

fn measure(
    options: Options,
    rounds: usize,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<Cost>, MeasureError> {
    let _alone = alone();
    let Options {
        sender_core,
        worker_core,
        ..
    } = options;
    place(sender_core, worker_core)?;
    #[cfg(feature = "kvm")]
    let mut guest = |sending| {
        let config = GuestConfig {
            sending,
            ..GuestConfig::default()
        };
        Guest::install(options.hard?, config)
            .inspect_err(|error| progress(&format!("costs: not in guest mode: {error}")))
            .ok()
    };
    let mut parts: Vec<Box<dyn Part>> = vec![
        Box::new(switches::Instructions),
        Box::new(switches::Switches::new()?),
        Box::new(in_context::InContext::new()?),
        Box::new(cache_line::CacheLine::new(worker_core)),
        Box::new(signals::Signals::new(worker_core)),
        Box::new(preemptions::Preemptions::new(worker_core, options.hard)?),
        Box::new(switches::KernelSwitch::new(sender_core)),
        Box::new(preemptions::Preemptions::on_kernel_threads(worker_core)?),
    ];
    #[cfg(feature = "kvm")]
    for (sending, row) in [
        (Sending::Irqfd, "preempt/guest"),
        (Sending::Msi, "preempt/guest-msi"),
        (Sending::Apic, "preempt/guest-apic"),
    ] {
        let Some(guest) = guest(sending) else {
            break;
        };
        if sending == Sending::default() {
            parts.push(Box::new(guest::InGuestMode::new(
                guest.clone(),
                worker_core,
            )?));
        }
        parts.push(Box::new(preemptions::Preemptions::in_mode(
            worker_core,
            Arc::new(guest),
            row,
        )?));
    }
    let mut samples = Samples::new(ALL);
    let mut realtime = options.realtime;
    for round in 0..rounds {
        if round % 10 == 0 {
            progress(&format!("costs: round {round} of {rounds}"));
        }
        let fifo = match realtime.then(|| Realtime::enter(PRIORITY)).transpose() {
            Ok(fifo) => fifo,
            Err(refused) => {
                progress(&format!("costs: {refused}; expect noise"));
                realtime = false;
                None
            }
        };
        let all = || parts.iter_mut().for_each(|part| part.round(&mut samples));
        rest_after(all, fifo);
    }
    let mut costs = samples.into_costs();
    for (row, remark) in parts.iter().filter_map(|part| part.remark()) {
        for cost in costs.iter_mut().filter(|cost| cost.name == row) {
            cost.remark = Some(remark.clone());
        }
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the row can be measured here.
    fn is_possible(row: &str) -> bool {
        let in_guest_mode = row.starts_with("guest/") || row.starts_with("preempt/guest");
        !in_guest_mode || has_guest_mode()
    }

    fn has_guest_mode() -> bool {
        #[cfg(feature = "kvm")]
        {
            // SAFETY: nothing is preempted.
            let token = unsafe { HardPreemption::allow() };
            crate::guest::Guest::install(token, crate::guest::GuestConfig::default()).is_ok()
        }
        #[cfg(not(feature = "kvm"))]
        false
    }

    /// A busy machine may take the sender off its core for all the time that it had to interrupt
    /// the worker: so a few attempts. `None`, for `test`, on a machine without a second core.
    fn rows(test: &str, options: Options, wanted: impl Fn(&str) -> bool) -> Option<Vec<Cost>> {
        let mut costs = Vec::new();
        for _ in 0..20 {
            costs = match measure(options, 2, &mut |_| ()) {
                Err(MeasureError::Pin { core, .. }) => {
                    eprintln!("SKIPPED {test}: no core {core} to pin to");
                    return None;
                }
                costs => costs.unwrap(),
            };
            let mut names = super::rows();
            if names.all(|name| !wanted(name) || costs.iter().any(|cost| cost.name == name)) {
                break;
            }
        }
        Some(costs)
    }

    #[test]
    fn every_row_is_measured() {
        // SAFETY: the measured loops rely on nothing that a change of thread would break.
        let hard = Some(unsafe { HardPreemption::allow() });
        let options = Options {
            sender_core: 0,
            worker_core: 1,
            realtime: false,
            hard,
            quick: true,
        };
        let test = "measure::tests::every_row_is_measured";
        let Some(costs) = rows(test, options, is_possible) else {
            return;
        };
        let names: Vec<&str> = costs.iter().map(|cost| cost.name).collect();
        let declared = super::rows().filter(|name| is_possible(name));
        assert_eq!(names, declared.collect::<Vec<_>>());
        for cost in &costs {
            let difference = ["probe/per", "preempt/", "signal/bare"]
                .iter()
                .any(|name| cost.name.starts_with(name));
            assert!(
                difference || cost.rounds.iter().all(|nanos| *nanos > 0.0),
                "{cost:?}"
            );
        }
    }

    #[test]
    fn without_the_permission_nothing_is_preempted_by_signal() {
        let options = Options {
            sender_core: 1,
            worker_core: 0,
            realtime: false,
            hard: None,
            quick: true,
        };
        let by_signal = |name: &str| {
            ["preempt/signal", "preempt/guest", "guest/"]
                .iter()
                .any(|group| name.starts_with(group))
        };
        let test = "measure::tests::without_the_permission_nothing_is_preempted_by_signal";
        let Some(costs) = rows(test, options, |name| !by_signal(name)) else {
            return;
        };
        assert!(costs.iter().any(|cost| cost.name == "preempt/probe"));
        assert!(!costs.iter().any(|cost| by_signal(cost.name)));
    }

    #[test]
    fn refusals_name_the_core() {
        let options = Options {
            sender_core: 0,
            worker_core: 0,
            realtime: false,
            hard: None,
            quick: true,
        };
        let same = costs(options, |_| ()).unwrap_err();
        assert!(same.to_string().contains("core 0"), "{same}");
        let absent = Options {
            worker_core: 1023,
            ..options
        };
        let absent = costs(absent, |_| ()).unwrap_err();
        assert!(absent.to_string().contains("core 1023"), "{absent}");
    }
}
