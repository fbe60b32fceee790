//! One figure: `bench-ordinary duration | answers | times | serve`, printed as JSON.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use shinjuku_bench_ordinary::mixes::MIXES;
use shinjuku_bench_ordinary::serving::{Burst, times};
use shinjuku_bench_ordinary::works::{WORKS, duration};
use shinjuku_bench_ordinary::{By, Times, Way, answer};

/// One figure of `cargo xtask bench ordinary`.
#[derive(Debug, Parser)]
struct Options {
    /// The work, by its place in the list; of `times` and `serve`, the mix.
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
    /// What a mix's requests take.
    Times,
    /// The latency of a mix's short requests.
    Serve {
        /// How they are scheduled.
        #[arg(long)]
        way: Way,
        /// What a short one takes, microseconds.
        #[arg(long)]
        short_us: f64,
        /// What a long one takes, microseconds.
        #[arg(long)]
        long_us: f64,
        /// Share of the worker's time.
        #[arg(long)]
        load: f64,
        /// Of the arrivals.
        #[arg(long)]
        seed: u64,
    },
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.seconds > 0.0, "--seconds must be above 0");
    let length = Duration::from_secs_f64(options.seconds);
    let job = || {
        let (_, prepare) = WORKS.get(options.work).context("there is no such work")?;
        prepare()
    };
    let mix = || MIXES.get(options.work).context("there is no such mix");
    let cores = core_affinity::get_core_ids().context("the cores cannot be told")?;
    ensure!(cores.len() >= 2, "this takes two cores");
    let cores = [cores[0], cores[1]];
    let json = match options.figure {
        Figure::Duration => {
            core_affinity::set_for_current(cores[1]);
            serde_json::to_string(&duration(job()?, length)?)?
        }
        Figure::Answers { by } => {
            serde_json::to_string(&answer::measure(job()?, by, length, cores)?)?
        }
        Figure::Times => serde_json::to_string(&times(mix()?, length)?)?,
        Figure::Serve {
            way,
            short_us,
            long_us,
            load,
            seed,
        } => {
            let burst = Burst {
                mix: mix()?,
                times: Times { short_us, long_us },
                load,
                length,
                seed,
            };
            serde_json::to_string(&burst.serve(way)?)?
        }
    };
    println!("{json}");
    Ok(())
}
