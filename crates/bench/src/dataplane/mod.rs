//! `cargo xtask bench dataplane`: what the network path without the kernel costs, and what that is
//! beside.
//!
//! Every figure is measured by a process of its own, `bench-dataplane` (`benches/dataplane`), which
//! has DPDK where libdpdk is; contenders take turns, repetition by repetition. No network hardware
//! is needed: packets go over DPDK's net_ring and net_memif, or, without libdpdk, over a wire in
//! memory. Each part is a file: what it measures, and how that is shown.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::harness::{Measured, Section, Session, Target};
use crate::machine::Machine;

mod dispatchers;
mod imbalance;
mod options;
mod outgoing;
mod program;
mod reply_sizes;
mod round_trips;
mod server;
mod stages;

use dispatchers::Dispatchers;
use imbalance::Imbalances;
pub use options::Options;
use outgoing::Outgoing;
use program::Program;
use reply_sizes::ReplySizes;
use round_trips::RoundTrips;
use stages::Stages;

/// A process around what it measures: starting it and DPDK, warming up.
const AROUND: Duration = Duration::from_millis(400);

/// What the bench of the dataplane measured. A part that was not measured is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dataplane {
    /// The server's core and the client's; what takes one thread is on the second.
    pub cores: [usize; 2],
    /// libdpdk's version, where it is there.
    pub dpdk: Option<String>,
    /// One thread, from the bare device to the runtime.
    pub stages: Option<Stages>,
    /// Two processes, one request at a time.
    pub round_trips: Option<RoundTrips>,
    /// Replies of more and more bytes.
    pub reply_sizes: Option<ReplySizes>,
    /// What two dispatchers send, by the length of replies.
    #[serde(default)]
    pub outgoing: Option<Outgoing>,
    /// Two dispatchers beside one.
    pub dispatchers: Option<Dispatchers>,
    /// How evenly flows are spread over two dispatchers.
    pub imbalance: Option<Imbalances>,
}

impl Measured for Dataplane {
    const BENCH: &'static str = "dataplane";
    const TITLE: &'static str = "the dataplane";
    const DIRECTORY: &'static str = "bench-dataplane";

    fn facts(&self) -> Vec<(&'static str, String)> {
        let [server, client] = self.cores;
        let dpdk = self.dpdk.clone();
        vec![
            ("DPDK", dpdk.unwrap_or_else(|| "none".to_owned())),
            (
                "Cores",
                format!(
                    "of two processes, the server on {server} and the client on {client}; one thread on {client}"
                ),
            ),
        ]
    }

    fn targets(&self) -> Vec<Target> {
        let stages = self.stages.clone().unwrap_or_default();
        let round_trips = self.round_trips.clone().unwrap_or_default();
        let dispatchers = self.dispatchers.clone().unwrap_or_default();
        let all = [
            stages.targets(),
            round_trips.targets(),
            dispatchers.targets(),
        ];
        all.into_iter().flatten().collect()
    }

    fn sections(&self) -> Vec<Section> {
        let sections = [
            self.stages.as_ref().map(Stages::section),
            self.round_trips.as_ref().map(RoundTrips::section),
            self.reply_sizes.as_ref().map(ReplySizes::section),
            self.outgoing.as_ref().map(Outgoing::section),
            self.dispatchers.as_ref().map(Dispatchers::section),
            self.imbalance.as_ref().map(Imbalances::section),
        ];
        sections.into_iter().flatten().collect()
    }
}

/// What the parts share.
struct Bench<'a> {
    program: Program<'a>,
    quick: bool,
    /// Length of one figure's measurement.
    seconds: f64,
    /// The server's, and the client's; what takes one thread is on the second.
    cores: [usize; 2],
}

impl Bench<'_> {
    /// About how long a process takes for so many figures.
    fn expected(&self, figures: usize) -> Duration {
        Duration::from_secs_f64(self.seconds) * figures as u32 + AROUND
    }

    /// The same with a server in a process of its own.
    fn of_two(&self, figures: usize) -> Duration {
        self.expected(figures) + self.expected(0)
    }
}

/// Measures what is asked for, and publishes it.
///
/// # Errors
/// Nothing can be measured, it was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut session = Session::begin::<Dataplane>(&options.common, options.settings()?)?;
    let cores = [session.cores[0].id, session.cores[1].id];
    let (directory, stop) = (session.directory.clone(), session.stop.clone());
    let program = Program::build(&directory, &stop, &mut session.notes)?;
    let mut results = Dataplane {
        cores,
        dpdk: program.dpdk.clone(),
        stages: None,
        round_trips: None,
        reply_sizes: None,
        outgoing: None,
        dispatchers: None,
        imbalance: None,
    };
    let bench = Bench {
        program,
        quick: options.common.quick,
        seconds: session.settings.seconds_per_point,
        cores,
    };
    let machine = Machine::detect(false);
    let measured = measure(options, &bench, &machine, &mut session, &mut results);
    session.end(machine, results, measured)
}

/// Fills in what is asked for, part by part.
fn measure(
    options: &Options,
    bench: &Bench,
    machine: &Machine,
    session: &mut Session,
    results: &mut Dataplane,
) -> Result<()> {
    type Part = (&'static str, fn(&Bench, &Session) -> Duration);
    let parts: [Part; 6] = [
        ("stages", stages::expected),
        ("round-trips", round_trips::expected),
        ("reply-sizes", reply_sizes::expected),
        ("outgoing", outgoing::expected),
        ("dispatchers", dispatchers::expected),
        ("imbalance", imbalance::expected),
    ];
    let wanted = parts.iter().filter(|(name, _)| options.wants(name));
    let expected = wanted.map(|(_, expected)| expected(bench, session)).sum();
    session.expect(machine, expected);
    if options.wants("stages") {
        results.stages = Some(stages::measure(bench, session)?);
    }
    if options.wants("round-trips") {
        results.round_trips = Some(round_trips::measure(bench, session)?);
    }
    if options.wants("reply-sizes") {
        results.reply_sizes = Some(reply_sizes::measure(bench, session)?);
    }
    if options.wants("outgoing") {
        results.outgoing = Some(outgoing::measure(bench, session)?);
    }
    if options.wants("dispatchers") {
        results.dispatchers = Some(dispatchers::measure(bench, session)?);
    }
    if options.wants("imbalance") {
        results.imbalance = imbalance::measure(bench, session)?;
    }
    Ok(())
}
