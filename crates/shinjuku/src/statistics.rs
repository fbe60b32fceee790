//! What the runtime did: counted by its threads as they go, read by anyone at any time.
//!
//! Every counter has one writer, so counting is a load and a store. A snapshot reads counter by counter: numbers that
//! change meanwhile may be off against each other by what happened in between.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shinjuku_net::Refusal;
use shinjuku_policy::ClassId;
use shinjuku_preempt::CountersSnapshot;

use crate::histogram::Histogram;

/// A number with one writer and any readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, number: u64) {
        self.set(self.get().wrapping_add(number));
    }

    #[inline]
    pub(crate) fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Kept by one worker.
#[derive(Debug)]
pub(crate) struct WorkerStatistics(Box<[WorkerClass]>);

#[derive(Debug)]
struct WorkerClass {
    failed: Counter,
    latency: Histogram,
    slowdown: Histogram,
}

impl WorkerStatistics {
    /// Takes 72 KiB for each class.
    pub(crate) fn new(classes: usize) -> Self {
        let class = |_| WorkerClass {
            failed: Counter::default(),
            latency: Histogram::new(),
            slowdown: Histogram::new(),
        };
        Self((0..classes).map(class).collect())
    }

    /// A request is done: `latency_nanos` from arrival to reply, of which it ran for `service_nanos`. Failed requests
    /// are counted but do not enter the histograms: they were not served.
    ///
    /// # Panics
    /// If there is no such class.
    #[inline]
    pub(crate) fn record(
        &self,
        class: ClassId,
        latency_nanos: u64,
        service_nanos: u64,
        failed: bool,
    ) {
        let class = &self.0[usize::from(class.0)];
        if failed {
            class.failed.add(1);
            return;
        }
        class.latency.record(latency_nanos);
        // In thousandths. What took no measurable time counts as 1 ns.
        let slowdown = latency_nanos.saturating_mul(1_000) / service_nanos.max(1);
        class.slowdown.record(slowdown);
    }
}

/// Kept by the dispatcher. Numbers of requests are totals but for those called *now*.
#[derive(Debug)]
pub(crate) struct DispatcherStatistics {
    started_at: Instant,
    /// Requests delivered by the transport.
    pub(crate) received: Counter,
    /// Requests given to a worker for the first time.
    pub(crate) started: Counter,
    /// Requests that came back finished, failed ones included.
    pub(crate) finished: Counter,
    /// Requests turned away, by [`Refusal::index`].
    pub(crate) refused: [Counter; Refusal::ALL.len()],
    /// Now: requests of each class that never ran, staged ones included.
    pub(crate) waiting: Box<[Counter]>,
    /// Now: preempted requests that wait to go on.
    pub(crate) suspended: Counter,
    /// Now: requests at the workers that run.
    pub(crate) running: Counter,
    /// Now: unstarted requests that lie at a worker.
    pub(crate) staged: Counter,
    /// How often a running request was asked to yield.
    pub(crate) preemptions_requested: Counter,
    /// Interrupts sent to make a worker look.
    pub(crate) interrupts_sent: Counter,
    /// Interrupts that could not be sent.
    pub(crate) interrupts_failed: Counter,
    /// Suspended requests that a spare worker took over from a blocked one.
    pub(crate) rescued: Counter,
    /// How often a worker was blocked and no spare was left.
    pub(crate) spares_exhausted: Counter,
    /// Wrong answers of the policy.
    pub(crate) policy_errors: Counter,
    /// How often the progress rule put another request first.
    pub(crate) progress_interventions: Counter,
    /// Cycles of loop rounds in which there was something to do.
    pub(crate) busy_cycles: Counter,
    /// Cycles of all rounds.
    pub(crate) total_cycles: Counter,
}

impl DispatcherStatistics {
    /// The uptime counts from here.
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            started_at: Instant::now(),
            received: Counter::default(),
            started: Counter::default(),
            finished: Counter::default(),
            refused: Default::default(),
            waiting: (0..classes).map(|_| Counter::default()).collect(),
            suspended: Counter::default(),
            running: Counter::default(),
            staged: Counter::default(),
            preemptions_requested: Counter::default(),
            interrupts_sent: Counter::default(),
            interrupts_failed: Counter::default(),
            rescued: Counter::default(),
            spares_exhausted: Counter::default(),
            policy_errors: Counter::default(),
            progress_interventions: Counter::default(),
            busy_cycles: Counter::default(),
            total_cycles: Counter::default(),
        }
    }

    /// Counts a request turned away.
    #[inline]
    pub(crate) fn refuse(&self, cause: Refusal) {
        self.refused[cause.index()].add(1);
    }
}

/// What the runtime has done so far, and what it is about. Displays as a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Since the runtime started.
    pub uptime: Duration,
    /// One for each class, by number.
    pub classes: Vec<ClassStatistics>,
    /// Requests that the transport delivered.
    pub received: u64,
    /// Requests that started.
    pub started: u64,
    /// Requests turned away by the dispatcher. What the transport turned away itself comes on top.
    pub refused: Refusals,
    /// Requests now waiting that never ran, staged ones included.
    pub waiting: u64,
    /// Of these, how many lie at a worker already.
    pub staged: u64,
    /// Preempted requests now waiting to go on.
    pub suspended: u64,
    /// Requests now running.
    pub running: u64,
    /// How requests were preempted.
    pub preemptions: Preemptions,
    /// The share of its time that the dispatcher had something to do, 0 to 1.
    pub dispatcher_occupancy: f64,
    /// Answers of the scheduling policy that the core had to put right: a defect of the policy.
    pub policy_errors: u64,
    /// How often a request that got nowhere had to let the others go first.
    pub progress_interventions: u64,
}

/// One class of requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClassStatistics {
    /// As configured.
    pub name: String,
    /// Requests that got their reply.
    pub finished: u64,
    /// Requests whose handler panicked. They are in no histogram.
    pub failed: u64,
    /// Requests now waiting that never ran.
    pub waiting: u64,
    /// From arrival to reply, in nanoseconds.
    pub latency_nanos: hdrhistogram::Histogram<u64>,
    /// Latency over service time, in thousandths.
    pub slowdown_thousandths: hdrhistogram::Histogram<u64>,
}

impl ClassStatistics {
    /// The latency that a share `quantile` (0 to 1) of the finished requests did not exceed; within 1 %.
    #[must_use]
    pub fn latency(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency_nanos.value_at_quantile(quantile))
    }

    /// The slowdown (latency / service time) that a share `quantile` (0 to 1) of the finished requests did not exceed;
    /// within 1 %.
    #[must_use]
    pub fn slowdown(&self, quantile: f64) -> f64 {
        self.slowdown_thousandths.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

/// Requests turned away before they started, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refusals([u64; Refusal::ALL.len()]);

impl Refusals {
    /// How many for this cause.
    #[must_use]
    pub fn of(&self, cause: Refusal) -> u64 {
        self.0[cause.index()]
    }

    /// How many for any cause.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// By [`Refusal::index`].
    pub(crate) const fn new(by_cause: [u64; Refusal::ALL.len()]) -> Self {
        Self(by_cause)
    }
}

impl AddAssign for Refusals {
    fn add_assign(&mut self, other: Self) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            *sum += number;
        }
    }
}

/// How requests were preempted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Preemptions {
    /// How often the dispatcher asked a running request to yield.
    pub requested: u64,
    /// Taken at a probe.
    pub by_probe: u64,
    /// Taken inside an interrupt.
    pub by_interrupt: u64,
    /// Taken at the end of a section that held preemption off.
    pub at_guard: u64,
    /// Interrupts sent.
    pub interrupts_sent: u64,
    /// Interrupts that could not be sent.
    pub interrupts_failed: u64,
    /// Interrupts that came when there was nothing to preempt any more.
    pub late: u64,
    /// Interrupts and probes that came while preemption was held off.
    pub deferred: u64,
    /// Resumptions on another worker than the last.
    pub migrations: u64,
    /// Suspended requests that a spare worker took over from a blocked one.
    pub rescued: u64,
    /// How often a worker was blocked and no spare was left.
    pub spares_exhausted: u64,
}

impl Preemptions {
    /// All preemptions taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.by_probe + self.by_interrupt + self.at_guard
    }
}

impl Statistics {
    /// Adds up what the dispatcher, the workers and their contexts (`counters`) have counted. Classes beyond
    /// `class_names` are left out.
    pub(crate) fn gather(
        workers: &[Arc<WorkerStatistics>],
        dispatcher: &DispatcherStatistics,
        counters: impl IntoIterator<Item = CountersSnapshot>,
        class_names: &[impl AsRef<str>],
    ) -> Self {
        let classes: Vec<_> = class_names
            .iter()
            .enumerate()
            .map(|(number, name)| {
                ClassStatistics::gather(number, name.as_ref(), workers, dispatcher)
            })
            .collect();
        let mut contexts = CountersSnapshot::default();
        counters
            .into_iter()
            .for_each(|counters| contexts += counters);
        let total_cycles = dispatcher.total_cycles.get();
        Self {
            uptime: dispatcher.started_at.elapsed(),
            received: dispatcher.received.get(),
            started: dispatcher.started.get(),
            refused: Refusals(std::array::from_fn(|cause| dispatcher.refused[cause].get())),
            waiting: classes.iter().map(|class| class.waiting).sum(),
            classes,
            staged: dispatcher.staged.get(),
            suspended: dispatcher.suspended.get(),
            running: dispatcher.running.get(),
            preemptions: Preemptions {
                requested: dispatcher.preemptions_requested.get(),
                by_probe: contexts.taken_by_probe,
                by_interrupt: contexts.taken_by_interrupt,
                at_guard: contexts.taken_at_guard,
                interrupts_sent: dispatcher.interrupts_sent.get(),
                interrupts_failed: dispatcher.interrupts_failed.get(),
                late: contexts.late,
                deferred: contexts.deferred,
                migrations: contexts.migrations,
                rescued: dispatcher.rescued.get(),
                spares_exhausted: dispatcher.spares_exhausted.get(),
            },
            // Read one after the other, so the busy ones may be ahead.
            dispatcher_occupancy: if total_cycles == 0 {
                0.0
            } else {
                (dispatcher.busy_cycles.get() as f64 / total_cycles as f64).min(1.0)
            },
            policy_errors: dispatcher.policy_errors.get(),
            progress_interventions: dispatcher.progress_interventions.get(),
        }
    }

    /// Requests of all classes that got their reply.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.classes.iter().map(|class| class.finished).sum()
    }

    /// Requests of all classes whose handler panicked.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.classes.iter().map(|class| class.failed).sum()
    }
}

impl ClassStatistics {
    fn gather(
        number: usize,
        name: &str,
        workers: &[Arc<WorkerStatistics>],
        dispatcher: &DispatcherStatistics,
    ) -> Self {
        let mut class = Self {
            name: name.to_owned(),
            finished: 0,
            failed: 0,
            waiting: dispatcher.waiting.get(number).map_or(0, Counter::get),
            latency_nanos: Histogram::empty_snapshot(),
            slowdown_thousandths: Histogram::empty_snapshot(),
        };
        for worker in workers.iter().filter_map(|worker| worker.0.get(number)) {
            class.failed += worker.failed.get();
            worker.latency.add_to(&mut class.latency_nanos);
            worker.slowdown.add_to(&mut class.slowdown_thousandths);
        }
        class.finished = class.latency_nanos.len();
        class
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name_width = self.classes.iter().map(|class| class.name.chars().count());
        let name_width = name_width.max().unwrap_or(0).max("class".len());
        writeln!(
            formatter,
            "{:name_width$} {:>10} {:>7} {:>8} {:>10} {:>10} {:>10} {:>9}",
            "class", "finished", "failed", "waiting", "p50 us", "p99 us", "p99.9 us", "slowdown"
        )?;
        for class in &self.classes {
            let micros = |quantile| class.latency(quantile).as_nanos() as f64 / 1_000.0;
            writeln!(
                formatter,
                "{:name_width$} {:>10} {:>7} {:>8} {:>10.1} {:>10.1} {:>10.1} {:>9.1}",
                class.name,
                class.finished,
                class.failed,
                class.waiting,
                micros(0.5),
                micros(0.99),
                micros(0.999),
                class.slowdown(0.99),
            )?;
        }
        writeln!(
            formatter,
            "received {}, started {}; now waiting {} ({} staged), suspended {}, running {}",
            self.received, self.started, self.waiting, self.staged, self.suspended, self.running
        )?;
        write!(formatter, "refused {}", self.refused.total())?;
        for cause in Refusal::ALL {
            let number = self.refused.of(cause);
            if number > 0 {
                write!(formatter, ", {number} {cause:?}")?;
            }
        }
        let preemptions = &self.preemptions;
        writeln!(
            formatter,
            "\npreempted {} ({} by probe, {} by interrupt, {} at guard), late {}, deferred {}, migrated {}, rescued {}",
            preemptions.taken(),
            preemptions.by_probe,
            preemptions.by_interrupt,
            preemptions.at_guard,
            preemptions.late,
            preemptions.deferred,
            preemptions.migrations,
            preemptions.rescued,
        )?;
        write!(
            formatter,
            "dispatcher busy {:.1} %, up {:.1} s",
            self.dispatcher_occupancy * 100.0,
            self.uptime.as_secs_f64()
        )?;
        if self.policy_errors > 0 {
            write!(formatter, ", policy errors {}", self.policy_errors)?;
        }
        Ok(())
    }
}
