//! `cargo xtask elevate`: priority elevation measured as its authors did (Yasukata and Ishiguro,
//! *Developing Process Scheduling Policies in User Space with Common OS Features*), beside what
//! their slides say.
//!
//! The scheduled are on the last core of those that this process may use. The first one has the
//! client, and in the dedicated pattern the scheduler.
//!
//! | file | what it holds |
//! |---|---|
//! | `part` | programs that this bench starts: it starts itself |
//! | `turns` | a busy loop that notes when it is off its core |
//! | `delay` | the slides' table: durations and intervals of processes, threads and vCPUs |
//! | `overhead` | a program's share of a core against the switching period |
//! | `networked` | a server beside busy loops: against the slice, and by two tables |
//! | `preemptive` | the preemptive server |
//! | `noticing` | what it costs to notice that one of the scheduled sleeps |
//! | `report` | tables, plots and targets |
//! | `csv` | the tables that have no plot |

use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use shinjuku_elevate::{Config, ElevateError, Elevation, Reserve, Table, Target};
use shinjuku_preempt::Realtime;

use crate::harness::{self, Efforts, Process, Session};
use crate::machine::Machine;

mod csv;
mod delay;
mod networked;
mod noticing;
mod overhead;
mod part;
mod preemptive;
mod report;
mod turns;

/// Options of `cargo xtask elevate`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    part: Option<part::Part>,
    #[command(flatten)]
    pub(crate) common: harness::Options,
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.2),
    default: (5, 0.4),
    full: (11, 0.8),
    seconds: 0.05..=0.9,
};

/// This thread's priority.
const OWN_PRIORITY: i32 = 50;
/// Starting processes and ending them, for a point.
const AROUND: Duration = Duration::from_millis(600);

/// What the bench of priority elevation measured.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Elevate {
    /// What Linux keeps for ordinary threads of the core, in words.
    pub reserve: String,
    /// The slides' table.
    pub delays: Vec<delay::Delay>,
    /// Share of a core against the switching period.
    pub overheads: Vec<overhead::Overhead>,
    /// The networked server against the slice.
    pub slices: Vec<networked::Slice>,
    /// The networked server by table.
    pub tables: Vec<harness::Runs<networked::Served>>,
    /// The preemptive server against the load.
    pub loads: Vec<preemptive::Load>,
    /// What it costs to notice a sleep.
    pub noticing: Vec<noticing::Row>,
}

/// Where things run.
#[derive(Clone, Copy, Debug)]
struct Cores {
    scheduled: usize,
    other: usize,
}

/// What every measurement takes.
struct Bench<'a> {
    session: &'a mut Session,
    cores: Cores,
    length: Duration,
    /// Fewer points.
    few: bool,
}

/// Measures all, and publishes that; or is one of the programs that are started for it.
///
/// # Errors
/// SCHED_FIFO is refused, the bench was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    if let Some(part) = &options.part {
        return part.run().map(|()| ExitCode::SUCCESS);
    }
    let settings = options.common.settings(&EFFORTS, false)?;
    // Above all that is scheduled, or this thread could end nothing. Refused, it says what to do.
    let realtime = Realtime::enter(OWN_PRIORITY)?;
    let mut session = Session::begin::<Elevate>(&options.common, settings)?;
    let [other, .., scheduled] = session.cores[..] else {
        bail!("the bench needs two cores");
    };
    let cores = Cores {
        scheduled: scheduled.id,
        other: other.id,
    };
    let machine = Machine::detect(true);
    let few = options.common.quick;
    let points = if few { 40 } else { 70 };
    session.expect(&machine, session.all(session.length() + AROUND, points));
    let mut results = Elevate {
        reserve: Reserve::of(cores.scheduled).to_string(),
        ..Elevate::default()
    };
    let length = session.length();
    let mut bench = Bench {
        session: &mut session,
        cores,
        length,
        few,
    };
    let measured = bench.measure(&mut results);
    drop(realtime);
    session.end(machine, results, measured)
}

impl Bench<'_> {
    fn measure(&mut self, results: &mut Elevate) -> Result<()> {
        results.delays = delay::measure(self)?;
        results.overheads = overhead::measure(self)?;
        results.noticing = noticing::measure(self)?;
        networked::measure(self, results)?;
        results.loads = preemptive::measure(self)?;
        Ok(())
    }

    /// Schedules for this long at most.
    fn config(&self, table: Table, slice: Duration) -> Config {
        Config::new(self.cores.scheduled, table)
            .slice(slice)
            .at_most(self.length + 2 * AROUND)
    }
}

/// Starts one of the programs of `part`.
fn start_part(directory: &Path, arguments: &[&str]) -> Result<Process> {
    let program = std::env::current_exe().context("where is this program?")?;
    Process::start(&program, directory, &[&["elevate"], arguments].concat())
}

/// A moment at which all that is measured begins by itself: once they run, no thread without a
/// priority could tell them to, since they may have all cores.
#[derive(Clone, Copy)]
struct Moment(SystemTime);

impl Moment {
    /// Soon, but after everything has been started.
    fn soon() -> Self {
        Self(SystemTime::now() + AROUND / 2)
    }

    fn left(self) -> Duration {
        self.0.duration_since(SystemTime::now()).unwrap_or_default()
    }

    /// Sleeps until then.
    fn wait(self) {
        thread::sleep(self.left());
    }

    /// Whether it is still to come.
    fn check(self) -> Result<()> {
        let late = "the machine took too long to start everything: try again when it is quieter";
        ensure!(!self.left().is_zero(), late);
        Ok(())
    }

    /// As an argument.
    fn to_nanos(self) -> String {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_nanos().to_string()
    }

    /// From an argument.
    fn from_nanos(nanos: u64) -> Self {
        Self(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos))
    }
}

/// Schedules processes, which are given back even if this one is killed.
fn elevate(config: Config, targets: &[Target]) -> Result<Elevation> {
    let program = std::env::current_exe().context("where is this program?")?;
    let mut supervisor = Command::new(program);
    supervisor.args(["elevate", "supervise"]);
    let elevation: Result<_, ElevateError> = Elevation::start(config, targets, Some(supervisor));
    Ok(elevation?)
}
