//! `cargo xtask bench dataplane`: what the network path without the kernel costs, and what that is beside.
//!
//! Every figure is measured by a process of its own, `bench-dataplane`, built with DPDK where libdpdk is; contenders take turns,
//! repetition by repetition. No network hardware is needed: packets go over DPDK's net_ring and net_memif, or, without
//! libdpdk, over a wire in memory. Each part is a file: what it measures, and how that is shown.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::kv::busy;
use crate::machine::{self, Machine};
use crate::report::progress::Progress;
use crate::report::stamp;

mod options;
mod program;
mod publish;
mod results;
mod stages;

pub use options::Options;
use program::Program;
use results::{Results, SCHEMA};

/// What the parts share.
struct Bench<'a> {
    program: Program<'a>,
    repetitions: u32,
    /// Of one figure.
    seconds: f64,
    cores: [usize; 2],
}

/// A process around what it measures: starting it and DPDK, warming up.
const AROUND: Duration = Duration::from_millis(400);

impl Bench<'_> {
    /// About how long so many figures take.
    fn expected(&self, figures: usize) -> Duration {
        (Duration::from_secs_f64(self.seconds) + AROUND) * figures as u32
    }
}

/// Measures what is asked for, and publishes it.
///
/// # Errors
/// Nothing can be measured, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    let stolen_before = machine::stolen_ms();
    let cores =
        core_affinity::get_core_ids().context("the cores this process may use cannot be told")?;
    let [first, second, ..] = cores[..] else {
        bail!("two cores are needed, one for the server and one for the client");
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot catch SIGINT and SIGTERM")?;
    }
    let stamp = stamp::now();
    let directory = crate::paths::target_dir()
        .join("bench-dataplane")
        .join(&stamp);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;

    let mut notes = Vec::new();
    if let Some(load) = busy() {
        notes.push(format!(
            "Other programs were running when it began (load average {load:.1}): expect noise."
        ));
    }
    let program = Program::build(&directory, &stop, &mut notes)?;
    let mut results = Results {
        schema: SCHEMA,
        stamp,
        commit: machine::commit(),
        machine: Machine::detect(false),
        command: std::env::args()
            .skip(1)
            .fold("cargo xtask".to_owned(), |line, word| line + " " + &word),
        cores: [first.id, second.id],
        repetitions: options.repetitions(),
        seconds: options.seconds(),
        dpdk: program.dpdk.clone(),
        notes,
        stages: None,
    };
    let bench = Bench {
        program,
        repetitions: options.repetitions(),
        seconds: options.seconds(),
        cores: results.cores,
    };
    let measured = measure(options, &bench, &mut results);
    if stop.load(Relaxed) {
        results.notes.push("It was interrupted.".to_owned());
    } else if let Err(error) = &measured {
        results.notes.push(format!("It ended early: {error:#}"));
    }
    let stolen = machine::stolen_ms()
        .zip(stolen_before)
        .map_or(0, |(now, before)| now - before);
    results.notes.push(format!(
        "It took {:.0} s; the hypervisor took {stolen} ms from the cores meanwhile.",
        started.elapsed().as_secs_f64()
    ));
    publish::publish(&results, &directory)?;
    if let Some(path) = &options.json {
        results.write(path)?;
    }
    measured?;
    Ok(ExitCode::SUCCESS)
}

/// Fills in what is asked for, part by part.
fn measure(options: &Options, bench: &Bench, results: &mut Results) -> Result<()> {
    let mut expected = Duration::ZERO;
    if options.wants("stages") {
        expected += stages::expected(bench);
    }
    let mut progress = Progress::new(expected);
    progress.say(&results.machine.summary());
    for note in &results.notes {
        progress.say(note);
    }
    if options.wants("stages") {
        results.stages = Some(stages::measure(bench, &mut progress)?);
    }
    progress.finish();
    Ok(())
}
