//! One figure: `bench-ordinary duration | answers`, printed as JSON.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use shinjuku_bench_ordinary::works::{Job, WORKS};
use shinjuku_bench_ordinary::{By, answer};

/// One figure of `cargo xtask bench ordinary`.
#[derive(Debug, Parser)]
struct Options {
    /// The work, by its place in the list.
    #[arg(long)]
    work: usize,
    /// How long to measure.
    #[arg(long)]
    seconds: f64,
    #[command(subcommand)]
    figure: Figure,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Figure {
    /// How long a job takes.
    Duration,
    /// How soon it gives way.
    Answers {
        /// To what.
        #[arg(long)]
        by: By,
    },
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (_, prepare) = WORKS.get(options.work).context("there is no such work")?;
    ensure!(options.seconds > 0.0, "--seconds must be above 0");
    let (job, length) = (prepare()?, Duration::from_secs_f64(options.seconds));
    let cores = core_affinity::get_core_ids().context("the cores cannot be told")?;
    ensure!(cores.len() >= 2, "this takes two cores");
    let cores = [cores[0], cores[1]];
    let json = match options.figure {
        Figure::Duration => {
            core_affinity::set_for_current(cores[1]);
            serde_json::to_string(&duration(job, length))?
        }
        Figure::Answers { by } => serde_json::to_string(&answer::measure(job, by, length, cores)?)?,
    };
    println!("{json}");
    Ok(())
}

fn duration(mut job: Job, length: Duration) -> shinjuku_bench_ordinary::Duration {
    let start = Instant::now();
    let mut least = Duration::MAX;
    while least == Duration::MAX || start.elapsed() < length {
        let before = Instant::now();
        black_box(job());
        least = least.min(before.elapsed());
    }
    shinjuku_bench_ordinary::Duration {
        least_us: least.as_nanos() as f64 / 1_000.0,
    }
}
