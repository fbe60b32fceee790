//! One burst of a mix: open loop, a dispatcher that injects the arrivals itself, and one worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shinjuku::config::{ClassConfig, Config, MechanismKind, PolicyConfig, PreemptionConfig};
use shinjuku::{ClassStatistics, Runtime, ShutdownReport, handler_fn};
use shinjuku_preempt::{Clock, Realtime};
use shinjuku_workload::injector::{Injector, Planned, Progress};
use shinjuku_workload::{
    Class, Length, Mix as Drawn, Record, Schedule, ScheduleConfig, ServiceTime, Summary,
};

use crate::answer::token;
use crate::mixes::{Mix, Works};
use crate::{Counted, Served, Times, Way};

/// Real-time threads, where permitted. Lower than what the kernel itself has at 99.
const PRIORITY: i32 = 50;
/// No burst lasts longer: the kernel takes real-time threads off their cores after 950 ms of a
/// second.
pub const LONGEST: Duration = Duration::from_millis(800);
/// Of fewer short requests there is no 99th percentile.
const SAMPLES: usize = 100;
/// What the threads may take to start.
const START: Duration = Duration::from_secs(5);
/// How long requests may take after the last arrival. What has not started by then does nothing.
const PATIENCE: Duration = Duration::from_millis(100);
/// So many requests are started and not finished at a time, at most: many more than an ideal
/// processor sharing would have at 60 % load, and few enough for a connection each.
pub(crate) const CONTEXTS: usize = 64;
/// Idle threads look for work for this long, so that none sleeps within a burst: an arrival wakes
/// no dispatcher, which polls for arrivals.
const BACKOFF_US: f64 = 20_000.0;
/// How long those may take that have started by then.
const DRAIN: Duration = Duration::from_secs(5);

/// A request.
#[derive(Clone, Copy, Debug)]
struct Work {
    number: u64,
    is_long: bool,
}

/// What is served.
#[derive(Debug)]
pub struct Burst<'a> {
    /// What requests do, and how many are long.
    pub mix: &'a Mix,
    pub times: Times,
    /// Share of the worker's time.
    pub load: f64,
    /// From the first arrival to the last, at most [`LONGEST`].
    pub length: Duration,
    pub seed: u64,
}

impl Burst<'_> {
    fn classes(&self) -> Result<Drawn> {
        let class = |name: &str, weight: f64, us: f64| -> Result<Class> {
            Ok(Class::new(name, weight, ServiceTime::fixed(us)?))
        };
        let (long, times) = (self.mix.long_share, self.times);
        let short = class("short", 1.0 - long, times.short_us)?;
        let long = class("long", long, times.long_us)?;
        Ok(Drawn::new(self.mix.name, vec![short, long])?)
    }

    fn arrivals(&self, drawn: &Drawn) -> Result<Arc<[Planned<Work>]>> {
        let length = Length::lasting(self.length);
        let config = ScheduleConfig::at_load(self.load, 1, length).with_seed(self.seed);
        let schedule = Schedule::generate(drawn, &config)?;
        let arrivals = schedule.arrivals().iter().zip(0..);
        let planned = arrivals.map(|(arrival, number)| {
            let is_long = arrival.class == 1;
            (*arrival, Work { number, is_long })
        });
        Ok(planned.collect())
    }

    /// Serves it by `way`.
    ///
    /// # Errors
    /// It is too long, the program has no such probes, the runtime does not start, or a request
    /// fails.
    pub fn serve(&self, way: Way) -> Result<Served> {
        Ok(self.run(way)?.0)
    }

    /// Also what a request of each kind took its worker, on the mean.
    fn run(&self, way: Way) -> Result<(Served, Times)> {
        ensure!(
            self.length <= LONGEST,
            "a burst of {:?} is too long: the kernel would take its real-time threads off their cores",
            self.length
        );
        let works = self.mix.prepare()?;
        let drawn = self.classes()?;
        let arrivals = self.arrivals(&drawn)?;
        let realtime = Realtime::enter(PRIORITY).is_ok();
        let config = config(way).realtime_priority(realtime.then_some(PRIORITY));
        let progress = Arc::new(Progress::default());
        let injector = Injector::several(1, &arrivals, &progress).pop();
        let over = Arc::new(AtomicBool::new(false));
        let server = Runtime::builder(handler(works, way, Arc::clone(&over)))
            .config(config)
            .allow_hard_preemption(token())
            .serve(injector.context("one injector")?)
            .context("it does not start")?;
        let is_injected = || progress.is_exhausted();
        wait(self.length + START, is_injected);
        ensure!(is_injected(), "the arrivals were not injected in time");
        wait(PATIENCE, || server.statistics().in_system() == 0);
        let end = Clock::get().now_nanos();
        over.store(true, Ordering::Relaxed);
        let statistics = server.statistics();
        let description = server.description();
        let (report, injector) = server.shutdown(DRAIN);
        drop(injector);
        check(&report)?;
        ensure!(progress.refused().is_empty(), "requests were refused");
        let records = progress.records(&arrivals, end);
        let counts = count(&arrivals, &records, progress.start.load(Ordering::Acquire));
        let summary = Summary::of(&drawn, &records)?;
        let short = summary.class(0).context("no short request finished")?;
        let took_us =
            |class: &ClassStatistics| class.service_nanos as f64 / 1e3 / class.finished as f64;
        let times = Times {
            short_us: took_us(&statistics.classes[0]),
            long_us: took_us(&statistics.classes[1]),
        };
        let served = Served {
            short_p50_us: short.p50_ns as f64 / 1e3,
            // The short ones that did not finish would be among the last percent.
            short_p99_us: (records.len() == arrivals.len() && short.requests >= SAMPLES)
                .then_some(short.p99_ns as f64 / 1e3),
            short_requests: short.requests as u64,
            requests: arrivals.len() as u64,
            counts,
            preemptions: statistics.preemptions.taken(),
            short_preemptions: statistics.classes[0].preemptions,
            description,
        };
        Ok((served, times))
    }
}

/// Sorts a burst's requests by kind; its first arrival is due at `start`.
fn count(arrivals: &[Planned<Work>], records: &[Record], start: u64) -> [Counted; 2] {
    let end = arrivals.last().map_or(0, |(last, _)| last.at_ns);
    let window = end / 5..=end;
    let mut counts = [Counted::default(); 2];
    for (arrival, _) in arrivals {
        let counts = &mut counts[usize::from(arrival.class)];
        counts.offered += u64::from(window.contains(&arrival.at_ns));
        counts.unfinished += 1;
    }
    for record in records {
        let counts = &mut counts[usize::from(record.class)];
        counts.finished += u64::from(window.contains(&(record.finish_ns - start)));
        counts.unfinished -= 1;
    }
    counts
}

/// What a mix's requests take a worker that runs each to its end and often waits for the next one:
/// the times that loads are shares of. In a loop of their own short requests find everything in the
/// processor's caches: those of `store-50` take 0.8 us there, and 4 to 6 us on a worker.
///
/// # Errors
/// Those of [`Burst::serve`]; or there was no request of a kind.
pub fn times(mix: &Mix, length: Duration) -> Result<Times> {
    const SEED: u64 = 7;
    let burst = Burst {
        mix,
        times: mix.prepare()?.times(length)?,
        load: 0.3,
        length: length.min(LONGEST),
        seed: SEED,
    };
    let (_, times) = burst.run(Way::ToCompletion)?;
    ensure!(
        times.short_us > 0.0 && times.long_us > 0.0,
        "{} has requests of one kind alone in {length:?}",
        mix.name
    );
    Ok(times)
}

/// Waits until it is so, or for so long.
fn wait(patience: Duration, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_so() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn check(report: &ShutdownReport) -> Result<()> {
    ensure!(report.workers_leaked == 0, "a worker hangs: {report}");
    let failed = report.statistics.as_ref().map_or(0, |all| all.failed());
    ensure!(failed == 0, "{failed} requests failed: {report}");
    Ok(())
}

fn config(way: Way) -> Config {
    use MechanismKind::{Escalation, None, Probe, Signal};
    let preemptive = |quantum_us: Option<f64>| {
        let policy = PolicyConfig::new("c-pre-sq");
        quantum_us.map_or(policy.clone(), |us| policy.quantum_us(us))
    };
    let (policy, mechanism) = match way {
        Way::ToCompletion => (PolicyConfig::new("c-fcfs"), None),
        Way::Probes => (preemptive(Some(5.0)), Probe),
        // A signal takes what calls no function, or waits for a lock of one that was preempted.
        Way::CompiledProbes => (preemptive(Some(5.0)), Escalation),
        Way::Signals => (preemptive(Some(100.0)), Signal),
    };
    Config::default()
        .workers(1)
        .contexts(CONTEXTS)
        // A request that was preempted within a lock is to go on soon.
        .rescue_after_ms(1.0)
        .queue(65_536)
        .idle_backoff_us(BACKOFF_US)
        .class(["short", "long"].map(ClassConfig::new))
        .policy(policy)
        .preemption(PreemptionConfig::new(mechanism))
}

fn handler(
    works: Works,
    way: Way,
    over: Arc<AtomicBool>,
) -> impl shinjuku::RequestHandler<Request = Work, Reply = (), PerCore = ()> {
    handler_fn(move |work: Work| {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let done = match work.is_long {
            true => works.long(work.number, way == Way::Probes),
            false => works.short(work.number),
        };
        std::hint::black_box(done.expect("the data is there"));
    })
}

#[cfg(test)]
mod tests {
    use shinjuku_workload::Arrival;

    use super::*;
    use crate::mixes::MIXES;

    #[test]
    fn a_burst_is_served_to_its_end() {
        let mix = &MIXES[0];
        let times = times(mix, Duration::from_millis(200)).unwrap();
        let burst = Burst {
            mix,
            times,
            load: 0.1,
            length: Duration::from_millis(100),
            seed: 1,
        };
        // What a busy machine has not served in `PATIENCE` is given up.
        let mut attempts = (0..20).map(|_| burst.serve(Way::Probes).unwrap());
        let served = attempts.find(|served| served.unfinished() == 0);
        let served = served.expect("one of twenty bursts is served to its end");
        assert!(
            served.requests > 10 && served.short_p50_us > 0.0,
            "{served:?}"
        );
    }
    #[test]
    fn a_burst_that_is_too_long_is_refused() {
        let burst = Burst {
            mix: &MIXES[0],
            times: Times {
                short_us: 1.0,
                long_us: 100.0,
            },
            load: 0.1,
            length: LONGEST + Duration::from_millis(1),
            seed: 1,
        };
        let error = burst.serve(Way::Probes).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn requests_are_counted_after_the_first_fifth() {
        const START: u64 = 5_000;
        let arrivals = [(0, 0), (200, 0), (500, 1), (900, 0), (1_000, 0)];
        let planned = |(at_ns, class)| {
            let arrival = Arrival {
                at_ns,
                service_ns: 1,
                flow: 0,
                class,
            };
            let (number, is_long) = (0, class == 1);
            (arrival, Work { number, is_long })
        };
        let record = |(arrival, finish, class): (u64, u64, u16)| Record {
            arrival_ns: START + arrival,
            service_ns: 1,
            finish_ns: START + finish,
            class,
        };
        // The last one comes after the last arrival, and the long one not at all.
        let records = [
            (0, 300, 0),
            (200, 199, 0),
            (900, 1_000, 0),
            (1_000, 1_001, 0),
        ];
        let [short, long] = count(&arrivals.map(planned), &records.map(record), START);
        let counted = |offered, finished, unfinished| Counted {
            offered,
            finished,
            unfinished,
        };
        assert_eq!((short, long), (counted(3, 2, 0), counted(1, 0, 1)));
    }
}
