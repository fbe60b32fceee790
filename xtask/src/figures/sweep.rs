//! Lines of simulated points.

use anyhow::Result;
use shinjuku_sim::plan::Target;
use shinjuku_sim::{Estimate, Measure, Replicated, Until, replicate};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::Effort;
use shinjuku_plot::{Point, Series};

/// The seed of all figures.
pub(super) const SEED: u64 = 2019;

/// Simulates a target.
pub(super) fn simulate(target: &Target, effort: Effort) -> Result<Replicated> {
    effort.check_time()?;
    let until = Until::Replications(effort.replications);
    Ok(replicate(|seed| target.run(seed), SEED, until, |_, _| {})?)
}

/// A numbered line for each contender, by its label.
pub(super) fn lines<L: Into<String>, C>(
    contenders: impl IntoIterator<Item = (L, C)>,
    mut points: impl FnMut(C) -> Result<Vec<Point>>,
) -> Result<Vec<Series>> {
    let line = |(number, (label, contender))| {
        points(contender).map(|points| Series::contender(number, label, points))
    };
    contenders.into_iter().enumerate().map(line).collect()
}

/// p99 latency of all requests.
pub(super) const P99: (Measure, Option<u16>) = (Measure::P99Us, None);

/// Points against load: `target` is asked for each load, as a share.
pub(super) fn against_load(
    effort: Effort,
    (measure, class): (Measure, Option<u16>),
    target: impl Fn(f64) -> Target,
) -> Result<Vec<Point>> {
    let point = |percent: f64| {
        let result = simulate(&target(percent / 100.0), effort)?;
        let found = point(percent, result.estimate(measure, class));
        Ok(match result.refused {
            0 => found,
            _ => Point {
                y: None,
                spread: None,
                ..found
            },
        })
    };
    effort.loads().map(point).collect()
}

/// A mix of one class.
pub(super) fn one_class(service: ServiceTime) -> Result<Mix> {
    Ok(Mix::new("only", vec![Class::new("request", 1.0, service)])?)
}

/// A point with its interval. A logarithmic axis has no place for ends below zero: they stop short
/// of it.
pub(super) fn point(x: f64, estimate: Estimate) -> Point {
    let low = estimate.low().max(estimate.value * 0.1);
    Point {
        x,
        y: Some(estimate.value),
        spread: Some((low, estimate.high())),
    }
}

/// The highest load, in percent, at which `met` holds, by bisection.
pub(super) fn highest_load(effort: Effort, met: impl Fn(f64) -> Result<bool>) -> Result<f64> {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..effort.halvings {
        effort.check_time()?;
        let load = f64::midpoint(low, high);
        if met(load)? {
            low = load;
        } else {
            high = load;
        }
    }
    Ok(100.0 * f64::midpoint(low, high))
}

/// The value of a line at `x`, as text.
pub(super) fn at(series: &Series, x: f64) -> String {
    let found = series.points.iter().find(|point| point.x == x);
    match found.and_then(|point| point.y) {
        Some(y) if y >= 100.0 => format!("{y:.0}"),
        Some(y) => format!("{y:.1}"),
        None => "saturated".to_owned(),
    }
}

/// What is said of each line, one after the other.
pub(super) fn each(series: &[Series], say: impl Fn(&Series) -> String) -> String {
    let said: Vec<_> = series.iter().map(say).collect();
    said.join(", ")
}
