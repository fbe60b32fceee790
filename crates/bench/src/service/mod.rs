//! `cargo xtask bench service`: a web service (`examples/web`) whose requests take from
//! microseconds to tens of milliseconds, computed in a pool and in the ways that a pool replaces.
//!
//! Every contender is a process of its own on the same two cores. All are started once; but for the
//! one that is measured they are stopped (SIGSTOP), and they take turns point by point with the
//! same seeds, after a turn of each that is not measured. The client is hyper over HTTP/1.1 with
//! keep-alive: open loop, latency from the moment at which a request was due. Where there are no
//! other cores the client shares the server's, and its share is told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};
use shinjuku_workload::{
    Arrival, ClassFigures, Length, Mix, Offered, Schedule, ScheduleConfig, Summary,
};

use crate::harness::{self, Efforts, Runs, Session};
use crate::machine::Machine;
use crate::policies::saturation::{Counts, is_saturated};

mod client;
mod contender;
mod report;
mod routes;

use client::{NEVER, Outcome, Sending};
use contender::{CONTENDERS, Contender, Programs, Server, share_cores};

/// Making a server's data.
const STARTING: Duration = Duration::from_secs(3);
/// What a point takes beside its seconds: connecting, and what is under way at its end.
const AROUND: Duration = Duration::from_millis(300);
/// More than any contender answers in a second, so that saturation never runs out of requests.
const SATURATING_RPS: f64 = 100_000.0;
/// A contender's first turn, in which its threads and its memory come to be: not measured.
const WARM_UP: Duration = Duration::from_secs(1);

/// Options of `cargo xtask bench service`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) common: harness::Options,
    /// Only contenders whose name contains this, besides `inline` (may be given several times).
    #[arg(long, value_name = "TEXT")]
    contender: Vec<String>,
    /// The server's program, `web` of `examples/web`, instead of building it.
    #[arg(long, value_name = "PATH")]
    web: Option<PathBuf>,
    /// The same built by `cargo shinjuku`.
    #[arg(long, value_name = "PATH", requires = "web")]
    web_instrumented: Option<PathBuf>,
}

impl Options {
    fn contenders(&self) -> Vec<&'static Contender> {
        let is_wanted = |one: &&Contender| {
            let names = &self.contender;
            names.is_empty()
                || one.name == contender::INLINE
                || names.iter().any(|text| one.name.contains(text))
        };
        CONTENDERS.iter().filter(is_wanted).collect()
    }
}

const EFFORTS: Efforts = Efforts {
    quick: (3, 2.0),
    default: (5, 5.0),
    full: (9, 10.0),
    seconds: 0.2..=60.0,
};

/// What the bench of services measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Whether the client has cores of its own.
    pub client_has_its_own_cores: bool,
    /// What each contender said of itself.
    pub descriptions: BTreeMap<String, String>,
    /// What the contender `inline` answers at saturation: 100 %.
    pub capacity_rps: f64,
    /// As many requests under way as the client has connections.
    pub saturation: Vec<Runs<Cell>>,
    pub loads: Vec<AtLoad>,
}

/// All contenders under the same load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtLoad {
    /// Of [`Service::capacity_rps`].
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
    /// Requests answered in a second, until the last answer.
    pub answered_rps: f64,
    /// Refused or answered wrongly, or the connection broke.
    pub failed: u64,
    /// Without an answer ten seconds after the last was due.
    pub unanswered: u64,
    /// Whether requests of some route came faster than they were answered. Then there are no
    /// percentiles: those of short routes are the better the more the long ones starve.
    pub saturated: bool,
    /// Cores that the server's process used.
    pub server_cores: f64,
    /// CPU time of the server's process for each answer.
    pub server_us_per_request: f64,
    /// Cores that the client used.
    pub client_cores: f64,
    /// Whether the client's thread was under SCHED_FIFO.
    pub client_realtime: bool,
    /// p99 of how late the client came to a request, behind others of its own.
    pub late_p99_us: f64,
    /// The most memory that the server has had so far.
    pub peak_mib: f64,
    /// One for each route that was answered.
    pub routes: Vec<RouteFigures>,
}

/// Latencies of a route, from when its requests were due. A request that was lost counts as one
/// that takes for ever; where that reaches a percentile, there is none. There is none, either,
/// where the server is saturated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteFigures {
    pub name: String,
    /// How many were sent, warm-up left out.
    pub requests: usize,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// 99.9th percentile, of a thousand requests or more.
    pub p999_us: Option<f64>,
}

/// As few requests have no p99.9.
const FEWEST_FOR_P999: usize = 1_000;

impl Cell {
    fn route(&self, name: &str) -> Option<&RouteFigures> {
        self.routes.iter().find(|route| route.name == name)
    }

    /// Requests that were not answered as they should be.
    fn lost(&self) -> u64 {
        self.failed + self.unanswered
    }

    /// Of the requests that were `due`; none, if the client sent as many as were answered.
    ///
    /// # Errors
    /// Nothing was answered.
    fn of(
        outcome: &Outcome,
        (mix, due): (&Mix, &[Arrival]),
        server_cpu: f64,
        peak_mib: f64,
    ) -> Result<Self> {
        let reason = outcome.reason.as_deref().unwrap_or("none came");
        ensure!(!outcome.answered.is_empty(), "no answers: {reason}");
        let all = [&outcome.answered[..], &outcome.lost].concat();
        let summary = Summary::of(mix, &all)?;
        let (seconds, answers) = (outcome.elapsed.as_secs_f64(), outcome.answered.len() as f64);
        let mut late = outcome.late.clone();
        late.sort_unstable();
        let us = |ns: u64| ns as f64 / 1e3;
        let saturated = falls_behind(outcome, due);
        // A lost request was due long before a percentile as long as that.
        let answered = |ns: u64| (!saturated && ns < NEVER / 2).then(|| us(ns));
        let route = |class: ClassFigures| RouteFigures {
            requests: class.figures.requests,
            p50_us: answered(class.figures.p50_ns),
            p99_us: answered(class.figures.p99_ns),
            p999_us: answered(class.figures.p999_ns)
                .filter(|_| class.figures.requests >= FEWEST_FOR_P999),
            name: class.name,
        };
        Ok(Self {
            answered_rps: answers / seconds,
            failed: outcome.failed,
            unanswered: outcome.unanswered,
            saturated,
            server_cores: server_cpu / seconds,
            server_us_per_request: server_cpu * 1e6 / answers,
            client_cores: outcome.cpu.as_secs_f64() / seconds,
            client_realtime: outcome.realtime,
            late_p99_us: late.get(late.len() * 99 / 100).map_or(0.0, |&ns| us(ns)),
            peak_mib,
            routes: summary.classes.into_iter().map(route).collect(),
        })
    }
}

/// Whether requests of any route were answered more slowly than they were due, from a fifth of the
/// time on until the last was due. That is the rule of the policies' bench.
fn falls_behind(outcome: &Outcome, due: &[Arrival]) -> bool {
    let Some(end) = due.last().map(|last| last.at_ns) else {
        return false;
    };
    let window = end / 5..end;
    let counts = (0..routes::ROUTES.len() as u16).map(|class| {
        let offered = due.iter().filter(|one| one.class == class);
        let answered = outcome.answered.iter().filter(|one| one.class == class);
        let within = |at: &u64| window.contains(at);
        Counts {
            offered: offered.map(|one| one.at_ns).filter(within).count() as u64,
            finished: answered.map(|one| one.finish_ns).filter(within).count() as u64,
            ..Counts::default()
        }
    });
    is_saturated(&counts.collect::<Vec<_>>())
}

/// A contender with its server; `None` once that has failed.
struct Entrant {
    contender: &'static Contender,
    server: Option<Server>,
}

impl Entrant {
    fn name(&self) -> String {
        self.contender.name.to_owned()
    }
}

/// What all points share.
struct Bench {
    mix: Mix,
    seconds: f64,
    client: CpuSet,
    stop: Arc<AtomicBool>,
}

/// Measures all contenders, and publishes that.
///
/// # Errors
/// Nothing can be measured, it was interrupted, or results cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let settings = options.common.settings(&EFFORTS, false)?;
    let mut session = Session::begin::<Service>(&options.common, settings)?;
    let given = (options.web.as_deref(), options.web_instrumented.as_deref());
    let programs = Programs::find(given.0, given.1, &mut session.notes)?;
    let machine = Machine::detect(false);
    let (cores, client, shares) = share_cores(session.cores.iter().map(|core| core.id));
    let loads = options.common.pick(
        &[0.4, 0.6][..],
        &[0.2, 0.4, 0.6, 0.8],
        &[0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
    );
    let each = session.length() + AROUND;
    let contenders = options.contenders();
    let points = session.all(each, (loads.len() + 1) * contenders.len());
    let before = STARTING + WARM_UP + AROUND;
    session.expect(&machine, points + before * contenders.len() as u32);
    let mut results = Service {
        client_has_its_own_cores: !shares,
        descriptions: BTreeMap::new(),
        capacity_rps: 0.0,
        saturation: Vec::new(),
        loads: Vec::new(),
    };
    let bench = Bench {
        mix: routes::mix()?,
        seconds: session.settings.seconds_per_point,
        client,
        stop: Arc::clone(&session.stop),
    };
    let entrants = start_all(contenders, &programs, &cores, &mut session);
    let measured = bench.measure(entrants, loads, &mut session, &mut results);
    session.end(machine, results, measured)
}

/// All contenders that can be started; the notes say why others cannot.
fn start_all(
    contenders: Vec<&'static Contender>,
    programs: &Programs,
    cores: &CpuSet,
    session: &mut Session,
) -> Vec<Entrant> {
    session.progress.begin("starting servers");
    let mut entrants = Vec::new();
    for contender in contenders {
        session.progress.detail(contender.name);
        match Server::start(contender, programs, cores, &session.directory) {
            Ok(server) => entrants.push(Entrant {
                contender,
                server: Some(server),
            }),
            Err(error) => {
                let note = format!("skipped: {}: {error:#}", contender.name);
                session.notes.push(note);
            }
        }
        session.progress.end(STARTING);
    }
    entrants
}

impl Bench {
    fn measure(
        &self,
        mut entrants: Vec<Entrant>,
        loads: &[f64],
        session: &mut Session,
        results: &mut Service,
    ) -> Result<()> {
        let told = |one: &Entrant| Some((one.name(), one.server.as_ref()?.description.clone()));
        results.descriptions = entrants.iter().filter_map(told).collect();
        self.warm_up(&mut entrants, session)?;
        let each = session.length() + AROUND;
        let what = "saturation";
        results.saturation =
            session.interleave(what, &mut entrants, Entrant::name, each, |one, seed| {
                self.saturate(one, Duration::from_secs_f64(self.seconds), seed)
            })?;
        results.capacity_rps = capacity(&results.saturation)?;
        for &share in loads {
            let offered_rps = share * results.capacity_rps;
            let what = format!("{:.0} %", share * 100.0);
            let contenders =
                session.interleave(&what, &mut entrants, Entrant::name, each, |one, seed| {
                    self.offer(one, offered_rps, seed)
                })?;
            results.loads.push(AtLoad {
                share,
                offered_rps,
                contenders,
            });
        }
        Ok(())
    }

    /// A turn of each that is not measured.
    fn warm_up(&self, entrants: &mut [Entrant], session: &mut Session) -> Result<()> {
        session.progress.begin("warming up");
        for entrant in entrants {
            session.progress.detail(entrant.contender.name);
            // What fails here fails again where it is told.
            let _ = self.saturate(entrant, WARM_UP, 0);
            session.progress.end(WARM_UP + AROUND);
            ensure!(!self.stop.load(Relaxed), "interrupted");
        }
        Ok(())
    }

    /// As many requests under way as there are connections.
    fn saturate(&self, entrant: &mut Entrant, time: Duration, seed: u64) -> Result<Option<Cell>> {
        let requests = (SATURATING_RPS * time.as_secs_f64()) as usize;
        let arrivals = routes::in_blocks(requests, seed);
        self.turn(entrant, &arrivals, Sending::Saturating(time))
    }

    /// So many requests a second, open loop.
    fn offer(&self, entrant: &mut Entrant, rps: f64, seed: u64) -> Result<Option<Cell>> {
        let length = Length::lasting(Duration::from_secs_f64(self.seconds));
        let offered = Offered::Rate { per_second: rps };
        let config = ScheduleConfig::new(offered, length).with_seed(seed);
        let schedule = Schedule::generate(&self.mix, &config)?;
        self.turn(entrant, schedule.arrivals(), Sending::OpenLoop)
    }

    /// A contender's turn. One whose server ended is out from then on.
    fn turn(
        &self,
        entrant: &mut Entrant,
        arrivals: &[Arrival],
        sending: Sending,
    ) -> Result<Option<Cell>> {
        let Some(server) = &mut entrant.server else {
            return Ok(None);
        };
        let outcome = server.in_turn(|server| {
            let before = server.cpu_seconds()?;
            let cores = Some(&self.client);
            let outcome = client::run(server.address, arrivals, sending, cores, &self.stop)?;
            let used = server.cpu_seconds()? - before;
            let due = match sending {
                Sending::OpenLoop => arrivals,
                Sending::Saturating(_) => &[],
            };
            Cell::of(&outcome, (&self.mix, due), used, server.peak_mib()?)
        });
        if outcome.is_err() && server.has_ended() {
            entrant.server = None;
        }
        outcome.map(Some)
    }
}

/// The reference's requests a second at saturation, by which loads are chosen for all.
fn capacity(saturation: &[Runs<Cell>]) -> Result<f64> {
    let reference = Runs::named(saturation, contender::INLINE);
    let lost = reference.map_or(0, |runs| runs.measured().map(Cell::lost).sum());
    ensure!(
        lost == 0,
        "`inline` failed to answer {lost} requests at saturation"
    );
    let capacity = reference.and_then(|runs| runs.median(|cell| Some(cell.answered_rps)));
    let capacity = capacity.context("`inline` was not measured at saturation")?;
    ensure!(capacity > 0.0, "`inline` answered nothing");
    Ok(capacity)
}

#[cfg(test)]
mod tests {
    use shinjuku_workload::Record;

    use super::*;

    /// Of 2000 requests 30 are lost, late ones: p50 stands, p99 and p99.9 would be made of answers
    /// alone.
    #[test]
    fn losses_leave_out_the_percentiles_that_they_reach() {
        let record = |n: u64| Record {
            arrival_ns: n * 1_000,
            service_ns: 1,
            finish_ns: n * 1_000 + 5_000,
            class: 0,
        };
        let lost = |n| Record {
            finish_ns: NEVER,
            ..record(n)
        };
        let figures = |losses: u64| {
            let outcome = Outcome {
                answered: (0..2_000 - losses).map(record).collect(),
                lost: (2_000 - losses..2_000).map(lost).collect(),
                elapsed: Duration::from_millis(200),
                ..Outcome::default()
            };
            let cell = Cell::of(&outcome, (&routes::mix().unwrap(), &[]), 0.1, 7.0).unwrap();
            let route = cell.route(routes::HEALTH).unwrap();
            (route.requests, [route.p50_us, route.p99_us, route.p999_us])
        };
        let five = Some(5.0);
        assert_eq!(figures(0), (1_900, [five, five, five]));
        assert_eq!(figures(10), (1_900, [five, five, None]));
        assert_eq!(figures(30), (1_900, [five, None, None]));
    }

    /// The short ones are answered at once, the long ones at half the speed.
    #[test]
    fn a_server_that_starves_long_requests_has_no_percentiles() {
        let due: Vec<_> = (0..2_000u64)
            .map(|n| Arrival {
                at_ns: n * 1_000,
                service_ns: 1,
                flow: 0,
                class: if n % 10 == 0 { 4 } else { 0 },
            })
            .collect();
        let cell = |long_takes: u64| {
            let record = |one: &Arrival| Record {
                arrival_ns: one.at_ns,
                service_ns: 1,
                finish_ns: match one.class {
                    0 => one.at_ns + 5_000,
                    _ => one.at_ns * long_takes + 5_000,
                },
                class: one.class,
            };
            let outcome = Outcome {
                answered: due.iter().map(record).collect(),
                elapsed: Duration::from_millis(2),
                ..Outcome::default()
            };
            Cell::of(&outcome, (&routes::mix().unwrap(), &due), 0.1, 7.0).unwrap()
        };
        let p99 = |cell: &Cell| cell.route(routes::HEALTH).unwrap().p99_us;
        assert_eq!((cell(1).saturated, p99(&cell(1))), (false, Some(5.0)));
        assert_eq!((cell(2).saturated, p99(&cell(2))), (true, None));
    }

    #[test]
    fn a_cell_has_each_routes_latencies_from_when_they_were_due() {
        let record = |n: u64| Record {
            arrival_ns: n * 1_000_000,
            service_ns: 1,
            finish_ns: n * 1_000_000 + 5_000,
            class: (n % 2) as u16,
        };
        let outcome = Outcome {
            answered: (0..100).map(record).collect(),
            late: (0..100).map(|n| n * 1_000).collect(),
            elapsed: Duration::from_millis(200),
            cpu: Duration::from_millis(20),
            ..Outcome::default()
        };
        let cell = Cell::of(&outcome, (&routes::mix().unwrap(), &[]), 0.1, 7.0).unwrap();
        assert_eq!((cell.answered_rps, cell.late_p99_us), (500.0, 99.0));
        assert!((cell.server_cores - 0.5).abs() < 1e-9 && (cell.client_cores - 0.1).abs() < 1e-9);
        assert!((cell.server_us_per_request - 1000.0).abs() < 1e-9);
        let health = cell.route(routes::HEALTH).unwrap();
        assert_eq!((health.p99_us, health.p999_us), (Some(5.0), None));
        assert!(cell.route("login").is_none());
        let nothing = Outcome {
            reason: Some("no such luck".to_owned()),
            ..Outcome::default()
        };
        let error = Cell::of(&nothing, (&routes::mix().unwrap(), &[]), 0.1, 7.0).unwrap_err();
        assert!(error.to_string().contains("no such luck"), "{error:#}");
    }
}
