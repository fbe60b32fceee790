//! `cargo xtask bench layouts`: the layout `symmetric` beside `threads`, rayon and tokio's
//! `spawn_blocking`.
//!
//! | part | what it measures |
//! |---|---|
//! | `service` | a pool within an ordinary process, at rising load |
//! | `bursts` | capacity, latency and the price of preemptions, on cores of the runtime's own |
//! | `central` | the path through a dispatcher, in cache-line round trips |
//! | `idle` | processor time at little load |
//!
//! In each part the contenders take turns with the same requests.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::costs;
use crate::harness::{self, Comparison, Efforts, Measured, Section, Session, Target, comparisons};
use crate::machine::Machine;

mod bursts;
mod central;
mod idle;
mod service;

use bursts::Bursts;
use central::Central;

/// Options of `cargo xtask bench layouts`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only this part (may be given several times).
    #[arg(long, value_enum)]
    part: Vec<Part>,
}

/// What is measured apart from the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A pool within an ordinary process.
    Service,
    /// Capacity, latency and preemptions.
    Bursts,
    /// The path through a dispatcher.
    Central,
    /// Processor time at little load.
    Idle,
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 1.0),
    default: (5, 2.0),
    full: (7, 4.0),
    seconds: 0.05..=20.0,
};

/// What the bench of the layouts measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layouts {
    /// Cores that the contenders had.
    pub cores: usize,
    /// The service experiment, load by load.
    pub service: Vec<service::Point>,
    /// What was measured on cores of the runtime's own; null if that was not asked for.
    pub bursts: Option<Bursts>,
    /// What the path through a dispatcher costs; null if that was not asked for.
    pub central: Option<Central>,
    /// Processor time at little load, load by load.
    pub idle: Vec<idle::Point>,
    /// Ratios, of which those with a goal are targets.
    pub comparisons: Vec<Comparison>,
}

/// Measures what is asked for, and publishes that.
///
/// # Errors
/// Nothing can be measured, it was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let settings = options
        .common
        .settings(&EFFORTS, !options.part.is_empty())?;
    let mut session = Session::begin::<Layouts>(&options.common, settings)?;
    let mut results = Layouts {
        cores: session.cores.len(),
        service: Vec::new(),
        bursts: None,
        central: None,
        idle: Vec::new(),
        comparisons: Vec::new(),
    };
    let machine = Machine::detect(shinjuku_preempt::Realtime::enter(1).is_ok());
    let measured = measure(options, &machine, &mut session, &mut results);
    results.compare();
    session.notes.push(
        "`cargo xtask bench kv` has the key-value server's GETs under both layouts, on two cores that it shares with its client."
            .to_owned(),
    );
    session.end(machine, results, measured)
}

fn measure(
    options: &Options,
    machine: &Machine,
    session: &mut Session,
    results: &mut Layouts,
) -> Result<()> {
    let is_wanted = |part| options.part.is_empty() || options.part.contains(&part);
    let loads = (options.common).pick(&service::LOADS[2..5], &service::LOADS, &service::LOADS);
    // The table of costs, as in the bench of the policies.
    let quick = !options.common.full;
    let expected = [
        (Part::Service, service::duration(session, loads.len())),
        (Part::Bursts, bursts::duration(session)),
        (Part::Central, costs::duration(quick)),
        (Part::Idle, idle::duration(session)),
    ];
    let wanted = expected.iter().filter(|(part, _)| is_wanted(*part));
    session.expect(machine, wanted.map(|(_, time)| *time).sum::<Duration>());
    if is_wanted(Part::Service) {
        service::measure(session, loads, &mut results.service)?;
    }
    if is_wanted(Part::Bursts) {
        bursts::measure(session, results.bursts.insert(Bursts::default()))?;
    }
    if is_wanted(Part::Central) {
        central::measure(session, quick, results.central.insert(Central::default()))?;
    }
    if is_wanted(Part::Idle) {
        idle::measure(session, &mut results.idle)?;
    }
    Ok(())
}

impl Layouts {
    /// The ratios, each with its target if it has one.
    fn judged(&self) -> impl Iterator<Item = (Comparison, Option<Target>)> {
        let of_service = self.service.iter().flat_map(service::Point::judge);
        let of_bursts = (self.bursts.iter()).flat_map(|bursts| bursts.judge(self.cores));
        of_service.chain(of_bursts)
    }

    fn compare(&mut self) {
        self.comparisons = self.judged().map(|(comparison, _)| comparison).collect();
    }
}

impl Measured for Layouts {
    const BENCH: &'static str = "layouts";
    const TITLE: &'static str = "layouts";
    const DIRECTORY: &'static str = "bench-layouts";

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("Cores of the contenders", self.cores.to_string())]
    }

    fn targets(&self) -> Vec<Target> {
        let answered = self.service.iter().map(service::Point::answered);
        let compared = self.judged().filter_map(|(_, target)| target);
        let never_worse = service::never_worse(&self.service);
        let bursts = self.bursts.iter().flat_map(Bursts::targets);
        let central = self.central.iter().flat_map(Central::targets);
        (answered.chain(compared).chain(never_worse))
            .chain(bursts.chain(central))
            .collect()
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        if !self.service.is_empty() {
            sections.push(service::section(&self.service, self.cores));
        }
        sections.extend(self.bursts.iter().flat_map(Bursts::sections));
        sections.extend(self.central.iter().map(Central::section));
        if !self.idle.is_empty() {
            sections.push(idle::section(&self.idle));
        }
        sections.push(Section {
            heading: "Ratios".to_owned(),
            tables: comparisons(&self.comparisons).into_iter().collect(),
            ..Section::default()
        });
        sections
    }
}
