//! What was measured, round by round, and its summary.

use super::Cost;

/// Names and notes of a part's rows.
pub(super) type Rows = &'static [(&'static str, &'static str)];

/// The wholes, and the part or bound that each is compared with in its note.
const COMPARED: &[(&str, &str)] = &[
    ("context/start-finish", "context/start-finish-bound"),
    ("preempt/probe", "cache-line/round-trip"),
    ("preempt/signal", "signal/bare"),
    ("preempt/guest", "preempt/signal"),
    ("preempt/guest-msi", "preempt/guest"),
    ("preempt/guest-apic", "preempt/guest"),
    ("guest/integer", "guest/integer-native"),
    ("guest/avx2", "guest/avx2-native"),
    ("guest/memory", "guest/memory-native"),
];

pub(super) struct Samples {
    rows: Vec<Row>,
}

struct Row {
    name: &'static str,
    note: &'static str,
    nanos: Vec<f64>,
}

impl Samples {
    /// The table's rows in their order.
    pub(super) fn new(groups: &[Rows]) -> Self {
        let rows = groups.iter().copied().flatten();
        Self {
            rows: rows
                .map(|&(name, note)| Row {
                    name,
                    note,
                    nanos: Vec::new(),
                })
                .collect(),
        }
    }

    /// One round's nanoseconds for a row.
    pub(super) fn add(&mut self, name: &str, nanos: f64) {
        let row = self.rows.iter_mut().find(|row| row.name == name);
        row.unwrap_or_else(|| unreachable!("{name} is among its part's rows"))
            .nanos
            .push(nanos);
    }

    /// What was added last, in this round.
    pub(super) fn last(&self, name: &str) -> f64 {
        let row = self.rows.iter().find(|row| row.name == name);
        row.and_then(|row| row.nanos.last().copied())
            .unwrap_or_else(|| unreachable!("{name} is measured first"))
    }

    /// Medians and spreads of the rows that were measured.
    pub(super) fn into_costs(self) -> Vec<Cost> {
        let mut costs: Vec<Cost> = self.rows.into_iter().filter_map(Row::into_cost).collect();
        for (whole, part) in COMPARED {
            let nanos = |name: &str| {
                costs
                    .iter()
                    .find(|cost| cost.name == name)
                    .map(|cost| cost.nanos)
            };
            let (Some(whole_nanos), Some(part_nanos)) = (nanos(whole), nanos(part)) else {
                continue;
            };
            let ratio = whole_nanos / part_nanos;
            for cost in costs.iter_mut().filter(|cost| cost.name == *whole) {
                cost.note = format!("{}; {ratio:.2} times {part}", cost.note);
            }
        }
        costs
    }
}

impl Row {
    fn into_cost(mut self) -> Option<Cost> {
        self.nanos.sort_by(f64::total_cmp);
        Some(Cost {
            name: self.name.to_owned(),
            nanos: *self.nanos.get(self.nanos.len() / 2)?,
            low: *self.nanos.first()?,
            high: *self.nanos.last()?,
            note: self.note.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_spreads_and_comparisons() {
        let rows: Rows = &[
            ("preempt/signal", "whole"),
            ("signal/bare", "part"),
            ("unmeasured", ""),
        ];
        let mut samples = Samples::new(&[rows]);
        for nanos in [30.0, 10.0, 1000.0] {
            samples.add("preempt/signal", nanos);
            samples.add("signal/bare", nanos / 2.0);
        }
        let costs = samples.into_costs();
        assert_eq!(costs.len(), 2);
        assert_eq!(
            (costs[0].low, costs[0].nanos, costs[0].high),
            (10.0, 30.0, 1000.0)
        );
        assert_eq!(costs[0].note, "whole; 2.00 times signal/bare");
        assert_eq!(costs[1].note, "part");
    }
}
