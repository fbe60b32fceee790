//! `cargo xtask figures`: simulates the figures of the papers that this project builds on, and some
//! of our own.
//!
//! Each figure is written as PNG, SVG and CSV, and all together as one page. Below each stands what
//! the document says, with its place there and the test that holds the simulator to it; what in the
//! figure is our choice; and what the simulation found. Values are means over replications; bars
//! and the CSV's ends are their 95 % intervals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use shinjuku_bench::paper::{self, Simulated};
use shinjuku_bench::report::html::{document, drawings, escape};
use shinjuku_bench::report::{Progress, draw};
use shinjuku_plot::{Figure, Series, XAxis, YAxis};
use source::{Claim, Source};

mod evaluation;
mod layouts;
mod linux;
mod rack_state;
mod racksched;
mod shinjuku;
mod source;
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
    /// Requests of a replication where a highest load is looked for: many, as queues near
    /// saturation take long to fill.
    search_requests: u64,
    /// Halvings of the interval in which it is looked for.
    halvings: u32,
    /// When a figure must be done; none must by default.
    until: Option<Instant>,
}

impl Effort {
    const QUICK: Self = Self {
        requests: 40_000,
        search_requests: 100_000,
        replications: 4,
        load_step: 10,
        halvings: 7,
        until: None,
    };
    const FULL: Self = Self {
        requests: 200_000,
        search_requests: 300_000,
        replications: 8,
        load_step: 5,
        halvings: 9,
        until: None,
    };

    /// Asked before every point: whether there is time left.
    fn check_time(self) -> Result<()> {
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        ensure!(!is_late, "it takes far longer than its plan says");
        Ok(())
    }

    /// Loads to simulate, in percent: from 10 to 95.
    fn loads(self) -> impl Iterator<Item = f64> {
        let steps = (10..95).step_by(self.load_step);
        steps.chain([95]).map(f64::from)
    }
}

/// Lines on their axes, and what the simulation found, in a sentence.
struct Drawing {
    x: XAxis,
    y: YAxis,
    y_label: &'static str,
    bars: &'static str,
    series: Vec<Series>,
    found: String,
}

/// What the bars of replicated points are.
const INTERVAL: &str = "95 % interval";

impl Drawing {
    /// Of p99 latency against load.
    fn latency(series: Vec<Series>, found: String) -> Self {
        Self {
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "p99 latency, all requests (µs, log)",
            bars: INTERVAL,
            series,
            found,
        }
    }
}

/// A figure that can be drawn.
struct Entry {
    /// The document it is about.
    source: &'static Source,
    name: &'static str,
    title: &'static str,
    /// About how many seconds it takes in full.
    seconds: u64,
    /// What the document says.
    claims: &'static [Claim],
    /// Parameters, and whatever else the document does not have: our choice.
    ours: &'static str,
    draw: fn(Effort) -> Result<Drawing>,
}

impl Entry {
    fn draw(&self, effort: Effort) -> Result<Simulated> {
        let drawing = (self.draw)(effort)?;
        Ok(Simulated {
            figure: Figure {
                name: self.name.to_owned(),
                title: self.title.to_owned(),
                x: drawing.x,
                y: drawing.y,
                y_label: drawing.y_label.to_owned(),
                bars: drawing.bars,
                series: drawing.series,
            },
            found: drawing.found,
        })
    }
}

/// All figures, those about one document together.
fn entries() -> impl Iterator<Item = &'static Entry> {
    let all = [
        shinjuku::FIGURES,
        evaluation::FIGURES,
        zygos::FIGURES,
        linux::FIGURES,
        racksched::FIGURES,
        rack_state::FIGURES,
        tailguard::FIGURES,
        layouts::FIGURES,
    ];
    all.into_iter().flatten()
}

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
        .unwrap_or_else(|| shinjuku_bench::paths::target_dir().join("figures"));
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let wanted = |name: &str| {
        options
            .only
            .as_deref()
            .is_none_or(|part| name.contains(part))
    };
    let chosen: Vec<_> = entries().filter(|entry| wanted(entry.name)).collect();
    let seconds = |full: u64| takes(full, options.quick);
    let total = chosen.iter().map(|entry| seconds(entry.seconds)).sum();
    let mut progress = Progress::new(total);
    let started = Instant::now();
    let mut body = String::new();
    let mut section = "";
    for entry in chosen {
        progress.begin(entry.name);
        let drawing = entry
            .draw(effort)
            .with_context(|| format!("figure {}", entry.name))?;
        if entry.source.name != section {
            section = entry.source.name;
            let reference = escape(entry.source.reference);
            body += &format!("<h2>{}</h2>\n<p>{reference}.</p>\n", escape(section));
        }
        body += &write(entry, &drawing, &directory)?;
        progress.end(seconds(entry.seconds));
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

/// About how long a figure takes that takes so many seconds in full.
fn takes(seconds: u64, quick: bool) -> Duration {
    Duration::from_secs_f64(seconds as f64 * if quick { 0.1 } else { 1.0 })
}

/// The figures, for `cargo xtask paper`.
#[derive(Debug, Clone, Copy)]
pub struct Figures;

impl paper::Figures for Figures {
    fn takes(&self, name: &str, quick: bool) -> Option<Duration> {
        let entry = entries().find(|entry| entry.name == name)?;
        Some(takes(entry.seconds, quick))
    }

    fn draw(&self, name: &str, quick: bool, until: Instant) -> Result<Simulated> {
        let effort = if quick { Effort::QUICK } else { Effort::FULL };
        let effort = Effort {
            until: Some(until),
            ..effort
        };
        let entry = entries().find(|entry| entry.name == name);
        let entry = entry.with_context(|| format!("there is no figure {name}"))?;
        entry.draw(effort)
    }
}

/// Writes a figure's files, and answers its part of the page.
fn write(
    entry: &Entry,
    Simulated { figure, found }: &Simulated,
    directory: &Path,
) -> Result<String> {
    let name = &figure.name;
    draw(figure, directory)?;
    Ok(format!(
        "{}{}<p><strong>Simulated:</strong> {}</p>\n<p><a href=\"{name}.png\">PNG</a> <a href=\"{name}.svg\">SVG</a> \
         <a href=\"{name}.csv\">CSV</a></p>\n",
        drawings(std::slice::from_ref(figure))?,
        words(entry),
        escape(found),
    ))
}

/// What stands below a figure before its numbers: each claim with its place and its test, and what
/// is ours.
fn words(entry: &Entry) -> String {
    let claim = |claim: &Claim| {
        let Claim { place, says, test } = claim;
        format!(
            "<li>{}, {}: {} (<code>{test}</code>)</li>\n",
            escape(entry.source.name),
            escape(place),
            escape(says)
        )
    };
    let claims: String = entry.claims.iter().map(claim).collect();
    format!(
        "<ul>\n{claims}</ul>\n<p><strong>Our choice:</strong> {}</p>\n",
        escape(entry.ours)
    )
}

fn page(body: &str, quick: bool) -> String {
    let effort = if quick {
        " This is a quick run: fewer requests and points than in full, wider intervals."
    } else {
        ""
    };
    let body = format!(
        "<h1>The papers' figures, simulated</h1>\n<p>Nothing here was measured: the runtime's own policies schedule \
         simulated cores. Unless a figure says otherwise scheduling costs nothing, arrivals are Poisson, d-FCFS and work \
         stealing see every request on a connection of its own, and latency is sojourn time. PS is exact, where the \
         Shinjuku paper's simulations have a time slice of 0.1 µs (section 2). Bars are 95 % intervals over \
         replications.</p>\n<p>The list below a figure is what the document says, in our words, with its place there; in \
         brackets, the test in <code>crates/sim/tests/simulator/claims</code> that holds the simulator to it. What the \
         document does not say stands under &ldquo;Our choice&rdquo;.{effort}</p>\n{body}"
    );
    document("the papers' figures, simulated", &body)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shinjuku_bench::paper::{List, Run};

    use super::*;

    #[test]
    fn loads_rise_from_10_to_95() {
        for effort in [Effort::QUICK, Effort::FULL] {
            let loads: Vec<_> = effort.loads().collect();
            assert_eq!((loads[0], loads[loads.len() - 1]), (10.0, 95.0));
            assert!(loads.is_sorted_by(|a, b| a < b), "{loads:?}");
        }
    }

    #[test]
    fn every_figure_and_line_of_the_list_of_claims_is_drawn() {
        let effort = Effort {
            requests: 500,
            search_requests: 500,
            replications: 2,
            load_step: 10,
            halvings: 1,
            until: None,
        };
        let list = List::read().unwrap();
        let mut drawn = BTreeMap::new();
        for item in &list.items {
            let Run::Figure(name) = &item.run else {
                continue;
            };
            let figure = drawn.entry(name).or_insert_with(|| {
                let entry = entries().find(|entry| entry.name == name);
                let entry = entry.unwrap_or_else(|| panic!("{}: {name}", item.name));
                entry.draw(effort).unwrap().figure
            });
            let labels: Vec<_> = figure.series.iter().map(|one| &*one.label).collect();
            for line in item.checks.iter().flat_map(|check| check.reads.lines()) {
                assert!(
                    labels.contains(&line),
                    "{}: {line} of {labels:?}",
                    item.name
                );
            }
        }
        assert!(drawn.len() > 15, "the list is of figures");
    }

    #[test]
    fn all_items_take_under_ten_minutes_with_quick() {
        let list = List::read().unwrap();
        let mut runs: Vec<_> = list.items.iter().map(|item| &item.run).collect();
        runs.sort_unstable();
        runs.dedup();
        let all = runs
            .into_iter()
            .map(|run| paper::takes(&list, &Figures, run, (true, false)));
        let all: Duration = all.sum();
        assert!(all < Duration::from_secs(600), "{all:?}");
    }

    #[test]
    fn a_figure_that_is_late_is_given_up() {
        use paper::Figures as _;
        for entry in entries() {
            let late = Figures.draw(entry.name, true, Instant::now());
            let error = late.expect_err(entry.name);
            assert!(
                error.to_string().contains("longer than its plan"),
                "{error}"
            );
        }
        assert_eq!(Figures.takes("none", true), None);
    }

    #[test]
    fn figures_have_names_of_their_own() {
        let mut names: Vec<_> = entries().map(|entry| entry.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
