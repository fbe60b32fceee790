//! Plans: sweeps of scenarios as TOML. `docs/simulator.md` describes every key.
//!
//! Any of `mix`, `load`, `workers`, `policy`, `quantum_us`, and a rack's `servers`, `balancer` and `load_info` may be a
//! list; a plan's points are all their combinations.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use shinjuku_policy::Nanos;
use shinjuku_workload::{Arrivals, Mix};
use toml::Spanned;

use crate::rack::{BalancerSpec, Change, LoadInfo, RackScenario};
use crate::replicate::Until;
use crate::server::Shape;
use crate::{Measure, Overheads, PolicySpec, Sample, Scenario, SimError};

mod many;

use many::Many;

/// What a plan's file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    title: Option<String>,
    seed: Option<u64>,
    mix: Spanned<Many<Mix>>,
    load: Spanned<Many<f64>>,
    workers: Spanned<Many<usize>>,
    policy: Spanned<Many<String>>,
    quantum_us: Option<Spanned<Many<f64>>>,
    requests: Option<Spanned<u64>>,
    replications: Option<Spanned<u32>>,
    until_ci: Option<Spanned<String>>,
    arrivals: Option<Arrivals>,
    flows: Option<Spanned<u32>>,
    depth: Option<Spanned<usize>>,
    capacity: Option<Spanned<usize>>,
    costs: Option<Spanned<PathBuf>>,
    overheads: Option<Spanned<Overheads>>,
    rack: Option<RackSpec>,
    report: Option<ReportSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RackSpec {
    servers: Spanned<Many<usize>>,
    balancer: Option<Spanned<Many<String>>>,
    load_info: Option<Spanned<Many<LoadInfo>>>,
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
    server: usize,
    action: crate::rack::Action,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportSpec {
    x: Option<Spanned<String>>,
    y: Option<Measure>,
    class: Option<Spanned<String>>,
}

/// A plan, checked.
#[derive(Debug)]
pub struct Plan {
    /// Its heading.
    pub title: String,
    /// The seed of all points: they meet the same requests.
    pub seed: u64,
    /// How many replications a point takes.
    pub until: Until,
    /// What is to be run.
    pub points: Vec<Point>,
    /// The key whose values are the rows of the report; the other swept keys make the columns.
    pub x: String,
    /// What the report shows.
    pub y: Measure,
    /// The class that it shows, by name; all requests without one.
    pub class: Option<String>,
}

/// One combination of a plan's values.
#[derive(Debug)]
pub struct Point {
    /// The swept keys and their values here.
    pub keys: Vec<(&'static str, String)>,
    /// What is run.
    pub target: Target,
}

/// What a point runs.
#[derive(Debug)]
pub enum Target {
    /// A server.
    Server(Box<Scenario>),
    /// A rack.
    Rack(Box<RackScenario>),
}

impl Target {
    /// The mix that it is asked to serve.
    #[must_use]
    pub fn mix(&self) -> &Mix {
        match self {
            Self::Server(scenario) => &scenario.mix,
            Self::Rack(scenario) => &scenario.mix,
        }
    }

    /// Runs one replication.
    ///
    /// # Errors
    /// As [`Scenario::run`] and [`RackScenario::run`].
    pub fn run(&self, seed: u64) -> Result<Sample, SimError> {
        match self {
            Self::Server(scenario) => scenario.run(seed).map(Sample::from),
            Self::Rack(scenario) => scenario.run(seed).map(Sample::from),
        }
    }
}

/// A plan's text, to say where in it something is wrong.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// An error at a place of the text.
    fn error(&self, span: Range<usize>, what: impl ToString) -> SimError {
        let start = span.start.min(self.text.len());
        let before = &self.text[..start];
        let line = before.matches('\n').count() + 1;
        SimError::Plan {
            path: self.path.to_owned(),
            line,
            key: self.key(start),
            what: what.to_string(),
        }
    }

    /// The key whose value (or which itself) is at `start`: what stands before the last `=` up to there, or else the
    /// line.
    fn key(&self, start: usize) -> String {
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..]
            .find('\n')
            .map_or(self.text.len(), |at| start + at);
        let line = &self.text[line_start..line_end];
        let before = &self.text[..start];
        let assignment = if line.contains('=') {
            line
        } else {
            // Inside a list over several lines: its key is further up.
            before.rfind('=').map_or(line, |at| {
                let from = before[..at].rfind('\n').map_or(0, |at| at + 1);
                &before[from..=at]
            })
        };
        let key = assignment.split('=').next().unwrap_or(assignment);
        key.trim().trim_matches(['[', ']', '"']).to_owned()
    }

    /// The value, if it holds.
    fn check<T: Copy + ToString>(
        &self,
        value: &Spanned<T>,
        holds: impl Fn(T) -> bool,
        expected: &str,
    ) -> Result<T, SimError> {
        let given = *value.get_ref();
        if holds(given) {
            return Ok(given);
        }
        Err(self.error(
            value.span(),
            format!("it is {}: {expected}", given.to_string()),
        ))
    }

    /// The values, if there are any and all hold.
    fn check_all<T: Copy + ToString>(
        &self,
        values: &Spanned<Many<T>>,
        holds: impl Fn(T) -> bool,
        expected: &str,
    ) -> Result<Vec<T>, SimError> {
        self.not_empty(values)?;
        for value in &values.get_ref().0 {
            if !holds(*value) {
                let what = format!("it is {}: {expected}", value.to_string());
                return Err(self.error(values.span(), what));
            }
        }
        Ok(values.get_ref().0.clone())
    }

    fn not_empty<T>(&self, values: &Spanned<Many<T>>) -> Result<(), SimError> {
        if values.get_ref().0.is_empty() {
            return Err(self.error(values.span(), "the list is empty: give at least one value"));
        }
        Ok(())
    }

    /// Microseconds, zero or more, in ns.
    fn micros(&self, value: &Option<Spanned<f64>>) -> Result<u64, SimError> {
        let Some(value) = value else { return Ok(0) };
        let holds = |us: f64| (0.0..=1e12).contains(&us);
        let us = self.check(value, holds, "it must lie between 0 and 1e12 us")?;
        Ok((us * 1_000.0).round() as u64)
    }
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`SimError::Read`]; or as [`parse`](Self::parse).
    pub fn read(path: &Path) -> Result<Self, SimError> {
        let text = std::fs::read_to_string(path).map_err(|source| SimError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Reads a plan from its text; `path` is what errors name, and what `costs` is relative to.
    ///
    /// # Errors
    /// [`SimError::Plan`], with line and key.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SimError> {
        let source = Source { path, text };
        let spec: Spec = toml::from_str(text)
            .map_err(|error| source.error(error.span().unwrap_or(0..0), error.message()))?;
        source.not_empty(&spec.mix)?;
        source.not_empty(&spec.policy)?;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let loads = source.check_all(&spec.load, positive, "a load is a share above 0")?;
        let endless = loads.iter().find(|load| **load >= 1.0);
        if let (Some(load), None) = (endless, &spec.requests) {
            return Err(source.error(spec.load.span(), SimError::Endless { load: *load }));
        }
        let at_least_one = "it must be at least 1";
        let requests = match &spec.requests {
            Some(requests) => source.check(requests, |n| n > 0, at_least_one)?,
            None => 200_000,
        };
        let workers = source.check_all(
            &spec.workers,
            |n| (1..=4096).contains(&n),
            "choose 1 to 4096 workers",
        )?;
        let quanta = match &spec.quantum_us {
            Some(quanta) => source.check_all(
                quanta,
                |us| us.is_finite() && us >= 0.001,
                "a quantum is at least 0.001 us; for the limit of zero there is the policy PS",
            )?,
            None => vec![5.0],
        };
        let until = spec.until(&source, loads.iter().any(|load| *load >= 1.0))?;
        let shape = spec.shape(&source)?;
        if let Some(flows) = &spec.flows {
            source.check(flows, |n| n > 0, at_least_one)?;
        }
        let rack = spec.rack.as_ref();
        let servers = match rack {
            Some(rack) => source.check_all(
                &rack.servers,
                |n| (1..=4096).contains(&n),
                "choose 1 to 4096 servers",
            )?,
            None => vec![0],
        };
        let balancers = match rack.and_then(|rack| rack.balancer.as_ref()) {
            Some(names) => {
                source.not_empty(names)?;
                let parse = |name: &String| Ok((name.clone(), name.parse()?));
                let parsed: Result<Vec<_>, SimError> =
                    names.get_ref().0.iter().map(parse).collect();
                parsed.map_err(|error| source.error(names.span(), error))?
            }
            None => vec![("power-of-2".to_owned(), BalancerSpec::PowerOf(2))],
        };
        let infos = match rack.and_then(|rack| rack.load_info.as_ref()) {
            Some(infos) => source.check_all_infos(infos)?,
            None => vec![LoadInfo::Int1],
        };

        let mut points = Vec::new();
        for mix in &spec.mix.get_ref().0 {
            for name in &spec.policy.get_ref().0 {
                let has_quantum = name.to_ascii_lowercase().starts_with("c-pre");
                let quanta = if has_quantum {
                    &quanta[..]
                } else {
                    &quanta[..1]
                };
                for &quantum_us in quanta {
                    let quantum = Nanos((quantum_us * 1_000.0).round() as u64);
                    let policy = PolicySpec::named(name, mix, quantum)
                        .map_err(|error| source.error(spec.policy.span(), error))?;
                    let label = if has_quantum && quanta.len() > 1 {
                        format!("{name}({quantum_us}us)")
                    } else {
                        name.clone()
                    };
                    for &workers in &workers {
                        for &servers in &servers {
                            for (balancer_name, balancer) in &balancers {
                                for &info in &infos {
                                    for &load in &loads {
                                        let mut keys = vec![
                                            ("mix", mix.name().to_owned()),
                                            ("policy", label.clone()),
                                            ("quantum_us", quantum_us.to_string()),
                                            ("workers", workers.to_string()),
                                        ];
                                        if rack.is_some() {
                                            keys.push(("servers", servers.to_string()));
                                            keys.push(("balancer", balancer_name.clone()));
                                            keys.push(("load_info", format!("{info:?}")));
                                        }
                                        keys.push(("load", load.to_string()));
                                        let shape = Shape { workers, ..shape };
                                        let target = match rack {
                                            None => Target::Server(Box::new(Scenario {
                                                arrivals: spec.arrivals(),
                                                flows: spec.flows.as_ref().map(|n| *n.get_ref()),
                                                shape,
                                                ..Scenario::new(
                                                    mix.clone(),
                                                    load,
                                                    policy.clone(),
                                                    workers,
                                                )
                                                .with_requests(requests)
                                            })),
                                            Some(rack) => {
                                                let scenario = RackScenario::new(
                                                    mix.clone(),
                                                    load,
                                                    policy.clone(),
                                                    servers,
                                                    workers,
                                                );
                                                let capacity = spec
                                                    .capacity
                                                    .as_ref()
                                                    .map_or(scenario.shape.capacity, |n| {
                                                        *n.get_ref()
                                                    });
                                                let scenario = RackScenario {
                                                    arrivals: spec.arrivals(),
                                                    shape: Shape { capacity, ..shape },
                                                    balancer: *balancer,
                                                    load_info: info,
                                                    requests,
                                                    ..scenario
                                                };
                                                Target::Rack(Box::new(
                                                    rack.apply(scenario, &source)?,
                                                ))
                                            }
                                        };
                                        points.push(Point { keys, target });
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        let report = spec.report;
        let (x, class) = match &report {
            Some(report) => report.check(&points, &source)?,
            None => ("load".to_owned(), None),
        };
        Ok(Self {
            title: spec.title.unwrap_or_else(|| path.display().to_string()),
            seed: spec.seed.unwrap_or(1),
            until,
            points,
            x,
            y: report.and_then(|report| report.y).unwrap_or(Measure::P99Us),
            class,
        })
    }
}

impl Source<'_> {
    fn check_all_infos(&self, infos: &Spanned<Many<LoadInfo>>) -> Result<Vec<LoadInfo>, SimError> {
        self.not_empty(infos)?;
        Ok(infos.get_ref().0.clone())
    }
}

impl Spec {
    fn arrivals(&self) -> Arrivals {
        self.arrivals.clone().unwrap_or_else(Arrivals::poisson)
    }

    fn until(&self, source: &Source<'_>, overloaded: bool) -> Result<Until, SimError> {
        if let Some(until) = &self.until_ci {
            if overloaded {
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

impl RackSpec {
    fn apply(&self, scenario: RackScenario, source: &Source<'_>) -> Result<RackScenario, SimError> {
        let loss = match &self.loss {
            Some(loss) => source.check(
                loss,
                |share| (0.0..1.0).contains(&share),
                "it must be at least 0 and below 1",
            )?,
            None => 0.0,
        };
        let packets = match &self.packets {
            Some(packets) => source.check(packets, |n| n > 0, "it must be at least 1")?,
            None => 1,
        };
        let change = |spec: &ChangeSpec| {
            let holds = |us: f64| (0.0..=1e12).contains(&us);
            let at_us = source.check(&spec.at_us, holds, "it must lie between 0 and 1e12 us")?;
            Ok(Change {
                at_ns: (at_us * 1_000.0).round() as u64,
                server: spec.server,
                action: spec.action,
            })
        };
        let changes = self.changes.iter().flatten().map(change);
        let table = scenario.request_table;
        Ok(RackScenario {
            network_ns: source.micros(&self.network_us)?,
            loss,
            packets,
            packet_gap_ns: source.micros(&self.packet_gap_us)?,
            request_table: table.filter(|_| self.affinity.unwrap_or(true)),
            changes: changes.collect::<Result<_, SimError>>()?,
            detection_ns: source.micros(&self.detection_us)?,
            ..scenario
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
                let mix = point.target.mix();
                if !mix
                    .classes()
                    .iter()
                    .any(|each| each.name == *class.get_ref())
                {
                    let names: Vec<_> = mix.classes().iter().map(|c| c.name.as_str()).collect();
                    let what =
                        format!("mix {} has no such class: {}", mix.name(), names.join(", "));
                    return Err(source.error(class.span(), what));
                }
            }
        }
        Ok((x, self.class.as_ref().map(|class| class.get_ref().clone())))
    }
}

/// A share, as `0.02` or `2%`.
///
/// # Errors
/// [`SimError::Parameter`] if it is neither, or not above zero.
pub fn parse_share(text: &str) -> Result<f64, SimError> {
    let trimmed = text.trim();
    let parsed = match trimmed.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|percent: f64| percent / 100.0),
        None => trimmed.parse(),
    };
    parsed
        .ok()
        .filter(|share: &f64| share.is_finite() && *share > 0.0)
        .ok_or_else(|| {
            let expected = "it must be a share above zero, like 0.02 or 2%";
            SimError::parameter("until-ci", format!("{text:?}"), expected)
        })
}
