//! Lines of simulated points.

use anyhow::Result;
use shinjuku_sim::plan::Target;
use shinjuku_sim::{Estimate, Measure, Replicated, Until, replicate};

use super::Effort;
use shinjuku_plot::{Figure, Point, Series, Style, XAxis, YAxis};

/// The seed of all figures.
pub(super) const SEED: u64 = 2019;

/// Simulates a target.
pub(super) fn simulate(target: &Target, effort: Effort) -> Result<Replicated> {
    effort.check_time()?;
    let until = Until::Replications(effort.replications);
    Ok(replicate(|seed| target.run(seed), SEED, until, |_, _| {})?)
}

/// A line against load: `target` is asked for each load, as a share.
pub(super) fn against_load(
    label: &str,
    style: Style,
    effort: Effort,
    (measure, class): (Measure, Option<u16>),
    target: impl Fn(f64) -> Target,
) -> Result<Series> {
    let mut points = Vec::new();
    for percent in effort.loads() {
        let result = simulate(&target(percent / 100.0), effort)?;
        let estimate = result.estimate(measure, class);
        points.push(if result.refused > 0 {
            Point {
                x: percent,
                y: None,
                spread: None,
            }
        } else {
            point(percent, estimate)
        });
    }
    Ok(Series {
        label: label.to_owned(),
        style,
        points,
    })
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

/// A figure of p99 latency against load.
pub(super) fn latency_figure(name: &str, title: &str, series: Vec<Series>) -> Figure {
    Figure {
        name: name.to_owned(),
        title: title.to_owned(),
        x: XAxis::Load,
        y: YAxis::Logarithmic,
        y_label: "p99 latency, all requests (µs, log)".to_owned(),
        bars: "95 % interval",
        series,
    }
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
