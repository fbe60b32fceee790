//! A plan's table `fanout`: queries that go to several servers.
//!
//! The policy is the servers', as elsewhere in a plan; `deadline` is what the client makes the
//! deadlines of. Together they are the disciplines of TailGuard's comparison.

use serde::Deserialize;
use toml::Spanned;

use super::many::Many;
use super::source::Source;
use super::spec::Contender;
use super::{Point, Target};
use crate::fanout::{Discipline, FanoutScenario};
use crate::rack::MOST_SERVERS;
use crate::{Scenario, SimError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FanoutSpec {
    servers: Spanned<usize>,
    fanouts: Spanned<Vec<WidthSpec>>,
    slos: Spanned<Vec<SloSpec>>,
    percentile: Option<Spanned<f64>>,
    deadline: Option<Spanned<Many<DeadlineSpec>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WidthSpec {
    servers: usize,
    weight: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SloSpec {
    us: f64,
    weight: f64,
}

/// As in `shinjuku_fanout::Deadline`.
#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DeadlineSpec {
    Slo,
    SloAndFanout,
}

/// A checked table.
pub(super) struct Fanout {
    servers: usize,
    fanouts: Vec<(usize, f64)>,
    slos_us: Vec<(f64, f64)>,
    percentile: f64,
    deadlines: Vec<DeadlineSpec>,
}

impl FanoutSpec {
    pub(super) fn checked(&self, source: &Source<'_>) -> Result<Fanout, SimError> {
        let few = |n: usize| (1..=MOST_SERVERS).contains(&n);
        let servers = source.check(&self.servers, few, "choose 1 to 4096 servers")?;
        let weighs = |weight: f64| weight > 0.0 && weight.is_finite();
        let fanouts = self.fanouts.get_ref();
        let fits = |one: &WidthSpec| (1..=servers).contains(&one.servers) && weighs(one.weight);
        if fanouts.is_empty() || !fanouts.iter().all(fits) {
            let what = "give fan-outs of 1 to `servers`, with weights above zero";
            return Err(source.error(self.fanouts.span(), what));
        }
        let slos = self.slos.get_ref();
        let fits = |one: &SloSpec| one.us > 0.0 && one.us.is_finite() && weighs(one.weight);
        if slos.is_empty() || !slos.iter().all(fits) || !slos.is_sorted_by_key(|one| one.us) {
            let what = "give SLOs above zero, the tightest first, with weights above zero";
            return Err(source.error(self.slos.span(), what));
        }
        let percentile = match &self.percentile {
            Some(share) => {
                let holds = |share: f64| share > 0.0 && share < 1.0;
                source.check(share, holds, "it must lie between 0 and 1")?
            }
            None => 0.99,
        };
        let deadlines = match &self.deadline {
            Some(deadlines) => {
                source.not_empty(deadlines)?;
                deadlines.get_ref().0.clone()
            }
            None => vec![DeadlineSpec::SloAndFanout],
        };
        Ok(Fanout {
            servers,
            fanouts: fanouts
                .iter()
                .map(|one| (one.servers, one.weight))
                .collect(),
            slos_us: slos.iter().map(|one| (one.us, one.weight)).collect(),
            percentile,
            deadlines,
        })
    }
}

impl Fanout {
    pub(super) fn servers(&self) -> usize {
        self.servers
    }

    /// The points of a server's keys and scenario: one for each kind of deadline, if the policy
    /// goes by them.
    ///
    /// # Errors
    /// The policy is none of TailGuard's comparison.
    pub(super) fn points(
        &self,
        keys: &[(&'static str, String)],
        contender: &Contender<'_>,
        server: &Scenario,
        own_capacity: bool,
    ) -> Result<Vec<Point>, SimError> {
        let by_deadline = |deadline: &DeadlineSpec| match deadline {
            DeadlineSpec::Slo => (Discipline::Edf, "slo"),
            DeadlineSpec::SloAndFanout => (Discipline::TailGuard, "slo-and-fanout"),
        };
        let disciplines = match contender.name.to_ascii_lowercase().as_str() {
            "c-fcfs" => vec![(Discipline::Fifo, "none")],
            "priority" => vec![(Discipline::Priority, "none")],
            "edf" => self.deadlines.iter().map(by_deadline).collect(),
            _ => {
                let expected = "queries that fan out take c-FCFS, priority or edf";
                return Err(SimError::parameter("policy", contender.name, expected));
            }
        };
        let point = |(discipline, deadline): (Discipline, &str)| {
            let (fanouts, slos_us) = (self.fanouts.clone(), self.slos_us.clone());
            let default = FanoutScenario::new(server.mix.clone(), self.servers, fanouts, slos_us);
            let mut shape = server.shape;
            if !own_capacity {
                shape.capacity = default.shape.capacity;
            }
            let scenario = FanoutScenario {
                percentile: self.percentile,
                discipline,
                quantum: contender.quantum,
                shape,
                arrivals: server.arrivals.clone(),
                load: server.load,
                queries: server.requests,
                ..default
            };
            let mut keys = keys.to_vec();
            keys.push(("servers", self.servers.to_string()));
            keys.push(("deadline", deadline.to_owned()));
            Point {
                keys,
                target: Target::Fanout(Box::new(scenario)),
            }
        };
        Ok(disciplines.into_iter().map(point).collect())
    }
}
