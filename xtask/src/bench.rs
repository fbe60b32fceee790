//! `cargo xtask bench`: contenders interleaved over the same arrivals, on this machine.
//!
//! In-process and open loop: the dispatcher's core injects arrivals that were drawn ahead of time
//! at their intended moments, worker cores run real contexts. Every contender gets the same
//! arrivals (same seed), burst after burst in turn, so that a drift of the machine's speed meets
//! all alike. Figures are medians over the repetitions.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use core_affinity::CoreId;
use shinjuku_examples::store::Store;
use shinjuku_examples::work::steps_per_nano;
use shinjuku_preempt::{HardPreemption, Realtime};
use shinjuku_workload::Length;

use crate::machine::{self, Machine};
use crate::report::progress::Progress;
use crate::report::results::{Results, SCHEMA, Settings, distinct};
use crate::report::{self, stamp};

mod baseline;
mod burst;
mod calibration;
mod contender;
mod costs;
pub mod dataplane;
mod injector;
pub mod kv;
mod mechanisms;
mod mixes;
mod paired;
mod point;
mod saturation;
mod scope;
mod simulated;
mod slo;
mod stalls;
mod sweep;
mod throttling;
mod work;

use burst::Bench;
use contender::Contender;
use mechanisms::Mechanisms;
use mixes::BenchMix;
use point::Point;
pub use scope::Options;
use scope::Scope;
use stalls::Stalls;
use throttling::Throttling;

/// Keys of the store, as in examples/store.
const STORE_KEYS: u64 = 100_000;
/// Priority of the measured threads under SCHED_FIFO.
const PRIORITY: i32 = 60;

/// Runs the bench and publishes what it found.
///
/// # Errors
/// Where nothing can be measured, and where results cannot be written: the latter before anything
/// is measured, as far as it can be told.
pub fn run(options: &Options) -> Result<ExitCode> {
    match &options.of {
        Some(scope::Of::Kv(options)) => return kv::run(options),
        Some(scope::Of::Dataplane(options)) => return dataplane::run(options),
        None => {}
    }
    let started = Instant::now();
    let stolen_before = machine::stolen_ms();
    let cores =
        core_affinity::get_core_ids().context("the cores this process may use cannot be told")?;
    if cores.len() < 2 {
        bail!(
            "the bench needs two cores, one for the dispatcher and one for a worker; this process may use {}",
            cores.len()
        );
    }
    let mechanisms = Mechanisms::find(allow_signals());
    let scope = Scope::of(options, cores.len() - 1, &mechanisms)?;
    let stamp = stamp::now();
    let directory = report::directory(&stamp);
    reserve(&directory, options.json.as_deref())?;

    let mut notes = Vec::new();
    let bench = prepare(&scope, cores.len() - 1, mechanisms, &mut notes)?;
    let all = mixes_of(&scope, &bench, cores[1])?;
    let competing = all
        .iter()
        .flat_map(|mix| scope.contenders(mix, bench.workers, &bench.mechanisms));
    notes.extend(bench.mechanisms.lines(&competing.collect::<Vec<_>>()));
    let mut results = Results {
        schema: SCHEMA,
        stamp,
        commit: crate::machine::commit(),
        machine: Machine::detect(bench.realtime_priority.is_some()),
        stalls: None,
        settings: settings(&scope, &bench),
        notes,
        costs: BTreeMap::new(),
        cost_details: BTreeMap::new(),
        mixes: all
            .iter()
            .map(|mix| (mix.mix.name().to_owned(), mix.description()))
            .collect(),
        runs: Vec::new(),
        quantum_sweep: Vec::new(),
        fcfs_check: Vec::new(),
        paired: Vec::new(),
    };
    let used = &cores[..=bench.workers];
    let measured = measure(options, &scope, &bench, &all, used, &mut results);
    results.notes.extend(calibration::note(&results));
    results.notes.extend(deliveries(&results));
    if let Err(error) = &measured {
        results
            .notes
            .push(format!("The bench ended early: {error:#}"));
    }
    results.notes.push(format!(
        "The bench took {:.0} s.",
        started.elapsed().as_secs_f64()
    ));
    if let Some(stolen) = machine::stolen_ms()
        .zip(stolen_before)
        .map(|(now, before)| now - before)
        && stolen > 0
    {
        results.notes.push(format!(
            "The hypervisor took {stolen} ms from the cores meanwhile: bursts it fell into stand out in the spreads."
        ));
    }
    report::publish(&results, &directory)?;
    if let Some(path) = &options.json {
        results.write(path)?;
    }
    measured?;
    Ok(ExitCode::SUCCESS)
}

/// How interrupts came in the runs, where that is counted.
fn deliveries(results: &Results) -> Option<String> {
    let counted = distinct(results.runs.iter().filter_map(|run| run.delivery.clone()));
    (!counted.is_empty()).then(|| {
        format!(
            "Interrupts in guest mode, by the kernel's modules and counters in the runs: {}.",
            counted.join("; ")
        )
    })
}

/// Makes sure that results can be written, before minutes are spent on them. What is in `json`
/// stays until there is better.
fn reserve(directory: &Path, json: Option<&Path>) -> Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    if let Some(path) = json {
        (OpenOptions::new().create(true).append(true).open(path))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Finds out what is permitted here, and opens what the mixes need.
fn prepare(
    scope: &Scope,
    workers: usize,
    mechanisms: Mechanisms,
    notes: &mut Vec<String>,
) -> Result<Bench> {
    let fifo = Realtime::enter(PRIORITY);
    if let Err(error) = &fifo {
        notes.push(format!("Expect noise: {error}"));
    }
    let realtime_priority = fifo.is_ok().then_some(PRIORITY);
    drop(fifo);
    let throttling = realtime_priority.and_then(|_| Throttling::in_force());
    if let Some(throttling) = throttling {
        throttling.check(scope.length)?;
    }
    if workers == 1 {
        notes.push(
            "With one worker d-FCFS and work stealing are the same as c-FCFS, so they are left out.".to_owned(),
        );
    }
    let needs_store = scope.mixes.iter().any(|name| name.starts_with("store"));
    let store = needs_store.then(open_store).transpose()?.map(Arc::new);
    Ok(Bench {
        workers,
        realtime_priority,
        token: allow_signals(),
        mechanisms,
        store,
        throttling,
        ended: Cell::new(None),
    })
}

/// The mixes, with their work timed where the first worker will run.
fn mixes_of(scope: &Scope, bench: &Bench, core: CoreId) -> Result<Vec<BenchMix>> {
    let nanos_per_step = on_worker_core(core, || 1.0 / steps_per_nano())?;
    let mix = |name: &String| match (name.as_str(), &bench.store) {
        ("store", Some(store)) => on_worker_core(core, || BenchMix::store(name, 0.005, store))?,
        ("store-50", Some(store)) => on_worker_core(core, || BenchMix::store(name, 0.5, store))?,
        _ => BenchMix::spinning(name, nanos_per_step),
    };
    scope.mixes.iter().map(mix).collect()
}

fn settings(scope: &Scope, bench: &Bench) -> Settings {
    let depths = Contender::all(bench.workers, &bench.mechanisms)
        .into_iter()
        .map(|one| (one.policy_name().to_owned(), one.depth(bench.workers)));
    let scheduler = match bench.realtime_priority {
        Some(_) => "SCHED_FIFO",
        None => "SCHED_OTHER",
    };
    Settings {
        mode: scope.mode.to_owned(),
        command: std::env::args()
            .skip(1)
            .fold("cargo xtask".to_owned(), |line, word| line + " " + &word),
        workers: bench.workers as u32,
        repetitions: scope.seeds.len() as u32,
        seconds_per_point: scope.length.as_secs_f64(),
        seeds: scope.seeds.clone(),
        scheduler: scheduler.to_owned(),
        depth: depths.collect(),
        contexts: burst::CONTEXTS,
        queue: burst::QUEUE,
        slo_us: BTreeMap::new(),
    }
}

/// Fills in all that is measured.
fn measure(
    options: &Options,
    scope: &Scope,
    bench: &Bench,
    all: &[BenchMix],
    cores: &[CoreId],
    results: &mut Results,
) -> Result<()> {
    let swept = all.iter().find(|mix| mix.mix.name() == sweep::MIX);
    let bursts = bursts(scope, bench, all, swept.is_some());
    let quick = !options.full;
    let costs = if options.no_costs {
        Duration::ZERO
    } else {
        costs::duration(quick)
    };
    let around = 2 * scope.watch;
    let mut progress =
        Progress::new(around + costs + bench.per_burst(scope.length) * bursts as u32);
    progress.say(&format!(
        "{}; {bursts} bursts of {:?}",
        results.machine.summary(),
        scope.length
    ));
    if scope.sweep && swept.is_none() {
        results.notes.push(format!(
            "The quantum is not swept: the mix for it, {}, is not among those measured.",
            sweep::MIX
        ));
    }
    for note in &results.notes {
        progress.say(note);
    }
    progress.begin("this host's stalls, before");
    let mut stalls = Stalls::before(bench, cores, scope.watch)?;
    results.stalls = Some(stalls.summary());
    progress.end(scope.watch);
    if !options.no_costs {
        progress.begin("costs of single operations");
        let measured = costs::measure(bench, (cores[0].id, cores[1].id), quick, |line| {
            progress.detail(line);
        })?;
        results.costs = measured.nanos;
        results.cost_details = measured.details;
        results.notes.extend(measured.notes);
        progress.end(costs);
    }
    for mix in all {
        measure_mix(bench, scope, mix, results, &mut progress)?;
    }
    if let (Some(mix), true) = (swept, scope.sweep) {
        results.quantum_sweep = sweep::measure(bench, scope, mix, &results.costs, &mut progress)?;
    }
    progress.begin("this host's stalls, after");
    stalls.after(bench, scope.watch)?;
    results.stalls = Some(stalls.summary());
    progress.end(scope.watch);
    if !results.fcfs_check.is_empty() {
        results.notes.push(baseline::NOTE.to_owned());
    }
    progress.finish();
    Ok(())
}

/// How many bursts are to come: the points' and the sweep's.
fn bursts(scope: &Scope, bench: &Bench, all: &[BenchMix], sweeps: bool) -> usize {
    let of_mix = |mix: &BenchMix| {
        let contenders = scope.contenders(mix, bench.workers, &bench.mechanisms);
        contenders.len() * scope.loads.len() * scope.seeds.len()
    };
    let sweep = if sweeps && scope.sweep {
        sweep::bursts(scope)
    } else {
        0
    };
    all.iter().map(of_mix).sum::<usize>() + sweep
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
    let contenders = scope.contenders(mix, bench.workers, &bench.mechanisms);
    let mut slos_us = Vec::new();
    if let Some(one) = contenders.iter().find(|one| one.wants_slos()) {
        slos_us = slo::of(scope, mix, one, bench.workers)?;
        let names = mix.mix.classes().iter().map(|class| class.name.clone());
        let by_name = names.zip(slos_us.iter().copied()).collect();
        results.settings.slo_us.insert(name.to_owned(), by_name);
    }
    for &load in &scope.loads {
        let mut points: Vec<Point> = contenders.iter().map(|_| Point::default()).collect();
        let mut computed = Vec::new();
        for &seed in &scope.seeds {
            let length = Length::lasting(scope.length);
            let schedule = mix.arrivals(load, bench.workers, length, seed)?;
            if !mix.is_real_code() {
                computed.push(baseline::lindley_p99_us(mix, &schedule, bench.workers)?);
            }
            for (contender, point) in contenders.iter().zip(&mut points) {
                progress.begin(&format!(
                    "{name} {:.0} %: {} seed {seed}",
                    load * 100.0,
                    contender.name()
                ));
                let arrivals = mix.plan(&schedule, contender.probes);
                let outcome =
                    bench.burst(contender, &arrivals, mix.mix.classes().len(), &slos_us)?;
                point.add(mix, outcome)?;
                progress.end(bench.per_burst(scope.length));
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
            calibration::complete(&mut runs, point, contender, &results.costs);
            if *contender == Contender::FCFS && !mix.is_real_code() {
                let check = baseline::check(mix, load, point, &runs, &computed);
                results.fcfs_check.extend(check);
            }
            results.runs.extend(runs);
        }
        results
            .paired
            .extend(paired::pair(mix, load, &contenders, &points));
    }
    Ok(())
}

/// The one place of this package that may promise what the compiler cannot check.
#[allow(unsafe_code)]
pub(crate) fn allow_signals() -> HardPreemption {
    // SAFETY: the bench's handlers multiply, or read a redb file through memory it owns; neither
    // relies on the OS thread's identity, on priority inheritance, or on system calls that never
    // answer EINTR. The doctor's does nothing.
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
fn on_worker_core<Out: Send>(core: CoreId, body: impl FnOnce() -> Out + Send) -> Result<Out> {
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
