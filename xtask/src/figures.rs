//! `cargo xtask figures`: simulates every simulated figure of the papers that this project builds on.
//!
//! Each figure is written as PNG, SVG and CSV, and all together as one page, with what the paper shows and what ours
//! shows below each. Values are means over replications; bars and the CSV's ends are their 95 % intervals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::report::html::{STYLE, drawings, escape};
use crate::report::progress::Progress;
use shinjuku_plot::Figure;

mod racksched;
mod shinjuku;
mod sweep;
mod tailguard;
mod zygos;

/// Arguments of `cargo xtask figures`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Fewer requests and points: under a minute.
    #[arg(long)]
    quick: bool,
    /// Where to write; by default `figures` in Cargo's target directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only figures whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// How much is simulated.
#[derive(Clone, Copy)]
struct Effort {
    /// Requests counted in one replication.
    requests: u64,
    replications: u32,
    /// Between two loads, percent.
    load_step: usize,
    /// Requests of a replication where a highest load is looked for: many, as queues near saturation take long to fill.
    search_requests: u64,
    /// Halvings of the interval in which it is looked for.
    halvings: u32,
}

impl Effort {
    const QUICK: Self = Self {
        requests: 40_000,
        search_requests: 100_000,
        replications: 4,
        load_step: 10,
        halvings: 7,
    };
    const FULL: Self = Self {
        requests: 200_000,
        search_requests: 300_000,
        replications: 8,
        load_step: 5,
        halvings: 9,
    };

    /// Loads to simulate, in percent: from 10 to 95.
    fn loads(self) -> impl Iterator<Item = f64> {
        let steps = (10..95).step_by(self.load_step);
        steps.chain([95]).map(f64::from)
    }
}

/// A figure, and what to say below it.
struct Drawing {
    figure: Figure,
    paper: String,
    ours: String,
}

/// Draws a figure.
type Draw = fn(Effort) -> Result<Drawing>;

/// All figures: the paper they are of, a name, and about how many seconds each takes in full.
const FIGURES: [(&str, &str, u64, Draw); 17] = [
    ("Shinjuku", "shinjuku-1a", 8, shinjuku::exponential),
    ("Shinjuku", "shinjuku-1b", 8, shinjuku::lognormal),
    ("Shinjuku", "shinjuku-1c", 8, shinjuku::bimodal),
    ("Shinjuku", "shinjuku-2a", 12, shinjuku::priced_exponential),
    ("Shinjuku", "shinjuku-2b", 12, shinjuku::priced_lognormal),
    ("Shinjuku", "shinjuku-2c", 12, shinjuku::priced_bimodal),
    (
        "Shinjuku",
        "shinjuku-multi-queue",
        15,
        shinjuku::multi_queue,
    ),
    ("Shinjuku", "shinjuku-4", 30, shinjuku::connections),
    ("ZygOS", "zygos-fixed", 8, zygos::fixed),
    ("ZygOS", "zygos-exponential", 8, zygos::exponential),
    ("ZygOS", "zygos-bimodal-1", 8, zygos::bimodal_1),
    ("ZygOS", "zygos-bimodal-2", 8, zygos::bimodal_2),
    ("ZygOS", "zygos-load-at-slo", 30, zygos::load_at_slo),
    (
        "RackSched",
        "racksched-low-dispersion",
        12,
        racksched::low_dispersion,
    ),
    (
        "RackSched",
        "racksched-high-dispersion",
        12,
        racksched::high_dispersion,
    ),
    ("RackSched", "racksched-scale-out", 40, racksched::scale_out),
    ("TailGuard", "tailguard", 60, tailguard::policies),
];

/// Runs `cargo xtask figures`.
///
/// # Errors
/// If a simulation fails or a file cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let effort = if options.quick {
        Effort::QUICK
    } else {
        Effort::FULL
    };
    let directory = options
        .out
        .clone()
        .unwrap_or_else(|| crate::paths::target_dir().join("figures"));
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let wanted = |name: &str| {
        options
            .only
            .as_deref()
            .is_none_or(|part| name.contains(part))
    };
    let chosen: Vec<_> = FIGURES
        .iter()
        .filter(|(_, name, ..)| wanted(name))
        .collect();
    let seconds =
        |full: u64| Duration::from_secs_f64(full as f64 * if options.quick { 0.1 } else { 1.0 });
    let total = chosen.iter().map(|(_, _, full, _)| seconds(*full)).sum();
    let mut progress = Progress::new(total);
    let started = Instant::now();
    let mut body = String::new();
    let mut section = "";
    for (paper, name, full, draw) in chosen {
        progress.begin(name);
        let drawing = draw(effort).with_context(|| format!("figure {name}"))?;
        if *paper != section {
            body += &format!("<h2>{}</h2>\n", escape(paper));
            section = paper;
        }
        body += &write(&drawing, &directory)?;
        progress.end(seconds(*full));
    }
    progress.finish();
    let page = directory.join("figures.html");
    fs::write(&page, self::page(&body, options.quick))
        .with_context(|| format!("cannot write {}", page.display()))?;
    println!(
        "figures: {} ({:.0} s)",
        page.display(),
        started.elapsed().as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes a figure's files, and answers its part of the page.
fn write(drawing: &Drawing, directory: &Path) -> Result<String> {
    let Drawing {
        figure,
        paper,
        ours,
    } = drawing;
    let put = |extension: &str, text: &str| {
        let path = directory.join(format!("{}.{extension}", figure.name));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    put("svg", &shinjuku_plot::svg(figure)?)?;
    put("csv", &csv(figure))?;
    shinjuku_plot::png(figure, &directory.join(format!("{}.png", figure.name)))?;
    Ok(format!(
        "{}<p><strong>The paper:</strong> {}</p>\n<p><strong>Ours:</strong> {}</p>\n<p><a href=\"{name}.png\">PNG</a> \
         <a href=\"{name}.svg\">SVG</a> <a href=\"{name}.csv\">CSV</a></p>\n",
        drawings(std::slice::from_ref(figure))?,
        escape(paper),
        escape(ours),
        name = figure.name,
    ))
}

/// A line a point; a saturated point has no value.
pub(crate) fn csv(figure: &Figure) -> String {
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

fn page(body: &str, quick: bool) -> String {
    let effort = if quick {
        " This is a quick run: fewer requests and points than in full, wider intervals."
    } else {
        ""
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Shinjuku for Rust: the papers' figures, simulated</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>The papers' figures, simulated</h1>\n<p>Nothing here was measured: the runtime's own policies schedule \
         simulated cores. Unless a figure says otherwise scheduling costs nothing, arrivals are Poisson, d-FCFS and work \
         stealing see every request on a connection of its own, and latency is sojourn time. Bars are 95 % \
         intervals over replications. What is said of the papers are the claims of their text; where a caption says &ldquo;our \
         choice&rdquo;, a parameter is ours and the paper's may differ.{effort}</p>\n{body}</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use shinjuku_plot::{Point, Series, Style, XAxis, YAxis};

    #[test]
    fn loads_rise_from_10_to_95() {
        for effort in [Effort::QUICK, Effort::FULL] {
            let loads: Vec<_> = effort.loads().collect();
            assert_eq!((loads[0], loads[loads.len() - 1]), (10.0, 95.0));
            assert!(loads.is_sorted_by(|a, b| a < b), "{loads:?}");
        }
    }

    #[test]
    fn figures_have_names_of_their_own() {
        let mut names: Vec<_> = FIGURES.iter().map(|(_, name, ..)| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), FIGURES.len());
    }

    #[test]
    fn a_saturated_point_has_no_value_in_csv() {
        let point = |x, y: Option<f64>| Point {
            x,
            y,
            spread: y.map(|y| (y - 1.0, y + 1.0)),
        };
        let figure = Figure {
            name: "f".into(),
            title: "t".into(),
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "y".into(),
            bars: "interval",
            series: vec![Series {
                label: "c-FCFS".into(),
                style: Style::Contender(0),
                points: vec![point(10.0, Some(2.5)), point(90.0, None)],
            }],
        };
        let expected = "series,x,y,low,high\n\"c-FCFS\",10,2.5,1.5,3.5\n\"c-FCFS\",90,,,\n";
        assert_eq!(csv(&figure), expected);
    }
}
