//! Where a number stands: in a simulated figure, or in a results.json.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shinjuku_plot::{Figure, Series};
use shinjuku_workload::repeat::median;

/// A way into a results.json, from the whole: a key; `*`, all of a list; or `a=x&b.c=y`, those of a
/// list whose fields have these values.
pub type Path = Vec<String>;

/// A number of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reading {
    /// A line's value.
    Value {
        /// The line, by its label.
        line: String,
        /// The x at which it is read.
        at: f64,
    },
    /// One line's value over another's.
    Ratio {
        /// Above the fraction bar.
        over: String,
        /// Below it.
        under: String,
        /// The x at which it is read.
        at: f64,
    },
    /// A line's value over its own value elsewhere.
    Growth {
        line: String,
        /// Where the value below the fraction bar stands.
        from: f64,
        /// Where the one above it stands.
        to: f64,
    },
    /// How far to the right a line stays within a limit, over how far another one does. If the
    /// latter is above it from its first point on, that point counts, and the ratio is the least
    /// that it can be.
    Reach {
        /// Above the fraction bar.
        over: String,
        /// Below it.
        under: String,
        limit: f64,
    },
    /// A sum of what stands in a results.json, of each path the median.
    Found(Vec<Path>),
    /// How many million a second there are of what takes the nanoseconds of a path.
    Rate(Path),
    /// One of them over another.
    FoundRatio {
        /// Above the fraction bar.
        over: Path,
        /// Below it.
        under: Path,
    },
}

impl Reading {
    /// The number, if the figure has it.
    pub fn of_figure(&self, figure: &Figure) -> Option<f64> {
        let line = |label: &str| figure.series.iter().find(|series| series.label == label);
        let value = |label: &str, at: f64| {
            let point = line(label)?.points.iter().find(|point| point.x == at)?;
            point.y
        };
        match self {
            Self::Value { line, at } => value(line, *at),
            Self::Ratio { over, under, at } => Some(value(over, *at)? / value(under, *at)?),
            Self::Growth { line, from, to } => Some(value(line, *to)? / value(line, *from)?),
            Self::Reach { over, under, limit } => {
                let under = line(under)?;
                let least = || under.points.first().map(|point| point.x);
                let reach = |line: &Series| {
                    reach(line.points.iter().map(|point| (point.x, point.y)), *limit)
                };
                Some(reach(line(over)?)? / reach(under).or_else(least)?)
            }
            Self::Found(_) | Self::Rate(_) | Self::FoundRatio { .. } => None,
        }
    }

    /// The number, if the results have it.
    pub fn of_results(&self, results: &Value) -> Option<f64> {
        let found = |path: &Path| median(&numbers(results, path));
        match self {
            Self::Found(paths) => paths.iter().map(found).sum(),
            Self::Rate(path) => Some(1e3 / found(path)?),
            Self::FoundRatio { over, under } => Some(found(over)? / found(under)?),
            _ => None,
        }
    }

    /// The lines of a figure that it reads.
    pub fn lines(&self) -> Vec<&str> {
        match self {
            Self::Value { line, .. } | Self::Growth { line, .. } => vec![line],
            Self::Ratio { over, under, .. } | Self::Reach { over, under, .. } => vec![over, under],
            Self::Found(_) | Self::Rate(_) | Self::FoundRatio { .. } => Vec::new(),
        }
    }
}

/// The largest x up to which points stay within `limit`, between two of them on a logarithmic
/// scale; `None` if the first is above it. A point without a value is above every limit.
pub fn reach(points: impl IntoIterator<Item = (f64, Option<f64>)>, limit: f64) -> Option<f64> {
    let mut last: Option<(f64, f64)> = None;
    for (x, y) in points {
        match (y, last) {
            (Some(y), _) if y <= limit => last = Some((x, y)),
            (Some(y), Some((from_x, from_y))) => {
                let part = (limit / from_y).ln() / (y / from_y).ln();
                return Some(from_x + part * (x - from_x));
            }
            _ => break,
        }
    }
    last.map(|(x, _)| x)
}

/// All numbers at the end of a path.
fn numbers(results: &Value, path: &[String]) -> Vec<f64> {
    let Some((step, rest)) = path.split_first() else {
        return results.as_f64().into_iter().collect();
    };
    match results {
        Value::Array(all) => {
            let taken = all.iter().filter(|one| step == "*" || matches(one, step));
            taken.flat_map(|one| numbers(one, rest)).collect()
        }
        _ => results
            .get(step)
            .map_or_else(Vec::new, |one| numbers(one, rest)),
    }
}

/// Whether fields have the values of `a=x&b.c=y`.
fn matches(one: &Value, conditions: &str) -> bool {
    conditions.split('&').all(|condition| {
        let Some((field, wanted)) = condition.split_once('=') else {
            return false;
        };
        let value = field.split('.').try_fold(one, |value, key| value.get(key));
        value.is_some_and(|value| match value.as_str() {
            Some(text) => text == wanted,
            None => value
                .as_f64()
                .is_some_and(|value| Ok(value) == wanted.parse()),
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shinjuku_plot::{Point, Style, XAxis, YAxis};

    use super::*;

    fn figure() -> Figure {
        let line = |label: &str, values: [Option<f64>; 3]| Series {
            label: label.to_owned(),
            style: Style::Floor,
            points: [10.0, 20.0, 30.0]
                .into_iter()
                .zip(values)
                .map(|(x, y)| Point { x, y, spread: None })
                .collect(),
        };
        Figure {
            name: "f".to_owned(),
            title: "t".to_owned(),
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "y".to_owned(),
            bars: "",
            series: vec![
                line("a", [Some(1.0), Some(10.0), Some(1000.0)]),
                line("b", [Some(1.0), Some(100.0), None]),
                line("high", [Some(500.0), Some(600.0), None]),
            ],
        }
    }

    fn read(toml: &str) -> Reading {
        #[derive(Deserialize)]
        struct Line {
            reads: Reading,
        }
        toml::from_str::<Line>(toml).unwrap().reads
    }

    #[test]
    fn numbers_of_a_figure() {
        for (reads, wanted) in [
            ("reads = { value = { line = 'a', at = 20 } }", Some(10.0)),
            ("reads = { value = { line = 'a', at = 25 } }", None),
            ("reads = { value = { line = 'c', at = 20 } }", None),
            (
                "reads = { ratio = { over = 'b', under = 'a', at = 20 } }",
                Some(10.0),
            ),
            (
                "reads = { ratio = { over = 'b', under = 'a', at = 30 } }",
                None,
            ),
            (
                "reads = { growth = { line = 'a', from = 10, to = 30 } }",
                Some(1000.0),
            ),
            // Within 100: a until the middle between 20 and 30, b until 20.
            (
                "reads = { reach = { over = 'a', under = 'b', limit = 100 } }",
                Some(1.25),
            ),
            // The other is above from its first point on: at least 25 / 10.
            (
                "reads = { reach = { over = 'a', under = 'high', limit = 100 } }",
                Some(2.5),
            ),
            (
                "reads = { reach = { over = 'b', under = 'a', limit = 0.5 } }",
                None,
            ),
        ] {
            let reading = read(reads);
            let found = reading.of_figure(&figure());
            let is_near = match (found, wanted) {
                (Some(found), Some(wanted)) => f64::abs(found - wanted) < 1e-9,
                (found, wanted) => found == wanted,
            };
            assert!(is_near, "{reads}: {found:?}");
            assert!(!reading.lines().is_empty());
            assert_eq!(reading.of_results(&json!({})), None);
        }
    }

    #[test]
    fn numbers_of_results() {
        let results = json!({
            "costs": { "signal/send": 1.5, "signal/bare": 2.0 },
            "delays": [
                { "entity": "process", "runs": { "name": "shared", "runs": [
                    { "us": 5.0 }, null, { "us": 7.0 }, { "us": 6.0 }
                ] } },
                { "entity": "process", "runs": { "name": "dedicated", "runs": [ { "us": 1.0 } ] } }
            ],
            "runs": [ { "load": 0.6, "p99": 3.0 }, { "load": 0.4, "p99": null } ]
        });
        for (reads, wanted) in [
            (
                "reads = { found = [['costs', 'signal/send'], ['costs', 'signal/bare']] }",
                Some(3.5),
            ),
            (
                "reads = { found = [['costs', 'signal/send'], ['costs', 'none']] }",
                None,
            ),
            (
                "reads = { found = [['delays', 'entity=process&runs.name=shared', 'runs', 'runs', '*', 'us']] }",
                Some(6.0),
            ),
            (
                "reads = { found = [['runs', 'load=0.6', 'p99']] }",
                Some(3.0),
            ),
            ("reads = { found = [['runs', 'load=0.4', 'p99']] }", None),
            ("reads = { rate = ['costs', 'signal/bare'] }", Some(500.0)),
            (
                "reads = { found_ratio = { over = ['costs', 'signal/bare'], under = ['runs', 'load=0.6', 'p99'] } }",
                Some(2.0 / 3.0),
            ),
        ] {
            let reading = read(reads);
            assert_eq!(reading.of_results(&results), wanted, "{reads}");
            assert_eq!(reading.of_figure(&figure()), None);
        }
    }
}
