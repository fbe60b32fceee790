//! What the path through a dispatcher of the layout `threads` costs, in cache-line round trips of
//! the same run: so a machine whose cores are farther apart has the same targets.
//!
//! The rows are those of the table of costs ([`crate::costs`]).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::Spread;

use crate::allow_signals;
use crate::costs;
use crate::harness::{Goal, Section, Session, Target};
use crate::policies::mechanisms::Mechanisms;
use crate::policies::permitted;
use crate::policies::results::CostDetail;
use crate::report::figure;

/// The row in whose terms the others are told.
const TRIP: &str = "cache-line/round-trip";
/// Rows, and how many round trips each may take.
const IN_TRIPS: [(&str, f64); 3] = [
    ("preempt/probe", 0.6),
    ("preempt/probe-unstaged", 1.8),
    ("request/empty/depth-2", 1.0),
];
/// A decision for one of eight stub workers, and how many million there are to be in a second.
const DECISION: &str = "dispatcher/c-pre-sq/8-workers/depth-4";
const MILLION_DECISIONS: Goal = Goal::AtLeast(20.0);
/// Why a row is missing although its part was begun.
const NO_ROW: &str = "no round of this run got as far as the row";

/// The table of costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Central {
    /// Row to median, ns.
    pub costs: BTreeMap<String, f64>,
    /// How sure each of `costs` is, by the same names.
    pub cost_details: BTreeMap<String, CostDetail>,
}

/// Measures the table, in fewer rounds if `quick`.
///
/// # Errors
/// The cores cannot be had, or a burst failed.
pub fn measure(session: &mut Session, quick: bool, central: &mut Central) -> Result<()> {
    let mechanisms = Mechanisms::find(allow_signals());
    // The table has its own lengths: the session's is that of a burst of the other parts.
    let bench = permitted(session, &[], 1, mechanisms, Duration::ZERO)?;
    session.progress.begin("costs of single operations");
    let cores = (session.cores[0].id, session.cores[1].id);
    let progress = &session.progress;
    let say = |line: &str| progress.detail(line);
    let measured = costs::measure(&bench, cores, quick, say)?;
    session.progress.end(costs::duration(quick));
    central.costs = measured.nanos;
    central.cost_details = measured.details;
    Ok(())
}

impl Central {
    /// A row, its lowest and its highest round.
    fn row(&self, name: &str) -> Option<Spread> {
        let median = *self.costs.get(name)?;
        let detail = self.cost_details.get(name);
        let end = |of: fn(&CostDetail) -> Option<f64>| detail.and_then(of).unwrap_or(median);
        Some(Spread {
            median,
            min: end(|detail| detail.low),
            max: end(|detail| detail.high),
        })
    }

    /// A row in round trips, each round in those of the median.
    fn in_trips(&self, name: &str) -> Option<Spread> {
        let (of, trip) = self.row(name).zip(self.row(TRIP))?;
        let times = |nanos: f64| nanos / trip.median;
        Some(Spread {
            median: times(of.median),
            min: times(of.min),
            max: times(of.max),
        })
    }

    /// Million decisions a second.
    fn decisions(&self) -> Option<Spread> {
        let nanos = self.row(DECISION)?;
        let rate = |nanos: f64| 1e3 / nanos;
        Some(Spread {
            median: rate(nanos.median),
            min: rate(nanos.max),
            max: rate(nanos.min),
        })
    }

    /// What is wanted of the path.
    pub fn targets(&self) -> Vec<Target> {
        let judged = |name: String, goal, figure: Option<Spread>| match figure {
            Some(figure) => Target::measured(name, goal, figure),
            None => Target::not_shown(name, goal, NO_ROW),
        };
        let in_trips = IN_TRIPS.map(|(row, most)| {
            let name = format!("{row} / {TRIP}");
            judged(name, Goal::AtMost(most), self.in_trips(row))
        });
        let name = format!("{DECISION}, million a second");
        let decisions = judged(name, MILLION_DECISIONS, self.decisions());
        in_trips.into_iter().chain([decisions]).collect()
    }

    /// The table.
    pub fn section(&self) -> Section {
        let mut table = Table::new(
            "one operation: ns; medians over the rounds",
            ["", "ns", "spread", "round trips"],
        );
        let rows = IN_TRIPS.map(|(row, _)| row);
        for row in [TRIP].into_iter().chain(rows).chain([DECISION]) {
            let Some(nanos) = self.row(row) else {
                continue;
            };
            let trips = self.in_trips(row);
            table.push([
                row.to_owned(),
                figure(nanos.median),
                format!("{}-{}", figure(nanos.min), figure(nanos.max)),
                trips.map_or_else(|| "-".to_owned(), |trips| figure(trips.median)),
            ]);
        }
        Section {
            heading: "The path through a dispatcher".to_owned(),
            introduction: Some(
                "A preemption by probe is worker time lost, with the next request staged or not; an empty request goes through \
                 dispatcher and one worker when many wait; a decision has eight stub workers, which run nothing. `results.json` \
                 has all rows."
                    .to_owned(),
            ),
            tables: vec![table],
            details: (self.cost_details.iter())
                .map(|(name, detail)| format!("{name}: {}", detail.note))
                .collect(),
            ..Section::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::rows;
    use crate::harness::Verdict::{self, Met, Missed, NotShown};

    fn central(rows: &[(&str, f64)]) -> Central {
        let named = rows
            .iter()
            .map(|(name, nanos)| ((*name).to_owned(), *nanos));
        let detail = |(name, nanos): &(&str, f64)| {
            let detail = CostDetail {
                low: Some(nanos / 2.0),
                high: Some(nanos * 2.0),
                note: String::new(),
            };
            ((*name).to_owned(), detail)
        };
        Central {
            costs: named.collect(),
            cost_details: rows.iter().map(detail).collect(),
        }
    }

    fn verdicts(central: &Central) -> Vec<Verdict> {
        let targets = central.targets();
        targets.iter().map(|target| target.verdict).collect()
    }

    #[test]
    fn rows_are_judged_in_round_trips_and_decisions_by_the_second() {
        let all = central(&[
            (TRIP, 200.0),
            ("preempt/probe", 110.0),
            ("preempt/probe-unstaged", 370.0),
            ("request/empty/depth-2", 200.0),
            (DECISION, 40.0),
        ]);
        assert_eq!(verdicts(&all), [Met, Missed, Met, Met]);
        let targets = all.targets();
        assert_eq!(targets[0].measured, Some(0.55));
        assert_eq!(targets[0].spread, Some([0.275, 1.1]));
        assert_eq!(targets[3].measured, Some(25.0));
        // The slowest round has the fewest decisions.
        assert_eq!(targets[3].spread, Some([12.5, 50.0]));
        assert_eq!(all.section().tables[0].rows.len(), 5);
    }

    #[test]
    fn a_row_that_is_missing_is_not_shown_and_says_why() {
        let some = central(&[(TRIP, 200.0), ("preempt/probe-unstaged", 360.0)]);
        assert_eq!(verdicts(&some), [NotShown, Met, NotShown, NotShown]);
        assert_eq!(some.targets()[0].reason.as_deref(), Some(NO_ROW));
        let without_trips = central(&[("preempt/probe", 1.0), (DECISION, 60.0)]);
        assert_eq!(
            verdicts(&without_trips),
            [NotShown, NotShown, NotShown, Missed]
        );
    }

    #[test]
    fn the_rows_are_in_the_table_of_costs() {
        let explained = |name: &str| rows::ROWS.iter().any(|(row, _)| *row == name);
        assert!(
            [TRIP, IN_TRIPS[0].0, IN_TRIPS[1].0]
                .into_iter()
                .all(explained)
        );
        assert!(rows::STUB_WORKERS.iter().any(|(row, ..)| *row == DECISION));
    }
}
