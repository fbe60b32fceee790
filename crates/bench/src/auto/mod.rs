//! `cargo xtask bench auto`: what `auto` chooses, beside everything else that could be configured.
//!
//! At every point all contenders serve the same requests in turns: `auto` with the default
//! configuration, the others with layout, mechanism and quantum given. The best of these is known
//! only afterwards, and another one at every point; `auto` is to be near it everywhere.
//!
//! Mixes are served in bursts as in the bench of the policies, under SCHED_FIFO where that is
//! permitted; `service` by a pool in an ordinary process.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use shinjuku_workload::{Length, Summary};

use crate::allow_signals;
use crate::closures::{self, Experiment};
use crate::harness::{self, Efforts, Runs, Session, distinct};
use crate::machine::Machine;
use crate::policies::burst::Bench;
use crate::policies::calibration::Pace;
use crate::policies::mechanisms::Mechanisms;
use crate::policies::mixes::BenchMix;
use crate::policies::results::Class;
use crate::policies::saturation::is_saturated;
use crate::policies::summary::percent;
use crate::policies::{mixes_of, permitted};

mod contender;
mod report;

use contender::Contender;

/// The service experiment, on code with probes and without.
const SERVICE: &str = "service";
const SERVICE_WITHOUT_PROBES: &str = "service, no probes";
/// Names of all mixes.
const MIXES: [&str; 9] = [
    "hi",
    "mid",
    "tri",
    "exp",
    "fixed",
    "lognormal",
    "store",
    SERVICE,
    SERVICE_WITHOUT_PROBES,
];
const QUICK_MIXES: [&str; 5] = ["hi", "mid", "fixed", SERVICE, SERVICE_WITHOUT_PROBES];

/// Loads in per cent of the workers that the layout `threads` has.
const LOADS: [&[u32]; 3] = [&[40, 80], &[20, 40, 60, 80], &[20, 30, 40, 50, 60, 70, 80]];

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.35),
    default: (5, 0.5),
    full: (7, 0.6),
    seconds: 0.05..=0.8,
};

/// A pool in an ordinary process has a long request in a hundred only: it serves for so many times
/// as long.
const SERVICE_LONGER: u32 = 4;
/// What is not answered so long after a burst's last arrival is unfinished.
const PATIENCE: Duration = Duration::from_millis(200);

/// Options of `cargo xtask bench auto`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only this mix (may be given several times).
    #[arg(long, value_name = "NAME", value_parser = MIXES)]
    mix: Vec<String>,
    /// Only this load in per cent (may be given several times).
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=200))]
    load: Vec<u32>,
}

/// What the bench of `auto` measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auto {
    /// Cores that the contenders had.
    pub cores: usize,
    /// Mix by mix, load by load.
    pub points: Vec<Point>,
}

/// A mix at a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The mix.
    pub mix: String,
    /// Share of the workers that the layout `threads` has.
    pub load: f64,
    /// Whose latencies these are: the short requests', or all where there is one kind.
    pub class: Class,
    /// Contender by contender, `auto` first.
    pub runs: Vec<Runs<Served>>,
}

/// A repetition of a contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// 99th percentile, microseconds; null where requests were left unanswered.
    pub p99_us: Option<f64>,
    /// How many times as long as calibrated the work ran, where nothing preempts.
    pub times_slower: Option<f64>,
    /// What was chosen, in the runtime's words, at the end.
    pub description: Option<String>,
}

/// Measures what is asked for, and publishes that.
///
/// # Errors
/// Nothing can be measured, it was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let common = &options.common;
    let custom = !options.mix.is_empty() || !options.load.is_empty();
    let settings = common.settings(&EFFORTS, custom)?;
    let mut session = Session::begin::<Auto>(common, settings)?;
    let mixes: Vec<String> = match options.mix.as_slice() {
        [] => {
            let names: &[&str] = common.pick(&QUICK_MIXES, &MIXES, &MIXES);
            names.iter().map(|&name| name.to_owned()).collect()
        }
        wanted => distinct(wanted.iter().cloned()),
    };
    let loads = match options.load.as_slice() {
        [] => common.pick(LOADS[0], LOADS[1], LOADS[2]).to_vec(),
        wanted => distinct(wanted.iter().copied()),
    };
    let loads: Vec<f64> = loads.iter().map(|load| f64::from(*load) / 100.0).collect();
    let mut results = Auto {
        cores: session.cores.len(),
        points: Vec::new(),
    };
    let machine = Machine::detect(shinjuku_preempt::Realtime::enter(1).is_ok());
    let measured = measure(&machine, &mut session, &mixes, &loads, &mut results.points);
    session.notes.extend(results.slow());
    session.end(machine, results, measured)
}

fn measure(
    machine: &Machine,
    session: &mut Session,
    names: &[String],
    loads: &[f64],
    points: &mut Vec<Point>,
) -> Result<()> {
    let (services, bursts): (Vec<_>, Vec<_>) =
        (names.iter().cloned()).partition(|name| is_service(name));
    let workers = session.cores.len() - 1;
    let length = session.length();
    let mechanisms = Mechanisms::find(allow_signals());
    let bench = permitted(session, &bursts, workers, mechanisms, length)?;
    let mixes = mixes_of(&bursts, &bench)?;
    let of_mix = |mix: &BenchMix| Contender::of_bursts(!mix.is_real_code()).len();
    let contenders: usize = mixes.iter().map(of_mix).sum();
    let in_service = services.len() * Contender::of_service(true).len();
    let each_service = Experiment::each(SERVICE_LONGER * length);
    let expected =
        session.all(bench.per_burst(length), contenders) + session.all(each_service, in_service);
    session.expect(machine, expected * loads.len() as u32);
    for mix in &mixes {
        for &load in loads {
            points.push(burst(session, &bench, mix, load)?);
        }
    }
    let experiment = Experiment::service(session.cores.len())?;
    if !services.is_empty() {
        session.notes.push(experiment.note());
    }
    for name in &services {
        for &load in loads {
            points.push(serve(session, &experiment, name, load)?);
        }
    }
    Ok(())
}

fn is_service(name: &str) -> bool {
    [SERVICE, SERVICE_WITHOUT_PROBES].contains(&name)
}

/// A mix in bursts.
fn burst(session: &mut Session, bench: &Bench, mix: &BenchMix, load: f64) -> Result<Point> {
    let cores: Vec<usize> = session.cores.iter().map(|core| core.id).collect();
    let length = Length::lasting(session.length());
    let class = mix.leading_class();
    let name = format!("{} at {}", mix.mix.name(), percent(load));
    let mut contenders = Contender::of_bursts(!mix.is_real_code());
    let each = bench.per_burst(session.length());
    let runs = session.interleave(
        &name,
        &mut contenders,
        Contender::name,
        each,
        |one, seed| {
            let schedule = mix.arrivals(load, bench.workers, length, seed)?;
            let arrivals = bench.plan(mix, &schedule, one.probes())?;
            let config = one.config(bench.config(), &cores, mix);
            let outcome = bench.serve(config, &arrivals, PATIENCE)?;
            let summary = match is_saturated(&outcome.counts) || outcome.records.is_empty() {
                false => Some(Summary::of(&mix.mix, &outcome.records)?),
                true => None,
            };
            let figures = summary.as_ref().and_then(|summary| match class {
                Class::All => Some(&summary.all),
                _ => summary.class(0),
            });
            let pace = Pace::of(mix, &outcome).filter(|_| one.is_to_completion());
            Ok(Some(Served {
                p99_us: figures.map(|figures| figures.p99_ns as f64 / 1e3),
                times_slower: pace.map(|pace| pace.over_work()),
                description: Some(outcome.description),
            }))
        },
    )?;
    Ok(Point {
        mix: mix.mix.name().to_owned(),
        load,
        class,
        runs,
    })
}

/// The service experiment.
fn serve(session: &mut Session, experiment: &Experiment, name: &str, load: f64) -> Result<Point> {
    let busy_cores = load * (session.cores.len() - 1) as f64;
    let length = SERVICE_LONGER * session.length();
    let mut contenders = Contender::of_service(name == SERVICE);
    let point = format!("{name} at {}", percent(load));
    let runs = session.interleave(
        &point,
        &mut contenders,
        Contender::name,
        Experiment::each(length),
        |one, seed| {
            let arrivals = experiment.arrivals(busy_cores, length, seed)?;
            let served: closures::Outcome = experiment.run(&one.pool(), &arrivals, length)?;
            Ok(Some(Served {
                p99_us: served.short_p99_us,
                times_slower: served.cpu_over_work.filter(|_| one.is_to_completion()),
                description: served.description,
            }))
        },
    )?;
    Ok(Point {
        mix: name.to_owned(),
        load,
        class: Class::Short,
        runs,
    })
}
