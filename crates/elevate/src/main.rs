//! `shinjuku-elevate`: schedules threads and processes by priorities, from the command line.

#![forbid(unsafe_code)]

use std::io;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use shinjuku_elevate::{
    Config, Elevation, OnSleep, Pattern, Report, Reserve, Table, Target, supervise,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Schedules any threads and processes in slices of microseconds, by SCHED_FIFO priorities.
#[derive(Parser)]
#[command(version)]
struct Line {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Schedules until control-C, SIGTERM, SIGHUP, the time that was asked for, or the end of all
    /// that is scheduled. Then all have their classes and cores again.
    Run(Run),
    /// Is the supervisor: its standard input tells it which threads are elevated, and it gives back
    /// what a scheduler that was killed cannot.
    #[command(hide = true)]
    Supervise,
}

#[derive(Args)]
struct Run {
    /// What to schedule: NAME=process:PID, NAME=thread:TID, NAME=vcpus:PID (of QEMU, started with
    /// `-name X,debug-threads=on`), or NAME=command:LINE, which is started, and ended at the end.
    #[arg(required = true, value_name = "NAME=TARGET")]
    targets: Vec<String>,
    /// The core that they share.
    #[arg(long)]
    core: usize,
    /// A core for the scheduler alone, which it keeps busy [default: the scheduler shares theirs]
    #[arg(long, value_name = "CORE")]
    scheduler_core: Option<usize>,
    /// The length of a slot, in microseconds.
    #[arg(long, default_value_t = 100, value_name = "US")]
    slice_us: u64,
    /// The order, such as A-A-B-C [default: each in turn]
    #[arg(long)]
    order: Option<String>,
    /// Leave a target that sleeps its slot, as in the slides.
    #[arg(long)]
    keep_slots: bool,
    /// End after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// The lowest of the five priorities in a row.
    #[arg(long, default_value_t = 1)]
    lowest_priority: u32,
}

/// How often to look whether it is over.
const TICK: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let outcome = match Line::parse().task {
        Task::Run(run) => run.run(),
        Task::Supervise => supervise(io::stdin(), io::stdout())
            .map(|_| ())
            .map_err(|error| format!("supervisor: {error}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shinjuku-elevate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A command that was started. Dropped, it is killed, unless it has ended.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // Errors: it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

impl Run {
    fn run(self) -> Outcome<()> {
        let mut started = Vec::new();
        let (names, targets) = self.resolve(&mut started)?;
        let table = match &self.order {
            Some(order) => Table::named(order, &names)?,
            None => Table::named(&names.join("-"), &names)?,
        };
        let config = Config::new(self.core, table)
            .pattern(match self.scheduler_core {
                Some(core) => Pattern::Dedicated { core },
                None => Pattern::Shared,
            })
            .slice(Duration::from_micros(self.slice_us))
            .on_sleep(match self.keep_slots {
                true => OnSleep::Keep,
                false => OnSleep::Next,
            })
            .lowest_priority(self.lowest_priority)
            .at_most(self.seconds.map(Duration::from_secs));
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let mut supervisor = Command::new(std::env::current_exe()?);
        supervisor.arg("supervise");
        let elevation = Elevation::start(config, &targets, Some(supervisor))?;
        leave(self.core)?;
        println!(
            "scheduling {}; {}",
            names.join(", "),
            Reserve::of(self.core)
        );
        while !stop.load(Ordering::Relaxed) && !elevation.is_over() {
            // What ended and is not waited for would count as there.
            for Started(child) in &mut started {
                child.try_wait()?;
            }
            thread::sleep(TICK);
        }
        print(&elevation.stop()?);
        Ok(())
    }

    /// Names and targets; commands are started for that.
    fn resolve(&self, started: &mut Vec<Started>) -> Outcome<(Vec<String>, Vec<Target>)> {
        let mut names = Vec::new();
        let mut targets = Vec::new();
        for words in &self.targets {
            let (name, target) = words
                .split_once('=')
                .ok_or_else(|| format!("{words:?} has no name: write NAME=process:PID"))?;
            names.push(name.to_owned());
            targets.push(match target.strip_prefix("command:") {
                Some(line) => {
                    let child = Command::new("/bin/sh")
                        .args(["-c", &format!("exec {line}")])
                        .spawn()
                        .map_err(|error| format!("cannot start {line:?}: {error}"))?;
                    let pid = child.id();
                    started.push(Started(child));
                    Target::Process(pid)
                }
                None => target.parse()?,
            });
        }
        Ok((names, targets))
    }
}

/// This thread has no priority: on a core of the scheduled it would not hear of control-C.
fn leave(core: usize) -> io::Result<()> {
    let mut cores = sched_getaffinity(None)?;
    cores.unset(core);
    match cores.count() {
        0 => Ok(()),
        _ => Ok(sched_setaffinity(None, &cores)?),
    }
}

fn print(report: &Report) {
    let Report {
        slots,
        switches,
        slept,
        all_slept,
        late,
        latest,
        added,
        ..
    } = report;
    println!(
        "{slots} slots, {switches} switches; {slept} slots ended by sleep, {all_slept} times all slept; {late} slots \
         ended more than a slice late, the latest by {latest:?}; {added:?} were added to each for the scheduler's own sleep"
    );
}
