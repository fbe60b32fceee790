//! `cargo xtask bench ordinary`: what compiled probes cost libraries that know nothing of
//! preemption, how soon these give way to them, beside signals, and what that is worth to short
//! requests beside long ones of these libraries.
//!
//! The program `bench-ordinary` (`benches/ordinary`) is built twice, plainly and by `cargo
//! shinjuku`. Every figure is one process's; plain and instrumented ones take turns, and so do
//! compiled probes and signals.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shinjuku_bench_ordinary::works::WORKS;
use shinjuku_bench_ordinary::{Answers, Duration as JobDuration};

use crate::harness::{self, Efforts, Process, Runs, Session};
use crate::machine::Machine;
use crate::paths;

mod mixes;
mod report;

use mixes::MixResults;

const PACKAGE: &str = "shinjuku-bench-ordinary";
/// The contenders, by the names that results give them.
const PLAIN: &str = "plain";
const COMPILED: &str = "compiled probes";
const SIGNAL: &str = "signal";

/// Starting a process, and setting its work up.
const AROUND: Duration = Duration::from_millis(200);

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.3),
    default: (7, 0.5),
    // A burst of the mixes may not last longer.
    full: (15, 0.8),
    seconds: 0.05..=10.0,
};

/// What the bench of ordinary code measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ordinary {
    /// One for each work.
    pub works: Vec<Work>,
    /// Short requests beside long ones.
    pub mixes: Vec<MixResults>,
}

/// A library's work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// The library, and what it does.
    pub name: String,
    /// How long a job takes: plain, then with compiled probes.
    pub durations: Vec<Runs<JobDuration>>,
    /// How soon it gives way: to compiled probes, then to signals.
    pub answers: Vec<Runs<Answers>>,
}

/// The program, built both ways.
struct Programs {
    plain: PathBuf,
    instrumented: PathBuf,
}

impl Programs {
    /// Builds them.
    ///
    /// # Errors
    /// One cannot be built.
    fn build() -> Result<Self> {
        let target = paths::target_dir();
        let release = ["--quiet", "--release", "--package"];
        let mut plain = paths::cargo();
        (plain.arg("build").args(release)).args([PACKAGE, "--package", "cargo-shinjuku"]);
        finish(plain, "the plain program")?;
        let mut instrumented = Command::new(target.join("release/cargo-shinjuku"));
        instrumented.current_dir(paths::workspace_root());
        instrumented.arg("build").args(release).arg(PACKAGE);
        // Cargo names the target in the path, even its own.
        instrumented.args(["--target", "x86_64-unknown-linux-gnu"]);
        finish(instrumented, "the instrumented program")?;
        Ok(Self {
            plain: target.join("release/bench-ordinary"),
            instrumented: target.join("shinjuku/x86_64-unknown-linux-gnu/release/bench-ordinary"),
        })
    }
}

fn finish(mut build: Command, what: &str) -> Result<()> {
    eprintln!("building {what}");
    let status = build
        .status()
        .with_context(|| format!("cannot build {what}"))?;
    ensure!(status.success(), "building {what} failed ({status})");
    Ok(())
}

/// What a figure takes besides its arguments.
#[derive(Clone, Copy)]
struct Measuring<'a> {
    seconds: f64,
    directory: &'a Path,
    stop: &'a AtomicBool,
}

impl Measuring<'_> {
    fn figure<T: DeserializeOwned>(self, program: &Path, work: usize, of: &[&str]) -> Result<T> {
        let (work, seconds) = (work.to_string(), self.seconds.to_string());
        let mut arguments = vec!["--work", &work, "--seconds", &seconds];
        arguments.extend(of);
        Process::start(program, self.directory, &arguments)?.result(self.seconds, self.stop)
    }
}

/// Measures all works, and publishes that.
///
/// # Errors
/// Nothing can be measured, it was interrupted, or results cannot be written.
pub fn run(options: &harness::Options) -> Result<ExitCode> {
    let settings = options.settings(&EFFORTS, false)?;
    let mut session = Session::begin::<Ordinary>(options, settings)?;
    let programs = Programs::build()?;
    let mut results = Ordinary {
        works: Vec::new(),
        mixes: Vec::new(),
    };
    let machine = Machine::detect(false);
    let each = session.length() + AROUND;
    let works = session.all(each, 4 * WORKS.len());
    session.expect(&machine, works + mixes::expected(&session));
    let measured = measure(&programs, &mut session, &mut results);
    session.end(machine, results, measured)
}

fn measure(programs: &Programs, session: &mut Session, results: &mut Ordinary) -> Result<()> {
    let (directory, stop) = (session.directory.clone(), session.stop.clone());
    let measuring = Measuring {
        seconds: session.settings.seconds_per_point,
        directory: &directory,
        stop: &stop,
    };
    let each = session.length() + AROUND;
    for (number, (name, _)) in WORKS.iter().enumerate() {
        let mut contenders = [(PLAIN, &programs.plain), (COMPILED, &programs.instrumented)];
        let named = |(name, _): &(&str, _)| (*name).to_owned();
        let durations = session.interleave(
            &format!("{name}: duration"),
            &mut contenders,
            named,
            each,
            |(_, program), _| Ok(Some(measuring.figure(program, number, &["duration"])?)),
        )?;
        let mut ways = [(COMPILED, "compiled-probe"), (SIGNAL, "signal")];
        let answers = session.interleave(
            &format!("{name}: giving way"),
            &mut ways,
            |(name, _)| (*name).to_owned(),
            each,
            |(_, by), _| {
                let of = ["answers", "--by", by];
                Ok(Some(measuring.figure(
                    &programs.instrumented,
                    number,
                    &of,
                )?))
            },
        )?;
        results.works.push(Work {
            name: (*name).to_owned(),
            durations,
            answers,
        });
    }
    results.mixes = mixes::measure(programs, measuring, session)?;
    Ok(())
}
