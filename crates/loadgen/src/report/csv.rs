//! Every figure of every point, one row a class.

use std::fmt::Write;

use super::Report;
use crate::plan::Load;
use crate::point::{Figures, Mark, Point};

/// The report as CSV; latencies in us, empty where there is no value.
#[must_use]
pub fn csv(report: &Report) -> String {
    let mut text = "rate,depth,seed,class,offered_rps,throughput_rps,due,answered,errors,lost,timed_out,unanswered,unsent,\
         mean_us,p50_us,p90_us,p99_us,p999_us,max_us,p50_slowdown,p99_slowdown,p999_slowdown,late_share,late_p99_us,marks\n"
        .to_owned();
    for point in &report.points {
        push(&mut text, point, "all", &point.all);
        for class in &point.classes {
            push(&mut text, point, &class.name, &class.figures);
        }
        for class in &point.probe {
            push(
                &mut text,
                point,
                &format!("{} (probe)", class.name),
                &class.figures,
            );
        }
    }
    text
}

fn push(text: &mut String, point: &Point, class: &str, figures: &Figures) {
    let (rate, depth) = match point.load {
        Load::Rate(rate) => (rate.to_string(), String::new()),
        Load::Saturate(depth) => (String::new(), depth.to_string()),
    };
    let optional =
        |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let latencies = [
        figures.mean_us,
        figures.p50_us,
        figures.p90_us,
        figures.p99_us,
        figures.p999_us,
        figures.max_us,
        figures.p50_slowdown,
        figures.p99_slowdown,
        figures.p999_slowdown,
    ];
    let counts = [
        figures.due,
        figures.answered,
        figures.errors,
        figures.lost,
        figures.timed_out,
        figures.unanswered,
        figures.unsent,
    ];
    let marks: String = point
        .marks
        .iter()
        .map(|mark: &Mark| mark.letter())
        .collect();
    let mut cells = vec![rate, depth, point.seed.to_string(), quoted(class)];
    cells.push(format!("{:.1}", point.offered_rps));
    cells.push(format!("{:.1}", figures.throughput_rps));
    cells.extend(counts.map(|count| count.to_string()));
    cells.extend(latencies.map(optional));
    cells.push(format!("{:.6}", point.client.late_share));
    cells.push(format!("{:.3}", point.client.late_p99_us));
    cells.push(marks);
    let _ = writeln!(text, "{}", cells.join(","));
}

/// A text quoted for CSV, if it contains commas or quotes.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
