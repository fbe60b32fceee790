//! `shinjuku-sim`: runs simulation plans.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use shinjuku_sim::plan::{Plan, parse_share};
use shinjuku_sim::sweep::{self, Measured, Progress};
use shinjuku_sim::{SimError, Until};

#[derive(Parser)]
#[command(about = "Simulates the scheduling policies of Shinjuku for Rust")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a plan and print its table.
    Run {
        /// The plan, a TOML file (docs/simulator.md).
        plan: PathBuf,
        #[command(flatten)]
        options: Options,
        /// Also write every figure of every point to this CSV file.
        #[arg(long)]
        csv: Option<PathBuf>,
    },
    /// Run two plans on the same requests and print their ratios, point by point.
    Compare {
        /// The plan above the fraction bar.
        a: PathBuf,
        /// The plan below it.
        b: PathBuf,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(clap::Args)]
struct Options {
    /// Replicate until the 95 % interval of the reported figure, over all requests, is this narrow:
    /// 2% or 0.02.
    #[arg(long, value_parser = share)]
    until_ci: Option<f64>,
    /// Threads; the results do not depend on it. By default one a core.
    #[arg(long)]
    threads: Option<usize>,
}

fn share(text: &str) -> Result<f64, SimError> {
    parse_share(text)
}

fn main() -> ExitCode {
    match work(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shinjuku-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(command: Command) -> Result<()> {
    match command {
        Command::Run { plan, options, csv } => {
            let plan = Plan::read(&plan)?;
            let measured = options.measure(&plan)?;
            print!("{}", sweep::table(&plan, &measured));
            if let Some(path) = csv {
                std::fs::write(&path, sweep::csv(&measured))
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Command::Compare { a, b, options } => {
            let (a, b) = (Plan::read(&a)?, Plan::read(&b)?);
            let in_a = options.measure(&a)?;
            let in_b = options.measure(&b)?;
            print!("{}", sweep::compare((&a, &in_a), (&b, &in_b))?);
        }
    }
    Ok(())
}

impl Options {
    /// Runs a plan under a progress bar, which is hidden where standard error is no terminal.
    fn measure<'a>(&self, plan: &'a Plan) -> Result<Vec<Measured<'a>>> {
        if let Some(threads) = self.threads {
            // Fails the second time, with the same number.
            let _ = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build_global();
        }
        let bar = ProgressBar::new(1_000 * plan.points.len() as u64);
        let style = "{bar:30} {percent:>3} %  {eta:>4} left  {msg}";
        bar.set_style(ProgressStyle::with_template(style)?.progress_chars("=> "));
        let until = self.until_ci.map(|relative| Until::Precision {
            relative,
            measure: plan.y,
        });
        let measured = sweep::run(plan, until, |progress| {
            let Progress {
                points,
                of,
                replications,
                expected,
            } = progress;
            let part = f64::from(replications) / f64::from(expected.max(1));
            bar.set_position(1_000 * points as u64 + (1_000.0 * part) as u64);
            bar.set_message(format!(
                "point {} of {of}, replication {replications} of {expected}",
                points + 1
            ));
        })?;
        bar.finish_and_clear();
        Ok(measured)
    }
}
