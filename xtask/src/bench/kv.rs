//! `cargo xtask bench kv`: the key-value server of `examples/kv` beside redis-server, under the
//! same client's load.
//!
//! A server has one core, the client another. All contenders of a scenario are started once and
//! filled with the same data; but for the one that is measured they are stopped (SIGSTOP), so that
//! none disturbs another, and they take turns point by point with the same seeds. The client is
//! `shinjuku-load` as a library: open loop, latency from the intended moment.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use core_affinity::CoreId;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::machine::{self, Machine};
use crate::report::progress::Progress;
use crate::report::stamp;

mod client;
mod compare;
mod contender;
mod figures;
mod options;
pub mod publish;
pub mod results;
mod scenario;
mod server;
pub(super) mod tables;

use client::Client;
use contender::Contender;
pub use options::Options;
use results::{Cell, Results, SCHEMA, ScenarioResults};
use scenario::Scenario;
use server::{Binaries, Server};

/// Keys of every server, and the length of their values in bytes.
const KEYS: u64 = 100_000;
const VALUE: usize = 64;

/// Measures what is asked for, and publishes it.
///
/// # Errors
/// Nothing can be measured, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    let stolen_before = machine::stolen_ms();
    let cores =
        core_affinity::get_core_ids().context("the cores this process may use cannot be told")?;
    let [server_core, client_core, ..] = cores[..] else {
        bail!("two cores are needed, one for the server and one for the client");
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot catch SIGINT and SIGTERM")?;
    }
    let stamp = stamp::now();
    let directory = crate::paths::target_dir().join("bench-kv").join(&stamp);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;

    let mut notes = Vec::new();
    let scenarios = options.scenarios();
    let wants_rocksdb = scenarios.iter().any(Scenario::needs_rocksdb);
    let binaries = Binaries::find(
        options.kv.as_deref(),
        options.kv_options(),
        wants_rocksdb,
        &mut notes,
    )?;
    let mut results = Results {
        schema: SCHEMA,
        stamp,
        commit: machine::commit(),
        machine: Machine::detect(false),
        command: std::env::args()
            .skip(1)
            .fold("cargo xtask".to_owned(), |line, word| line + " " + &word),
        server_core: server_core.id,
        client_core: client_core.id,
        repetitions: options.repetitions(),
        seconds: options.seconds(),
        slo_us: options.slo_us,
        notes,
        scenarios: Vec::new(),
    };
    if cores.len() == 2
        && scenarios
            .iter()
            .any(|one| options.contenders(one).iter().any(Contender::spreads))
    {
        results.notes.push(
            "mq-threads has both cores, so one of its threads shares the client's: its latencies are not its own."
                .to_owned(),
        );
    }
    if let Some(load) = busy() {
        results.notes.push(format!(
            "Other programs were running when it began (load average {load:.1}): expect noise."
        ));
    }
    let bench = Bench {
        options,
        binaries,
        directory: directory.clone(),
        cores: (server_core, client_core),
        stop: &stop,
    };
    let expected = scenarios.iter().map(|one| bench.expected(one)).sum();
    let mut progress = Progress::new(expected);
    progress.say(&results.machine.summary());
    let mut failed = None;
    for scenario in &scenarios {
        match bench.measure(scenario, &mut results.notes, &mut progress) {
            Ok(Some(measured)) => results.scenarios.push(measured),
            Ok(None) => {}
            Err(error) => {
                failed = Some(error.context(format!("scenario {}", scenario.name)));
                break;
            }
        }
        if stop.load(Relaxed) {
            results.notes.push("It was interrupted.".to_owned());
            break;
        }
    }
    progress.finish();
    if let Some(error) = &failed {
        results.notes.push(format!("It ended early: {error:#}"));
    }
    let stolen = machine::stolen_ms()
        .zip(stolen_before)
        .map_or(0, |(now, before)| now - before);
    results.notes.push(format!(
        "It took {:.0} s; the hypervisor took {stolen} ms from the cores meanwhile.",
        started.elapsed().as_secs_f64()
    ));
    publish::publish(&results, &directory)?;
    if let Some(path) = &options.json {
        results.write(path)?;
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The load average of the last minute, if it says that the machine is not quiet.
pub(super) fn busy() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    (load > 0.7).then_some(load)
}

/// What all scenarios share.
struct Bench<'a> {
    options: &'a Options,
    binaries: Binaries,
    directory: std::path::PathBuf,
    cores: (CoreId, CoreId),
    stop: &'a AtomicBool,
}

/// A contender with its server; `None` once that has failed.
struct Entrant {
    contender: Contender,
    server: Option<Server>,
}

impl Bench<'_> {
    /// About how long a scenario takes.
    fn expected(&self, scenario: &Scenario) -> Duration {
        let entrants = self.options.contenders(scenario).len() as u32;
        let points = scenario.saturations.len() + scenario.loads(self.options.quick).len();
        let points = points as u32 * entrants + 1;
        self.options.point() * points * self.options.repetitions()
            + Duration::from_secs(1) * entrants
    }

    /// A scenario; `None` if it cannot be measured here, which the notes then say.
    fn measure(
        &self,
        scenario: &Scenario,
        notes: &mut Vec<String>,
        progress: &mut Progress,
    ) -> Result<Option<ScenarioResults>> {
        let mut entrants = Vec::new();
        for contender in self.options.contenders(scenario) {
            progress.begin(&format!("{}: starting {}", scenario.name, contender.name));
            match self.start(&contender, scenario) {
                Ok(server) => entrants.push(Entrant {
                    contender,
                    server: Some(server),
                }),
                Err(error) => notes.push(format!(
                    "skipped: {} of {}: {error:#}",
                    contender.name, scenario.name
                )),
            }
            progress.end(Duration::from_secs(1));
        }
        if entrants.is_empty() {
            return Ok(None);
        }
        let descriptions = entrants.iter().map(|one| {
            let told = one.server.as_ref().map(Server::description);
            (one.contender.name.to_owned(), told.unwrap_or_default())
        });
        let descriptions: BTreeMap<_, _> = descriptions.collect();
        let client = Client {
            scenario,
            core: self.cores.1,
            seconds: self.options.seconds(),
            stop: self.stop,
        };
        let seeds = self.options.seeds();

        // The reference's capacity, by which loads are chosen for all.
        let mut capacities = Vec::new();
        for &seed in &seeds {
            progress.begin(&format!("{}: capacity for the mix", scenario.name));
            let measured = self.turn(&mut entrants[0], seed, notes, |server, seed| {
                client.capacity(server, seed)
            });
            progress.end(self.options.point());
            capacities.extend(measured.map(|cell| cell.point.all.throughput_rps));
        }
        let Some(capacity) = shinjuku_workload::repeat::median(&capacities) else {
            bail!(
                "{} did not get as far as its capacity",
                entrants[0].contender.name
            );
        };

        let mut cells = Vec::new();
        for &seed in &seeds {
            for saturation in &scenario.saturations {
                for entrant in &mut entrants {
                    let what = format!("{}: {}", scenario.name, saturation.name);
                    progress.begin(&format!("{what}, {} seed {seed}", entrant.contender.name));
                    let cell = self.turn(entrant, seed, notes, |server, seed| {
                        client.saturate(server, saturation, seed)
                    });
                    cells.extend(cell);
                    progress.end(self.options.point());
                }
            }
            for &share in &scenario.loads(self.options.quick) {
                for entrant in &mut entrants {
                    progress.begin(&format!(
                        "{}: {:.0} %, {} seed {seed}",
                        scenario.name,
                        share * 100.0,
                        entrant.contender.name
                    ));
                    let cell = self.turn(entrant, seed, notes, |server, seed| {
                        client.load(server, share, share * capacity, seed)
                    });
                    cells.extend(cell);
                    progress.end(self.options.point());
                }
            }
        }
        let contenders = entrants.iter().map(|one| one.contender.name.to_owned());
        let mut measured = ScenarioResults {
            name: scenario.name.to_owned(),
            title: scenario.title.to_owned(),
            requests: scenario
                .requests
                .iter()
                .map(|&one| one.to_owned())
                .collect(),
            contenders: contenders.collect(),
            descriptions,
            reference: entrants[0].contender.name.to_owned(),
            capacity_rps: capacity,
            cells,
            comparisons: Vec::new(),
            within_slo: Vec::new(),
        };
        compare::complete(&mut measured, scenario, self.options.slo_us);
        Ok(Some(measured))
    }

    fn start(&self, contender: &Contender, scenario: &Scenario) -> Result<Server> {
        let log = format!("{}-{}", scenario.name, contender.name);
        let mut server = Server::start(
            contender,
            &self.binaries,
            self.cores.0,
            &self.directory,
            &log,
        )?;
        server.fill(self.cores.1, self.stop)?;
        server.pause()?;
        Ok(server)
    }

    /// One contender's turn. One that fails is out from then on, which the notes say.
    fn turn(
        &self,
        entrant: &mut Entrant,
        seed: u64,
        notes: &mut Vec<String>,
        measure: impl FnOnce(&mut Server, u64) -> Result<Cell>,
    ) -> Option<Cell> {
        if self.stop.load(Relaxed) {
            return None;
        }
        let server = entrant.server.as_mut()?;
        let outcome = server.resume().and_then(|()| {
            let mut cell = measure(server, seed)?;
            server.pause()?;
            cell.contender = entrant.contender.name.to_owned();
            Ok(cell)
        });
        match outcome {
            // What was cut short is no measurement.
            Ok(_) if self.stop.load(Relaxed) => None,
            Ok(cell) => Some(cell),
            Err(error) => {
                let said = server.last_words();
                notes.push(format!(
                    "{} is out: {error:#}; {said}",
                    entrant.contender.name
                ));
                entrant.server = None;
                None
            }
        }
    }
}
