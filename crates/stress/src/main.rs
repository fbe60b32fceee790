//! What `cargo xtask stress` runs: ordinary code under hostile preemption for some time, and what
//! went wrong.
//!
//! The stress itself runs in a child process with standard output closed off: one of its operations
//! writes there, and a run that crashes or hangs is a result to report, not the end of the report.
//! The child leaves its results in the JSON file once a second; the parent completes them when the
//! child ends.

#![forbid(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use rustix::process::{Pid, Signal};
use shinjuku_preempt::fault::Defence;
use shinjuku_preempt::stress::{Config, Interruption, Quantum};
use signal_hook::consts::{SIGINT, SIGTERM};

mod results;

use results::{INTERRUPTED, Results};

/// What the child may take beyond its running time: its own patience with hangs, and a slow
/// machine.
const GRACE: Duration = Duration::from_secs(45);

/// Preempt ordinary code at a hostile rate and count what goes wrong.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask stress", bin_name = "cargo xtask stress")]
struct Options {
    /// How long to run.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Where the results are written; target/stress.json by default. `docs/stress.md` describes
    /// them.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// A worker is interrupted about this often, in microseconds; by default from what a preemption
    /// costs here, but not below 50.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    quantum_us: Option<u64>,
    /// Worker threads, each pinned to one of the allowed cores.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=Config::MAX_WORKERS as i64))]
    workers: u16,
    /// Contexts that share the workers: more than twice as many.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=Config::MAX_CONTEXTS as i64))]
    contexts: u16,
    /// How contexts are preempted.
    #[arg(long, value_enum, default_value_t = MechanismName::Signal)]
    mechanism: MechanismName,
    /// Takes one defence out (builds with the feature `fault-injection`): the stress must then
    /// fail. The exit status stays the stress's own.
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
    /// At any instruction, by signal, with contexts that are kernel threads.
    KernelThread,
    /// At the operations' own probes.
    Probe,
    /// At any instruction, with the workers in guest mode under /dev/kvm.
    Guest,
}

impl MechanismName {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn defence_name(name: &str) -> Result<String, String> {
    if Defence::ALL.iter().any(|(known, _)| *known == name) {
        return Ok(name.to_owned());
    }
    let names = Defence::ALL.map(|(known, _)| known);
    Err(format!("the defences are {}", names.join(", ")))
}

impl Options {
    /// By default beside the directory of this program: in Cargo's target directory.
    fn json(&self) -> Result<PathBuf> {
        if let Some(json) = &self.json {
            return Ok(json.clone());
        }
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let target = program.ancestors().nth(2).unwrap_or(Path::new("."));
        Ok(target.join("stress.json"))
    }

    fn interruption(&self) -> Interruption {
        match self.mechanism {
            MechanismName::Signal => Interruption::Signal,
            MechanismName::KernelThread => Interruption::KernelThread,
            MechanismName::Probe => Interruption::Probe,
            MechanismName::Guest => Interruption::Backend("guest"),
        }
    }

    /// The quantum asked for, or one from the cost of a preemption, which is then measured.
    fn quantum(&self) -> Result<Quantum> {
        match self.quantum_us {
            Some(micros) => Ok(Quantum {
                length: Duration::from_micros(micros),
                preemption: None,
            }),
            None => Ok(Quantum::measured(self.interruption())?),
        }
    }

    fn config(&self, quantum: Quantum) -> Config {
        Config {
            duration: Duration::from_secs(self.seconds),
            quantum: quantum.length,
            workers: self.workers.into(),
            contexts: self.contexts.into(),
            interruption: self.interruption(),
            write_stdout: true,
            ..Config::default()
        }
    }
}

/// What the stress finds is no error but the exit code 1.
fn main() -> Result<ExitCode> {
    let options = &Options::parse();
    if options.in_child {
        return in_child(options);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot watch for Ctrl-C")?;
    }
    anyhow::ensure!(
        options.without.is_none() || cfg!(feature = "fault-injection"),
        "--without takes the feature fault-injection, which `cargo xtask stress` turns on"
    );
    // At once: a path that cannot be written is noticed before the run, and an earlier run's
    // results do not pass for this one's.
    let json = &options.json()?;
    let nothing_yet = Results::new(options);
    write(&nothing_yet, json)?;
    let end = run_child(options, &stop)?;
    let mut results = Results::read(json)?;
    match end {
        End::Exited(status) if status.code().is_some_and(|code| code <= 1) => {
            anyhow::ensure!(results != nothing_yet, "the stress could not be started");
        }
        End::Exited(status) => results.failed_by("crash", &how_it_ended(status)),
        End::Hung => results.failed_by("hang", "hung, and was killed"),
        End::Interrupted => results.interrupted(),
    }
    write(&results, json)?;
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
        (_, Some(why)) if why == INTERRUPTED => why.clone(),
        (None, None) => "passed".to_owned(),
        (None, Some(why)) => format!("FAILED: {why}"),
        (Some(defence), Some(why)) => format!("failed, as it must without {defence}: {why}"),
        (Some(defence), None) => format!("NOT NOTICED: it passes without {defence}"),
    }
}

enum End {
    Exited(ExitStatus),
    /// Past its limit, and killed.
    Hung,
    /// This process was asked to end, and has ended the child first.
    Interrupted,
}

fn run_child(options: &Options, stop: &AtomicBool) -> Result<End> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--in-child")
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the child process")?;
    let limit = Duration::from_secs(options.seconds) + GRACE;
    watch(&mut child, limit, stop)
}

/// Waits until the child ends, and ends it when it passes `limit` or `stop` is set.
fn watch(child: &mut Child, limit: Duration, stop: &AtomicBool) -> Result<End> {
    let start = Instant::now();
    loop {
        let status = child.try_wait()?;
        // The terminal's Ctrl-C reaches the child as well: that is no crash of it.
        if stop.load(Ordering::Relaxed) {
            if status.is_none() {
                end(child)?;
            }
            return Ok(End::Interrupted);
        }
        if let Some(status) = status {
            return Ok(End::Exited(status));
        }
        if start.elapsed() > limit {
            end(child)?;
            return Ok(End::Hung);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks the child to end, so that it can end its own; kills it if it does not.
fn end(child: &mut Child) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    rustix::process::kill_process(Pid::from_child(child), Signal::TERM)
        .context("cannot end the child process")?;
    let asked = Instant::now();
    while asked.elapsed() < PATIENCE {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn how_it_ended(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("died of signal {signal}"),
        None => format!("ended with {status}"),
    }
}

fn in_child(options: &Options) -> Result<ExitCode> {
    // A parent that is killed cannot pass that on.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to end with the parent process")?;
    // With every defence in place: what is measured here does not know of faults.
    let quantum = options.quantum()?;
    if let Some(cost) = quantum.preemption {
        eprintln!(
            "a preemption takes {:.1} us here, so the quantum is {} us",
            cost.as_secs_f64() * 1e6,
            quantum.length.as_micros()
        );
    }
    take_out(options);
    let json = &options.json()?;
    let mut last = 0;
    let report = shinjuku_preempt::stress::run(&options.config(quantum), |report| {
        let results = Results::of(report, options, quantum);
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
        let _ = write(&results, json);
    })?;
    let results = Results::of(&report, options, quantum);
    write(&results, json)?;
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
    debug_assert!(options.without.is_none(), "the parent has refused it");
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
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_a_configuration() {
        let options = parse("stress --seconds 3 --quantum-us 20 --workers 3 --mechanism probe");
        let options = options.unwrap();
        let config = options.config(options.quantum().unwrap());
        assert_eq!(config.duration, Duration::from_secs(3));
        assert_eq!(config.quantum, Duration::from_micros(20));
        assert_eq!(config.workers, 3);
        assert_eq!(config.interruption, Interruption::Probe);
    }

    #[test]
    fn a_quantum_that_is_not_given_comes_from_the_measured_cost() {
        let options = parse("stress").unwrap();
        let quantum = options.quantum().unwrap();
        assert_eq!(quantum, Quantum::at_cost(quantum.preemption));
        assert_eq!(options.config(quantum).quantum, quantum.length);
        let given = parse("stress --quantum-us 50 --mechanism guest").unwrap();
        assert_eq!(given.quantum().unwrap().length, Duration::from_micros(50));
    }

    #[test]
    fn wrong_options_are_refused_in_words() {
        let error = parse("stress --without nothing").unwrap_err();
        assert!(error.contains("late-publication"), "{error}");
        assert!(parse("stress --contexts 65").is_err());
        assert!(parse("stress --seconds 0").is_err());
        assert!(parse("stress --seconds 86401").is_err());
    }

    #[test]
    fn verdicts_tell_noticed_from_not_noticed() {
        let mut results = Results::new(&parse("stress --without guard").unwrap());
        assert!(verdict(&results).starts_with("failed, as it must"));
        results.failure = None;
        assert!(verdict(&results).starts_with("NOT NOTICED"));
        results.failed_by("crash", "died of signal 11");
        assert_eq!(
            verdict(&results),
            "failed, as it must without guard: died of signal 11"
        );
        results.interrupted();
        assert_eq!(verdict(&results), "interrupted");
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn who_is_asked_to_end_ends_its_child_first() {
        let mut child = sleeper();
        let end = watch(&mut child, GRACE, &AtomicBool::new(true)).unwrap();
        assert!(matches!(end, End::Interrupted));
        assert!(child.try_wait().unwrap().is_some(), "the child still runs");
    }

    #[test]
    fn a_child_past_its_limit_is_ended() {
        let mut child = sleeper();
        let stop = AtomicBool::new(false);
        let end = watch(&mut child, Duration::from_millis(50), &stop).unwrap();
        assert!(matches!(end, End::Hung));
        assert!(child.try_wait().unwrap().is_some(), "the child still runs");
    }

    #[test]
    fn a_path_that_cannot_be_written_is_noticed_at_once() {
        let results = Results::new(&parse("stress").unwrap());
        let error = write(&results, Path::new("/dev/null/results.json")).unwrap_err();
        assert!(format!("{error:#}").contains("/dev/null/results.json"));
    }
}
