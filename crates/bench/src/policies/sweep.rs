//! p99 over the quantum, for each mechanism, on the most dispersed mix under c-PRE-SQ. After figure
//! 7a of the Shinjuku paper (section 4.3), which has half 1 us, half 100 us under c-PRE-MQ.

use std::collections::BTreeMap;

use anyhow::Result;

use super::burst::Bench;
use super::calibration;
use super::contender::Contender;
use super::mixes::BenchMix;
use super::point::Schedules;
use super::results::Run;
use crate::harness::Session;

/// The mix swept.
pub const MIX: &str = "hi";
const LOAD: f64 = 0.5;
const QUANTA_US: [f64; 7] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

/// Who is swept: probes and signals with each quantum.
pub fn contenders() -> Vec<Contender> {
    let both = |&quantum: &f64| [Contender::probe(quantum), Contender::signal(quantum)];
    QUANTA_US.iter().flat_map(both).collect()
}

/// Sweeps the quantum on `mix`, the repetitions as many and as long as everywhere.
///
/// # Errors
/// If a burst cannot be run.
pub fn measure(
    session: &mut Session,
    bench: &Bench,
    mix: &BenchMix,
    costs: &BTreeMap<String, f64>,
) -> Result<Vec<Run>> {
    let contenders = contenders();
    let schedules = Schedules::draw(session, bench, mix, LOAD)?;
    let points = schedules.measure(session, bench, mix, "quantum", &contenders, &[])?;
    let rows = contenders
        .iter()
        .zip(&points)
        .flat_map(|(contender, point)| {
            let mut runs = point.runs(mix, LOAD, contender);
            calibration::complete(&mut runs, mix, point, contender, costs);
            runs
        });
    Ok(rows.collect())
}
