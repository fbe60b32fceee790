//! A networked server that shares its core with busy loops, called by an open-loop client on
//! another core: against the slice, and by two tables.
//!
//! The server polls, as one with a network stack of its own does. So it never sleeps in its slot,
//! and slots are kept, as in the slides.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use shinjuku_elevate::{Config, OnSleep, Table, Target};
use shinjuku_examples::work::steps_per_nano;
use shinjuku_loadgen::{Control, Figures, Mark, Point, Protocol, Rates, Settings};
use shinjuku_workload::Mix;

use super::delay::Scheduled;
use super::{AROUND, Bench, Elevate, Moment, elevate, start_part};
use crate::harness::{PATIENCE, POLL, Process, Runs};

const SLICES_US: [u64; 8] = [5, 10, 20, 50, 100, 200, 500, 1000];
const FEW_US: [u64; 4] = [10, 50, 200, 1000];
/// The slice of the tables, which the slides do not tell.
const TABLE_SLICE: Duration = Duration::from_micros(100);
/// The tables, A being the server.
pub(super) const TABLES: [&str; 2] = ["A-A-B-C", "A-B-A-C"];
/// The open loop's rate: little for the server, so that a latency is the wait for its slot.
pub(super) const RATE: f64 = 5000.0;
/// Flows of the client.
const FLOWS: usize = 16;

/// What the client saw. There are no latencies where the server did not keep up or lost requests:
/// those given up count with their age, so that the figures would be about the length of the
/// measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// Mean latency, us.
    pub mean_us: Option<f64>,
    /// Median, us.
    pub p50_us: Option<f64>,
    /// 99th percentile, us.
    pub p99_us: Option<f64>,
    /// Requests answered a second.
    pub throughput_rps: f64,
    /// Warnings of the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
}

impl Served {
    fn of(figures: &Figures, marks: &[Mark]) -> Self {
        let spoils = |mark: &Mark| matches!(mark, Mark::Saturated | Mark::Losses);
        let latency = |value: Option<f64>| value.filter(|_| !marks.iter().any(spoils));
        Self {
            mean_us: latency(figures.mean_us),
            p50_us: latency(figures.p50_us),
            p99_us: latency(figures.p99_us),
            throughput_rps: figures.throughput_rps,
            marks: marks.to_vec(),
        }
    }

    /// All requests, and those of each class.
    fn at(point: &Point) -> (Self, Vec<Self>) {
        let classes = point.classes.iter();
        let classes = classes.map(|class| Self::of(&class.figures, &point.marks));
        (Self::of(&point.all, &point.marks), classes.collect())
    }
}

/// A length of the slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    pub slice_us: u64,
    /// At the rate of the open loop, and then with all flows kept busy.
    pub runs: Vec<Runs<Served>>,
}

/// The contenders of a slice.
pub(super) const OPEN: &str = "open loop";
const SATURATED: &str = "saturated";

pub(super) fn measure(bench: &mut Bench<'_>, results: &mut Elevate) -> Result<()> {
    let speed = steps_per_nano();
    let slices = if bench.few { &FEW_US[..] } else { &SLICES_US };
    for &slice_us in slices {
        let slice = Duration::from_micros(slice_us);
        let config = bench.config(Table::round_robin(2)?, slice);
        let mut contenders = [(OPEN, config.clone()), (SATURATED, config)];
        let name = format!("server beside a busy loop, slices of {slice_us} us");
        let runs = serve(bench, &name, &mut contenders, speed)?;
        results.slices.push(Slice { slice_us, runs });
    }
    let table = |order| -> Result<_> {
        let table = Table::named(order, &["A", "B", "C"])?;
        Ok((order, bench.config(table, TABLE_SLICE)))
    };
    let mut contenders = [table(TABLES[0])?, table(TABLES[1])?];
    results.tables = serve(bench, "server by table", &mut contenders, speed)?;
    Ok(())
}

fn serve(
    bench: &mut Bench<'_>,
    name: &str,
    contenders: &mut [(&'static str, Config)],
    speed: f64,
) -> Result<Vec<Runs<Served>>> {
    let (length, directory) = (bench.length, bench.session.directory.clone());
    let (client, stop) = (bench.cores.other, bench.session.stop.clone());
    bench.session.interleave(
        name,
        contenders,
        |(name, _)| (*name).to_owned(),
        length + AROUND,
        |(name, config), seed| {
            let config = config.clone().on_sleep(OnSleep::Keep);
            let call = Call {
                client,
                seconds: length.as_secs_f64(),
                rate: (*name != SATURATED).then_some(RATE),
                seed,
            };
            beside_busy_loops(config, &call, &directory, speed, &stop).map(Some)
        },
    )
}

/// The server is the first of the table; all others are busy.
fn beside_busy_loops(
    config: Config,
    call: &Call,
    directory: &Path,
    speed: f64,
    stop: &AtomicBool,
) -> Result<Served> {
    let (speed, seconds) = (speed.to_string(), config_seconds(&config).to_string());
    let mut server = start_part(
        directory,
        &["serve", "--steps-per-nano", &speed, "--seconds", &seconds],
    )?;
    let mut all = Vec::new();
    let begin = Moment::soon();
    for _ in 1..config.table.scheduled() {
        let common = ["busy", "--at", &begin.to_nanos(), "--seconds", &seconds];
        let busy = [&common[..], &["--least-us", "1000000"]].concat();
        all.push(start_part(directory, &busy)?);
    }
    let address = address(&mut server)?;
    let mut targets = vec![Target::Process(server.child.id())];
    targets.extend(all.iter().map(|busy| Target::Process(busy.child.id())));
    let scheduled = Scheduled::by(&config);
    let elevation = elevate(config, &targets)?;
    // Before that the busy loops sleep, and the server has their slots.
    begin.check()?;
    begin.wait();
    let served = call.make(&address, &Mix::named("fixed")?, stop);
    for busy in &mut all {
        still_runs(busy)?;
    }
    scheduled.check()?;
    scheduled.check_turns(&elevation.stop()?)?;
    Ok(served?.0)
}

/// Beside a program that has ended the server had slots of that.
fn still_runs(beside: &mut Process) -> Result<()> {
    let ended = beside.child.try_wait()?;
    ensure!(
        ended.is_none(),
        "what runs beside the server ended early; {}",
        beside.last_words()
    );
    Ok(())
}

/// So long the programs run, which the elevation ends before.
fn config_seconds(config: &Config) -> f64 {
    config.at_most.unwrap_or_default().as_secs_f64()
}

/// Where the server listens.
fn address(server: &mut Process) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = server.told()?;
        if let Some(address) = told.strip_suffix('\n') {
            return Ok(address.to_owned());
        }
        let ended = server.child.try_wait()?;
        ensure!(ended.is_none(), "{}", server.last_words());
        ensure!(Instant::now() < deadline, "the server told no address");
        thread::sleep(POLL);
    }
}

/// What the client does.
pub(super) struct Call {
    pub(super) client: usize,
    pub(super) seconds: f64,
    /// Requests a second; `None`: as many as the server answers.
    pub(super) rate: Option<f64>,
    pub(super) seed: u64,
}

impl Call {
    /// What it saw, and of each class.
    pub(super) fn make(
        &self,
        address: &str,
        mix: &Mix,
        stop: &AtomicBool,
    ) -> Result<(Served, Vec<Served>)> {
        let settings = Settings {
            target: Some(address.to_owned()),
            protocol: Some(Protocol::Shinjuku),
            mix: Some(mix.clone()),
            connections: Some(FLOWS),
            cores: vec![self.client],
            seconds: Some(self.seconds),
            warm_up: Some(self.seconds / 10.0),
            drain: Some(0.2),
            rate: self.rate.and_then(|rate| Rates::new(vec![rate])),
            saturate: self.rate.is_none().then_some(4),
            ..Settings::default()
        };
        let plan = settings.check()?;
        let control = Control { stop, watch: None };
        let load = *plan.loads().first().context("there is one load")?;
        let point = plan.measure(load, self.seed, &[], &control)?.point;
        ensure!(point.all.answered > 0, "no request was answered");
        Ok(Served::at(&point))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_given_up_leave_no_latencies() {
        let figures = Figures {
            throughput_rps: 900.0,
            mean_us: Some(5e4),
            p50_us: Some(100.0),
            p99_us: Some(2e5),
            ..Figures::default()
        };
        for spoilt in [Mark::Saturated, Mark::Losses] {
            let served = Served::of(&figures, &[Mark::Behind, spoilt]);
            let latencies = [served.mean_us, served.p50_us, served.p99_us];
            assert_eq!(latencies, [None; 3], "{spoilt:?}");
            assert_eq!(served.throughput_rps, 900.0);
        }
        let late = Served::of(&figures, &[Mark::Behind]);
        assert_eq!(
            (late.p99_us, late.marks),
            (figures.p99_us, vec![Mark::Behind])
        );
    }

    #[test]
    fn a_program_beside_that_has_ended_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let shell = |script| {
            Process::start(Path::new("/bin/sh"), directory.path(), &["-c", script]).unwrap()
        };
        still_runs(&mut shell("exec sleep 100")).unwrap();
        let mut ended = shell("echo no core >&2; exit 1");
        ended.child.wait().unwrap();
        let error = still_runs(&mut ended).unwrap_err().to_string();
        assert!(error.contains("no core"), "{error}");
    }
}
