//! The SLOs that c-PRE-MQ is given: p99 of each class alone under SQ, measured first (the paper's rule, section 5.2).

use anyhow::{Context, Result};
use shinjuku_workload::{Length, Summary};

use super::burst::Bench;
use super::mixes::BenchMix;
use super::saturation::is_saturated;
use super::scope::Scope;

/// Loads at which a class runs alone: the first that does not saturate counts.
const LOADS: [f64; 4] = [0.4, 0.2, 0.1, 0.05];

/// What was found for one mix.
#[derive(Debug)]
pub struct Slos {
    /// SLO of each class, us; empty if a class saturates alone at every load.
    pub us: Vec<f64>,
    /// What the report must say.
    pub notes: Vec<String>,
}

/// Measures the SLOs of all classes of `mix`.
///
/// # Errors
/// If a burst cannot be run.
pub fn measure(bench: &Bench, scope: &Scope, mix: &BenchMix) -> Result<Slos> {
    let mut slos = Slos {
        us: Vec::new(),
        notes: Vec::new(),
    };
    for (at, class) in mix.mix.classes().iter().enumerate() {
        let name = format!("{} of {}", class.name, mix.mix.name());
        let mut found = None;
        for load in LOADS {
            found = alone(bench, scope, mix, at, load)?.map(|us| (load, us));
            if found.is_some() {
                break;
            }
        }
        let Some((load, us)) = found else {
            slos.notes.push(format!(
                "{name} alone saturates the workers even at {:.0} % load: without its SLO c-PRE-MQ is left out.",
                LOADS[LOADS.len() - 1] * 100.0
            ));
            slos.us.clear();
            return Ok(slos);
        };
        if load < LOADS[0] {
            slos.notes.push(format!(
                "{name} alone saturates the workers at {:.0} % load: its SLO is its p99 at {:.0} %.",
                LOADS[0] * 100.0,
                load * 100.0
            ));
        }
        slos.us.push(us);
    }
    Ok(slos)
}

/// p99 of one class alone, us; `None` if it is saturated.
fn alone(
    bench: &Bench,
    scope: &Scope,
    mix: &BenchMix,
    class: usize,
    load: f64,
) -> Result<Option<f64>> {
    let contender = (mix.contenders(bench.workers, &bench.mechanisms).into_iter())
        .find(|one| one.policy == shinjuku::PolicyKind::CPreSq)
        .context("SQ competes on every mix")?;
    // The other classes keep their numbers but have no weight, so that the class's work stays its own.
    let only = mix.with_only(class)?;
    let length = Length::lasting(scope.length);
    let schedule = only.arrivals(load, bench.workers, length, scope.seeds[0])?;
    let arrivals = only.plan(&schedule, contender.probes);
    let outcome = bench.burst(&contender, &arrivals, mix.mix.classes().len(), &[])?;
    if outcome.records.is_empty() || is_saturated(&outcome.counts) {
        return Ok(None);
    }
    let summary = Summary::of(&mix.mix, &outcome.records)?;
    Ok(Some(summary.all.p99_ns as f64 / 1e3))
}
