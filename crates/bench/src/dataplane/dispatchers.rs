//! Two dispatchers, a core and a queue of one device each, beside one: how much more they do
//! together. Workers do nothing: either there is the transport alone, or the whole runtime with an
//! empty handler.
//!
//! Together is what all did in one interval by the clock. What each did while it ran says the same
//! only if none ran at another's expense: it counts only where each kept to a core of its own, and
//! then as a second and a third opinion.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Rate, Rates};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::Spread;

use super::{Bench, stages};
use crate::harness::{Comparison, Goal, Runs, Section, Session, Target, Verdict, comparisons};

/// How many times as much as one two are to do.
const GOAL: Goal = Goal::AtLeast(1.8);

/// The share of the time that others may have a dispatcher's core before a verdict says so.
const DISTURBED: f64 = 0.05;

const STAGES: [&str; 2] = ["transport", "runtime"];
/// A way of having dispatchers: in words, how many, and whether a hash in software spreads the
/// flows.
type Way = (&'static str, u16, bool);
const WAYS: [Way; 3] = [
    ("one", 1, false),
    ("two", 2, false),
    ("two, spread by software", 2, true),
];
/// Of each dispatcher's client, where they are spread.
const FLOWS: u16 = 64;

/// For each of the stages, all ways.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatchers {
    /// The device: `net_ring`, or `memory` without libdpdk.
    pub wire: String,
    pub stages: Vec<Vec<Runs<Rates>>>,
}

fn ways(bench: &Bench) -> Vec<Way> {
    let spreads = bench.program.dpdk.is_some();
    let possible = |(_, _, software): &Way| spreads || !software;
    WAYS.into_iter().filter(possible).collect()
}

/// About how long it takes.
pub fn expected(bench: &Bench, session: &Session) -> Duration {
    session.all(bench.expected(1), STAGES.len() * ways(bench).len())
}

/// Measures all in turn, repetition by repetition.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &Bench, session: &mut Session) -> Result<Dispatchers> {
    let ways = ways(bench);
    let [first, second] = bench.cores;
    let mut all: Vec<_> = STAGES
        .iter()
        .flat_map(|&stage| ways.iter().map(move |&way| (stage, way)))
        .collect();
    let name = |(stage, (way, ..)): &(&str, Way)| format!("{stage}, {way}");
    let rates = |&mut (stage, (_, count, software)): &mut (&str, Way), _| {
        let rates = bench.program.rates(stage, bench.seconds);
        let rates = rates.cores(&[second, first][..count.into()]);
        match software {
            true => rates.software(FLOWS).run().map(Some),
            false => rates.run().map(Some),
        }
    };
    let mut runs = session
        .interleave("dispatchers", &mut all, name, bench.expected(1), rates)?
        .into_iter();
    Ok(Dispatchers {
        wire: bench.program.wire().to_owned(),
        stages: STAGES
            .map(|_| runs.by_ref().take(ways.len()).collect())
            .into(),
    })
}

/// A way of telling how many requests a second all dispatchers do together; `None`: that cannot be
/// said.
type Together = fn(&Rates) -> Option<f64>;
const OPINIONS: [(&str, Together); 3] = [
    ("by the clock", |rates| Some(rates.by_the_clock())),
    ("all bursts", |rates| sum(rates, |one| one.sustained)),
    ("median bursts", |rates| sum(rates, Rate::median)),
];

/// The sum of what each dispatcher does while it has its core.
fn sum(rates: &Rates, each: fn(&Rate) -> f64) -> Option<f64> {
    rates
        .on_cores_of_their_own()
        .then(|| rates.dispatchers.iter().map(each).sum())
}

/// Of all dispatchers' bursts, the slowest slow tenth's.
fn slow(rates: &Rates) -> Option<f64> {
    rates
        .dispatchers
        .iter()
        .map(|one| one.nanos[2])
        .reduce(f64::max)
}

/// The cores, and whether dispatchers shared them or left them.
fn cores(runs: &Runs<Rates>) -> String {
    let cores = stages::cores(runs.measured().flat_map(|rates| &rates.dispatchers));
    let shared = runs
        .measured()
        .filter(|rates| !rates.on_cores_of_their_own())
        .count();
    match shared {
        0 => cores,
        shared => format!(
            "{cores}, NOT THEIR OWN in {shared} of {}",
            runs.measured().count()
        ),
    }
}

/// How `over` compares with `under`, in each opinion.
fn compare(over: &Runs<Rates>, under: &Runs<Rates>, goal: Option<Goal>) -> Vec<Comparison> {
    let compare = |(what, together): (&str, Together)| over.compare(under, what, goal, together);
    OPINIONS.map(compare).into()
}

/// The target of two dispatchers. It takes right replies to all requests.
fn target(two: &Runs<Rates>, one: &Runs<Rates>) -> Target {
    stages::sound(by_the_clock(two, one), two, &[one], Rates::faults)
}

/// By the clock. It takes all opinions, and each repetition on cores of their own.
fn by_the_clock(two: &Runs<Rates>, one: &Runs<Rates>) -> Target {
    let compared = compare(two, one, Some(GOAL));
    let Some(target) = compared.first().and_then(Target::of) else {
        return Target::not_shown(&two.name, GOAL, stages::NOT_MEASURED);
    };
    let own = |runs: &Runs<Rates>| runs.measured().all(Rates::on_cores_of_their_own);
    let mut missed = compared.iter().filter(|one| one.met() != Some(true));
    let waits = [two, one].map(|runs| runs.median(stages::longest_wait));
    let waited = waits.into_iter().flatten().fold(0.0, f64::max);
    if target.verdict == Verdict::NotShown {
        target
    } else if !own(two) || !own(one) {
        target.missed("dispatchers shared a core, or left theirs")
    } else if let Some(missed) = missed.next() {
        let mut why = format!("missed {}", missed.what);
        if waited > DISTURBED {
            let percent = 100.0 * waited;
            why += &format!(
                "; for {percent:.0} % of the time others had a dispatcher's core: ask a quiet machine"
            );
        }
        target.missed(why)
    } else {
        target
    }
}

impl Dispatchers {
    /// Two dispatchers beside one, in each stage.
    pub fn targets(&self) -> Vec<Target> {
        let of = |(at, stage): (usize, &&str)| match self.stages.get(at).map(Vec::as_slice) {
            Some([one, two, ..]) => target(two, one),
            _ => Target::not_shown(format!("{stage}, two / one"), GOAL, stages::NOT_MEASURED),
        };
        STAGES.iter().enumerate().map(of).collect()
    }

    /// Rates, and how they compare.
    pub fn section(&self) -> Section {
        let title = format!(
            "requests of 64 bytes over {}: million a second, all dispatchers together",
            self.wire
        );
        let header = [
            "",
            "by the clock",
            "(min..max)",
            "all bursts",
            "median bursts",
            "slow tenth, ns",
            "waited",
            "cores",
        ];
        let mut table = Table::new(title, header);
        let mut compared = Vec::new();
        for ways in &self.stages {
            for runs in ways {
                let [clock, all, medians] = OPINIONS.map(|(_, together)| runs.spread(together));
                let Some(clock) = clock else {
                    continue;
                };
                let median = |rate: Option<Spread>, unit: f64, digits: usize| {
                    rate.map_or_else(
                        || "-".into(),
                        |rate| format!("{:.digits$}", rate.median / unit),
                    )
                };
                table.push([
                    runs.name.clone(),
                    format!("{:.2}", clock.median / 1e6),
                    format!("({:.2}..{:.2})", clock.min / 1e6, clock.max / 1e6),
                    median(all, 1e6, 2),
                    median(medians, 1e6, 2),
                    median(runs.spread(slow), 1.0, 1),
                    stages::waited(runs),
                    cores(runs),
                ]);
            }
            let [one, two, others @ ..] = &ways[..] else {
                continue;
            };
            compared.extend(compare(two, one, Some(GOAL)));
            compared.extend(others.iter().flat_map(|other| compare(other, one, None)));
        }
        let mut notes = vec![
            "Each dispatcher has a queue of the same device, a client behind it on its thread, and workers that do nothing: transport \
             answers on the spot, runtime is the whole, inline, with an empty handler."
                .to_owned(),
            "By the clock: what all dispatchers answered in one interval by the time that it took, whatever held them up; other \
             programs on a busy machine, too. All bursts and median bursts are the sums of what each does while it has its core, where \
             each kept to one of its own: what it waited there, others' threads had."
                .to_owned(),
            stages::SLOW.to_owned(),
        ];
        if self.stages.iter().any(|ways| ways.len() == WAYS.len()) {
            notes.push(
                "Spread by software: clients send all flows on both queues, and the dispatchers hand half of the requests on to each \
                 other: each then does a part of the other's work, so no target is set."
                    .to_owned(),
            );
        }
        let all = || self.stages.iter().flatten().flat_map(Runs::measured);
        notes.extend(stages::faults(all().map(Rates::faults)));
        let described = all().find_map(|rates| rates.description.as_ref());
        notes.extend(described.map(|said| format!("runtime: {said}")));
        let tables = [table].into_iter().chain(comparisons(&compared));
        Section::new("Two dispatchers", tables).notes(notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repetition of half a second: each dispatcher's core and the replies that it got. While it
    /// runs, each does 5 M/s.
    fn runs(name: &str, dispatchers: &[(usize, u64)]) -> Runs<Rates> {
        let rate = |&(core, within): &(usize, u64)| Rate {
            nanos: [190.0, 200.0, 250.0],
            sustained: 5e6,
            waited: Some(0.0),
            cores: vec![core],
            requests: within,
            within,
            wrong: 0,
        };
        let rates = Rates {
            description: None,
            dispatchers: dispatchers.iter().map(rate).collect(),
            seconds: 0.5,
            unanswered: 0,
        };
        Runs::of(name, [Some(rates)])
    }

    fn reached(two: &Runs<Rates>, one: &Runs<Rates>) -> bool {
        target(two, one).verdict == Verdict::Met
    }

    #[test]
    fn two_on_one_core_miss_the_target_however_fast_each_is_while_it_runs() {
        let one = runs("one", &[(1, 2_500_000)]);
        let apart = runs("two", &[(1, 2_500_000), (0, 2_400_000)]);
        assert!(reached(&apart, &one));
        let shared = runs("two", &[(1, 1_250_000), (1, 1_250_000)]);
        assert!(!reached(&shared, &one));
        let [clock, all, medians] = &compare(&shared, &one, Some(GOAL))[..] else {
            panic!("three opinions");
        };
        assert_eq!(clock.ratio.unwrap().ratio.median, 1.0);
        assert_eq!(
            (clock.met(), all.met(), medians.met()),
            (Some(false), None, None)
        );
        assert!(cores(&shared).contains("NOT THEIR OWN in 1 of 1"));
        // Not even if the clock said otherwise.
        let shared = runs("two", &[(1, 2_500_000), (1, 2_500_000)]);
        assert!(!reached(&shared, &one));
    }

    #[test]
    fn without_a_figure_it_is_missed_if_two_have_failed() {
        let [one, two] = ["one", "two"].map(|name| runs(name, &[(1, 2_500_000)]));
        let none = |name| Runs::of(name, [None]);
        assert_eq!(target(&none("two"), &one).verdict, Verdict::Missed);
        assert_eq!(target(&two, &none("one")).verdict, Verdict::NotShown);
    }

    #[test]
    fn wrong_or_missing_replies_of_either_miss_the_target() {
        let one = runs("one", &[(1, 2_500_000)]);
        let two = runs("two", &[(1, 2_500_000), (0, 2_400_000)]);
        let mut lost = two.clone();
        lost.runs[0].as_mut().unwrap().unanswered = 2;
        let mut wrong = one.clone();
        wrong.runs[0].as_mut().unwrap().dispatchers[0].wrong = 1;
        assert!(reached(&two, &one) && !reached(&lost, &one) && !reached(&two, &wrong));
    }

    #[test]
    fn a_dispatcher_that_stalls_between_bursts_misses_the_target() {
        let one = runs("one", &[(1, 2_500_000)]);
        let quiet = runs("two", &[(1, 2_500_000), (0, 2_500_000)]);
        assert!(reached(&quiet, &one));
        let stalled = runs("two", &[(1, 2_500_000), (0, 1_000_000)]);
        assert_eq!(
            target(&stalled, &one).reason.unwrap(),
            "missed by the clock"
        );
        // As for a machine that does something else.
        let mut busy = stalled;
        busy.runs[0].as_mut().unwrap().dispatchers[1].waited = Some(0.6);
        let why = target(&busy, &one).reason.unwrap();
        assert!(why.contains("for 60 % of the time"), "{why}");
    }
}
