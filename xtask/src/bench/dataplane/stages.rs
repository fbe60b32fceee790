//! One thread, client and server: requests of 64 bytes through more and more of the server, from
//! the bare device to the whole runtime. What a stage has more than the one before it is its price.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_dataplane::{Rate, Rates};

use super::Bench;
use super::publish::Section;
use super::results::Runs;
use crate::report::table::Table;

/// Requests a second that the runtime is to reach.
const TARGET: f64 = 5e6;

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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// The device: `net_ring`, or `memory` without libdpdk.
    pub wire: String,
    /// The stages.
    pub stages: Vec<Runs<Rates>>,
}

/// About how long it takes.
pub fn expected(bench: &Bench) -> Duration {
    bench.expected(1) * STAGES.len() as u32 * bench.repetitions
}

/// Measures all stages in turn, repetition by repetition.
///
/// # Errors
/// It was interrupted.
pub fn measure(bench: &mut Bench) -> Result<Stages> {
    let mut stages: Vec<_> = STAGES.iter().map(|(name, _)| Runs::new(*name)).collect();
    for repetition in 1..=bench.repetitions {
        for stage in &mut stages {
            let what = format!("one thread: {}, repetition {repetition}", stage.name);
            let core = bench.cores[1];
            let rates = bench.attempt(&what, bench.expected(1), |bench| {
                let rates = bench.program.rates(&stage.name, bench.seconds);
                rates.cores(&[core]).run()
            });
            stage.runs.push(rates?);
        }
    }
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
    /// What each stage does and costs, and whether the target is reached.
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
            let share =
                raw.and_then(|raw| Some(raw.spread(nanos)?.median / runs.spread(nanos)?.median));
            share.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share))
        };
        let mut before = 0.0;
        for ((name, what), runs) in STAGES.iter().zip(&self.stages) {
            let Some((median, slow)) = runs.spread(nanos).zip(runs.spread(slow)) else {
                continue;
            };
            let sustained_nanos = runs.spread(sustained);
            table.push([
                format!("{name}: {what}"),
                format!("{:.2}", 1e3 / median.median),
                format!("({:.2}..{:.2})", 1e3 / median.max, 1e3 / median.min),
                sustained_nanos
                    .map_or_else(|| "-".into(), |nanos| format!("{:.2}", 1e3 / nanos.median)),
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
        let runtime = self.stages.iter().find(|runs| runs.name == RUNTIME);
        let mut notes = Vec::new();
        notes.extend(runtime.and_then(verdict));
        notes.push(BURSTS.to_owned());
        notes.push(SLOW.to_owned());
        notes.push("The client's part is in raw, and the same in all stages.".to_owned());
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
        Section {
            heading: "One thread, stage by stage",
            tables: vec![table],
            figures: Vec::new(),
            notes,
        }
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

/// Whether the runtime reaches its target: by the median burst and by all.
fn verdict(runtime: &Runs<Rates>) -> Option<String> {
    let [median, all] = [nanos, sustained].map(|nanos| runtime.spread(nanos));
    let (median, all) = (median?.median, all?.median);
    let most = 1e9 / TARGET;
    Some(format!(
        "target: {:.0} M/s through the runtime, by the median burst and by all bursts: {} ({:.2} M/s and {:.2} M/s: {median:.0} ns \
         and {all:.0} ns each, and {most:.0} are allowed)",
        TARGET / 1e6,
        if median.max(all) <= most {
            "reached"
        } else {
            "MISSED"
        },
        1e3 / median,
        1e3 / all,
    ))
}

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

#[cfg(test)]
mod tests {
    use super::*;

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
        Runs {
            name: RUNTIME.to_owned(),
            runs: vec![Some(Rates {
                description: None,
                dispatchers: vec![rate],
                seconds: 1.0,
                unanswered: 0,
            })],
        }
    }

    #[test]
    fn the_target_is_reached_only_by_the_median_burst_and_all_bursts() {
        for (median, all, said) in [
            (150.0, 190.0, "reached"),
            (150.0, 210.0, "MISSED"),
            (210.0, 190.0, "MISSED"),
        ] {
            let verdict = verdict(&runtime(median, all)).unwrap();
            assert!(verdict.contains(said), "{verdict}");
        }
        assert_eq!(waited(&runtime(150.0, 190.0)), "by the clock");
    }
}
