//! The mixes of the bench of ordinary code: short lookups beside long jobs of a library, to
//! completion and preempted in three ways, in bursts of the same arrivals.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku_bench_ordinary::mixes::{MIXES, Mix};
use shinjuku_bench_ordinary::{Served, Times};
use shinjuku_plot::Table;

use super::{AROUND, COMPILED, Measuring, PLAIN, Programs};
use crate::harness::{Comparison, Goal, Runs, Section, Session, Target};
use crate::report::{figure, or_dash};

/// Of the worker's time, as that of the targets.
const LOAD: f64 = 0.6;
/// p99 of short requests, to completion over compiled probes.
const SHORTER: Goal = Goal::AtLeast(8.0);

const FCFS: &str = "c-FCFS";
const BY_HAND: &str = "probes by hand 5 us";
const COMPILED_5: &str = "compiled probes 5 us";
const SIGNAL_100: &str = "signals 100 us";

/// A mix's contenders: name, program, and what it is asked for.
const CONTENDERS: [(&str, &str, &str); 4] = [
    (FCFS, PLAIN, "to-completion"),
    (BY_HAND, PLAIN, "probes"),
    (COMPILED_5, COMPILED, "compiled-probes"),
    (SIGNAL_100, PLAIN, "signals"),
];

/// One mix at one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixResults {
    pub name: String,
    /// What requests took in the plain program, on a core of their own.
    pub times: Times,
    /// Share of the worker's time.
    pub load: f64,
    /// One for each way to schedule.
    pub contenders: Vec<Runs<Served>>,
}

/// How many bursts one repetition has.
pub(super) fn bursts() -> usize {
    MIXES.len() * CONTENDERS.len()
}

/// Measures all mixes.
///
/// # Errors
/// It was interrupted, or a mix's times cannot be taken.
pub(super) fn measure(
    programs: &Programs,
    measuring: Measuring<'_>,
    session: &mut Session,
) -> Result<Vec<MixResults>> {
    let mixes = MIXES.iter().zip(0..);
    mixes
        .map(|(mix, number)| of_mix(mix, number, programs, measuring, session))
        .collect()
}

fn of_mix(
    mix: &Mix,
    number: usize,
    programs: &Programs,
    measuring: Measuring<'_>,
    session: &mut Session,
) -> Result<MixResults> {
    let times: Times = measuring.figure(&programs.plain, number, &["times"])?;
    let mut contenders = CONTENDERS;
    let [short, long, load] = [times.short_us, times.long_us, LOAD].map(|one| one.to_string());
    let runs = session.interleave(
        &format!("{} at {:.0} %", mix.name, LOAD * 100.0),
        &mut contenders,
        |(name, ..)| (*name).to_owned(),
        session.length() + AROUND,
        |(_, program, way), seed| {
            let program = match *program {
                PLAIN => &programs.plain,
                _ => &programs.instrumented,
            };
            let seed = seed.to_string();
            let of = [
                "serve",
                "--way",
                way,
                "--short-us",
                &short,
                "--long-us",
                &long,
                "--load",
                &load,
                "--seed",
                &seed,
            ];
            Ok(Some(measuring.figure(program, number, &of)?))
        },
    )?;
    Ok(MixResults {
        name: mix.name.to_owned(),
        times,
        load: LOAD,
        contenders: runs,
    })
}

impl MixResults {
    /// p99 of short requests to completion, over `name`'s.
    fn gain(&self, name: &str, goal: Option<Goal>) -> Comparison {
        let what = format!("{} at {:.0} %: short p99", self.name, self.load * 100.0);
        match [FCFS, name].map(|name| Runs::named(&self.contenders, name)) {
            [Some(fcfs), Some(other)] => fcfs.compare(other, what, goal, |one| one.short_p99_us),
            _ => Comparison::of(what, [FCFS, name], &[], goal),
        }
    }

    pub(super) fn target(&self) -> Target {
        Target::of(&self.gain(COMPILED_5, Some(SHORTER))).expect("the comparison has a goal")
    }
}

/// The mixes' table.
pub(super) fn section(mixes: &[MixResults]) -> Section {
    let mut table = Table::new(
        "latency of short requests in bursts; medians",
        [
            "mix",
            "short us",
            "long us",
            "contender",
            "p50 us",
            "p99 us",
            "c-FCFS / this",
            "preemptions / request",
            "unfinished",
        ],
    );
    for mix in mixes {
        for runs in &mix.contenders {
            let of = |value: fn(&Served) -> Option<f64>| or_dash(runs.median(value));
            let gain = mix.gain(&runs.name, None).ratio;
            let gain = gain.map_or_else(
                || "-".to_owned(),
                |gain| {
                    let ratio = gain.ratio;
                    format!("{:.2} ({:.2}..{:.2})", ratio.median, ratio.min, ratio.max)
                },
            );
            table.push([
                mix.name.clone(),
                figure(mix.times.short_us),
                figure(mix.times.long_us),
                runs.name.clone(),
                of(|one| Some(one.short_p50_us)),
                of(|one| one.short_p99_us),
                gain,
                of(|one| Some(one.preemptions as f64 / one.requests as f64)),
                of(|one| Some(one.unfinished as f64)),
            ]);
        }
    }
    table.notes.push(
        "Open loop, one dispatcher and one worker, the same arrivals for all. A repetition in \
         which requests did not finish has no p99."
            .to_owned(),
    );
    Section::new(
        format!("What it is worth, at {:.0} % load", LOAD * 100.0),
        [table],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict;

    fn served(p99_us: Option<f64>) -> Served {
        Served {
            short_p50_us: 1.0,
            short_p99_us: p99_us,
            requests: 100,
            unfinished: u64::from(p99_us.is_none()),
            preemptions: 50,
            short_preemptions: 0,
            description: String::new(),
        }
    }

    fn mix(fcfs: f64, compiled: Option<f64>) -> MixResults {
        let runs = |name, p99| Runs::of(name, vec![Some(served(p99)); 3]);
        MixResults {
            name: "store".to_owned(),
            times: Times {
                short_us: 1.0,
                long_us: 500.0,
            },
            load: LOAD,
            contenders: vec![runs(FCFS, Some(fcfs)), runs(COMPILED_5, compiled)],
        }
    }

    #[test]
    fn the_target_is_to_completion_over_compiled_probes() {
        assert_eq!(mix(800.0, Some(100.0)).target().verdict, Verdict::Met);
        assert_eq!(mix(790.0, Some(100.0)).target().verdict, Verdict::Missed);
        assert_eq!(mix(790.0, None).target().verdict, Verdict::NotShown);
        let table = &section(&[mix(800.0, Some(100.0))]).tables[0];
        assert_eq!(table.rows[1][6], "8.00 (8.00..8.00)");
    }
}
