//! One burst: one contender serves one schedule.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shinjuku::{ClassConfig, Config, HardPreemption, Runtime};
use shinjuku_examples::store::Store;
use shinjuku_workload::Record;

use super::contender::Contender;
use super::injector::{Injector, Planned, Progress};
use super::work::Worker;

/// What is common to all bursts.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Worker cores.
    pub workers: usize,
    /// SCHED_FIFO priority of the measured threads, where permitted.
    pub realtime_priority: Option<i32>,
    /// Permission for signals.
    pub token: HardPreemption,
    /// For the mixes of queries.
    pub store: Option<Arc<Store>>,
}

/// What came of a burst.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Finished requests, in order of arrival.
    pub records: Vec<Record>,
    /// Classes of the refused ones.
    pub refused: Vec<u16>,
    /// Preemptions by class.
    pub preemptions: Vec<u64>,
    /// How the runtime preempted, in its own words.
    pub description: String,
    /// Requests offered between the burst's first fifth and its last arrival, and finished in that time.
    pub offered: u64,
    /// See `offered`.
    pub finished: u64,
    /// Length of that time, ns.
    pub window_ns: u64,
}

/// Contexts of every runtime measured.
const CONTEXTS: usize = 512;
/// Requests that may wait; more are refused, and the point counts as saturated.
const QUEUE: usize = 65_536;
/// Idle threads look for work for this long, so that none sleeps in a burst, and all do soon after it.
const BACKOFF_US: f64 = 20_000.0;

impl Bench {
    /// Serves `arrivals` (in order of time) by `contender`; `slos_us` has the classes' SLOs where it wants them.
    pub fn burst(
        &self,
        contender: &Contender,
        arrivals: &Arc<[Planned]>,
        classes: usize,
        slos_us: &[f64],
    ) -> Result<Outcome> {
        self.burst_at_depth(contender, arrivals, classes, slos_us, contender.depth())
    }

    /// The same with another number of requests staged at the worker than the contender's.
    pub fn burst_at_depth(
        &self,
        contender: &Contender,
        arrivals: &Arc<[Planned]>,
        classes: usize,
        slos_us: &[f64],
        depth: usize,
    ) -> Result<Outcome> {
        let span = Duration::from_nanos(arrivals.last().map_or(0, |(last, _)| last.at_ns));
        let mut config = Config {
            workers: Some(self.workers),
            contexts: CONTEXTS,
            queue: QUEUE,
            stack_kib: 64,
            spare_workers: 1,
            idle_backoff_us: BACKOFF_US,
            realtime_priority: self.realtime_priority,
            ..Config::default()
        };
        contender.apply(&mut config);
        config.depth = depth;
        config.class = (0..classes)
            .map(|class| ClassConfig {
                slo_us: slos_us
                    .get(class)
                    .copied()
                    .filter(|_| contender.wants_slos()),
                ..ClassConfig::new(format!("class-{class}"))
            })
            .collect();
        let progress = Arc::new(Progress::default());
        let injector = Injector::new(Arc::clone(arrivals), Arc::clone(&progress));
        let server = Runtime::builder(Worker {
            store: self.store.clone(),
        })
        .config(config)
        .allow_hard_preemption(self.token)
        .serve(injector)
        .with_context(|| {
            format!(
                "starting {} with {}",
                contender.policy_name(),
                contender.mechanism_name()
            )
        })?;
        let description = server.description().to_owned();
        std::thread::sleep(span);
        let patience = Instant::now() + 2 * span + Duration::from_secs(1);
        while !progress.exhausted.load(Ordering::Acquire) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        let drain = patience
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(100));
        let preemptions = |statistics: &shinjuku::Statistics| {
            statistics
                .classes
                .iter()
                .map(|class| class.preemptions)
                .collect::<Vec<_>>()
        };
        let mut taken = preemptions(&server.statistics());
        // The drain's preemptions count as well: wait for its end before reading, as far as patience goes.
        while server.statistics().in_system() > 0 && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
            taken = preemptions(&server.statistics());
        }
        let last = server.statistics();
        let (report, transport) = server.shutdown(drain);
        ensure!(report.policy_error.is_none(), "the policy failed: {report}");
        ensure!(
            report.workers_leaked == 0,
            "a worker hangs in a request that ends by itself: {report}\n{last}"
        );
        // Dropped, it says what was refused.
        drop(transport);
        let start = progress.start.load(Ordering::Acquire);
        let refused: Vec<u16> = {
            let refused = progress
                .refused
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            refused
                .iter()
                .map(|&index| arrivals[index as usize].0.class)
                .collect()
        };
        let mut finished: Vec<(u32, u64)> = progress
            .finished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .flatten()
            .copied()
            .collect();
        finished.sort_unstable();
        let records: Vec<Record> = finished
            .iter()
            .map(|&(index, at)| {
                let arrival = &arrivals[index as usize].0;
                let arrival_ns = start + arrival.at_ns;
                Record {
                    arrival_ns,
                    service_ns: arrival.service_ns,
                    finish_ns: at.max(arrival_ns),
                    class: arrival.class,
                }
            })
            .collect();
        let end_ns = span.as_nanos() as u64;
        let from_ns = end_ns / 5;
        let offered = arrivals
            .iter()
            .filter(|(arrival, _)| arrival.at_ns >= from_ns)
            .count() as u64;
        let window = start + from_ns..=start + end_ns;
        let in_time = records
            .iter()
            .filter(|record| window.contains(&record.finish_ns))
            .count() as u64;
        Ok(Outcome {
            records,
            refused,
            preemptions: taken,
            description,
            offered,
            finished: in_time,
            window_ns: end_ns - from_ns,
        })
    }
}
