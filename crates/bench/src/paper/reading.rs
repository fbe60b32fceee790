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

/// Why there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("this run does not measure it")]
    NotMeasured,
    #[error(
        "measured without a value: what could not keep up, or was never within the limit, has none"
    )]
    NoValue,
}

impl Reading {
    /// The number, if the figure has it.
    ///
    /// # Errors
    /// Why the figure has none.
    pub fn of_figure(&self, figure: &Figure) -> Result<f64, Missing> {
        let line = |label: &str| {
            let found = figure.series.iter().find(|series| series.label == label);
            found.ok_or(Missing::NotMeasured)
        };
        let value = |label: &str, at: f64| {
            let point = line(label)?.points.iter().find(|point| point.x == at);
            point.ok_or(Missing::NotMeasured)?.y.ok_or(Missing::NoValue)
        };
        match self {
            Self::Value { line, at } => value(line, *at),
            Self::Ratio { over, under, at } => Ok(value(over, *at)? / value(under, *at)?),
            Self::Growth { line, from, to } => Ok(value(line, *to)? / value(line, *from)?),
            Self::Reach { over, under, limit } => {
                let (over, under) = (line(over)?, line(under)?);
                let least = || under.points.first().map(|point| point.x);
                let reach = |line: &Series| {
                    reach(line.points.iter().map(|point| (point.x, point.y)), *limit)
                };
                let over = reach(over).ok_or(Missing::NoValue)?;
                Ok(over / reach(under).or_else(least).ok_or(Missing::NoValue)?)
            }
            Self::Found(_) | Self::Rate(_) | Self::FoundRatio { .. } => Err(Missing::NotMeasured),
        }
    }

    /// The number, if the results have it.
    ///
    /// # Errors
    /// Why the results have none.
    pub fn of_results(&self, results: &Value) -> Result<f64, Missing> {
        let found = |path: &Path| {
            let all = values(results, path);
            let numbers: Vec<_> = all.iter().copied().flatten().collect();
            median(&numbers).ok_or(match all.is_empty() {
                true => Missing::NotMeasured,
                false => Missing::NoValue,
            })
        };
        match self {
            Self::Found(paths) => paths.iter().map(found).sum(),
            Self::Rate(path) => Ok(1e3 / found(path)?),
            Self::FoundRatio { over, under } => Ok(found(over)? / found(under)?),
            _ => Err(Missing::NotMeasured),
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

/// All numbers at the end of a path; `None` where the path meets null.
fn values(results: &Value, path: &[String]) -> Vec<Option<f64>> {
    let Some((step, rest)) = path.split_first() else {
        return vec![results.as_f64()];
    };
    match results {
        Value::Null => vec![None],
        Value::Array(all) => {
            let taken = all.iter().filter(|one| step == "*" || matches(one, step));
            taken.flat_map(|one| values(one, rest)).collect()
        }
        _ => results
            .get(step)
            .map_or_else(Vec::new, |one| values(one, rest)),
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

    const ABSENT: Result<f64, Missing> = Err(Missing::NotMeasured);
    const EMPTY: Result<f64, Missing> = Err(Missing::NoValue);

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
            ("reads = { value = { line = 'a', at = 20 } }", Ok(10.0)),
            ("reads = { value = { line = 'a', at = 25 } }", ABSENT),
            ("reads = { value = { line = 'c', at = 20 } }", ABSENT),
            (
                "reads = { ratio = { over = 'b', under = 'a', at = 20 } }",
                Ok(10.0),
            ),
            (
                "reads = { ratio = { over = 'b', under = 'a', at = 30 } }",
                EMPTY,
            ),
            (
                "reads = { growth = { line = 'a', from = 10, to = 30 } }",
                Ok(1000.0),
            ),
            // Within 100: a until the middle between 20 and 30, b until 20.
            (
                "reads = { reach = { over = 'a', under = 'b', limit = 100 } }",
                Ok(1.25),
            ),
            // The other is above from its first point on: at least 25 / 10.
            (
                "reads = { reach = { over = 'a', under = 'high', limit = 100 } }",
                Ok(2.5),
            ),
            (
                "reads = { reach = { over = 'b', under = 'a', limit = 0.5 } }",
                EMPTY,
            ),
        ] {
            let reading = read(reads);
            let found = reading.of_figure(&figure());
            let is_near = match (found, wanted) {
                (Ok(found), Ok(wanted)) => f64::abs(found - wanted) < 1e-9,
                (found, wanted) => found == wanted,
            };
            assert!(is_near, "{reads}: {found:?}");
            assert!(!reading.lines().is_empty());
            assert_eq!(reading.of_results(&json!({})), ABSENT);
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
                Ok(3.5),
            ),
            (
                "reads = { found = [['costs', 'signal/send'], ['costs', 'none']] }",
                ABSENT,
            ),
            (
                "reads = { found = [['delays', 'entity=process&runs.name=shared', 'runs', 'runs', '*', 'us']] }",
                Ok(6.0),
            ),
            ("reads = { found = [['runs', 'load=0.6', 'p99']] }", Ok(3.0)),
            ("reads = { found = [['runs', 'load=0.4', 'p99']] }", EMPTY),
            ("reads = { rate = ['costs', 'signal/bare'] }", Ok(500.0)),
            (
                "reads = { found_ratio = { over = ['costs', 'signal/bare'], under = ['runs', 'load=0.6', 'p99'] } }",
                Ok(2.0 / 3.0),
            ),
        ] {
            let reading = read(reads);
            assert_eq!(reading.of_results(&results), wanted, "{reads}");
            assert_eq!(reading.of_figure(&figure()), ABSENT);
        }
    }
}
