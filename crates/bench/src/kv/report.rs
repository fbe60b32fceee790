//! The key-value server's part of the report: plots of p50, p99 and p99.9 of each class against the
//! offered load, a line a contender; and tables.

use shinjuku_loadgen::{Figures, Mark};
use shinjuku_plot::{Figure, Point, Series, Style, Table, XAxis, YAxis};
use shinjuku_workload::repeat::{Spread, median};

use super::compare::{self, efficiency};
use super::results::{Cell, KeyValue, Kind, ScenarioResults, WithinSlo};
use crate::harness::{Measured, Section, Target, comparisons};
use crate::report::figure;

impl Measured for KeyValue {
    const BENCH: &'static str = "kv";
    const TITLE: &'static str = "the key-value server beside redis-server";
    const DIRECTORY: &'static str = "bench-kv";

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Server's core", self.server_core.to_string()),
            ("Client's core", self.client_core.to_string()),
        ]
    }

    fn targets(&self) -> Vec<Target> {
        compare::targets(&self.scenarios, self.slo_us)
    }

    fn sections(&self) -> Vec<Section> {
        let mark = |mark: &Mark| format!("{}: {}", mark.letter(), mark.meaning());
        let of_scenario = |scenario: &ScenarioResults| {
            let said = scenario.descriptions.iter();
            Section {
                heading: scenario.title.clone(),
                figures: figures(scenario),
                tables: tables(scenario, self.slo_us),
                notes: Mark::ALL.iter().map(mark).collect(),
                details: said.map(|(name, said)| format!("{name}: {said}")).collect(),
                ..Section::default()
            }
        };
        self.scenarios.iter().map(of_scenario).collect()
    }
}

/// A percentile: as a file's name, in words, and where it stands.
type Measure = (&'static str, &'static str, fn(&Figures) -> Option<f64>);

const MEASURES: [Measure; 3] = [
    ("p50", "median", |one| one.p50_us),
    ("p99", "p99", |one| one.p99_us),
    ("p999", "p99.9", |one| one.p999_us),
];

/// All figures of a scenario.
fn figures(results: &ScenarioResults) -> Vec<Figure> {
    let kinds: Vec<Kind> = (results.kinds().into_iter())
        .filter(|kind| matches!(kind, Kind::Load { .. }))
        .collect();
    let Some(first) = results.cells.iter().find(|cell| kinds.contains(&cell.kind)) else {
        return Vec::new();
    };
    let mut figures = Vec::new();
    for (class, named) in first.point.classes.iter().enumerate() {
        for (file, words, value) in MEASURES {
            let name = named.name.to_uppercase();
            let of = |cell: &Cell| value(&cell.point.classes.get(class)?.figures);
            let series = results.contenders.iter().enumerate();
            let series = series.map(|(number, contender)| Series {
                label: contender.clone(),
                style: Style::Contender(number),
                points: (kinds.iter())
                    .filter_map(|kind| {
                        point(&results.cells(contender, kind).collect::<Vec<_>>(), &of)
                    })
                    .collect(),
            });
            figures.push(Figure {
                name: format!("{}-{}-{file}", results.name, named.name),
                title: format!("{}: {name} {words}", results.title),
                x: XAxis::Linear("offered load (requests/s)"),
                y: YAxis::Logarithmic,
                y_label: format!("{name} {words} (µs, log)"),
                bars: "lowest and highest repetition",
                series: series.filter(|one| !one.points.is_empty()).collect(),
            });
        }
    }
    figures
}

/// A contender's point at a load; without a value where the server did not keep up in most
/// repetitions.
fn point(cells: &[&Cell], of: &dyn Fn(&Cell) -> Option<f64>) -> Option<Point> {
    let x = median(
        &cells
            .iter()
            .map(|cell| cell.point.offered_rps)
            .collect::<Vec<_>>(),
    )?;
    let saturated = (cells.iter()).filter(|cell| cell.point.marks.contains(&Mark::Saturated));
    if 2 * saturated.count() > cells.len() {
        return Some(Point {
            x,
            y: None,
            spread: None,
        });
    }
    let values: Vec<f64> = cells.iter().filter_map(|cell| of(cell)).collect();
    let spread = Spread::of(&values)?;
    Some(Point {
        x,
        y: Some(spread.median),
        spread: Some((spread.min, spread.max)),
    })
}

/// The points of a scenario, its comparisons, and its loads within the SLO.
fn tables(results: &ScenarioResults, slo_us: f64) -> Vec<Table> {
    let mut tables = vec![points(results)];
    tables.extend(comparisons(&results.comparisons));
    if !results.within_slo.is_empty() {
        tables.push(within_slo(&results.within_slo, slo_us));
    }
    tables
}

/// One row a point and contender, medians over the repetitions.
fn points(results: &ScenarioResults) -> Table {
    let classes = results
        .cells
        .first()
        .map_or(0, |cell| cell.point.classes.len());
    let most = |cell: &Cell| cell.point.classes.len();
    let classes = results.cells.iter().map(most).fold(classes, usize::max);
    let mut header = vec![
        "".to_owned(),
        "offered/s".into(),
        "answers/s".into(),
        "CPU cores".into(),
        "answers/CPU s".into(),
    ];
    let names = results.cells.iter().find(|cell| most(cell) == classes);
    for class in names.iter().flat_map(|cell| &cell.point.classes) {
        let name = class.name.to_uppercase();
        header.extend([
            format!("{name} p50"),
            "p99".into(),
            "(min..max)".into(),
            "p99.9".into(),
        ]);
    }
    header.push("failed".into());
    let title = format!(
        "{}: latencies in µs; {} {:.0} requests/s = 100 %",
        results.title, results.reference, results.capacity_rps
    );
    let mut table = Table::new(title, header);
    for kind in results.kinds() {
        for contender in &results.contenders {
            let cells: Vec<_> = results.cells(contender, &kind).collect();
            if !cells.is_empty() {
                table.push(row(&kind.label(), contender, &cells, classes));
            }
        }
    }
    table
}

fn row(label: &str, contender: &str, cells: &[&Cell], classes: usize) -> Vec<String> {
    let spread = |value: &dyn Fn(&Cell) -> Option<f64>| {
        let values: Vec<f64> = cells.iter().filter_map(|cell| value(cell)).collect();
        Spread::of(&values)
    };
    let middle = |value: &dyn Fn(&Cell) -> Option<f64>| {
        spread(value).map_or_else(|| "-".to_owned(), |spread| figure(spread.median))
    };
    let marks: String = (Mark::ALL.iter())
        .filter(|mark| cells.iter().any(|cell| cell.point.marks.contains(mark)))
        .map(|mark| mark.letter())
        .collect();
    let mut row = vec![
        format!("{label} {contender} {marks}").trim_end().to_owned(),
        middle(&|cell| Some(cell.point.offered_rps)),
        middle(&|cell| Some(cell.point.all.throughput_rps)),
        middle(&|cell| Some(cell.cpu_cores)),
        middle(&efficiency),
    ];
    for class in 0..classes {
        let of = |cell: &Cell, figure: fn(&Figures) -> Option<f64>| {
            figure(&cell.point.classes.get(class)?.figures)
        };
        let p99 = spread(&|cell| of(cell, |one| one.p99_us));
        row.push(middle(&|cell| of(cell, |one| one.p50_us)));
        row.push(p99.map_or_else(|| "-".into(), |spread| figure(spread.median)));
        row.push(p99.map_or_else(String::new, |spread| {
            format!("({}..{})", figure(spread.min), figure(spread.max))
        }));
        row.push(middle(&|cell| of(cell, |one| one.p999_us)));
    }
    let failed = |cell: &&Cell| {
        let all = &cell.point.all;
        all.errors + all.lost + all.timed_out + all.unanswered + all.unsent
    };
    row.push(cells.iter().map(failed).sum::<u64>().to_string());
    row
}

fn within_slo(within: &[WithinSlo], slo_us: f64) -> Table {
    let title =
        format!("highest load measured that keeps GET p99 within {slo_us} µs, as do all below it");
    let mut table = Table::new(title, ["", "requests/s", "range", ""]);
    for one in within {
        let rps = one.rps.as_ref();
        table.push([
            one.contender.clone(),
            rps.map_or_else(|| "none".into(), |rps| figure(rps.median)),
            rps.map_or_else(String::new, |rps| {
                format!("({}..{})", figure(rps.min), figure(rps.max))
            }),
            if one.at_the_end {
                "the highest measured"
            } else {
                ""
            }
            .into(),
        ]);
    }
    table
}
