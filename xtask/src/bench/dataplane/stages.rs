//! One thread, client and server: requests of 64 bytes through more and more of the server, from the bare device to the whole
//! runtime. What a stage has more than the one before it is its price.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{DispatcherRate, Rates};
use shinjuku_workload::repeat::Spread;

use super::Bench;
use crate::report::progress::Progress;
use crate::report::table::Table;

/// Requests a second that the runtime is to reach.
const TARGET: f64 = 5e6;

/// Stages, as `bench-dataplane` calls them, and what each has more than the one before it.
const STAGES: [(&str, &str); 4] = [
    ("raw", "the device alone: frames straight back"),
    ("stack", "+ Interface: parse, check, turn the headers round"),
    (
        "transport",
        "+ Dataplane: lend the buffer, take the reply back",
    ),
    (
        "runtime",
        "+ the runtime, inline: dispatch, context, empty handler",
    ),
];

/// All stages, in the order of [`STAGES`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// The device: `net-ring`, or `memory` without libdpdk.
    pub wire: String,
    /// For each stage its repetitions.
    pub runs: Vec<Vec<Rates>>,
}

/// About how long it takes.
pub fn expected(bench: &Bench) -> std::time::Duration {
    bench.expected(STAGES.len() * bench.repetitions as usize)
}

/// Measures all stages in turn, repetition by repetition.
///
/// # Errors
/// A measurement fails.
pub fn measure(bench: &Bench, progress: &mut Progress) -> Result<Stages> {
    let wire = bench.program.wire();
    let mut runs = vec![Vec::new(); STAGES.len()];
    for repetition in 1..=bench.repetitions {
        for ((stage, _), runs) in STAGES.iter().zip(&mut runs) {
            progress.begin(&format!("one thread: {stage}, repetition {repetition}"));
            let core = bench.cores[1].to_string();
            let seconds = bench.seconds.to_string();
            let arguments = [
                "rates",
                "--wire",
                wire,
                "--stage",
                stage,
                "--core",
                &core,
                "--seconds",
                &seconds,
            ];
            let rates: Rates = bench.program.run(&arguments, bench.seconds)?;
            runs.push(rates);
            progress.end(bench.expected(1));
        }
    }
    Ok(Stages {
        wire: wire.to_owned(),
        runs,
    })
}

/// The one dispatcher of each repetition.
fn dispatchers(runs: &[Rates]) -> impl Iterator<Item = &DispatcherRate> {
    runs.iter().flat_map(|rates| rates.dispatchers.first())
}

/// The median burst's nanoseconds a request, over the repetitions.
fn nanos(runs: &[Rates]) -> Option<Spread> {
    let nanos: Vec<f64> = dispatchers(runs).map(|one| one.nanos[1]).collect();
    Spread::of(&nanos)
}

/// Million requests a second, over all bursts and the repetitions, in the time that the thread had its core.
fn sustained(runs: &[Rates]) -> Option<Spread> {
    let rates: Vec<f64> = dispatchers(runs).map(|one| one.sustained() / 1e6).collect();
    Spread::of(&rates)
}

impl Stages {
    /// What each stage does and costs.
    pub fn table(&self) -> Table {
        let title = format!(
            "requests of 64 bytes over {}, client and server on one thread: million a second, and ns of each",
            self.wire
        );
        let header = [
            "",
            "M/s",
            "(min..max)",
            "all bursts",
            "ns",
            "ns more",
            "of raw",
            "core",
        ];
        let mut table = Table::new(title, header);
        let raw = self.runs.first().and_then(|runs| nanos(runs));
        let mut before = 0.0;
        for ((name, what), runs) in STAGES.iter().zip(&self.runs) {
            let Some(nanos) = nanos(runs) else { continue };
            let mut cores: Vec<usize> = dispatchers(runs)
                .flat_map(|one| one.cores.clone())
                .collect();
            cores.sort_unstable();
            cores.dedup();
            let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
            table.push([
                format!("{name}: {what}"),
                format!("{:.2}", 1e3 / nanos.median),
                format!("({:.2}..{:.2})", 1e3 / nanos.max, 1e3 / nanos.min),
                sustained(runs).map_or_else(|| "-".into(), |rate| format!("{:.2}", rate.median)),
                format!("{:.1}", nanos.median),
                format!("{:.1}", nanos.median - before),
                raw.map_or_else(String::new, |raw| {
                    format!("{:.0} %", 100.0 * raw.median / nanos.median)
                }),
                cores.join(" "),
            ]);
            before = nanos.median;
        }
        table
    }

    /// What to say of it, the target first.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let runtime = self.runs.last();
        if let Some(nanos) = runtime.and_then(|runs| nanos(runs)) {
            let rate = 1e9 / nanos.median;
            notes.push(format!(
                "target: {:.0} M/s through the runtime on one thread: {} ({:.2} M/s; {:.0} ns each, of which there may be {:.0})",
                TARGET / 1e6,
                if rate >= TARGET { "reached" } else { "MISSED" },
                rate / 1e6,
                nanos.median,
                1e9 / TARGET,
            ));
        }
        notes.push(
            "M/s and ns: the median over repetitions of the median over bursts of 2000 requests, which other programs hardly touch. \
             All bursts: requests by the time that the thread had its core, its own pauses included. The client's part, the same in all \
             stages, is in raw."
                .to_owned(),
        );
        let failed = |count: fn(&DispatcherRate) -> u64| -> u64 {
            self.runs
                .iter()
                .flat_map(|runs| dispatchers(runs))
                .map(count)
                .sum()
        };
        let (wrong, unanswered) = (failed(|one| one.wrong), failed(|one| one.unanswered));
        if wrong + unanswered > 0 {
            notes.push(format!(
                "WRONG: {wrong} replies were wrong, {unanswered} requests were not answered."
            ));
        }
        let described = runtime.and_then(|runs| runs.first()?.description.clone());
        notes.extend(described.map(|said| format!("The runtime: {said}")));
        notes
    }
}
