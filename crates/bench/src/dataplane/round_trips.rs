//! Two processes, server and client with a core each, one request of 64 bytes at a time: what a
//! round trip takes over memif, through the runtime and through a bare loop, and beside that over
//! the kernel's UDP. The client's loop is the same for all.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Calls, SHORTEST_PAYLOAD};
use shinjuku_plot::Table;

use super::Bench;
use super::server::{Kind, Over, Server};
use super::stages::{NOT_MEASURED, cores, faults, sound};
use crate::harness::{Comparison, Goal, Runs, Section, Session, Target, comparisons};
use crate::report;

/// The most that the runtime may take over the bare loop.
const GOAL: Goal = Goal::AtMost(2.0);

/// What the target is about.
const ROUND_TRIP: &str = "round trip, p50";
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundTrips {
    pub server_core: usize,
    pub contenders: Vec<Runs<Calls>>,
    /// What each server said of itself.
    pub descriptions: BTreeMap<String, String>,
}

/// About how long it takes.
pub fn expected(bench: &Bench, session: &Session) -> Duration {
    session.all(bench.of_two(1), contenders(bench).len())
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
pub fn measure(bench: &Bench, session: &mut Session) -> Result<RoundTrips> {
    let mut contending = contenders(bench);
    let mut descriptions = BTreeMap::new();
    let [server_core, client_core] = bench.cores;
    let (each, name) = (bench.of_two(1), |one: &Contender| one.0.to_owned());
    let call = |&mut (name, over, kind): &mut Contender, _| {
        let mut server = Server::start(&bench.program, over, kind, server_core)?;
        let mut calls = server.call(1, &[SHORTEST_PAYLOAD], bench.seconds, client_core)?;
        descriptions.insert(name.to_owned(), server.description.clone());
        Ok(Some(calls.pop().context("the client found nothing")?))
    };
    let contenders = session.interleave("round trips", &mut contending, name, each, call)?;
    Ok(RoundTrips {
        server_core,
        contenders,
        descriptions,
    })
}

impl RoundTrips {
    fn of(&self, name: &str) -> Option<&Runs<Calls>> {
        self.contenders.iter().find(|one| one.name == name)
    }

    fn compared(&self) -> Vec<Comparison> {
        let compare =
            |(what, over, under, goal, value): (&str, &str, &str, Option<Goal>, Value)| {
                Some(self.of(over)?.compare(self.of(under)?, what, goal, value))
            };
        let compared = [
            (ROUND_TRIP, MEMIF, MEMIF_RAW, Some(GOAL), P50),
            (ROUND_TRIP, MEMIF_TRANSPORT, MEMIF_RAW, None, P50),
            ("p99", MEMIF, MEMIF_RAW, None, P99),
            ("mean, all bursts", MEMIF, MEMIF_RAW, None, MEAN),
            (ROUND_TRIP, UDP, UDP_RAW, None, P50),
            (ROUND_TRIP, UDP, MEMIF, None, P50),
            ("p99", UDP, MEMIF, None, P99),
        ];
        compared.into_iter().filter_map(compare).collect()
    }

    /// The round trip over memif.
    pub fn targets(&self) -> Vec<Target> {
        let [own, bare] = [MEMIF, MEMIF_RAW].map(|name| self.of(name));
        let Some((own, bare)) = own.zip(bare) else {
            let name = format!("{ROUND_TRIP}: {MEMIF} / {MEMIF_RAW}");
            return vec![Target::not_shown(name, GOAL, NOT_MEASURED)];
        };
        let shown = self.compared();
        let shown = shown.iter().filter_map(Target::of);
        shown
            .map(|target| sound(target, own, &[bare], Calls::faults))
            .collect()
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
            let [[p50, p50_range], [p99, p99_range], [p999, _]] =
                [P50, P99, P999].map(|value| report::cells(runs.spread(value)));
            let client = cores(runs.measured().map(|calls| &calls.rate));
            table.push([
                runs.name.clone(),
                runs.measured()
                    .map(|calls| calls.rate.requests)
                    .sum::<u64>()
                    .to_string(),
                p50,
                p50_range,
                p99,
                p99_range,
                p999,
                format!("{} {client}", self.server_core),
            ]);
        }
        let tables = [table].into_iter().chain(comparisons(&self.compared()));
        let mut notes = vec![
            "Server and client look again at once. After a thousand looks for nothing bare loops and clients let others have the core \
             for a moment, and the runtime sleeps after 1 ms without work. The first core is the server's, the second the client's."
                .to_owned(),
        ];
        let calls = self.contenders.iter().flat_map(Runs::measured);
        notes.extend(faults(calls.map(Calls::faults)));
        let said = self.descriptions.iter();
        notes.extend(said.map(|(name, said)| format!("{name}: {said}")));
        Section::new("Round trips between two processes", tables).notes(notes)
    }
}

type Value = fn(&Calls) -> Option<f64>;
/// In the time that the client had its core; the server's waiting is in it.
const MEAN: Value = |calls| Some(1e6 / calls.rate.sustained);
const P50: Value = |calls| calls.p50_us;
const P99: Value = |calls| calls.p99_us;
const P999: Value = |calls| calls.p999_us;

#[cfg(test)]
mod tests {
    use shinjuku_bench_dataplane::Rate;

    use super::*;
    use crate::harness::Verdict::{self, Met, Missed, NotShown};

    fn calls(p50_us: f64, [wrong, unanswered]: [u64; 2]) -> Option<Calls> {
        let rate = Rate {
            nanos: [1e3 * p50_us; 3],
            sustained: 1e6 / p50_us,
            waited: None,
            cores: vec![1],
            requests: 1,
            within: 1,
            wrong,
        };
        Some(Calls {
            reply: SHORTEST_PAYLOAD,
            rate,
            unanswered,
            p50_us: Some(p50_us),
            p99_us: None,
            p999_us: None,
        })
    }

    fn verdict(contenders: Vec<Runs<Calls>>) -> Verdict {
        let round_trips = RoundTrips {
            contenders,
            ..RoundTrips::default()
        };
        let [target] = &round_trips.targets()[..] else {
            panic!("one target");
        };
        target.verdict
    }

    #[test]
    fn a_round_trip_is_judged_by_right_replies_to_all_requests() {
        let raw = || Runs::of(MEMIF_RAW, [calls(1.0, [0; 2])]);
        for (p50_us, faults, expected) in [
            (2.0, [0, 0], Met),
            (2.1, [0, 0], Missed),
            (2.0, [1, 0], Missed),
            (2.0, [0, 1], Missed),
        ] {
            let own = Runs::of(MEMIF, [calls(p50_us, faults)]);
            assert_eq!(verdict(vec![raw(), own]), expected, "{p50_us} {faults:?}");
        }
        assert_eq!(verdict(vec![raw(), Runs::of(MEMIF, [None])]), Missed);
        assert_eq!(verdict(Vec::new()), NotShown);
    }
}
