//! The figures of a report, made from the results: what is drawn, not how.

use shinjuku_plot::{Figure, Point, Series, Style, XAxis, YAxis};

use super::results::{Class, Policies, Run};
use super::summary::{STALLS, percent};
use crate::harness::distinct;

/// What the bars of measured points are.
const REPETITIONS: &str = "lowest and highest repetition";

/// What a figure shows of a run.
struct Measure {
    file: &'static str,
    text: &'static str,
    class: Class,
    value: fn(&Run) -> Option<f64>,
    with_spread: bool,
}

/// Every figure of one mix.
pub fn of_mix(results: &Policies, mix: &str) -> Vec<Figure> {
    let leading = results.leading_class(mix);
    let measures = [
        Measure {
            file: "p99",
            text: "p99 latency",
            class: leading,
            value: |run| run.p99_us,
            with_spread: true,
        },
        Measure {
            file: "p99",
            text: "p99 latency",
            class: Class::Long,
            value: |run| run.p99_us,
            with_spread: true,
        },
        Measure {
            file: "p999",
            text: "p99.9 latency",
            class: leading,
            value: |run| run.p999_us,
            with_spread: false,
        },
        Measure {
            file: "p99-slowdown",
            text: "p99 slowdown",
            class: Class::All,
            value: |run| run.p99_slowdown,
            with_spread: false,
        },
    ];
    measures
        .iter()
        .filter_map(|measure| against_load(results, mix, measure))
        .collect()
}

/// The p99 of the leading class against the quantum, one figure for each mix and load that was
/// swept (after figure 7a of the Shinjuku paper).
pub fn of_sweep(results: &Policies) -> Vec<Figure> {
    let places = distinct(
        results
            .quantum_sweep
            .iter()
            .map(|run| (run.mix.as_str(), run.load)),
    );
    let contenders = results.contenders();
    let mut figures = Vec::new();
    for (mix, load) in places {
        let here = |run: &&Run| run.mix == mix && run.load == load;
        let class = [Class::Short, Class::All].into_iter().find(|class| {
            results
                .quantum_sweep
                .iter()
                .filter(here)
                .any(|run| run.class == *class)
        });
        let Some(class) = class else { continue };
        let runs = || {
            results
                .quantum_sweep
                .iter()
                .filter(here)
                .filter(|run| run.class == class)
        };
        let quanta = || runs().filter_map(|run| run.quantum_us);
        let ends = [
            quanta().fold(f64::MAX, f64::min),
            quanta().fold(0.0, f64::max),
        ];
        if ends[0] > ends[1] {
            continue;
        }
        let labels = distinct(runs().map(without_quantum));
        let series = labels.iter().enumerate().map(|(number, label)| {
            let runs = runs().filter(|run| without_quantum(run) == *label);
            let mut line = points(runs.clone(), |run| run.quantum_us, |run| run.p99_us, true);
            // What has no quantum does not depend on it: a level line.
            if let Some(run) = runs.clone().find(|run| run.quantum_us.is_none()) {
                line = ends
                    .iter()
                    .flat_map(|end| {
                        points(std::iter::once(run), |_| Some(*end), |run| run.p99_us, true)
                    })
                    .collect();
            }
            // The look the same policy and mechanism have in the figures against load, if they are
            // there.
            let known = contenders
                .iter()
                .position(|c| c == label || c.starts_with(&format!("{label} ")));
            let style = Style::Contender(known.unwrap_or(contenders.len() + number));
            Series {
                label: label.clone(),
                style,
                points: line,
            }
        });
        let series = series.chain(stalls(results, &ends));
        figures.push(Figure {
            name: format!("{mix}-{}-quantum", (load * 100.0).round()),
            title: format!(
                "{mix} at {} load: p99 latency, {}, against the quantum",
                percent(load),
                requests(class),
            ),
            x: XAxis::Quantum,
            y: YAxis::Logarithmic,
            y_label: format!("p99 latency, {} (µs, log)", requests(class)),
            bars: REPETITIONS,
            series: series.collect(),
        });
    }
    figures
}

fn against_load(results: &Policies, mix: &str, measure: &Measure) -> Option<Figure> {
    let class = measure.class;
    let load = |run: &Run| Some(run.load * 100.0);
    let mut series = Vec::new();
    for (number, contender) in results.contenders().into_iter().enumerate() {
        let runs = results
            .of(mix, class)
            .filter(|run| run.contender() == contender);
        let points = points(runs, load, measure.value, measure.with_spread);
        if !points.is_empty() {
            series.push(Series {
                label: contender,
                style: Style::Contender(number),
                points,
            });
        }
    }
    if series.is_empty() {
        return None;
    }
    if measure.with_spread {
        series.extend(simulated(results, mix, class));
    }
    if measure.with_spread && class == results.leading_class(mix) {
        let loads: Vec<f64> = results.of(mix, class).filter_map(load).collect();
        series.extend(stalls(results, &loads));
    }
    let unit = if measure.file == "p99-slowdown" {
        "latency / service time"
    } else {
        "µs"
    };
    Some(Figure {
        name: format!("{mix}-{}-{class}", measure.file),
        title: format!("{mix}: {}, {}", measure.text, requests(class)),
        x: XAxis::Load,
        y: YAxis::Logarithmic,
        y_label: format!("{}, {} ({unit}, log)", measure.text, requests(class)),
        bars: REPETITIONS,
        series,
    })
}

/// Each contender as the simulator predicts it from the costs measured, and as the floor the lowest
/// that any of the policies could reach without cost.
fn simulated(results: &Policies, mix: &str, class: Class) -> Vec<Series> {
    let load = |run: &Run| Some(run.load * 100.0);
    let mut series = Vec::new();
    for (number, contender) in results.contenders().into_iter().enumerate() {
        let runs = results
            .of(mix, class)
            .filter(|run| run.contender() == contender && run.predicted_p99_us.is_some());
        let points = points(runs, load, |run| run.predicted_p99_us, false);
        if !points.is_empty() {
            series.push(Series {
                label: String::new(),
                style: Style::Predicted(number),
                points,
            });
        }
    }
    let ideal = results
        .of(mix, class)
        .filter(|run| run.ideal_p99_us.is_some());
    let mut floor: Vec<Point> = Vec::new();
    for point in points(ideal, load, |run| run.ideal_p99_us, false) {
        match floor.last_mut() {
            Some(last) if last.x == point.x => {
                last.y = last.y.zip(point.y).map(|(a, b)| a.min(b));
            }
            _ => floor.push(point),
        }
    }
    if !floor.is_empty() {
        series.push(Series {
            label: "no cost (simulated)".into(),
            style: Style::Floor,
            points: floor,
        });
    }
    series
}

/// The floor that the host's stalls put under every p99: a level line over all of `xs`.
fn stalls(results: &Policies, xs: &[f64]) -> Option<Series> {
    let floor = results.stall_floor_us()?;
    let (low, high) = (xs.iter().copied()).fold((f64::MAX, f64::MIN), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    let point = |x| Point {
        x,
        y: Some(floor),
        spread: None,
    };
    Some(Series {
        label: STALLS.into(),
        style: Style::Stalls,
        points: vec![point(low), point(high)],
    })
}

fn points<'a>(
    runs: impl Iterator<Item = &'a Run>,
    x: impl Fn(&Run) -> Option<f64>,
    y: impl Fn(&Run) -> Option<f64>,
    with_spread: bool,
) -> Vec<Point> {
    let point = |run: &Run| {
        let spread = run.p99_us_min.zip(run.p99_us_max).filter(|_| with_spread);
        Some(Point {
            x: x(run)?,
            y: y(run),
            spread,
        })
    };
    let mut points: Vec<Point> = runs.filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// A contender's name where the quantum is the axis: policy and mechanism.
fn without_quantum(run: &Run) -> String {
    Run {
        quantum_us: None,
        ..run.clone()
    }
    .contender()
}

fn requests(class: Class) -> String {
    format!("{class} requests")
}
