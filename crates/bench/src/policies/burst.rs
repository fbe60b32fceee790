//! One burst: one contender serves one schedule.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use core_affinity::CoreId;
use shinjuku::{ClassConfig, ClassStatistics, Config, HardPreemption, Preemptions, Runtime};
use shinjuku_examples::store::Store;
use shinjuku_preempt::{Clock, Realtime};
use shinjuku_workload::injector::{Injector, Progress};
use shinjuku_workload::{Record, Schedule};

use super::contender::{Contender, Probes};
use super::mechanisms::Mechanisms;
use super::mixes::BenchMix;
use super::on_worker_core;
use super::saturation::Counts;
use super::throttling::Throttling;
use super::work::{Planned, Worker, nanos_per_step};

/// What is common to all bursts.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Worker cores.
    pub workers: usize,
    /// The first of these.
    pub worker_core: CoreId,
    /// All cores of the contenders, the dispatcher's included.
    pub cores: Vec<usize>,
    /// SCHED_FIFO priority of the measured threads, where permitted.
    pub realtime_priority: Option<i32>,
    /// Permission for signals.
    pub token: HardPreemption,
    /// What else interrupts here.
    pub mechanisms: Mechanisms,
    /// The store that the mixes of queries read.
    pub store: Option<Arc<Store>>,
    /// Bound on the time of real-time threads, where they are measured and there is one.
    pub throttling: Option<Throttling>,
    /// When the last burst's threads ended.
    pub ended: Cell<Option<Instant>>,
}

/// What came of a burst.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Finished requests, in order of arrival.
    pub records: Vec<Record>,
    /// What became of the requests of each class.
    pub counts: Vec<Counts>,
    /// What the runtime counted of each class.
    pub served: Vec<Served>,
    /// Interrupts that came to workers.
    pub interrupts: Interrupts,
    /// Time of the dispatcher's turns in which there was something to do; where its thread runs
    /// requests as well, these are in it.
    pub dispatcher_busy: Duration,
    /// How the runtime preempted, in its own words.
    pub description: String,
    /// How interrupts came to workers in guest mode.
    pub delivery: Option<String>,
    /// Length of the window of `counts`, ns.
    pub window_ns: u64,
}

/// What the runtime counted of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests that finished.
    pub finished: u64,
    /// How long these ran, all together, what preempting them took included, ns.
    pub ran_ns: u64,
    /// Preemptions.
    pub preemptions: u64,
}

/// Interrupts that came to workers. Each takes its time, also where it found nothing to preempt any
/// more, or preemption held off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// All that came.
    pub came: u64,
    /// Those that preempted.
    pub preempted: u64,
}

impl From<&Preemptions> for Interrupts {
    fn from(preemptions: &Preemptions) -> Self {
        Self {
            came: preemptions
                .interrupts_sent
                .max(preemptions.by_interrupt + preemptions.late),
            preempted: preemptions.by_interrupt,
        }
    }
}

impl From<&ClassStatistics> for Served {
    fn from(class: &ClassStatistics) -> Self {
        Self {
            finished: class.finished,
            ran_ns: class.service_nanos,
            preemptions: class.preemptions,
        }
    }
}

/// Contexts of every runtime measured.
pub const CONTEXTS: usize = 512;
/// Requests that may wait; more are refused, and the point counts as saturated.
pub const QUEUE: usize = 65_536;
/// Idle threads look for work for this long, so that none sleeps in a burst, and all do soon after
/// it.
pub const BACKOFF_US: f64 = 20_000.0;

/// How long requests may take after the last arrival. What is not finished by then is unfinished,
/// and the point is saturated: the rest of such a burst is not worth its time, so what has not
/// started does nothing any more.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long those may take that have started by then: they run to their end.
const DRAIN: Duration = Duration::from_secs(5);

/// What a burst takes beside its arrivals, for the estimate of the time left: its threads start,
/// drain and end, the figures are summed up, and each point is simulated once.
const AROUND: Duration = Duration::from_millis(200);

impl Bench {
    /// About how long a burst takes.
    pub fn per_burst(&self, length: Duration) -> Duration {
        length + AROUND
    }

    /// Waits until the last burst's real-time threads are forgotten.
    pub fn rest(&self) {
        if let (Some(throttling), Some(ended)) = (self.throttling, self.ended.get()) {
            std::thread::sleep(throttling.rest().saturating_sub(ended.elapsed()));
        }
    }

    /// The arrivals with work that takes as long on a worker's core as it does there now: clocks
    /// and neighbours on the host change a core's speed from one minute to the next.
    ///
    /// # Errors
    /// The work cannot be timed.
    pub fn plan(
        &self,
        mix: &BenchMix,
        schedule: &Schedule,
        probes: Probes,
    ) -> Result<Arc<[Planned]>> {
        self.rest();
        let nanos_per_step = on_worker_core(self.worker_core, nanos_per_step)?;
        Ok(mix.plan(schedule, probes, nanos_per_step))
    }

    /// Serves `arrivals` (in order of time) by `contender`; `slos_us` has the classes' SLOs where
    /// it wants them.
    pub fn burst(
        &self,
        contender: &Contender,
        arrivals: &Arc<[Planned]>,
        classes: usize,
        slos_us: &[f64],
    ) -> Result<Outcome> {
        let depth = contender.depth(self.workers);
        self.burst_at_depth(contender, arrivals, classes, slos_us, depth)
    }

    /// The same with another number of requests staged at the worker than the contender's, where
    /// there is a dispatcher.
    pub fn burst_at_depth(
        &self,
        contender: &Contender,
        arrivals: &Arc<[Planned]>,
        classes: usize,
        slos_us: &[f64],
        depth: usize,
    ) -> Result<Outcome> {
        let mut config = self.config();
        contender.apply(&mut config, &self.cores);
        config.depth = contender.has_dispatcher().then_some(depth);
        config.class = (0..classes)
            .map(|class| {
                let slo_us = slos_us.get(class).copied();
                ClassConfig::new(format!("class-{class}"))
                    .slo_us(slo_us.filter(|_| contender.wants_slos()))
            })
            .collect();
        self.serve(config, arrivals, PATIENCE).with_context(|| {
            format!(
                "{} with {}",
                contender.policy_name(),
                contender.mechanism_name()
            )
        })
    }

    /// What every configuration of a burst begins with.
    pub fn config(&self) -> Config {
        Config::default()
            .workers(self.workers)
            .contexts(CONTEXTS)
            .queue(QUEUE)
            .stack_kib(64)
            .spare_workers(1)
            .idle_backoff_us(BACKOFF_US)
            .realtime_priority(self.realtime_priority)
    }

    /// Serves `arrivals` (in order of time) by a runtime of this configuration. In the layout
    /// `symmetric`, each loop injects the requests of its own flows. What has not finished so long
    /// after the last arrival is unfinished.
    ///
    /// # Errors
    /// The runtime does not start, its policy fails, or a worker hangs.
    pub fn serve(
        &self,
        config: Config,
        arrivals: &Arc<[Planned]>,
        patience: Duration,
    ) -> Result<Outcome> {
        self.rest();
        let span = Duration::from_nanos(arrivals.last().map_or(0, |(last, _)| last.at_ns));
        let classes = config.class.len();
        let dispatchers = config.transports()?;
        let progress = Arc::new(Progress::default());
        let over = Arc::new(AtomicBool::new(false));
        let server = Runtime::builder(Worker {
            store: self.store.clone(),
            over: Arc::clone(&over),
        })
        .config(config)
        .allow_hard_preemption(self.token)
        .serve_each(Injector::several(dispatchers, arrivals, &progress))
        .context("it does not start")?;
        if progress.is_attended() {
            // In time, whatever else this machine does.
            let _realtime = self.realtime_priority.map(Realtime::enter);
            progress.begin();
        }
        // Where real-time threads have all cores, this thread gets on when the burst is over.
        if !progress.is_exhausted() {
            std::thread::sleep(span);
        }
        // The drain counts as well: wait for its end before reading, as far as patience goes.
        let patience = Instant::now() + patience;
        let is_over = || progress.is_exhausted() && server.statistics().in_system() == 0;
        while !is_over() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        let last = server.statistics();
        let description = server.description();
        let end_of_patience = Clock::get().now_nanos();
        over.store(true, Ordering::Relaxed);
        let (report, transports) = server.shutdown_each(DRAIN);
        self.ended.set(Some(Instant::now()));
        ensure!(report.policy_error.is_none(), "the policy failed: {report}");
        ensure!(
            report.workers_leaked == 0,
            "a worker hangs in a request that ends by itself: {report}\n{last}"
        );
        // Dropped, they say what was refused.
        drop(transports);
        let start = progress.start.load(Ordering::Acquire);
        let records = progress.records(arrivals, end_of_patience);
        let refused = progress.refused();
        let end_ns = span.as_nanos() as u64;
        let from_ns = end_ns / 5;
        let counts = count(
            arrivals,
            &refused,
            &records,
            start,
            from_ns..=end_ns,
            classes,
        );
        Ok(Outcome {
            records,
            counts,
            served: last.classes.iter().map(Served::from).collect(),
            interrupts: Interrupts::from(&last.preemptions),
            dispatcher_busy: last.uptime.mul_f64(last.dispatcher_occupancy),
            description,
            delivery: last.delivery().map(|delivery| delivery.to_string()),
            window_ns: end_ns - from_ns,
        })
    }
}

/// Sorts a burst's requests by class; `window` is ns after `start`, the first arrival's clock.
fn count(
    arrivals: &[Planned],
    refused: &[u32],
    records: &[Record],
    start: u64,
    window: RangeInclusive<u64>,
    classes: usize,
) -> Vec<Counts> {
    let mut counts = vec![Counts::default(); classes];
    for (arrival, _) in arrivals {
        let counts = &mut counts[usize::from(arrival.class)];
        counts.offered += u64::from(window.contains(&arrival.at_ns));
        counts.unfinished += 1;
    }
    for &index in refused {
        let counts = &mut counts[usize::from(arrivals[index as usize].0.class)];
        counts.refused += 1;
        counts.unfinished -= 1;
    }
    for record in records {
        let counts = &mut counts[usize::from(record.class)];
        counts.finished += u64::from(window.contains(&(record.finish_ns - start)));
        counts.unfinished -= 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use shinjuku_workload::{Arrival, Length};

    use super::super::work::Work;
    use super::*;

    #[test]
    fn loops_and_the_default_configuration_answer_everything() {
        const REQUESTS: usize = 200;
        let mut cores = core_affinity::get_core_ids().unwrap();
        cores.truncate(2);
        let bench = Bench {
            workers: 1,
            worker_core: cores[0],
            cores: cores.iter().map(|core| core.id).collect(),
            realtime_priority: None,
            token: crate::allow_signals(),
            mechanisms: Mechanisms::signals_alone(),
            store: None,
            throttling: None,
            ended: Cell::new(None),
        };
        let mix = BenchMix::spinning("mid").unwrap();
        let schedule = mix.arrivals(0.2, 1, Length::Requests(REQUESTS), 1).unwrap();
        for (contender, layout) in [
            (Contender::probe(5.0).symmetric(), "symmetric loop"),
            (Contender::default_configuration(Probes::All), ""),
            (Contender::default_configuration(Probes::None), ""),
        ] {
            let arrivals = mix.plan(&schedule, contender.probes, 1.0);
            let mut config = bench
                .config()
                .class(["short", "long"].map(ClassConfig::new));
            contender.apply(&mut config, &bench.cores);
            let outcome = bench.serve(config, &arrivals, Duration::from_secs(20));
            let outcome = outcome.unwrap();
            let described = &outcome.description;
            assert!(described.contains(layout), "{described}");
            let answered = outcome.records.len();
            assert_eq!(answered, REQUESTS, "{}: {described}", contender.name());
        }
    }

    #[test]
    fn requests_are_counted_by_class_in_one_window() {
        let planned = |at_ns, class| -> Planned {
            let arrival = Arrival {
                at_ns,
                service_ns: 1,
                flow: 0,
                class,
            };
            (arrival, Work::Get { key: 0 })
        };
        let record = |arrival_ns, finish_ns, class| Record {
            arrival_ns,
            service_ns: 1,
            finish_ns,
            class,
        };
        // Early, in the window but late, refused, lost; and one of the other class that carries
        // over into the window.
        let arrivals = [
            planned(0, 0),
            planned(50, 0),
            planned(60, 0),
            planned(70, 0),
            planned(10, 1),
        ];
        let records = [
            record(1000, 1005, 0),
            record(1050, 1150, 0),
            record(1010, 1030, 1),
        ];
        let counts = count(&arrivals, &[2], &records, 1000, 20..=100, 2);
        let short = Counts {
            offered: 3,
            finished: 0,
            refused: 1,
            unfinished: 1,
        };
        let long = Counts {
            finished: 1,
            ..Counts::default()
        };
        assert_eq!(counts, [short, long]);
    }
}
