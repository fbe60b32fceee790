//! `cargo xtask bench dataplane`: what the network path without the kernel costs, and what that is
//! beside.
//!
//! Every figure is measured by a process of its own, `bench-dataplane` (`benches/dataplane`), which
//! has DPDK where libdpdk is; contenders take turns, repetition by repetition. No network hardware
//! is needed: packets go over DPDK's net_ring and net_memif, or, without libdpdk, over a wire in
//! memory. Each part is a file: what it measures, and how that is shown.

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

mod dispatchers;
mod imbalance;
mod options;
mod program;
mod publish;
mod reply_sizes;
mod results;
mod round_trips;
mod server;
mod stages;

pub use options::Options;
use program::Program;
use results::{Results, SCHEMA};

/// A process around what it measures: starting it and DPDK, warming up.
const AROUND: Duration = Duration::from_millis(400);

/// What the parts share.
struct Bench<'a> {
    program: Program<'a>,
    quick: bool,
    repetitions: u32,
    /// Of one figure.
    seconds: f64,
    /// The server's, and the client's; what takes one thread is on the second.
    cores: [usize; 2],
    progress: Progress,
    notes: Vec<String>,
    stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// About how long a process takes for so many figures.
    fn expected(&self, figures: usize) -> Duration {
        Duration::from_secs_f64(self.seconds) * figures as u32 + AROUND
    }

    /// Takes a measurement that is expected to last so long. One that fails is missing, which the
    /// notes say.
    ///
    /// # Errors
    /// It was interrupted.
    fn attempt<T>(
        &mut self,
        what: &str,
        expected: Duration,
        measure: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<Option<T>> {
        self.progress.begin(what);
        let outcome = measure(self);
        self.progress.end(expected);
        if self.stop.load(Relaxed) {
            bail!("interrupted");
        }
        match outcome {
            Ok(measured) => Ok(Some(measured)),
            Err(error) => {
                self.notes.push(format!("failed: {what}: {error:#}"));
                Ok(None)
            }
        }
    }
}

/// Measures what is asked for, and publishes it.
///
/// # Errors
/// Nothing can be measured, it was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
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
    let started = Instant::now();
    let stolen_before = machine::stolen_ms();
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
        notes: Vec::new(),
        stages: None,
        round_trips: None,
        reply_sizes: None,
        dispatchers: None,
        imbalance: None,
    };
    let mut bench = Bench {
        program,
        quick: options.quick,
        repetitions: options.repetitions(),
        seconds: options.seconds(),
        cores: results.cores,
        progress: Progress::new(Duration::ZERO),
        notes,
        stop: &stop,
    };
    let measured = measure(options, &mut bench, &mut results);
    let Bench {
        progress, notes, ..
    } = bench;
    progress.finish();
    results.notes = notes;
    if let Err(error) = &measured {
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
fn measure(options: &Options, bench: &mut Bench, results: &mut Results) -> Result<()> {
    type Part = (&'static str, fn(&Bench) -> Duration);
    let parts: [Part; 5] = [
        ("stages", stages::expected),
        ("round-trips", round_trips::expected),
        ("reply-sizes", reply_sizes::expected),
        ("dispatchers", dispatchers::expected),
        ("imbalance", imbalance::expected),
    ];
    let wanted = |part: &Part| options.wants(part.0);
    let expected = parts
        .into_iter()
        .filter(wanted)
        .map(|(_, expected)| expected(bench));
    bench.progress = Progress::new(expected.sum());
    bench.progress.say(&results.machine.summary());
    for note in &bench.notes {
        bench.progress.say(note);
    }
    if options.wants("stages") {
        results.stages = Some(stages::measure(bench)?);
    }
    if options.wants("round-trips") {
        results.round_trips = Some(round_trips::measure(bench)?);
    }
    if options.wants("reply-sizes") {
        results.reply_sizes = Some(reply_sizes::measure(bench)?);
    }
    if options.wants("dispatchers") {
        results.dispatchers = Some(dispatchers::measure(bench)?);
    }
    if options.wants("imbalance") {
        results.imbalance = imbalance::measure(bench)?;
    }
    Ok(())
}
