//! What the bench of the key-value server puts into results.json.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shinjuku_loadgen::Point;
use shinjuku_workload::repeat::Spread;

use crate::harness::Comparison;

/// What the bench of the key-value server measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The core of servers with one core.
    pub server_core: usize,
    /// The client's core.
    pub client_core: usize,
    /// The bound on GET's p99 that `WithinSlo` is about, us.
    pub slo_us: f64,
    /// What was measured.
    pub scenarios: Vec<ScenarioResults>,
}

/// A scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioResults {
    /// Its name.
    pub name: String,
    /// In words.
    pub title: String,
    /// Classes, as `shinjuku-load` reads them.
    pub requests: Vec<String>,
    /// The contenders' names.
    pub contenders: Vec<String>,
    /// What each server said of itself.
    pub descriptions: BTreeMap<String, String>,
    /// The contender by whose capacity loads are chosen.
    pub reference: String,
    /// That capacity, requests per second: unpipelined, all connections busy.
    pub capacity_rps: f64,
    /// Every repetition of every point.
    pub cells: Vec<Cell>,
    /// Ratios, with targets where there are some.
    pub comparisons: Vec<Comparison>,
    /// How far each contender keeps GET's p99 within the bound.
    pub within_slo: Vec<WithinSlo>,
}

/// One repetition of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// The contender's name.
    pub contender: String,
    /// The load that it met.
    pub kind: Kind,
    /// The seed.
    pub seed: u64,
    /// CPU time of the server (user's and system's), as a number of cores.
    pub cpu_cores: f64,
    /// What the client measured.
    pub point: Point,
}

/// The load under which a point was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Kind {
    /// All connections kept full.
    Saturation {
        /// Its name.
        name: String,
    },
    /// An open loop.
    Load {
        /// The rate as a share of the reference's capacity.
        share: f64,
    },
}

/// The highest load at which GET's p99 keeps within the bound, as do all lower ones measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithinSlo {
    /// The contender's name.
    pub contender: String,
    /// The offered load, requests per second, over repetitions; `None` if one has no such load: the
    /// lowest is above the bound, or it is not known of one whether it is.
    pub rps: Option<Spread>,
    /// Whether even the highest load measured keeps within it: then it could be more.
    pub at_the_end: bool,
}

impl ScenarioResults {
    /// The cells of a contender under `kind`, by seed.
    pub fn cells<'a>(
        &'a self,
        contender: &'a str,
        kind: &'a Kind,
    ) -> impl Iterator<Item = &'a Cell> + Clone {
        (self.cells.iter()).filter(move |cell| cell.contender == contender && cell.kind == *kind)
    }

    /// What there are cells of, loads by rising share, saturations before them.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::new();
        for cell in &self.cells {
            if !kinds.contains(&cell.kind) {
                kinds.push(cell.kind.clone());
            }
        }
        let order = |kind: &Kind| match kind {
            Kind::Saturation { .. } => 0.0,
            Kind::Load { share } => *share,
        };
        kinds.sort_by(|a, b| order(a).total_cmp(&order(b)));
        kinds
    }
}

impl Kind {
    /// The load's name in tables.
    pub fn label(&self) -> String {
        match self {
            Self::Saturation { name } => name.clone(),
            Self::Load { share } => format!("{:.0} %", share * 100.0),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A scenario of GETs alone, of which 1000 a second are the capacity.
    pub fn scenario_results(contenders: &[&str], cells: Vec<Cell>) -> ScenarioResults {
        ScenarioResults {
            name: "get-scan".to_owned(),
            title: "GET".to_owned(),
            requests: vec!["GET key:{uniform}".to_owned()],
            contenders: contenders.iter().map(|&one| one.to_owned()).collect(),
            descriptions: BTreeMap::new(),
            reference: contenders[0].to_owned(),
            capacity_rps: 1000.0,
            cells,
            comparisons: Vec::new(),
            within_slo: Vec::new(),
        }
    }

    /// One repetition with a GET p99.
    pub fn cell(contender: &str, share: f64, seed: u64, p99_us: f64) -> Cell {
        let figures = serde_json::json!({
            "due": 100, "answered": 100, "errors": 0, "lost": 0, "timed_out": 0, "unanswered": 0, "unsent": 0,
            "throughput_rps": share * 1000.0, "mean_us": 30.0, "p50_us": 30.0, "p90_us": 40.0, "p99_us": p99_us,
            "p999_us": p99_us, "max_us": p99_us, "p50_slowdown": null, "p99_slowdown": null, "p999_slowdown": null,
        });
        let point = serde_json::json!({
            "load": { "rate": share * 1000.0 }, "seed": seed, "seconds": 1.0, "offered_rps": share * 1000.0,
            "all": figures, "classes": [{ "name": "get", "figures": figures }],
            "client": { "late_share": 0.0, "late_p99_us": 0.0, "connections": 1, "refused_connections": 0,
                "lost_connections": 0, "stray_replies": 0, "malformed_replies": 0 },
            "marks": [],
        });
        Cell {
            contender: contender.to_owned(),
            kind: Kind::Load { share },
            seed,
            cpu_cores: 0.5,
            point: serde_json::from_value(point).unwrap(),
        }
    }

    #[test]
    fn results_survive_their_json() {
        let results = scenario_results(&["mq"], vec![cell("mq", 0.5, 1, 10.0)]);
        let text = serde_json::to_string(&results).unwrap();
        assert_eq!(
            serde_json::from_str::<ScenarioResults>(&text).unwrap(),
            results
        );
    }
}
