//! The check of the baseline: c-FCFS as measured beside the Lindley recursion over the same
//! arrivals and service times, so that it cannot be slow by accident.

use anyhow::Result;
use shinjuku_workload::repeat::median;
use shinjuku_workload::{Schedule, Summary, lindley};

use super::mixes::BenchMix;
use super::point::Point;
use super::results::{Class, FcfsCheck, Run};

/// What a reader must know of the difference.
pub const NOTE: &str = "c-FCFS against Lindley: the recursion knows nothing of what dispatching costs. An empty request's cost \
    (request/empty/depth-2 in the cost table) adds to each service time, which the simulator's prediction has in it; what is left \
    between the prediction and the measurement is to be explained.";

/// The check at one load: `point` is that of c-FCFS, `runs` are its rows, `schedules` the arrivals
/// of each repetition.
///
/// # Errors
/// If there are no arrivals.
pub fn check(
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
