//! What a plan's file says, and what it means: every value is checked at its place in the text.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use shinjuku_policy::{ClassId, Nanos};
use shinjuku_workload::{Arrivals, Mix};
use toml::Spanned;

use super::fanout::{Fanout, FanoutSpec};
use super::many::Many;
use super::source::Source;
use super::{Plan, Point, Target, parse_share};
use crate::rack::{
    Action, BalancerSpec, Change, LoadInfo, MOST_PACKETS, MOST_ROOM, MOST_SERVERS, RackScenario,
    hosts,
};
use crate::replicate::Until;
use crate::server::Shape;
use crate::{Layout, Measure, Overheads, Scenario, Scheduler, SimError};

/// What a plan's file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    title: Option<String>,
    seed: Option<u64>,
    mix: Spanned<Many<Mix>>,
    load: Spanned<Many<f64>>,
    workers: Spanned<Many<usize>>,
    policy: Spanned<Many<String>>,
    quantum_us: Option<Spanned<Many<f64>>>,
    best_effort: Option<Spanned<Vec<String>>>,
    requests: Option<Spanned<u64>>,
    replications: Option<Spanned<u32>>,
    until_ci: Option<Spanned<String>>,
    arrivals: Option<Arrivals>,
    flows: Option<Spanned<u32>>,
    depth: Option<Spanned<usize>>,
    works_us: Option<Spanned<f64>>,
    layout: Option<Spanned<Many<String>>>,
    capacity: Option<Spanned<usize>>,
    costs: Option<Spanned<PathBuf>>,
    overheads: Option<Spanned<Overheads>>,
    rack: Option<RackSpec>,
    fanout: Option<Spanned<FanoutSpec>>,
    report: Option<ReportSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RackSpec {
    servers: Spanned<Many<usize>>,
    balancer: Option<Spanned<Many<String>>>,
    load_info: Option<Spanned<Many<LoadInfo>>>,
    one_type: Option<bool>,
    network_us: Option<Spanned<f64>>,
    loss: Option<Spanned<f64>>,
    packets: Option<Spanned<u32>>,
    packet_gap_us: Option<Spanned<f64>>,
    affinity: Option<bool>,
    detection_us: Option<Spanned<f64>>,
    changes: Option<Vec<ChangeSpec>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeSpec {
    at_us: Spanned<f64>,
    server: Spanned<usize>,
    action: Action,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportSpec {
    x: Option<Spanned<String>>,
    y: Option<Measure>,
    class: Option<Spanned<String>>,
}

/// A policy to try, with its mix.
pub(super) struct Contender<'a> {
    mix: &'a Mix,
    pub(super) name: &'a str,
    pub(super) quantum: Nanos,
    policy: Scheduler,
    label: String,
    quantum_us: f64,
}

impl Spec {
    /// The plan that this file describes; without a title it is called `name`.
    pub(super) fn plan(self, source: &Source<'_>, name: String) -> Result<Plan, SimError> {
        let points = self.points(source)?;
        let until = self.until(source)?;
        let (x, class) = match &self.report {
            Some(report) => report.check(&points, source)?,
            None => ("load".to_owned(), None),
        };
        Ok(Plan {
            title: self.title.unwrap_or(name),
            seed: self.seed.unwrap_or(1),
            until,
            points,
            x,
            y: self
                .report
                .and_then(|report| report.y)
                .unwrap_or(Measure::P99Us),
            class,
        })
    }

    fn points(&self, source: &Source<'_>) -> Result<Vec<Point>, SimError> {
        let loads = self.loads(source)?;
        let requests = match &self.requests {
            Some(requests) => source.check(requests, |n| n > 0, "it must be at least 1")?,
            None => 200_000,
        };
        if let Some(flows) = &self.flows {
            source.check(flows, |n| n > 0, "it must be at least 1")?;
        }
        let few = |n: usize| (1..=4096).contains(&n);
        let workers = source.check_all(&self.workers, few, "choose 1 to 4096 workers")?;
        let shape = self.shape(source)?;
        let layouts = self.layouts(source)?;
        let racks = match &self.rack {
            Some(rack) => rack.variants(source)?,
            None => Vec::new(),
        };
        let fanout = self.checked_fanout(source)?;
        if let Some(capacity) = &self.capacity {
            let hosts = racks.iter().map(RackVariant::hosts);
            let most = hosts
                .chain(fanout.as_ref().map(Fanout::servers))
                .max()
                .unwrap_or(1);
            let fits = |capacity| most * capacity <= MOST_ROOM;
            let expected = "servers (later ones included) times capacity must be at most 2^26";
            source.check(capacity, fits, expected)?;
        }
        let mut points = Vec::new();
        for contender in self.contenders(source)? {
            for (&workers, &layout) in each_with_each(&workers, &layouts) {
                let shape = Shape {
                    workers,
                    layout,
                    ..shape
                };
                for &load in &loads {
                    let server = Scenario {
                        arrivals: self.arrivals.clone().unwrap_or_else(Arrivals::poisson),
                        flows: self.flows.as_ref().map(|flows| *flows.get_ref()),
                        shape,
                        ..Scenario::new(
                            contender.mix.clone(),
                            load,
                            contender.policy.clone(),
                            workers,
                        )
                    }
                    .with_requests(requests);
                    let keys = vec![
                        ("mix", contender.mix.name().to_owned()),
                        ("policy", contender.label.clone()),
                        ("quantum_us", contender.quantum_us.to_string()),
                        ("workers", workers.to_string()),
                        ("layout", layout.to_string()),
                        ("load", load.to_string()),
                    ];
                    for variant in &racks {
                        points.push(variant.point(&keys, &server, self.capacity.is_some()));
                    }
                    if let Some(fanout) = &fanout {
                        let own = self.capacity.is_some();
                        let new = fanout.points(&keys, &contender, &server, own);
                        points
                            .extend(new.map_err(|error| source.error(self.policy.span(), error))?);
                    } else if racks.is_empty() {
                        points.push(Point {
                            keys,
                            target: Target::Server(Box::new(server)),
                        });
                    }
                }
            }
        }
        Ok(points)
    }

    fn checked_fanout(&self, source: &Source<'_>) -> Result<Option<Fanout>, SimError> {
        let Some(fanout) = &self.fanout else {
            return Ok(None);
        };
        if self.rack.is_some() {
            return Err(source.error(fanout.span(), "give either `fanout` or `rack`"));
        }
        fanout.get_ref().checked(source).map(Some)
    }

    fn layouts(&self, source: &Source<'_>) -> Result<Vec<Layout>, SimError> {
        let Some(names) = &self.layout else {
            return Ok(vec![Layout::Central]);
        };
        source.not_empty(names)?;
        let parsed: Result<Vec<Layout>, SimError> =
            names.get_ref().0.iter().map(|name| name.parse()).collect();
        let layouts = parsed.map_err(|error| source.error(names.span(), error))?;
        let only_central = layouts == [Layout::Central];
        if let (Some(depth), false) = (&self.depth, only_central) {
            let expected = "requests are staged in the layout `central` alone: choose 1";
            source.check(depth, |n| n == 1, expected)?;
        }
        if let (Some(works_us), false) = (&self.works_us, only_central) {
            let expected = "the layout `central` alone has a dispatcher that can work: choose 0";
            source.check(works_us, |us| us == 0.0, expected)?;
        }
        let sharing = |name: &String| matches!(&*name.to_ascii_lowercase(), "ps" | "d-ps");
        if !only_central && self.policy.get_ref().0.iter().any(sharing) {
            let what = "processor sharing has no layout: choose `central` for it";
            return Err(source.error(names.span(), what));
        }
        Ok(layouts)
    }

    fn loads(&self, source: &Source<'_>) -> Result<Vec<f64>, SimError> {
        let positive = |load: f64| load.is_finite() && load > 0.0;
        let loads = source.check_all(&self.load, positive, "a load is a share above 0")?;
        let endless = loads.iter().find(|load| **load >= 1.0);
        if let (Some(load), None) = (endless, &self.requests) {
            return Err(source.error(self.load.span(), SimError::Endless { load: *load }));
        }
        Ok(loads)
    }

    fn contenders(&self, source: &Source<'_>) -> Result<Vec<Contender<'_>>, SimError> {
        source.not_empty(&self.mix)?;
        source.not_empty(&self.policy)?;
        let all_quanta = match &self.quantum_us {
            Some(quanta) => source.check_all(
                quanta,
                |us| (0.001..=1e9).contains(&us),
                "a quantum is 0.001 to 1e9 us; for the limit of zero there is the policy PS, without one c-FCFS",
            )?,
            None => vec![5.0],
        };
        let mut contenders = Vec::new();
        for mix in &self.mix.get_ref().0 {
            for name in &self.policy.get_ref().0 {
                let named = Scheduler::named(name, mix, Nanos::MAX)
                    .map_err(|error| source.error(self.policy.span(), error))?;
                let named = self.with_best_effort(named, mix, source)?;
                if let (Some(works_us), false) = (&self.works_us, may_be_left(&named)) {
                    let expected = "a dispatcher works under policies that preempt, and without best effort: choose 0";
                    source.check(works_us, |us| us == 0.0, expected)?;
                }
                // Without a quantum every value would give the same point.
                let count = if named.preempts() {
                    all_quanta.len()
                } else {
                    1
                };
                for &quantum_us in &all_quanta[..count] {
                    let quantum = Nanos((quantum_us * 1_000.0).round() as u64);
                    let policy = named.clone().with_quantum(quantum);
                    let label = if count > 1 {
                        format!("{name}({quantum_us}us)")
                    } else {
                        name.clone()
                    };
                    contenders.push(Contender {
                        mix,
                        name,
                        quantum,
                        policy,
                        label,
                        quantum_us,
                    });
                }
            }
        }
        Ok(contenders)
    }

    /// The scheduler with the mix's classes behind it that are to be.
    fn with_best_effort(
        &self,
        scheduler: Scheduler,
        mix: &Mix,
        source: &Source<'_>,
    ) -> Result<Scheduler, SimError> {
        let Some(names) = &self.best_effort else {
            return Ok(scheduler);
        };
        if let Some(depth) = &self.depth {
            let expected =
                "best effort that is staged would be ahead of what comes later: choose 1";
            source.check(depth, |n| n == 1, expected)?;
        }
        if scheduler.is_sharing() {
            let what = "processor sharing knows no best effort: choose another policy";
            return Err(source.error(names.span(), what));
        }
        let number = |name: &String| {
            let mut classes = (0..).map(ClassId).zip(mix.classes());
            let found = classes.find(|(_, class)| class.name == *name);
            found.map(|(number, _)| number).ok_or_else(|| {
                let what = format!("mix {} has no class {name:?}", mix.name());
                source.error(names.span(), what)
            })
        };
        let classes: Result<Vec<_>, SimError> = names.get_ref().iter().map(number).collect();
        Ok(scheduler.with_best_effort(classes?))
    }

    fn until(&self, source: &Source<'_>) -> Result<Until, SimError> {
        if let Some(until) = &self.until_ci {
            if self.load.get_ref().0.iter().any(|load| *load >= 1.0) {
                let what =
                    "an overloaded server has no figures to converge to: give `replications`";
                return Err(source.error(until.span(), what));
            }
            let relative =
                parse_share(until.get_ref()).map_err(|error| source.error(until.span(), error))?;
            let measure = self.report.as_ref().and_then(|report| report.y);
            return Ok(Until::Precision {
                relative,
                measure: measure.unwrap_or(Measure::P99Us),
            });
        }
        let replications = match &self.replications {
            Some(count) => source.check(count, |n| n > 0, "it must be at least 1")?,
            None => 8,
        };
        Ok(Until::Replications(replications))
    }

    fn shape(&self, source: &Source<'_>) -> Result<Shape, SimError> {
        let mut shape = Shape::ideal(1);
        if let Some(depth) = &self.depth {
            shape.depth = source.check(depth, |n| (1..=64).contains(&n), "choose 1 to 64")?;
        }
        if let Some(works_us) = &self.works_us {
            let works_us =
                source.check(works_us, |us| (0.0..=1e6).contains(&us), "choose 0 to 1e6")?;
            shape.works_ns = (works_us * 1e3).round() as u64;
        }
        if let Some(capacity) = &self.capacity {
            let fits = |n| (1..=1 << 24).contains(&n);
            shape.capacity = source.check(capacity, fits, "choose 1 to 16777216")?;
        }
        if let Some(costs) = &self.costs {
            let beside = source.path.parent().unwrap_or(Path::new(""));
            shape.overheads = Overheads::from_results(&beside.join(costs.get_ref()))
                .map_err(|error| source.error(costs.span(), error))?;
        }
        if let Some(overheads) = &self.overheads {
            if self.costs.is_some() {
                let what = "give either `costs` or `overheads`";
                return Err(source.error(overheads.span(), what));
            }
            shape.overheads = overheads
                .get_ref()
                .checked()
                .map_err(|error| source.error(overheads.span(), error))?;
        }
        Ok(shape)
    }
}

/// Whether a dispatcher that works can leave a request to this scheduler's workers.
fn may_be_left(scheduler: &Scheduler) -> bool {
    scheduler.preempts() && !scheduler.has_best_effort()
}

/// All pairs, in the order of the first.
fn each_with_each<'a, A, B>(
    first: &'a [A],
    second: &'a [B],
) -> impl Iterator<Item = (&'a A, &'a B)> {
    first
        .iter()
        .flat_map(move |one| second.iter().map(move |other| (one, other)))
}

/// One combination of a rack's values.
struct RackVariant {
    servers: usize,
    balancer: (String, BalancerSpec),
    load_info: LoadInfo,
    shared: SharedRack,
}

/// What all combinations of a rack share.
#[derive(Clone)]
struct SharedRack {
    one_type: bool,
    network_ns: u64,
    loss: f64,
    packets: u32,
    packet_gap_ns: u64,
    affinity: bool,
    changes: Vec<Change>,
    detection_ns: u64,
}

impl RackVariant {
    /// How many servers there ever are.
    fn hosts(&self) -> usize {
        hosts(self.servers, &self.shared.changes)
    }

    /// The point of a server's keys and scenario, in this rack.
    fn point(
        &self,
        keys: &[(&'static str, String)],
        server: &Scenario,
        own_capacity: bool,
    ) -> Point {
        let (balancer_name, balancer) = &self.balancer;
        let (mix, policy) = (server.mix.clone(), server.policy.clone());
        let workers = server.shape.workers;
        let default = RackScenario::new(mix, server.load, policy, self.servers, workers);
        let mut shape = server.shape;
        if !own_capacity {
            shape.capacity = default.shape.capacity;
        }
        let shared = self.shared.clone();
        let scenario = RackScenario {
            arrivals: server.arrivals.clone(),
            flows: server.flows,
            shape,
            balancer: *balancer,
            load_info: self.load_info,
            one_type: shared.one_type,
            network_ns: shared.network_ns,
            loss: shared.loss,
            packets: shared.packets,
            packet_gap_ns: shared.packet_gap_ns,
            request_table: default.request_table.filter(|_| shared.affinity),
            changes: shared.changes,
            detection_ns: shared.detection_ns,
            requests: server.requests,
            ..default
        };
        let mut keys = keys.to_vec();
        keys.push(("servers", self.servers.to_string()));
        keys.push(("balancer", balancer_name.clone()));
        keys.push(("load_info", format!("{:?}", self.load_info)));
        Point {
            keys,
            target: Target::Rack(Box::new(scenario)),
        }
    }
}

impl RackSpec {
    fn variants(&self, source: &Source<'_>) -> Result<Vec<RackVariant>, SimError> {
        let few = |n: usize| (1..=MOST_SERVERS).contains(&n);
        let servers = source.check_all(&self.servers, few, "choose 1 to 4096 servers")?;
        let balancers = match &self.balancer {
            Some(names) => {
                source.not_empty(names)?;
                let parse = |name: &String| Ok((name.clone(), name.parse()?));
                let parsed: Result<Vec<_>, SimError> =
                    names.get_ref().0.iter().map(parse).collect();
                parsed.map_err(|error| source.error(names.span(), error))?
            }
            None => vec![("power-of-2".to_owned(), BalancerSpec::PowerOf(2))],
        };
        let infos = match &self.load_info {
            Some(infos) => {
                source.not_empty(infos)?;
                infos.get_ref().0.clone()
            }
            None => vec![LoadInfo::Int1],
        };
        let shared = self.shared(source)?;
        let holds = |(_, balancer): &(_, BalancerSpec)| matches!(balancer, BalancerSpec::Jbsq(_));
        if let Some(packets) = &self.packets
            && balancers.iter().any(holds)
        {
            let expected =
                "JBSQ holds requests in the switch, which cannot hold several packets: give 1";
            source.check(packets, |n| n == 1, expected)?;
        }
        let mut variants = Vec::new();
        for &servers in &servers {
            for balancer in &balancers {
                for &load_info in &infos {
                    variants.push(RackVariant {
                        servers,
                        balancer: balancer.clone(),
                        load_info,
                        shared: shared.clone(),
                    });
                }
            }
        }
        Ok(variants)
    }

    fn shared(&self, source: &Source<'_>) -> Result<SharedRack, SimError> {
        let loss = match &self.loss {
            Some(loss) => {
                let holds = |share: f64| (0.0..1.0).contains(&share);
                source.check(loss, holds, "it must be at least 0 and below 1")?
            }
            None => 0.0,
        };
        let packets = match &self.packets {
            Some(packets) => {
                let few = |n| (1..=MOST_PACKETS).contains(&n);
                source.check(packets, few, "choose 1 to 64")?
            }
            None => 1,
        };
        let change = |spec: &ChangeSpec| {
            let holds = |us: f64| (0.0..=1e12).contains(&us);
            let at_us = source.check(&spec.at_us, holds, "it must lie between 0 and 1e12 us")?;
            Ok(Change {
                at_ns: (at_us * 1_000.0).round() as u64,
                server: source.check(&spec.server, |n| n < MOST_SERVERS, "choose 0 to 4095")?,
                action: spec.action,
            })
        };
        let changes = self.changes.iter().flatten().map(change);
        Ok(SharedRack {
            one_type: self.one_type.unwrap_or(false),
            network_ns: source.micros(&self.network_us)?,
            loss,
            packets,
            packet_gap_ns: source.micros(&self.packet_gap_us)?,
            affinity: self.affinity.unwrap_or(true),
            changes: changes.collect::<Result<_, SimError>>()?,
            detection_ns: source.micros(&self.detection_us)?,
        })
    }
}

impl ReportSpec {
    fn check(
        &self,
        points: &[Point],
        source: &Source<'_>,
    ) -> Result<(String, Option<String>), SimError> {
        let x = match &self.x {
            None => "load".to_owned(),
            Some(x) => {
                let keys: Vec<_> = points[0].keys.iter().map(|(key, _)| *key).collect();
                if !keys.contains(&x.get_ref().as_str()) {
                    let what = format!("{:?} is no key to sweep: {}", x.get_ref(), keys.join(", "));
                    return Err(source.error(x.span(), what));
                }
                x.get_ref().clone()
            }
        };
        if let Some(class) = &self.class {
            for point in points {
                let classes = point.target.classes();
                if !classes.contains(class.get_ref()) {
                    // The mix is always the first key.
                    let (_, mix) = &point.keys[0];
                    let what = format!("mix {mix} has no such class: {}", classes.join(", "));
                    return Err(source.error(class.span(), what));
                }
            }
        }
        Ok((x, self.class.as_ref().map(|class| class.get_ref().clone())))
    }
}
