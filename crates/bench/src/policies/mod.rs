//! `cargo xtask bench`: contenders interleaved over the same arrivals, on this machine.
//!
//! In-process and open loop: the dispatcher's core injects arrivals that were drawn ahead of time
//! at their intended moments, worker cores run real contexts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use core_affinity::CoreId;
use shinjuku::MechanismKind;
use shinjuku::policy::multi_queue;
use shinjuku_examples::store::Store;
use shinjuku_preempt::Realtime;

use crate::harness::{Comparison, Session, distinct};
use crate::machine::Machine;
use crate::{allow_signals, costs};

pub(crate) mod burst;
pub(crate) mod calibration;
pub(crate) mod contender;
pub mod csv;
pub mod figures;
pub(crate) mod mechanisms;
pub(crate) mod mixes;
mod point;
mod report;
pub mod results;
pub(crate) mod saturation;
mod scope;
pub(crate) mod simulated;
mod slo;
mod stalls;
pub mod summary;
mod targets;
mod throttling;
pub(crate) mod work;

use burst::Bench;
use contender::Contender;
use mechanisms::Mechanisms;
use mixes::BenchMix;
use point::{Point, Schedules};
pub use results::Policies;
use results::{Run, RuntimeSettings};
pub use scope::Options;
use scope::Scope;
use stalls::Stalls;
use throttling::Throttling;

/// Keys of the store, as in examples/store.
const STORE_KEYS: u64 = 100_000;
/// Priority of the measured threads under SCHED_FIFO.
const PRIORITY: i32 = 60;

/// The mix on which the quantum is swept under c-PRE-SQ, the most dispersed one.
const SWEPT_BY_ONE_QUEUE: &str = "hi";
const QUANTA_US: &[f64] = &[2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];
/// Those of `--quick`.
const QUICK_QUANTA_US: &[f64] = &[5.0, 20.0, 100.0];
/// The mix on which it is swept under c-PRE-MQ: half 1 us, half 100 us, as in figure 7a of the
/// Shinjuku paper (section 4.3).
const SWEPT_BY_TYPE: &str = "mid";
const QUANTA_BY_TYPE_US: [f64; 4] = [5.0, 10.0, 15.0, 50.0];
/// The load of both.
const SWEPT_LOAD: f64 = 0.5;

/// Runs the bench and publishes what it found.
///
/// # Errors
/// Where nothing can be measured, and where results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mechanisms = Mechanisms::find(allow_signals());
    let cores = core_affinity::get_core_ids().map_or(0, |cores| cores.len());
    let workers = cores.saturating_sub(1).max(1);
    let scope = Scope::of(options, workers, &mechanisms)?;
    let mut session = Session::begin::<Policies>(&options.common, scope.settings.clone())?;
    let bench = prepare(&scope, &mut session, workers, mechanisms)?;
    let all = mixes_of(&scope.mixes, &bench)?;
    let competing = all
        .iter()
        .flat_map(|mix| scope.contenders(mix, bench.workers, &bench.mechanisms));
    let lines = bench.mechanisms.lines(&competing.collect::<Vec<_>>());
    session.notes.extend(lines);
    let mut results = Policies {
        runtime: settings(&bench),
        mixes: all
            .iter()
            .map(|mix| (mix.mix.name().to_owned(), mix.description()))
            .collect(),
        ..Policies::default()
    };
    let machine = Machine::detect(bench.realtime_priority.is_some());
    let measured = measure(&scope, &mut session, &machine, &bench, &all, &mut results);
    session.notes.extend(calibration::note(&results));
    session.notes.extend(deliveries(&results));
    session.end(machine, results, measured)
}

/// How interrupts came in the runs, where that is counted.
fn deliveries(results: &Policies) -> Option<String> {
    let counted = distinct(results.runs.iter().filter_map(|run| run.delivery.clone()));
    (!counted.is_empty()).then(|| {
        format!(
            "Interrupts in guest mode, by the kernel's modules and counters in the runs: {}.",
            counted.join("; ")
        )
    })
}

/// Finds out what is permitted here, and opens what the mixes need.
fn prepare(
    scope: &Scope,
    session: &mut Session,
    workers: usize,
    mechanisms: Mechanisms,
) -> Result<Bench> {
    if workers == 1 {
        session.notes.push(
            "With one worker d-FCFS and work stealing are the same as c-FCFS, so they are left out.".to_owned(),
        );
    }
    let length = session.length();
    permitted(session, &scope.mixes, workers, mechanisms, length)
}

/// The bench of bursts of this length, with what is permitted here; notes what is not.
///
/// # Errors
/// The bursts are too long for SCHED_FIFO, or the store cannot be opened where `mixes` need it.
pub(crate) fn permitted(
    session: &mut Session,
    mixes: &[String],
    workers: usize,
    mechanisms: Mechanisms,
    burst: Duration,
) -> Result<Bench> {
    let fifo = Realtime::enter(PRIORITY);
    if let Err(error) = &fifo {
        session.notes.push(format!("Expect noise: {error}"));
    }
    let realtime_priority = fifo.is_ok().then_some(PRIORITY);
    drop(fifo);
    let throttling = realtime_priority.and_then(|_| Throttling::in_force());
    if let Some(throttling) = throttling {
        throttling.check(burst)?;
    }
    let needs_store = mixes.iter().any(|name| name.starts_with("store"));
    let store = needs_store.then(open_store).transpose()?.map(Arc::new);
    Ok(Bench {
        workers,
        worker_core: session.cores[1],
        cores: (session.cores[..=workers].iter())
            .map(|core| core.id)
            .collect(),
        realtime_priority,
        token: allow_signals(),
        mechanisms,
        store,
        throttling,
        ended: Cell::new(None),
    })
}

/// The mixes of these names, those of queries timed where the first worker will run.
///
/// # Errors
/// There is no such mix, or its queries cannot be timed.
pub(crate) fn mixes_of(names: &[String], bench: &Bench) -> Result<Vec<BenchMix>> {
    let core = bench.worker_core;
    let mix = |name: &String| match (name.as_str(), &bench.store) {
        ("store", Some(store)) => on_worker_core(core, || BenchMix::store(name, 0.005, store))?,
        ("store-50", Some(store)) => on_worker_core(core, || BenchMix::store(name, 0.5, store))?,
        _ => BenchMix::spinning(name),
    };
    names.iter().map(mix).collect()
}

fn settings(bench: &Bench) -> RuntimeSettings {
    let depths = Contender::all(bench.workers, &bench.mechanisms)
        .into_iter()
        .filter(Contender::has_dispatcher)
        .map(|one| (one.policy_name().to_owned(), one.depth(bench.workers)));
    let scheduler = match bench.realtime_priority {
        Some(_) => "SCHED_FIFO",
        None => "SCHED_OTHER",
    };
    RuntimeSettings {
        workers: bench.workers as u32,
        scheduler: scheduler.to_owned(),
        depth: depths.collect(),
        contexts: burst::CONTEXTS,
        queue: burst::QUEUE,
        ..RuntimeSettings::default()
    }
}

/// Fills in all that is measured.
fn measure(
    scope: &Scope,
    session: &mut Session,
    machine: &Machine,
    bench: &Bench,
    all: &[BenchMix],
    results: &mut Policies,
) -> Result<()> {
    let swept: Vec<_> = all
        .iter()
        .filter(|_| scope.sweep)
        .map(|mix| {
            let swept = swept_contenders(mix.mix.name(), scope.quanta_us, &bench.mechanisms);
            (mix, swept)
        })
        .filter(|(_, contenders)| !contenders.is_empty())
        .collect();
    if scope.sweep && swept.is_empty() {
        session.notes.push(format!(
            "The quantum is not swept: the mixes for it, {SWEPT_BY_ONE_QUEUE} and {SWEPT_BY_TYPE}, are not among those measured."
        ));
    }
    let of_mix = |mix: &BenchMix| {
        let contenders = scope.contenders(mix, bench.workers, &bench.mechanisms);
        contenders.len() * scope.loads.len()
    };
    let points =
        all.iter().map(of_mix).sum::<usize>() + swept.iter().map(|(_, of)| of.len()).sum::<usize>();
    let costs = costs::duration(scope.quick);
    let bursts = session.all(bench.per_burst(session.length()), points);
    session.expect(machine, 2 * scope.watch + costs + bursts);
    session.progress.begin("this host's stalls, before");
    let cores = session.cores[..=bench.workers].to_vec();
    let mut stalls = Stalls::before(bench, &cores, scope.watch)?;
    results.stalls = Some(stalls.summary());
    session.progress.end(scope.watch);
    if scope.costs {
        session.progress.begin("costs of single operations");
        let progress = &session.progress;
        let measured = costs::measure(bench, (cores[0].id, cores[1].id), scope.quick, |line| {
            progress.detail(line);
        })?;
        results.costs = measured.nanos;
        results.cost_details = measured.details;
        session.notes.extend(measured.notes);
    }
    session.progress.end(costs);
    for mix in all {
        measure_mix(scope, session, bench, mix, results)?;
    }
    for (mix, contenders) in &swept {
        let rows = sweep(scope, session, bench, (mix, contenders), &results.costs)?;
        results.quantum_sweep.extend(rows);
    }
    session.progress.begin("this host's stalls, after");
    stalls.after(bench, scope.watch)?;
    results.stalls = Some(stalls.summary());
    if !results.fcfs_check.is_empty() {
        session.notes.push(simulated::FCFS_NOTE.to_owned());
    }
    Ok(())
}

/// All loads of one mix.
fn measure_mix(
    scope: &Scope,
    session: &mut Session,
    bench: &Bench,
    mix: &BenchMix,
    results: &mut Policies,
) -> Result<()> {
    let name = mix.mix.name();
    let contenders = scope.contenders(mix, bench.workers, &bench.mechanisms);
    let mut slos_us = Vec::new();
    if let Some(one) = contenders.iter().find(|one| one.wants_slos()) {
        slos_us = slo::of(scope, mix, one, bench.workers)?;
        let names = mix.mix.classes().iter().map(|class| class.name.clone());
        let by_name = names.zip(slos_us.iter().copied()).collect();
        results.runtime.slo_us.insert(name.to_owned(), by_name);
    }
    for &load in &scope.loads {
        let schedules = Schedules::draw(session, bench, mix, load)?;
        let point = format!("{name} at {}", summary::percent(load));
        let points = schedules.measure(session, bench, mix, &point, &contenders, &slos_us)?;
        for (contender, point) in contenders.iter().zip(&points) {
            let mut runs = point.runs(mix, load, contender);
            let (workers, costs) = (bench.workers, &results.costs);
            simulated::complete(&mut runs, mix, contender, &slos_us, workers, costs)?;
            calibration::complete(&mut runs, mix, point, contender, costs);
            if *contender == Contender::FCFS && !mix.is_real_code() {
                let check = simulated::check_fcfs(mix, load, point, &runs, &schedules.0, workers)?;
                results.fcfs_check.extend(check);
            }
            results.runs.extend(runs);
        }
        let compared = compare(mix, load, &contenders, &points);
        results.comparisons.extend(compared);
    }
    Ok(())
}

/// The contenders that are swept on the mix of this name: SQ by probe and by signal, over these
/// quanta; or, as in figure 7a of the Shinjuku paper, MQ by all that can preempt here. None on
/// other mixes.
fn swept_contenders(mix: &str, quanta_us: &[f64], here: &Mechanisms) -> Vec<Contender> {
    let one_queue = |&quantum: &f64| vec![Contender::probe(quantum), Contender::signal(quantum)];
    let by_type = |&quantum: &f64| {
        let guest = here.guest.is_ok().then(|| Contender::guest(quantum));
        let all = one_queue(&quantum).into_iter().chain(guest);
        all.map(|one| Contender {
            policy: multi_queue::REGISTERED,
            ..one
        })
        .collect::<Vec<_>>()
    };
    let mut swept: Vec<_> = match mix {
        SWEPT_BY_ONE_QUEUE => quanta_us.iter().flat_map(one_queue).collect(),
        SWEPT_BY_TYPE => QUANTA_BY_TYPE_US.iter().flat_map(by_type).collect(),
        _ => Vec::new(),
    };
    swept.retain(|one| here.has_signals() || one.mechanism == MechanismKind::Probe);
    swept
}

/// Sweeps the quantum on `mix`, the repetitions as many and as long as everywhere.
fn sweep(
    scope: &Scope,
    session: &mut Session,
    bench: &Bench,
    (mix, contenders): (&BenchMix, &[Contender]),
    costs: &BTreeMap<String, f64>,
) -> Result<Vec<Run>> {
    let slos_us = match contenders.iter().find(|one| one.wants_slos()) {
        Some(one) => slo::of(scope, mix, one, bench.workers)?,
        None => Vec::new(),
    };
    let schedules = Schedules::draw(session, bench, mix, SWEPT_LOAD)?;
    let point = format!("quantum, {}", mix.mix.name());
    let points = schedules.measure(session, bench, mix, &point, contenders, &slos_us)?;
    let rows = contenders
        .iter()
        .zip(&points)
        .flat_map(|(contender, point)| {
            let mut runs = point.runs(mix, SWEPT_LOAD, contender);
            calibration::complete(&mut runs, mix, point, contender, costs);
            runs
        });
    Ok(rows.collect())
}

/// c-FCFS against every other contender, by the p99 of the mix's leading class. Saturated points
/// have no pairs.
fn compare(
    mix: &BenchMix,
    load: f64,
    contenders: &[Contender],
    points: &[Point],
) -> Vec<Comparison> {
    let all = || contenders.iter().zip(points);
    let Some((base, over)) = all().find(|(one, _)| **one == Contender::FCFS) else {
        return Vec::new();
    };
    let class = mix.leading_class();
    let what = targets::compared(mix.mix.name(), load, class);
    let others = all().filter(|(one, _)| *one != base);
    let of = |(one, under): (&Contender, &Point)| {
        let names = [&*base.name(), &*one.name()];
        Comparison::of(&what, names, &over.pairs(under, mix, class), None)
    };
    others.map(of).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use shinjuku_preempt::Delivery;

    #[test]
    fn the_papers_mix_is_swept_by_all_that_can_preempt_and_others_by_nobody() {
        let signals = Mechanisms::signals_alone();
        let guest = Mechanisms {
            guest: Ok(Delivery::Software),
            ..Mechanisms::signals_alone()
        };
        for (mix, here, swept) in [
            (SWEPT_BY_ONE_QUEUE, &guest, 2 * QUANTA_US.len()),
            (SWEPT_BY_TYPE, &signals, 2 * QUANTA_BY_TYPE_US.len()),
            (SWEPT_BY_TYPE, &guest, 3 * QUANTA_BY_TYPE_US.len()),
            ("fixed", &guest, 0),
        ] {
            let contenders = swept_contenders(mix, QUANTA_US, here);
            assert_eq!(contenders.len(), swept, "{mix}");
            let by_type = contenders.iter().all(Contender::wants_slos);
            assert_eq!(by_type, mix == SWEPT_BY_TYPE || swept == 0, "{mix}");
        }
    }
}
