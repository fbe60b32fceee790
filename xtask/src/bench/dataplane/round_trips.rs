//! Two processes, server and client with a core each, one request of 64 bytes at a time: what a
//! round trip takes over memif, through the runtime and through a bare loop, and beside that over
//! the kernel's UDP. The client's loop is the same for all.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Calls, SHORTEST_PAYLOAD};
use shinjuku_workload::repeat::Spread;

use super::Bench;
use super::publish::Section;
use super::results::Runs;
use super::server::{Kind, Over, Server};
use super::stages::{cores, faults};
use crate::bench::kv::results::Target;
use crate::bench::kv::tables::comparisons;
use crate::report::summary::figure;
use crate::report::table::Table;

/// The most that the runtime may take over the bare loop.
const TARGET: Target = Target::AtMost(2.0);

const MEMIF_RAW: &str = "memif, bare loop";
const MEMIF_TRANSPORT: &str = "memif, transport alone";
const MEMIF: &str = "memif, runtime";
const UDP_RAW: &str = "kernel UDP, bare loop";
const UDP: &str = "kernel UDP, runtime";
/// A contender's name, what its packets go over, and what serves.
pub type Contender = (&'static str, Over, Kind);
const CONTENDERS: [Contender; 5] = [
    (MEMIF_RAW, Over::Memif, Kind::Raw),
    (MEMIF_TRANSPORT, Over::Memif, Kind::Transport),
    (MEMIF, Over::Memif, Kind::Runtime),
    (UDP_RAW, Over::Udp, Kind::Raw),
    (UDP, Over::Udp, Kind::Runtime),
];

/// All contenders that could be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundTrips {
    /// The server's core.
    pub server_core: usize,
    /// The contenders.
    pub contenders: Vec<Runs<Calls>>,
    /// What each server said of itself.
    pub descriptions: BTreeMap<String, String>,
}

/// About how long it takes.
pub fn expected(bench: &Bench) -> Duration {
    (bench.expected(1) + bench.expected(0)) * contenders(bench).len() as u32 * bench.repetitions
}

fn contenders(bench: &Bench) -> Vec<Contender> {
    let has_memif = bench.program.dpdk.is_some();
    let possible = |(_, over, _): &Contender| has_memif || *over != Over::Memif;
    CONTENDERS.into_iter().filter(possible).collect()
}

/// Measures all contenders in turn, repetition by repetition.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &mut Bench) -> Result<RoundTrips> {
    let contending = contenders(bench);
    let mut measured: Vec<_> = contending.iter().map(|one| Runs::new(one.0)).collect();
    let mut descriptions = BTreeMap::new();
    let [server_core, client_core] = bench.cores;
    for repetition in 1..=bench.repetitions {
        for (&(name, over, kind), runs) in contending.iter().zip(&mut measured) {
            let what = format!("round trips: {name}, repetition {repetition}");
            let expected = bench.expected(1) + bench.expected(0);
            let called = bench.attempt(&what, expected, |bench| {
                let mut server = Server::start(&bench.program, over, kind, server_core)?;
                let mut calls = server.call(1, &[SHORTEST_PAYLOAD], bench.seconds, client_core)?;
                let calls = calls.pop().context("the client found nothing")?;
                Ok((calls, server.description.clone()))
            });
            let (calls, description) = called?.unzip();
            runs.runs.push(calls);
            descriptions.extend(description.map(|said| (name.to_owned(), said)));
        }
    }
    Ok(RoundTrips {
        server_core,
        contenders: measured,
        descriptions,
    })
}

impl RoundTrips {
    fn of(&self, name: &str) -> Option<&Runs<Calls>> {
        self.contenders.iter().find(|one| one.name == name)
    }

    /// Percentiles of each contender, and how they compare.
    pub fn section(&self) -> Section {
        let header = [
            "",
            "round trips",
            "p50",
            "(min..max)",
            "p99",
            "(min..max)",
            "p99.9",
            "cores",
        ];
        let title = "round trips between two processes, one request of 64 bytes at a time: µs";
        let mut table = Table::new(title, header);
        for runs in &self.contenders {
            let median = |spread: Option<Spread>| {
                spread.map_or_else(|| "-".into(), |one| figure(one.median))
            };
            let range = |spread: Option<Spread>| {
                spread.map_or_else(String::new, |one| {
                    format!("({}..{})", figure(one.min), figure(one.max))
                })
            };
            let [p50, p99, p999] = [P50, P99, P999].map(|value| runs.spread(value));
            let client = cores(runs.measured().map(|calls| &calls.rate));
            table.push([
                runs.name.clone(),
                runs.measured()
                    .map(|calls| calls.rate.requests)
                    .sum::<u64>()
                    .to_string(),
                median(p50),
                range(p50),
                median(p99),
                range(p99),
                median(p999),
                format!("{} {client}", self.server_core),
            ]);
        }
        let compare = |what: &str, over, under, target, value: Value| {
            Some(self.of(over)?.compare(self.of(under)?, what, target, value))
        };
        let compared = [
            compare("p50", MEMIF, MEMIF_RAW, Some(TARGET), P50),
            compare("p50", MEMIF_TRANSPORT, MEMIF_RAW, None, P50),
            compare("p99", MEMIF, MEMIF_RAW, None, P99),
            compare("mean, all bursts", MEMIF, MEMIF_RAW, None, MEAN),
            compare("p50", UDP, UDP_RAW, None, P50),
            compare("p50", UDP, MEMIF, None, P50),
            compare("p99", UDP, MEMIF, None, P99),
        ];
        let compared: Vec<_> = compared.into_iter().flatten().collect();
        let mut tables = vec![table];
        if !compared.is_empty() {
            tables.push(comparisons(&compared));
        }
        let mut notes = vec![
            "Server and client look again at once. After a thousand looks for nothing bare loops and clients let others have the core \
             for a moment, and the runtime sleeps after 1 ms without work. The first core is the server's, the second the client's."
                .to_owned(),
        ];
        let calls = self.contenders.iter().flat_map(Runs::measured);
        notes.extend(faults(calls.map(Calls::faults)));
        let said = self.descriptions.iter();
        notes.extend(said.map(|(name, said)| format!("{name}: {said}")));
        Section {
            heading: "Round trips between two processes",
            tables,
            figures: Vec::new(),
            notes,
        }
    }
}

type Value = fn(&Calls) -> Option<f64>;
/// In the time that the client had its core; the server's waiting is in it.
const MEAN: Value = |calls| Some(1e6 / calls.rate.sustained);
const P50: Value = |calls| calls.p50_us;
const P99: Value = |calls| calls.p99_us;
const P999: Value = |calls| calls.p999_us;
