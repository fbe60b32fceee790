//! What is computed of a measured point: by the simulator, the same policy without any cost and
//! with the costs measured here; of c-FCFS, its p99 by the Lindley recursion.

use std::collections::BTreeMap;

use anyhow::Result;
use shinjuku::MechanismKind;
use shinjuku::policy::{ClassParameters, Nanos};
use shinjuku_sim::{Overheads, Prediction, Scheduler, predict};
use shinjuku_workload::repeat::median;
use shinjuku_workload::{Schedule, Summary, lindley};

use super::contender::{Contender, Probes};
use super::mixes::BenchMix;
use super::point::Point;
use super::results::{Class, FcfsCheck, Run};

/// Fills in the simulated figures of one point's rows.
///
/// What it leaves out: `auto`, whose quantum moves, and contenders of which only some requests have
/// probes; policies by flow, since the simulator would draw other flows; loops, whose costs are not
/// in the table.
pub fn complete(
    runs: &mut [Run],
    mix: &BenchMix,
    contender: &Contender,
    slos_us: &[f64],
    workers: usize,
    costs: &BTreeMap<String, f64>,
) -> Result<()> {
    let Some(scheduler) = scheduler(contender, slos_us) else {
        return Ok(());
    };
    let Some(load) = runs.first().map(|run| run.load).filter(|&load| load < 1.0) else {
        return Ok(());
    };
    let depth = contender.depth(workers);
    let predict = |overheads| predict(&mix.mix, load, workers, depth, &scheduler, overheads);
    let ideal = predict(Overheads::IDEAL)?;
    let priced = match overheads(contender, costs) {
        Some(overheads) => Some(predict(overheads)?),
        None => None,
    };
    for run in runs {
        run.ideal_p99_us = p99(&ideal, run.class);
        run.predicted_p99_us = priced
            .as_ref()
            .and_then(|prediction| p99(prediction, run.class));
    }
    Ok(())
}

/// `None` where the simulated server is saturated.
fn p99(prediction: &Prediction, class: Class) -> Option<f64> {
    let predicted = match class {
        Class::Short => prediction.classes.first()?,
        Class::Long => prediction.classes.last()?,
        Class::All => &prediction.all,
    };
    (!prediction.saturated).then_some(predicted.p99_us.value)
}

/// `None` for what the simulator would draw differently or cannot know.
fn scheduler(contender: &Contender, slos_us: &[f64]) -> Option<Scheduler> {
    let is_drawn = !contender.policy.by_flow && contender.has_dispatcher();
    if contender.probes == Probes::HalfOfLong || !is_drawn {
        return None;
    }
    let class = |&slo_us: &f64| ClassParameters::with_slo(Nanos((slo_us * 1e3) as u64));
    let scheduler =
        Scheduler::of(contender.policy).with_classes(slos_us.iter().map(class).collect());
    match contender.quantum_us {
        Some(us) => Some(scheduler.with_quantum(Nanos((us * 1e3) as u64))),
        None => (!contender.policy.preempts).then_some(scheduler),
    }
}

/// The costs that the simulator reads from a results.json, by the names that `docs/simulator.md`
/// lists: those of preemption by probe. Each with the row it is taken from.
pub fn costs_by_probe(costs: &BTreeMap<String, f64>) -> Vec<(&'static str, &'static str, f64)> {
    let names = [
        ("sim/message", "cache-line/one-way"),
        // What a request costs the slower of dispatcher and worker; which of them that is, the
        // table does not tell.
        ("sim/switch", "request/empty/depth-4"),
        ("sim/preempt-send", "preempt/probe-request"),
        ("sim/preempt-receive", "preempt/probe"),
    ];
    names
        .into_iter()
        .filter_map(|(name, row)| Some((name, row, costs.get(row)?.max(0.0))))
        .collect()
}

/// The simulator's costs from the cost table of the same run; `None` without one.
fn overheads(contender: &Contender, costs: &BTreeMap<String, f64>) -> Option<Overheads> {
    let cost = |name: &str| costs.get(name).map(|ns| ns.max(0.0).round() as u64);
    costs.get("sim/switch")?;
    let by_probe = Overheads::from_costs(costs).ok()?;
    Some(match contender.mechanism {
        MechanismKind::None | MechanismKind::Probe => by_probe,
        // No row of the table says when the interrupt reaches the code there.
        MechanismKind::Guest | MechanismKind::Dune => return None,
        _ => Overheads {
            preempt_send_ns: cost("signal/send")?,
            preempt_delay_ns: cost("signal/until-handler")?.saturating_sub(cost("signal/send")?),
            preempt_receive_ns: cost(contender.preemption_row())?,
            ..by_probe
        },
    })
}

/// What a reader must know of the difference between c-FCFS as measured and as computed.
pub const FCFS_NOTE: &str = "c-FCFS against Lindley: the recursion knows nothing of what dispatching costs. An empty request's cost \
    (request/empty/depth-2 in the cost table) adds to each service time, which the simulator's prediction has in it; what is left \
    between the prediction and the measurement is to be explained.";

/// The check of the baseline at one load: c-FCFS beside the Lindley recursion over the same
/// arrivals and service times, so that c-FCFS cannot be slow by accident. `point` is that of
/// c-FCFS, `runs` are its rows, `schedules` the arrivals of each repetition.
///
/// # Errors
/// If there are no arrivals.
pub fn check_fcfs(
    mix: &BenchMix,
    load: f64,
    point: &Point,
    runs: &[Run],
    schedules: &[Schedule],
    workers: usize,
) -> Result<Option<FcfsCheck>> {
    let Some(all) = runs.iter().find(|run| run.class == Class::All) else {
        return Ok(None);
    };
    // p99 of the recursion over one burst's arrivals, us.
    let computed = |schedule: &Schedule| -> Result<f64> {
        let records = lindley::records(schedule.arrivals(), workers);
        Ok(Summary::of(&mix.mix, &records)?.all.p99_ns as f64 / 1e3)
    };
    let computed = schedules.iter().map(computed).collect::<Result<Vec<_>>>()?;
    let steady = load < 1.0 && !point.is_saturated();
    Ok(Some(FcfsCheck {
        mix: mix.mix.name().to_owned(),
        load,
        class: Class::All,
        measured_p99_us: all.p99_us,
        lindley_p99_us: median(&computed).filter(|_| load < 1.0),
        predicted_p99_us: all.predicted_p99_us.filter(|_| steady),
    }))
}
