//! `cargo xtask bench rack`: what the rack's XDP program takes for a packet, and what whole racks
//! do with it, simulated.
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
mod simulated;

use contender::Contender;
use simulated::Simulated;

/// Runs of a program between two looks at the clock.
const BATCH: u32 = 20_000;

/// What else the kernel takes for a run of any program is in this contender, too.
const BARE: &str = "bare redirect";
/// All but the choice: neither a random number nor a load.
const WITHOUT_CHOICE: &str = "by-flow";
/// RackSched's choice.
const CHOICE: &str = "power-of-2";
/// The same with the request table: what a request in RackSched's format takes.
const WITH_TABLE: &str = "power-of-2, table";
/// A reply in RackSched's format.
const REPLY: &str = "reply";

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
    let length = session.length();
    let expected = session.all(length, contenders.len()) + simulated::expected(effort);
    session.expect(&machine, expected);
    let mut measured = Rack::default();
    let outcome = measured.fill(&mut session, &mut contenders, effort);
    session.end(machine, measured, outcome)
}

/// What the bench of the rack measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rack {
    /// One for each contender.
    pub rows: Vec<Row>,
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
    /// Nanoseconds a packet, by repetition.
    pub nanos: Vec<f64>,
}

impl Row {
    fn of(contender: &Contender, runs: &Runs<Duration>) -> Self {
        let nanos = runs.measured().map(|one| one.as_secs_f64() * 1e9);
        Self {
            name: contender.name.clone(),
            note: contender.note.clone(),
            nanos: nanos.collect(),
        }
    }
}

impl Rack {
    /// Measures packets, then simulates racks whose switch takes so long.
    fn fill(
        &mut self,
        session: &mut Session,
        contenders: &mut [Contender],
        effort: simulated::Effort,
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
        let mut targets = vec![
            judge(
                format!("{WITH_TABLE}: the whole program, ns"),
                150.0,
                Spread::of(self.nanos(WITH_TABLE)),
            ),
            judge(
                format!("{CHOICE}: the choice, ns beyond {WITHOUT_CHOICE}"),
                50.0,
                self.beyond(CHOICE, WITHOUT_CHOICE),
            ),
        ];
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
            ],
            ..Section::default()
        };
        let packets = Some(packets).filter(|_| !self.rows.is_empty());
        let racks = self.simulated.iter().flat_map(simulated::sections);
        packets.into_iter().chain(racks).collect()
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
            simulated: None,
        }
    }

    #[test]
    fn differences_are_of_the_same_repetition() {
        let measured = rack(&[
            (CHOICE, &[100.0, 500.0, 90.0]),
            (WITHOUT_CHOICE, &[70.0, 460.0, 80.0]),
            (WITH_TABLE, &[160.0, 140.0, 155.0]),
        ]);
        let targets = measured.targets();
        assert_eq!(targets[0].verdict, Verdict::Missed);
        assert_eq!(targets[0].measured, Some(155.0));
        assert_eq!(targets[1].verdict, Verdict::Met);
        assert_eq!(targets[1].measured, Some(30.0));
        let unmeasured = rack(&[]).targets();
        let not_shown = |target: &Target| target.verdict == Verdict::NotShown;
        assert!(unmeasured.iter().all(not_shown));
    }

    #[test]
    fn results_survive_their_json() {
        let measured = rack(&[(BARE, &[10.0, 11.0])]);
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(serde_json::from_str::<Rack>(&text).unwrap(), measured);
        assert_eq!(measured.sections()[0].tables[0].rows.len(), 1);
    }
}
