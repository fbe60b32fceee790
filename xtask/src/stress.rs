//! `cargo xtask stress`: builds the stress test and goes on as it.
//!
//! The stress test is a program of its own: what it needs of `shinjuku-preempt` (features `stress`
//! and `fault-injection`) would otherwise be in the build that the bench measures.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use shinjuku_bench::paths;

/// Arguments of `cargo xtask stress`, passed on as they are.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds the program, with faults where one is asked for, and becomes it.
///
/// # Errors
/// If it cannot be built or started.
pub fn run(options: &Options) -> Result<ExitCode> {
    let asked_for = |argument: &String| argument.starts_with("--without");
    let mut build = paths::cargo();
    build.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "shinjuku-stress",
    ]);
    if options.arguments.iter().any(asked_for) {
        build.args(["--features", "fault-injection"]);
    }
    let status = build.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "building shinjuku-stress failed ({status})"
    );
    let program = paths::target_dir().join("release").join("shinjuku-stress");
    let failed = Command::new(&program).args(&options.arguments).exec();
    Err(failed).with_context(|| format!("cannot start {}", program.display()))
}
