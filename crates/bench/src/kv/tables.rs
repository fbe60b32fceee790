//! The tables of a run.

use shinjuku_loadgen::{Figures, Mark};
use shinjuku_workload::repeat::Spread;

use super::compare::efficiency;
use super::results::{Cell, ScenarioResults, WithinSlo};
use crate::harness::comparisons;
use crate::report::figure;
use shinjuku_plot::Table;

/// The points of a scenario, its comparisons, and its loads within the SLO.
pub fn tables(results: &ScenarioResults, slo_us: f64) -> Vec<Table> {
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
