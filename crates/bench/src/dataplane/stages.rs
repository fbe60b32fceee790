//! One thread, client and server: requests of 64 bytes through more and more of the server, from
//! the bare device to the whole runtime. What a stage has more than the one before it is its price.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Rate, Rates};
use shinjuku_plot::Table;

use super::Bench;
use crate::harness::{Goal, Runs, Section, Session, Target};

/// Million requests a second that the runtime is to reach.
const GOAL: Goal = Goal::AtLeast(5.0);

/// Stages, as `bench-dataplane` calls them, and what each has more than the one before it.
const STAGES: [(&str, &str); 5] = [
    ("raw", "the device alone: frames straight back"),
    ("stack", "+ Interface: parse, check, turn the headers round"),
    (
        "transport",
        "+ Dataplane: lend the buffer, take the reply back",
    ),
    (
        RUNTIME,
        "+ the runtime, inline: dispatch, context, empty handler",
    ),
    (
        "defaults",
        "as runtime, with the default contexts, batch and back-off",
    ),
];
const RUNTIME: &str = "runtime";

/// All stages, in the order of [`STAGES`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// The device: `net_ring`, or `memory` without libdpdk.
    pub wire: String,
    pub stages: Vec<Runs<Rates>>,
}

/// About how long it takes.
pub fn expected(bench: &Bench, session: &Session) -> Duration {
    session.all(bench.expected(1), STAGES.len())
}

/// Measures all stages in turn, repetition by repetition.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &Bench, session: &mut Session) -> Result<Stages> {
    let mut stages = STAGES.map(|(name, _)| name);
    let (each, name) = (bench.expected(1), |stage: &&str| (*stage).to_owned());
    let stages = session.interleave("one thread", &mut stages, name, each, |stage, _| {
        let rates = bench.program.rates(stage, bench.seconds);
        rates.cores(&bench.cores[1..]).run().map(Some)
    })?;
    Ok(Stages {
        wire: bench.program.wire().to_owned(),
        stages,
    })
}

/// Nanoseconds a request: of the median burst, of the burst that is slower than nine tenths of all,
/// and of all bursts.
fn nanos(rates: &Rates) -> Option<f64> {
    Some(rates.dispatchers.first()?.nanos[1])
}

fn slow(rates: &Rates) -> Option<f64> {
    Some(rates.dispatchers.first()?.nanos[2])
}

fn sustained(rates: &Rates) -> Option<f64> {
    Some(1e9 / rates.dispatchers.first()?.sustained)
}

impl Stages {
    /// Whether the runtime reaches its rate: by the median burst and by all.
    pub fn targets(&self) -> Vec<Target> {
        let runtime = Runs::named(&self.stages, RUNTIME);
        let of = |(how, nanos): (&str, Nanos)| {
            let name = format!("million requests a second through the runtime, {how}");
            let rates = runtime.and_then(|runs| runs.spread(|rates| Some(1e3 / nanos(rates)?)));
            let target = Target::judged(name, GOAL, rates, NOT_MEASURED);
            match runtime {
                Some(runs) => sound(target, runs, &[], Rates::faults),
                None => target,
            }
        };
        [("median burst", nanos as Nanos), ("all bursts", sustained)]
            .map(of)
            .into()
    }

    /// What each stage does and costs.
    pub fn section(&self) -> Section {
        let title = format!(
            "requests of 64 bytes over {}, client and server on one thread: million a second, and ns of each",
            self.wire
        );
        let header = [
            "",
            "M/s",
            "(min..max)",
            "all bursts",
            "ns",
            "slow tenth",
            "ns more",
            "of raw",
            "all bursts",
            "waited",
            "core",
        ];
        let mut table = Table::new(title, header);
        let raw = self.stages.first();
        let of_raw = |runs: &Runs<Rates>, nanos: Nanos| {
            let share = raw.and_then(|raw| Some(raw.median(nanos)? / runs.median(nanos)?));
            share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share))
        };
        let mut before = 0.0;
        for ((name, what), runs) in STAGES.iter().zip(&self.stages) {
            let Some((median, slow)) = runs.spread(nanos).zip(runs.spread(slow)) else {
                continue;
            };
            let sustained_nanos = runs.median(sustained);
            table.push([
                format!("{name}: {what}"),
                format!("{:.2}", 1e3 / median.median),
                format!("({:.2}..{:.2})", 1e3 / median.max, 1e3 / median.min),
                sustained_nanos.map_or_else(|| "-".into(), |nanos| format!("{:.2}", 1e3 / nanos)),
                format!("{:.1}", median.median),
                format!("{:.1}", slow.median),
                format!("{:.1}", median.median - before),
                of_raw(runs, nanos),
                of_raw(runs, sustained),
                waited(runs),
                cores(runs.measured().flat_map(|rates| &rates.dispatchers)),
            ]);
            before = median.median;
        }
        let mut notes = vec![
            BURSTS.to_owned(),
            SLOW.to_owned(),
            "The client's part is in raw, and the same in all stages.".to_owned(),
        ];
        notes.extend(faults(
            self.stages
                .iter()
                .flat_map(Runs::measured)
                .map(Rates::faults),
        ));
        for runs in &self.stages {
            let described = runs.measured().find_map(|rates| rates.description.as_ref());
            notes.extend(described.map(|said| format!("{}: {said}", runs.name)));
        }
        Section::new("One thread, stage by stage", [table]).notes(notes)
    }
}

type Nanos = fn(&Rates) -> Option<f64>;

/// What rates are.
pub const BURSTS: &str = "Rates are the median over repetitions of the median over bursts (of 2000 requests on one thread, of 200 \
    between two processes), which other programs hardly touch. All bursts: requests by the time that the thread had its core, its \
    own pauses included.";
/// What `slow` and [`waited`] are.
pub const SLOW: &str = "Slow tenth: ns a request of the burst that nine tenths of all bursts are no slower than, other programs \
    included. Waited: the share of the time that others had the thread's core, which all bursts leave out; where it says \"by the \
    clock\" the kernel does not tell, and nothing is left out.";

/// Why a target's figure is not there.
pub const NOT_MEASURED: &str = "not asked for, or not measured here: the notes say why";

/// The share of its time that the dispatcher that waited longest did; `None`: the kernel does not
/// tell.
pub fn longest_wait(rates: &Rates) -> Option<f64> {
    let longest = |longest: Option<f64>, one: &Rate| Some(longest?.max(one.waited?));
    rates.dispatchers.iter().fold(Some(0.0), longest)
}

/// The median of that over the repetitions, in words.
pub fn waited(runs: &Runs<Rates>) -> String {
    if runs.measured().any(|rates| longest_wait(rates).is_none()) {
        return "by the clock".to_owned();
    }
    let waited = runs.spread(longest_wait);
    waited.map_or_else(
        || "-".into(),
        |share| format!("{:.0} %", 100.0 * share.median),
    )
}

/// On which cores dispatchers ran.
pub fn cores<'a>(dispatchers: impl Iterator<Item = &'a Rate>) -> String {
    let mut cores: Vec<usize> = dispatchers.flat_map(|one| one.cores.clone()).collect();
    cores.sort_unstable();
    cores.dedup();
    let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
    cores.join(" ")
}

/// What went wrong, if anything did: wrong replies, and requests without one.
pub fn faults(all: impl Iterator<Item = [u64; 2]>) -> Option<String> {
    let add = |[wrong, unanswered]: [u64; 2], one: [u64; 2]| [wrong + one[0], unanswered + one[1]];
    let [wrong, unanswered] = all.fold([0; 2], add);
    (wrong + unanswered > 0).then(|| {
        format!("WRONG: {wrong} replies were not what was asked for, {unanswered} requests were not answered.")
    })
}

/// The target of `own`, beside `others`: missed, whatever the figure, where any of them got wrong
/// replies or none, since a rate says nothing then; and where `own` failed.
pub fn sound<T>(
    target: Target,
    own: &Runs<T>,
    others: &[&Runs<T>],
    faults: fn(&T) -> [u64; 2],
) -> Target {
    let mut all = others.iter().copied().chain([own]).flat_map(Runs::measured);
    match all.any(|one| faults(one) != [0; 2]) {
        true => target.missed("wrong or missing replies"),
        false => target.unless_failed(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict::{self, Met, Missed, NotShown};

    fn runtime(median: f64, all: f64) -> Runs<Rates> {
        let rate = Rate {
            nanos: [median, median, 2.0 * median],
            sustained: 1e9 / all,
            waited: None,
            cores: vec![1],
            requests: 1,
            within: 1,
            wrong: 0,
        };
        let rates = Rates {
            description: None,
            dispatchers: vec![rate],
            seconds: 1.0,
            unanswered: 0,
        };
        Runs::of(RUNTIME, [Some(rates)])
    }

    #[test]
    fn the_target_is_reached_only_by_the_median_burst_and_all_bursts() {
        for (median, all, verdicts) in [
            (150.0, 190.0, [Met, Met]),
            (150.0, 210.0, [Met, Missed]),
            (210.0, 190.0, [Missed, Met]),
        ] {
            let stages = Stages {
                wire: "memory".to_owned(),
                stages: vec![runtime(median, all)],
            };
            let found: Vec<_> = stages.targets().iter().map(|one| one.verdict).collect();
            assert_eq!(found, verdicts, "{median} {all}");
        }
        assert_eq!(waited(&runtime(150.0, 190.0)), "by the clock");
    }

    fn all_are(runs: Runs<Rates>, verdict: Verdict) -> bool {
        let stages = Stages {
            wire: "memory".to_owned(),
            stages: vec![runs],
        };
        let mut targets = stages.targets().into_iter();
        targets.all(|target| target.verdict == verdict)
    }

    #[test]
    fn a_rate_of_wrong_or_missing_replies_misses_the_target() {
        let spoilt = |spoil: fn(&mut Rates)| {
            let mut runs = runtime(150.0, 190.0);
            runs.runs.push(runs.runs[0].clone());
            runs.runs[1].iter_mut().for_each(spoil);
            runs
        };
        assert!(all_are(spoilt(|_| {}), Met));
        assert!(all_are(spoilt(|one| one.dispatchers[0].wrong = 1), Missed));
        assert!(all_are(spoilt(|one| one.unanswered = 1), Missed));
    }

    #[test]
    fn a_rate_that_was_not_asked_for_is_not_shown_and_one_that_failed_is_missed() {
        assert!(all_are(Runs::new(RUNTIME), NotShown));
        assert!(all_are(Runs::of(RUNTIME, [None, None]), Missed));
    }
}
