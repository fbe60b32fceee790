//! The plots of a run: p99 and p99.9 of each class against the offered load, a line a contender.

use shinjuku_loadgen::{Figures, Mark};
use shinjuku_plot::{Figure, Point, Series, Style, XAxis, YAxis};
use shinjuku_workload::repeat::{Spread, median};

use super::results::{Cell, Kind, ScenarioResults};

/// A percentile: as a file's name, in words, and where it stands.
type Measure = (&'static str, &'static str, fn(&Figures) -> Option<f64>);

const MEASURES: [Measure; 3] = [
    ("p50", "median", |one| one.p50_us),
    ("p99", "p99", |one| one.p99_us),
    ("p999", "p99.9", |one| one.p999_us),
];

/// All figures of a scenario.
pub fn figures(results: &ScenarioResults) -> Vec<Figure> {
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
