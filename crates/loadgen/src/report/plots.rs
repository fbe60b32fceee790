//! Latency and slowdown against throughput, one figure each.

use shinjuku_plot::{Figure, Point as Dot, Series, Style, XAxis, YAxis};
use shinjuku_workload::repeat::{Spread, median};

use super::Report;
use crate::plan::Load;
use crate::point::{Figures, Point};

/// A figure for each class and measure: p50, p99 and p99.9 of the latency; and one of the slowdown
/// of all requests, if there is one. Points are medians over repetitions. Empty if no load was an
/// open loop.
#[must_use]
pub fn plots(report: &Report) -> Vec<Figure> {
    let mut loads: Vec<f64> = Vec::new();
    for point in &report.points {
        if let Load::Rate(rate) = point.load
            && !loads.contains(&rate)
        {
            loads.push(rate);
        }
    }
    let Some(first) = report.points.first().filter(|_| !loads.is_empty()) else {
        return Vec::new();
    };
    loads.sort_by(f64::total_cmp);
    let figure = |name: String, title: String, y_label: &str, series: Vec<Series>| Figure {
        name,
        title,
        x: XAxis::Linear("throughput, all classes (requests/s)"),
        y: YAxis::Logarithmic,
        y_label: y_label.to_owned(),
        bars: "lowest and highest repetition",
        series,
    };
    let lines = |measures: &[(&str, Value)], of: Of<'_>| {
        let numbered = measures.iter().enumerate();
        numbered
            .map(|(number, (label, value))| Series {
                label: (*label).to_owned(),
                style: Style::Contender(number),
                points: loads
                    .iter()
                    .filter_map(|&rate| dot(report, rate, of, *value))
                    .collect(),
            })
            .collect()
    };
    let mut figures: Vec<Figure> = (first.classes.iter().enumerate())
        .map(|(class, named)| {
            figure(
                format!("latency-{}", file_name(&named.name)),
                format!("{}: latency from the intended moment", named.name),
                "latency (µs, log)",
                lines(
                    &[
                        ("p50", |one| one.p50_us),
                        ("p99", |one| one.p99_us),
                        ("p99.9", |one| one.p999_us),
                    ],
                    &|point| &point.classes[class].figures,
                ),
            )
        })
        .collect();
    if first.all.p99_slowdown.is_some() {
        figures.push(figure(
            "slowdown".to_owned(),
            "all requests: latency over the class's median without load".to_owned(),
            "slowdown (log)",
            lines(
                &[
                    ("p50", |one| one.p50_slowdown),
                    ("p99", |one| one.p99_slowdown),
                    ("p99.9", |one| one.p999_slowdown),
                ],
                &|point| &point.all,
            ),
        ));
    }
    figures
}

/// Reads one of a class's figures.
type Value = fn(&Figures) -> Option<f64>;

/// Chooses figures of a point.
type Of<'a> = &'a dyn Fn(&Point) -> &Figures;

/// A load's dot; `None` if its value is unknown.
fn dot(report: &Report, rate: f64, of: Of<'_>, value: fn(&Figures) -> Option<f64>) -> Option<Dot> {
    let points = || (report.points.iter()).filter(|point| point.load == Load::Rate(rate));
    let values: Vec<f64> = points().filter_map(|point| value(of(point))).collect();
    let throughputs: Vec<f64> = points().map(|point| point.all.throughput_rps).collect();
    let spread = Spread::of(&values)?;
    Some(Dot {
        x: median(&throughputs)?,
        y: Some(spread.median),
        spread: (values.len() > 1).then_some((spread.min, spread.max)),
    })
}

/// A class's name as part of a file's.
fn file_name(class: &str) -> String {
    let safe = |letter: char| {
        if letter.is_alphanumeric() {
            letter
        } else {
            '_'
        }
    };
    class.chars().map(safe).collect()
}
