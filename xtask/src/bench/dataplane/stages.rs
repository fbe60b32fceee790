//! One thread, client and server: requests of 64 bytes through more and more of the server, from the bare device to the whole
//! runtime. What a stage has more than the one before it is its price.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Rate, Rates};

use super::Bench;
use super::publish::Section;
use super::results::Runs;
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
    /// The device: `net_ring`, or `memory` without libdpdk.
    pub wire: String,
    /// The stages.
    pub stages: Vec<Runs<Rates>>,
}

/// About how long it takes.
pub fn expected(bench: &Bench) -> Duration {
    bench.expected(1) * STAGES.len() as u32 * bench.repetitions
}

/// Measures all stages in turn, repetition by repetition.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &mut Bench) -> Result<Stages> {
    let mut stages: Vec<_> = STAGES.iter().map(|(name, _)| Runs::new(*name)).collect();
    for repetition in 1..=bench.repetitions {
        for stage in &mut stages {
            let what = format!("one thread: {}, repetition {repetition}", stage.name);
            let core = bench.cores[1];
            let rates = bench.attempt(&what, bench.expected(1), |bench| {
                let rates = bench.program.rates(&stage.name, bench.seconds);
                rates.cores(&[core]).run()
            });
            stage.runs.push(rates?);
        }
    }
    Ok(Stages {
        wire: bench.program.wire().to_owned(),
        stages,
    })
}

/// The median burst's nanoseconds a request.
fn nanos(rates: &Rates) -> Option<f64> {
    Some(rates.dispatchers.first()?.nanos[1])
}

/// Million requests a second, over all bursts.
fn sustained(rates: &Rates) -> Option<f64> {
    Some(rates.dispatchers.first()?.sustained / 1e6)
}

impl Stages {
    /// What each stage does and costs, and whether the target is reached.
    pub fn section(&self) -> Section {
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
        let raw = self.stages.first().and_then(|runs| runs.spread(nanos));
        let mut before = 0.0;
        for ((name, what), runs) in STAGES.iter().zip(&self.stages) {
            let Some(nanos) = runs.spread(nanos) else {
                continue;
            };
            let sustained = runs.spread(sustained);
            table.push([
                format!("{name}: {what}"),
                format!("{:.2}", 1e3 / nanos.median),
                format!("({:.2}..{:.2})", 1e3 / nanos.max, 1e3 / nanos.min),
                sustained.map_or_else(|| "-".into(), |rate| format!("{:.2}", rate.median)),
                format!("{:.1}", nanos.median),
                format!("{:.1}", nanos.median - before),
                raw.map_or_else(String::new, |raw| {
                    format!("{:.0} %", 100.0 * raw.median / nanos.median)
                }),
                cores(runs.measured().flat_map(|rates| &rates.dispatchers)),
            ]);
            before = nanos.median;
        }
        let runtime = self.stages.last();
        let mut notes = Vec::new();
        notes.extend(runtime.and_then(verdict));
        notes.push(BURSTS.to_owned());
        notes.push("The client's part is in raw, and the same in all stages.".to_owned());
        let rates = self.stages.iter().flat_map(Runs::measured);
        notes.extend(faults(rates.flat_map(|rates| &rates.dispatchers)));
        let described = runtime.and_then(|runs| runs.measured().next()?.description.as_ref());
        notes.extend(described.map(|said| format!("The runtime: {said}")));
        Section {
            heading: "One thread, stage by stage",
            tables: vec![table],
            figures: Vec::new(),
            notes,
        }
    }
}

/// What rates are.
pub const BURSTS: &str = "Rates are the median over repetitions of the median over bursts of 2000 requests, which other programs \
    hardly touch. All bursts: requests by the time that the thread had its core, its own pauses included.";

/// Whether the runtime reaches its target.
fn verdict(runtime: &Runs<Rates>) -> Option<String> {
    let nanos = runtime.spread(nanos)?.median;
    let rate = 1e9 / nanos;
    Some(format!(
        "target: {:.0} M/s through the runtime: {} ({:.2} M/s: {nanos:.0} ns each, and {:.0} are allowed)",
        TARGET / 1e6,
        if rate >= TARGET { "reached" } else { "MISSED" },
        rate / 1e6,
        1e9 / TARGET,
    ))
}

/// On which cores dispatchers ran.
pub fn cores<'a>(dispatchers: impl Iterator<Item = &'a Rate>) -> String {
    let mut cores: Vec<usize> = dispatchers.flat_map(|one| one.cores.clone()).collect();
    cores.sort_unstable();
    cores.dedup();
    let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
    cores.join(" ")
}

/// What went wrong, if anything did.
pub fn faults<'a>(rates: impl Iterator<Item = &'a Rate>) -> Option<String> {
    let (mut wrong, mut unanswered) = (0, 0);
    for rate in rates {
        wrong += rate.wrong;
        unanswered += rate.unanswered;
    }
    (wrong + unanswered > 0).then(|| {
        format!("WRONG: {wrong} replies were not what was asked for, {unanswered} requests were not answered.")
    })
}
