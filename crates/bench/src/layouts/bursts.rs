//! Capacity, latency and the price of preemptions on cores of the runtime's own: bursts as in the
//! bench of the policies, where the serving thread injects the requests.
//!
//! A *batch* is offered faster than it can be served, and what counts is when its last request has
//! finished. So the layout that has one core more to serve with is as much better as that core is
//! worth.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use shinjuku::policy::{cfcfs, single_queue, stealing};
use shinjuku::{
    ClassConfig, Config, CoresConfig, DispatcherConfig, Help, LayoutKind, MechanismKind,
    PolicyConfig,
};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::Spread;
use shinjuku_workload::{Length, Summary};

use crate::allow_signals;
use crate::harness::{Comparison, Goal, Runs, Section, Session, Target};
use crate::policies::burst::Bench;
use crate::policies::contender::Probes;
use crate::policies::mechanisms::Mechanisms;
use crate::policies::mixes::BenchMix;
use crate::policies::saturation::is_saturated;
use crate::policies::work::Planned;
use crate::policies::{mixes_of, permitted};
use crate::report::figure;

/// Work in a batch, in seconds of all cores together: less than half of it as long as real-time
/// threads may run, since the layout `threads` has one core less.
const BATCH: Duration = Duration::from_millis(200);
/// How much faster batches arrive than all cores could serve them.
const OFFERED: f64 = 1.25;
/// What a batch may take after its last arrival.
const PATIENCE: Duration = Duration::from_millis(700);
/// Threads start and end.
const AROUND: Duration = Duration::from_millis(300);
/// Of so many batches of long requests the quickest counts: the others were disturbed.
const ATTEMPTS: u32 = 3;
/// Contexts of a batch of long requests: so many take turns.
const TURNS: usize = 32;
/// Long requests that are all alike, for the price of a preemption.
const LONG: &str = "long";

/// Capacity beside `threads`, of what the core more is worth by itself.
const OF_THE_CORES: f64 = 0.9;
const HALF: Goal = Goal::AtMost(1.3);
const PRICE: Goal = Goal::AtMost(1.0 / 3.0);
/// A price is the difference of two times, and can be below nothing by chance: of so many
/// repetitions the median says something.
const PRICED: usize = 3;
const KEPT: Goal = Goal::AtLeast(0.9);
/// Of the time of the same work without probes.
const AS_PLAIN: Goal = Goal::AtMost(1.03);
/// The bench's check of itself.
const AS_CALIBRATED: Goal = Goal::AtMost(1.1);

const SYMMETRIC: &str = "symmetric";
const THREADS: &str = "threads";

/// What was measured on cores of the runtime's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Whether all threads were under SCHED_FIFO.
    pub realtime: bool,
    /// Batches, mix by mix.
    pub capacity: Vec<Batches>,
    /// `hi` at half of `threads`' capacity.
    pub half: Vec<Runs<Latency>>,
    /// Batches of long requests with several quanta.
    pub preemptions: Vec<Runs<Batch>>,
}

/// Batches of a mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batches {
    /// The mix.
    pub mix: String,
    /// Contender by contender.
    pub runs: Vec<Runs<Batch>>,
}

/// A batch that was served.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Its requests.
    pub requests: u64,
    /// From the first arrival to the last finish.
    pub seconds: f64,
    /// What its requests take, as calibrated.
    pub work_seconds: f64,
    /// Threads that served.
    pub workers: u64,
    /// What the dispatcher's thread did meanwhile, where it has one of its own.
    pub dispatcher_seconds: f64,
    /// Preemptions of its requests.
    pub preemptions: u64,
}

/// Requests in an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// 99th percentile of the short ones, microseconds; null where it is saturated.
    pub short_p99_us: Option<f64>,
    /// 99th percentile of the long ones.
    pub long_p99_us: Option<f64>,
}

/// A layout, and when it preempts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Contender {
    layout: LayoutKind,
    /// `None`: to completion.
    quantum_us: Option<f64>,
    /// Requests staged at a worker of `threads`, the running one included.
    depth: usize,
    /// What idle loops of `symmetric` do for others.
    help: Help,
    /// Whether the dispatcher of `threads` runs requests when it has nothing else to do.
    works: bool,
    /// Whether the requests' code has probes.
    probes: Probes,
}

impl Contender {
    const fn symmetric(quantum_us: Option<f64>) -> Self {
        Self {
            layout: LayoutKind::Symmetric,
            quantum_us,
            depth: 1,
            help: Help::All,
            works: false,
            probes: Probes::All,
        }
    }

    const fn threads(quantum_us: Option<f64>, depth: usize) -> Self {
        Self {
            layout: LayoutKind::Threads,
            quantum_us,
            depth,
            help: Help::All,
            works: false,
            probes: Probes::All,
        }
    }

    /// Code that cannot be preempted.
    const fn plain() -> Self {
        Self {
            probes: Probes::None,
            ..Self::symmetric(None)
        }
    }

    /// As Concord: requests staged, and a dispatcher that works.
    const fn concord(quantum_us: f64) -> Self {
        Self {
            works: true,
            ..Self::threads(Some(quantum_us), 2)
        }
    }

    /// Loops that help no more than the loops of another system do.
    const fn helping(help: Help) -> Self {
        Self {
            help,
            ..Self::symmetric(None)
        }
    }

    fn name(&self) -> String {
        let layout = match self.layout {
            LayoutKind::Symmetric => SYMMETRIC,
            _ => THREADS,
        };
        let staged = match self.depth {
            1 => String::new(),
            depth => format!(", depth {depth}"),
        };
        match self.help {
            Help::None => return "IX: no help, to completion".to_owned(),
            Help::Polled => {
                return "ZygOS without interrupts: flows stolen, to completion".to_owned();
            }
            _ => {}
        }
        match self.quantum_us {
            Some(quantum) => {
                let works = if self.works {
                    ", dispatcher works (Concord)"
                } else {
                    ""
                };
                format!("{layout}, {quantum} us{staged}{works}")
            }
            None if self.probes == Probes::None => {
                format!("{layout}, to completion{staged}, plain code")
            }
            None => format!("{layout}, to completion{staged}"),
        }
    }

    fn workers(&self, cores: usize) -> usize {
        match self.layout {
            LayoutKind::Symmetric => cores,
            _ => cores - 1,
        }
    }

    /// The configuration for a batch of so many requests.
    fn config(&self, rig: &Rig, mix: &BenchMix, requests: usize) -> Config {
        let workers = self.workers(rig.cores.len());
        let mut config = (rig.bench.config())
            .workers(workers)
            .layout(self.layout)
            .queue(requests.max(1024))
            .class(
                mix.mix
                    .classes()
                    .iter()
                    .map(|class| ClassConfig::new(&class.name)),
            )
            .strict(true);
        config.depth = Some(self.depth);
        config.cores = CoresConfig::default();
        if self.layout == LayoutKind::Symmetric {
            config.cores = config.cores.workers(rig.cores.iter().copied());
        }
        config.preemption.mechanism = MechanismKind::Probe;
        config.help = self.help;
        config.dispatcher = DispatcherConfig::default().works(self.works);
        config.policy = match self.quantum_us {
            Some(quantum) => PolicyConfig::new(single_queue::REGISTERED).quantum_us(quantum),
            None if self.help == Help::Polled => PolicyConfig::new(stealing::REGISTERED),
            None => PolicyConfig::new(cfcfs::REGISTERED),
        };
        config
    }
}

/// What the contender of that name has of ZygOS.
const ZYGOS: &str = "As in ZygOS, idle loops steal flows whose requests their own loop has received, and requests run to completion. Other \
    than there, the loop that ran a request sends its reply, and no loop is interrupted for what it has not received.";

/// The contenders for capacity; staged, `threads` loses least. The third is what IX does on the
/// same loops, and the fourth a part of what ZygOS does: [`ZYGOS`] says which.
const CAPACITIES: [Contender; 5] = [
    Contender::symmetric(Some(5.0)),
    Contender::threads(Some(5.0), 2),
    Contender::helping(Help::None),
    Contender::helping(Help::Polled),
    Contender::concord(5.0),
];

/// The contenders that show the price of a preemption. What lies between two quanta is preemptions
/// alone; probes cost the same under both. The last one tells what probes and deadlines cost.
const PRICES: [Contender; 9] = [
    Contender::symmetric(None),
    Contender::symmetric(Some(50.0)),
    Contender::symmetric(Some(5.0)),
    Contender::symmetric(Some(2.0)),
    Contender::threads(None, 1),
    Contender::threads(Some(50.0), 1),
    Contender::threads(Some(5.0), 1),
    Contender::threads(Some(5.0), 2),
    Contender::plain(),
];

/// What bursts run on.
struct Rig {
    bench: Bench,
    cores: Vec<usize>,
}

impl Rig {
    fn serve_batch(&self, one: &Contender, mix: &BenchMix, seed: u64) -> Result<Batch> {
        let length = match mix.mix.name() {
            // The price takes time of its own.
            LONG => BATCH / 2,
            _ => BATCH,
        };
        let schedule = mix.arrivals(OFFERED, self.cores.len(), Length::lasting(length), seed)?;
        let arrivals = self.bench.plan(mix, &schedule, one.probes)?;
        let mut config = one.config(self, mix, arrivals.len());
        if mix.mix.name() == LONG {
            config = config.contexts(TURNS);
        }
        let outcome = self.bench.serve(config, &arrivals, PATIENCE)?;
        let answered = outcome.records.len();
        let all = arrivals.len();
        ensure!(
            answered == all,
            "{answered} of {all} requests were answered in time"
        );
        let first = outcome
            .records
            .iter()
            .map(|one| one.arrival_ns)
            .min()
            .unwrap_or(0);
        let last = outcome
            .records
            .iter()
            .map(|one| one.finish_ns)
            .max()
            .unwrap_or(0);
        let work: u64 = outcome.records.iter().map(|one| one.service_ns).sum();
        Ok(Batch {
            requests: all as u64,
            seconds: (last - first) as f64 / 1e9,
            work_seconds: work as f64 / 1e9,
            workers: one.workers(self.cores.len()) as u64,
            dispatcher_seconds: match one.layout {
                LayoutKind::Symmetric => 0.0,
                _ => outcome.dispatcher_busy.as_secs_f64(),
            },
            preemptions: outcome.served.iter().map(|served| served.preemptions).sum(),
        })
    }

    fn serve_open_loop(
        &self,
        one: &Contender,
        mix: &BenchMix,
        arrivals: &Arc<[Planned]>,
    ) -> Result<Latency> {
        let config = one.config(self, mix, arrivals.len());
        let outcome = self
            .bench
            .serve(config, arrivals, Duration::from_millis(200))?;
        if is_saturated(&outcome.counts) || outcome.records.is_empty() {
            return Ok(Latency {
                short_p99_us: None,
                long_p99_us: None,
            });
        }
        let summary = Summary::of(&mix.mix, &outcome.records)?;
        let p99 = |class| {
            summary
                .class(class)
                .map(|figures| figures.p99_ns as f64 / 1e3)
        };
        Ok(Latency {
            short_p99_us: p99(0),
            long_p99_us: p99(1),
        })
    }
}

/// How long an open loop lasts.
fn open_loop(session: &Session) -> Duration {
    session.length().min(Duration::from_millis(500))
}

/// About how long it takes.
pub fn duration(session: &Session) -> Duration {
    let batches = 2 * CAPACITIES.len() + ATTEMPTS as usize * PRICES.len();
    session.all(2 * BATCH + AROUND, batches)
        + session.all(open_loop(session) + AROUND, CAPACITIES.len())
}

/// Measures all of it.
///
/// # Errors
/// It was interrupted, or the bursts cannot be set up.
pub fn measure(session: &mut Session, bursts: &mut Bursts) -> Result<()> {
    let cores: Vec<usize> = session.cores.iter().map(|core| core.id).collect();
    let mechanisms = Mechanisms::find(allow_signals());
    // A batch keeps real-time threads busy for longer than it arrives for.
    let longest = (2 * BATCH).max(open_loop(session));
    let bench = permitted(session, &[], cores.len() - 1, mechanisms, longest)?;
    bursts.realtime = bench.realtime_priority.is_some();
    let names = ["fixed", "hi"].map(str::to_owned);
    let mut mixes = mixes_of(&names, &bench)?;
    mixes.push(BenchMix::all_alike(LONG, 500.0)?);
    let rig = Rig { bench, cores };
    for mix in &mixes[..2] {
        let name = mix.mix.name();
        let runs = batches(
            session,
            &rig,
            &format!("capacity, {name}"),
            &mut CAPACITIES.clone(),
            mix,
        )?;
        bursts.capacity.push(Batches {
            mix: name.to_owned(),
            runs,
        });
    }
    bursts.half = half(session, &rig, &mixes[1], bursts)?;
    bursts.preemptions = batches(session, &rig, "preemptions", &mut PRICES.clone(), &mixes[2])?;
    Ok(())
}

fn batches(
    session: &mut Session,
    rig: &Rig,
    point: &str,
    contenders: &mut [Contender],
    mix: &BenchMix,
) -> Result<Vec<Runs<Batch>>> {
    let each = match mix.mix.name() {
        LONG => ATTEMPTS * (2 * BATCH + AROUND),
        _ => 2 * BATCH + AROUND,
    };
    session.interleave(point, contenders, Contender::name, each, |one, seed| {
        let attempts = match mix.mix.name() {
            LONG => ATTEMPTS,
            _ => 1,
        };
        let served = (0..attempts).map(|_| rig.serve_batch(one, mix, seed));
        let served = served.collect::<Result<Vec<_>>>()?;
        Ok(served
            .into_iter()
            .min_by(|one, other| one.seconds.total_cmp(&other.seconds)))
    })
}

/// `hi` at half of what `threads` has just been found to do.
fn half(
    session: &mut Session,
    rig: &Rig,
    mix: &BenchMix,
    bursts: &Bursts,
) -> Result<Vec<Runs<Latency>>> {
    let threads = CAPACITIES[1].name();
    let of_mix = bursts.capacity.iter().find(|one| one.mix == mix.mix.name());
    let runs = of_mix.and_then(|one| one.runs.iter().find(|runs| runs.name == threads));
    let Some(rate) = runs.and_then(|runs| runs.spread(|one| Some(one.rate()))) else {
        session.notes.push(
            "Not measured: half of the capacity of the layout threads, which is unknown."
                .to_owned(),
        );
        return Ok(Vec::new());
    };
    let load = 0.5 * rate.median * mix.mix.mean_ns() / 1e9;
    let length = open_loop(session);
    let point = format!("{} at half of threads' capacity", mix.mix.name());
    session.interleave(
        &point,
        &mut CAPACITIES.clone(),
        Contender::name,
        length + AROUND,
        |one, seed| {
            let schedule = mix.arrivals(load, 1, Length::lasting(length), seed)?;
            rig.serve_open_loop(one, mix, &rig.bench.plan(mix, &schedule, Probes::All)?)
                .map(Some)
        },
    )
}

impl Batch {
    /// Requests a second.
    fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Time of all workers, for each second of work as calibrated.
    fn over_work(&self) -> f64 {
        self.seconds * self.workers as f64 / self.work_seconds
    }

    /// Time of all cores for each preemption that `rare`, of the same batch, does not have;
    /// microseconds. The dispatcher's part of it may run beside the workers.
    fn price_us(&self, rare: &Self) -> Option<f64> {
        let more = self
            .preemptions
            .checked_sub(rare.preemptions)
            .filter(|more| *more > 0)?;
        let longer = (self.seconds - rare.seconds) * self.workers as f64
            + (self.dispatcher_seconds - rare.dispatcher_seconds);
        Some(longer * 1e6 / more as f64)
    }
}

impl Bursts {
    fn of(&self, contender: &Contender) -> Option<&Runs<Batch>> {
        let name = contender.name();
        self.preemptions.iter().find(|runs| runs.name == name)
    }

    /// Time of a preemption under this contender, repetition by repetition, microseconds.
    fn prices(&self, contender: &Contender) -> Vec<Option<f64>> {
        let rare = Contender {
            quantum_us: Some(50.0),
            depth: 1,
            ..*contender
        };
        let (Some(often), Some(rare)) = (self.of(contender), self.of(&rare)) else {
            return Vec::new();
        };
        let price = |(often, rare): (&Option<Batch>, &Option<Batch>)| {
            often.as_ref()?.price_us(rare.as_ref()?)
        };
        often.runs.iter().zip(&rare.runs).map(price).collect()
    }

    /// The ratios, those with a goal and others, each with its target if it has one. `symmetric`
    /// served on so many cores.
    pub fn judge(&self, cores: usize) -> Vec<(Comparison, Option<Target>)> {
        let mut all = Vec::new();
        for batches in &self.capacity {
            if let [symmetric, threads, ..] = &batches.runs[..] {
                let (on_cores, goal) = capacity(cores);
                let what = format!("capacity, {}{on_cores}", batches.mix);
                let rate = |one: &Batch| Some(one.rate());
                all.push(symmetric.judge(threads, what.clone(), Some(goal), rate));
                if let Some(concord) = batches.runs.get(4) {
                    all.push(concord.judge(threads, what, None, rate));
                }
            }
        }
        if let [symmetric, threads, others @ ..] = &self.half[..] {
            let what = |of| format!("hi at half of threads' capacity: {of}");
            let short = |one: &Latency| one.short_p99_us;
            all.push(symmetric.judge(threads, what("short p99"), Some(HALF), short));
            all.push(symmetric.judge(threads, what("long p99"), None, |one| one.long_p99_us));
            for other in others {
                all.push(symmetric.judge(other, what("short p99"), None, short));
            }
        }
        let [_, rare, _, most, .., plain] = &PRICES;
        if let (Some(none), Some(most)) = (self.of(&PRICES[0]), self.of(most)) {
            let what = "capacity for long requests";
            all.push(most.judge(none, what, Some(KEPT), |one| Some(one.rate())));
        }
        if let (Some(rare), Some(plain)) = (self.of(rare), self.of(plain)) {
            let what = "time of the same work, with probes and deadlines / without";
            all.push(rare.judge(plain, what, Some(AS_PLAIN), |one| Some(one.seconds)));
        }
        all
    }

    /// The price of a preemption beside that under `threads`, each the median of all repetitions:
    /// to leave out those below nothing would leave out the cheap ones.
    fn price(&self) -> Target {
        let [_, _, often, .., unstaged, _, _] = &PRICES;
        let name = format!(
            "time of a preemption on all cores, medians: {} / {}",
            often.name(),
            unstaged.name()
        );
        let absent = Target::not_shown(&name, PRICE, "it was not measured");
        if self.preemptions.is_empty() {
            return absent;
        }
        let prices = [often, unstaged].map(|one| Runs::of(one.name(), self.prices(one)));
        let [Some(own), Some(central)] =
            prices.each_ref().map(|runs| runs.spread(|one| Some(*one)))
        else {
            return absent.missed("no repetition of one of them has a price");
        };
        let fewest = prices.each_ref().map(|runs| runs.measured().count());
        let fewest = fewest.into_iter().min().unwrap_or(0);
        if central.median <= 0.0 {
            return absent.missed("the price under threads is below nothing, which is noise");
        }
        let over = |price| price / central.median;
        let figure = Spread {
            median: over(own.median),
            min: over(own.min),
            max: over(own.max),
        };
        let target = Target::measured(name, PRICE, figure);
        match fewest < PRICED {
            true => target.missed(format!(
                "{fewest} repetitions have a price, of the {PRICED} that it takes"
            )),
            false => target.needs_most_of(&prices[0], |one| Some(*one)),
        }
    }

    /// A target for a figure of batches of long requests.
    fn of_batches(
        &self,
        what: &str,
        contender: &Contender,
        goal: Goal,
        figure: impl Fn(&Batch) -> f64,
    ) -> Target {
        let name = format!("{what}: {}", contender.name());
        let Some(runs) = self.of(contender) else {
            return Target::not_shown(name, goal, "it was not measured");
        };
        let figure = |one: &Batch| Some(figure(one));
        Target::judged(name, goal, runs.spread(figure), "").needs_most_of(runs, figure)
    }

    /// The targets that are no ratios of pairs: the price of a preemption, and the bench's checks
    /// of itself.
    pub fn targets(&self) -> Vec<Target> {
        let [symmetric, _, _, most, threads, ..] = &PRICES;
        let calibrated = [symmetric, threads].map(|one| {
            let what = "worker time / work as calibrated";
            self.of_batches(what, one, AS_CALIBRATED, Batch::over_work)
        });
        let what = "preemptions / work over the quantum";
        let taken = self.of_batches(what, most, KEPT, |one| one.taken(2e-6));
        let priced = [self.price()].into_iter();
        priced.chain(calibrated).chain([taken]).collect()
    }

    /// The tables.
    pub fn sections(&self) -> Vec<Section> {
        let under = if self.realtime {
            "SCHED_FIFO"
        } else {
            "SCHED_OTHER"
        };
        let introduction = format!(
            "Under {under}, a core for each thread: {SYMMETRIC} serves on all of them, {THREADS} dispatches on one. Batches are offered at \
             {OFFERED} of what all cores could do, until they have taken {BATCH:?} to arrive; the rate is that of the whole batch, to its last \
             request."
        );
        vec![
            Section {
                heading: "Capacity".to_owned(),
                introduction: Some(introduction),
                notes: vec![ZYGOS.to_owned()],
                tables: [self.capacities(), self.halves()]
                    .into_iter()
                    .flatten()
                    .collect(),
                ..Section::default()
            },
            Section {
                heading: "Preemptions".to_owned(),
                introduction: Some(format!(
                    "Requests of 500 µs that are all alike, {TURNS} at a time in turns. The price is the time of all cores beyond that of \
                     the same batch under 50 µs, for each preemption more: the workers', and what the dispatcher was busy for. Plain code has \
                     no probes. Each figure is of the quickest of {ATTEMPTS} batches; the others were disturbed."
                )),
                tables: self.priced().into_iter().collect(),
                ..Section::default()
            },
        ]
    }

    fn capacities(&self) -> Option<Table> {
        let mut table = Table::new(
            "batches, requests a second; medians",
            ["", "requests/s", "spread", "preemptions a request"],
        );
        for batches in &self.capacity {
            for runs in &batches.runs {
                let each = runs.spread(|one| Some(one.preemptions as f64 / one.requests as f64));
                let [rate, spread] = cells(runs.spread(|one| Some(one.rate())));
                let name = format!("{}: {}", batches.mix, runs.name);
                table.push([name, rate, spread, cells(each)[0].clone()]);
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn halves(&self) -> Option<Table> {
        let mut table = Table::new(
            "hi at half of threads' capacity: p99 latency, µs; medians",
            ["", "short", "spread", "long", "spread"],
        );
        for runs in &self.half {
            let [short, short_spread] = cells(runs.spread(|one| one.short_p99_us));
            let [long, long_spread] = cells(runs.spread(|one| one.long_p99_us));
            table.push([runs.name.clone(), short, short_spread, long, long_spread]);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn priced(&self) -> Option<Table> {
        let mut table = Table::new(
            "batches of long requests; medians",
            [
                "",
                "worker time / work",
                "spread",
                "preemptions a request",
                "a preemption, µs",
                "spread",
            ],
        );
        for contender in &PRICES {
            let Some(runs) = self.of(contender) else {
                continue;
            };
            let [over, over_spread] = cells(runs.spread(|one| Some(one.over_work())));
            let each = runs.spread(|one| Some(one.preemptions as f64 / one.requests as f64));
            let prices: Vec<f64> = self.prices(contender).into_iter().flatten().collect();
            let [price, price_spread] = cells(Spread::of(&prices));
            let each = cells(each)[0].clone();
            table.push([
                contender.name(),
                over,
                over_spread,
                each,
                price,
                price_spread,
            ]);
        }
        (!table.rows.is_empty()).then_some(table)
    }
}

impl Batch {
    /// Preemptions over the quanta, in seconds, that its work has.
    fn taken(&self, quantum: f64) -> f64 {
        self.preemptions as f64 * quantum / self.work_seconds
    }
}

/// What is wanted of `symmetric`'s capacity beside `threads`, which has one core less to serve
/// with, and what the name says of it on more cores than the two that the goal was set on.
fn capacity(cores: usize) -> (String, Goal) {
    let fewer = cores.max(2) - 1;
    let alone = (fewer + 1) as f64 / fewer as f64;
    let goal = Goal::AtLeast((100.0 * OF_THE_CORES * alone).round() / 100.0);
    match fewer {
        1 => (String::new(), goal),
        _ => (
            format!(" ({OF_THE_CORES} of {cores} cores / {fewer})"),
            goal,
        ),
    }
}

/// Median, and lowest and highest.
fn cells(spread: Option<Spread>) -> [String; 2] {
    spread.map_or_else(
        || ["-".to_owned(), String::new()],
        |spread| {
            let range = format!("{}-{}", figure(spread.min), figure(spread.max));
            [figure(spread.median), range]
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict::{self, Met, Missed, NotShown};

    fn batch(contender: &Contender, seconds: f64, preemptions: u64) -> Runs<Batch> {
        let batch = Batch {
            requests: 400,
            seconds,
            work_seconds: 0.2,
            workers: contender.workers(2) as u64,
            dispatcher_seconds: 0.0,
            preemptions,
        };
        Runs {
            name: contender.name(),
            runs: vec![Some(batch); 3],
        }
    }

    /// The verdicts of the targets that are ratios, on two cores.
    fn judged(bursts: &Bursts) -> Vec<Verdict> {
        let targets = bursts.judge(2).into_iter().filter_map(|(_, target)| target);
        targets.map(|target| target.verdict).collect()
    }

    fn bursts() -> Bursts {
        let [to_completion, rare, often, most, ..] = &PRICES;
        let (central_rare, central) = (&PRICES[5], &PRICES[6]);
        Bursts {
            preemptions: vec![
                batch(to_completion, 0.100, 0),
                batch(rare, 0.101, 4_000),
                // 36,000 more take two loops 2 ms.
                batch(often, 0.103, 40_000),
                batch(most, 0.105, 100_000),
                batch(central_rare, 0.201, 4_000),
                // 36,000 more take one worker 18 ms.
                batch(central, 0.219, 40_000),
                batch(&PRICES[8], 0.099, 0),
            ],
            ..Bursts::default()
        }
    }

    #[test]
    fn a_price_is_what_more_preemptions_take_of_all_workers() {
        let bursts = bursts();
        let price = |contender| bursts.prices(contender)[0].unwrap();
        assert!((price(&PRICES[2]) - 0.111).abs() < 0.001);
        assert!((price(&PRICES[6]) - 0.5).abs() < 0.001);
        assert_eq!(bursts.prices(&PRICES[7]), [], "not measured");
        assert_eq!(judged(&bursts), [Met, Met]);
    }

    #[test]
    fn the_price_is_judged_by_the_medians_of_all_repetitions() {
        // 36,000 preemptions more take two loops 2 ms in some repetitions, and 8 ms in others; in
        // one they save some time.
        let bursts = |seconds: &[f64]| {
            let mut bursts = bursts();
            let one = bursts.preemptions[2].runs[0].unwrap();
            let batch = |seconds: &f64| {
                Some(Batch {
                    seconds: *seconds,
                    ..one
                })
            };
            bursts.preemptions[2].runs = seconds.iter().map(batch).collect();
            for rare in [1, 4, 5] {
                let one = bursts.preemptions[rare].runs[0];
                bursts.preemptions[rare].runs = vec![one; seconds.len()];
            }
            bursts.price()
        };
        let (cheap, dear, below) = (0.103, 0.109, 0.100);
        assert_eq!(bursts(&[cheap, cheap, dear, dear, dear]).verdict, Missed);
        let met = bursts(&[below, cheap, cheap, dear, dear]);
        assert_eq!(met.verdict, Met, "{met:?}");
        assert!(met.spread.unwrap()[0] < 0.0, "{met:?}");
        // Two repetitions are too few, whatever they are.
        assert_eq!(bursts(&[cheap; 3]).verdict, Met);
        assert_eq!(bursts(&[cheap; 2]).verdict, Missed);
        assert_eq!(bursts(&[]).verdict, Missed);
        assert_eq!(Bursts::default().price().verdict, NotShown);
    }

    #[test]
    fn capacity_is_wanted_of_as_many_cores_as_there_are() {
        assert_eq!(capacity(2), (String::new(), Goal::AtLeast(1.8)));
        let (name, goal) = capacity(4);
        assert_eq!(
            (&*name, goal),
            (" (0.9 of 4 cores / 3)", Goal::AtLeast(1.2))
        );
        let runs = [(0, 0.3), (1, 0.4)];
        let runs = runs.map(|(which, seconds)| batch(&CAPACITIES[which], seconds, 0));
        let bursts = Bursts {
            capacity: vec![Batches {
                mix: "fixed".to_owned(),
                runs: runs.to_vec(),
            }],
            ..Bursts::default()
        };
        let verdict = |cores| bursts.judge(cores)[0].1.clone().unwrap().verdict;
        assert_eq!([2, 4].map(verdict), [Missed, Met]);
    }

    #[test]
    fn what_is_saturated_in_most_repetitions_misses_its_target() {
        let with = |p99: [Option<f64>; 5], other: Option<f64>| {
            let latency = |short_p99_us| {
                Some(Latency {
                    short_p99_us,
                    long_p99_us: None,
                })
            };
            let half = vec![
                Runs::of(CAPACITIES[0].name(), p99.map(latency)),
                Runs::of(CAPACITIES[1].name(), [other; 5].map(latency)),
            ];
            judged(&Bursts {
                half,
                ..Bursts::default()
            })
        };
        let good = Some(1.0);
        assert_eq!(with([good, good, good, None, None], good), [Met]);
        assert_eq!(with([good, None, None, None, None], good), [Missed]);
        assert_eq!(with([None; 5], good), [Missed]);
        assert_eq!(with([good; 5], None), [NotShown]);
    }

    #[test]
    fn a_quantum_that_is_not_kept_is_told() {
        let mut bursts = bursts();
        let verdicts = |bursts: &Bursts| -> Vec<Verdict> {
            bursts
                .targets()
                .iter()
                .map(|target| target.verdict)
                .collect()
        };
        assert_eq!(verdicts(&bursts), [Met, Met, NotShown, Met]);
        // As many as a quantum of 5 us makes.
        bursts.preemptions[3] = batch(&PRICES[3], 0.103, 40_000);
        assert_eq!(verdicts(&bursts), [Met, Met, NotShown, Missed]);
        bursts.preemptions[3].runs = vec![None; 3];
        assert_eq!(verdicts(&bursts), [Met, Met, NotShown, Missed]);
    }

    #[test]
    fn names_tell_contenders_apart() {
        for contenders in [&PRICES[..], &CAPACITIES[..]] {
            let names: std::collections::BTreeSet<_> =
                contenders.iter().map(Contender::name).collect();
            assert_eq!(names.len(), contenders.len(), "{names:?}");
        }
    }
}
