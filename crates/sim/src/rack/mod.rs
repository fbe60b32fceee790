//! A rack: servers with a policy each, behind a switch that chooses a server for every request.
//!
//! ```text
//!   client --> switch: balancer, request table --network_ns--> server: its own policy
//!                 ^   what it knows of the load                    |
//!                 +------------------ reply, carrying its load ----+
//! ```
//!
//! - The switch's knowledge of the load is as stale as [`LoadInfo`] and the network make it.
//! - A request may come in several packets; a server starts it when all have arrived. With affinity
//!   the switch sends them to one server. Without, a request whose packets went to two servers is
//!   *broken*: counted, and never served.
//! - Packets and replies may be lost: no sender sends them again, and counters in the switch drift.
//! - Servers are added, removed (they serve the requests they have) and fail (their requests are
//!   lost, and the switch goes on choosing them until it hears of the failure).
//! - The switch may be out for a while: what reaches it then is lost, and afterwards it has
//!   forgotten which server has which request, and all loads.
//!
//! - The choice may be the clients' instead: then each of so many *views* knows only what its own
//!   replies told (RackSched's baseline of client-side scheduling).
//! - Servers may have different numbers of workers. Then one with twice the workers of another is
//!   drawn twice as often, and its load counts half, as in `crates/rack`; unless all are to count
//!   alike.
//!
//! Several dispatchers on one machine, each with its own workers, are a rack without a network
//! whose balancer is [`balancer::ByFlow`].
//!
//! Latency runs from the first packet's arrival at the switch to the reply's.
//!
//! Source: Zhu et al., *RackSched: A Microsecond-Scale Scheduler for Rack-Scale Computers*,
//! OSDI 2020.

use serde::{Deserialize, Serialize};
use shinjuku_workload::{Arrivals, Mix};

use crate::SimError;
use crate::replicate::Sample;
use crate::scheduler::Scheduler;
use crate::server::Shape;
use crate::tally::Tally;

mod affinity;
pub mod balancer;
mod load;
mod switch;

use balancer::Balancer;
pub use load::{LoadInfo, LoadView};

/// The most servers of a rack, the later ones included.
pub(crate) const MOST_SERVERS: usize = 4096;

/// The most clients that choose.
const MOST_VIEWS: usize = 4096;

/// The most packets of a request.
pub(crate) const MOST_PACKETS: u32 = 64;

/// The longest gap between two packets, in ns: with the most packets the clock cannot overflow.
const LONGEST_GAP_NS: u64 = 1_000_000_000_000_000;

/// The most requests that all servers together have room for: it bounds the memory of one run.
pub(crate) const MOST_ROOM: usize = 1 << 26;

/// A balancer to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerSpec {
    /// [`balancer::Random`].
    Random,
    /// [`balancer::RoundRobin`].
    RoundRobin,
    /// [`balancer::ByFlow`].
    ByFlow,
    /// [`balancer::Shortest`].
    Shortest,
    /// [`balancer::PowerOf`].
    PowerOf(usize),
    /// [`balancer::Jbsq`].
    Jbsq(u64),
    /// [`balancer::Racks`], by two choices on either level.
    Racks(usize),
}

impl BalancerSpec {
    /// Builds it.
    #[must_use]
    pub fn build(self) -> Box<dyn Balancer> {
        match self {
            Self::Random => Box::new(balancer::Random),
            Self::RoundRobin => Box::new(balancer::RoundRobin::default()),
            Self::ByFlow => Box::new(balancer::ByFlow),
            Self::Shortest => Box::new(balancer::Shortest),
            Self::PowerOf(k) => Box::new(balancer::PowerOf { k }),
            Self::Jbsq(bound) => Box::new(balancer::Jbsq { bound }),
            Self::Racks(racks) => Box::new(balancer::Racks { racks }),
        }
    }
}

impl std::str::FromStr for BalancerSpec {
    type Err = SimError;

    /// `random`, `round-robin`, `by-flow`, `shortest`, `power-of-K`, `jbsq-N` or `racks-N`.
    fn from_str(text: &str) -> Result<Self, SimError> {
        let number = |prefix: &str| {
            let digits = text.strip_prefix(prefix)?;
            digits.parse::<u64>().ok().filter(|number| *number > 0)
        };
        match text {
            "random" => return Ok(Self::Random),
            "round-robin" => return Ok(Self::RoundRobin),
            "by-flow" => return Ok(Self::ByFlow),
            "shortest" => return Ok(Self::Shortest),
            _ => {}
        }
        if let Some(k) = number("power-of-") {
            if k > MOST_SERVERS as u64 {
                let expected = "choose from at most 4096 servers";
                return Err(SimError::parameter(
                    "balancer",
                    format!("{text:?}"),
                    expected,
                ));
            }
            return Ok(Self::PowerOf(k as usize));
        }
        let racks = number("racks-").filter(|&racks| racks <= MOST_SERVERS as u64);
        let racks = racks.map(|racks| Self::Racks(racks as usize));
        number("jbsq-").map(Self::Jbsq).or(racks).ok_or_else(|| {
            let expected = "it must be random, round-robin, by-flow, shortest, power-of-K, jbsq-N or racks-N, \
                            with a number above zero";
            SimError::parameter("balancer", format!("{text:?}"), expected)
        })
    }
}

/// What happens to a server in the course of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The server comes, empty; the switch takes its load as zero.
    Add,
    /// The server gets no further requests and serves those it has.
    Remove,
    /// The server and all its requests are gone.
    Fail,
}

/// A change to the rack at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When, in ns from the start.
    pub at_ns: u64,
    /// Which server, from 0.
    pub server: usize,
    /// What happens.
    pub action: Action,
}

/// For a while the switch passes nothing, requests or replies. Then it begins anew: its request
/// table is empty, and loads count as zero until it learns them (but for [`LoadInfo::Exact`], which
/// is no knowledge of a switch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When it begins, in ns from the start.
    pub at_ns: u64,
    /// How long it lasts, in ns.
    pub for_ns: u64,
}

/// The most intervals in which answers are counted; those after them count in the last.
const MOST_INTERVALS: usize = 1 << 16;

/// A rack, its set-up and its load.
#[derive(Clone, Debug)]
pub struct RackScenario {
    /// What is asked of it.
    pub mix: Mix,
    /// The arrival process at the switch.
    pub arrivals: Arrivals,
    /// The load offered, as a share of what the workers of the servers present at the start can do.
    pub load: f64,
    /// The number of flows; `None`: every request is its own.
    pub flows: Option<u32>,
    /// Servers present at the start.
    pub servers: usize,
    /// Each server's policy.
    pub policy: Scheduler,
    /// Each server.
    pub shape: Shape,
    /// The workers of each server, from the first, where they are not as many as in `shape`.
    pub workers: Vec<usize>,
    /// Servers are drawn, and their loads compared, as if all had as many workers.
    pub equal_weights: bool,
    /// How servers are chosen.
    pub balancer: BalancerSpec,
    /// What the choice is based on.
    pub load_info: LoadInfo,
    /// Loads are of all classes together, as where they share a port of `crates/rack`: what servers
    /// with one queue for all have.
    pub one_type: bool,
    /// How many choose, each by what it has learnt itself: 1, the switch; more, clients to which
    /// the flows hash.
    pub views: usize,
    /// From a reply's arrival at the switch until the load that it carries is known, in ns.
    pub report_delay_ns: u64,
    /// The share of replies whose load is not learnt.
    pub report_loss: f64,
    /// One-way delay between switch and server, in ns.
    pub network_ns: u64,
    /// The share of packets lost between switch and server, each way.
    pub loss: f64,
    /// Packets of a request.
    pub packets: u32,
    /// Gap between two packets of a request, in ns.
    pub packet_gap_ns: u64,
    /// Stages and slots a stage of the request table; `None`: no affinity.
    pub request_table: Option<(usize, usize)>,
    /// What happens to servers, by time.
    pub changes: Vec<Change>,
    /// From a failure until the switch knows of it, in ns.
    pub detection_ns: u64,
    /// When the switch is out.
    pub outage: Option<Outage>,
    /// The intervals for which answered requests are counted, in ns; 0: they are not.
    pub interval_ns: u64,
    /// Requests to count in one replication.
    pub requests: u64,
}

/// What one replication measured.
#[derive(Clone)]
pub struct RackRun {
    /// The sojourn times of answered requests.
    pub tally: Tally,
    /// Events simulated.
    pub events: u64,
    /// Preemptions in all servers.
    pub preemptions: u64,
    /// Counted requests lost: by the network, by failed servers, or held forever because counters
    /// drifted.
    pub lost: u64,
    /// Counted requests whose packets went to different servers.
    pub broken: u64,
    /// Requests that found no slot in the request table.
    pub table_overflows: u64,
    /// Requests sent to each server.
    pub sent: Vec<u64>,
    /// Requests answered in each interval from the start, those of the warm-up included, where
    /// [`RackScenario::interval_ns`] asks for it.
    pub answered: Vec<u64>,
}

/// Requests that a rack did not answer, and requests without a slot in its table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// As in [`RackRun`].
    pub lost: u64,
    /// As in [`RackRun`].
    pub broken: u64,
    /// As in [`RackRun`].
    pub table_overflows: u64,
}

impl Losses {
    /// Whether counted requests were never answered. A request without a slot in the table may have
    /// been answered.
    #[must_use]
    pub fn any(&self) -> bool {
        self.lost > 0 || self.broken > 0
    }
}

impl std::ops::AddAssign for Losses {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.broken += other.broken;
        self.table_overflows += other.table_overflows;
    }
}

impl RackRun {
    /// What was not answered.
    #[must_use]
    pub fn losses(&self) -> Losses {
        Losses {
            lost: self.lost,
            broken: self.broken,
            table_overflows: self.table_overflows,
        }
    }
}

/// Without the [`losses`](RackRun::losses): read them first.
impl From<RackRun> for Sample {
    fn from(run: RackRun) -> Self {
        Self {
            tally: run.tally,
            events: run.events,
            preemptions: run.preemptions,
        }
    }
}

impl RackScenario {
    /// Ideal servers of this many workers, power of two choices over INT1, no network delay, one
    /// packet a request, 200,000 requests.
    #[must_use]
    pub fn new(mix: Mix, load: f64, policy: Scheduler, servers: usize, workers: usize) -> Self {
        Self {
            mix,
            arrivals: Arrivals::poisson(),
            load,
            flows: None,
            servers,
            policy,
            shape: Shape {
                // Many servers share the room that one would have.
                capacity: 1 << 13,
                ..Shape::ideal(workers)
            },
            workers: Vec::new(),
            equal_weights: false,
            balancer: BalancerSpec::PowerOf(2),
            load_info: LoadInfo::Int1,
            one_type: false,
            views: 1,
            report_delay_ns: 0,
            report_loss: 0.0,
            network_ns: 0,
            loss: 0.0,
            packets: 1,
            packet_gap_ns: 0,
            request_table: Some((3, 1 << 16)),
            changes: Vec::new(),
            detection_ns: 0,
            outage: None,
            interval_ns: 0,
            requests: 200_000,
        }
    }

    /// Runs one replication; the same seed gives the same result. Warm-up and end are as in
    /// [`crate::scenario`].
    ///
    /// # Errors
    /// A parameter is out of range, or the policy breaks its contract.
    pub fn run(&self, seed: u64) -> Result<RackRun, SimError> {
        self.check()?;
        let balancer = self.balancer.build();
        switch::Rack::new(self, balancer, seed)?.run(self, seed)
    }

    /// Runs one replication with a balancer of your own in place of `balancer`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with(&self, balancer: Box<dyn Balancer>, seed: u64) -> Result<RackRun, SimError> {
        self.check()?;
        switch::Rack::new(self, balancer, seed)?.run(self, seed)
    }

    fn check(&self) -> Result<(), SimError> {
        if !(1..=MOST_SERVERS).contains(&self.servers) {
            let expected = "choose 1 to 4096";
            return Err(SimError::parameter("servers", self.servers, expected));
        }
        if !(0.0..1.0).contains(&self.loss) {
            let expected = "it must be at least 0 and below 1";
            return Err(SimError::parameter("loss", self.loss, expected));
        }
        if !(0.0..1.0).contains(&self.report_loss) {
            let expected = "it must be at least 0 and below 1";
            return Err(SimError::parameter(
                "report_loss",
                self.report_loss,
                expected,
            ));
        }
        if !(1..=MOST_VIEWS).contains(&self.views) {
            let expected = "choose 1 to 4096";
            return Err(SimError::parameter("views", self.views, expected));
        }
        if self.views > 1 && matches!(self.balancer, BalancerSpec::Jbsq(_)) {
            let expected = "JBSQ holds requests in the switch, and clients have none";
            return Err(SimError::parameter("views", self.views, expected));
        }
        if let Some(workers) = self.workers.iter().find(|n| !(1..=4096).contains(*n)) {
            return Err(SimError::parameter("workers", workers, "choose 1 to 4096"));
        }
        if !(1..=MOST_PACKETS).contains(&self.packets) {
            let expected = "choose 1 to 64";
            return Err(SimError::parameter("packets", self.packets, expected));
        }
        if self.packets > 1 && matches!(self.balancer, BalancerSpec::Jbsq(_)) {
            let expected = "JBSQ holds requests in the switch, which cannot hold several packets";
            return Err(SimError::parameter("packets", self.packets, expected));
        }
        if self.packet_gap_ns > LONGEST_GAP_NS {
            let expected = "choose at most 1e15 ns";
            return Err(SimError::parameter(
                "packet_gap_ns",
                self.packet_gap_ns,
                expected,
            ));
        }
        if let BalancerSpec::PowerOf(k) = self.balancer
            && !(1..=MOST_SERVERS).contains(&k)
        {
            let expected = "choose from 1 to 4096 servers";
            return Err(SimError::parameter("power-of", k, expected));
        }
        let outside = |change: &&Change| change.server >= MOST_SERVERS;
        if let Some(change) = self.changes.iter().find(outside) {
            let expected = "choose 0 to 4095";
            return Err(SimError::parameter(
                "server of a change",
                change.server,
                expected,
            ));
        }
        let room = self.shape.capacity.saturating_mul(self.hosts());
        if room > MOST_ROOM {
            let expected = "choose at most 2^26";
            return Err(SimError::parameter("servers x capacity", room, expected));
        }
        Ok(())
    }

    /// The workers of a server.
    fn workers_of(&self, server: usize) -> usize {
        let own = self.workers.get(server);
        own.copied().unwrap_or(self.shape.workers)
    }

    /// A server.
    fn shape_of(&self, server: usize) -> Shape {
        Shape {
            workers: self.workers_of(server),
            ..self.shape
        }
    }

    /// How many servers there ever are, counting up to the last that is added.
    fn hosts(&self) -> usize {
        hosts(self.servers, &self.changes)
    }
}

/// How many servers a rack needs that starts with `servers`, up to the last that a change names.
pub(crate) fn hosts(servers: usize, changes: &[Change]) -> usize {
    let named = changes.iter().map(|change| change.server.saturating_add(1));
    named.max().unwrap_or(0).max(servers)
}
