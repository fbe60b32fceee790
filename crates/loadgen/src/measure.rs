//! Measuring one load: opens the connections, runs the threads, sums up.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use hdrhistogram::Histogram;

use crate::client::Clock;
use crate::datagrams::{Carrier, Datagrams};
use crate::dataplane::{Line, Taken};
use crate::engine::{self, Arrivals, Live, Offer};
use crate::error::LoadError;
use crate::plan::{Load, Pick, Plan};
use crate::point::{ClassFigures, ClientFigures, Figures, Point};
use crate::record::{Record, Tally};
use crate::requests::stream;
use crate::tcp::{Shape, Tcp};
use crate::udp::Sockets;

/// From the moment all is ready to the first that a request can be due; the threads start in this
/// time.
const LEAD: Duration = Duration::from_millis(5);
/// How long a class is measured alone.
const ALONE: Duration = Duration::from_millis(250);
/// How often the live line is updated.
const LIVE: Duration = Duration::from_millis(500);

/// A load that was measured.
#[derive(Debug)]
pub struct Measurement {
    /// Its figures.
    pub point: Point,
    /// Latencies in ns, one histogram a class: the load's, then the probe's.
    pub histograms: Vec<Histogram<u64>>,
}

/// The progress of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// The time since the load began.
    pub elapsed: Duration,
    /// Requests sent.
    pub sent: u64,
    /// Replies read.
    pub received: u64,
    /// Requests that failed: errors, losses, time-outs, those not sent.
    pub failed: u64,
}

/// Controls a run from outside.
pub struct Control<'a> {
    /// Ends the run soon after it becomes true; the result is what was measured so far.
    pub stop: &'a AtomicBool,
    /// Called twice a second with the progress of a load. The call costs the clients a little time
    /// if they share its core.
    pub watch: Option<&'a dyn Fn(Progress)>,
}

impl Plan {
    /// Measures a load with a seed. `unloaded_ns` has each class's median without load, or is
    /// empty.
    ///
    /// # Errors
    /// No connection can be opened, or the operating system refuses a thread its core or its
    /// descriptors.
    pub fn measure(
        &self,
        load: Load,
        seed: u64,
        unloaded_ns: &[Option<f64>],
        control: &Control<'_>,
    ) -> Result<Measurement, LoadError> {
        let classes = self.requests.names().len();
        let gathered = self.gather(load, seed, None, control)?;
        let Gathered {
            record,
            seconds,
            connections,
            refused,
            lost,
        } = gathered;
        let unloaded = |class: usize| unloaded_ns.get(class).copied().flatten();
        let figures = |tallies: &[Tally]| -> Vec<ClassFigures> {
            let named = tallies.iter().zip(self.requests.names()).enumerate();
            named
                .map(|(class, (tally, name))| ClassFigures {
                    name: name.clone(),
                    figures: Figures::of(&[(tally, unloaded(class))], seconds),
                })
                .collect()
        };
        let (loads, probes) = record.tallies.split_at(classes);
        let all: Vec<_> = (loads.iter().enumerate())
            .map(|(class, tally)| (tally, unloaded(class)))
            .collect();
        let all = Figures::of(&all, seconds);
        let mut point = Point {
            load,
            seed,
            seconds,
            offered_rps: all.due as f64 / seconds,
            all,
            classes: figures(loads),
            probe: if self.probe.is_some() {
                figures(probes)
            } else {
                Vec::new()
            },
            client: ClientFigures {
                late_share: record.late as f64 / (record.lateness.len().max(1)) as f64,
                late_p99_us: record.lateness.value_at_quantile(0.99) as f64 / 1e3,
                connections,
                refused_connections: refused,
                lost_connections: lost,
                stray_replies: record.strays,
                malformed_replies: record.malformed,
                first_errors: record.stray_errors,
            },
            marks: Vec::new(),
        };
        point.marks = point.judge(control.stop.load(Relaxed));
        let tallies = record.tallies.into_iter();
        let shown = if self.probe.is_some() { 2 } else { 1 } * classes;
        Ok(Measurement {
            point,
            histograms: tallies.take(shown).map(|tally| tally.latency).collect(),
        })
    }

    /// Each class's median latency without load, in ns: one request at a time, of that class alone.
    /// `None` for a class that did not answer.
    ///
    /// # Errors
    /// As [`measure`](Self::measure).
    pub fn unloaded_ns(&self, control: &Control<'_>) -> Result<Vec<Option<f64>>, LoadError> {
        let alone = Self {
            connections: 1,
            threads: 1,
            cores: self.cores.iter().take(1).copied().collect(),
            probe: None,
            length: ALONE,
            warm_up: ALONE / 20,
            most_requests: u64::MAX,
            pick: Pick::Idle,
            ..self.clone()
        };
        let control = Control {
            stop: control.stop,
            watch: None,
        };
        let classes = self.requests.names().len() as u16;
        let median = |class| {
            let gathered = alone.gather(Load::Saturate(1), self.seed, Some(class), &control)?;
            let tally = &gathered.record.tallies[usize::from(class)];
            let latency = &tally.latency;
            Ok((tally.answered > 0).then(|| latency.value_at_quantile(0.5) as f64))
        };
        (0..classes).map(median).collect()
    }

    /// Runs all threads and adds up what they counted.
    fn gather(
        &self,
        load: Load,
        seed: u64,
        only: Option<u16>,
        control: &Control<'_>,
    ) -> Result<Gathered, LoadError> {
        let cores = self.pinning()?;
        let mut line = self.line.as_ref().map(Line::take);
        let open = |line| Taken::open(line, control.stop);
        let carrier = line.as_mut().map(open).transpose()?;
        let clients = self.open(load, carrier)?;
        let offer = |part| self.offer(load, seed, only, part);
        let offers: Vec<_> = (0..self.threads).map(offer).collect::<Result<_, _>>()?;
        let work = clients.open.into_iter().zip(offers).zip(cores).collect();
        let mut outcomes = self.run_threads(work, control)?;
        let (mut record, mut ended_ns, mut lost) = outcomes.swap_remove(0);
        for (other, other_end, other_lost) in outcomes {
            record.add(&other);
            ended_ns = ended_ns.max(other_end);
            lost += other_lost;
        }
        record.stray_errors.extend(clients.refusals);
        let seconds = ended_ns.saturating_sub(record.window.start).max(1) as f64 / 1e9;
        Ok(Gathered {
            record,
            seconds,
            connections: clients.connections,
            refused: clients.refused,
            lost,
        })
    }

    /// Opens each thread's connections. A `carrier` of packets serves a single thread.
    fn open<'a>(
        &self,
        load: Load,
        mut carrier: Option<&'a mut (dyn Carrier + Send)>,
    ) -> Result<Clients<'a>, LoadError> {
        let mut clients = Clients::default();
        for part in 0..self.threads {
            let shape = self.shape(load, part);
            let flows = shape.connections + shape.probes;
            clients.connections += flows;
            let client = match (self.requests.format(), carrier.take()) {
                (None, _) => {
                    let (tcp, missing) = Tcp::connect(self.target, shape)?;
                    if let Some(missing) = missing {
                        clients.connections -= missing.connections;
                        clients.refused += missing.connections;
                        clients.refusals.push(missing.why);
                    }
                    Open::Tcp(tcp)
                }
                (Some(format), Some(carrier)) => Open::Line(Datagrams::new(carrier, shape, format)),
                (Some(format), None) => {
                    let sockets = Sockets::open(self.target, flows)?;
                    Open::Udp(Datagrams::new(sockets, shape, format))
                }
            };
            clients.open.push(client);
        }
        Ok(clients)
    }

    /// Runs one thread for each part of the work, and shows their progress until all have ended.
    fn run_threads(
        &self,
        work: Vec<((Open<'_>, Offer), Option<CoreId>)>,
        control: &Control<'_>,
    ) -> Result<Vec<Ended>, LoadError> {
        let lives: Vec<_> = work.iter().map(|_| Live::default()).collect();
        let stop = control.stop;
        let start = Instant::now() + LEAD;
        let joined = thread::scope(|scope| {
            let parts = work.into_iter().zip(&lives);
            let spawned: Vec<_> = parts
                .map(|(((client, offer), core), live)| {
                    scope.spawn(move || self.work(client, offer, start, core, live, stop))
                })
                .collect();
            if let Some(watch) = control.watch {
                while spawned.iter().any(|one| !one.is_finished()) {
                    thread::park_timeout(LIVE);
                    watch(Progress::of(&lives, start));
                }
            }
            let joined = spawned.into_iter().map(|one| one.join());
            joined.collect::<Result<Vec<_>, _>>()
        });
        let ended = joined.map_err(|_| LoadError::Panicked)?;
        ended.into_iter().collect()
    }

    /// One thread.
    fn work(
        &self,
        client: Open<'_>,
        offer: Offer,
        start: Instant,
        core: Option<CoreId>,
        live: &Live,
        stop: &AtomicBool,
    ) -> Result<Ended, LoadError> {
        if let Some(core) = core
            && !core_affinity::set_for_current(core)
        {
            return Err(LoadError::System {
                action: "pin a thread to its core",
                cause: std::io::Error::last_os_error(),
            });
        }
        let clock = Clock::starting(start);
        let window = nanos(self.warm_up)..offer.end_ns;
        let mut record = Record::new(2 * usize::from(offer.classes), window, self.late_ns);
        while Instant::now() < start {
            std::hint::spin_loop();
        }
        let (ended_ns, lost) = match client {
            Open::Tcp(mut tcp) => run(&mut tcp, offer, &clock, &mut record, live, stop),
            Open::Udp(mut udp) => run(&mut udp, offer, &clock, &mut record, live, stop),
            Open::Line(mut line) => run(&mut line, offer, &clock, &mut record, live, stop),
        };
        Ok((record, ended_ns, lost))
    }

    fn shape(&self, load: Load, part: usize) -> Shape {
        let share = |whole: usize| whole * (part + 1) / self.threads - whole * part / self.threads;
        let depth = match load {
            Load::Rate(_) => 1,
            Load::Saturate(depth) => depth,
        };
        Shape {
            connections: share(self.connections),
            probes: usize::from(self.probe.is_some() && part == 0),
            depth,
            // While saturating, requests go to connections that have room.
            idle_first: self.pick == Pick::Idle || matches!(load, Load::Saturate(_)),
        }
    }

    fn offer(
        &self,
        load: Load,
        seed: u64,
        only: Option<u16>,
        part: usize,
    ) -> Result<Offer, LoadError> {
        let threads = self.threads as f64;
        // Each thread takes a stream of its own, and the probe one that no thread has.
        let arrivals = |arrivals: &shinjuku_workload::Arrivals, rate: f64, stream_of: usize| {
            let gaps = arrivals.gaps(1e9 / rate)?;
            let mut rng = stream(seed, stream_of);
            // Skips what the draws take.
            (0..3).for_each(|_| rng.jump());
            Ok::<_, LoadError>(Arrivals::new(gaps, rng))
        };
        let load = match load {
            Load::Rate(rate) => Some(arrivals(&self.arrivals, rate / threads, part)?),
            Load::Saturate(_) => None,
        };
        let poisson = shinjuku_workload::Arrivals::poisson();
        let probe = match self.probe {
            Some(rate) if part == 0 => Some(arrivals(&poisson, rate, self.threads)?),
            _ => None,
        };
        // Divided like the sequential keys, so that as many requests as keys reach each key once.
        let upto = |part: usize| self.most_requests as u128 * part as u128 / self.threads as u128;
        let most_requests = (upto(part + 1) - upto(part)) as u64;
        Ok(Offer {
            load,
            probe,
            draws: self.requests.draws(seed, part, self.threads, only),
            classes: self.requests.names().len() as u16,
            end_ns: nanos(self.length),
            most_requests,
            drain_ns: nanos(self.drain),
            timeout_ns: nanos(self.timeout),
            most_outstanding: self.most_outstanding,
        })
    }

    /// The core of each thread, if they are to be pinned.
    fn pinning(&self) -> Result<Vec<Option<CoreId>>, LoadError> {
        if self.cores.is_empty() {
            return Ok(vec![None; self.threads]);
        }
        let allowed = core_affinity::get_core_ids().unwrap_or_default();
        let known = |&core: &usize| {
            let found = allowed.iter().find(|one| one.id == core).copied();
            let names = || {
                let names: Vec<_> = allowed.iter().map(|one| one.id.to_string()).collect();
                names.join(", ")
            };
            found.map(Some).ok_or_else(|| LoadError::Core {
                core,
                allowed: names(),
            })
        };
        self.cores.iter().map(known).collect()
    }
}

/// What all threads have to work with.
#[derive(Default)]
struct Clients<'a> {
    open: Vec<Open<'a>>,
    connections: usize,
    refused: usize,
    /// Why connections were refused.
    refusals: Vec<String>,
}

/// What a thread counted, when its last request ended (ns after the start), and what it lost.
type Ended = (Record, u64, usize);

/// What all threads together counted.
struct Gathered {
    record: Record,
    seconds: f64,
    connections: usize,
    refused: usize,
    lost: usize,
}

enum Open<'a> {
    Tcp(Tcp),
    Udp(Datagrams<Sockets>),
    Line(Datagrams<&'a mut (dyn Carrier + Send)>),
}

fn run<C: crate::client::Client>(
    client: &mut C,
    offer: Offer,
    clock: &Clock,
    record: &mut Record,
    live: &Live,
    stop: &AtomicBool,
) -> (u64, usize) {
    let ended_ns = engine::run(client, offer, clock, record, live, stop);
    (ended_ns, client.lost())
}

impl Progress {
    fn of(lives: &[Live], start: Instant) -> Self {
        let sum = |field: fn(&Live) -> u64| lives.iter().map(field).sum();
        Self {
            elapsed: Instant::now().saturating_duration_since(start),
            sent: sum(|one| one.sent.load(Relaxed)),
            received: sum(|one| one.received.load(Relaxed)),
            failed: sum(|one| one.failed.load(Relaxed)),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    // A day at most, so the value fits.
    duration.as_nanos() as u64
}
