//! One server under load: what to simulate, and one replication of it.
//!
//! A replication starts empty. **Warm-up:** the first tenth of its requests, by order of arrival,
//! is served and not counted. After the last counted request, others keep arriving while counted
//! ones are in the server, but at most another tenth. So the last requests meet the same
//! competition as the rest. An overloaded server is stopped then, and drained.

use std::ops::Range;

use shinjuku_workload::{Arrivals, Mix};

use crate::machine::Machine;
use crate::scheduler::Scheduler;
use crate::server::Shape;
use crate::source::Source;
use crate::tally::Tally;
use crate::{Outcome, Request, SimError};

/// The share of the requests that is warm-up, as one in so many.
pub(crate) const WARM_UP: u64 = 10;

/// The least load: at a lower one, times would soon be too large to tell apart, or to be
/// represented.
const LEAST_LOAD: f64 = 1e-6;

/// A server, its set-up and its load.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What is asked of it.
    pub mix: Mix,
    /// The arrival process.
    pub arrivals: Arrivals,
    /// The load offered, as a share of what the workers can do: 1e-6 or more.
    pub load: f64,
    /// The number of flows; `None`: every request is its own, so that flows hash evenly.
    pub flows: Option<u32>,
    /// The policy.
    pub policy: Scheduler,
    /// The server.
    pub shape: Shape,
    /// Requests to count in one replication.
    pub requests: u64,
}

/// What one replication measured.
#[derive(Clone)]
pub struct Run {
    /// The sojourn times.
    pub tally: Tally,
    /// How many events were simulated.
    pub events: u64,
    /// How many preemptions took effect, warm-up included.
    pub preemptions: u64,
    /// How many turns loops took of parts that are not their home, warm-up included; none with a
    /// central queue.
    pub helps: u64,
    /// Simulated time until the last event, in ns.
    pub span_ns: u64,
    /// Whether requests piled up: during the last quarter of the counted arrivals there were always
    /// more requests in the server than in the mean of the first quarter. A server that keeps up
    /// drains its queue again.
    pub growing: bool,
}

impl Scenario {
    /// Poisson arrivals of 200,000 requests to ideal workers.
    #[must_use]
    pub fn new(mix: Mix, load: f64, policy: Scheduler, workers: usize) -> Self {
        Self {
            mix,
            arrivals: Arrivals::poisson(),
            load,
            flows: None,
            policy,
            shape: Shape::ideal(workers),
            requests: 200_000,
        }
    }

    /// The same with another number of requests.
    #[must_use]
    pub fn with_requests(self, requests: u64) -> Self {
        Self { requests, ..self }
    }

    /// Runs one replication. The same seed gives the same result, and the same requests whatever
    /// the policy.
    ///
    /// # Errors
    /// A parameter is out of range, or the policy breaks its contract.
    pub fn run(&self, seed: u64) -> Result<Run, SimError> {
        let mut machine = Machine::new(&self.policy, self.shape, seed)?;
        let mut drive = Drive::new(
            &self.mix,
            &self.arrivals,
            self.load,
            self.shape.workers,
            self.flows,
            self.requests,
            seed,
        )?;
        let mut tally = Tally::new(self.mix.classes().len());
        let mut span_ns = 0;
        let mut crowd = Crowd::new(drive.warm_up..drive.end);
        loop {
            let at_ns = machine.next_ns();
            let outcome = if let Some(request) = drive.due(at_ns) {
                crowd.see(request.tag, machine.len());
                machine.arrive(request.sent_ns, request)
            } else if at_ns == u64::MAX {
                break;
            } else {
                span_ns = at_ns;
                machine.step()
            };
            let (request, finish_ns) = match outcome {
                None => continue,
                Some(Outcome::Finished { request, at_ns }) => (request, Some(at_ns)),
                Some(Outcome::Refused { request }) => (request, None),
            };
            if !drive.counts(&request) {
                continue;
            }
            drive.settle();
            match finish_ns {
                Some(at_ns) => {
                    let latency_ns = at_ns - request.sent_ns;
                    tally.record(request.class, latency_ns, request.service_ns);
                }
                None => tally.refuse(),
            }
        }
        machine.check()?;
        Ok(Run {
            tally,
            events: machine.events(),
            preemptions: machine.preemptions(),
            helps: machine.helps(),
            span_ns,
            growing: crowd.growing(),
        })
    }
}

/// How many requests the counted arrivals find in the server, early and late in the run.
struct Crowd {
    early: Range<u64>,
    late: Range<u64>,
    early_sum: u64,
    late_least: usize,
}

impl Crowd {
    fn new(counted: Range<u64>) -> Self {
        let quarter = (counted.end - counted.start).div_ceil(4);
        Self {
            early: counted.start..counted.start + quarter,
            late: counted.end - quarter..counted.end,
            early_sum: 0,
            late_least: usize::MAX,
        }
    }

    #[inline]
    fn see(&mut self, tag: u64, found: usize) {
        if self.early.contains(&tag) {
            self.early_sum += found as u64;
        }
        if self.late.contains(&tag) {
            self.late_least = self.late_least.min(found);
        }
    }

    fn growing(&self) -> bool {
        let early = self.early_sum as f64 / (self.early.end - self.early.start) as f64;
        // One more may be chance where the number hardly changes at all.
        self.late_least as f64 > early + 1.0
    }
}

/// The requests of a replication: which is next, which count, and when there were enough.
pub(crate) struct Drive<'a> {
    source: Source<'a>,
    next: Request,
    warm_up: u64,
    /// The number of the first request that does not count because it comes too late.
    end: u64,
    /// The number of the first request that is not sent.
    stop: u64,
    /// Counted requests that have not ended.
    open: u64,
}

impl<'a> Drive<'a> {
    pub(crate) fn new(
        mix: &'a Mix,
        arrivals: &Arrivals,
        load: f64,
        workers: usize,
        flows: Option<u32>,
        requests: u64,
        seed: u64,
    ) -> Result<Self, SimError> {
        if requests == 0 {
            let expected = "at least one is needed";
            return Err(SimError::parameter("requests", requests, expected));
        }
        if !(load.is_finite() && load >= LEAST_LOAD) {
            let expected = "it must be finite and at least 1e-6";
            return Err(SimError::parameter("load", load, expected));
        }
        if flows == Some(0) {
            let expected = "at least one is needed";
            return Err(SimError::parameter("flows", 0, expected));
        }
        let gaps = arrivals.gaps(mix.mean_ns() / (load * workers as f64))?;
        let warm_up = requests / (WARM_UP - 1);
        let mut source = Source::new(mix, gaps, flows, seed);
        let next = source.next();
        Ok(Self {
            source,
            next,
            warm_up,
            end: warm_up + requests,
            stop: 2 * warm_up + requests,
            open: requests,
        })
    }

    /// The next request, if it is sent before the time `at_ns` of the next event.
    #[inline]
    pub(crate) fn due(&mut self, at_ns: u64) -> Option<Request> {
        let enough = self.next.tag >= self.stop || (self.open == 0 && self.next.tag >= self.end);
        if enough || self.next.sent_ns >= at_ns {
            return None;
        }
        let next = self.source.next();
        Some(std::mem::replace(&mut self.next, next))
    }

    /// When the next request is sent, in ns; `u64::MAX` if enough were.
    pub(crate) fn next_ns(&self) -> u64 {
        let enough = self.next.tag >= self.stop || (self.open == 0 && self.next.tag >= self.end);
        if enough { u64::MAX } else { self.next.sent_ns }
    }

    /// Whether this request counts.
    #[inline]
    pub(crate) fn counts(&self, request: &Request) -> bool {
        (self.warm_up..self.end).contains(&request.tag)
    }

    /// A request that counts has ended.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.open -= 1;
    }
}
