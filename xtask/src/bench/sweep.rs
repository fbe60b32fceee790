//! p99 over the quantum, for each mechanism, on the most dispersed mix under c-PRE-SQ. After figure
//! 7a of the Shinjuku paper (section 4.3), which has half 1 us, half 100 us under c-PRE-MQ.

use std::collections::BTreeMap;

use anyhow::Result;
use shinjuku_workload::Length;

use super::burst::Bench;
use super::calibration;
use super::contender::Contender;
use super::mixes::BenchMix;
use super::point::Point;
use super::scope::Scope;
use crate::report::progress::Progress;
use crate::report::results::Run;

/// The mix swept.
pub const MIX: &str = "hi";
const LOAD: f64 = 0.5;
const QUANTA_US: [f64; 7] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];
const SEEDS: usize = 3;

/// Bursts that the sweep takes.
pub fn bursts(scope: &Scope) -> usize {
    2 * QUANTA_US.len() * seeds(scope).len()
}

/// The first of the scope's seeds: enough for a curve.
fn seeds(scope: &Scope) -> &[u64] {
    &scope.seeds[..scope.seeds.len().min(SEEDS)]
}

/// Sweeps the quantum on `mix`, the repetitions as long as everywhere.
///
/// # Errors
/// If a burst cannot be run.
pub fn measure(
    bench: &Bench,
    scope: &Scope,
    mix: &BenchMix,
    costs: &BTreeMap<String, f64>,
    progress: &mut Progress,
) -> Result<Vec<Run>> {
    let contenders: Vec<Contender> = QUANTA_US
        .iter()
        .flat_map(|&quantum| [Contender::probe(quantum), Contender::signal(quantum)])
        .collect();
    let mut points: Vec<Point> = contenders.iter().map(|_| Point::default()).collect();
    for &seed in seeds(scope) {
        let schedule = mix.arrivals(LOAD, bench.workers, Length::lasting(scope.length), seed)?;
        for (contender, point) in contenders.iter().zip(&mut points) {
            progress.begin(&format!("quantum: {} seed {seed}", contender.name()));
            let arrivals = mix.plan(&schedule, contender.probes);
            let outcome = bench.burst(contender, &arrivals, mix.mix.classes().len(), &[])?;
            point.add(mix, outcome)?;
            progress.end(bench.per_burst(scope.length));
        }
    }
    let rows = contenders
        .iter()
        .zip(&points)
        .flat_map(|(contender, point)| {
            let mut runs = point.runs(mix, LOAD, contender);
            calibration::complete(&mut runs, point, contender, costs);
            runs
        });
    Ok(rows.collect())
}
