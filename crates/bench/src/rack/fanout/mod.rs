//! Queries that fan out: the four disciplines with real servers, and simulated with the same
//! parameters.
//!
//! The simulated servers are ideal: no network, no dispatcher, no other thread on their cores. The
//! difference is what the machine adds, and where there are two cores the client shares them with
//! the servers. Two servers cannot show what TailGuard is for, queries that wait for the slowest of
//! many: deadlines by SLO and fan-out hardly differ from those by SLO alone there.

mod servers;

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku::policy::Nanos;
use shinjuku_examples::work::steps_per_nano;
use shinjuku_plot::Table;
use shinjuku_sim::fanout::{Discipline, FanoutScenario};
use shinjuku_workload::repeat::Spread;
use shinjuku_workload::{Class, Mix, ServiceTime};

use crate::harness::{Goal, Section, Session, Target};
use crate::report::figure;

/// A repetition is so many times as long as of a packet: queries take milliseconds.
const LONGER: u32 = 20;
/// The most servers; each has a core, and the client has one, where there are as many.
const MOST_SERVERS: usize = 8;
/// A part's mean, exponentially distributed.
const WORK_US: f64 = 250.0;
/// Bounds on the 99th percentile.
const SLOS_US: [f64; 2] = [2_000.0, 4_000.0];
/// The load of each server.
const LOAD: f64 = 0.6;
/// After which a part gives way to one that is due earlier.
const QUANTUM_US: u64 = 100;

const NOT_MEASURED: &str = "it was not measured, or the base had no query within its SLO";

/// The disciplines side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fanout {
    /// Servers, of one worker each.
    pub servers: usize,
    /// Cores for all of them and the client.
    pub cores: usize,
    /// The types of query: SLO and fan-out.
    pub kinds: Vec<String>,
    /// One for each discipline.
    pub rows: Vec<Row>,
}

/// A discipline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub discipline: String,
    /// With real servers, by repetition; `None`: it failed.
    pub real: Vec<Option<Outcome>>,
    /// Simulated, by seed.
    pub simulated: Vec<Outcome>,
}

/// What became of the queries of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The share of all queries that ended within their SLO.
    pub within: f64,
    /// The same for each type of query.
    pub kinds: Vec<KindOutcome>,
}

/// What became of one type of query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindOutcome {
    /// The share that ended within the SLO.
    pub within: f64,
    /// The 99th percentile of the latency, in microseconds; `None`: more than a hundredth had no
    /// answer.
    pub p99_us: Option<f64>,
}

/// How long a run takes, about.
pub fn expected(session: &Session) -> Duration {
    session.all(LONGER * session.length(), Discipline::ALL.len())
}

/// Measures all disciplines in turn, and simulates as many queries.
///
/// # Errors
/// It was interrupted, or the scenario is impossible.
pub fn run(session: &mut Session) -> Result<Fanout> {
    let length = LONGER * session.length();
    let mut contenders = scenarios(session.cores.len(), length)?;
    let (cores, stop) = (session.cores.clone(), session.stop.clone());
    let steps_per_nano = steps_per_nano();
    let measured = session.interleave(
        "queries that fan out",
        &mut contenders,
        |scenario| scenario.discipline.name().to_owned(),
        length,
        |scenario, seed| {
            servers::measure(scenario, &cores, (length, seed), steps_per_nano, &stop).map(Some)
        },
    )?;
    let mut rows = Vec::new();
    for (scenario, measured) in contenders.iter().zip(measured) {
        let simulated = session.settings.seeds.iter();
        rows.push(Row {
            discipline: scenario.discipline.name().to_owned(),
            real: measured.runs,
            simulated: simulated
                .map(|seed| simulate(scenario, *seed))
                .collect::<Result<_>>()?,
        });
    }
    let kinds = (0..contenders[0].kinds()).map(|kind| contenders[0].kind_name(kind));
    Ok(Fanout {
        servers: contenders[0].servers,
        cores: cores.len(),
        kinds: kinds.collect(),
        rows,
    })
}

/// The set-up, once for each discipline.
fn scenarios(cores: usize, length: Duration) -> Result<Vec<FanoutScenario>> {
    let service = ServiceTime::exponential(WORK_US)?;
    let mix = Mix::new("parts", vec![Class::new("part", 1.0, service)])?;
    let servers = cores.saturating_sub(1).clamp(2, MOST_SERVERS);
    // Either fan-out offers as many parts.
    let fanouts = vec![(1, servers as f64), (servers, 1.0)];
    let mut scenario = FanoutScenario {
        load: LOAD,
        quantum: Nanos::from_micros(QUANTUM_US),
        ..FanoutScenario::new(mix, servers, fanouts, SLOS_US.map(|slo| (slo, 1.0)).into())
    };
    scenario.queries = ((length.as_nanos() as f64 / scenario.gap_ns()) as u64).max(1);
    let of = |discipline| FanoutScenario {
        discipline,
        ..scenario.clone()
    };
    Ok(Discipline::ALL.map(of).into())
}

fn simulate(scenario: &FanoutScenario, seed: u64) -> Result<Outcome> {
    let tally = scenario.run(seed)?.tally;
    let (mut kinds, mut met, mut all) = (Vec::new(), 0, 0);
    for kind in 0..scenario.kinds() {
        let queries = tally.class(kind as u16).requests;
        let within = tally.class_within(kind as u16, scenario.slo_ns(kind) as u64);
        let p99_ns = tally.class_quantile_ns(kind as u16, scenario.percentile);
        kinds.push(KindOutcome {
            within: within as f64 / queries.max(1) as f64,
            p99_us: Some(p99_ns as f64 / 1e3),
        });
        met += within;
        all += queries;
    }
    let within = met as f64 / all as f64;
    Ok(Outcome { within, kinds })
}

impl Fanout {
    fn row(&self, discipline: Discipline) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.discipline == discipline.name())
    }

    /// How many times the share of the second that of the first is, repetition by repetition.
    fn gain(&self, discipline: Discipline, base: Discipline) -> Option<Spread> {
        let (one, other) = (self.row(discipline)?, self.row(base)?);
        let pairs = one.real.iter().zip(&other.real);
        let ratios: Vec<_> = pairs
            .filter_map(|(one, other)| Some(one.as_ref()?.within / other.as_ref()?.within))
            .filter(|ratio| ratio.is_finite())
            .collect();
        Spread::of(&ratios)
    }
}

/// What the disciplines must reach with real servers.
pub fn targets(fanout: Option<&Fanout>) -> Vec<Target> {
    let judge = |base: Discipline| {
        let (ours, wanted) = (Discipline::TailGuard, Goal::AtLeast(1.0));
        let name = format!(
            "real servers: share of queries within their SLO, {} / {}",
            ours.name(),
            base.name()
        );
        match fanout.and_then(|fanout| fanout.gain(ours, base)) {
            Some(gain) => Target::measured(name, wanted, gain),
            None => Target::not_shown(name, wanted, NOT_MEASURED),
        }
    };
    [Discipline::Fifo, Discipline::Priority].map(judge).into()
}

/// The section of the report.
pub fn section(fanout: &Fanout) -> Section {
    let columns = [
        "",
        "queries",
        "within the SLO, %",
        "spread",
        "simulated",
        "p99, us",
        "spread",
        "simulated",
    ];
    let mut table = Table::new("queries that fan out, real and simulated", columns);
    for row in &fanout.rows {
        let real: Vec<_> = row.real.iter().flatten().collect();
        let percent = |share: f64| Some(100.0 * share);
        let push = |table: &mut Table, kind: &str, within: [Cell; 2], p99: [Cell; 2]| {
            let [[within, within_spread], [simulated, _]] = within;
            let [[p99, p99_spread], [simulated_p99, _]] = p99;
            table.push([
                row.discipline.clone(),
                kind.to_owned(),
                within,
                within_spread,
                simulated,
                p99,
                p99_spread,
                simulated_p99,
            ]);
        };
        let all = [
            cell(real.iter().map(|run| percent(run.within))),
            cell(row.simulated.iter().map(|run| percent(run.within))),
        ];
        push(&mut table, "all", all, Default::default());
        for (at, kind) in fanout.kinds.iter().enumerate() {
            let within = [
                cell(real.iter().map(|run| percent(run.kinds[at].within))),
                cell(
                    row.simulated
                        .iter()
                        .map(|run| percent(run.kinds[at].within)),
                ),
            ];
            let p99 = [
                cell(real.iter().map(|run| run.kinds[at].p99_us)),
                cell(row.simulated.iter().map(|run| run.kinds[at].p99_us)),
            ];
            push(&mut table, kind, within, p99);
        }
    }
    let Fanout { servers, cores, .. } = fanout;
    let crowd = match cores > servers {
        true => "each server has a core, and the client another".to_owned(),
        false => format!("the client shares the {cores} cores with the servers"),
    };
    Section {
        heading: "Queries that fan out: real servers beside simulated ones".to_owned(),
        tables: vec![table],
        notes: vec![format!(
            "{servers} servers of one worker each, over loopback's UDP; parts of {WORK_US} us on average (exponential), \
             a load of {LOAD}, fan-outs of 1 and {servers}, a quantum of {QUANTUM_US} us but under FIFO. Here {crowd}; \
             the simulated servers are ideal. With few servers deadlines by fan-out hardly differ from those by SLO: \
             what TailGuard gains over many is simulated alone."
        )],
        ..Section::default()
    }
}

/// A median, and its spread.
type Cell = [String; 2];

fn cell(values: impl Iterator<Item = Option<f64>>) -> Cell {
    let values: Option<Vec<_>> = values.collect();
    let Some(Spread { median, min, max }) = values.and_then(|values| Spread::of(&values)) else {
        return Cell::default();
    };
    [
        figure(median),
        format!("({}..{})", figure(min), figure(max)),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::harness::Verdict;

    /// Short and with little load, as others may use the cores, too: that all is answered.
    #[test]
    fn real_servers_answer_the_queries_that_are_simulated() {
        let cores = core_affinity::get_core_ids().unwrap();
        let length = Duration::from_secs(1);
        let steps = steps_per_nano();
        for scenario in scenarios(2, length).unwrap() {
            let scenario = FanoutScenario {
                load: LOAD / 15.0,
                ..scenario
            };
            let stop = AtomicBool::new(false);
            let real = servers::measure(&scenario, &cores, (length, 7), steps, &stop).unwrap();
            let simulated = simulate(&scenario, 7).unwrap();
            for outcome in [&real, &simulated] {
                assert_eq!(outcome.kinds.len(), 4);
                assert!((0.0..=1.0).contains(&outcome.within), "{outcome:?}");
                let p99 = |kind: &KindOutcome| kind.p99_us;
                assert!(
                    outcome.kinds.iter().all(|kind| p99(kind) > Some(0.0)),
                    "{outcome:?}"
                );
            }
            assert!(simulated.within > 0.99, "{simulated:?}");
        }
    }

    #[test]
    fn shares_are_compared_within_their_repetition() {
        let row = |discipline: Discipline, shares: [Option<f64>; 3]| Row {
            discipline: discipline.name().to_owned(),
            real: shares
                .map(|share| {
                    share.map(|within| Outcome {
                        within,
                        kinds: vec![KindOutcome {
                            within,
                            p99_us: None,
                        }],
                    })
                })
                .into(),
            simulated: Vec::new(),
        };
        let fanout = Fanout {
            servers: 2,
            cores: 2,
            kinds: vec!["2000us-of-1".to_owned()],
            rows: vec![
                row(Discipline::Fifo, [Some(0.5), Some(0.8), None]),
                row(Discipline::TailGuard, [Some(0.6), Some(0.88), Some(0.1)]),
            ],
        };
        let [fifo, priority] = &targets(Some(&fanout))[..] else {
            panic!("two targets");
        };
        assert_eq!(fifo.verdict, Verdict::Met);
        assert!((fifo.measured.unwrap() - 1.15).abs() < 1e-9, "{fifo:?}");
        assert_eq!(priority.verdict, Verdict::NotShown);
        let rows = &section(&fanout).tables[0].rows;
        assert_eq!((rows.len(), &*rows[0][1], &*rows[0][2]), (4, "all", "65.0"));
        let text = serde_json::to_string(&fanout).unwrap();
        assert_eq!(serde_json::from_str::<Fanout>(&text).unwrap(), fanout);
    }
}
