//! Queries that fan out: a query is one task at each of several servers, and ends with the last
//! task.
//!
//! Every server orders its tasks by a [`Discipline`]; a query has its own SLO. A query's servers
//! are drawn without replacement; its fan-out and its SLO are drawn independently, by weight.
//!
//! The crate `shinjuku-fanout` does the same with real servers: its client computes the budgets,
//! from what it measures.
//!
//! Source: Wang et al., *TailGuard: Tail Latency SLO Guaranteed Task Scheduling for Data-Intensive
//! User-Facing Applications*, ICDCS 2023.

use std::collections::HashMap;
use std::ops::Range;

use rand::RngExt;
use shinjuku_policy::{ClassParameters, Nanos, cfcfs, edf, priority};
use shinjuku_workload::{Arrivals, Mix};

use crate::calendar::{Calendar, NEVER};
use crate::machine::Machine;
use crate::scenario::WARM_UP;
use crate::server::Shape;
use crate::source::Draws;
use crate::tally::Tally;
use crate::{Outcome, Request, Scheduler, SimError};

/// How a server orders tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// In order of arrival (FIFO).
    Fifo,
    /// Queries with the tighter SLO first (PRIQ).
    Priority,
    /// Earliest deadline first, the deadline from the query's SLO alone (T-EDFQ).
    Edf,
    /// Earliest deadline first, the deadline from SLO and fan-out (TF-EDFQ).
    TailGuard,
}

impl Discipline {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Fifo, Self::Priority, Self::Edf, Self::TailGuard];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::Priority => "PRIQ",
            Self::Edf => "T-EDFQ (plain EDF)",
            Self::TailGuard => "TailGuard (TF-EDFQ)",
        }
    }
}

/// Servers, queries, and how the servers order tasks.
#[derive(Clone, Debug)]
pub struct FanoutScenario {
    /// The tasks' service times.
    pub mix: Mix,
    /// The number of servers.
    pub servers: usize,
    /// Fan-outs and their weights.
    pub fanouts: Vec<(usize, f64)>,
    /// SLOs, in us, and their weights; the tightest first.
    pub slos_us: Vec<(f64, f64)>,
    /// The percentile that the SLOs bound, for example 0.99.
    pub percentile: f64,
    /// How tasks are ordered.
    pub discipline: Discipline,
    /// How long a task runs before it is preempted if others wait; [`Nanos::MAX`], as in the paper:
    /// to completion. Without effect under FIFO.
    pub quantum: Nanos,
    /// Each server.
    pub shape: Shape,
    /// The arrival process of queries.
    pub arrivals: Arrivals,
    /// The load of a server.
    pub load: f64,
    /// Queries to count.
    pub queries: u64,
}

/// What one replication measured. A *type* of query is a pair of SLO and fan-out.
#[derive(Clone)]
pub struct FanoutRun {
    /// The queries' latencies, by type: SLO index x number of fan-outs + fan-out index. "Service
    /// time" is the service time of the query's longest task.
    pub tally: Tally,
    /// Events simulated.
    pub events: u64,
    /// Preemptions in all servers.
    pub preemptions: u64,
}

impl From<FanoutRun> for crate::Sample {
    fn from(run: FanoutRun) -> Self {
        Self {
            tally: run.tally,
            events: run.events,
            preemptions: run.preemptions,
        }
    }
}

struct Query {
    sent_ns: u64,
    kind: u16,
    left: usize,
    longest_ns: u64,
}

impl FanoutScenario {
    /// Servers of one ideal worker, which order tasks as TailGuard does and preempt none; at a load
    /// of a half 100,000 queries, whose 99th percentile is to be within the SLO.
    #[must_use]
    pub fn new(
        mix: Mix,
        servers: usize,
        fanouts: Vec<(usize, f64)>,
        slos_us: Vec<(f64, f64)>,
    ) -> Self {
        Self {
            mix,
            servers,
            fanouts,
            slos_us,
            percentile: 0.99,
            discipline: Discipline::TailGuard,
            quantum: Nanos::MAX,
            shape: Shape {
                // Many servers share the room that one would have.
                capacity: 1 << 12,
                ..Shape::ideal(1)
            },
            arrivals: Arrivals::poisson(),
            load: 0.5,
            queries: 100_000,
        }
    }

    /// The number of types of query.
    #[must_use]
    pub fn kinds(&self) -> usize {
        self.fanouts.len() * self.slos_us.len()
    }

    /// The type that two draws, uniform from 0 to 1, select by weight: of an SLO, and of a fan-out.
    #[must_use]
    pub fn kind(&self, [slo, fanout]: [f64; 2]) -> usize {
        pick(&self.slos_us, slo) * self.fanouts.len() + pick(&self.fanouts, fanout)
    }

    /// How many servers a type of query goes to.
    ///
    /// # Panics
    /// If there is no fan-out.
    #[must_use]
    pub fn fanout(&self, kind: usize) -> usize {
        self.fanouts[kind % self.fanouts.len()].0
    }

    /// The SLO of a type of query, in ns.
    ///
    /// # Panics
    /// If there is no such type.
    #[must_use]
    pub fn slo_ns(&self, kind: usize) -> f64 {
        self.slos_us[kind / self.fanouts.len()].0 * 1_000.0
    }

    /// The name of a type of query.
    ///
    /// # Panics
    /// If there is no such type.
    #[must_use]
    pub fn kind_name(&self, kind: usize) -> String {
        let fanout = self.fanout(kind);
        let (slo_us, _) = self.slos_us[kind / self.fanouts.len()];
        format!("{slo_us}us-of-{fanout}")
    }

    fn scheduler(&self) -> Scheduler {
        let with_classes = |registered, set: &dyn Fn(usize, &mut ClassParameters)| {
            let class = |kind| {
                let mut class = ClassParameters::default();
                set(kind, &mut class);
                class
            };
            Scheduler::of(registered)
                .with_classes((0..self.kinds()).map(class).collect())
                .with_quantum(self.quantum)
        };
        match self.discipline {
            Discipline::Fifo => Scheduler::of(cfcfs::REGISTERED),
            Discipline::Priority => with_classes(priority::REGISTERED, &|kind, class| {
                class.priority = Some((kind / self.fanouts.len()) as u16);
            }),
            Discipline::Edf => with_classes(edf::REGISTERED, &|kind, class| {
                class.budget_ns = Some(self.slo_ns(kind) as i64);
            }),
            Discipline::TailGuard => {
                let unloaded = unloaded_service_ns(&self.mix, 400_000, 1);
                with_classes(edf::REGISTERED, &|kind, class| {
                    let fanout = self.fanout(kind);
                    let slo_ns = self.slo_ns(kind) as u64;
                    let budget_ns =
                        tail_guard_budget_ns(&unloaded, slo_ns, fanout, self.percentile);
                    class.budget_ns = Some(budget_ns);
                })
            }
        }
    }

    fn check(&self) -> Result<(), SimError> {
        if self.servers == 0 || self.fanouts.is_empty() || self.slos_us.is_empty() {
            let expected = "a server, a fan-out and an SLO at least are needed";
            return Err(SimError::parameter("fan-out scenario", "empty", expected));
        }
        for &(fanout, weight) in &self.fanouts {
            if fanout == 0 || fanout > self.servers || !(weight > 0.0 && weight.is_finite()) {
                let expected = "from 1 to the number of servers, with a weight above zero";
                return Err(SimError::parameter("fan-out", fanout, expected));
            }
        }
        for &(slo, weight) in &self.slos_us {
            if !(slo > 0.0 && slo.is_finite() && weight > 0.0 && weight.is_finite()) {
                let expected = "SLO and weight must be above zero";
                return Err(SimError::parameter("SLO (us)", slo, expected));
            }
        }
        if !(self.percentile > 0.0 && self.percentile < 1.0) {
            let expected = "it must lie between 0 and 1";
            return Err(SimError::parameter("percentile", self.percentile, expected));
        }
        if !(self.load > 0.0 && self.load < 1.0) {
            let expected = "it must lie between 0 and 1";
            return Err(SimError::parameter("load", self.load, expected));
        }
        if self.queries == 0 {
            let expected = "at least one is needed";
            return Err(SimError::parameter("queries", 0, expected));
        }
        Ok(())
    }

    /// Runs one replication. The same seed gives the same queries whatever the discipline. The
    /// first tenth is warm-up.
    ///
    /// # Errors
    /// A parameter is out of range, or a policy breaks its contract.
    pub fn run(&self, seed: u64) -> Result<FanoutRun, SimError> {
        self.check()?;
        let mut draws = Draws::new(seed);
        let mut gaps = self.arrivals.gaps(self.gap_ns())?;
        let mut run = Run::new(self, seed)?;
        let mut at = gaps.next_gap_ns(&mut draws.gaps);
        loop {
            let now = at.round() as u64;
            let first = run.calendar.first_ns();
            if run.issued < run.recorded.end + run.recorded.start && now < first {
                run.issue(now, &mut draws)?;
                at += gaps.next_gap_ns(&mut draws.gaps);
            } else if first == NEVER {
                break;
            } else {
                run.step();
            }
        }
        for machine in &run.machines {
            machine.check()?;
        }
        Ok(FanoutRun {
            tally: run.tally,
            events: run.events,
            preemptions: run.machines.iter().map(Machine::preemptions).sum(),
        })
    }

    /// The mean time between two queries that gives the load, in ns.
    #[must_use]
    pub fn gap_ns(&self) -> f64 {
        let total: f64 = self.fanouts.iter().map(|(_, weight)| weight).sum();
        let tasks = self
            .fanouts
            .iter()
            .map(|(fanout, weight)| *fanout as f64 * weight / total)
            .sum::<f64>();
        let workers = (self.servers * self.shape.workers) as f64;
        self.mix.mean_ns() * tasks / (self.load * workers)
    }

    /// Whether every type of query meets its SLO in this run.
    #[must_use]
    pub fn met(&self, run: &FanoutRun) -> bool {
        (0..self.kinds()).all(|kind| {
            run.tally.class_quantile_ns(kind as u16, self.percentile) as f64 <= self.slo_ns(kind)
        })
    }

    /// The highest load, within `step`, at which every type of query meets its SLO; zero if there
    /// is none. Found by bisection; all loads use the same seed.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn highest_load(&self, step: f64, seed: u64) -> Result<f64, SimError> {
        let (mut met, mut missed) = (0.0, 0.99);
        while missed - met > step {
            let load = f64::midpoint(met, missed);
            let scenario = Self {
                load,
                ..self.clone()
            };
            if scenario.met(&scenario.run(seed)?) {
                met = load;
            } else {
                missed = load;
            }
        }
        Ok(met)
    }
}

/// A replication under way.
struct Run<'a> {
    scenario: &'a FanoutScenario,
    machines: Vec<Machine>,
    calendar: Calendar,
    /// Queries that wait for tasks, by number.
    open: HashMap<u64, Query>,
    /// The servers, in an order of which each query takes the first ones.
    order: Vec<usize>,
    /// How many queries were sent.
    issued: u64,
    /// The numbers of the queries that count: as many come before them and after them, to warm up
    /// and to keep up the load.
    recorded: Range<u64>,
    events: u64,
    tally: Tally,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a FanoutScenario, seed: u64) -> Result<Self, SimError> {
        let scheduler = scenario.scheduler();
        let machine = |_| Machine::new(&scheduler, scenario.shape, seed);
        let warm_up = scenario.queries / (WARM_UP - 1);
        Ok(Self {
            scenario,
            machines: (0..scenario.servers)
                .map(machine)
                .collect::<Result<_, _>>()?,
            calendar: Calendar::new(scenario.servers),
            open: HashMap::new(),
            order: (0..scenario.servers).collect(),
            issued: 0,
            recorded: warm_up..warm_up + scenario.queries,
            events: 0,
            tally: Tally::new(scenario.kinds()),
        })
    }

    /// A query comes: its tasks go to servers chosen at random.
    fn issue(&mut self, now: u64, draws: &mut Draws) -> Result<(), SimError> {
        let Self { scenario, .. } = *self;
        let kind = scenario.kind([draws.gaps.random(), draws.gaps.random()]);
        let fanout = scenario.fanout(kind);
        let mut longest_ns = 0;
        for task in 0..fanout {
            // The first `fanout` of a random permutation (Fisher and Yates).
            let chosen = draws.gaps.random_range(task..scenario.servers);
            self.order.swap(task, chosen);
            let server = self.order[task];
            let (_, service_ns) = draws.service(&scenario.mix);
            longest_ns = longest_ns.max(service_ns);
            let request = Request {
                sent_ns: now,
                service_ns,
                flow: self.issued,
                class: kind as u16,
                tag: self.issued,
            };
            if self.machines[server].arrive(now, request).is_some() {
                let expected = "queues overflow: choose a lower load";
                return Err(SimError::parameter("load", scenario.load, expected));
            }
            self.calendar.set(server, self.machines[server].next_ns());
            self.events += 1;
        }
        let query = Query {
            sent_ns: now,
            kind: kind as u16,
            left: fanout,
            longest_ns,
        };
        self.open.insert(self.issued, query);
        self.issued += 1;
        Ok(())
    }

    /// The next event of a server. A query ends with the last of its tasks.
    fn step(&mut self) {
        let server = self.calendar.first_slot();
        let outcome = self.machines[server].step();
        self.calendar.set(server, self.machines[server].next_ns());
        self.events += 1;
        let Some(Outcome::Finished { request, at_ns }) = outcome else {
            return;
        };
        let Some(query) = self.open.get_mut(&request.tag) else {
            return;
        };
        query.left -= 1;
        if query.left == 0 {
            if self.recorded.contains(&request.tag) {
                let sojourn_ns = at_ns - query.sent_ns;
                self.tally.record(query.kind, sojourn_ns, query.longest_ns);
            }
            self.open.remove(&request.tag);
        }
    }
}

/// TailGuard's budget, in ns, for the tasks of a query that fans out to `fanout` servers and must
/// end within `slo_ns` with probability `percentile`: the SLO less the query's latency at that
/// percentile in an empty system. There the query takes as long as its longest task, so that
/// latency is the tasks' own service time at the quantile `percentile^(1 / fanout)`.
///
/// `unloaded_ns` are service times of tasks, sorted upwards.
///
/// # Panics
/// If `unloaded_ns` is empty.
#[must_use]
pub fn tail_guard_budget_ns(
    unloaded_ns: &[u64],
    slo_ns: u64,
    fanout: usize,
    percentile: f64,
) -> i64 {
    let quantile = percentile.powf(1.0 / fanout.max(1) as f64);
    let rank = (quantile * unloaded_ns.len() as f64).ceil() as usize;
    let unloaded = unloaded_ns[rank.clamp(1, unloaded_ns.len()) - 1];
    slo_ns as i64 - unloaded as i64
}

/// `count` service times of the mix, sorted upwards, from which [`tail_guard_budget_ns`] takes its
/// quantiles. For a `fanout` of k at the 99th percentile, take well over 100 k.
#[must_use]
pub fn unloaded_service_ns(mix: &Mix, count: usize, seed: u64) -> Vec<u64> {
    let mut draws = Draws::new(seed);
    let mut times: Vec<_> = (0..count).map(|_| draws.service(mix).1).collect();
    times.sort_unstable();
    times
}

/// The index of the entry that `draw`, uniform from 0 to 1, selects by weight.
fn pick<T>(entries: &[(T, f64)], draw: f64) -> usize {
    let total: f64 = entries.iter().map(|(_, weight)| weight).sum();
    let mut left = draw * total;
    for (index, (_, weight)) in entries.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return index;
        }
    }
    entries.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_query_has_less_time_left_for_waiting() {
        let times: Vec<u64> = (1..=100_000).collect();
        let budget = |fanout| tail_guard_budget_ns(&times, 150_000, fanout, 0.99);
        assert_eq!(budget(1), 150_000 - 99_000);
        // 0.99^(1/100) = 0.9998995: the 99,990th of 100,000.
        assert_eq!(budget(100), 150_000 - 99_990);
    }
}
