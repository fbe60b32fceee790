//! A runtime's statistics through the [`metrics`](https://docs.rs/metrics) facade, for the exporter
//! that a program has installed. Feature `metrics`.
//!
//! A [`Publisher`] reads the statistics when it is told to, for example when a page is scraped, and
//! hands them to the recorder. A scrape stops no thread of the runtime, and costs these threads
//! only a cache miss for each counter that they write next.
//!
//! [`METRICS`] is the list of names, units and labels. The manual's page
//! [`watching`](crate::guide::watching) says what to watch for.
//!
//! The runtime counts latencies, queue times and slowdowns in buckets of 1 %. The publisher passes
//! them on as counters `.._bucket` with the label `le`, as Prometheus has histograms, so that
//! `histogram_quantile` takes them. The facade's own histograms would need each value by itself,
//! millions a second.

use metrics::{Key, KeyName, Label, Level, Metadata, Unit, with_recorder};
use shinjuku_net::Refusal;

use crate::observer::Observer;
use crate::statistics::{ClassStatistics, Histogram, Statistics};

/// One metric: what is published under a name.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name that the recorder gets.
    pub name: &'static str,
    /// Whether the number only grows.
    pub is_counter: bool,
    /// What it counts.
    pub unit: Unit,
    /// The label that tells its series apart, if there is more than one.
    pub label: Option<&'static str>,
    /// What it means, in a sentence.
    pub description: &'static str,
}

macro_rules! metrics_list {
    ($($constant:ident: $kind:ident $name:literal [$unit:ident] $(by $label:literal)?, $description:literal;)*) => {
        $(const $constant: &str = $name;)*

        /// Everything that a [`Publisher`] publishes.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            is_counter: metrics_list!(@is_counter $kind),
            unit: Unit::$unit,
            label: metrics_list!(@label $($label)?),
            description: $description,
        }),*];
    };
    (@is_counter counter) => { true };
    (@is_counter gauge) => { false };
    (@label) => { None };
    (@label $label:literal) => { Some($label) };
}

metrics_list! {
    UPTIME: gauge "shinjuku_uptime_seconds" [Seconds],
        "Since the runtime started.";
    RECEIVED: counter "shinjuku_requests_received_total" [Count],
        "Requests that the transport delivered.";
    REFUSED: counter "shinjuku_requests_refused_total" [Count] by "cause",
        "Requests turned away before they started.";
    FINISHED: counter "shinjuku_requests_finished_total" [Count] by "class",
        "Requests that got their reply.";
    FAILED: counter "shinjuku_requests_failed_total" [Count] by "class",
        "Requests whose handler panicked, or whose reply counts as a failure.";
    LOST: counter "shinjuku_requests_lost_total" [Count],
        "Requests without a reply because the transport's code panicked.";
    WAITING: gauge "shinjuku_requests_waiting" [Count],
        "Requests that wait for a worker now, started or not.";
    STARTED: gauge "shinjuku_requests_started" [Count],
        "Requests between their start and their end now.";
    RUNNING: gauge "shinjuku_requests_running" [Count],
        "Requests that run now.";
    SERVICE: counter "shinjuku_service_nanoseconds_total" [Nanoseconds] by "class",
        "How long finished requests ran, all together.";
    CLASS_PREEMPTIONS: counter "shinjuku_class_preemptions_total" [Count] by "class",
        "How often requests of the class were preempted.";
    PREEMPTIONS: counter "shinjuku_preemptions_total" [Count] by "way",
        "How often requests gave way: at a probe, in an interrupt, or at the end of a guard.";
    FLOOR: gauge "shinjuku_quantum_floor_seconds" [Seconds] by "mechanism",
        "The shortest quantum that `auto` lets the mechanism have now; 0 as `configured`.";
    QUANTUM: gauge "shinjuku_quantum_in_force_seconds" [Seconds] by "class",
        "For how long a request of the class runs before the mechanism stops it, if others wait; `+Inf`: to completion.";
    ASKED: counter "shinjuku_preemptions_requested_total" [Count],
        "How often a running request was asked to give way.";
    SENT: counter "shinjuku_interrupts_sent_total" [Count],
        "Interrupts sent to workers, by a dispatcher that has a thread of its own.";
    UNSENT: counter "shinjuku_interrupts_failed_total" [Count],
        "Interrupts that could not be sent.";
    LATE: counter "shinjuku_interrupts_late_total" [Count],
        "Interrupts that came after the request had given way or ended.";
    DEFERRED: counter "shinjuku_preemptions_deferred_total" [Count],
        "Interrupts and probes that came while preemption was held off.";
    MIGRATIONS: counter "shinjuku_migrations_total" [Count],
        "Resumptions on another worker than the last.";
    HELPED: counter "shinjuku_helped_total" [Count],
        "Requests that an idle loop took from another's queue (layout symmetric).";
    BLOCKED: counter "shinjuku_workers_blocked_total" [Count],
        "How often a worker was found blocked in the kernel, or, inline and symmetric, relieved.";
    RESCUED: counter "shinjuku_rescued_total" [Count],
        "Requests sent to a spare worker, in the place of one that gave no answer.";
    NO_SPARES: counter "shinjuku_spares_exhausted_total" [Count],
        "How often a spare was needed and none was left.";
    BY_DISPATCHER: counter "shinjuku_run_by_dispatcher_total" [Count],
        "Requests that the dispatcher began itself (`dispatcher.works`).";
    RELIEVED: counter "shinjuku_dispatcher_relieved_total" [Count],
        "How often one of these did not give way in time, and another thread took over.";
    STALLS: counter "shinjuku_stalls_total" [Count] by "kind",
        "Requests that held their worker for longer than `stalls.report_after_ms`: they were `computing` or `blocked`.";
    OCCUPANCY: gauge "shinjuku_dispatcher_occupancy_ratio" [Count],
        "The share of its time that the dispatcher had something to do, 0 to 1.";
    SET_ASIDE: gauge "shinjuku_policy_set_aside" [Count],
        "1 once the policy gave a wrong answer; requests are served first come, first served then.";
    PROGRESS: counter "shinjuku_progress_interventions_total" [Count],
        "How often a request preempted many times in a row had to let the others go first.";
    LATENCY_BUCKET: counter "shinjuku_latency_seconds_bucket" [Count] by "class",
        "Finished requests whose latency, from arrival to reply, was at most `le` seconds.";
    LATENCY_COUNT: counter "shinjuku_latency_seconds_count" [Count] by "class",
        "Finished requests.";
    LATENCY_SUM: gauge "shinjuku_latency_seconds_sum" [Seconds] by "class",
        "The latencies of all finished requests together; it only grows.";
    QUEUE_BUCKET: counter "shinjuku_queue_seconds_bucket" [Count] by "class",
        "Finished requests that waited for at most `le` seconds, from arrival, until they ran for the first time.";
    QUEUE_COUNT: counter "shinjuku_queue_seconds_count" [Count] by "class",
        "Finished requests.";
    QUEUE_SUM: gauge "shinjuku_queue_seconds_sum" [Seconds] by "class",
        "What all finished requests together waited until they ran for the first time; it only grows.";
    SLOWDOWN_BUCKET: counter "shinjuku_slowdown_bucket" [Count] by "class",
        "Finished requests whose slowdown, latency over service time, was at most `le`.";
    SLOWDOWN_COUNT: counter "shinjuku_slowdown_count" [Count] by "class",
        "Finished requests.";
    SLOWDOWN_SUM: gauge "shinjuku_slowdown_sum" [Count] by "class",
        "The slowdowns of all finished requests together; it only grows.";
}

/// Upper ends of the buckets of latencies and queue times, in nanoseconds: 1 us to 10 s, three to a
/// decade.
const LATENCY_BOUNDS: [u64; 22] = {
    let mut bounds = [0; 22];
    let (mut place, mut decade) = (0, 1_000);
    while place < 21 {
        bounds[place] = decade;
        bounds[place + 1] = 2 * decade;
        bounds[place + 2] = 5 * decade;
        place += 3;
        decade *= 10;
    }
    bounds[21] = decade;
    bounds
};

/// Upper ends of the slowdowns' buckets, in thousandths: 1 to 10,000.
const SLOWDOWN_BOUNDS: [u64; 14] = {
    let mut bounds = [1_000; 14];
    let multiples = [
        1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000,
    ];
    let mut place = 0;
    while place < bounds.len() {
        bounds[place] *= multiples[place];
        place += 1;
    }
    bounds
};

const NANOS: f64 = 1e9;
const THOUSANDTHS: f64 = 1e3;

/// Hands a runtime's statistics to the recorder of the `metrics` facade.
///
/// ```
/// use shinjuku::metrics::Publisher;
/// use shinjuku::{Runtime, handler_fn};
///
/// let runtime = Runtime::builder(handler_fn(|n: u64| n + 1)).start()?;
/// // With an exporter installed: on each scrape, or every few seconds.
/// let publisher = Publisher::new(runtime.observer());
/// publisher.publish();
/// # Ok::<(), shinjuku::StartError>(())
/// ```
#[derive(Debug)]
pub struct Publisher {
    observer: Observer,
    labels: Vec<Label>,
}

impl Publisher {
    /// Publishes what `observer` sees. Describes all metrics to the recorder that is installed now.
    #[must_use]
    pub fn new(observer: Observer) -> Self {
        with_recorder(|recorder| {
            for metric in METRICS {
                let (name, unit) = (KeyName::from_const_str(metric.name), Some(metric.unit));
                if metric.is_counter {
                    recorder.describe_counter(name, unit, metric.description.into());
                } else {
                    recorder.describe_gauge(name, unit, metric.description.into());
                }
            }
        });
        Self {
            observer,
            labels: Vec::new(),
        }
    }

    /// Adds a label to every metric, such as a name where a process has several runtimes.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.push(Label::new(name.into(), value.into()));
        self
    }

    /// Reads the statistics and hands them over. Allocates.
    pub fn publish(&self) {
        let statistics = self.observer.statistics();
        self.requests(&statistics);
        self.preemptions(&statistics);
        self.workers(&statistics);
        for class in &statistics.classes {
            self.class(class);
        }
    }

    fn requests(&self, statistics: &Statistics) {
        self.gauge(UPTIME, [], statistics.uptime.as_secs_f64());
        self.counter(RECEIVED, [], statistics.received);
        self.counter(LOST, [], statistics.lost);
        self.gauge(WAITING, [], statistics.waiting as f64);
        self.gauge(STARTED, [], statistics.started as f64);
        self.gauge(RUNNING, [], statistics.running as f64);
        for cause in Refusal::ALL {
            let label = Label::from_static_parts("cause", cause_name(cause));
            self.counter(REFUSED, [label], statistics.refused.of(cause));
        }
    }

    fn preemptions(&self, statistics: &Statistics) {
        let preemptions = &statistics.preemptions;
        for (way, number) in [
            ("probe", preemptions.by_probe),
            ("compiled-probe", preemptions.by_compiled_probe),
            ("interrupt", preemptions.by_interrupt),
            ("guard", preemptions.at_guard),
        ] {
            let label = Label::from_static_parts("way", way);
            self.counter(PREEMPTIONS, [label], number);
        }
        self.quanta();
        self.counter(ASKED, [], preemptions.requested);
        self.counter(SENT, [], preemptions.interrupts_sent);
        self.counter(UNSENT, [], preemptions.interrupts_failed);
        self.counter(LATE, [], preemptions.late);
        self.counter(DEFERRED, [], preemptions.deferred);
        self.counter(MIGRATIONS, [], preemptions.migrations);
    }

    /// The quanta in force, and the floors that `auto` keeps under the policy's.
    fn quanta(&self) {
        let mechanism = |name: &str| Label::new("mechanism", name.to_owned());
        for one in self.observer.quanta_in_force() {
            let labels = [Label::new("class", one.class), mechanism(&one.mechanism)];
            let seconds = (one.quantum).map_or(f64::INFINITY, |quantum| quantum.as_secs_f64());
            self.gauge(QUANTUM, labels, seconds);
        }
        match &self.observer.in_force {
            None => self.gauge(FLOOR, [mechanism("configured")], 0.0),
            Some(in_force) => in_force.floors().for_each(|(name, nanos)| {
                self.gauge(FLOOR, [mechanism(name)], nanos.0 as f64 / NANOS);
            }),
        }
    }

    fn workers(&self, statistics: &Statistics) {
        self.counter(HELPED, [], statistics.helped);
        self.counter(BLOCKED, [], statistics.workers_blocked);
        self.counter(RESCUED, [], statistics.rescued);
        self.counter(NO_SPARES, [], statistics.spares_exhausted);
        self.counter(BY_DISPATCHER, [], statistics.run_by_dispatcher);
        self.counter(RELIEVED, [], statistics.dispatcher_relieved);
        let stalls = &statistics.stalls;
        for (kind, number) in [("computing", stalls.computing), ("blocked", stalls.blocked)] {
            let label = Label::from_static_parts("kind", kind);
            self.counter(STALLS, [label], number);
        }
        self.gauge(OCCUPANCY, [], statistics.dispatcher_occupancy);
        self.gauge(SET_ASIDE, [], f64::from(statistics.policy_set_aside));
        self.counter(PROGRESS, [], statistics.progress_interventions);
    }

    fn class(&self, class: &ClassStatistics) {
        let name = || Label::new("class", class.name.clone());
        self.counter(FINISHED, [name()], class.finished);
        self.counter(FAILED, [name()], class.failed);
        self.counter(SERVICE, [name()], class.service_nanos);
        self.counter(CLASS_PREEMPTIONS, [name()], class.preemptions);
        self.histogram(
            [LATENCY_BUCKET, LATENCY_COUNT, LATENCY_SUM],
            &name(),
            &class.latency_nanos,
            (&LATENCY_BOUNDS, NANOS),
        );
        self.histogram(
            [QUEUE_BUCKET, QUEUE_COUNT, QUEUE_SUM],
            &name(),
            &class.queue_nanos,
            (&LATENCY_BOUNDS, NANOS),
        );
        self.histogram(
            [SLOWDOWN_BUCKET, SLOWDOWN_COUNT, SLOWDOWN_SUM],
            &name(),
            &class.slowdown_thousandths,
            (&SLOWDOWN_BOUNDS, THOUSANDTHS),
        );
    }

    /// Publishes buckets, count and sum of a histogram; `scale` of its values make one unit of the
    /// published ones.
    fn histogram(
        &self,
        [bucket, count, sum]: [&'static str; 3],
        class: &Label,
        values: &Histogram,
        (bounds, scale): (&[u64], f64),
    ) {
        let mut of_all = 0.0;
        let mut upto = vec![0; bounds.len()];
        for (value, times) in values.iter() {
            of_all += value as f64 * times as f64;
            let first = bounds.partition_point(|&bound| bound < value);
            upto[first..].iter_mut().for_each(|number| *number += times);
        }
        let ends = bounds
            .iter()
            .map(|&bound| (bound as f64 / scale).to_string());
        let all = values.count();
        for (end, number) in ends.zip(upto).chain([("+Inf".to_owned(), all)]) {
            self.counter(bucket, [class.clone(), Label::new("le", end)], number);
        }
        self.counter(count, [class.clone()], all);
        self.gauge(sum, [class.clone()], of_all / scale);
    }

    fn counter<const N: usize>(&self, name: &'static str, labels: [Label; N], value: u64) {
        let key = self.key(name, labels);
        with_recorder(|recorder| recorder.register_counter(&key, &METADATA).absolute(value));
    }

    fn gauge<const N: usize>(&self, name: &'static str, labels: [Label; N], value: f64) {
        let key = self.key(name, labels);
        with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).set(value));
    }

    fn key<const N: usize>(&self, name: &'static str, labels: [Label; N]) -> Key {
        let labels = self.labels.iter().cloned().chain(labels);
        Key::from_parts(name, labels.collect::<Vec<_>>())
    }
}

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

fn cause_name(cause: Refusal) -> &'static str {
    match cause {
        Refusal::QueueFull => "queue_full",
        Refusal::DeadlinePassed => "deadline_passed",
        Refusal::UnknownClass => "unknown_class",
        Refusal::ShuttingDown => "shutting_down",
        Refusal::Cancelled => "cancelled",
        _ => "other",
    }
}
