//! What the runtime did: its threads count as they go, and any thread reads at any time.
//!
//! Every counter has one writer, so counting is a load and a store. Only the spare workers, which
//! are many and do little, share theirs. A snapshot reads counter by counter, so numbers that
//! change meanwhile may not fit each other.

mod histogram;
mod sum;

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use shinjuku_net::Refusal;
use shinjuku_policy::{ClassId, Nanos};
use shinjuku_preempt::{CountersSnapshot, Delivery};

use crate::queued::Queued;
use crate::stalls::Stalls;

pub use histogram::Histogram;
use histogram::Recorder;

/// A number with one writer and any readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, number: u64) {
        self.set(self.get().wrapping_add(number));
    }

    /// As [`add`](Self::add), for a counter with several writers.
    fn add_beside_others(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
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

/// What one worker counts, or several spare ones together.
#[derive(Debug)]
pub(crate) struct WorkerStatistics {
    classes: Box<[WorkerClass]>,
    lost: Counter,
    helped: Counter,
    /// Whether several threads count here.
    is_shared: bool,
}

/// What a worker counts of one class. It has cache lines of its own, since the next allocation may
/// be another worker's.
#[derive(Debug)]
#[repr(align(128))]
struct WorkerClass {
    failed: Counter,
    service_nanos: Counter,
    latency: Recorder,
    queue: Recorder,
    slowdown: Recorder,
}

/// The times of a request that has ended, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// From arrival to reply.
    pub(crate) latency: u64,
    /// For how long it ran.
    pub(crate) service: u64,
    /// From arrival until it ran for the first time.
    pub(crate) queue: u64,
}

impl WorkerStatistics {
    /// Takes 108 KiB for each class.
    pub(crate) fn new(classes: usize) -> Self {
        let class = |_| WorkerClass {
            failed: Counter::default(),
            service_nanos: Counter::default(),
            latency: Recorder::new(),
            queue: Recorder::new(),
            slowdown: Recorder::new(),
        };
        Self {
            classes: (0..classes).map(class).collect(),
            lost: Counter::default(),
            helped: Counter::default(),
            is_shared: false,
        }
    }

    /// As [`new`](Self::new), for several threads.
    pub(crate) fn shared(classes: usize) -> Self {
        Self {
            is_shared: true,
            ..Self::new(classes)
        }
    }

    /// Counts a request that has ended. A failed one does not enter the histograms: it was not
    /// served.
    ///
    /// # Panics
    /// If there is no such class.
    #[inline]
    pub(crate) fn record(&self, class: ClassId, times: Times, failed: bool) {
        let class = &self.classes[usize::from(class.0)];
        if failed {
            self.count(&class.failed);
            return;
        }
        // In thousandths. A service time of zero counts as 1 ns.
        let slowdown = times.latency.saturating_mul(1_000) / times.service.max(1);
        if self.is_shared {
            class.service_nanos.add_beside_others(times.service);
            class.latency.record_beside_others(times.latency);
            class.queue.record_beside_others(times.queue);
            class.slowdown.record_beside_others(slowdown);
        } else {
            class.service_nanos.add(times.service);
            class.latency.record(times.latency);
            class.queue.record(times.queue);
            class.slowdown.record(slowdown);
        }
    }

    /// Counts a request that ended in a panic of the transport's code. Not even its class is known.
    pub(crate) fn record_lost(&self) {
        self.count(&self.lost);
    }

    /// Counts a request that is about to run and waited at another loop.
    pub(crate) fn record_help(&self) {
        self.count(&self.helped);
    }

    /// How many requests of other loops it ran.
    pub(crate) fn helped_others(&self) -> u64 {
        self.helped.get()
    }

    fn count(&self, counter: &Counter) {
        if self.is_shared {
            counter.add_beside_others(1);
        } else {
            counter.add(1);
        }
    }
}

/// A dispatcher's part of a timeline's sample; see [`Statistics`].
pub(crate) struct Levels {
    pub(crate) waiting: u64,
    pub(crate) started: u64,
    pub(crate) running: u64,
    pub(crate) workers_blocked: u64,
    pub(crate) rescued: u64,
}

/// What a dispatcher counts. It writes some of this each turn, so this has cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct DispatcherStatistics {
    since: Instant,
    received: Counter,
    finished: Counter,
    /// By class.
    preempted: Box<[CachePadded<Counter>]>,
    /// By [`Refusal::index`].
    refused: [Counter; Refusal::ALL.len()],
    requested: Counter,
    interrupted: Counter,
    interrupts_failed: Counter,
    stuck: Counter,
    rescued: Counter,
    spares_exhausted: Counter,
    run_by_dispatcher: Counter,
    dispatcher_relieved: Counter,
    busy_nanos: Counter,
    total_nanos: Counter,
    waiting: Counter,
    started: Counter,
    running: Counter,
    progress_interventions: Counter,
    policy_set_aside: Counter,
    pub(crate) queued: Queued,
}

impl DispatcherStatistics {
    /// All counters at zero. The uptime begins now.
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            preempted: (0..classes).map(|_| CachePadded::default()).collect(),
            since: Instant::now(),
            received: Counter::default(),
            finished: Counter::default(),
            refused: Default::default(),
            requested: Counter::default(),
            interrupted: Counter::default(),
            interrupts_failed: Counter::default(),
            stuck: Counter::default(),
            rescued: Counter::default(),
            spares_exhausted: Counter::default(),
            run_by_dispatcher: Counter::default(),
            dispatcher_relieved: Counter::default(),
            busy_nanos: Counter::default(),
            total_nanos: Counter::default(),
            waiting: Counter::default(),
            started: Counter::default(),
            running: Counter::default(),
            progress_interventions: Counter::default(),
            policy_set_aside: Counter::default(),
            queued: Queued::new(classes),
        }
    }

    /// The transport delivered `number` requests.
    #[inline]
    pub(crate) fn received(&self, number: u64) {
        self.received.add(number);
    }

    /// A request came back finished.
    #[inline]
    pub(crate) fn finished(&self) {
        self.finished.add(1);
    }

    /// How many requests came back finished so far.
    #[cfg(feature = "stub-workers")]
    pub(crate) fn finished_so_far(&self) -> u64 {
        self.finished.get()
    }

    /// A request of this class came back preempted.
    #[inline]
    pub(crate) fn preempted(&self, class: ClassId) {
        self.preempted[usize::from(class.0)].add(1);
    }

    /// A request was turned away.
    #[inline]
    pub(crate) fn refused(&self, cause: Refusal) {
        self.refused[cause.index()].add(1);
    }

    /// A running request was asked to give way.
    #[inline]
    pub(crate) fn requested(&self) {
        self.requested.add(1);
    }

    /// A worker was sent an interrupt.
    #[inline]
    pub(crate) fn interrupted(&self) {
        self.interrupted.add(1);
    }

    /// An interrupt could not be sent.
    pub(crate) fn interrupt_failed(&self) {
        self.interrupts_failed.add(1);
    }

    /// A worker was found blocked; inline, a thread was relieved.
    pub(crate) fn stuck(&self) {
        self.stuck.add(1);
    }

    /// A spare worker was sent a request in the place of a silent worker; inline, a thread was
    /// relieved.
    pub(crate) fn rescued(&self) {
        self.rescued.add(1);
    }

    /// A worker is blocked and there is no spare.
    pub(crate) fn spares_exhausted(&self) {
        self.spares_exhausted.add(1);
    }

    /// The dispatcher begins a request itself.
    #[inline]
    pub(crate) fn run_by_dispatcher(&self) {
        self.run_by_dispatcher.add(1);
    }

    /// Another thread has taken over from one that did not come back from such a request.
    pub(crate) fn dispatcher_relieved(&self) {
        self.dispatcher_relieved.add(1);
    }

    /// A turn of the loop took `time`; `worked` says whether there was something to do.
    #[inline]
    pub(crate) fn add_time(&self, time: Nanos, worked: bool) {
        self.total_nanos.add(time.0);
        if worked {
            self.busy_nanos.add(time.0);
        }
    }

    /// The gauges as published last, with the counters of a sample.
    pub(crate) fn levels(&self) -> Levels {
        Levels {
            waiting: self.waiting.get(),
            started: self.started.get(),
            running: self.running.get(),
            workers_blocked: self.stuck.get(),
            rescued: self.rescued.get(),
        }
    }

    /// How many requests wait, as published last.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// Publishes the present state: requests that wait (fresh, staged and preempted ones), requests
    /// that have a context (running or preempted), and workers that have a request; how often the
    /// progress rule put another request first so far; and whether the policy was set aside for a
    /// wrong answer.
    pub(crate) fn gauges(
        &self,
        waiting: usize,
        started: usize,
        running: usize,
        progress_interventions: u64,
        policy_set_aside: bool,
    ) {
        self.waiting.set(waiting as u64);
        self.started.set(started as u64);
        self.running.set(running as u64);
        self.progress_interventions.set(progress_interventions);
        self.policy_set_aside.set(u64::from(policy_set_aside));
    }
}

/// What the runtime has done so far, and its present state. Displays as a table.
///
/// ```
/// use shinjuku::policy::ClassId;
/// use shinjuku::{ClassConfig, Runtime, handler_fn};
///
/// let runtime = Runtime::builder(handler_fn(|n: u64| n))
///     .class([ClassConfig::new("get"), ClassConfig::new("range")])
///     .start()?;
/// for n in 0..10 {
///     runtime.handle().submit(ClassId(1), n)?.wait()?;
/// }
/// let statistics = runtime.statistics();
/// println!("{statistics}");
/// let range = &statistics.classes[1];
/// assert_eq!((range.name.as_str(), range.failed), ("range", 0));
/// println!("p99: {:?}, {:.1} times its service time", range.latency(0.99), range.slowdown(0.99));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Since the runtime started.
    pub uptime: Duration,
    /// One for each class, by number.
    pub classes: Vec<ClassStatistics>,
    /// Requests that the transport delivered.
    pub received: u64,
    /// Requests that came back from the workers, failed ones included.
    pub returned: u64,
    /// Requests turned away.
    pub refused: Refusals,
    /// Requests that ended without a reply because the transport's code panicked. They are in no
    /// class.
    pub lost: u64,
    /// Requests that wait for a worker, whether they have started or not. This and the next two are
    /// the present state, which the dispatcher publishes about every 10 ms.
    pub waiting: u64,
    /// Requests between their start and their end: running, or preempted and waiting.
    pub started: u64,
    /// Requests that run.
    pub running: u64,
    /// How requests were preempted.
    pub preemptions: Preemptions,
    pub(crate) delivery: Option<Delivery>,
    /// How often a worker was found blocked in the kernel. In the layouts `inline` and `symmetric`:
    /// how often another thread took the place of one whose request was blocked, or did not give
    /// way in time.
    pub workers_blocked: u64,
    /// Requests that were sent to a spare worker, in the place of one that gave no answer. In the
    /// layouts `inline` and `symmetric` as `workers_blocked`.
    pub rescued: u64,
    /// How often a spare was needed and none was left.
    pub spares_exhausted: u64,
    /// Requests that held their worker for longer than `stalls.report_after_ms`.
    pub stalls: Stalls,
    /// Requests, fresh or suspended, that an idle loop ran for another (layout `symmetric`).
    pub helped: u64,
    /// Requests that the dispatcher began itself (`dispatcher.works`).
    pub run_by_dispatcher: u64,
    /// How often one of these did not give way in time, and another thread took over from it.
    pub dispatcher_relieved: u64,
    /// The share of its time that the dispatcher had something to do, 0 to 1. What it runs itself
    /// does not count.
    pub dispatcher_occupancy: f64,
    /// Whether the scheduling policy has given a wrong answer. Requests are then served first come,
    /// first served.
    pub policy_set_aside: bool,
    /// How often a request that was preempted `policy.progress_limit` times in a row had to let the
    /// others go first.
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
    /// Requests whose handler panicked, or whose reply counts as a failure
    /// ([`RequestHandler::is_failure`](crate::RequestHandler::is_failure)). They are in no
    /// histogram.
    pub failed: u64,
    /// How often requests of this class were preempted.
    pub preemptions: u64,
    /// How long the finished requests ran, all together, in nanoseconds. The worker time that
    /// preempting them took is included. In the layouts `inline` and `symmetric` this is time on
    /// the CPU, and includes interruptions of less than 50 us.
    pub service_nanos: u64,
    /// Latencies of the finished requests, from arrival to reply, in nanoseconds.
    pub latency_nanos: Histogram,
    /// Queue times of the finished requests, from arrival until each ran for the first time, in
    /// nanoseconds. Waiting after a preemption is not included.
    pub queue_nanos: Histogram,
    /// Slowdowns of the finished requests, latency over service time, in thousandths.
    pub slowdown_thousandths: Histogram,
}

impl ClassStatistics {
    /// The latency that a share `quantile` (0 to 1) of the finished requests did not exceed; within
    /// 1 %.
    #[must_use]
    pub fn latency(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency_nanos.quantile(quantile))
    }

    /// The queue time, from arrival until it ran for the first time, that a share `quantile` (0 to
    /// 1) of the finished requests did not exceed; within 1 %.
    #[must_use]
    pub fn queue_time(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.queue_nanos.quantile(quantile))
    }

    /// The slowdown (latency / service time) that a share `quantile` (0 to 1) of the finished
    /// requests did not exceed; within 1 %.
    #[must_use]
    pub fn slowdown(&self, quantile: f64) -> f64 {
        self.slowdown_thousandths.quantile(quantile) as f64 / 1_000.0
    }
}

/// Requests turned away before they started, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refusals([u64; Refusal::ALL.len()]);

impl Refusals {
    /// How many requests were refused for this cause.
    #[must_use]
    pub fn of(&self, cause: Refusal) -> u64 {
        self.0[cause.index()]
    }

    /// How many requests were refused for any cause.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// From counts by [`Refusal::index`].
    pub(crate) const fn new(by_cause: [u64; Refusal::ALL.len()]) -> Self {
        Self(by_cause)
    }
}

/// The total, and the causes that occurred: `7 (5 QueueFull, 2 DeadlinePassed)`.
impl fmt::Display for Refusals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.total())?;
        let causes = Refusal::ALL.into_iter().filter(|&cause| self.of(cause) > 0);
        for (place, cause) in causes.enumerate() {
            let before = if place == 0 { " (" } else { ", " };
            write!(formatter, "{before}{} {cause:?}", self.of(cause))?;
        }
        formatter.write_str(if self.total() > 0 { ")" } else { "" })
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
    /// How often the dispatcher asked a running request to give way. In the layouts `inline` and
    /// `symmetric` each request has a deadline instead, and its preemptions count.
    pub requested: u64,
    /// Taken at a probe.
    pub by_probe: u64,
    /// Taken at a [compiled probe](crate::guide::compiled_probes).
    pub by_compiled_probe: u64,
    /// Taken inside an interrupt.
    pub by_interrupt: u64,
    /// Taken at the end of a section that held preemption off.
    pub at_guard: u64,
    /// Interrupts sent by the dispatcher. In the layouts `inline` and `symmetric` it sends none: a
    /// timer of each thread's own interrupts its requests.
    pub interrupts_sent: u64,
    /// Interrupts that could not be sent.
    pub interrupts_failed: u64,
    /// Interrupts that came after the request had given way or ended.
    pub late: u64,
    /// Interrupts and probes that came while preemption was held off.
    pub deferred: u64,
    /// Resumptions on another worker than the last.
    pub migrations: u64,
}

impl Preemptions {
    /// All preemptions taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.by_probe + self.by_compiled_probe + self.by_interrupt + self.at_guard
    }
}

impl Statistics {
    /// Adds up what a dispatcher, the workers and their contexts (`counters`) have counted. Leaves
    /// `delivery` and `stalls` out, and classes beyond `class_names`.
    pub(crate) fn gather(
        workers: &[Arc<WorkerStatistics>],
        dispatcher: &DispatcherStatistics,
        counters: impl IntoIterator<Item = CountersSnapshot>,
        class_names: &[impl AsRef<str>],
    ) -> Self {
        let classes = class_names.iter().enumerate();
        let classes = classes
            .map(|(number, name)| {
                ClassStatistics::gather(number, name.as_ref(), workers, dispatcher)
            })
            .collect();
        let mut contexts = CountersSnapshot::default();
        counters
            .into_iter()
            .for_each(|counters| contexts += counters);
        let (busy, total) = (dispatcher.busy_nanos.get(), dispatcher.total_nanos.get());
        Self {
            uptime: dispatcher.since.elapsed(),
            classes,
            received: dispatcher.received.get(),
            returned: dispatcher.finished.get(),
            refused: Refusals(dispatcher.refused.each_ref().map(Counter::get)),
            lost: workers.iter().map(|worker| worker.lost.get()).sum(),
            waiting: dispatcher.waiting.get(),
            started: dispatcher.started.get(),
            running: dispatcher.running.get(),
            preemptions: Preemptions {
                requested: dispatcher.requested.get(),
                by_probe: contexts.taken_by_probe,
                by_compiled_probe: contexts.taken_by_compiled_probe,
                by_interrupt: contexts.taken_by_interrupt,
                at_guard: contexts.taken_at_guard,
                interrupts_sent: dispatcher.interrupted.get(),
                interrupts_failed: dispatcher.interrupts_failed.get(),
                late: contexts.late,
                deferred: contexts.deferred,
                migrations: contexts.migrations,
            },
            delivery: None,
            workers_blocked: dispatcher.stuck.get(),
            rescued: dispatcher.rescued.get(),
            spares_exhausted: dispatcher.spares_exhausted.get(),
            stalls: Stalls::default(),
            helped: workers.iter().map(|worker| worker.helped.get()).sum(),
            run_by_dispatcher: dispatcher.run_by_dispatcher.get(),
            dispatcher_relieved: dispatcher.dispatcher_relieved.get(),
            dispatcher_occupancy: busy.min(total) as f64 / total.max(1) as f64,
            policy_set_aside: dispatcher.policy_set_aside.get() > 0,
            progress_interventions: dispatcher.progress_interventions.get(),
        }
    }

    /// A description of how interrupts come to workers in guest mode, by the counts so far; `None`
    /// if no worker is in that mode.
    #[must_use]
    pub fn delivery(&self) -> Option<impl fmt::Display + use<>> {
        self.delivery
    }

    /// Counts requests that were refused before the dispatcher saw them.
    pub(crate) fn add_refused_at_submit(&mut self, refusals: Refusals) {
        self.received += refusals.total();
        self.refused += refusals;
    }

    /// Counts failed requests of this class as refused, which a pool turned away in their contexts.
    pub(crate) fn reclassify_as_refused(&mut self, class: usize, refusals: Refusals) {
        let failed = &mut self.classes[class].failed;
        *failed = failed.saturating_sub(refusals.total());
        self.refused += refusals;
    }

    /// Requests that were delivered and have neither been answered nor turned away. The counters
    /// are read one after the other, so while requests come and go the result may be off by some.
    #[must_use]
    pub fn in_system(&self) -> u64 {
        self.received
            .saturating_sub(self.refused.total() + self.finished() + self.failed() + self.lost)
    }

    /// Requests of all classes that got their reply.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.classes.iter().map(|class| class.finished).sum()
    }

    /// Requests of all classes that failed; see [`ClassStatistics::failed`].
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
            preemptions: dispatcher
                .preempted
                .get(number)
                .map_or(0, |count| count.get()),
            service_nanos: 0,
            latency_nanos: Histogram::new(),
            queue_nanos: Histogram::new(),
            slowdown_thousandths: Histogram::new(),
        };
        for worker in workers
            .iter()
            .filter_map(|worker| worker.classes.get(number))
        {
            class.failed += worker.failed.get();
            class.service_nanos += worker.service_nanos.get();
            worker.latency.add_to(&mut class.latency_nanos);
            worker.queue.add_to(&mut class.queue_nanos);
            worker.slowdown.add_to(&mut class.slowdown_thousandths);
        }
        class.finished = class.latency_nanos.count();
        class
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.classes.iter().map(|class| class.name.chars().count());
        let width = width.max().unwrap_or(0).max("class".len());
        writeln!(
            formatter,
            "{:width$} {:>10} {:>8} {:>10} {:>10} {:>10} {:>12}",
            "class", "finished", "failed", "p50 us", "p99 us", "p99.9 us", "p99 slowdown"
        )?;
        for class in &self.classes {
            let micros = |quantile| class.latency(quantile).as_nanos() as f64 / 1_000.0;
            writeln!(
                formatter,
                "{:width$} {:>10} {:>8} {:>10.1} {:>10.1} {:>10.1} {:>12.1}",
                class.name,
                class.finished,
                class.failed,
                micros(0.5),
                micros(0.99),
                micros(0.999),
                class.slowdown(0.99),
            )?;
        }
        let Preemptions {
            by_probe,
            by_compiled_probe,
            by_interrupt,
            at_guard,
            late,
            deferred,
            migrations,
            ..
        } = self.preemptions;
        writeln!(
            formatter,
            "received {}; now {} waiting, {} started, {} running; refused {}",
            self.received, self.waiting, self.started, self.running, self.refused
        )?;
        writeln!(
            formatter,
            "preempted {} ({by_probe} by probe, {by_compiled_probe} by compiled probe, {by_interrupt} by interrupt, \
             {at_guard} at guard), {late} late, {deferred} deferred, {migrations} migrated, {} rescued",
            self.preemptions.taken(),
            self.rescued,
        )?;
        write!(
            formatter,
            "dispatcher {:.1} % busy in {:.1} s",
            self.dispatcher_occupancy * 100.0,
            self.uptime.as_secs_f64()
        )?;
        if self.run_by_dispatcher > 0 {
            write!(
                formatter,
                ", began {} requests itself",
                self.run_by_dispatcher
            )?;
        }
        for (number, what) in [
            (self.lost, "requests lost"),
            (
                self.spares_exhausted,
                "times no spare for a blocked worker: raise `spare_workers`",
            ),
        ] {
            if number > 0 {
                write!(formatter, "; {number} {what}")?;
            }
        }
        if let Some(delivery) = self.delivery {
            write!(formatter, "; in guest mode, interrupts {delivery}")?;
        }
        if self.policy_set_aside {
            formatter.write_str("; the policy was set aside")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of a request that was never preempted.
    fn times(latency: u64, service: u64) -> Times {
        Times {
            latency,
            service,
            queue: latency.saturating_sub(service),
        }
    }

    #[test]
    fn adds_up_workers_and_contexts() {
        let dispatcher = DispatcherStatistics::new(2);
        let workers: Vec<_> = (0..2).map(|_| Arc::new(WorkerStatistics::new(2))).collect();
        for _ in 0..30 {
            workers[0].record(ClassId(0), times(10_000, 1_000), false);
        }
        workers[1].record(ClassId(0), times(500_000, 100_000), false);
        workers[1].record(ClassId(1), times(80, 40), false);
        workers[1].record(ClassId(1), times(9_000_000, 1), true);
        workers[0].record_lost();
        let counters = CountersSnapshot {
            taken_by_probe: 1,
            taken_by_compiled_probe: 7,
            taken_by_interrupt: 2,
            taken_at_guard: 3,
            late: 4,
            deferred: 5,
            migrations: 6,
        };
        dispatcher.received(35);
        dispatcher.refused(Refusal::QueueFull);
        dispatcher.preempted(ClassId(1));
        dispatcher.gauges(7, 3, 2, 1, false);
        let statistics = Statistics::gather(
            &workers,
            &dispatcher,
            [counters, counters],
            &["get", "range"],
        );

        let [get, range] = &statistics.classes[..] else {
            panic!("two classes")
        };
        assert_eq!(
            (get.name.as_str(), get.finished, get.failed),
            ("get", 31, 0)
        );
        assert_eq!((range.finished, range.failed), (1, 1));
        assert_eq!((statistics.finished(), statistics.failed()), (32, 1));
        assert_eq!((statistics.received, statistics.lost), (35, 1));
        assert_eq!((get.preemptions, range.preemptions), (0, 1));
        assert_eq!((get.service_nanos, range.service_nanos), (130_000, 40));
        // 32 finished, one failed, one refused, one lost.
        assert_eq!(statistics.in_system(), 0);
        let near = |found: f64, exact: f64| (found / exact - 1.0).abs() < 0.01;
        assert!(near(get.latency(0.5).as_nanos() as f64, 10_000.0));
        assert!(near(get.latency(1.0).as_nanos() as f64, 500_000.0));
        assert!(near(get.queue_time(0.5).as_nanos() as f64, 9_000.0));
        assert!(near(get.queue_time(1.0).as_nanos() as f64, 400_000.0));
        assert_eq!(
            range.queue_nanos.count(),
            1,
            "the failed one was not served"
        );
        assert!(near(get.slowdown(0.5), 10.0) && near(get.slowdown(0.01), 5.0));
        assert!(near(get.slowdown(1.0), 10.0) && near(range.slowdown(0.5), 2.0));
        // The failed one is in no histogram.
        assert!(range.latency(1.0) < Duration::from_nanos(100));
        assert_eq!(statistics.preemptions.taken(), 26);
        assert_eq!(statistics.preemptions.by_compiled_probe, 14);
        let preemptions = statistics.preemptions;
        assert_eq!(
            (
                preemptions.late,
                preemptions.deferred,
                preemptions.migrations
            ),
            (8, 10, 12)
        );
        assert_eq!(
            (statistics.waiting, statistics.started, statistics.running),
            (7, 3, 2)
        );
    }

    #[test]
    fn several_threads_that_share_lose_no_count() {
        const EACH: u64 = 20_000;
        let shared = Arc::new(WorkerStatistics::shared(1));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        shared.record(ClassId(0), times(5_000, 1_000), false);
                        shared.record(ClassId(0), times(0, 0), true);
                        shared.record_lost();
                    }
                });
            }
        });
        let dispatcher = DispatcherStatistics::new(1);
        let statistics = Statistics::gather(&[shared], &dispatcher, [], &["all"]);
        let class = &statistics.classes[0];
        assert_eq!(
            [class.finished, class.failed, statistics.lost],
            [2 * EACH; 3]
        );
        assert_eq!(class.slowdown_thousandths.count(), 2 * EACH);
        assert_eq!(class.service_nanos, 2 * EACH * 1_000);
    }

    #[test]
    fn extremes_neither_overflow_nor_divide_by_zero() {
        let worker = Arc::new(WorkerStatistics::new(1));
        worker.record(ClassId(0), times(u64::MAX, 0), false);
        worker.record(ClassId(0), times(0, 0), false);
        let dispatcher = DispatcherStatistics::new(2);
        let statistics = Statistics::gather(&[worker], &dispatcher, [], &["all"]);
        assert_eq!(statistics.finished(), 2);
        assert_eq!(statistics.dispatcher_occupancy, 0.0);
    }

    #[test]
    fn occupancy_is_the_busy_share() {
        let dispatcher = DispatcherStatistics::new(2);
        dispatcher.add_time(Nanos(300), true);
        dispatcher.add_time(Nanos(100), false);
        let statistics = Statistics::gather(&[], &dispatcher, [], &[""; 0]);
        assert_eq!(statistics.dispatcher_occupancy, 0.75);
    }

    #[test]
    fn refusals_by_cause() {
        let dispatcher = DispatcherStatistics::new(2);
        dispatcher.refused(Refusal::DeadlinePassed);
        dispatcher.refused(Refusal::QueueFull);
        dispatcher.refused(Refusal::QueueFull);
        let mut refused = Statistics::gather(&[], &dispatcher, [], &[""; 0]).refused;
        assert_eq!(refused.to_string(), "3 (2 QueueFull, 1 DeadlinePassed)");
        refused += Refusals::new([0, 0, 0, 4, 0]);
        assert_eq!((refused.of(Refusal::ShuttingDown), refused.total()), (4, 7));
        assert_eq!(Refusals::default().to_string(), "0");
    }

    #[test]
    fn displays_a_line_for_each_class_and_what_is_wrong() {
        let worker = Arc::new(WorkerStatistics::new(2));
        worker.record(ClassId(1), times(25_000, 1_000), false);
        let dispatcher = DispatcherStatistics::new(2);
        dispatcher.spares_exhausted();
        dispatcher.gauges(0, 0, 0, 0, true);
        let statistics = Statistics::gather(&[worker], &dispatcher, [], &["a", "quite long"]);
        let table = statistics.to_string();
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[0].len(), lines[2].len(), "columns line up:\n{table}");
        assert!(lines[2].starts_with("quite long") && lines[2].contains("25.0"));
        for wrong in ["spare_workers", "set aside"] {
            assert!(lines[5].contains(wrong), "{table}");
        }
    }
}
