//! Whole racks, simulated: the switch's choices and what they know, by the simulator that shares
//! their names with the XDP program.
//!
//! The set-up is ours: servers of 8 workers under c-PRE-SQ with a quantum of 25 us, 90 % of the
//! requests take 50 us and 10 % take 500 us, 2.5 us from the switch to a server, and what this
//! machine's switch takes for a packet, as measured. The papers' own testbeds are not simulated.
//!
//! Every contender meets the same requests, one seed a repetition.
//!
//! Sources: Zhu et al., *RackSched*, OSDI 2020; Yassini et al., *Horus*, NSDI 2024; Wang et al.,
//! *TailGuard*, ICDCS 2023.

use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use shinjuku::policy::{Nanos, single_queue};
use shinjuku_sim::fanout::{Discipline, FanoutRun, FanoutScenario};
use shinjuku_sim::rack::{Action, BalancerSpec, Change, LoadInfo, RackRun, RackScenario};
use shinjuku_sim::{Scenario, Scheduler};
use shinjuku_workload::{Class, Mix, ServiceTime};

use crate::harness::Session;

mod report;

pub use report::{sections, targets};

/// Servers of a rack that says nothing of them.
pub const SERVERS: usize = 8;
/// Workers of a server.
pub const WORKERS: usize = 8;
/// The SLO on the 99th percentile of all requests, in microseconds.
pub const SLO_US: f64 = 1_000.0;
/// One way between switch and server without the switch, in ns.
const WIRE_NS: u64 = 2_500;
/// Clients that choose for themselves.
const CLIENTS: usize = 100;
/// Racks of racks: all servers, and racks.
const MANY: (usize, usize) = (1_000, 32);

/// What is compared with what: the parts of the report, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// More and more servers.
    ScaleOut,
    /// Ways to choose, among them one queue for all workers.
    Balancers,
    /// Ways to know the load.
    Tracking,
    /// Servers of different size.
    Heterogeneous,
    /// Load that is known late, or not at all.
    Reports,
    /// A server that fails.
    Failure,
    /// Two levels of switches.
    RacksOfRacks,
    /// Queries that fan out.
    Fanout,
}

/// A contender's latency at a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The comparison that it belongs to.
    pub part: Part,
    /// The contender's name.
    pub contender: String,
    /// The load offered, as a share of what all workers can do.
    pub load: f64,
    /// The 99th percentile in microseconds, by seed.
    pub p99_us: Vec<f64>,
    /// Requests without an answer, over all seeds.
    pub lost: u64,
}

/// The highest load that a contender carries within the SLO.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The comparison that it belongs to.
    pub part: Part,
    /// The contender's name.
    pub contender: String,
    /// Its servers.
    pub servers: usize,
    /// As a share of what all workers can do, by seed.
    pub load: Vec<f64>,
}

/// What was simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulated {
    /// Requests counted in a run.
    pub requests: u64,
    /// One way between switch and server, in ns, half of what the switch takes for a request and
    /// its reply included.
    pub network_ns: u64,
    /// Latencies.
    pub latencies: Vec<Latency>,
    /// Highest loads.
    pub limits: Vec<Limit>,
}

/// How much is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Requests counted in a run.
    pub requests: u64,
    /// Runs of a point.
    pub seeds: u64,
    /// Halvings of the range in which a highest load is sought.
    pub halvings: u32,
    /// Numbers of servers.
    pub servers: &'static [usize],
    /// Loads at which latencies are looked at.
    pub loads: &'static [f64],
}

/// Roughly what a run takes; for the progress only.
const RUN: Duration = Duration::from_millis(150);

struct Simulation<'a> {
    session: &'a mut Session,
    effort: Effort,
    seeds: Vec<u64>,
    found: Simulated,
}

/// Simulates it all; `switch_ns` is what the switch takes for a request and for its reply.
///
/// # Errors
/// It was interrupted, or a scenario is impossible.
pub fn run(session: &mut Session, effort: Effort, switch_ns: [f64; 2]) -> Result<Simulated> {
    let first = session.settings.seeds.first().copied().unwrap_or(1);
    let found = Simulated {
        requests: effort.requests,
        network_ns: WIRE_NS + (switch_ns.iter().sum::<f64>() / 2.0) as u64,
        latencies: Vec::new(),
        limits: Vec::new(),
    };
    let mut simulation = Simulation {
        session,
        effort,
        seeds: (0..effort.seeds)
            .map(|number| first.wrapping_add(number))
            .collect(),
        found,
    };
    simulation.scale_out()?;
    simulation.balancers()?;
    simulation.tracking()?;
    simulation.heterogeneous()?;
    simulation.reports()?;
    simulation.failure()?;
    simulation.racks_of_racks()?;
    simulation.fanout()?;
    Ok(simulation.found)
}

/// How many runs there are, about.
#[must_use]
pub fn expected(effort: Effort) -> Duration {
    let searches = effort.servers.len() + BALANCERS.len() + 9;
    let runs = searches * effort.halvings as usize + 50 * effort.loads.len();
    RUN * runs as u32 * effort.seeds as u32
}

const BALANCERS: [&str; 8] = [
    "random",
    "round-robin",
    "shortest",
    "power-of-1",
    "power-of-2",
    "power-of-3",
    "power-of-4",
    "jbsq-9",
];
/// RackSched's choice.
const CHOICE: &str = "power-of-2";
const COUNTERS: &str = "counters";
const ONE_TYPE: &str = "int1, all classes together";
const MORE_CHOICES: &str = "counters, power-of-4";
/// The configuration that the targets judge: the best one here, where nothing is lost. The others
/// are shown beside it.
const JUDGED: &str = MORE_CHOICES;
const CENTRAL: &str = "one queue for all";
/// Servers of different size are drawn, and their loads compared, as if they were alike.
const UNWEIGHTED: &str = ", as if alike";
const BY_CLIENTS: &str = "power-of-2 by clients";

fn mix() -> Result<Mix> {
    let short = Class::new("short", 0.9, ServiceTime::fixed(50.0)?);
    let long = Class::new("long", 0.1, ServiceTime::fixed(500.0)?);
    Ok(Mix::new(
        "90 % of 50 us, 10 % of 500 us",
        vec![short, long],
    )?)
}

fn policy() -> Scheduler {
    Scheduler::of(single_queue::REGISTERED).with_quantum(Nanos::from_micros(25))
}

fn p99_us(run: &RackRun) -> f64 {
    run.tally.all().p99_ns / 1e3
}

impl Simulation<'_> {
    fn rack(&self, servers: usize) -> Result<RackScenario> {
        Ok(RackScenario {
            network_ns: self.found.network_ns,
            requests: self.effort.requests,
            ..RackScenario::new(mix()?, 0.8, policy(), servers, WORKERS)
        })
    }

    fn with(&self, balancer: &str) -> Result<RackScenario> {
        Ok(RackScenario {
            balancer: balancer.parse()?,
            ..self.rack(SERVERS)?
        })
    }

    /// One run; tells what it is.
    fn step<T>(&mut self, what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.session.progress.detail(what);
        let result = run()?;
        self.session.progress.end(RUN);
        if self.session.stop.load(std::sync::atomic::Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(result)
    }

    /// A contender's latency at one load.
    fn latency(&mut self, part: Part, contender: &str, scenario: &RackScenario) -> Result<()> {
        self.by_seed(part, contender, scenario.load, |seed| {
            let run = scenario.run(seed)?;
            let unanswered = run.lost + run.broken + run.tally.refused();
            Ok((p99_us(&run), unanswered))
        })
    }

    /// The same, by a run that tells its p99 and how many requests were lost.
    fn by_seed(
        &mut self,
        part: Part,
        contender: &str,
        load: f64,
        run: impl Fn(u64) -> Result<(f64, u64)>,
    ) -> Result<()> {
        let (mut p99s, mut lost) = (Vec::new(), 0);
        for seed in self.seeds.clone() {
            let (p99_us, lost_now) = self.step(contender, || run(seed))?;
            p99s.push(p99_us);
            lost += lost_now;
        }
        self.found.latencies.push(Latency {
            part,
            contender: contender.to_owned(),
            load,
            p99_us: p99s,
            lost,
        });
        Ok(())
    }

    /// The same at all loads.
    fn latencies(&mut self, part: Part, contender: &str, scenario: &RackScenario) -> Result<()> {
        for &load in self.effort.loads {
            let scenario = RackScenario {
                load,
                ..scenario.clone()
            };
            self.latency(part, contender, &scenario)?;
        }
        Ok(())
    }

    /// The highest load, by bisection, at which `met` with a seed.
    fn limit(
        &mut self,
        (part, contender, servers): (Part, &str, usize),
        met: impl Fn(f64, u64) -> Result<bool>,
    ) -> Result<()> {
        let mut loads = Vec::new();
        for seed in self.seeds.clone() {
            let (mut carried, mut missed) = (0.0, 1.0);
            for _ in 0..self.effort.halvings {
                let load = f64::midpoint(carried, missed);
                match self.step(contender, || met(load, seed))? {
                    true => carried = load,
                    false => missed = load,
                }
            }
            loads.push(carried);
        }
        self.found.limits.push(Limit {
            part,
            contender: contender.to_owned(),
            servers,
            load: loads,
        });
        Ok(())
    }

    /// The same of a rack and [`SLO_US`].
    fn limit_of(&mut self, part: Part, contender: &str, scenario: &RackScenario) -> Result<()> {
        self.limit((part, contender, scenario.servers), |load, seed| {
            let scenario = RackScenario {
                load,
                ..scenario.clone()
            };
            Ok(p99_us(&scenario.run(seed)?) <= SLO_US)
        })
    }

    fn scale_out(&mut self) -> Result<()> {
        self.session.progress.begin("more servers");
        for &servers in self.effort.servers {
            // A longer run for more servers: each serves as many requests.
            let mut scenario = self.rack(servers)?;
            scenario.requests = self.effort.requests * servers as u64 / 4;
            let name = match servers {
                1 => "one server".to_owned(),
                _ => format!("{servers} servers"),
            };
            self.limit_of(Part::ScaleOut, &name, &scenario)?;
        }
        Ok(())
    }

    fn balancers(&mut self) -> Result<()> {
        self.session.progress.begin("ways to choose");
        for name in BALANCERS {
            let scenario = self.with(name)?;
            self.latencies(Part::Balancers, name, &scenario)?;
            self.limit_of(Part::Balancers, name, &scenario)?;
        }
        let by_clients = RackScenario {
            views: CLIENTS,
            ..self.rack(SERVERS)?
        };
        self.latencies(Part::Balancers, BY_CLIENTS, &by_clients)?;
        self.limit_of(Part::Balancers, BY_CLIENTS, &by_clients)?;
        self.central()
    }

    /// All workers behind one queue, as far away as the rack's.
    fn central(&mut self) -> Result<()> {
        let scenario = Scenario::new(mix()?, 0.8, policy(), SERVERS * WORKERS)
            .with_requests(self.effort.requests);
        let away_us = 2.0 * self.found.network_ns as f64 / 1e3;
        let p99_us = |load, seed| -> Result<f64> {
            let scenario = Scenario {
                load,
                ..scenario.clone()
            };
            Ok(scenario.run(seed)?.tally.all().p99_ns / 1e3 + away_us)
        };
        for &load in self.effort.loads {
            let run = |seed| Ok((p99_us(load, seed)?, 0));
            self.by_seed(Part::Balancers, CENTRAL, load, run)?;
        }
        self.limit((Part::Balancers, CENTRAL, SERVERS), |load, seed| {
            Ok(p99_us(load, seed)? <= SLO_US)
        })
    }

    fn tracking(&mut self) -> Result<()> {
        self.session.progress.begin("ways to know the load");
        for (name, load_info, one_type, balancer) in [
            ("the truth", LoadInfo::Exact, false, CHOICE),
            ("int1", LoadInfo::Int1, false, CHOICE),
            (ONE_TYPE, LoadInfo::Int1, true, CHOICE),
            ("int2", LoadInfo::Int2, false, "shortest"),
            ("int2, power-of-2", LoadInfo::Int2, false, CHOICE),
            ("int3", LoadInfo::Int3, false, CHOICE),
            (COUNTERS, LoadInfo::Counters, false, CHOICE),
            (MORE_CHOICES, LoadInfo::Counters, false, "power-of-4"),
        ] {
            let scenario = RackScenario {
                load_info,
                one_type,
                ..self.with(balancer)?
            };
            self.latencies(Part::Tracking, name, &scenario)?;
            if [ONE_TYPE, COUNTERS, MORE_CHOICES].contains(&name) {
                self.limit_of(Part::Tracking, name, &scenario)?;
            }
        }
        Ok(())
    }

    fn heterogeneous(&mut self) -> Result<()> {
        self.session.progress.begin("servers of different size");
        for (balancer, load_info, by) in [
            ("random", LoadInfo::Int1, ""),
            ("round-robin", LoadInfo::Int1, ""),
            (CHOICE, LoadInfo::Int1, ", int1"),
            ("shortest", LoadInfo::Int1, ", int1"),
            (CHOICE, LoadInfo::Counters, ", counters"),
            ("shortest", LoadInfo::Counters, ", counters"),
        ] {
            for (equal_weights, weights) in [(false, ""), (true, UNWEIGHTED)] {
                let scenario = RackScenario {
                    workers: [[4; SERVERS / 2], [12; SERVERS / 2]].concat(),
                    equal_weights,
                    load_info,
                    ..self.with(balancer)?
                };
                let name = format!("{balancer}{by}{weights}");
                self.latencies(Part::Heterogeneous, &name, &scenario)?;
            }
        }
        Ok(())
    }

    fn reports(&mut self) -> Result<()> {
        self.session.progress.begin("load known late, or never");
        for (name, delay_us, report_loss) in [
            ("as replies come", 0, 0.0),
            ("10 us later", 10, 0.0),
            ("50 us later", 50, 0.0),
            ("200 us later", 200, 0.0),
            ("1 % never", 0, 0.01),
            ("10 % never", 0, 0.1),
            ("half never", 0, 0.5),
        ] {
            let scenario = RackScenario {
                report_delay_ns: delay_us * 1_000,
                report_loss,
                ..self.rack(SERVERS)?
            };
            self.latencies(Part::Reports, name, &scenario)?;
        }
        Ok(())
    }

    fn failure(&mut self) -> Result<()> {
        self.session.progress.begin("a server that fails");
        let rack = RackScenario {
            load: 0.6,
            ..self.rack(SERVERS)?
        };
        let workers = (SERVERS * WORKERS) as f64;
        let span_ns = self.effort.requests as f64 * rack.mix.mean_ns() / (rack.load * workers);
        let change = |share: f64, action| Change {
            at_ns: (share * span_ns) as u64,
            server: 3,
            action,
        };
        for (name, detection_us) in [("known after 0.1 ms", 100), ("known after 1 ms", 1_000)] {
            let scenario = RackScenario {
                changes: vec![change(0.4, Action::Fail), change(0.7, Action::Add)],
                detection_ns: detection_us * 1_000,
                ..rack.clone()
            };
            self.latency(Part::Failure, name, &scenario)?;
        }
        self.latency(Part::Failure, "no failure", &rack)
    }

    /// With one seed: the servers are many. A hundred requests for each worker at least, or the
    /// queues would have no time to grow.
    fn racks_of_racks(&mut self) -> Result<()> {
        self.session.progress.begin("racks of racks");
        let (servers, racks) = MANY;
        let all_seeds = self.seeds.clone();
        self.seeds.truncate(1);
        for (name, balancer) in [
            ("random", BalancerSpec::Random),
            ("power-of-2 over all", BalancerSpec::PowerOf(2)),
            ("power-of-2 twice", BalancerSpec::Racks(racks)),
        ] {
            for load in [0.7, 0.9] {
                let mut scenario = RackScenario {
                    balancer,
                    load,
                    load_info: LoadInfo::Counters,
                    requests: 20 * self.effort.requests,
                    ..self.rack(servers)?
                };
                scenario.shape.capacity = 512;
                self.latency(Part::RacksOfRacks, name, &scenario)?;
            }
        }
        self.seeds = all_seeds;
        Ok(())
    }

    /// The set-up of `crates/sim/plans/fanout.toml`.
    fn fanout(&mut self) -> Result<()> {
        self.session.progress.begin("queries that fan out");
        let body = Class::new("body", 1_999.0, ServiceTime::lognormal(176.0, 18.0)?);
        let tail = Class::new("tail", 1.0, ServiceTime::fixed(475.0)?);
        let mix = Mix::new("store", vec![body, tail])?;
        let fanouts = vec![(1, 100.0), (10, 10.0), (100, 1.0)];
        let slos_us = vec![(1_000.0, 1.0), (1_500.0, 1.0)];
        let scenario = FanoutScenario {
            queries: self.effort.requests,
            ..FanoutScenario::new(mix, 100, fanouts, slos_us)
        };
        // Those that have it hardest: to all servers, within the shorter SLO.
        let hardest = scenario.fanouts.len() as u16 - 1;
        for discipline in Discipline::ALL {
            for &load in self.effort.loads {
                let scenario = FanoutScenario {
                    discipline,
                    load,
                    ..scenario.clone()
                };
                let p99_us =
                    |run: &FanoutRun| run.tally.class_quantile_ns(hardest, 0.99) as f64 / 1e3;
                let name = discipline.name();
                self.by_seed(Part::Fanout, name, load, |seed| {
                    Ok((p99_us(&scenario.run(seed)?), 0))
                })?;
            }
            self.limit((Part::Fanout, discipline.name(), 100), |load, seed| {
                let scenario = FanoutScenario {
                    discipline,
                    load: load.min(0.99),
                    ..scenario.clone()
                };
                Ok(scenario.met(&scenario.run(seed)?))
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict;

    /// Far too short for figures: that there is one for each target, and that they survive.
    #[test]
    fn a_short_run_has_a_figure_for_every_target() {
        let effort = Effort {
            requests: 400,
            seeds: 1,
            halvings: 2,
            servers: &[1, 2],
            loads: &[0.3, 0.6],
        };
        let simulated = run(&mut Session::idle(), effort, [100.0, 300.0]).unwrap();
        assert_eq!(simulated.network_ns, WIRE_NS + 200);
        for target in targets(Some(&simulated)) {
            assert!(target.measured.is_some(), "{target:?}");
        }
        let sections = sections(&simulated);
        assert!(
            sections
                .iter()
                .all(|section| !section.tables[0].rows.is_empty())
        );
        let text = serde_json::to_string(&simulated).unwrap();
        assert_eq!(serde_json::from_str::<Simulated>(&text).unwrap(), simulated);
        for target in targets(None) {
            assert_eq!(target.verdict, Verdict::NotShown);
        }
    }
}
