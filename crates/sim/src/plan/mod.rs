//! Plans: sweeps of scenarios as TOML. `docs/simulator.md` describes every key.
//!
//! Any of `mix`, `load`, `workers`, `layout`, `policy`, `quantum_us`, a rack's `servers`,
//! `balancer` and `load_info`, and a fan-out's `deadline` may be a list; a plan's points are all
//! their combinations.

use std::path::Path;

use crate::fanout::FanoutScenario;
use crate::rack::{Losses, RackScenario};
use crate::replicate::Until;
use crate::{Measure, Sample, Scenario, SimError};

mod fanout;
mod many;
mod source;
mod spec;

use source::Source;
use spec::Spec;

/// A checked plan.
#[derive(Debug)]
pub struct Plan {
    /// Its heading.
    pub title: String,
    /// The seed of all points: every point meets the same requests.
    pub seed: u64,
    /// How many replications a point takes.
    pub until: Until,
    /// What is to be run.
    pub points: Vec<Point>,
    /// The key whose values are the rows of the report; the other swept keys make the columns.
    pub x: String,
    /// What the report shows.
    pub y: Measure,
    /// The class that the report shows, by name; `None`: all requests.
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
    /// Servers of queries that fan out.
    Fanout(Box<FanoutScenario>),
}

impl Target {
    /// The names of the classes that results are kept by: the mix's; or the types of query.
    #[must_use]
    pub fn classes(&self) -> Vec<String> {
        let mix = match self {
            Self::Server(scenario) => &scenario.mix,
            Self::Rack(scenario) => &scenario.mix,
            Self::Fanout(scenario) => {
                let kinds = 0..scenario.kinds();
                return kinds.map(|kind| scenario.kind_name(kind)).collect();
            }
        };
        let classes = mix.classes().iter();
        classes.map(|class| class.name.clone()).collect()
    }

    /// The load that the target is offered.
    #[must_use]
    pub fn load(&self) -> f64 {
        match self {
            Self::Server(scenario) => scenario.load,
            Self::Rack(scenario) => scenario.load,
            Self::Fanout(scenario) => scenario.load,
        }
    }

    /// Runs one replication.
    ///
    /// # Errors
    /// As [`Scenario::run`], [`RackScenario::run`] and [`FanoutScenario::run`].
    pub fn run(&self, seed: u64) -> Result<Sample, SimError> {
        self.run_with_losses(seed).map(|(sample, _)| sample)
    }

    /// As [`run`](Self::run), with what a rack lost; others lose nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with_losses(&self, seed: u64) -> Result<(Sample, Losses), SimError> {
        match self {
            Self::Server(scenario) => Ok((scenario.run(seed)?.into(), Losses::default())),
            Self::Fanout(scenario) => Ok((scenario.run(seed)?.into(), Losses::default())),
            Self::Rack(scenario) => {
                let run = scenario.run(seed)?;
                let losses = run.losses();
                Ok((run.into(), losses))
            }
        }
    }
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`SimError::Read`]; or as [`parse`](Self::parse).
    pub fn read(path: &Path) -> Result<Self, SimError> {
        let text = std::fs::read_to_string(path).map_err(|cause| SimError::Read {
            path: path.to_owned(),
            cause,
        })?;
        Self::parse(&text, path)
    }

    /// Reads a plan from its text; errors name `path`, and `costs` is relative to it.
    ///
    /// # Errors
    /// [`SimError::Plan`], with line and key.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SimError> {
        let source = Source { path, text };
        let spec: Spec = toml::from_str(text)
            .map_err(|error| source.error(error.span().unwrap_or(0..0), error.message()))?;
        spec.plan(&source, path.display().to_string())
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
