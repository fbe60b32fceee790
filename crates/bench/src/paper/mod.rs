//! `cargo xtask paper`: what the documents claim, item by item, beside what this project finds.
//!
//! | file | |
//! |---|---|
//! | `list` | `docs/paper.toml`: the claims, their places, and what a run is held to |
//! | `reading` | where a number stands: in a simulated figure, or in a results.json |
//! | `verdict` | the number beside the document's |
//! | `report` | one page with tables, plots and targets |
//!
//! Simulated items are figures of `cargo xtask figures`, which the caller draws. Measured ones are
//! other commands of `cargo xtask`: this program starts itself, and reads the results.json. A
//! figure or a command that several items read runs once.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shinjuku_plot::{Figure, Point, Series, Style};
use shinjuku_preempt::Realtime;

use crate::harness::{self, Efforts, Process, Session};
use crate::machine::Machine;

mod list;
mod reading;
mod report;
mod verdict;

pub use list::{Check, Document, Item, List, Run};
pub use reading::Reading;
pub use verdict::{Judged, Verdict};

/// Options of `cargo xtask paper`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Print the items, and run none.
    #[arg(long)]
    list: bool,
    /// Only these items.
    #[arg(value_name = "ITEM")]
    items: Vec<String>,
}

/// A simulated figure, and what the simulation found, in words.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// The figure.
    pub figure: Figure,
    /// A sentence.
    pub found: String,
}

/// Draws a figure by name: with few requests and points if the second argument is true.
pub type Simulate<'a> = &'a dyn Fn(&str, bool) -> Result<Simulated>;

/// What was found, item by item.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Paper {
    /// In the list's order.
    pub items: Vec<Reproduced>,
    /// The figures. They are beside a results.json, not in it.
    #[serde(skip)]
    figures: Vec<(String, Figure)>,
}

/// An item, and what was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reproduced {
    /// The item.
    pub name: String,
    /// The document's name.
    pub document: String,
    /// Where the document says so.
    pub place: String,
    /// What it says, in our words.
    pub claim: String,
    /// What is our choice.
    pub ours: String,
    /// How the item was reproduced, or why not.
    pub how: String,
    /// What a simulation found, in words.
    pub found: Option<String>,
    /// The numbers.
    pub checks: Vec<Judged>,
}

/// The priority at which SCHED_FIFO is tried, which the commands that measure need.
const PRIORITY: i32 = 50;

/// Of the commands that measure; figures have two efforts of their own.
const EFFORTS: Efforts = Efforts {
    quick: (3, 0.35),
    default: (5, 0.4),
    full: (7, 0.6),
    seconds: 0.05..=0.9,
};

/// What a run gave.
enum Outcome {
    Drawn(Simulated),
    Measured(Value),
    Not(String),
}

/// Runs the items, and publishes what was found.
///
/// # Errors
/// There is no such item, the run was interrupted, or results cannot be written.
pub fn run(options: &Options, simulate: Simulate<'_>) -> Result<ExitCode> {
    let list = List::read()?;
    if options.list {
        println!("{}", list.names());
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = list.chosen(&options.items)?;
    let custom = !options.items.is_empty();
    let settings = options.common.settings(&EFFORTS, custom)?;
    let mut session = Session::begin::<Paper>(&options.common, settings)?;
    let runs = harness::distinct(chosen.iter().map(|item| &item.run));
    let total = runs.iter().map(|run| length(run, &options.common)).sum();
    let machine = Machine::detect(Realtime::enter(PRIORITY).is_ok());
    session.expect(&machine, total);
    let mut paper = Paper::default();
    let reproduced = reproduce(options, simulate, &list, &chosen, &mut session, &mut paper);
    session.end(machine, paper, reproduced)
}

/// About how long it takes: to show how far the whole is.
fn length(run: &Run, options: &harness::Options) -> Duration {
    Duration::from_secs(match run {
        Run::Figure(_) => options.pick(3, 20, 20),
        Run::Command(_) => options.pick(120, 400, 1200),
        Run::Missing(_) => 0,
    })
}

fn reproduce(
    options: &Options,
    simulate: Simulate<'_>,
    list: &List,
    chosen: &[&Item],
    session: &mut Session,
    paper: &mut Paper,
) -> Result<()> {
    let mut outcomes = BTreeMap::new();
    for item in chosen {
        let document = &list.documents[&item.document].name;
        if !outcomes.contains_key(&item.run) {
            let outcome = outcome(options, simulate, &item.run, session)?;
            if let Outcome::Drawn(Simulated { figure, .. }) = &outcome {
                let figure = with_the_papers_points(figure.clone(), item);
                paper.figures.push((document.clone(), figure));
            }
            outcomes.insert(item.run.clone(), outcome);
        }
        paper
            .items
            .push(reproduced(item, document, &outcomes[&item.run]));
    }
    Ok(())
}

/// Runs it. What fails is told, and the rest goes on.
fn outcome(
    options: &Options,
    simulate: Simulate<'_>,
    run: &Run,
    session: &mut Session,
) -> Result<Outcome> {
    let outcome = match run {
        Run::Missing(why) => return Ok(Outcome::Not(why.clone())),
        Run::Figure(name) => {
            session.progress.begin(&format!("figure {name}"));
            simulate(name, options.common.quick).map(Outcome::Drawn)
        }
        Run::Command(arguments) => {
            session.progress.begin(&arguments.join(" "));
            measured(&options.common, arguments, session).map(Outcome::Measured)
        }
    };
    session.progress.end(length(run, &options.common));
    if session.stop.load(Relaxed) {
        bail!("interrupted");
    }
    Ok(outcome.unwrap_or_else(|error| {
        session.notes.push(format!("{}: {error:#}", run.words()));
        Outcome::Not(format!("{error:#}"))
    }))
}

/// What a command of this program writes into its results.json.
fn measured(options: &harness::Options, arguments: &[String], session: &Session) -> Result<Value> {
    let program = std::env::current_exe().context("where is this program?")?;
    let path = session.directory.join("measured.json");
    let json = path.display().to_string();
    let mut line: Vec<&str> = arguments.iter().map(String::as_str).collect();
    line.extend(options.pick(Some("--quick"), None, Some("--full")));
    line.extend(["--json", &json]);
    let process = Process::start(&program, &session.directory, &line)?;
    let patience = 3 * length(&Run::Command(Vec::new()), options);
    process.end(patience, &session.stop)?;
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {json}"))?;
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {json}"))?;
    serde_json::from_str(&text).with_context(|| format!("{json} is not a results.json"))
}

/// The figure, with the document's own values where its text gives them.
fn with_the_papers_points(mut figure: Figure, item: &Item) -> Figure {
    let points = item.checks.iter().filter_map(|check| match check.reads {
        Reading::Value { at, .. } => Some(Point {
            x: at,
            y: Some(check.paper?),
            spread: None,
        }),
        _ => None,
    });
    let points: Vec<_> = points.collect();
    if !points.is_empty() {
        figure.series.push(Series {
            label: "the document".to_owned(),
            style: Style::Contender(figure.series.len()),
            points,
        });
    }
    figure
}

fn reproduced(item: &Item, document: &str, outcome: &Outcome) -> Reproduced {
    let judge = |check: &Check| match outcome {
        Outcome::Drawn(drawn) => Judged::of(check, check.reads.of_figure(&drawn.figure)),
        Outcome::Measured(results) => Judged::of(check, check.reads.of_results(results)),
        Outcome::Not(why) => Judged::not_run(check, why),
    };
    Reproduced {
        name: item.name.clone(),
        document: document.to_owned(),
        place: item.place.clone(),
        claim: item.claim.clone(),
        ours: item.ours.clone(),
        how: item.run.words(),
        found: match outcome {
            Outcome::Drawn(drawn) => Some(drawn.found.clone()),
            _ => None,
        },
        checks: item.checks.iter().map(judge).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_numbers_are_points_of_the_figure() {
        let list = List::read().unwrap();
        let with_value = list.items.iter().find(|item| item.name == "shinjuku-4");
        let figure = Figure {
            name: "f".to_owned(),
            title: "t".to_owned(),
            x: shinjuku_plot::XAxis::Load,
            y: shinjuku_plot::YAxis::Logarithmic,
            y_label: "y".to_owned(),
            bars: "",
            series: Vec::new(),
        };
        let figure = with_the_papers_points(figure, with_value.unwrap());
        let points = &figure.series[0].points;
        assert_eq!((points[0].x, points[0].y), (2.0, Some(300.0)));
        assert_eq!((points[1].x, points[1].y), (24.0, Some(16_000.0)));
    }

    #[test]
    fn what_cannot_run_says_why() {
        let list = List::read().unwrap();
        let item = &list.items[0];
        let found = reproduced(item, "D", &Outcome::Not("no reason".to_owned()));
        for check in &found.checks {
            assert_eq!(check.verdict, Verdict::CannotRun);
            assert_eq!(check.why_not.as_deref(), Some("no reason"));
        }
    }
}
