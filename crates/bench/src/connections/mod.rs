//! `cargo xtask bench connections`: who serves TCP connections, in the way of ZygOS's evaluation
//! (SOSP 2017): Linux with partitioned and with floating connections, IX, ZygOS, and this project's
//! server.
//!
//! | file | |
//! |---|---|
//! | `scenario` | 10 µs each, 25 µs on average, and TPC-C's transactions of 33 µs; their loads |
//! | `work` | the protocol, and the work, which is the same function for all |
//! | `contender` | who competes |
//! | `linux` | the two servers on epoll |
//! | `runtime` | this project's server, and the same loops as IX and as ZygOS without interrupts |
//! | `client` | the open loop over many connections |
//! | `report` | loads within ten means, ratios, plots |
//!
//! Servers have two cores and run in this process, one at a time, started for each turn. The client
//! has the cores that are left; where there are none it shares theirs, ahead of them. Floating
//! connections, ZygOS and this project's server then move work to the core that it is not on;
//! partitioned connections and IX cannot.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};
use shinjuku_bench_tpcc::Pace;
use shinjuku_workload::{Arrival, Length, Mix, Offered, Record, Schedule, ScheduleConfig, Summary};

use crate::harness::{self, Comparison, Efforts, Runs, Session};
use crate::machine::Machine;

mod client;
mod contender;
mod linux;
mod report;
mod runtime;
mod scenario;
mod work;

use client::{NEVER, Outcome, Planned};
use contender::{CONTENDERS, Contender};
use scenario::{SCENARIOS, Scenario};
use work::Work;

/// Connections of ZygOS's TPC-C (slide 34), here of every scenario.
const CONNECTIONS: usize = 2752;
/// Of `--quick`: opening more takes longer than measuring.
const QUICK_CONNECTIONS: usize = 256;
/// The least part of the requests that a server answers while they come, and within ten means
/// after: below it falls behind, and its p99 is one of how long was measured.
const KEPT_UP: f64 = 0.95;
/// Cores of the servers.
const CORES: usize = 2;
/// Opening and closing connections, which are many or few.
const AROUND: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(60)];
/// Making a store.
const STARTING: Duration = Duration::from_millis(800);

/// Options of `cargo xtask bench connections`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only this scenario (may be given several times).
    #[arg(long, value_parser = SCENARIOS.map(|one| one.name))]
    scenario: Vec<String>,
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 0.1),
    default: (5, 0.4),
    full: (7, 1.0),
    seconds: 0.05..=20.0,
};

/// What the bench of connections measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// Connections of the client.
    pub connections: usize,
    pub cores: Vec<usize>,
    /// Whether the client has cores of its own.
    pub client_has_its_own_cores: bool,
    /// What each contender is.
    pub descriptions: BTreeMap<String, String>,
    pub scenarios: Vec<ScenarioResults>,
    pub comparisons: Vec<Comparison>,
}

/// A scenario's loads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioResults {
    pub name: String,
    /// The mean service time, us; the limit of p99 is ten times that.
    pub mean_us: f64,
    /// How long transactions take, where they are the work.
    pub pace: Option<Pace>,
    /// Load by load, rising.
    pub loads: Vec<AtLoad>,
    /// The highest load, per cent, with a p99 within ten means; null where the lowest measured has
    /// none.
    pub within: Vec<Runs<f64>>,
}

/// All contenders under the same load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtLoad {
    /// Of what the cores could do if there was nothing but the work.
    pub share: f64,
    /// Requests due in a second.
    pub offered_rps: f64,
    /// One for each contender.
    pub contenders: Vec<Runs<Cell>>,
}

/// A repetition of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Requests that were sent.
    pub requests: usize,
    /// Those without an answer a second after the last was due.
    pub unanswered: u64,
    /// Those that idle loops ran for others; null where there are none.
    pub helped: Option<u64>,
    /// Median latency; null where requests without an answer reach it.
    pub p50_us: Option<f64>,
    /// Null, too, where the server did not keep up.
    pub p99_us: Option<f64>,
    /// The same of each class that came.
    pub class_p99_us: BTreeMap<String, Option<f64>>,
    /// p99 of how late the client sent a request.
    pub late_p99_us: f64,
    /// Cores that the client used.
    pub client_cores: f64,
    /// Whether the client had real-time priority.
    pub client_realtime: bool,
}

impl Cell {
    fn of(outcome: &Outcome, helped: Option<u64>, mix: &Mix) -> Result<Self> {
        let summary = Summary::of(mix, &outcome.records)?;
        let us = |ns: u64| (ns < NEVER / 2).then_some(ns as f64 / 1e3);
        let mut late = outcome.late.clone();
        late.sort_unstable();
        let classes = summary.classes.into_iter();
        let requests = outcome.records.len();
        Ok(Self {
            requests,
            unanswered: requests as u64 - outcome.answered,
            helped,
            p50_us: us(summary.all.p50_ns),
            p99_us: us(summary.all.p99_ns).filter(|_| kept_up(&outcome.records, mix)),
            class_p99_us: classes
                .map(|class| (class.name, us(class.figures.p99_ns)))
                .collect(),
            late_p99_us: late
                .get(late.len() * 99 / 100)
                .map_or(0.0, |&ns| ns as f64 / 1e3),
            client_cores: outcome.cpu.as_secs_f64() / outcome.elapsed.as_secs_f64(),
            client_realtime: outcome.realtime,
        })
    }
}

/// Whether enough requests were answered by the end of the window in which they came.
fn kept_up(records: &[Record], mix: &Mix) -> bool {
    let last_ns = records.iter().map(|one| one.arrival_ns).max().unwrap_or(0);
    let end_ns = last_ns + (report::MEANS * mix.mean_ns()) as u64;
    let in_time = records.iter().filter(|one| one.finish_ns <= end_ns).count();
    in_time as f64 >= KEPT_UP * records.len() as f64
}

/// Measures what is asked for, and publishes that.
///
/// # Errors
/// Nothing can be measured, it was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let custom = !options.scenario.is_empty();
    let settings = options.common.settings(&EFFORTS, custom)?;
    let mut session = Session::begin::<Connections>(&options.common, settings)?;
    let wanted = |one: &&Scenario| {
        options.scenario.is_empty() || options.scenario.iter().any(|name| name == one.name)
    };
    let scenarios: Vec<_> = SCENARIOS.iter().filter(wanted).collect();
    let bench = Bench::new(options.common.quick, &mut session)?;
    let machine = Machine::detect(shinjuku_preempt::Realtime::enter(1).is_ok());
    let expected = scenarios.iter().map(|one| bench.expected(&session, one));
    let expected = expected.sum();
    session.expect(&machine, expected);
    let said = CONTENDERS.map(|one| (one.name.to_owned(), one.description()));
    let mut results = Connections {
        connections: bench.connections,
        cores: bench.cores.clone(),
        client_has_its_own_cores: bench.client_has_its_own_cores,
        descriptions: said.into(),
        scenarios: Vec::new(),
        comparisons: Vec::new(),
    };
    let measured = scenarios
        .iter()
        .try_for_each(|scenario| bench.measure(scenario, &mut session, &mut results.scenarios));
    results.complete();
    session.end(machine, results, measured)
}

/// What all points share.
struct Bench {
    quick: bool,
    connections: usize,
    cores: Vec<usize>,
    client: CpuSet,
    client_has_its_own_cores: bool,
}

impl Bench {
    fn new(quick: bool, session: &mut Session) -> Result<Self> {
        let wanted = if quick {
            QUICK_CONNECTIONS
        } else {
            CONNECTIONS
        };
        let connections = contender::connections(wanted)?;
        if connections < CONNECTIONS {
            let why = if connections < wanted {
                "the limit of descriptors (ulimit -Hn) allows no more"
            } else {
                "opening more takes longer than a quick run"
            };
            session.notes.push(format!(
                "There are {connections} connections, where the talk has {CONNECTIONS}: {why}."
            ));
        }
        let all: Vec<_> = session.cores.iter().map(|core| core.id).collect();
        let (servers, rest) = all.split_at(CORES);
        let client_has_its_own_cores = !rest.is_empty();
        let mut client = CpuSet::new();
        let clients = if rest.is_empty() { servers } else { rest };
        clients.iter().for_each(|&core| client.set(core));
        if !client_has_its_own_cores {
            session.notes.push(
                "The client shares the servers' cores, ahead of them. Floating connections, ZygOS and this project's server move work to \
                 the core that it is not on; partitioned connections and IX cannot, so part of what they lack is the client's."
                    .to_owned(),
            );
        }
        Ok(Self {
            quick,
            connections,
            cores: servers.to_vec(),
            client,
            client_has_its_own_cores,
        })
    }

    fn each(&self, session: &Session) -> Duration {
        session.length() + AROUND[usize::from(self.quick)]
    }

    fn expected(&self, session: &Session, scenario: &Scenario) -> Duration {
        let loads = scenario.loads(self.quick).len();
        session.all(self.each(session), CONTENDERS.len() * loads) + STARTING * loads as u32
    }

    fn measure(
        &self,
        scenario: &Scenario,
        session: &mut Session,
        results: &mut Vec<ScenarioResults>,
    ) -> Result<()> {
        let mix = scenario.mix()?;
        let mean_us = mix.mean_ns() / 1e3;
        let mut found = ScenarioResults {
            name: scenario.name.to_owned(),
            mean_us,
            pace: None,
            loads: Vec::new(),
            within: Vec::new(),
        };
        let mut measured = Ok(());
        for &share in scenario.loads(self.quick) {
            let offered_rps = share * self.cores.len() as f64 * 1e6 / mean_us;
            session
                .progress
                .begin(&format!("{}: its work", scenario.name));
            let (work, pace) = scenario.work(found.pace.as_ref());
            session.progress.end(STARTING);
            found.pace = pace;
            let what = format!("{}: {:.0} %", scenario.name, share * 100.0);
            let each = self.each(session);
            let (seconds, stop) = (session.settings.seconds_per_point, session.stop.clone());
            let contenders = session.interleave(
                &what,
                &mut CONTENDERS.clone(),
                |one| one.name.to_owned(),
                each,
                |one, seed| {
                    let plan = self.plan(&mix, &work, offered_rps, seconds, seed)?;
                    self.turn(one, &work, &mix, &plan, &stop).map(Some)
                },
            );
            match contenders {
                Ok(contenders) => found.loads.push(AtLoad {
                    share,
                    offered_rps,
                    contenders,
                }),
                Err(error) => {
                    measured = Err(error);
                    break;
                }
            }
        }
        results.push(found);
        measured
    }

    /// The requests of a repetition: the same for all contenders.
    fn plan(
        &self,
        mix: &Mix,
        work: &Work,
        per_second: f64,
        seconds: f64,
        seed: u64,
    ) -> Result<Vec<Planned>> {
        let length = Length::lasting(Duration::from_secs_f64(seconds));
        let config = ScheduleConfig::new(Offered::Rate { per_second }, length).with_seed(seed);
        let schedule = Schedule::generate(mix, &config.with_flows(self.connections as u32))?;
        let planned = |(number, arrival): (usize, &Arrival)| Planned {
            arrival: *arrival,
            bytes: work.request(arrival, number as u32, seed).to_bytes(),
        };
        Ok(schedule
            .arrivals()
            .iter()
            .enumerate()
            .map(planned)
            .collect())
    }

    /// A contender's turn, from its start to its end.
    fn turn(
        &self,
        contender: &Contender,
        work: &Work,
        mix: &Mix,
        plan: &[Planned],
        stop: &std::sync::atomic::AtomicBool,
    ) -> Result<Cell> {
        let server = contender.start(work, mix, &self.cores, self.connections)?;
        let outcome = client::run(server.address(), self.connections, plan, &self.client, stop)?;
        Cell::of(&outcome, server.helped(), mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Measured;

    #[test]
    fn a_server_that_falls_behind_has_no_p99() {
        let mix = SCENARIOS[0].mix().unwrap();
        // 100 requests, each 10 us after the one before, of which the last `late` are answered
        // 10 ms after they were due.
        let p99_us = |late: u64| {
            let record = |number: u64| Record {
                arrival_ns: number * 10_000,
                service_ns: 10_000,
                finish_ns: number * 10_000
                    + if number >= 100 - late {
                        10_000_000
                    } else {
                        20_000
                    },
                class: 0,
            };
            let outcome = Outcome {
                records: (0..100).map(record).collect(),
                answered: 100,
                elapsed: Duration::from_millis(11),
                ..Outcome::default()
            };
            Cell::of(&outcome, None, &mix).unwrap().p99_us
        };
        assert_eq!(p99_us(0), Some(20.0));
        assert_eq!(p99_us(5), Some(10_000.0));
        assert_eq!(p99_us(6), None);
    }

    /// All of a scenario on one core, which client and servers share. The figures are of a machine
    /// that may do anything else: only what they are made of is checked.
    #[test]
    fn every_contender_has_a_figure_at_every_load() {
        let mut session = Session::idle();
        session.settings.seconds_per_point = 0.05;
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let mut client = CpuSet::new();
        client.set(core);
        let bench = Bench {
            quick: true,
            connections: 16,
            cores: vec![core],
            client,
            client_has_its_own_cores: false,
        };
        let mut results = Connections {
            connections: bench.connections,
            cores: bench.cores.clone(),
            client_has_its_own_cores: false,
            descriptions: BTreeMap::new(),
            scenarios: Vec::new(),
            comparisons: Vec::new(),
        };
        let scenario = &SCENARIOS[0].lightly();
        (bench.measure(scenario, &mut session, &mut results.scenarios)).unwrap();
        assert_eq!(session.notes, Vec::<String>::new(), "no turn failed");
        results.complete();
        let loads = &results.scenarios[0].loads;
        assert_eq!(loads.len(), scenario.loads(true).len());
        for load in loads {
            for (runs, contender) in load.contenders.iter().zip(&CONTENDERS) {
                assert_eq!(runs.name, contender.name);
                assert_eq!(runs.measured().count(), 2);
                assert!(runs.measured().all(|cell| cell.requests > 5));
                let has_loops = !contender.name.starts_with("Linux");
                let is_counted = |cell: &Cell| cell.helped.is_some() == has_loops;
                assert!(runs.measured().all(is_counted), "{}", contender.name);
            }
        }
        assert_eq!(results.scenarios[0].within.len(), CONTENDERS.len());
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(
            serde_json::from_value::<Connections>(json).unwrap(),
            results
        );
        assert_eq!(results.sections().len(), 2);
    }
}
