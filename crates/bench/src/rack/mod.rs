//! `cargo xtask bench rack`: what the rack's XDP program takes for a packet.
//!
//! The kernel runs the program on a packet in memory, many times in a row (BPF_PROG_TEST_RUN), so
//! that no network is in the figures. Caches are warm, as they are at high load: a table's miss
//! adds what memory takes. The hypervisor, other programs and the kernel's interrupts are in the
//! spreads.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::Spread;

use crate::harness::{self, Efforts, Goal, Measured, Runs, Section, Session, Target};
use crate::machine::Machine;
use crate::report::figure;

mod contender;

use contender::Contender;

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
pub fn run(options: &harness::Options) -> Result<ExitCode> {
    let settings = options.settings(&EFFORTS, false)?;
    let mut session = Session::begin::<Rack>(options, settings)?;
    let machine = Machine::detect(false);
    let mut contenders = contender::all()?;
    let length = session.length();
    let expected = session.all(length, contenders.len());
    session.expect(&machine, expected);
    let measured = session.interleave(
        "a packet",
        &mut contenders,
        |one| one.name.clone(),
        length,
        |one, _| one.measure(length).map(Some),
    );
    let (rows, outcome) = match measured {
        Ok(runs) => {
            let rows = contenders.iter().zip(&runs);
            (rows.map(|(one, runs)| Row::of(one, runs)).collect(), Ok(()))
        }
        Err(error) => (Vec::new(), Err(error)),
    };
    session.end(machine, Rack { rows }, outcome)
}

/// What the bench of the rack measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rack {
    /// One for each contender.
    pub rows: Vec<Row>,
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
    const TITLE: &'static str = "the rack's XDP program";
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
        vec![
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
        ]
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
        vec![Section {
            heading: "What a packet takes".to_owned(),
            tables: vec![table],
            notes: vec![
                "Medians over the repetitions, in which the contenders took turns.".to_owned(),
            ],
            ..Section::default()
        }]
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
