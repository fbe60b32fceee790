//! Presents what a bench measured: tables on the terminal, and a directory with JSON, CSV, plots
//! and one page.
//!
//! A [`Session`](crate::harness::Session) ends with [`publish`]. `cargo xtask report` does the same
//! with a `results.json` measured before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use shinjuku_plot::{Figure, Point};
use shinjuku_workload::repeat::Spread;

use crate::auto::Auto;
use crate::connections::Connections;
use crate::dataplane::Dataplane;
use crate::elevate::Elevate;
use crate::harness::{Measured, Results, Section, targets};
use crate::kv::KeyValue;
use crate::layouts::Layouts;
use crate::ordinary::Ordinary;
use crate::paper::Paper;
use crate::policies::Policies;
use crate::rack::Rack;
use crate::service::Service;
use crate::tailguard::TailGuard;
use crate::versions::Versions;

pub mod html;
mod progress;

pub use progress::Progress;

/// Arguments of `cargo xtask report`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The results.json to present.
    results: PathBuf,
    /// Where to write; by default beside the results.json.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs `cargo xtask report`.
///
/// # Errors
/// If the results cannot be read or the report cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let path = &options.results;
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let json: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a results.json", path.display()))?;
    match json["bench"].as_str() {
        Some(Policies::BENCH) => again::<Policies>(options),
        Some(KeyValue::BENCH) => again::<KeyValue>(options),
        Some(Dataplane::BENCH) => again::<Dataplane>(options),
        Some(Elevate::BENCH) => again::<Elevate>(options),
        Some(Rack::BENCH) => again::<Rack>(options),
        Some(Ordinary::BENCH) => again::<Ordinary>(options),
        Some(Service::BENCH) => again::<Service>(options),
        Some(Connections::BENCH) => again::<Connections>(options),
        Some(TailGuard::BENCH) => again::<TailGuard>(options),
        Some(Versions::BENCH) => again::<Versions>(options),
        Some(Paper::BENCH) => again::<Paper>(options),
        Some(Layouts::BENCH) => again::<Layouts>(options),
        Some(Auto::BENCH) => again::<Auto>(options),
        _ => bail!("{} does not say which bench it is of", path.display()),
    }
}

fn again<M: Measured>(options: &Options) -> Result<ExitCode> {
    let results = Results::<M>::read(&options.results)?;
    let beside = || options.results.parent().unwrap_or(Path::new("")).to_owned();
    let directory = options.out.clone().unwrap_or_else(beside);
    publish(&results, &directory)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the tables and notes, writes everything else into `directory`, and says where.
///
/// # Errors
/// If the results contradict themselves ([`Results::check`]) or a file cannot be written.
pub fn publish<M: Measured>(results: &Results<M>, directory: &Path) -> Result<()> {
    let sections = write(results, directory)?;
    println!("{}\n", results.machine.summary());
    for section in sections.iter().filter(|one| !one.tables.is_empty()) {
        println!("== {}\n", section.heading);
        for table in &section.tables {
            println!("{table}");
        }
        for note in &section.notes {
            println!("  {note}");
        }
        println!();
    }
    for note in &results.notes {
        println!("note: {note}");
    }
    if let Some(targets) = targets(&results.targets) {
        println!("\n{targets}");
    }
    println!("report: {}", directory.join("report.html").display());
    Ok(())
}

/// Writes `results.json`, the bench's own CSV files, every plot as SVG, PNG and CSV, and
/// `report.html`. A plot of this machine is under the name of its CPU.
///
/// # Errors
/// If the results contradict themselves ([`Results::check`]) or a file cannot be written.
pub fn write<M: Measured>(results: &Results<M>, directory: &Path) -> Result<Vec<Section>> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    results.write(&directory.join("results.json"))?;
    let put = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    for (name, text) in results.measured.csv() {
        put(name, &text)?;
    }
    let mut sections = results.measured.sections();
    for figure in sections.iter_mut().flat_map(|one| &mut one.figures) {
        if M::DRAWS_THIS_MACHINE {
            figure.title += &format!(" ({})", results.machine.cpu);
        }
        draw(figure, directory)?;
    }
    put("report.html", &html::page(results, &sections)?)?;
    Ok(sections)
}

/// Writes a plot into `directory`, as SVG, PNG and CSV.
///
/// # Errors
/// If it cannot be drawn, or a file cannot be written.
pub fn draw(figure: &Figure, directory: &Path) -> Result<()> {
    let path = |ending: &str| directory.join(format!("{}.{ending}", figure.name));
    for (ending, text) in [("svg", shinjuku_plot::svg(figure)?), ("csv", csv(figure))] {
        let path = path(ending);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    shinjuku_plot::png(figure, &path("png"))
}

/// A number with three significant digits, and all digits before the point.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A figure, or a dash where nothing was measured.
pub fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), figure)
}

/// A median's cell, and that of lowest and highest repetition.
pub fn cells(spread: Option<Spread>) -> [String; 2] {
    let range = spread.map(|one| format!("({}..{})", figure(one.min), figure(one.max)));
    [
        or_dash(spread.map(|one| one.median)),
        range.unwrap_or_default(),
    ]
}

/// What the bars of a [`point`] are.
pub const BARS: &str = "lowest and highest repetition";

/// A median with its bar; without a value where nothing was measured.
pub fn point(x: f64, spread: Option<Spread>) -> Point {
    Point {
        x,
        y: spread.map(|one| one.median),
        spread: spread.map(|one| (one.min, one.max)),
    }
}

/// A field of a CSV file, in quotation marks where RFC 4180 asks for them.
pub fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// A line a point; a saturated point has no value.
fn csv(figure: &Figure) -> String {
    let mut text = String::from("series,x,y,low,high\n");
    for series in &figure.series {
        for point in &series.points {
            let optional = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
            text += &format!(
                "\"{}\",{},{},{},{}\n",
                series.label,
                point.x,
                optional(point.y),
                optional(point.spread.map(|(low, _)| low)),
                optional(point.spread.map(|(_, high)| high)),
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use shinjuku_plot::{Series, XAxis, YAxis};

    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        for (value, text) in [
            (0.123, "0.12"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (99.96, "100"),
            (12345.6, "12346"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn fields_are_quoted_only_where_needed() {
        assert_eq!(quoted("c-FCFS"), "c-FCFS");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"no\""), "\"say \"\"no\"\"\"");
    }

    #[test]
    fn a_saturated_point_has_no_value_in_csv() {
        let point = |x, y: Option<f64>| Point {
            x,
            y,
            spread: y.map(|y| (y - 1.0, y + 1.0)),
        };
        let drawn = Figure {
            name: "f".into(),
            title: "t".into(),
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "y".into(),
            bars: "interval",
            series: vec![Series::contender(
                0,
                "c-FCFS",
                vec![point(10.0, Some(2.5)), point(90.0, None)],
            )],
        };
        let expected = "series,x,y,low,high\n\"c-FCFS\",10,2.5,1.5,3.5\n\"c-FCFS\",90,,,\n";
        assert_eq!(csv(&drawn), expected);
    }
}
