//! `cargo xtask bench`: contenders interleaved over the same arrivals, on this machine.
//!
//! In-process and open loop: the dispatcher's core injects arrivals that were drawn ahead of time at their intended
//! moments, worker cores run real contexts. Every contender gets the same arrivals (same seed), burst after burst in
//! turn, so that a drift of the machine's speed meets all alike. Figures are medians over the repetitions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use shinjuku_examples::store::Store;
use shinjuku_preempt::{Clock, HardPreemption, Realtime};
use shinjuku_workload::repeat::{PairedRatio, median};
use shinjuku_workload::{Length, Summary, lindley};

use crate::machine::Machine;
use crate::report::progress::Progress;
use crate::report::results::{Class, FcfsCheck, Paired, Results, SCHEMA, Settings};
use crate::report::{self, stamp};

mod burst;
mod contender;
mod costs;
mod injector;
mod mixes;
mod point;
mod simulated;
mod work;

use burst::Bench;
use contender::Contender;
use mixes::BenchMix;
use point::Point;

/// Keys of the store, as in examples/store.
const STORE_KEYS: u64 = 100_000;
/// Load at which each class runs alone to find its SLO.
const SLO_LOAD: f64 = 0.4;
/// Priority of the measured threads under SCHED_FIFO.
const PRIORITY: i32 = 60;
/// Confidence of the paired bounds.
const CONFIDENCE: f64 = 0.95;
/// What a burst costs beside its length: starting threads, ending them, letting real-time throttling forget.
const AROUND: Duration = Duration::from_millis(120);

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
pub struct Options {
    /// hi, mid, fixed and store at three loads: under three minutes.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every mix at every load, more and longer repetitions: over an hour.
    #[arg(long)]
    full: bool,
    /// Only this mix (may be given several times).
    #[arg(long, value_name = "NAME")]
    mix: Vec<String>,
    /// Only this load in per cent (may be given several times).
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=200))]
    load: Vec<u32>,
    /// Only contenders whose name contains this, besides c-FCFS (may be given several times).
    #[arg(long, value_name = "TEXT")]
    contender: Vec<String>,
    /// Repetitions of each point.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Seconds of one repetition.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// First seed; repetitions count up from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave the cost table out.
    #[arg(long)]
    no_costs: bool,
    /// Leave the sweep over quanta out.
    #[arg(long)]
    no_sweep: bool,
    /// Also write results.json here.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// What is measured.
struct Scope {
    mode: &'static str,
    mixes: Vec<String>,
    loads: Vec<f64>,
    seeds: Vec<u64>,
    length: Duration,
    sweep: bool,
    only: Vec<String>,
}

impl Scope {
    fn of(options: &Options) -> Result<Self> {
        let (mode, mixes, loads, repetitions, seconds): (_, &[&str], Vec<u32>, _, _) =
            if options.full {
                (
                    "full",
                    &mixes::NAMES,
                    (1..=9).map(|tenth| tenth * 10).collect(),
                    7,
                    0.6,
                )
            } else if options.quick {
                (
                    "quick",
                    &["hi", "mid", "fixed", "store"],
                    vec![40, 60, 80],
                    3,
                    0.35,
                )
            } else {
                ("default", &mixes::NAMES, vec![20, 40, 60, 80], 5, 0.4)
            };
        let mixes = if options.mix.is_empty() {
            mixes.iter().map(|&name| name.to_owned()).collect()
        } else {
            options.mix.clone()
        };
        for name in &mixes {
            ensure!(
                mixes::NAMES.contains(&name.as_str()),
                "there is no mix \"{name}\"; there are {}",
                mixes::NAMES.join(", ")
            );
        }
        let loads = if options.load.is_empty() {
            loads
        } else {
            options.load.clone()
        };
        let seconds = options.seconds.unwrap_or(seconds);
        ensure!(
            (0.01..=10.0).contains(&seconds),
            "--seconds is {seconds}, but must be 0.01 to 10"
        );
        let repetitions = u64::from(options.repetitions.unwrap_or(repetitions));
        let custom = !options.mix.is_empty() || !options.load.is_empty();
        Ok(Self {
            mode: if custom { "custom" } else { mode },
            mixes,
            loads: loads
                .iter()
                .map(|&percent| f64::from(percent) / 100.0)
                .collect(),
            seeds: (options.seed..options.seed + repetitions).collect(),
            length: Duration::from_secs_f64(seconds),
            sweep: !options.no_sweep,
            only: options.contender.clone(),
        })
    }

    /// Who competes on a mix.
    fn contenders(&self, mix: &BenchMix, workers: usize) -> Vec<Contender> {
        let wanted = |one: &Contender| {
            let name = format!("{} {}", one.policy_name(), one.mechanism_name());
            self.only.is_empty()
                || *one == Contender::FCFS
                || self.only.iter().any(|text| name.contains(text))
        };
        mix.contenders(workers).into_iter().filter(wanted).collect()
    }

    fn per_burst(&self) -> Duration {
        self.length + AROUND
    }
}

/// Runs the bench and publishes what it found.
///
/// # Errors
/// Where nothing can be measured, and where results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let scope = Scope::of(options)?;
    let cores =
        core_affinity::get_core_ids().context("the cores this process may use cannot be told")?;
    if cores.len() < 2 {
        bail!(
            "the bench needs two cores, one for the dispatcher and one for a worker; this process may use {}",
            cores.len()
        );
    }
    let workers = cores.len() - 1;
    let fifo = Realtime::enter(PRIORITY);
    let mut notes = Vec::new();
    if let Err(error) = &fifo {
        notes.push(format!("Expect noise: {error}"));
    }
    let realtime_priority = fifo.is_ok().then_some(PRIORITY);
    drop(fifo);
    if workers == 1 {
        notes.push(
            "With one worker d-FCFS and work stealing are the same as c-FCFS, so they are left out.".to_owned(),
        );
    }
    let needs_store = scope.mixes.iter().any(|name| name.starts_with("store"));
    let store = if needs_store {
        Some(Arc::new(open_store()?))
    } else {
        None
    };
    let bench = Bench {
        workers,
        realtime_priority,
        token: allow_signals(),
        store,
    };

    let started = Instant::now();
    let nanos_per_step = on_worker_core(cores[1], || {
        work::nanos_per_step(Clock::get().cycles_per_nano())
    })?;
    let all: Vec<BenchMix> = scope
        .mixes
        .iter()
        .map(|name| match (name.as_str(), &bench.store) {
            ("store", Some(store)) => {
                on_worker_core(cores[1], || BenchMix::store(name, 0.005, store))?
            }
            ("store-50", Some(store)) => {
                on_worker_core(cores[1], || BenchMix::store(name, 0.5, store))?
            }
            _ => BenchMix::spinning(name, nanos_per_step),
        })
        .collect::<Result<_>>()?;

    let mut results = Results {
        schema: SCHEMA,
        stamp: stamp::now(),
        commit: crate::machine::commit(),
        machine: Machine::detect(realtime_priority.is_some()),
        settings: Settings {
            mode: scope.mode.to_owned(),
            command: std::env::args()
                .skip(1)
                .fold("cargo xtask".to_owned(), |line, word| line + " " + &word),
            workers: workers as u32,
            repetitions: scope.seeds.len() as u32,
            seconds_per_point: scope.length.as_secs_f64(),
            seeds: scope.seeds.clone(),
            scheduler: if realtime_priority.is_some() {
                "SCHED_FIFO"
            } else {
                "SCHED_OTHER"
            }
            .to_owned(),
            slo_us: BTreeMap::new(),
        },
        notes,
        costs: BTreeMap::new(),
        mixes: all
            .iter()
            .map(|mix| (mix.mix.name().to_owned(), mix.description()))
            .collect(),
        runs: Vec::new(),
        quantum_sweep: Vec::new(),
        fcfs_check: Vec::new(),
        paired: Vec::new(),
    };
    let bursts: usize = all
        .iter()
        .map(|mix| scope.contenders(mix, workers).len())
        .sum::<usize>()
        * scope.loads.len()
        * scope.seeds.len();
    let mut progress = Progress::new(scope.per_burst() * bursts as u32);
    progress.say(&format!(
        "{}; {bursts} bursts of {:?}",
        results.machine.summary(),
        scope.length
    ));
    for note in &results.notes {
        progress.say(note);
    }
    if !options.no_costs {
        progress.begin("costs of single operations");
        let quick = !options.full;
        let costs = costs::measure(&bench, (cores[0].id, cores[1].id), quick, |line| {
            eprintln!("{line}")
        })?;
        results.costs = costs.nanos;
        results
            .costs
            .extend(simulated::costs_by_probe(&results.costs));
        results.notes.extend(costs.notes);
    }
    for mix in &all {
        measure_mix(&bench, &scope, mix, &mut results, &mut progress)?;
    }
    if scope.sweep {
        sweep(&bench, &scope, &all, &mut results, &mut progress)?;
    }
    progress.finish();
    results.notes.push(format!(
        "The bench took {:.0} s.",
        started.elapsed().as_secs_f64()
    ));
    results.check()?;
    if let Some(path) = &options.json {
        results.write(path)?;
    }
    report::publish(&results, &report::directory(&results.stamp))?;
    Ok(ExitCode::SUCCESS)
}

/// All loads of one mix.
fn measure_mix(
    bench: &Bench,
    scope: &Scope,
    mix: &BenchMix,
    results: &mut Results,
    progress: &mut Progress,
) -> Result<()> {
    let name = mix.mix.name();
    let contenders = scope.contenders(mix, bench.workers);
    let slos_us = if contenders.iter().any(Contender::wants_slos) {
        progress.begin(&format!("{name}: SLOs, each class alone"));
        slos(bench, scope, mix)?
    } else {
        Vec::new()
    };
    if let (Some(first), Some(last)) = (slos_us.first(), slos_us.last()) {
        let both = BTreeMap::from([(Class::Short, *first), (Class::Long, *last)]);
        results.settings.slo_us.insert(name.to_owned(), both);
    }
    let leading = results.leading_class(name);
    for &load in &scope.loads {
        let mut points: Vec<Point> = contenders.iter().map(|_| Point::default()).collect();
        let mut checks = Vec::new();
        for &seed in &scope.seeds {
            let schedule =
                mix.arrivals(load, bench.workers, Length::lasting(scope.length), seed)?;
            for (contender, point) in contenders.iter().zip(&mut points) {
                progress.begin(&format!(
                    "{name} {:.0} %: {} {} seed {seed}",
                    load * 100.0,
                    contender.policy_name(),
                    contender.mechanism_name()
                ));
                let arrivals = mix.plan(&schedule, contender.probes);
                let outcome =
                    bench.burst(contender, &arrivals, mix.mix.classes().len(), &slos_us)?;
                if *contender == Contender::FCFS
                    && !mix.is_real_code()
                    && !outcome.records.is_empty()
                {
                    let computed = lindley::records(schedule.arrivals(), bench.workers);
                    checks.push((
                        Summary::of(&mix.mix, &outcome.records)?,
                        Summary::of(&mix.mix, &computed)?,
                    ));
                }
                point.add(mix, outcome)?;
                progress.end(scope.per_burst());
            }
        }
        for (contender, point) in contenders.iter().zip(&points) {
            let mut runs = point.runs(mix, load, contender);
            simulated::complete(
                &mut runs,
                mix,
                contender,
                &slos_us,
                bench.workers,
                &results.costs,
            )?;
            results.runs.extend(runs);
        }
        results.fcfs_check.extend(check_fcfs(mix, load, &checks));
        results
            .paired
            .extend(pair(mix, load, leading, &contenders, &points));
    }
    Ok(())
}

/// SLO of each class, us: its p99 alone under SQ (the paper's rule, section 5.2).
fn slos(bench: &Bench, scope: &Scope, mix: &BenchMix) -> Result<Vec<f64>> {
    let contender = mix
        .contenders(bench.workers)
        .into_iter()
        .find(|one| one.policy == shinjuku::PolicyKind::CPreSq)
        .context("SQ competes on every mix")?;
    let mut slos = Vec::new();
    for (at, class) in mix.mix.classes().iter().enumerate() {
        // A second class of no weight keeps the class's number, so that its work stays its own.
        let alone = mix.with_only(at)?;
        let schedule = alone.arrivals(
            SLO_LOAD,
            bench.workers,
            Length::lasting(scope.length),
            scope.seeds[0],
        )?;
        let arrivals = alone.plan(&schedule, contender.probes);
        let outcome = bench.burst(&contender, &arrivals, mix.mix.classes().len(), &[])?;
        let summary = Summary::of(&mix.mix, &outcome.records)
            .with_context(|| format!("{} alone finished nothing", class.name))?;
        slos.push(summary.all.p99_ns as f64 / 1e3);
    }
    Ok(slos)
}

/// c-FCFS as measured beside the recursion over the same arrivals.
fn check_fcfs(mix: &BenchMix, load: f64, checks: &[(Summary, Summary)]) -> Option<FcfsCheck> {
    let p99 = |which: fn(&(Summary, Summary)) -> &Summary| {
        let all: Vec<f64> = checks
            .iter()
            .map(|pair| which(pair).all.p99_ns as f64 / 1e3)
            .collect();
        median(&all)
    };
    Some(FcfsCheck {
        mix: mix.mix.name().to_owned(),
        load,
        class: Class::All,
        measured_p99_us: p99(|pair| &pair.0)?,
        lindley_p99_us: p99(|pair| &pair.1)?,
    })
}

/// Every contender against c-FCFS, seed by seed.
fn pair(
    mix: &BenchMix,
    load: f64,
    class: Class,
    contenders: &[Contender],
    points: &[Point],
) -> Vec<Paired> {
    let Some(base) = contenders.iter().position(|one| *one == Contender::FCFS) else {
        return Vec::new();
    };
    let against = points[base].p99s(mix, class);
    let named = |at: usize| {
        points[at]
            .runs(mix, load, &contenders[at])
            .first()
            .map(|run| run.contender())
    };
    (0..contenders.len())
        .filter(|&at| at != base)
        .filter_map(|at| {
            let own = points[at].p99s(mix, class);
            let pairs: Vec<(f64, f64)> = own.iter().copied().zip(against.iter().copied()).collect();
            let ratio = PairedRatio::of(&pairs, CONFIDENCE)?;
            Some(Paired {
                mix: mix.mix.name().to_owned(),
                load,
                class,
                contender: named(at)?,
                against: named(base)?,
                pairs: pairs.len() as u32,
                ratio: ratio.ratio.median,
                // With too few pairs for a bound of that confidence, the range seen.
                ratio_low: ratio.lower.unwrap_or(ratio.ratio.min),
                ratio_high: ratio.upper.unwrap_or(ratio.ratio.max),
            })
        })
        .collect()
}

/// Figure 7a of the paper: p99 over the quantum, on the most dispersed mix measured.
fn sweep(
    bench: &Bench,
    scope: &Scope,
    all: &[BenchMix],
    results: &mut Results,
    progress: &mut Progress,
) -> Result<()> {
    const LOAD: f64 = 0.5;
    const QUANTA_US: [f64; 7] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];
    let Some(mix) = all.iter().find(|mix| mix.mix.name() == "hi") else {
        return Ok(());
    };
    let contenders: Vec<Contender> = QUANTA_US
        .iter()
        .flat_map(|&quantum| [Contender::probe(quantum), Contender::signal(quantum)])
        .collect();
    let mut points: Vec<Point> = contenders.iter().map(|_| Point::default()).collect();
    let seeds = &scope.seeds[..scope.seeds.len().min(3)];
    for &seed in seeds {
        let schedule =
            mix.arrivals(LOAD, bench.workers, Length::lasting(scope.length / 2), seed)?;
        for (contender, point) in contenders.iter().zip(&mut points) {
            progress.begin(&format!(
                "quantum {} us, {}",
                contender.quantum_us.unwrap_or(0.0),
                contender.mechanism_name()
            ));
            let arrivals = mix.plan(&schedule, contender.probes);
            point.add(
                mix,
                bench.burst(contender, &arrivals, mix.mix.classes().len(), &[])?,
            )?;
        }
    }
    for (contender, point) in contenders.iter().zip(&points) {
        results
            .quantum_sweep
            .extend(point.runs(mix, LOAD, contender));
    }
    Ok(())
}

/// The one place of this package that may promise what the compiler cannot check.
#[allow(unsafe_code)]
fn allow_signals() -> HardPreemption {
    // SAFETY: the bench's handlers multiply, or read a redb file through memory it owns; neither relies on the OS
    // thread's identity, on priority inheritance, or on system calls that never answer EINTR.
    unsafe { HardPreemption::allow() }
}

fn open_store() -> Result<Store> {
    let path = crate::paths::target_dir().join("bench").join("store.redb");
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    Store::open_or_build(&path, STORE_KEYS)
        .with_context(|| format!("opening the store in {}", path.display()))
}

/// Runs `body` where the first worker will run, so that what it times is timed there.
fn on_worker_core<Out: Send>(
    core: core_affinity::CoreId,
    body: impl FnOnce() -> Out + Send,
) -> Result<Out> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                core_affinity::set_for_current(core);
                body()
            })
            .join()
    })
    .map_err(|_| anyhow::anyhow!("timing the work failed"))
}
