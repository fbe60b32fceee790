//! Two dispatchers, a core and a queue of one device each, beside one: how much more they do together. Workers do nothing: either
//! there is the transport alone, or the whole runtime with an empty handler.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Rate, Rates};

use super::publish::Section;
use super::results::Runs;
use super::{Bench, stages};
use crate::bench::kv::results::Target;
use crate::bench::kv::tables::comparisons;
use crate::report::table::Table;

/// How many times one two are to do.
const TARGET: Target = Target::AtLeast(1.8);

const STAGES: [&str; 2] = ["transport", "runtime"];
/// A way of having dispatchers: in words, how many, and whether a hash in software spreads the flows.
const WAYS: [(&str, u16, bool); 3] = [
    ("one", 1, false),
    ("two", 2, false),
    ("two, spread by software", 2, true),
];
/// Of each dispatcher's client, where they are spread.
const FLOWS: u16 = 64;

/// For each of the stages, all ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatchers {
    /// The device: `net_ring`, or `memory` without libdpdk.
    pub wire: String,
    /// The stages' ways.
    pub stages: Vec<Vec<Runs<Rates>>>,
}

fn ways(bench: &Bench) -> Vec<(&'static str, u16, bool)> {
    let spreads = bench.program.dpdk.is_some();
    let possible = |(_, _, software): &(_, _, bool)| spreads || !software;
    WAYS.into_iter().filter(possible).collect()
}

/// About how long it takes.
pub fn expected(bench: &Bench) -> Duration {
    bench.expected(1) * (STAGES.len() * ways(bench).len()) as u32 * bench.repetitions
}

/// Measures all in turn, repetition by repetition.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &mut Bench) -> Result<Dispatchers> {
    let ways = ways(bench);
    let all = |stage| {
        ways.iter()
            .map(move |(way, ..)| Runs::new(format!("{stage}, {way}")))
    };
    let mut measured: Vec<Vec<_>> = STAGES.iter().map(|stage| all(stage).collect()).collect();
    let [first, second] = bench.cores;
    for repetition in 1..=bench.repetitions {
        for (stage, measured) in STAGES.iter().zip(&mut measured) {
            for (&(_, count, software), runs) in ways.iter().zip(measured) {
                let what = format!("dispatchers: {}, repetition {repetition}", runs.name);
                let rates = bench.attempt(&what, bench.expected(1), |bench| {
                    let rates = bench.program.rates(stage, bench.seconds);
                    let rates = rates.cores(&[second, first][..count.into()]);
                    let rates = if software {
                        rates.software(FLOWS)
                    } else {
                        rates
                    };
                    rates.run()
                });
                runs.runs.push(rates?);
            }
        }
    }
    Ok(Dispatchers {
        wire: bench.program.wire().to_owned(),
        stages: measured,
    })
}

/// Requests a second of all dispatchers together, by the median burst of each.
fn together(rates: &Rates) -> Option<f64> {
    Some(rates.dispatchers.iter().map(Rate::median).sum())
}

impl Dispatchers {
    /// Rates, and how they compare.
    pub fn section(&self) -> Section {
        let title = format!(
            "requests of 64 bytes over {}: million a second, all dispatchers together",
            self.wire
        );
        let mut table = Table::new(title, ["", "M/s", "(min..max)", "all bursts", "cores"]);
        let mut compared = Vec::new();
        for ways in &self.stages {
            for runs in ways {
                let Some(rate) = runs.spread(together) else {
                    continue;
                };
                let sustained =
                    |rates: &Rates| Some(rates.dispatchers.iter().map(|one| one.sustained).sum());
                let sustained = runs.spread(sustained);
                table.push([
                    runs.name.clone(),
                    format!("{:.2}", rate.median / 1e6),
                    format!("({:.2}..{:.2})", rate.min / 1e6, rate.max / 1e6),
                    sustained
                        .map_or_else(|| "-".into(), |rate| format!("{:.2}", rate.median / 1e6)),
                    stages::cores(runs.measured().flat_map(|rates| &rates.dispatchers)),
                ]);
            }
            let [one, two, others @ ..] = &ways[..] else {
                continue;
            };
            compared.push(two.compare(one, "rate", Some(TARGET), together));
            compared.extend(
                others
                    .iter()
                    .map(|other| other.compare(one, "rate", None, together)),
            );
        }
        let mut notes = vec![
            "Each dispatcher has a queue of the same device, a client behind it on its thread, and workers that do nothing: transport \
             answers on the spot, runtime is the whole, inline, with an empty handler."
                .to_owned(),
        ];
        if self.stages.iter().any(|ways| ways.len() == WAYS.len()) {
            notes.push(
                "Spread by software: clients send all flows on both queues, and the dispatchers hand half of the requests on to each \
                 other."
                    .to_owned(),
            );
        }
        let all = self.stages.iter().flatten().flat_map(Runs::measured);
        notes.extend(stages::faults(all.flat_map(|rates| &rates.dispatchers)));
        Section {
            heading: "Two dispatchers",
            tables: vec![table, comparisons(&compared)],
            figures: Vec::new(),
            notes,
        }
    }
}
