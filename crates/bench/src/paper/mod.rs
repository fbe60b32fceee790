//! `cargo xtask paper`: what the documents claim, item by item, beside what this project finds.
//!
//! | file | what it holds |
//! |---|---|
//! | `list` | `docs/paper.toml`: the claims, their places, and what a run is held to |
//! | `reading` | where a number stands: in a simulated figure, or in a results.json |
//! | `verdict` | the number beside the document's |
//! | `report` | one page with tables, plots and targets |
//!
//! Simulated items are figures of `cargo xtask figures`, which the caller draws. Measured ones are
//! other commands of `cargo xtask`: this program starts itself, and reads the results.json. A
//! figure or a command that several items read runs once. One that takes far longer than its plan
//! says is ended; that is told, and the others are run.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shinjuku_plot::{Figure, Point, Series};
use shinjuku_preempt::Realtime;

use crate::harness::{self, Efforts, Process, Session};
use crate::machine::Machine;

mod list;
mod reading;
mod report;
mod verdict;

pub use list::{Check, Command, Document, Item, List, Run};
pub use reading::{Reading, reach};
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
    pub figure: Figure,
    pub found: String,
}

/// What draws the simulated figures.
pub trait Figures {
    /// About how long a figure takes: with few requests and points if the second argument is true.
    /// `None`: there is no such figure.
    fn takes(&self, name: &str, quick: bool) -> Option<Duration>;

    /// Draws it.
    ///
    /// # Errors
    /// There is no such figure, a simulation fails, or it is not done by this moment.
    fn draw(&self, name: &str, quick: bool, until: Instant) -> Result<Simulated>;
}

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
    pub name: String,
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

/// How many times longer than its plan says an item may take, on a machine that does something else
/// as well.
const SLOWER: u32 = 4;
/// What it may take beyond that: a program that it starts may have to be built first.
const BUILDING: Duration = Duration::from_secs(600);

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
pub fn run(options: &Options, figures: &dyn Figures) -> Result<ExitCode> {
    let list = List::read()?;
    if options.list {
        let seconds = |run: &Run| {
            let modes = [(true, false), (false, false), (false, true)];
            modes.map(|mode| takes(&list, figures, run, mode).as_secs())
        };
        println!("{}", list.names(seconds));
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = list.chosen(&options.items)?;
    let custom = !options.items.is_empty();
    let settings = options.common.settings(&EFFORTS, custom)?;
    let mut session = Session::begin::<Paper>(&options.common, settings)?;
    let reproduction = Reproduction {
        options: &options.common,
        figures,
        list: &list,
    };
    let runs = harness::distinct(chosen.iter().map(|item| &item.run));
    let total = runs.into_iter().map(|run| reproduction.takes(run)).sum();
    let machine = Machine::detect(Realtime::enter(PRIORITY).is_ok());
    session.expect(&machine, total);
    let mut paper = Paper::default();
    let reproduced = reproduction.all(&chosen, &mut session, &mut paper);
    session.end(machine, paper, reproduced)
}

/// About how long this takes by its plan, with `--quick`, with `--full`, or with neither.
///
/// Nothing that is missing takes long, and neither does what the list or the figures do not know:
/// it ends with an error at once.
pub fn takes(
    list: &List,
    figures: &dyn Figures,
    run: &Run,
    (quick, full): (bool, bool),
) -> Duration {
    match run {
        Run::Figure(name) => figures.takes(name, quick).unwrap_or_default(),
        Run::Command(name) => {
            let seconds = list.command(name).map_or([0; 3], |command| command.seconds);
            let mode = if quick { 0 } else { 1 + usize::from(full) };
            Duration::from_secs(seconds[mode])
        }
        Run::Missing(_) => Duration::ZERO,
    }
}

/// How long an item may take that takes so long by its plan.
fn bound(takes: Duration) -> Duration {
    takes * SLOWER + BUILDING
}

/// How items are reproduced.
struct Reproduction<'a> {
    options: &'a harness::Options,
    figures: &'a dyn Figures,
    list: &'a List,
}

impl Reproduction<'_> {
    fn takes(&self, run: &Run) -> Duration {
        let mode = (self.options.quick, self.options.full);
        takes(self.list, self.figures, run, mode)
    }

    fn all(&self, chosen: &[&Item], session: &mut Session, paper: &mut Paper) -> Result<()> {
        let mut outcomes = BTreeMap::new();
        for item in chosen {
            let document = &self.list.documents[&item.document].name;
            if !outcomes.contains_key(&item.run) {
                let outcome = self.outcome(&item.run, session)?;
                if let Outcome::Drawn(Simulated { figure, .. }) = &outcome {
                    let figure = with_the_papers_points(figure.clone(), item);
                    paper.figures.push((document.clone(), figure));
                }
                outcomes.insert(item.run.clone(), outcome);
            }
            let how = self.list.words(&item.run);
            let found = reproduced(item, (document, how), &outcomes[&item.run]);
            paper.items.push(found);
        }
        Ok(())
    }

    /// Runs it. What fails, or takes too long, is told, and the rest goes on.
    fn outcome(&self, run: &Run, session: &mut Session) -> Result<Outcome> {
        let takes = self.takes(run);
        let outcome = match run {
            Run::Missing(why) => return Ok(Outcome::Not(why.clone())),
            Run::Figure(name) => {
                session.progress.begin(&format!("figure {name}"));
                let until = Instant::now() + bound(takes);
                let drawn = self.figures.draw(name, self.options.quick, until);
                drawn.map(Outcome::Drawn)
            }
            Run::Command(name) => {
                let line = &self.list.command(name)?.line;
                session.progress.begin(&line.join(" "));
                self.measured(line, bound(takes), session)
                    .map(Outcome::Measured)
            }
        };
        session.progress.end(takes);
        if session.stop.load(Relaxed) {
            bail!("interrupted");
        }
        Ok(outcome.unwrap_or_else(|error| {
            let how = self.list.words(run);
            session.notes.push(format!("{how}: {error:#}"));
            Outcome::Not(format!("{error:#}"))
        }))
    }

    /// What a command of this program writes into its results.json.
    fn measured(&self, line: &[String], patience: Duration, session: &Session) -> Result<Value> {
        let program = std::env::current_exe().context("where is this program?")?;
        let path = session.directory.join("measured.json");
        let json = path.display().to_string();
        let mut arguments: Vec<&str> = line.iter().map(String::as_str).collect();
        let modes = self.options.pick(Some("--quick"), None, Some("--full"));
        arguments.extend(modes);
        arguments.extend(["--json", &json]);
        let process = Process::start(&program, &session.directory, &arguments)?;
        let tell = |text: &str| {
            let detail = format!("{}: {text}", line.join(" "));
            session.progress.detail(&detail);
        };
        process.end(patience, &session.stop, tell)?;
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {json}"))?;
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {json}"))?;
        serde_json::from_str(&text).with_context(|| format!("{json} is not a results.json"))
    }
}

/// The figure, with the document's own values where its text gives them.
fn with_the_papers_points(mut figure: Figure, item: &Item) -> Figure {
    let points = item.checks.iter().filter_map(|check| match check.reads {
        Reading::Value { at, .. } => Some(Point::exact(at, check.paper?)),
        _ => None,
    });
    let points: Vec<_> = points.collect();
    if !points.is_empty() {
        let number = figure.series.len();
        let line = Series::contender(number, "the document", points);
        figure.series.push(line);
    }
    figure
}

fn reproduced(item: &Item, (document, how): (&str, String), outcome: &Outcome) -> Reproduced {
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
        how,
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

    /// Figures of which one is late, and the others are not there.
    struct Late;

    impl Figures for Late {
        fn takes(&self, name: &str, quick: bool) -> Option<Duration> {
            let seconds = if quick { 2 } else { 20 };
            (name == "late").then(|| Duration::from_secs(seconds))
        }

        fn draw(&self, name: &str, quick: bool, until: Instant) -> Result<Simulated> {
            let takes = self.takes(name, quick).context("there is no such figure")?;
            let left = until.saturating_duration_since(Instant::now());
            assert!(left > takes && left <= bound(takes), "{left:?}");
            bail!("not done by then")
        }
    }

    #[test]
    fn what_is_late_is_told_and_the_rest_goes_on() {
        let list: List = toml::from_str(
            r#"
            [command.never]
            line = ["none"]
            seconds = [1, 2, 3]
            [document.d]
            name = "D"
            reference = "R"
            places = {}
            [[item]]
            name = "a"
            document = "d"
            place = "p"
            claim = "c"
            run = { figure = "late" }
            [[item.check]]
            what = "w"
            reads = { value = { line = "l", at = 1 } }
            at_least = 1
            [[item]]
            name = "b"
            document = "d"
            place = "p"
            claim = "c"
            run = { missing = "no Dune" }
            "#,
        )
        .unwrap();
        let options: harness::Options = crate::harness::parse("paper --quick").unwrap();
        let reproduction = Reproduction {
            options: &options,
            figures: &Late,
            list: &list,
        };
        let [late, missing] = &list.items[..] else {
            panic!("two items");
        };
        assert_eq!(reproduction.takes(&late.run), Duration::from_secs(2));
        let never = Run::Command("never".to_owned());
        let modes = [(true, false), (false, false), (false, true)];
        let seconds = modes.map(|mode| takes(&list, &Late, &never, mode).as_secs());
        assert_eq!(seconds, [1, 2, 3]);
        let (mut session, mut paper) = (Session::idle(), Paper::default());
        let all = [late, missing];
        reproduction.all(&all, &mut session, &mut paper).unwrap();
        let why = |item: usize| paper.items[item].checks.first()?.why_not.as_deref();
        assert_eq!(why(0), Some("not done by then"));
        assert_eq!(paper.items[1].how, "no Dune");
        assert_eq!(session.notes.len(), 1, "{:?}", session.notes);
    }

    #[test]
    fn what_cannot_run_says_why() {
        let list = List::read().unwrap();
        let item = &list.items[0];
        let found = reproduced(
            item,
            ("D", "not".to_owned()),
            &Outcome::Not("no reason".to_owned()),
        );
        for check in &found.checks {
            assert_eq!(check.verdict, Verdict::CannotRun);
            assert_eq!(check.why_not.as_deref(), Some("no reason"));
        }
    }
}
