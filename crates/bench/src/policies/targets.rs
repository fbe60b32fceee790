//! What the policies must reach.

use shinjuku_workload::repeat::Spread;

use super::results::{BASELINE, Class, Policies, Run};
use super::summary::percent;
use crate::harness::{Goal, Target, distinct};

/// Who must gain: c-PRE-SQ, by probes, with the quantum of the paper's figures.
const CONTENDER: &str = "c-PRE-SQ probe 5 µs";
/// Mix, load, and how many times c-FCFS's p99 of short requests must be the contender's.
const GAINS: [(&str, f64, f64); 3] = [("hi", 0.4, 20.0), ("hi", 0.6, 20.0), ("mid", 0.6, 5.0)];
/// Points whose work may run slower than calibrated.
const MARKED: Goal = Goal::AtMost(0.0);

/// All of them, each with its verdict.
pub fn targets(results: &Policies) -> Vec<Target> {
    let gains = GAINS.map(|(mix, load, wanted)| gain(results, mix, load, wanted));
    gains.into_iter().chain([marked(results)]).collect()
}

/// What is compared at a point, as its comparison says it.
pub fn compared(mix: &str, load: f64, class: Class) -> String {
    format!("{mix} at {}, p99 of {class} requests", percent(load))
}

fn gain(results: &Policies, mix: &str, load: f64, wanted: f64) -> Target {
    let what = compared(mix, load, Class::Short);
    let goal = Goal::AtLeast(wanted);
    let name = format!("{what}: {BASELINE} / {CONTENDER}");
    let not_shown = |reason: &str| Target::not_shown(&name, goal, reason);
    let of = |contender: &str| {
        let mut runs = results.of(mix, Class::Short);
        runs.find(|run| run.load == load && run.contender() == contender)
    };
    let (Some(own), Some(baseline)) = (of(CONTENDER), of(BASELINE)) else {
        return not_shown("this point was not measured");
    };
    if own.saturated {
        return not_shown("").missed(format!("{CONTENDER} is saturated"));
    }
    if baseline.saturated {
        return not_shown("c-FCFS is saturated and has no percentile");
    }
    let mut comparisons = results.comparisons.iter();
    let found = comparisons.find(|one| one.what == what && one.under == CONTENDER);
    match found.and_then(|one| one.ratio) {
        Some(ratio) => Target::measured(name, goal, ratio.ratio),
        None => not_shown("no repetition has both figures"),
    }
}

/// The bench's check of itself: no latency is of work that ran slower than calibrated.
fn marked(results: &Policies) -> Target {
    let name = "points whose work ran slower than calibrated";
    let runs = results.runs.iter().chain(&results.quantum_sweep);
    let point = |run: &Run| (run.mix.clone(), run.load, run.contender());
    let marked = runs.filter(|run| run.slow().is_some()).map(point);
    let marked = distinct(marked).len() as f64;
    if marked == 0.0 && results.costs.is_empty() {
        let why = "without the table of costs only contenders that never preempt are checked";
        return Target::not_shown(name, MARKED, why);
    }
    let figure = Spread {
        median: marked,
        min: marked,
        max: marked,
    };
    Target::measured(name, MARKED, figure)
}
