//! What a figure must reach, and whether it does.

use std::fmt;

use serde::{Deserialize, Serialize};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::Spread;

use super::compare::{Comparison, Runs};
use crate::report::{figure, or_dash};

/// What a figure must reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Goal {
    /// Whether `value` reaches it.
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(goal) => value >= goal,
            Self::AtMost(goal) => value <= goal,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(f, ">= {goal}"),
            Self::AtMost(goal) => write!(f, "<= {goal}"),
        }
    }
}

/// What became of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The figure reaches it.
    Met,
    /// The figure does not.
    Missed,
    /// There is no such figure in this run.
    #[serde(rename = "not shown")]
    NotShown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::NotShown => "not shown",
        })
    }
}

/// A target, and whether this run reaches it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Which figure it is about.
    pub name: String,
    /// What the figure must reach.
    pub wanted: Goal,
    /// The figure: a median, where there are repetitions.
    pub measured: Option<f64>,
    /// Its lowest and highest repetition.
    pub spread: Option<[f64; 2]>,
    /// Whether the figure reaches it.
    pub verdict: Verdict,
    /// Why it is missed in spite of the figure, or not shown.
    pub reason: Option<String>,
}

impl Target {
    /// Judged by the median of `figure`.
    pub fn measured(name: impl Into<String>, wanted: Goal, figure: Spread) -> Self {
        Self {
            name: name.into(),
            wanted,
            measured: Some(figure.median),
            spread: Some([figure.min, figure.max]),
            verdict: if wanted.is_met_by(figure.median) {
                Verdict::Met
            } else {
                Verdict::Missed
            },
            reason: None,
        }
    }

    /// Not a figure of this run.
    pub fn not_shown(name: impl Into<String>, wanted: Goal, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            wanted,
            measured: None,
            spread: None,
            verdict: Verdict::NotShown,
            reason: Some(reason.into()),
        }
    }

    /// Judged by the median of `figure`; if there is none, not shown, and why.
    pub fn judged(
        name: impl Into<String>,
        wanted: Goal,
        figure: Option<Spread>,
        why: &str,
    ) -> Self {
        match figure {
            Some(figure) => Self::measured(name, wanted, figure),
            None => Self::not_shown(name, wanted, why),
        }
    }

    /// Missed, whatever the figure.
    #[must_use]
    pub fn missed(self, reason: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Missed,
            reason: Some(reason.into()),
            ..self
        }
    }

    /// Missed where `own`, the side that is judged, lacks the figure in more than half of its
    /// repetitions: what failed or saturated that often is not judged by the others, and that it
    /// cannot be shown is its own fault.
    #[must_use]
    pub fn needs_most_of<T>(self, own: &Runs<T>, value: impl Fn(&T) -> Option<f64>) -> Self {
        let (lacking, all) = (own.lacking(value), own.runs.len());
        match 2 * lacking > all {
            true => self.missed(format!(
                "{} lacks the figure in {lacking} of {all} repetitions, which failed or were saturated",
                own.name
            )),
            false => self,
        }
    }

    /// Missed where `own`, which the target is about, failed in most repetitions, or in some so
    /// that there is no figure.
    #[must_use]
    pub fn unless_failed<T>(self, own: &Runs<T>) -> Self {
        let ran = |_: &T| Some(1.0);
        if self.verdict == Verdict::NotShown && own.lacking(ran) > 0 {
            self.missed(format!("{} failed: the notes say why", own.name))
        } else {
            self.needs_most_of(own, ran)
        }
    }

    /// The target of a comparison that has a goal.
    pub fn of(comparison: &Comparison) -> Option<Self> {
        let (name, wanted) = (comparison.name(), comparison.goal?);
        let ratio = comparison.ratio.map(|ratio| ratio.ratio);
        Some(Self::judged(
            name,
            wanted,
            ratio,
            "no repetition has both figures",
        ))
    }
}

/// Whether a run with these targets ends well; only `check` makes a difference.
pub fn passes(targets: &[Target], check: bool) -> bool {
    let missed = |target: &Target| target.verdict == Verdict::Missed;
    !check || !targets.iter().any(missed)
}

/// The table of targets; `None` without any.
pub fn targets(targets: &[Target]) -> Option<Table> {
    let mut table = Table::new("targets", ["", "wanted", "measured", "spread", "verdict"]);
    for target in targets {
        let spread = target.spread.map_or_else(String::new, |[low, high]| {
            format!("({}..{})", figure(low), figure(high))
        });
        table.push([
            target.name.clone(),
            target.wanted.to_string(),
            or_dash(target.measured),
            spread,
            target.verdict.to_string(),
        ]);
        let reason = target.reason.as_ref();
        let note = reason.map(|why| format!("{}: {}: {why}", target.name, target.verdict));
        table.notes.extend(note);
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURE: Spread = Spread {
        median: 20.0,
        min: 12.0,
        max: 31.0,
    };

    #[test]
    fn a_target_is_met_or_missed_by_the_median() {
        for (wanted, verdict) in [
            (Goal::AtLeast(20.0), Verdict::Met),
            (Goal::AtLeast(20.1), Verdict::Missed),
            (Goal::AtMost(20.0), Verdict::Met),
            (Goal::AtMost(19.9), Verdict::Missed),
        ] {
            let target = Target::measured("gain", wanted, FIGURE);
            assert_eq!(target.verdict, verdict, "{wanted}");
            let compared = Comparison::of("p99", ["a", "b"], &[(20.0, 1.0)], Some(wanted));
            assert_eq!(Target::of(&compared).unwrap().verdict, verdict, "{wanted}");
        }
    }

    #[test]
    fn only_a_missed_target_fails_and_only_when_it_is_checked() {
        let met = Target::measured("met", Goal::AtLeast(1.0), FIGURE);
        let missed = Target::measured("missed", Goal::AtMost(1.0), FIGURE);
        let spoilt = met.clone().missed("on one core");
        let absent = Target::not_shown("absent", Goal::AtLeast(1.0), "there is no DPDK");
        assert!(passes(&[met.clone(), absent.clone()], true));
        for bad in [missed, spoilt] {
            let all = [met.clone(), bad, absent.clone()];
            assert!(!passes(&all, true));
            assert!(passes(&all, false));
        }
    }

    #[test]
    fn what_fails_is_missed_and_what_was_not_measured_is_not() {
        let met = Target::measured("met", Goal::AtLeast(1.0), FIGURE);
        let absent = Target::not_shown("absent", Goal::AtLeast(1.0), "why");
        for (runs, verdicts) in [
            (&[][..], [Verdict::Met, Verdict::NotShown]),
            (&[Some(1), Some(1)], [Verdict::Met, Verdict::NotShown]),
            (&[Some(1), None], [Verdict::Met, Verdict::Missed]),
            (&[Some(1), None, None], [Verdict::Missed; 2]),
        ] {
            let own = Runs::of("own", runs.iter().copied());
            let found = [&met, &absent].map(|one| one.clone().unless_failed(&own).verdict);
            assert_eq!(found, verdicts, "{runs:?}");
        }
    }

    #[test]
    fn the_table_says_why_something_is_not_shown() {
        let absent = Comparison::of("p99", ["a", "b"], &[], Some(Goal::AtLeast(5.0)));
        let absent = Target::of(&absent).unwrap();
        let met = Target::measured("gain", Goal::AtLeast(20.0), FIGURE);
        let table = targets(&[met, absent]).unwrap();
        assert_eq!(
            table.rows[0],
            ["gain", ">= 20", "20.0", "(12.0..31.0)", "met"]
        );
        assert_eq!(table.rows[1][1..], [">= 5", "-", "", "not shown"]);
        assert_eq!(
            table.notes,
            ["p99: a / b: not shown: no repetition has both figures"]
        );
        let without = Comparison::of("p99", ["a", "b"], &[], None);
        assert_eq!((Target::of(&without), targets(&[])), (None, None));
    }

    #[test]
    fn verdicts_are_words_in_json() {
        let absent = Target::not_shown("absent", Goal::AtMost(2.0), "why");
        let json = serde_json::to_value(&absent).unwrap();
        assert_eq!(json["verdict"], "not shown");
        assert_eq!(json["wanted"]["at_most"], 2.0);
        assert_eq!(serde_json::from_value::<Target>(json).unwrap(), absent);
    }
}
