//! `cargo xtask bench rack`: what the rack's XDP program takes for a packet, what the switch adds
//! to a round trip, what becomes of requests when a server fails, what whole racks do with it,
//! simulated, and queries that fan out, over real servers and simulated.
//!
//! The kernel runs the program on a packet in memory, many times in a row (BPF_PROG_TEST_RUN), so
//! that no network is in the figures. Caches are warm, as they are at high load: a table's miss
//! adds what memory takes. The hypervisor, other programs and the kernel's interrupts are in the
//! spreads.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::Spread;

use crate::harness::{self, Efforts, Goal, Measured, Runs, Section, Session, Target};
use crate::machine::Machine;
use crate::report::figure;

mod contender;
mod failing;
mod fanout;
mod hop;
mod simulated;

use contender::Contender;
use failing::{Failing, Phases};
use fanout::Fanout;
use hop::{Between, Hop, RoundTrips};
use simulated::Simulated;

/// Runs of a program from which it is reckoned how many a point takes, and the fewest of a point.
const BATCH: u32 = 20_000;

/// What else the kernel takes for a run of any program is in this contender, too.
const BARE: &str = "bare redirect";
/// All but the choice: neither a random number nor a load.
const WITHOUT_CHOICE: &str = "by-flow";
/// RackSched's choice.
const CHOICE: &str = "power-of-2";
/// The balancers that look at a few servers, however many there are: their cost has a bound.
const BY_K: [&str; 6] = [
    "random",
    "round-robin",
    "power-of-1",
    CHOICE,
    "power-of-3",
    "power-of-4",
];
/// The one that looks at each server, with as many as there are if nothing is said.
const SHORTEST: &str = "shortest of 4";
/// The same with the request table: what a request in RackSched's format takes, by INT1.
const WITH_TABLE: &str = "power-of-2, table";
const WITH_INT2: &str = "power-of-2, table, int2";
const WITH_INT3: &str = "power-of-2, table, int3";
/// RackSched's own choice by INT2, which looks at no more than one server, of as many as can be.
const LEAST_KNOWN: &str = "shortest of 64, table, int2";
/// A packet of a request that the table knows.
const AFFINE: &str = "affine";
/// Replies in RackSched's format.
const REPLY: &str = "reply";
const REPLY_INT2: &str = "reply, int2";
const REPLY_INT3: &str = "reply, int3";

/// Options of `cargo xtask bench rack`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only the simulated racks: needs no privileges. The switch then takes what `docs/rack.md`
    /// says.
    #[arg(long)]
    pub(crate) simulated: bool,
    /// Fewer requests in each simulated run; the figures then mean little.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..))]
    pub(crate) requests: Option<u64>,
}

const SIMULATED: [simulated::Effort; 3] = [
    simulated::Effort {
        requests: 40_000,
        seeds: 2,
        halvings: 6,
        servers: &[1, 4, 12],
        loads: &[0.5, 0.7, 0.9],
    },
    simulated::Effort {
        requests: 150_000,
        seeds: 4,
        halvings: 8,
        servers: &[1, 2, 4, 8, 12],
        loads: &[0.3, 0.5, 0.7, 0.8, 0.9, 0.95],
    },
    simulated::Effort {
        requests: 500_000,
        seeds: 8,
        halvings: 9,
        servers: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        loads: &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95],
    },
];

/// How often a server fails: shares of requests vary little.
const FAILURES: u32 = 3;

/// What a request with the table and a reply take, in ns, where it is not measured: `docs/rack.md`.
const SWITCH_NS: [f64; 2] = [171.0, 123.0];

const EFFORTS: Efforts = Efforts {
    quick: (5, 0.05),
    default: (15, 0.1),
    full: (31, 0.2),
    seconds: 0.01..=10.0,
};

/// Measures, and publishes it.
///
/// # Errors
/// The kernel refuses the program, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let settings = options
        .common
        .settings(&EFFORTS, options.requests.is_some())?;
    let mut session = Session::begin::<Rack>(&options.common, settings)?;
    let machine = Machine::detect(false);
    let [quick, default, full] = SIMULATED;
    let mut effort = options.common.pick(quick, default, full);
    effort.requests = options.requests.unwrap_or(effort.requests);
    let mut contenders = match options.simulated {
        true => Vec::new(),
        false => contender::all()?,
    };
    let mut hops = match options.simulated {
        true => Vec::new(),
        false => hops(&mut session),
    };
    let length = session.length();
    let packets = session.all(length, contenders.len() + hops.len());
    let queries = match options.simulated {
        true => Duration::ZERO,
        false => fanout::expected(&session) + failing::EACH * FAILURES,
    };
    session.expect(&machine, packets + queries + simulated::expected(effort));
    let mut measured = Rack::default();
    let outcome = measured.fill(&mut session, &mut contenders, &mut hops);
    drop(hops);
    let outcome = outcome
        .and_then(|()| measured.fail(&mut session, options.simulated))
        .and_then(|()| measured.fan_out(&mut session, options.simulated))
        .and_then(|()| measured.simulate(&mut session, effort));
    session.end(machine, measured, outcome)
}

/// All ways between a client and a server; none, which the notes say, if this machine cannot.
fn hops(session: &mut Session) -> Vec<Hop> {
    let cores = [session.cores[0], session.cores[1]];
    let all: Result<Vec<_>> = Between::ALL
        .into_iter()
        .map(|between| Hop::new(between, cores))
        .collect();
    all.unwrap_or_else(|error| {
        let note = format!("Round trips were not measured: {error:#}");
        session.notes.push(note);
        Vec::new()
    })
}

/// What the bench of the rack measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rack {
    /// One for each contender.
    pub rows: Vec<Row>,
    /// One for each way between a client and a server.
    #[serde(default)]
    pub round_trips: Vec<RoundTripRow>,
    /// Failures of a server; `None`: this machine cannot, or the bench ended before.
    #[serde(default)]
    pub failing: Option<Runs<Phases>>,
    /// Queries over real servers; `None`: they were not asked for, or the bench ended before.
    #[serde(default)]
    pub fanout: Option<Fanout>,
    /// Whole racks; `None`: the bench ended before.
    #[serde(default)]
    pub simulated: Option<Simulated>,
}

/// A contender's figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What the packet is, and what becomes of it.
    pub note: String,
    /// Nanoseconds a packet, by repetition; none if one failed.
    pub nanos: Vec<f64>,
}

/// Round trips of one request at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundTripRow {
    /// What is between client and server.
    pub name: String,
    /// What that is.
    pub note: String,
    /// The median in microseconds, by repetition; `None`: it failed.
    pub median_us: Vec<Option<f64>>,
    /// The 99th percentile.
    pub p99_us: Vec<Option<f64>>,
}

impl RoundTripRow {
    fn of(between: Between, runs: &Runs<RoundTrips>) -> Self {
        let of = |value: fn(&RoundTrips) -> f64| {
            let runs = runs.runs.iter();
            runs.map(|one| one.as_ref().map(value)).collect()
        };
        Self {
            name: between.name().to_owned(),
            note: between.note().to_owned(),
            median_us: of(|one| one.median_us),
            p99_us: of(|one| one.p99_us),
        }
    }
}

impl Row {
    fn of(contender: &Contender, runs: &Runs<Duration>) -> Self {
        let nanos = runs.runs.iter();
        let nanos = nanos.map(|one| one.map(|one| one.as_secs_f64() * 1e9));
        Self {
            name: contender.name.clone(),
            note: contender.note.clone(),
            // With a repetition missing, the others would be compared with none of their own.
            nanos: nanos.collect::<Option<_>>().unwrap_or_default(),
        }
    }
}

impl Rack {
    /// Measures packets and round trips.
    fn fill(
        &mut self,
        session: &mut Session,
        contenders: &mut [Contender],
        hops: &mut [Hop],
    ) -> Result<()> {
        if !contenders.is_empty() {
            let length = session.length();
            let runs = session.interleave(
                "a packet",
                contenders,
                |one| one.name.clone(),
                length,
                |one, _| one.measure(length).map(Some),
            )?;
            let rows = contenders.iter().zip(&runs);
            self.rows = rows.map(|(one, runs)| Row::of(one, runs)).collect();
        }
        if !hops.is_empty() {
            let length = session.length();
            let runs = session.interleave(
                "a round trip",
                hops,
                |one| one.between.name().to_owned(),
                length,
                |one, _| one.measure(length).map(Some),
            )?;
            let rows = hops.iter().zip(&runs);
            self.round_trips = rows
                .map(|(one, runs)| RoundTripRow::of(one.between, runs))
                .collect();
        }
        Ok(())
    }

    /// A server of the real switch fails, unless all is to be simulated.
    fn fail(&mut self, session: &mut Session, simulated: bool) -> Result<()> {
        if simulated {
            return Ok(());
        }
        let mut failing = match Failing::new() {
            Ok(failing) => failing,
            Err(error) => {
                let note = format!("A failing server was not measured: {error:#}");
                session.notes.push(note);
                return Ok(());
            }
        };
        session.progress.begin("a server fails");
        let mut runs = Runs::new("a server fails");
        for _ in 0..FAILURES {
            let phases = failing.measure();
            session.progress.end(failing::EACH);
            runs.runs.push(phases.map_or_else(
                |error| {
                    session
                        .notes
                        .push(format!("failed: a server fails: {error:#}"));
                    None
                },
                Some,
            ));
        }
        self.failing = Some(runs);
        Ok(())
    }

    /// Queries over real servers, unless all is to be simulated.
    fn fan_out(&mut self, session: &mut Session, simulated: bool) -> Result<()> {
        if !simulated {
            self.fanout = Some(fanout::run(session)?);
        }
        Ok(())
    }

    /// Simulates racks whose switch takes as long as measured.
    fn simulate(&mut self, session: &mut Session, effort: simulated::Effort) -> Result<()> {
        let switch_ns =
            [(WITH_TABLE, SWITCH_NS[0]), (REPLY, SWITCH_NS[1])].map(|(name, default)| {
                Spread::of(self.nanos(name)).map_or(default, |measured| measured.median)
            });
        self.simulated = Some(simulated::run(session, effort, switch_ns)?);
        Ok(())
    }

    fn nanos(&self, name: &str) -> &[f64] {
        let row = self.rows.iter().find(|row| row.name == name);
        row.map_or(&[], |row| &row.nanos)
    }

    /// How much longer one takes than the other, repetition by repetition.
    fn beyond(&self, name: &str, base: &str) -> Option<Spread> {
        let pairs = self.nanos(name).iter().zip(self.nanos(base));
        let differences: Vec<_> = pairs.map(|(one, other)| one - other).collect();
        Spread::of(&differences)
    }
}

impl Rack {
    fn round_trip_section(&self) -> Option<Section> {
        let plain = self.round_trips.first()?;
        let columns = [
            "",
            "median, us",
            "spread",
            "beyond one veth",
            "p99, us",
            "what it is",
        ];
        let mut table = Table::new("a round trip", columns);
        for row in &self.round_trips {
            let of = |values: &[Option<f64>]| {
                Spread::of(&values.iter().flatten().copied().collect::<Vec<_>>())
            };
            let (Some(median), Some(p99)) = (of(&row.median_us), of(&row.p99_us)) else {
                continue;
            };
            let pairs = row.median_us.iter().zip(&plain.median_us);
            let beyond: Vec<_> = pairs
                .filter_map(|(one, other)| Some((*one)? - (*other)?))
                .collect();
            table.push([
                row.name.clone(),
                figure(median.median),
                format!("({}..{})", figure(median.min), figure(median.max)),
                Spread::of(&beyond).map_or_else(String::new, |beyond| figure(beyond.median)),
                figure(p99.median),
                row.note.clone(),
            ]);
        }
        Some(Section {
            heading: "What the switch adds to a round trip".to_owned(),
            tables: vec![table],
            notes: vec![
                "One request at a time over veth pairs, client and server polling on a core each: how long the way \
                 is, not how much it carries. A real network card and its driver are not in it."
                    .to_owned(),
            ],
            ..Section::default()
        })
    }
}

impl Measured for Rack {
    const BENCH: &'static str = "rack";
    const TITLE: &'static str = "the rack: its XDP program, and racks simulated";
    const DIRECTORY: &'static str = "bench-rack";

    fn facts(&self) -> Vec<(&'static str, String)> {
        let servers = contender::SERVERS.to_string();
        vec![("Servers, if not said", servers)]
    }

    fn targets(&self) -> Vec<Target> {
        let judge = |name: String, most: f64, figure: Option<Spread>| match figure {
            Some(figure) => Target::measured(name, Goal::AtMost(most), figure),
            None => Target::not_shown(name, Goal::AtMost(most), "it was not measured"),
        };
        // `shortest` looks at each server: with many its cost has no bound to be held to.
        let with_table = [WITH_TABLE, WITH_INT2, WITH_INT3, LEAST_KNOWN, AFFINE];
        let replies = [REPLY, REPLY_INT2, REPLY_INT3];
        let choices = || BY_K.into_iter().chain([SHORTEST]);
        let all = choices().chain([WITHOUT_CHOICE]);
        let mut targets = Vec::new();
        for name in all.clone().chain(with_table).chain(replies) {
            let nanos = Spread::of(self.nanos(name));
            targets.push(judge(
                format!("{name}: the whole program, ns"),
                150.0,
                nanos,
            ));
        }
        for name in choices() {
            let beyond = self.beyond(name, WITHOUT_CHOICE);
            let name = format!("{name}: the choice, ns beyond {WITHOUT_CHOICE}");
            targets.push(judge(name, 50.0, beyond));
        }
        for name in all {
            let beyond = self.beyond(name, BARE);
            let name = format!("{name}: parsing, choice and rewriting, ns beyond a {BARE}");
            targets.push(judge(name, 50.0, beyond));
        }
        targets.extend(fanout::targets(self.fanout.as_ref()));
        targets.extend(simulated::targets(self.simulated.as_ref()));
        targets
    }

    fn sections(&self) -> Vec<Section> {
        let columns = ["", "ns", "spread", "beyond a bare redirect", "what it is"];
        let mut table = Table::new("a packet", columns);
        for row in &self.rows {
            let Some(Spread { median, min, max }) = Spread::of(&row.nanos) else {
                continue;
            };
            let beyond = self.beyond(&row.name, BARE);
            table.push([
                row.name.clone(),
                figure(median),
                format!("({}..{})", figure(min), figure(max)),
                beyond.map_or_else(String::new, |beyond| figure(beyond.median)),
                row.note.clone(),
            ]);
        }
        let packets = Section {
            heading: "What a packet takes".to_owned(),
            tables: vec![table],
            notes: vec![
                "Medians over the repetitions, in which the contenders took turns.".to_owned(),
                "All that is the rack's is held to 150 ns but \"shortest of 64\": it looks at each server, \
                 so its cost grows with them."
                    .to_owned(),
            ],
            ..Section::default()
        };
        let packets = Some(packets).filter(|_| !self.rows.is_empty());
        let racks = self.simulated.iter().flat_map(simulated::sections);
        let measured = packets.into_iter().chain(self.round_trip_section());
        let failures = self.failing.as_ref().map(failing::section);
        let queries = self.fanout.as_ref().map(fanout::section);
        measured
            .chain(failures)
            .chain(queries)
            .chain(racks)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict;

    fn rack(rows: &[(&str, &[f64])]) -> Rack {
        let row = |(name, nanos): &(&str, &[f64])| Row {
            name: (*name).to_owned(),
            note: String::new(),
            nanos: nanos.to_vec(),
        };
        Rack {
            rows: rows.iter().map(row).collect(),
            ..Rack::default()
        }
    }

    #[test]
    fn differences_are_of_the_same_repetition() {
        let measured = rack(&[
            (BARE, &[40.0, 30.0, 20.0]),
            (CHOICE, &[100.0, 500.0, 90.0]),
            (WITHOUT_CHOICE, &[70.0, 460.0, 80.0]),
            (WITH_TABLE, &[160.0, 140.0, 155.0]),
        ]);
        let targets = measured.targets();
        let of = |name: &str| {
            let mut targets = targets.iter();
            let target = targets.find(|one| one.name.starts_with(name)).unwrap();
            (target.verdict, target.measured)
        };
        let whole = format!("{WITH_TABLE}: the whole program");
        assert_eq!(of(&whole), (Verdict::Missed, Some(155.0)));
        let choice = format!("{CHOICE}: the choice");
        assert_eq!(of(&choice), (Verdict::Met, Some(30.0)));
        let all = format!("{CHOICE}: parsing");
        assert_eq!(of(&all), (Verdict::Missed, Some(70.0)));
        let judged = |name: &str| targets.iter().any(|one| one.name.starts_with(name));
        assert!(BY_K.iter().all(|name| judged(name)) && judged(SHORTEST));
        assert!(judged(LEAST_KNOWN) && !judged("shortest of 64:"));
        let unmeasured = rack(&[]).targets();
        let not_shown = |target: &Target| target.verdict == Verdict::NotShown;
        assert!(unmeasured.iter().all(not_shown));
    }

    #[test]
    fn a_round_trip_is_compared_within_its_repetition() {
        let row = |name: &str, median_us: &[Option<f64>]| RoundTripRow {
            name: name.to_owned(),
            note: String::new(),
            median_us: median_us.to_vec(),
            p99_us: median_us.to_vec(),
        };
        let measured = Rack {
            round_trips: vec![
                row("plain", &[Some(5.0), Some(50.0), Some(6.0)]),
                row("switch", &[Some(7.0), Some(51.0), None]),
            ],
            ..Rack::default()
        };
        let sections = measured.sections();
        let [_, switch] = &sections[0].tables[0].rows[..] else {
            panic!("{sections:?}");
        };
        assert_eq!(switch[3], figure(1.5));
        assert!(rack(&[]).sections().is_empty());
    }

    #[test]
    fn results_survive_their_json() {
        let mut measured = rack(&[(BARE, &[10.0, 11.0])]);
        measured.round_trips.push(RoundTripRow {
            name: "n".to_owned(),
            note: String::new(),
            median_us: vec![Some(1.0), None],
            p99_us: vec![Some(2.0), None],
        });
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(serde_json::from_str::<Rack>(&text).unwrap(), measured);
        assert_eq!(measured.sections()[0].tables[0].rows.len(), 1);
    }
}
