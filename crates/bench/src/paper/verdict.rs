//! A number of ours beside the document's.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::list::{Better, Check};
use super::reading::Missing;
use crate::harness::{self, Goal, Target};

/// What is near where a check does not say how near: a tenth.
pub(super) const NEAR: f64 = 0.1;

/// What a number says of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is within this share of the document's.
    AgreesWithin(f64),
    /// The document gives no number, and what it says in words holds.
    Holds,
    /// It differs from the document's for the better.
    Better,
    /// It differs for the worse, or what the document says does not hold.
    Worse,
    /// It ran and gave no number, see [`Judged::why_not`].
    NoNumber,
    /// It did not run.
    CannotRun,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AgreesWithin(share) => write!(f, "agrees within {:.0} %", 100.0 * share),
            Self::Holds => f.write_str("holds"),
            Self::Better => f.write_str("better"),
            Self::Worse => f.write_str("worse"),
            Self::NoNumber => f.write_str("no number"),
            Self::CannotRun => f.write_str("cannot be run here"),
        }
    }
}

/// A number beside the document's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// What it is, with its unit.
    pub what: String,
    /// The document's.
    pub paper: Option<f64>,
    pub ours: Option<f64>,
    /// What `--check` holds ours to.
    pub wanted: Vec<Goal>,
    /// What ours says.
    pub verdict: Verdict,
    /// Why there is none.
    pub why_not: Option<String>,
}

impl Judged {
    /// Judges what was read.
    pub fn of(check: &Check, ours: Result<f64, Missing>) -> Self {
        match ours {
            Ok(ours) => Self {
                ours: Some(ours),
                verdict: judge(check, ours),
                why_not: None,
                ..Self::not_run(check, "")
            },
            Err(missing) => Self {
                verdict: Verdict::NoNumber,
                ..Self::not_run(check, &missing.to_string())
            },
        }
    }

    /// Nothing was read.
    pub fn not_run(check: &Check, why: &str) -> Self {
        Self {
            what: check.what.clone(),
            paper: check.paper,
            ours: None,
            wanted: check.goals(),
            verdict: Verdict::CannotRun,
            why_not: Some(why.to_owned()),
        }
    }

    /// A target for each goal.
    pub fn targets(&self, item: &str) -> impl Iterator<Item = Target> {
        let name = format!("{item}: {}", self.what);
        self.wanted.iter().map(move |&wanted| match self.ours {
            Some(ours) => Target {
                name: name.clone(),
                wanted,
                measured: Some(ours),
                spread: None,
                verdict: match wanted.is_met_by(ours) {
                    true => harness::Verdict::Met,
                    false => harness::Verdict::Missed,
                },
                reason: None,
            },
            None => {
                let why = self.why_not.clone().unwrap_or_default();
                Target::not_shown(name.clone(), wanted, why)
            }
        })
    }
}

fn judge(check: &Check, ours: f64) -> Verdict {
    let held = check.goals().iter().all(|goal| goal.is_met_by(ours));
    let Some(paper) = check.paper else {
        return if held { Verdict::Holds } else { Verdict::Worse };
    };
    let within = check.within.unwrap_or(NEAR);
    if (ours / paper - 1.0).abs() <= within {
        return Verdict::AgreesWithin(within);
    }
    match check.better {
        Some(Better::More) if ours > paper => Verdict::Better,
        Some(Better::Less) if ours < paper => Verdict::Better,
        _ => Verdict::Worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Reading;

    fn check(paper: Option<f64>, better: Option<Better>) -> Check {
        Check {
            what: "gain".to_owned(),
            reads: Reading::Value {
                line: "a".to_owned(),
                at: 1.0,
            },
            paper,
            within: paper.map(|_| 0.2),
            better,
            at_least: Some(1.0),
            at_most: None,
        }
    }

    #[test]
    fn a_number_agrees_or_is_better_or_worse() {
        let (more, less) = (Some(Better::More), Some(Better::Less));
        for (paper, better, ours, verdict, missed) in [
            (Some(5.0), more, 4.1, Verdict::AgreesWithin(0.2), 0),
            (Some(5.0), more, 7.0, Verdict::Better, 0),
            (Some(5.0), more, 3.0, Verdict::Worse, 1),
            (Some(5.0), less, 3.0, Verdict::Better, 0),
            (Some(5.0), None, 7.0, Verdict::Worse, 1),
            (None, None, 1.5, Verdict::Holds, 0),
            (None, None, 0.5, Verdict::Worse, 1),
        ] {
            let judged = Judged::of(&check(paper, better), Ok(ours));
            assert_eq!(judged.verdict, verdict, "{paper:?} {ours}");
            let targets: Vec<_> = judged.targets("item").collect();
            let count = targets
                .iter()
                .filter(|one| one.verdict == harness::Verdict::Missed);
            assert_eq!(count.count(), missed, "{targets:?}");
        }
    }

    #[test]
    fn without_a_number_nothing_is_missed_and_the_reason_is_told() {
        let judged = Judged::not_run(&check(None, None), "there is no Dune");
        assert_eq!(judged.verdict, Verdict::CannotRun);
        let targets: Vec<_> = judged.targets("item").collect();
        assert_eq!(targets[0].verdict, harness::Verdict::NotShown);
        assert_eq!(targets[0].reason.as_deref(), Some("there is no Dune"));
    }
}
