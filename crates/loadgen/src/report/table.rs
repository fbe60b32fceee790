//! The final table.

use shinjuku_plot::Table;
use shinjuku_workload::repeat::median;

use super::Report;
use crate::plan::Load;
use crate::point::{ClassFigures, Figures, Mark, Point};

const HEADER: [&str; 10] = [
    "offered/s",
    "class",
    "answers/s",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "max us",
    "p99 slow",
    "failed",
    "late p99 us",
];

/// One line a load and class, medians over the repetitions, and below them the warnings.
#[must_use]
pub fn table(report: &Report) -> Table {
    let title = format!("medians over the repetitions, by {}", report.transport);
    let mut table = Table::new(title, HEADER);
    let mut loads: Vec<Load> = Vec::new();
    for point in &report.points {
        if !loads.contains(&point.load) {
            loads.push(point.load);
        }
    }
    for load in &loads {
        let points: Vec<_> = (report.points.iter())
            .filter(|point| point.load == *load)
            .collect();
        rows_of(&points).into_iter().for_each(|row| table.push(row));
    }
    let marks = Mark::ALL.into_iter().filter(|mark| {
        let mut points = report.points.iter();
        points.any(|point| point.marks.contains(mark))
    });
    let meanings = marks.map(|mark| format!("{}: {}", mark.letter(), mark.meaning()));
    table.notes.extend(meanings);
    for point in &report.points {
        let classes = point.classes.iter().chain(&point.probe);
        let of_classes = classes.flat_map(|class| {
            let of = |text| format!("{}: {text}", class.name);
            class.figures.first_errors.iter().map(of)
        });
        for text in of_classes.chain(point.client.first_errors.iter().cloned()) {
            let error = format!("error: {text}");
            if !table.notes.contains(&error) {
                table.notes.push(error);
            }
        }
    }
    table
}

/// The lines of a load: all requests, then each class, then the probe's.
fn rows_of(points: &[&Point]) -> Vec<Vec<String>> {
    let first = points[0];
    let letters: String = (Mark::ALL.iter())
        .filter(|mark| points.iter().any(|point| point.marks.contains(mark)))
        .map(|mark| mark.letter())
        .collect();
    let offered = match first.load {
        Load::Rate(rate) => format!("{rate:.0} {letters}"),
        Load::Saturate(depth) => format!("x{depth} {letters}"),
    };
    let late = middle(points.iter().map(|point| Some(point.client.late_p99_us)));
    let mut rows = Vec::new();
    if first.classes.len() > 1 {
        rows.push(row("all", points.iter().map(|point| &point.all)));
    }
    let of_classes = |classes: fn(&Point) -> &Vec<ClassFigures>, suffix: &str| {
        let named = classes(first).iter().enumerate();
        named
            .map(|(class, one)| {
                let figures = points.iter().map(|point| &classes(point)[class].figures);
                row(&format!("{}{suffix}", one.name), figures)
            })
            .collect::<Vec<_>>()
    };
    rows.extend(of_classes(|point| &point.classes, ""));
    rows.extend(of_classes(|point| &point.probe, " (probe)"));
    rows[0].insert(0, offered.trim_end().to_owned());
    rows[0].push(number(late, 0));
    for row in &mut rows[1..] {
        row.insert(0, String::new());
        row.push(String::new());
    }
    rows
}

fn row<'a>(name: &str, figures: impl Iterator<Item = &'a Figures> + Clone) -> Vec<String> {
    let of = |figure: fn(&Figures) -> Option<f64>| middle(figures.clone().map(figure));
    let failed: u64 = figures
        .clone()
        .map(|one| one.errors + one.lost + one.timed_out + one.unanswered + one.unsent)
        .sum();
    vec![
        name.to_owned(),
        number(of(|one| Some(one.throughput_rps)), 0),
        number(of(|one| one.p50_us), 1),
        number(of(|one| one.p99_us), 1),
        number(of(|one| one.p999_us), 1),
        number(of(|one| one.max_us), 0),
        number(of(|one| one.p99_slowdown), 1),
        failed.to_string(),
    ]
}

/// The median of the known values.
fn middle(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    median(&values.flatten().collect::<Vec<_>>())
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}
