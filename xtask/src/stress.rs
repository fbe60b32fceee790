//! `cargo xtask stress`: builds the stress test and goes on as it.
//!
//! The stress test is a program of its own: what it needs of `shinjuku-preempt` (features `stress`
//! and `fault-injection`) would otherwise be in the build that the bench measures. So is that of
//! `cargo xtask stress entries`, whose operations `cargo shinjuku` builds.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use shinjuku_bench::paths;

/// Arguments of `cargo xtask stress`, passed on as they are.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// `--help` lists them; `entries --help` those of the stress at function entries.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Preempt ordinary code at function entries, by compiled probes, and compare its results.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask stress entries",
    bin_name = "cargo xtask stress entries"
)]
struct Entries {
    /// How many preemptions at entries are enough.
    #[arg(long, default_value_t = 1_000_000)]
    preemptions: u64,
    /// How long it may take.
    #[arg(long, default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// The runtime's layout, a pool of closures, or in the layout `threads` two runtimes side by
    /// side or contexts that are kernel threads.
    #[arg(long, default_value = "threads", value_parser = ["threads", "inline", "symmetric", "pool", "two-runtimes", "kernel-threads"])]
    layout: String,
    /// What preempts.
    #[arg(long, default_value = "compiled-probe", value_parser = ["compiled-probe", "escalation"])]
    mechanism: String,
    /// Remove a defence first: this must fail.
    #[arg(long, value_parser = ["guard"])]
    without: Option<String>,
}

/// Builds the program that the arguments ask for, and becomes it.
///
/// # Errors
/// If it cannot be built or started.
pub fn run(options: &Options) -> Result<ExitCode> {
    match options.arguments.first() {
        Some(first) if first == "entries" => at_entries(&Entries::parse_from(&options.arguments)),
        _ => anywhere(&options.arguments),
    }
}

/// With faults where one is asked for.
fn anywhere(arguments: &[String]) -> Result<ExitCode> {
    let asked_for = |argument: &String| argument.starts_with("--without");
    let mut build = paths::cargo();
    build.args(["build", "--quiet", "--release", "--package"]);
    build.arg("shinjuku-stress");
    if arguments.iter().any(asked_for) {
        build.args(["--features", "fault-injection"]);
    }
    finish(build, "shinjuku-stress")?;
    let program = paths::target_dir().join("release/shinjuku-stress");
    become_program(Command::new(program).args(arguments))
}

/// Instrumented, by the workspace's own `cargo shinjuku`.
fn at_entries(entries: &Entries) -> Result<ExitCode> {
    const PACKAGE: &str = "shinjuku-stress-entries";
    // Cargo names the target in the path, even its own.
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let release = ["build", "--quiet", "--release", "--package"];
    let mut subcommand = paths::cargo();
    subcommand.args(release).arg("cargo-shinjuku");
    finish(subcommand, "cargo-shinjuku")?;
    let target = paths::target_dir();
    let mut build = Command::new(target.join("release/cargo-shinjuku"));
    build.current_dir(paths::workspace_root());
    build.args(release).args([PACKAGE, "--target", TARGET]);
    if entries.without.is_some() {
        build.args(["--features", "fault-injection"]);
    }
    finish(build, PACKAGE)?;
    let directory = target.join("shinjuku").join(TARGET).join("release");
    let numbers = [entries.preemptions, entries.seconds].map(|number| number.to_string());
    let mut program = Command::new(directory.join(PACKAGE));
    become_program(
        program
            .args([&entries.layout, &entries.mechanism])
            .args(numbers)
            .args(&entries.without),
    )
}

fn finish(mut build: Command, what: &str) -> Result<()> {
    let status = build
        .status()
        .with_context(|| format!("cannot build {what}"))?;
    ensure!(status.success(), "building {what} failed ({status})");
    Ok(())
}

fn become_program(command: &mut Command) -> Result<ExitCode> {
    let failed = command.exec();
    Err(failed).with_context(|| format!("cannot start {}", command.get_program().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stress_at_entries_has_a_bound_by_default() {
        let entries = Entries::parse_from(["entries", "--layout", "pool"]);
        assert_eq!((entries.preemptions, entries.seconds), (1_000_000, 3_600));
        assert_eq!(
            (entries.layout.as_str(), entries.mechanism.as_str()),
            ("pool", "compiled-probe")
        );
        assert!(Entries::try_parse_from(["entries", "--seconds", "0"]).is_err());
    }
}
