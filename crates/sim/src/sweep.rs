//! Runs a plan and presents its results.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use crate::plan::{Plan, Point};
use crate::rack::Losses;
use crate::replicate::{Replicated, Until, replicate};
use crate::{Estimate, Figures, Measure, SimError};

/// A point and its result.
pub struct Measured<'a> {
    /// The point.
    pub point: &'a Point,
    /// Its result.
    pub result: Replicated,
    /// What a rack lost, over all replications.
    pub losses: Losses,
    /// What ended the replications.
    pub until: Until,
}

/// A sweep's progress.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Points done.
    pub points: usize,
    /// Points in all.
    pub of: usize,
    /// Replications of the current point done.
    pub replications: u32,
    /// Replications of it expected.
    pub expected: u32,
}

/// Runs all points of the plan. `until`, if given, replaces the plan's own.
///
/// # Errors
/// [`SimError::Parameter`] if an overloaded point were to run until a precision; or as
/// [`replicate`].
pub fn run<'a>(
    plan: &'a Plan,
    until: Option<Until>,
    mut progress: impl FnMut(Progress),
) -> Result<Vec<Measured<'a>>, SimError> {
    let until = until.unwrap_or(plan.until);
    let overloaded = plan.points.iter().find(|point| point.target.load() >= 1.0);
    if let (Until::Precision { .. }, Some(point)) = (until, overloaded) {
        let value = format!("asked for at load {}", point.target.load());
        let expected = "an overloaded server has no figures to converge to: give `replications`";
        return Err(SimError::parameter("until-ci", value, expected));
    }
    let of = plan.points.len();
    let points = plan.points.iter().enumerate().map(|(points, point)| {
        let losses = Mutex::new(Losses::default());
        let result = replicate(
            |seed| {
                let (sample, lost) = point.target.run_with_losses(seed)?;
                *losses.lock().unwrap_or_else(PoisonError::into_inner) += lost;
                Ok(sample)
            },
            plan.seed,
            until,
            |replications, expected| {
                progress(Progress {
                    points,
                    of,
                    replications,
                    expected,
                });
            },
        )?;
        let losses = losses.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Measured {
            point,
            result,
            losses,
            until,
        })
    });
    points.collect()
}

impl Measured<'_> {
    /// The class of that name.
    fn class(&self, name: Option<&str>) -> Option<u16> {
        let classes = self.point.target.classes();
        let index = classes
            .iter()
            .position(|class| Some(class.as_str()) == name)?;
        Some(index as u16)
    }

    fn key(&self, name: &str) -> &str {
        let found = self.point.keys.iter().find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    /// The measure in each replication; `None` where no request finished.
    fn values(&self, measure: Measure, class: Option<u16>) -> Vec<Option<f64>> {
        let of = |figures: &Figures| (figures.requests > 0).then(|| measure.of(figures));
        match class {
            None => self.result.all.iter().map(of).collect(),
            Some(class) => {
                let classes = self.result.classes.iter();
                classes.map(|all| of(&all[usize::from(class)])).collect()
            }
        }
    }

    /// Over the replications in which requests finished, if any.
    fn estimate(&self, measure: Measure, class: Option<u16>) -> Option<Estimate> {
        let values: Vec<_> = self.values(measure, class).into_iter().flatten().collect();
        (!values.is_empty()).then(|| Estimate::of(&values))
    }

    /// The warnings that belong to a figure.
    fn remarks(&self) -> &'static str {
        match (self.result.refused > 0, self.losses.any()) {
            (false, false) => "",
            (true, false) => " (refusals)",
            (false, true) => " (losses)",
            (true, true) => " (refusals, losses)",
        }
    }

    /// The values of the keys that vary over the plan, but for the one on the x axis.
    fn series(&self, plan: &Plan) -> String {
        let varies = |key: &str, value: &str| {
            let differs = |point: &Point| point.keys.iter().any(|(k, v)| *k == key && v != value);
            // The quantum is part of the policy's name.
            key != plan.x && key != "quantum_us" && plan.points.iter().any(differs)
        };
        let keys = self.point.keys.iter();
        let parts: Vec<_> = keys
            .filter(|(key, value)| varies(key, value))
            .map(|(_, value)| value.as_str())
            .collect();
        let name = if parts.is_empty() {
            self.key("policy").to_owned()
        } else {
            parts.join(" ")
        };
        if plan.x == "quantum_us" {
            // The axis shows it already.
            return name.split('(').next().unwrap_or(&name).to_owned();
        }
        name
    }
}

/// Shown instead of figures for a point at which no request finished.
const NOTHING: &str = "none finished";

/// A table: a row for every x, a column for everything else that varies.
#[must_use]
pub fn table(plan: &Plan, measured: &[Measured<'_>]) -> String {
    let mut columns: Vec<String> = Vec::new();
    let mut rows: Vec<(String, Vec<(usize, String)>)> = Vec::new();
    for each in measured {
        let series = each.series(plan);
        let column = columns
            .iter()
            .position(|c| *c == series)
            .unwrap_or_else(|| {
                columns.push(series);
                columns.len() - 1
            });
        let x = each.key(&plan.x);
        let row = rows
            .iter()
            .position(|(row, _)| row == x)
            .unwrap_or_else(|| {
                rows.push((x.to_owned(), Vec::new()));
                rows.len() - 1
            });
        let class = each.class(plan.class.as_deref());
        let mut cell = each
            .estimate(plan.y, class)
            .map_or_else(|| NOTHING.to_owned(), |figure| format!("{figure:.2}"));
        cell.push_str(each.remarks());
        rows[row].1.push((column, cell));
    }
    let of = plan.class.as_deref().unwrap_or("all");
    let mut text = format!("{}\n{} of {of} requests\n\n", plan.title, plan.y.name());
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| {
            let cells = rows.iter().flat_map(|(_, cells)| cells);
            let cells = cells.filter(|(at, _)| *at == column);
            let widest = cells.map(|(_, cell)| cell.chars().count()).max();
            widest.unwrap_or(0).max(columns[column].chars().count())
        })
        .collect();
    let first = rows
        .iter()
        .map(|(x, _)| x.len())
        .max()
        .unwrap_or(0)
        .max(plan.x.len());
    let _ = write!(text, "{:>first$}", plan.x);
    for (column, width) in columns.iter().zip(&widths) {
        let _ = write!(text, "  {column:>width$}");
    }
    text.push('\n');
    for (x, cells) in &rows {
        let _ = write!(text, "{x:>first$}");
        for (column, width) in widths.iter().enumerate() {
            let cell = cells.iter().find(|(at, _)| *at == column);
            let _ = write!(text, "  {:>width$}", cell.map_or("", |(_, cell)| cell));
        }
        text.push('\n');
    }
    text
}

const MEASURES: [Measure; 8] = [
    Measure::MeanUs,
    Measure::MeanWaitUs,
    Measure::P50Us,
    Measure::P99Us,
    Measure::P999Us,
    Measure::MeanSlowdown,
    Measure::P99Slowdown,
    Measure::P999Slowdown,
];

/// Every figure of every point and class as CSV: a line each, with the half-width of its 95 %
/// interval. Figures without a finished request are empty. Refusals and losses count all classes.
#[must_use]
pub fn csv(measured: &[Measured<'_>]) -> String {
    let mut text = String::new();
    let Some(first) = measured.first() else {
        return text;
    };
    for (key, _) in &first.point.keys {
        let _ = write!(text, "{key},");
    }
    text.push_str(
        "class,replications,requests,refused,lost,broken,table_overflows,events,preemptions",
    );
    for measure in MEASURES {
        let _ = write!(text, ",{0},{0}_half_width", measure.name());
    }
    text.push('\n');
    for each in measured {
        let classes = each.point.target.classes();
        let classes = classes
            .iter()
            .zip(0..)
            .map(|(class, index)| (class.as_str(), Some(index)));
        for (name, class) in std::iter::once(("all", None)).chain(classes) {
            for (_, value) in &each.point.keys {
                let _ = write!(text, "{},", quote(value));
            }
            let result = &each.result;
            let requests: u64 = match class {
                None => result.all.iter().map(|figures| figures.requests).sum(),
                Some(class) => {
                    let of_class = result.classes.iter().map(|c| &c[usize::from(class)]);
                    of_class.map(|figures| figures.requests).sum()
                }
            };
            let _ = write!(
                text,
                "{},{},{requests},{},{},{},{},{},{}",
                quote(name),
                result.all.len(),
                result.refused,
                each.losses.lost,
                each.losses.broken,
                each.losses.table_overflows,
                result.events,
                result.preemptions
            );
            for measure in MEASURES {
                let _ = match each.estimate(measure, class) {
                    Some(Estimate { value, half_width }) => write!(text, ",{value},{half_width}"),
                    None => write!(text, ",,"),
                };
            }
            text.push('\n');
        }
    }
    text
}

/// A field, quoted where RFC 4180 asks for it.
fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}

/// Compares two plans point by point: the ratio of plan `a`'s figures to plan `b`'s, paired by
/// seed, so that chance in the arrivals cancels out.
///
/// # Errors
/// [`SimError::Parameter`] if the plans differ in the number of points, the measure, its class, the
/// seed, how many replications there are, what the x axis is, or in a point's value on it or load.
/// Replications until a precision may differ in number: those that both have are paired.
pub fn compare(
    (a, in_a): (&Plan, &[Measured<'_>]),
    (b, in_b): (&Plan, &[Measured<'_>]),
) -> Result<String, SimError> {
    if in_a.len() != in_b.len() {
        let value = format!("{} against {}", in_a.len(), in_b.len());
        let expected = "both plans must have the same points, but for what is compared";
        return Err(SimError::parameter("number of points", value, expected));
    }
    if a.y != b.y || a.seed != b.seed {
        let value = format!(
            "{}, seed {} against {}, seed {}",
            a.y.name(),
            a.seed,
            b.y.name(),
            b.seed
        );
        let expected = "both plans must have the same";
        return Err(SimError::parameter("report.y and seed", value, expected));
    }
    same("report.x", &a.x, &b.x)?;
    let class = |plan: &Plan| plan.class.clone().unwrap_or_else(|| "all".to_owned());
    same("report.class", &class(a), &class(b))?;
    let until = |measured: &Measured<'_>| match measured.until {
        Until::Replications(count) => count.to_string(),
        Until::Precision { relative, .. } => format!("until {relative}"),
    };
    for (a_point, b_point) in in_a.iter().zip(in_b) {
        same("replications", &until(a_point), &until(b_point))?;
        same("x value of a point", a_point.key(&a.x), b_point.key(&b.x))?;
        same("load of a point", a_point.key("load"), b_point.key("load"))?;
    }
    let mut text = format!(
        "{} ({}) / {} ({})\n\n",
        a.y.name(),
        a.title,
        b.y.name(),
        b.title
    );
    for (a_point, b_point) in in_a.iter().zip(in_b) {
        let class_a = a_point.class(a.class.as_deref());
        let class_b = b_point.class(b.class.as_deref());
        let values_a = a_point.values(a.y, class_a);
        let values_b = b_point.values(b.y, class_b);
        // Paired by replication: a pair is left out if nothing finished in one, and no other
        // shifts.
        let pairs = values_a.iter().zip(&values_b);
        let ratios: Vec<_> = pairs.filter_map(|(a, b)| Some((*a)? / (*b)?)).collect();
        let ratio = if ratios.is_empty() {
            NOTHING.to_owned()
        } else {
            format!("ratio {:.3}", Estimate::of(&ratios))
        };
        let _ = writeln!(
            text,
            "{} {}: {}{} against {}{}: {ratio}",
            a.x,
            a_point.key(&a.x),
            a_point.series(a),
            a_point.remarks(),
            b_point.series(b),
            b_point.remarks(),
        );
    }
    Ok(text)
}

/// Refuses plans that differ in something that figures depend on.
fn same(what: &'static str, a: &str, b: &str) -> Result<(), SimError> {
    if a == b {
        return Ok(());
    }
    let expected = "both plans must have the same";
    Err(SimError::parameter(
        what,
        format!("{a} against {b}"),
        expected,
    ))
}
