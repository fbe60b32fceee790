//! `cargo xtask bench kv`: the key-value server of `examples/kv` beside redis-server, under the
//! same client's load.
//!
//! A server has one core, the client another; servers whose layout takes two cores have the
//! client's as well. All contenders of a scenario are started once and filled with the same data;
//! but for the one that is measured they are stopped (SIGSTOP), so that none disturbs another, and
//! they take turns point by point with the same seeds. The client is `shinjuku-load` as a library:
//! open loop, latency from the intended moment.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use core_affinity::CoreId;
use shinjuku_workload::repeat::median;

use crate::harness::Session;
use crate::machine::Machine;

mod client;
mod compare;
mod contender;
mod options;
mod report;
mod results;
mod scenario;
mod server;

use client::Client;
use contender::Contender;
pub use options::Options;
pub use results::KeyValue;
use results::{Cell, Kind, ScenarioResults};
use scenario::{Saturation, Scenario};
use server::{Binaries, Server};

/// Keys of every server, and the length of their values in bytes.
const KEYS: u64 = 100_000;
const VALUE: usize = 64;
/// About how long a server takes to start and to be filled.
const STARTING: Duration = Duration::from_secs(1);
/// What a point takes beside its seconds: connecting, draining.
const AROUND: Duration = Duration::from_millis(50);

/// Measures what is asked for, and publishes it.
///
/// # Errors
/// Nothing can be measured, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut session = Session::begin::<KeyValue>(&options.common, options.settings()?)?;
    let scenarios = options.scenarios();
    let wants_rocksdb = scenarios.iter().any(Scenario::needs_rocksdb);
    let binaries = Binaries::find(
        options.kv.as_deref(),
        options.kv_options(),
        wants_rocksdb,
        &mut session.notes,
    )?;
    let spreads = |one: &Scenario| options.contenders(one).iter().any(Contender::spreads);
    if scenarios.iter().any(spreads) {
        session.notes.push(
            "mq-threads and mq-symmetric have both cores, so one of their threads shares the client's: their latencies are not their \
             own."
                .to_owned(),
        );
    }
    let cores = (session.cores[0], session.cores[1]);
    let mut results = KeyValue {
        server_core: cores.0.id,
        client_core: cores.1.id,
        slo_us: options.slo_us,
        scenarios: Vec::new(),
    };
    let bench = Bench {
        options,
        binaries,
        cores,
    };
    let machine = Machine::detect(false);
    let expected = scenarios.iter().map(|one| bench.expected(&session, one));
    let expected = expected.sum();
    session.expect(&machine, expected);
    let measured = scenarios.iter().try_for_each(|scenario| {
        let measured = bench.measure(scenario, &mut session);
        let measured = measured.with_context(|| format!("scenario {}", scenario.name))?;
        results.scenarios.extend(measured);
        Ok(())
    });
    session.end(machine, results, measured)
}

/// What all scenarios share.
struct Bench<'a> {
    options: &'a Options,
    binaries: Binaries,
    cores: (CoreId, CoreId),
}

/// A contender with its server; `None` once that has failed.
struct Entrant {
    contender: Contender,
    server: Option<Server>,
}

impl Entrant {
    fn name(&self) -> String {
        self.contender.name.to_owned()
    }

    /// The contender's turn. One that fails is out from then on.
    fn turn(&mut self, measure: impl FnOnce(&mut Server) -> Result<Cell>) -> Result<Option<Cell>> {
        let Some(server) = &mut self.server else {
            return Ok(None);
        };
        let outcome = server.resume().and_then(|()| {
            let mut cell = measure(server)?;
            server.pause()?;
            cell.contender = self.contender.name.to_owned();
            Ok(Some(cell))
        });
        let Err(error) = outcome else {
            return outcome;
        };
        let out = error.context(format!("it is out; {}", server.last_words()));
        self.server = None;
        Err(out)
    }
}

/// Under what a point of a scenario is measured.
enum Under<'a> {
    Saturation(&'a Saturation),
    Load(f64),
}

impl Bench<'_> {
    fn point(&self, session: &Session) -> Duration {
        session.length() + AROUND
    }

    /// About how long a scenario takes.
    fn expected(&self, session: &Session, scenario: &Scenario) -> Duration {
        let entrants = self.options.contenders(scenario).len();
        let kinds = scenario.saturations.len() + self.loads(scenario).len();
        session.all(self.point(session), kinds * entrants + 1) + STARTING * entrants as u32
    }

    fn loads(&self, scenario: &Scenario) -> Vec<f64> {
        scenario.loads(self.options.common.quick)
    }

    /// A scenario; `None` if it cannot be measured here, which the notes then say.
    fn measure(
        &self,
        scenario: &Scenario,
        session: &mut Session,
    ) -> Result<Option<ScenarioResults>> {
        let mut entrants = self.start_all(scenario, session);
        let Some(first) = entrants.first() else {
            return Ok(None);
        };
        let reference = first.name();
        let told = |one: &Entrant| one.server.as_ref().map(Server::description);
        let descriptions = entrants
            .iter()
            .map(|one| (one.name(), told(one).unwrap_or_default()));
        let descriptions: BTreeMap<_, _> = descriptions.collect();
        let stop = session.stop.clone();
        let client = Client {
            scenario,
            core: self.cores.1,
            seconds: session.settings.seconds_per_point,
            stop: &stop,
        };
        let each = self.point(session);

        // The reference's capacity, by which loads are chosen for all.
        let what = format!("{}: capacity for the mix", scenario.name);
        let capacities = session.interleave(
            &what,
            &mut entrants[..1],
            Entrant::name,
            each,
            |entrant, seed| entrant.turn(|server| client.capacity(server, seed)),
        )?;
        let capacities = capacities.iter().flat_map(|runs| runs.measured());
        let capacities: Vec<_> = capacities
            .map(|cell| cell.point.all.throughput_rps)
            .collect();
        let Some(capacity) = median(&capacities) else {
            bail!("{reference} did not get as far as its capacity");
        };

        let saturations = scenario.saturations.iter().map(Under::Saturation);
        let loads = self.loads(scenario).into_iter().map(Under::Load);
        let mut cells = Vec::new();
        for under in saturations.chain(loads) {
            let what = match under {
                Under::Saturation(saturation) => saturation.name.to_owned(),
                Under::Load(share) => Kind::Load { share }.label(),
            };
            let what = format!("{}: {what}", scenario.name);
            let measured = session.interleave(
                &what,
                &mut entrants,
                Entrant::name,
                each,
                |entrant, seed| {
                    entrant.turn(|server| match under {
                        Under::Saturation(saturation) => client.saturate(server, saturation, seed),
                        Under::Load(share) => client.load(server, share, share * capacity, seed),
                    })
                },
            )?;
            let runs = measured.into_iter().flat_map(|runs| runs.runs);
            cells.extend(runs.flatten());
        }
        let mut measured = ScenarioResults {
            name: scenario.name.to_owned(),
            title: scenario.title.to_owned(),
            requests: scenario.requests.iter().map(ToString::to_string).collect(),
            contenders: entrants.iter().map(Entrant::name).collect(),
            descriptions,
            reference,
            capacity_rps: capacity,
            cells,
            comparisons: Vec::new(),
            within_slo: Vec::new(),
        };
        compare::complete(&mut measured, scenario, self.options.slo_us);
        Ok(Some(measured))
    }

    /// All contenders that can be started; the notes say why others cannot.
    fn start_all(&self, scenario: &Scenario, session: &mut Session) -> Vec<Entrant> {
        session
            .progress
            .begin(&format!("{}: starting servers", scenario.name));
        let mut entrants = Vec::new();
        for contender in self.options.contenders(scenario) {
            session.progress.detail(contender.name);
            match self.start(&contender, scenario, session) {
                Ok(server) => entrants.push(Entrant {
                    contender,
                    server: Some(server),
                }),
                Err(error) => session.notes.push(format!(
                    "skipped: {} of {}: {error:#}",
                    contender.name, scenario.name
                )),
            }
            session.progress.end(STARTING);
        }
        entrants
    }

    fn start(
        &self,
        contender: &Contender,
        scenario: &Scenario,
        session: &Session,
    ) -> Result<Server> {
        let log = format!("{}-{}", scenario.name, contender.name);
        let stop: &AtomicBool = &session.stop;
        let mut server = Server::start(
            contender,
            &self.binaries,
            self.cores,
            &session.directory,
            &log,
        )?;
        server.fill(self.cores.1, stop)?;
        server.pause()?;
        Ok(server)
    }
}
