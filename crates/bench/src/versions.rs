//! `cargo xtask compare BEFORE AFTER`: two checkouts of this project on one machine, in turn.
//!
//! Each checkout measures itself, by its own commands and its own build. What is read of a
//! results.json stands at the same place in schemas 1 to 3. Decisions a second are read of
//! criterion's files, since older versions have them nowhere else. All figures are rates, so
//! after / before is below 1 where something got slower.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shinjuku_plot::Table;

use crate::harness::{
    self, Comparison, Efforts, Goal, Measured, Process, Runs, Section, Session, Target, comparisons,
};
use crate::machine::Machine;
use crate::report::or_dash;

/// Options of `cargo xtask compare`.
#[derive(Debug, Args)]
pub struct Options {
    /// A checkout of the version before: a directory, as `git worktree add` makes it.
    before: PathBuf,
    /// A checkout of the version after.
    after: PathBuf,
    #[command(flatten)]
    common: harness::Options,
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.3),
    default: (7, 0.5),
    full: (15, 1.0),
    seconds: 0.1..=10.0,
};

/// What after / before is to reach for each figure.
const GOAL: Goal = Goal::AtLeast(0.97);
/// How long a build may take.
const BUILDING: Duration = Duration::from_secs(3600);

/// A figure of a results.json, as a rate; `None` if it is not there.
type Read = fn(&Value) -> Option<f64>;

/// A command, and the figures that its results have.
struct Measurement {
    name: &'static str,
    command: Measuring,
    figures: &'static [(&'static str, Read)],
    /// About how long it takes besides `--seconds`.
    takes: Duration,
}

enum Measuring {
    /// `cargo xtask bench` with these arguments.
    Bench(&'static str),
    /// The criterion bench `dispatcher`.
    Criterion,
}

const MEASUREMENTS: [Measurement; 4] = [
    Measurement {
        name: "table of costs",
        command: Measuring::Bench("--quick --mix fixed --load 20 --contender c-FCFS --no-sweep"),
        figures: &[
            ("empty requests", |results| {
                cost(results, "request/empty/depth-2")
            }),
            ("preemptions by probe", |results| {
                cost(results, "preempt/probe")
            }),
            ("preemptions by signal", |results| {
                cost(results, "preempt/signal")
            }),
        ],
        takes: Duration::from_secs(15),
    },
    Measurement {
        name: "dispatcher",
        command: Measuring::Criterion,
        figures: &[("decisions", |estimates| {
            per_second(estimates.pointer("/median/point_estimate")?)
        })],
        takes: Duration::from_secs(4),
    },
    Measurement {
        name: "dataplane",
        command: Measuring::Bench("dataplane --only stages"),
        figures: &[("requests through the dataplane, inline", |results| {
            let runtime = named(results.pointer("/stages/stages")?, "runtime")?;
            per_second(runtime.pointer("/runs/0/dispatchers/0/nanos/1")?)
        })],
        takes: Duration::from_secs(5),
    },
    Measurement {
        name: "key-value server",
        command: Measuring::Bench("kv --quick --scenario get-set --contender sq"),
        figures: &[("GETs of the key-value server", |results| {
            let cells = named(results.get("scenarios")?, "get-set")?.get("cells")?;
            let is_it = |cell: &&Value| {
                cell["contender"] == "sq" && cell["kind"]["saturation"]["name"] == "GET unpipelined"
            };
            let cell = cells.as_array()?.iter().find(is_it)?;
            cell.pointer("/point/all/throughput_rps")?.as_f64()
        })],
        takes: Duration::from_secs(10),
    },
];

/// A row of the table of costs.
fn cost(results: &Value, row: &str) -> Option<f64> {
    per_second(results.get("costs")?.get(row)?)
}

fn per_second(nanos: &Value) -> Option<f64> {
    nanos
        .as_f64()
        .filter(|&nanos| nanos > 0.0)
        .map(|nanos| 1e9 / nanos)
}

/// The element of a list that has this name.
fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|one| one["name"] == name)
}

/// What was measured of both versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    /// The commits, before and after.
    pub commits: [String; 2],
    pub rates: Vec<Rate>,
}

/// A figure of both, one a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub name: String,
    /// Of the version before.
    pub before: Runs<f64>,
    /// Of the version after.
    pub after: Runs<f64>,
}

impl Rate {
    fn comparison(&self) -> Comparison {
        let rate = |rate: &f64| Some(*rate);
        self.after
            .compare(&self.before, &self.name, Some(GOAL), rate)
    }
}

impl Measured for Versions {
    const BENCH: &'static str = "versions";
    const TITLE: &'static str = "two versions";
    const DIRECTORY: &'static str = "compare";

    fn facts(&self) -> Vec<(&'static str, String)> {
        let [before, after] = self.commits.clone();
        vec![("Before", before), ("After", after)]
    }

    fn targets(&self) -> Vec<Target> {
        let comparisons = self.rates.iter().map(Rate::comparison);
        comparisons.filter_map(|one| Target::of(&one)).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::new(
            "a second, medians over the repetitions",
            ["", "before", "after"],
        );
        for rate in &self.rates {
            let median = |runs: &Runs<f64>| or_dash(runs.median(|rate| Some(*rate)));
            table.push([rate.name.clone(), median(&rate.before), median(&rate.after)]);
        }
        let compared: Vec<_> = self.rates.iter().map(Rate::comparison).collect();
        vec![Section::new(
            "After beside before",
            [Some(table), comparisons(&compared)].into_iter().flatten(),
        )]
    }
}

/// A checkout, built.
struct Side {
    name: &'static str,
    root: PathBuf,
    commit: String,
    /// The program of the criterion bench.
    dispatcher: PathBuf,
}

/// Where a side's commands write, and what ends them.
struct Place<'a> {
    directory: &'a Path,
    stop: &'a AtomicBool,
    seconds: f64,
}

/// Measures both and publishes that.
///
/// # Errors
/// A checkout cannot be built, it was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let settings = options.common.settings(&EFFORTS, false)?;
    let mut session = Session::begin::<Versions>(&options.common, settings)?;
    let directory = session.directory.clone();
    let stop = session.stop.clone();
    let place = Place {
        directory: &directory,
        stop: &stop,
        seconds: session.settings.seconds_per_point,
    };
    let mut sides = [
        Side::build("before", &options.before, &place)?,
        Side::build("after", &options.after, &place)?,
    ];
    let mut results = Versions {
        commits: sides.each_ref().map(|side| side.commit.clone()),
        rates: Vec::new(),
    };
    let machine = Machine::detect(false);
    let expected = MEASUREMENTS
        .iter()
        .map(|one| session.all(one.takes, 2))
        .sum();
    session.expect(&machine, expected);
    let measured = MEASUREMENTS.iter().try_for_each(|measurement| {
        results
            .rates
            .extend(measure(measurement, &mut sides, &place, &mut session)?);
        Ok(())
    });
    session.end(machine, results, measured)
}

/// All figures of a measurement. What each side does first builds what it takes, and does not
/// count.
fn measure(
    measurement: &Measurement,
    sides: &mut [Side; 2],
    place: &Place<'_>,
    session: &mut Session,
) -> Result<Vec<Rate>> {
    let seed = session.settings.seeds[0];
    for side in &*sides {
        if let Err(error) = side.measure(measurement, place, seed, BUILDING) {
            ensure!(!place.stop.load(Relaxed), "interrupted");
            let (name, of) = (measurement.name, side.name);
            session
                .notes
                .push(format!("Of the {name}, {of}: {error:#}."));
            return Ok(measurement
                .figures
                .iter()
                .map(|(name, _)| Rate::none(name))
                .collect());
        }
    }
    let patience =
        4 * measurement.takes + Duration::from_secs_f64(place.seconds) + harness::PATIENCE;
    let name = |side: &Side| side.name.to_owned();
    let runs = session.interleave(
        measurement.name,
        sides,
        name,
        measurement.takes,
        |side, seed| side.measure(measurement, place, seed, patience).map(Some),
    )?;
    let of = |runs: &Runs<BTreeMap<String, f64>>, figure: &str| {
        runs.map(|figures| figures.get(figure).copied())
    };
    let rate = |(figure, _): &(&str, Read)| Rate {
        name: (*figure).to_owned(),
        before: of(&runs[0], figure),
        after: of(&runs[1], figure),
    };
    Ok(measurement.figures.iter().map(rate).collect())
}

impl Rate {
    /// Not measured.
    fn none(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            before: Runs::new("before"),
            after: Runs::new("after"),
        }
    }
}

impl Side {
    fn build(name: &'static str, root: &Path, place: &Place<'_>) -> Result<Self> {
        let root =
            (root.canonicalize()).with_context(|| format!("there is no {}", root.display()))?;
        let mut side = Self {
            name,
            root,
            commit: String::new(),
            dispatcher: PathBuf::new(),
        };
        eprintln!("building {name}, {}", side.root.display());
        let mut git = Command::new("git");
        git.args(["describe", "--always", "--dirty"])
            .current_dir(&side.root);
        side.commit = side
            .told(git, place)
            .unwrap_or_else(|_| "unknown".to_owned());
        side.told(side.cargo("build --release --package xtask"), place)?;
        let built = side.told(
            side.cargo(
                "bench --no-run --package shinjuku-benches --bench dispatcher --message-format json",
            ),
            place,
        )?;
        let artifacts = built
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let programs: Vec<_> = artifacts
            .filter(|artifact| artifact["target"]["name"] == "dispatcher")
            .filter_map(|artifact| artifact["executable"].as_str().map(PathBuf::from))
            .collect();
        side.dispatcher = programs
            .into_iter()
            .next()
            .context("cargo names no bench `dispatcher`")?;
        Ok(side)
    }

    /// Cargo in this checkout, with its own target directory.
    fn cargo(&self, arguments: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(arguments.split(' ')).current_dir(&self.root);
        cargo
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_MANIFEST_DIR");
        cargo
    }

    /// What a command prints.
    fn told(&self, command: Command, place: &Place<'_>) -> Result<String> {
        let mut process = Process::spawn(command, place.directory)?;
        process.wait_well(BUILDING, place.stop, |_| ())?;
        Ok(process.told()?.trim().to_owned())
    }

    /// The figures of one run.
    fn measure(
        &self,
        measurement: &Measurement,
        place: &Place<'_>,
        seed: u64,
        patience: Duration,
    ) -> Result<BTreeMap<String, f64>> {
        let results = match measurement.command {
            Measuring::Bench(arguments) => self.bench(arguments, place, seed, patience)?,
            Measuring::Criterion => self.criterion(place, patience)?,
        };
        let rate = |(name, read): &(&str, Read)| Some(((*name).to_owned(), read(&results)?));
        let figures: BTreeMap<_, _> = measurement.figures.iter().filter_map(rate).collect();
        ensure!(
            !figures.is_empty(),
            "its results have no figure that is looked for"
        );
        Ok(figures)
    }

    /// The results.json of one run of this checkout's bench.
    fn bench(&self, of: &str, place: &Place<'_>, seed: u64, patience: Duration) -> Result<Value> {
        let json = place.directory.join(format!("{}.json", self.name));
        let mut command = self.cargo(&format!("xtask bench {of} --repetitions 1"));
        command.arg("--seconds").arg(place.seconds.to_string());
        command.arg("--json").arg(&json);
        // The dataplane draws nothing, and its older versions take no seed.
        if !of.starts_with("dataplane") {
            command.arg("--seed").arg(seed.to_string());
        }
        Process::spawn(command, place.directory)?.end(patience, place.stop, |_| ())?;
        let results = read(&json);
        let _ = std::fs::remove_file(&json);
        results
    }

    /// What criterion estimates. The policy's name was another once.
    fn criterion(&self, place: &Place<'_>, patience: Duration) -> Result<Value> {
        let home = place.directory.join(format!("criterion-{}", self.name));
        let mut command = Command::new(&self.dispatcher);
        // For how long it measures, it says itself.
        command.args(["--bench", "--noplot"]);
        command.arg("(?i)c-pre-sq/1-workers/depth-1$");
        command.env("CRITERION_HOME", &home).current_dir(&self.root);
        Process::spawn(command, place.directory)?.end(patience, place.stop, |_| ())?;
        let estimates = ["c-pre-sq", "c-PRE-SQ"]
            .map(|policy| {
                home.join(format!(
                    "dispatcher/{policy}_1-workers_depth-1/new/estimates.json"
                ))
            })
            .into_iter()
            .find(|path| path.exists());
        let estimates = estimates.context("criterion has written no estimates")?;
        let results = read(&estimates);
        let _ = std::fs::remove_dir_all(&home);
        results
    }
}

fn read(path: &Path) -> Result<Value> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("there is no {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harness::Verdict;

    #[test]
    fn the_bench_still_takes_what_it_is_asked_for() {
        for measurement in &MEASUREMENTS {
            let Measuring::Bench(arguments) = measurement.command else {
                continue;
            };
            let line = format!("bench {arguments} --repetitions 1 --seconds 0.3 --json x");
            let parsed = harness::parse::<crate::Options>(&line);
            parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn every_figure_is_found_in_results() {
        let results = [
            json!({ "costs": { "request/empty/depth-2": 500.0, "preempt/probe": 200, "preempt/signal": 4e3 } }),
            json!({ "median": { "point_estimate": 100.0 } }),
            json!({ "stages": { "stages": [
                { "name": "raw", "runs": [{ "dispatchers": [{ "nanos": [1.0, 2.0, 3.0] }] }] },
                { "name": "runtime", "runs": [{ "dispatchers": [{ "nanos": [1.0, 250.0, 3.0] }] }] },
            ] } }),
            json!({ "scenarios": [{ "name": "get-set", "cells": [
                { "contender": "redis", "kind": { "saturation": { "name": "GET unpipelined" } } },
                { "contender": "sq", "kind": { "load": { "share": 0.5 } } },
                { "contender": "sq", "kind": { "saturation": { "name": "GET unpipelined" } },
                  "point": { "all": { "throughput_rps": 3e5 } } },
            ] }] }),
        ];
        let found = MEASUREMENTS
            .iter()
            .zip(&results)
            .map(|(measurement, results)| {
                let figures = measurement.figures.iter();
                figures.map(|(_, read)| read(results)).collect::<Vec<_>>()
            });
        let rates = [vec![2e6, 5e6, 2.5e5], vec![1e7], vec![4e6], vec![3e5]];
        let rates = rates.map(|rates| rates.into_iter().map(Some).collect::<Vec<_>>());
        assert_eq!(found.collect::<Vec<_>>(), rates);
        for measurement in &MEASUREMENTS {
            let nothing = json!({});
            assert!(
                measurement
                    .figures
                    .iter()
                    .all(|(_, read)| read(&nothing).is_none())
            );
        }
    }

    #[test]
    fn what_got_slower_is_missed_and_what_was_not_measured_is_not_shown() {
        let runs = |name, rates: [f64; 3]| Runs::of(name, rates.map(Some));
        let rate = |after| Rate {
            name: "requests".to_owned(),
            before: runs("before", [100.0, 200.0, 300.0]),
            after: runs("after", after),
        };
        let versions = Versions {
            commits: ["a".to_owned(), "b".to_owned()],
            rates: vec![
                rate([98.0, 196.0, 100.0]),
                rate([96.0, 192.0, 900.0]),
                Rate::none("decisions"),
            ],
        };
        let verdicts: Vec<_> = versions.targets().iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [Verdict::Met, Verdict::Missed, Verdict::NotShown]);
        assert_eq!(versions.sections()[0].tables.len(), 2);
    }
}
