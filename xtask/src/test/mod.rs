//! `cargo xtask test`: every test of the workspace, with a time limit per step and one count at the
//! end.
//!
//! The last line is `N passed, N failed, N skipped`. A step that fails without a failed test (it
//! does not compile, it crashes, it hangs) counts as one failure, so that the line never reads
//! better than the exit status.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};

use shinjuku_bench::paths;
use shinjuku_plot::Table;

pub mod libtest;
pub mod step;
mod steps;

use step::{End, Outcome};

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Steps to run; all of them by default.
    #[arg(value_parser = step_name)]
    steps: Vec<String>,
    /// Multiplies the time limits, for slow machines.
    #[arg(long, default_value_t = 1.0, value_parser = patience)]
    patience: f64,
}

fn step_name(name: &str) -> Result<String, String> {
    let names: Vec<_> = steps::all().iter().map(|step| step.name).collect();
    if names.contains(&name) {
        Ok(name.to_owned())
    } else {
        Err(format!("the steps are {}", names.join(", ")))
    }
}

pub(crate) fn patience(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (0.01..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("a number from 0.01 to 1000 is wanted".to_owned()),
    }
}

/// Runs `cargo xtask test`.
///
/// # Errors
/// If a step cannot be started. Failing tests are no error but the exit code 1.
pub fn run(options: &Options) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    // Steps run in process groups of their own, which the terminal's Ctrl-C does not reach: it is
    // passed on by `stop`.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot watch for Ctrl-C")?;
    }
    let mut outcomes = Vec::new();
    for mut step in steps::all() {
        if !options.steps.is_empty() && !options.steps.iter().any(|name| name == step.name) {
            continue;
        }
        step.limit = step.limit.mul_f64(options.patience);
        println!(
            "== {}: {} {}",
            step.name,
            step.program,
            step.arguments.join(" ")
        );
        let outcome = step.run(&paths::workspace_root(), &stop, &mut |line| {
            println!("{line}")
        })?;
        outcomes.push((step.name, outcome));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    ensure!(!outcomes.is_empty(), "no step was chosen");
    let summary = Summary::new(outcomes);
    println!("\n{summary}");
    Ok(if summary.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// All steps together.
#[derive(Debug)]
struct Summary {
    outcomes: Vec<(&'static str, Outcome)>,
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Summary {
    fn new(outcomes: Vec<(&'static str, Outcome)>) -> Self {
        let sum = |count: &dyn Fn(&Outcome) -> u64| {
            outcomes.iter().map(|(_, outcome)| count(outcome)).sum()
        };
        let passed = sum(&|outcome| outcome.tally.passed);
        let failed = sum(&|outcome| match outcome.end {
            End::Passed => outcome.tally.failed,
            _ => outcome.tally.failed.max(1),
        });
        let skipped = sum(&|outcome| outcome.tally.skipped.len() as u64);
        Self {
            outcomes,
            passed,
            failed,
            skipped,
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = Table::new(
            "steps",
            ["step", "passed", "failed", "skipped", "seconds", "result"],
        );
        for (name, outcome) in &self.outcomes {
            table.push([
                (*name).to_owned(),
                outcome.tally.passed.to_string(),
                outcome.tally.failed.to_string(),
                outcome.tally.skipped.len().to_string(),
                format!("{:.1}", outcome.elapsed.as_secs_f64()),
                match &outcome.end {
                    End::Passed => "ok".to_owned(),
                    End::Failed(why) => format!("FAILED: {why}"),
                    End::TimedOut => "FAILED: took too long, killed".to_owned(),
                    End::Interrupted => "FAILED: interrupted".to_owned(),
                },
            ]);
        }
        writeln!(f, "{table}")?;
        for skip in self
            .outcomes
            .iter()
            .flat_map(|(_, outcome)| &outcome.tally.skipped)
        {
            writeln!(f, "skipped {}: {}", skip.name, skip.reason)?;
        }
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::libtest::{Skip, Tally};
    use super::*;

    fn outcome(end: End, passed: u64, failed: u64, skipped: &[&str]) -> Outcome {
        let skip = |name: &&str| Skip {
            name: (*name).into(),
            reason: "not here".into(),
        };
        Outcome {
            end,
            tally: Tally {
                passed,
                failed,
                skipped: skipped.iter().map(skip).collect(),
            },
            elapsed: Duration::from_secs(1),
        }
    }

    #[test]
    fn the_last_line_counts_steps_that_failed_without_a_failed_test() {
        let summary = Summary::new(vec![
            (
                "tests",
                outcome(End::Failed("exit status: 101".into()), 7, 2, &["kvm"]),
            ),
            ("loom", outcome(End::TimedOut, 1, 0, &[])),
            ("doc", outcome(End::Passed, 3, 0, &[])),
        ]);
        let text = summary.to_string();
        assert_eq!(text.lines().last(), Some("11 passed, 3 failed, 1 skipped"));
        assert!(text.contains("skipped kvm: not here"));
    }

    #[test]
    fn step_names_are_checked() {
        assert!(step_name("loom").is_ok());
        assert!(step_name("all").unwrap_err().contains("tests"));
    }
}
