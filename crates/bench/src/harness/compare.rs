//! Contenders compared repetition by repetition: the same arrivals for both, so that what differs
//! is theirs.

use serde::{Deserialize, Serialize};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::{PairedRatio, Spread};

use super::target::{Goal, Target};
use crate::report::{cells, figure};

/// Confidence of each bound of a ratio.
const CONFIDENCE: f64 = 0.95;

/// A contender's repetitions of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs<T> {
    pub name: String,
    /// One after the other; `None` where one failed.
    pub runs: Vec<Option<T>>,
}

impl<T> Runs<T> {
    /// None yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            runs: Vec::new(),
        }
    }

    /// These.
    pub fn of(name: impl Into<String>, runs: impl IntoIterator<Item = Option<T>>) -> Self {
        Self {
            name: name.into(),
            runs: runs.into_iter().collect(),
        }
    }

    /// The contender of this name.
    pub fn named<'a>(all: &'a [Self], name: &str) -> Option<&'a Self> {
        all.iter().find(|runs| runs.name == name)
    }

    /// A part of each repetition.
    pub fn map<U>(&self, part: impl Fn(&T) -> Option<U>) -> Runs<U> {
        let runs = self.runs.iter();
        Runs::of(&self.name, runs.map(|run| part(run.as_ref()?)))
    }

    /// Those that did not fail.
    pub fn measured(&self) -> impl Iterator<Item = &T> {
        self.runs.iter().flatten()
    }

    /// A figure over the repetitions; `None` if there are none.
    pub fn spread(&self, value: impl Fn(&T) -> Option<f64>) -> Option<Spread> {
        let values: Vec<f64> = self.measured().filter_map(value).collect();
        Spread::of(&values)
    }

    /// The median of a figure over the repetitions.
    pub fn median(&self, value: impl Fn(&T) -> Option<f64>) -> Option<f64> {
        self.spread(value).map(|spread| spread.median)
    }

    /// How many repetitions lack a figure: they failed, or it is not in what they measured.
    pub fn lacking(&self, value: impl Fn(&T) -> Option<f64>) -> usize {
        let runs = self.runs.iter();
        runs.filter(|run| run.as_ref().and_then(&value).is_none())
            .count()
    }

    /// As [`compare`](Self::compare), and the target if there is a goal: missed where this one, of
    /// which the goal is, lacks the figure in most repetitions.
    pub fn judge(
        &self,
        under: &Self,
        what: impl Into<String>,
        goal: Option<Goal>,
        value: impl Fn(&T) -> Option<f64>,
    ) -> (Comparison, Option<Target>) {
        let comparison = self.compare(under, what, goal, &value);
        let target = Target::of(&comparison).map(|target| target.needs_most_of(self, &value));
        (comparison, target)
    }

    /// A figure of this one over that of `under`, repetition by repetition.
    pub fn compare(
        &self,
        under: &Self,
        what: impl Into<String>,
        goal: Option<Goal>,
        value: impl Fn(&T) -> Option<f64>,
    ) -> Comparison {
        let values = |runs: &Self| -> Vec<Option<f64>> {
            let of_one = |one: &Option<T>| one.as_ref().and_then(&value);
            runs.runs.iter().map(of_one).collect()
        };
        let pairs = by_repetition(&values(self), &values(under));
        Comparison::of(what, [&self.name, &under.name], &pairs, goal)
    }
}

/// The pairs of which both are there.
pub fn by_repetition(over: &[Option<f64>], under: &[Option<f64>]) -> Vec<(f64, f64)> {
    let both = over.iter().zip(under);
    both.filter_map(|(over, under)| over.zip(*under)).collect()
}

/// Two contenders compared repetition by repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// What is compared, and under what.
    pub what: String,
    /// The contender above the fraction bar.
    pub over: String,
    /// The contender below it.
    pub under: String,
    pub pairs: usize,
    /// The ratios: median, range, and bounds of 95 % each, which take five pairs; `None` without
    /// pairs.
    pub ratio: Option<PairedRatio>,
    /// What the median is to reach, if there is a target.
    pub goal: Option<Goal>,
}

impl Comparison {
    /// Compares `pairs` of figures, each of one repetition of the two.
    pub fn of(
        what: impl Into<String>,
        [over, under]: [&str; 2],
        pairs: &[(f64, f64)],
        goal: Option<Goal>,
    ) -> Self {
        Self {
            what: what.into(),
            over: over.to_owned(),
            under: under.to_owned(),
            pairs: pairs.len(),
            ratio: PairedRatio::of(pairs, CONFIDENCE),
            goal,
        }
    }

    /// What is compared, and the two contenders, in a line.
    pub fn name(&self) -> String {
        format!("{}: {} / {}", self.what, self.over, self.under)
    }

    /// The goal, and whether the median reaches it; `None` without goal or ratio.
    pub fn met(&self) -> Option<bool> {
        Some(self.goal?.is_met_by(self.ratio?.ratio.median))
    }
}

/// The table of ratios; `None` if there is nothing to show.
pub fn comparisons(comparisons: &[Comparison]) -> Option<Table> {
    let mut table = Table::new(
        "ratios of pairs: median, range, and bounds of 95 % each where there are five pairs",
        ["", "pairs", "ratio", "range", "95 %"],
    );
    for one in comparisons {
        let bounds = one.ratio.and_then(|ratio| ratio.lower.zip(ratio.upper));
        let [ratio, range] = cells(one.ratio.map(|ratio| ratio.ratio));
        table.push([
            one.name(),
            one.pairs.to_string(),
            ratio,
            range,
            bounds.map_or_else(String::new, |(lower, upper)| {
                format!("{}..{}", figure(lower), figure(upper))
            }),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_repetition_shifts_no_pair() {
        let own = Runs::of("own", [Some(2.0), None, Some(9.0)]);
        let other = Runs::of("other", [Some(1.0), Some(100.0), Some(3.0)]);
        let goal = Some(Goal::AtMost(2.4));
        let compared = own.compare(&other, "time", goal, |value| Some(*value));
        assert_eq!((compared.pairs, compared.met()), (2, Some(false)));
        assert_eq!(compared.ratio.unwrap().ratio.median, 2.5);
        assert_eq!(own.spread(|value| Some(*value)).unwrap().median, 5.5);
    }

    #[test]
    fn the_side_that_is_judged_misses_what_most_of_its_repetitions_lack() {
        use crate::harness::Verdict::{Met, Missed, NotShown};
        let goal = Some(Goal::AtMost(1.0));
        let verdict = |own: [Option<f64>; 5], under: [Option<f64>; 5]| {
            let [own, under] = [Runs::of("own", own), Runs::of("under", under)];
            let (_, target) = own.judge(&under, "p99", goal, |value| Some(*value));
            target.unwrap().verdict
        };
        let (good, bad) = (Some(1.0), None);
        let all = [good; 5];
        assert_eq!(verdict([good, good, good, bad, bad], all), Met);
        assert_eq!(verdict([good, good, bad, bad, bad], all), Missed);
        assert_eq!(verdict([bad; 5], all), Missed);
        assert_eq!(verdict([bad; 5], [bad; 5]), Missed);
        assert_eq!(verdict(all, [bad; 5]), NotShown, "the other one's lack");
        // Measured, but without the figure: saturated.
        let own = Runs::of("own", all);
        let (_, target) = own.judge(&own, "p99", goal, |_| None);
        let target = target.unwrap();
        assert_eq!(target.verdict, Missed);
        assert!(
            target
                .reason
                .unwrap()
                .contains("own lacks the figure in 5 of 5")
        );
        assert_eq!(own.judge(&own, "p99", None, |_| None).1, None);
    }

    #[test]
    fn without_repetitions_nothing_is_claimed() {
        let none = Runs::of("none", [None, None]);
        assert_eq!(none.spread(|value| Some(*value)), None);
        let goal = Some(Goal::AtLeast(1.0));
        let compared = none.compare(&none, "rate", goal, |value| Some(*value));
        assert_eq!((compared.pairs, compared.met()), (0, None));
        assert_eq!(comparisons(&[]), None);
    }

    #[test]
    fn four_pairs_have_a_range_and_five_have_bounds() {
        let pairs = [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0)];
        let cells = |pairs: &[(f64, f64)]| {
            let compared = Comparison::of("p99", ["a", "b"], pairs, None);
            comparisons(&[compared]).unwrap().rows[0].clone()
        };
        assert_eq!(cells(&pairs[..4])[1..], ["4", "2.50", "(1.00..4.00)", ""]);
        assert_eq!(cells(&pairs)[3..], ["(1.00..5.00)", "1.00..5.00"]);
        assert_eq!(cells(&[])[1..], ["0", "-", "", ""]);
    }
}
