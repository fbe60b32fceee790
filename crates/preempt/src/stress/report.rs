//! The stress test's findings.

use std::time::Duration;

use super::Hang;
use crate::{CountersSnapshot, Delivery};

/// The counts, so far or in total.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Time since the first dispatch.
    pub elapsed: Duration,
    /// The workers' counters, summed.
    pub counters: CountersSnapshot,
    /// Events in the backend's mode, by name, summed.
    pub mode: Vec<(&'static str, u64)>,
    /// How interrupts came to workers in the mode, as counted.
    pub delivery: Option<Delivery>,
    /// Jobs that ran to their end.
    pub requests: u64,
    /// How often each operation ran, by name.
    pub operations: Vec<(&'static str, u64)>,
    /// How often each operation, or check of the scheduler, found an error, by name; zeroes
    /// included.
    pub errors: Vec<(&'static str, u64)>,
    /// The kind of the hang among the errors, if there is one.
    pub hang: Option<Hang>,
}

impl Report {
    /// All errors.
    #[must_use]
    pub fn errors_total(&self) -> u64 {
        self.errors.iter().map(|(_, count)| count).sum()
    }

    /// Interrupts that workers took, with any outcome.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        let in_the_mode = (self.mode.iter()).find(|(name, _)| *name == "interrupts");
        let counters = &self.counters;
        in_the_mode.map_or(
            counters.taken_by_interrupt + counters.late + counters.deferred,
            |(_, count)| *count,
        )
    }

    /// Why this run is no success, if it is none: there were errors, or the subject of the test
    /// never happened.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if self.errors_total() > 0 {
            let named: Vec<_> = self
                .errors
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            let hang = self.hang.as_ref().map(|hang| format!("; {hang}"));
            Some(format!(
                "errors: {}{}",
                named.join(", "),
                hang.unwrap_or_default()
            ))
        } else if self.counters.taken() == 0 {
            Some("nothing was preempted".to_owned())
        } else if self.counters.migrations == 0 {
            Some("nothing migrated".to_owned())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_why_it_is_a_failure() {
        let mut report = Report::default();
        assert_eq!(report.failure().unwrap(), "nothing was preempted");
        report.counters.taken_by_probe = 1;
        assert_eq!(report.failure().unwrap(), "nothing migrated");
        report.counters.migrations = 1;
        assert_eq!(report.failure(), None);
        report.errors = vec![("vec", 0), ("hang", 2)];
        assert_eq!(report.failure().unwrap(), "errors: hang 2");
        report.hang = Some(Hang {
            contexts: vec![3],
            time: Duration::from_secs(10),
            quantum: Duration::from_micros(50),
            interrupts: 139_674,
            preemptions: 3,
            got_on: true,
        });
        assert_eq!(
            report.failure().unwrap(),
            "errors: hang 2; a livelock: in 10.0 s workers took 139674 interrupts and 3 preemptions, and context 3 finished \
             no operation; interrupted every 50 ms only, they get on. A quantum of 50 us is too short for what a \
             preemption costs here"
        );
    }
}
