//! What was measured, round by round.

use super::Cost;

/// Names of a part's rows.
pub(super) type Rows = &'static [&'static str];

pub(super) struct Samples {
    rows: Vec<Cost>,
}

impl Samples {
    /// The table's rows in their order.
    pub(super) fn new(groups: &[Rows]) -> Self {
        let rows = groups.iter().copied().flatten();
        Self {
            rows: rows
                .map(|&name| Cost {
                    name,
                    rounds: Vec::new(),
                    remark: None,
                })
                .collect(),
        }
    }

    /// One round's nanoseconds for a row.
    pub(super) fn add(&mut self, name: &str, nanos: f64) {
        let row = self.rows.iter_mut().find(|row| row.name == name);
        row.unwrap_or_else(|| unreachable!("{name} is among its part's rows"))
            .rounds
            .push(nanos);
    }

    /// What was added last, in this round.
    pub(super) fn last(&self, name: &str) -> f64 {
        let row = self.rows.iter().find(|row| row.name == name);
        row.and_then(|row| row.rounds.last().copied())
            .unwrap_or_else(|| unreachable!("{name} is measured first"))
    }

    /// The rows that were measured.
    pub(super) fn into_costs(self) -> Vec<Cost> {
        let rows = self.rows.into_iter();
        rows.filter(|row| !row.rounds.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_a_round_are_left_out() {
        let rows: Rows = &["preempt/signal", "signal/bare", "unmeasured"];
        let mut samples = Samples::new(&[rows]);
        for nanos in [30.0, 10.0, 1000.0] {
            samples.add("preempt/signal", nanos);
            samples.add("signal/bare", nanos / 2.0);
        }
        assert_eq!(samples.last("signal/bare"), 500.0);
        let costs = samples.into_costs();
        assert_eq!(costs.len(), 2);
        assert_eq!(costs[0].rounds, [30.0, 10.0, 1000.0]);
        assert_eq!(costs[0].median(), 30.0);
    }
}
