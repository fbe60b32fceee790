//! A busy loop that notes when it was off its core: for how long it ran, and for how long it did
//! not.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shinjuku_elevate::Report;
use shinjuku_preempt::{Clock, Cycles};
use shinjuku_workload::repeat::median;

use super::delay::PERIOD;

/// Most turns that are kept.
const MOST: usize = 1 << 17;
/// Fewer turns than this share of those that fit have no medians: the two hardly took turns.
const FEWEST: f64 = 0.1;

/// The slides' two figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turns {
    pub turns: usize,
    /// How long it ran once it was scheduled, us: the median, unless there were too few turns.
    pub duration_us: Option<f64>,
    /// How long it then waited, us: the median, likewise.
    pub interval_us: Option<f64>,
    /// How much longer than the switching period the scheduler made each slot, us.
    #[serde(default)]
    pub added_us: Option<f64>,
}

impl Turns {
    /// Calls `begin` when all is ready, then runs for `length`, and notes absences from the core
    /// that are at least `least` long.
    pub fn note(length: Duration, least: Duration, begin: impl FnOnce()) -> Self {
        let clock = Clock::get();
        let cycles = |duration: Duration| clock.to_cycles(duration.as_nanos() as u64).0;
        let fewest = Self::fewest(length);
        let (length, least) = (cycles(length), cycles(least));
        // Written once, so that no page is missing later.
        let mut absences = vec![(1, 1); MOST];
        let mut count = 0;
        begin();
        let begun = Cycles::now();
        let mut last = begun;
        loop {
            let now = Cycles::now();
            if now.since(last).0 > least {
                absences[count] = (last.0, now.0);
                count += 1;
            }
            if now.since(begun).0 > length || count == MOST {
                break;
            }
            last = now;
        }
        Self::of(&absences[..count], clock, fewest)
    }

    /// The fewest turns of two loops in that time that have medians.
    fn fewest(length: Duration) -> usize {
        let fit = length.as_secs_f64() / (2 * PERIOD).as_secs_f64();
        (FEWEST * fit).ceil() as usize
    }

    /// As scheduled by a scheduler that did that.
    pub fn scheduled_by(self, report: &Report) -> Self {
        Self {
            added_us: Some(report.added.as_nanos() as f64 / 1e3),
            ..self
        }
    }

    fn of(absences: &[(u64, u64)], clock: Clock, fewest: usize) -> Self {
        let micros = |from: u64, to: u64| clock.to_nanos(Cycles(to - from)) as f64 / 1e3;
        let pairs = absences.windows(2);
        let durations: Vec<_> = pairs.map(|two| micros(two[0].1, two[1].0)).collect();
        let intervals = absences.iter().map(|&(from, to)| micros(from, to));
        let intervals: Vec<_> = intervals.collect();
        let of_turns = |values: &[f64]| median(values).filter(|_| absences.len() >= fewest);
        Self {
            turns: absences.len(),
            duration_us: of_turns(&durations),
            interval_us: of_turns(&intervals),
            added_us: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_lie_between_absences() {
        let clock = Clock::get();
        let at = |micros: u64| clock.to_cycles(micros * 1000).0;
        let absences = [(at(5), at(15)), (at(20), at(32)), (at(36), at(44))];
        let turns = Turns::of(&absences, clock, 3);
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 0.1;
        assert!(near(turns.duration_us, 4.5), "{turns:?}");
        assert!(near(turns.interval_us, 10.0), "{turns:?}");
        assert_eq!(Turns::of(&[], clock, 0).duration_us, None);
        let few = Turns::of(&absences, clock, 4);
        assert_eq!(
            (few.turns, few.duration_us, few.interval_us),
            (3, None, None)
        );
    }

    #[test]
    fn a_tenth_of_the_turns_that_fit_are_enough() {
        assert_eq!(Turns::fewest(Duration::from_millis(200)), 2000);
    }

    #[test]
    fn it_ends_when_its_time_is_over() {
        let turns = Turns::note(Duration::from_millis(5), Duration::from_secs(3600), || ());
        assert_eq!(turns.turns, 0);
    }
}
