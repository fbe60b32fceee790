//! `cargo xtask stress`: ordinary code under hostile preemption for some time, and what went wrong.
//!
//! The stress itself runs in a child process with standard output closed off: one of its operations writes there, and a
//! run that crashes or hangs is a result to report, not the end of the report. The child leaves its results in the JSON
//! file once a second; the parent completes them when the child ends.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use shinjuku_preempt::fault::Defence;
use shinjuku_preempt::stress::{Config, Interruption};

use crate::paths;

pub mod results;

use results::Results;

/// What the child may take beyond its running time: its own patience with hangs, and a slow machine.
const GRACE: Duration = Duration::from_secs(45);

/// Arguments of `cargo xtask stress`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How long to run.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Where the results are written; target/stress.json by default. `docs/stress.md` describes them.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// A worker is interrupted about this often, in microseconds.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    quantum_us: u64,
    /// Worker threads, each pinned to one of the allowed cores.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=Config::MAX_WORKERS as i64))]
    workers: u16,
    /// Contexts that share the workers: more than twice as many.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=Config::MAX_CONTEXTS as i64))]
    contexts: u16,
    /// How contexts are preempted.
    #[arg(long, value_enum, default_value_t = MechanismName::Signal)]
    mechanism: MechanismName,
    /// Takes one defence out (builds with the feature `fault-injection`): the stress must then fail. The exit status
    /// stays the stress's own.
    #[arg(long, value_name = "DEFENCE", value_parser = defence_name)]
    without: Option<String>,
    /// This is the child.
    #[arg(long, hide = true)]
    in_child: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MechanismName {
    /// At any instruction.
    Signal,
    /// At the operations' own probes.
    Probe,
}

fn defence_name(name: &str) -> Result<String, String> {
    if Defence::ALL.iter().any(|(known, _)| *known == name) {
        return Ok(name.to_owned());
    }
    let names = Defence::ALL.map(|(known, _)| known);
    Err(format!("the defences are {}", names.join(", ")))
}

impl Options {
    fn json(&self) -> PathBuf {
        let default = || paths::target_dir().join("stress.json");
        self.json.clone().unwrap_or_else(default)
    }

    fn config(&self) -> Config {
        Config {
            duration: Duration::from_secs(self.seconds),
            quantum: Duration::from_micros(self.quantum_us),
            workers: self.workers.into(),
            contexts: self.contexts.into(),
            interruption: match self.mechanism {
                MechanismName::Signal => Interruption::Signal,
                MechanismName::Probe => Interruption::Probe,
            },
            write_stdout: true,
            ..Config::default()
        }
    }
}

/// Runs `cargo xtask stress`.
///
/// # Errors
/// If the stress cannot be started or its results not be written. What it finds is no error but the exit code 1.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.in_child {
        return in_child(options);
    }
    if options.without.is_some() && !cfg!(feature = "fault-injection") {
        return run_with_fault_injection();
    }
    // What an earlier run left must not pass for this one's.
    let json = options.json();
    if json.exists() {
        std::fs::remove_file(&json).with_context(|| format!("cannot remove {}", json.display()))?;
    }
    let end = run_child(options)?;
    let mut results = if json.exists() {
        Results::read(&json)?
    } else {
        Results::new(options)
    };
    match end {
        End::Exited(status) if status.code().is_some_and(|code| code <= 1) => {
            anyhow::ensure!(json.exists(), "the stress could not be started");
        }
        End::Exited(status) => results.failed_by("crash", &how_it_ended(status)),
        End::Killed => results.failed_by("hang", "hung, and was killed"),
    }
    write(&results, &json)?;
    println!("\n{results}\nwritten to {}", json.display());
    println!("{}", verdict(&results));
    Ok(if results.failure.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn verdict(results: &Results) -> String {
    match (&results.without, &results.failure) {
        (None, None) => "passed".to_owned(),
        (None, Some(why)) => format!("FAILED: {why}"),
        (Some(defence), Some(why)) => format!("failed, as it must without {defence}: {why}"),
        (Some(defence), None) => format!("NOT NOTICED: it passes without {defence}"),
    }
}

enum End {
    Exited(ExitStatus),
    Killed,
}

fn run_child(options: &Options) -> Result<End> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--in-child")
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the child process")?;
    let limit = Duration::from_secs(options.seconds) + GRACE;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Exited(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(End::Killed);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("died of signal {signal}"),
        None => format!("ended with {status}"),
    }
}

/// Defences can be taken out only of a build that was made for it.
fn run_with_fault_injection() -> Result<ExitCode> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "xtask"])
        .args(["--features", "fault-injection", "--"])
        .args(std::env::args_os().skip(1))
        .status()
        .context("cannot start cargo to build with fault injection")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn in_child(options: &Options) -> Result<ExitCode> {
    take_out(options);
    let json = options.json();
    let mut last = 0;
    let report = shinjuku_preempt::stress::run(&options.config(), |report| {
        let results = Results::of(report, options);
        eprintln!(
            "{:4.0} s  {:9} preemptions ({} in the last second)  {:8} migrations  {} errors",
            results.seconds,
            results.preemptions,
            results.preemptions - last,
            results.migrations,
            results.errors
        );
        last = results.preemptions;
        // Only for the case that this process dies; the last one counts, and is checked.
        let _ = write(&results, &json);
    })?;
    let results = Results::of(&report, options);
    write(&results, &json)?;
    Ok(if results.failure.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn take_out(options: &Options) {
    #[cfg(feature = "fault-injection")]
    for (name, defence) in Defence::ALL {
        if options.without.as_deref() == Some(name) {
            shinjuku_preempt::fault::take_out(defence);
        }
    }
    #[cfg(not(feature = "fault-injection"))]
    debug_assert!(options.without.is_none(), "the parent builds again first");
}

/// Whole or not at all: the child may die while it writes.
fn write(results: &Results, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(results)?;
    let part = path.with_extension("part");
    let describe = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).with_context(describe)?;
    }
    std::fs::write(&part, text + "\n").with_context(describe)?;
    std::fs::rename(&part, path).with_context(describe)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &str) -> Result<Options, String> {
        Line::try_parse_from(line.split_whitespace())
            .map(|line| line.options)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_a_configuration() {
        let options = parse("stress --seconds 3 --quantum-us 20 --workers 3 --mechanism probe");
        let config = options.unwrap().config();
        assert_eq!(config.duration, Duration::from_secs(3));
        assert_eq!(config.quantum, Duration::from_micros(20));
        assert_eq!(config.workers, 3);
        assert_eq!(config.interruption, Interruption::Probe);
    }

    #[test]
    fn wrong_options_are_refused_in_words() {
        let error = parse("stress --without nothing").unwrap_err();
        assert!(error.contains("late-publication"), "{error}");
        assert!(parse("stress --contexts 65").is_err());
        assert!(parse("stress --seconds 0").is_err());
    }

    #[test]
    fn verdicts_tell_noticed_from_not_noticed() {
        let mut results = Results::new(&parse("stress --without guard").unwrap());
        assert!(verdict(&results).starts_with("NOT NOTICED"));
        results.failed_by("crash", "died of signal 11");
        assert_eq!(
            verdict(&results),
            "failed, as it must without guard: died of signal 11"
        );
    }
}
