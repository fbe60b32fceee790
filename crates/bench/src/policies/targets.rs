//! What the policies must reach.

use shinjuku_workload::repeat::Spread;

use super::results::{BASELINE, Class, Policies, Run};
use super::summary::percent;
use crate::costs::operations::TIMELINE;
use crate::harness::{Goal, Target, distinct};

/// The contender that must gain: c-PRE-SQ, by probes, with the quantum of the paper's figures.
const CONTENDER: &str = "c-PRE-SQ probe 5 µs";
/// The same on kernel threads, of code without probes.
const KERNEL_THREADS: &str = "c-PRE-SQ kernel-thread 50 µs";
/// A contender, a mix, a load, and how many times the contender's p99 of short requests that of
/// c-FCFS must be.
const GAINS: [(&str, &str, f64, f64); 4] = [
    (CONTENDER, "hi", 0.4, 20.0),
    (CONTENDER, "hi", 0.6, 20.0),
    (CONTENDER, "mid", 0.6, 5.0),
    (KERNEL_THREADS, "hi", 0.4, 2.5),
];
/// How many times what a preemption by signal and a switch between kernel threads take a preemption
/// may take where contexts are kernel threads.
const KERNEL_THREAD_COST: f64 = 1.3;
/// What a timeline's slice may take while something is recorded, of a request that ends and of one
/// that is preempted, and while nothing is: that is a
/// few stores to a line that the worker has, which is not told from nothing. In ns.
const TIMELINE_COSTS: [f64; 3] = [30.0, 30.0, 3.0];
/// Points whose work may run slower than calibrated.
const MARKED: Goal = Goal::AtMost(0.0);

const NO_COSTS: &str = "it is in the table of costs, which was left out";

/// All of them, each with its verdict.
pub fn targets(results: &Policies) -> Vec<Target> {
    let gains = GAINS.map(|(who, mix, load, wanted)| gain(results, who, mix, load, wanted));
    let others = [kernel_thread_cost(results), marked(results)];
    let timeline = TIMELINE.into_iter().zip(TIMELINE_COSTS);
    let timeline = timeline.map(|(row, most)| timeline_cost(results, row, most));
    gains.into_iter().chain(timeline).chain(others).collect()
}

/// What is compared at a point, as its comparison says it.
pub fn compared(mix: &str, load: f64, class: Class) -> String {
    format!("{mix} at {}, p99 of {class} requests", percent(load))
}

fn gain(results: &Policies, contender: &str, mix: &str, load: f64, wanted: f64) -> Target {
    let what = compared(mix, load, Class::Short);
    let goal = Goal::AtLeast(wanted);
    let name = format!("{what}: {BASELINE} / {contender}");
    let not_shown = |reason: &str| Target::not_shown(&name, goal, reason);
    let of = |name: &str| {
        let mut runs = results.of(mix, Class::Short);
        runs.find(|run| run.load == load && run.contender() == name)
    };
    let (Some(own), Some(baseline)) = (of(contender), of(BASELINE)) else {
        return not_shown("this point was not measured");
    };
    if own.saturated {
        return not_shown("").missed(format!("{contender} is saturated"));
    }
    if baseline.saturated {
        return not_shown("c-FCFS is saturated and has no percentile");
    }
    let mut comparisons = results.comparisons.iter();
    let found = comparisons.find(|one| one.what == what && one.under == contender);
    match found.and_then(|one| one.ratio) {
        Some(ratio) => Target::measured(name, goal, ratio.ratio),
        None => not_shown("no repetition has both figures"),
    }
}

/// A preemption of a kernel thread, in terms of its parts.
fn kernel_thread_cost(results: &Policies) -> Target {
    let name = "preempt/kernel-thread / (preempt/signal + switch/kernel-thread)";
    let goal = Goal::AtMost(KERNEL_THREAD_COST);
    let cost = |row: &str| results.costs.get(row).copied();
    let parts = cost("preempt/signal").zip(cost("switch/kernel-thread"));
    match cost("preempt/kernel-thread").zip(parts) {
        Some((whole, (signal, switch))) => {
            let ratio = whole / (signal + switch);
            let figure = Spread {
                median: ratio,
                min: ratio,
                max: ratio,
            };
            Target::measured(name, goal, figure)
        }
        None => Target::not_shown(name, goal, NO_COSTS),
    }
}

/// What a worker takes to write a slice of a timeline, or not to.
fn timeline_cost(results: &Policies, row: &str, most: f64) -> Target {
    let (name, goal) = (format!("{row}, ns"), Goal::AtMost(most));
    let Some(&median) = results.costs.get(row) else {
        return Target::not_shown(name, goal, NO_COSTS);
    };
    let detail = results.cost_details.get(row);
    let figure = Spread {
        median,
        min: detail.and_then(|detail| detail.low).unwrap_or(median),
        max: detail.and_then(|detail| detail.high).unwrap_or(median),
    };
    Target::measured(name, goal, figure)
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
