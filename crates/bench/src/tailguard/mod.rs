//! `cargo xtask bench tailguard`: what TailGuard's order of tasks is worth, with service times of
//! three programs as they are measured here (after Wang et al., *TailGuard*, ICDCS 2023, whose
//! simulations are driven by three applications of the Tailbench suite).
//!
//! The tasks are timed, one after the other. The servers are simulated: each draws from those times
//! and orders its tasks by one of four disciplines; and what is looked for is the highest load at
//! which queries of every fan-out keep to their SLOs. What the machine did to a task is in its
//! time.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use shinjuku_plot::Table;
use shinjuku_sim::fanout::{Discipline, FanoutScenario};
use shinjuku_workload::repeat::median;
use shinjuku_workload::{Class, Mix, ServiceTime};

use crate::harness::{self, Comparison, Efforts, Measured, Section, Session, Target, comparisons};
use crate::machine::Machine;
use crate::report::{figure, or_dash};

mod programs;

use programs::Program;

/// Servers, and the fan-outs of queries with weights that make each offer as many tasks.
const SERVERS: usize = 100;
const FANOUTS: [(usize, f64); 3] = [(1, 100.0), (10, 10.0), (100, 1.0)];
/// The tighter SLO over the 99th percentile of the widest queries on servers that do nothing else,
/// and the other SLO over this one.
const TIGHTER: f64 = 4.0;
const LOOSER: f64 = 1.5;
/// How near the highest load is sought.
const STEP: f64 = 1.0 / 64.0;
/// Roughly what one search takes; for the progress only.
const SEARCH: Duration = Duration::from_millis(400);

/// Seconds are those of a program's tasks, of all repetitions together.
const EFFORTS: Efforts = Efforts {
    quick: (3, 2.0),
    default: (5, 4.0),
    full: (9, 10.0),
    seconds: 0.1..=60.0,
};

/// What was measured and simulated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TailGuard {
    /// One for each program.
    pub programs: Vec<Timed>,
    /// TailGuard's load over that of each other discipline, for each program.
    pub comparisons: Vec<Comparison>,
}

/// A program's tasks, and what servers of it carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    pub name: String,
    pub tasks: usize,
    /// Median, 90th and 99th percentile, and longest, in us.
    pub task_us: [f64; 4],
    /// The two SLOs, in us.
    pub slos_us: [f64; 2],
    /// The highest load within the SLOs, by discipline and by seed.
    pub carried: Vec<Carried>,
}

/// What servers of one discipline carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carried {
    pub discipline: String,
    /// The highest load, 0 to 1, by seed.
    pub load: Vec<f64>,
}

/// Measures, simulates, and publishes.
///
/// # Errors
/// A program's task fails, it was interrupted, or results cannot be written.
pub fn run(options: &harness::Options) -> Result<ExitCode> {
    let settings = options.settings(&EFFORTS, false)?;
    let mut session = Session::begin::<TailGuard>(options, settings)?;
    let queries = options.pick(10_000, 30_000, 100_000);
    let searches = programs::ALL.len() * Discipline::ALL.len();
    let programs = session.length() * programs::ALL.len() as u32;
    let expected = session.all(SEARCH * (queries / 10_000) as u32, searches) + programs;
    let machine = Machine::detect(false);
    session.expect(&machine, expected);
    let mut results = TailGuard::default();
    let measured = measure(&mut session, queries, &mut results);
    results.compare();
    session.end(machine, results, measured)
}

fn measure(session: &mut Session, queries: u64, results: &mut TailGuard) -> Result<()> {
    let data = programs::data()?;
    for program in programs::ALL {
        session.progress.begin(program.0);
        let times = tasks(session, program, |tasks, seed| {
            programs::timed(program, &data, tasks, seed)
        })?;
        session.progress.end(session.length());
        results
            .programs
            .push(carry(session, program.0, &times, queries)?);
    }
    Ok(())
}

/// Times tasks for about as long as a repetition is, sorted upwards: in rounds, so that it can be
/// interrupted.
fn tasks(
    session: &Session,
    program: Program,
    timed: impl Fn(usize, u64) -> Result<Vec<u64>>,
) -> Result<Vec<u64>> {
    let start = std::time::Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || start.elapsed() < session.length() {
        let more = timed(100, times.len() as u64);
        times.extend(more.with_context(|| program.0.to_owned())?);
        if session.stop.load(Relaxed) {
            bail!("interrupted");
        }
    }
    times.sort_unstable();
    Ok(times)
}

/// The time at a quantile of sorted ones, in us.
fn quantile_us(sorted: &[u64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1] as f64 / 1e3
}

/// Servers whose tasks take such times.
fn carry(session: &mut Session, name: &str, times: &[u64], queries: u64) -> Result<Timed> {
    let path = session
        .directory
        .join(format!("{}.txt", name.replace(' ', "-")));
    let lines = times.iter().fold(String::new(), |mut text, time| {
        // To a string, so it does not fail.
        let _ = writeln!(text, "{time}");
        text
    });
    std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    let task = Class::new("task", 1.0, ServiceTime::empirical(&path)?);
    let mix = Mix::new(name, vec![task])?;
    let widest = FANOUTS.iter().map(|(width, _)| *width).max().unwrap_or(1);
    let tighter = TIGHTER * quantile_us(times, 0.99_f64.powf(1.0 / widest as f64));
    let slos_us = [tighter, LOOSER * tighter];
    let scenario = FanoutScenario {
        queries,
        ..FanoutScenario::new(
            mix,
            SERVERS,
            FANOUTS.to_vec(),
            slos_us.map(|slo| (slo, 1.0)).to_vec(),
        )
    };
    let mut carried = Vec::new();
    for discipline in Discipline::ALL {
        let mut load = Vec::new();
        for seed in session.settings.seeds.clone() {
            let detail = format!("{name}: {}", discipline.name());
            session.progress.detail(&detail);
            let scenario = FanoutScenario {
                discipline,
                ..scenario.clone()
            };
            load.push(scenario.highest_load(STEP, seed)?);
            session.progress.end(SEARCH * (queries / 10_000) as u32);
            if session.stop.load(Relaxed) {
                bail!("interrupted");
            }
        }
        carried.push(Carried {
            discipline: discipline.name().to_owned(),
            load,
        });
    }
    Ok(Timed {
        name: name.to_owned(),
        tasks: times.len(),
        task_us: [0.5, 0.9, 0.99, 1.0].map(|quantile| quantile_us(times, quantile)),
        slos_us,
        carried,
    })
}

impl TailGuard {
    /// TailGuard over each other discipline. A seed with which the other keeps to the SLOs at no
    /// load has no ratio.
    fn compare(&mut self) {
        let name = Discipline::TailGuard.name();
        for program in &self.programs {
            let Some(ours) = program.carried.iter().find(|one| one.discipline == name) else {
                continue;
            };
            for other in program.carried.iter().filter(|one| one.discipline != name) {
                let pairs = ours.load.iter().copied().zip(other.load.iter().copied());
                let pairs: Vec<_> = pairs.filter(|(_, under)| *under > 0.0).collect();
                let names = [name, &other.discipline];
                let compared = Comparison::of(&program.name, names, &pairs, None);
                self.comparisons.push(compared);
            }
        }
    }
}

impl Measured for TailGuard {
    const BENCH: &'static str = "tailguard";
    const TITLE: &'static str = "TailGuard's order of tasks, with service times measured here";
    const DIRECTORY: &'static str = "bench-tailguard";

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("Servers, simulated", SERVERS.to_string())]
    }

    fn targets(&self) -> Vec<Target> {
        Vec::new()
    }

    fn sections(&self) -> Vec<Section> {
        let header = [
            "program", "tasks", "median", "90 %", "99 %", "longest", "SLOs",
        ];
        let mut tasks = Table::new("tasks as measured, us", header);
        let mut header = vec!["program"];
        header.extend(Discipline::ALL.map(Discipline::name));
        let mut loads = Table::new("highest load within the SLOs, %; medians", header);
        for program in &self.programs {
            let mut row = vec![program.name.clone(), program.tasks.to_string()];
            row.extend(program.task_us.map(figure));
            row.push(program.slos_us.map(figure).join(", "));
            tasks.push(row);
            let carried = program
                .carried
                .iter()
                .map(|one| or_dash(median(&one.load).map(|load| 100.0 * load)));
            let row: Vec<_> = std::iter::once(program.name.clone())
                .chain(carried)
                .collect();
            loads.push(row);
        }
        let note = format!(
            "Queries have {} tasks, each fan-out as many in all. The tighter SLO is {TIGHTER} times the p99 of the \
             widest queries on idle servers, the other {LOOSER} times that; half of the queries have each. TailGuard (abstract): up to \
             80 % more than the other three, with applications of the Tailbench suite, which are not these.",
            FANOUTS.map(|(width, _)| width.to_string()).join(", ")
        );
        let tables = [tasks, loads].into_iter();
        let tables = tables.chain(comparisons(&self.comparisons));
        vec![Section::new("Load within the SLOs", tables).notes([note])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times like a store's: most alike, and few that take three times as long.
    fn times() -> Vec<u64> {
        let mut times: Vec<u64> = (0..2_000).map(|number| 150_000 + 20 * number).collect();
        times.extend([475_000; 2]);
        times
    }

    #[test]
    fn measured_times_are_simulated_and_compared() {
        let directory = tempfile::tempdir().unwrap();
        let mut session = Session::idle();
        session.directory = directory.path().to_owned();
        let timed = carry(&mut session, "a store", &times(), 2_000).unwrap();
        assert_eq!(timed.tasks, 2_002);
        assert!(
            (timed.task_us[0] - 170.0).abs() < 0.1,
            "{:?}",
            timed.task_us
        );
        // The 99.99th percentile of the tasks: 99 in 100 queries of 100 have none that is longer.
        assert_eq!(timed.slos_us, [1_900.0, 2_850.0]);
        let seeds = session.settings.seeds.len();
        for carried in &timed.carried {
            assert_eq!(carried.load.len(), seeds, "{}", carried.discipline);
        }
        let mut results = TailGuard {
            programs: vec![timed],
            ..TailGuard::default()
        };
        results.compare();
        let compared: Vec<_> = results.comparisons.iter().map(|one| &*one.under).collect();
        assert_eq!(compared, ["FIFO", "PRIQ", "T-EDFQ (plain EDF)"]);
        assert_eq!(results.sections()[0].tables[1].rows.len(), 1);
        let text = serde_json::to_string(&results).unwrap();
        // Reading may change a number's last digit.
        let read: TailGuard = serde_json::from_str(&text).unwrap();
        let carried = |all: &TailGuard| all.programs[0].carried.len() * all.comparisons.len();
        assert_eq!(carried(&read), carried(&results));
    }

    #[test]
    fn quantiles_are_of_sorted_times() {
        let sorted = [1_000, 2_000, 3_000, 4_000];
        let of = |quantile| quantile_us(&sorted, quantile);
        assert_eq!([of(0.0), of(0.5), of(0.51), of(1.0)], [1.0, 2.0, 3.0, 4.0]);
    }
}
