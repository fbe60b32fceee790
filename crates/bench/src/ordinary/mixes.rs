//! The mixes of the bench of ordinary code: short lookups beside long jobs of a library, to
//! completion and preempted in three ways, in bursts of the same arrivals.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shinjuku_bench_ordinary::mixes::{MIXES, Mix};
use shinjuku_bench_ordinary::serving::LONGEST;
use shinjuku_bench_ordinary::{Served, Times};
use shinjuku_plot::Table;
use shinjuku_workload::repeat::median;

use super::{AROUND, COMPILED, Measuring, PLAIN, Programs};
use crate::harness::{Comparison, Goal, Runs, Section, Session, Target};
use crate::policies::saturation::{self, Counts};
use crate::report::{figure, or_dash};

/// Of the worker's time, as that of the targets.
const LOAD: f64 = 0.6;
/// How often a mix's requests are timed, by a process each: the load is a share of the medians.
const TIMINGS: u32 = 3;
/// So many short requests a burst is to have, if it may last that long: its p99 is then that of
/// ten.
const ENOUGH: f64 = 1_000.0;
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
    /// How long a burst lasts, from its first arrival to its last.
    pub seconds: f64,
    /// One for each way to schedule.
    pub contenders: Vec<Runs<Served>>,
}

/// About how long it takes.
pub(super) fn expected(session: &Session) -> Duration {
    let burst = session.length().min(LONGEST) + AROUND;
    let timings = per_timing(session) * TIMINGS * MIXES.len() as u32;
    timings + session.all(burst, MIXES.len() * CONTENDERS.len())
}

/// In a loop, and in a burst.
fn per_timing(session: &Session) -> Duration {
    session.length() + session.length().min(LONGEST) + AROUND
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
    if session.length() > LONGEST {
        session.notes.push(format!(
            "Bursts last {LONGEST:?}, not {:?}: the kernel takes real-time threads off their cores \
             before a second is over.",
            session.length()
        ));
    }
    let mixes = MIXES.iter().zip(0..);
    mixes
        .map(|(mix, number)| of_mix(mix, number, programs, measuring, session))
        .collect()
}

/// What a mix's requests take in the plain program.
fn times(
    mix: &Mix,
    number: usize,
    programs: &Programs,
    measuring: Measuring<'_>,
    session: &mut Session,
) -> Result<Times> {
    let each = per_timing(session);
    session.progress.begin(&format!("{}: times", mix.name));
    let mut taken = Vec::new();
    for _ in 0..TIMINGS {
        taken.push(measuring.figure(&programs.plain, number, &["times"])?);
        session.progress.end(each);
    }
    let of = |part: fn(&Times) -> f64| {
        let parts: Vec<f64> = taken.iter().map(part).collect();
        median(&parts).context("no time was taken")
    };
    Ok(Times {
        short_us: of(|one| one.short_us)?,
        long_us: of(|one| one.long_us)?,
    })
}

/// How long a burst is to last, in seconds: as everything else, or as long as it takes for enough
/// short requests, as far as bursts may go.
fn seconds(mix: &Mix, times: Times, others: f64) -> f64 {
    let short_share = 1.0 - mix.long_share;
    let mean_us = short_share * times.short_us + mix.long_share * times.long_us;
    let short_per_second = short_share * LOAD * 1e6 / mean_us;
    let enough = ENOUGH / short_per_second;
    others.max(enough).min(LONGEST.as_secs_f64())
}

fn of_mix(
    mix: &Mix,
    number: usize,
    programs: &Programs,
    measuring: Measuring<'_>,
    session: &mut Session,
) -> Result<MixResults> {
    let times = times(mix, number, programs, measuring, session)?;
    let measuring = Measuring {
        seconds: seconds(mix, times, measuring.seconds),
        ..measuring
    };
    let mut contenders = CONTENDERS;
    let [short, long, load] = [times.short_us, times.long_us, LOAD].map(|one| one.to_string());
    let runs = session.interleave(
        &format!("{} at {:.0} %", mix.name, LOAD * 100.0),
        &mut contenders,
        |(name, ..)| (*name).to_owned(),
        Duration::from_secs_f64(measuring.seconds) + AROUND,
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
        seconds: measuring.seconds,
        contenders: runs,
    })
}

/// Whether a contender could not keep up, judged over all its repetitions together as the policies
/// are: its latency is then a matter of how long one waits.
fn is_saturated(runs: &Runs<Served>) -> bool {
    let of_kind = |kind: usize| -> Counts {
        let counts = runs.measured().map(|one| one.counts[kind]);
        let counts = counts.map(|one| Counts {
            offered: one.offered,
            finished: one.finished,
            refused: 0,
            unfinished: one.unfinished,
        });
        counts.sum()
    };
    saturation::is_saturated(&[of_kind(0), of_kind(1)])
}

/// What is compared of a mix.
fn compared(mix: &str, load: f64) -> String {
    format!("{mix} at {:.0} %: short p99", load * 100.0)
}

impl MixResults {
    fn of(&self, name: &str) -> Option<&Runs<Served>> {
        Runs::named(&self.contenders, name)
    }

    /// p99 of short requests to completion, over `name`'s; none where either is saturated.
    fn gain(&self, name: &str, goal: Option<Goal>) -> Comparison {
        let what = compared(&self.name, self.load);
        match [FCFS, name].map(|name| self.of(name).filter(|runs| !is_saturated(runs))) {
            [Some(fcfs), Some(other)] => fcfs.compare(other, what, goal, |one| one.short_p99_us),
            _ => Comparison::of(what, [FCFS, name], &[], goal),
        }
    }

    fn target(&self) -> Target {
        let gain = self.gain(COMPILED_5, Some(SHORTER));
        let target = Target::of(&gain).expect("the comparison has a goal");
        let Some(own) = self.of(COMPILED_5) else {
            return target;
        };
        if is_saturated(own) {
            return target.missed(format!("{COMPILED_5} is saturated"));
        }
        let target = match self.of(FCFS).is_some_and(is_saturated) {
            true => Target::not_shown(target.name, SHORTER, "c-FCFS is saturated and has no p99"),
            false => target,
        };
        target.unless_failed(own)
    }
}

/// One for each mix.
pub(super) fn targets(mixes: &[MixResults]) -> Vec<Target> {
    let of = |mix: &Mix| match mixes.iter().find(|one| one.name == mix.name) {
        Some(measured) => measured.target(),
        None => {
            let name = format!("{}: {FCFS} / {COMPILED_5}", compared(mix.name, LOAD));
            Target::not_shown(name, SHORTER, "this mix was not measured")
        }
    };
    MIXES.iter().map(of).collect()
}

/// The mixes' table.
pub(super) fn section(mixes: &[MixResults]) -> Section {
    let mut table = Table::new(
        "latency of short requests in bursts; medians",
        [
            "mix",
            "short us",
            "long us",
            "burst s",
            "contender",
            "short requests",
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
            let latency = |value: fn(&Served) -> Option<f64>| match is_saturated(runs) {
                true => "saturated".to_owned(),
                false => of(value),
            };
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
                figure(mix.seconds),
                runs.name.clone(),
                of(|one| Some(one.short_requests as f64)),
                latency(|one| Some(one.short_p50_us)),
                latency(|one| one.short_p99_us),
                gain,
                of(|one| Some(one.preemptions as f64 / one.requests as f64)),
                of(|one| Some(one.unfinished() as f64)),
            ]);
        }
    }
    table.notes.push(
        "Open loop, one dispatcher and one worker, the same arrivals for all. Saturated: in all \
         repetitions together requests did not finish, or clearly fewer finished than arrived. A \
         repetition has no p99 of fewer than 100 short requests."
            .to_owned(),
    );
    Section::new(
        format!("What it is worth, at {:.0} % load", LOAD * 100.0),
        [table],
    )
}

#[cfg(test)]
mod tests {
    use shinjuku_bench_ordinary::Counted;

    use super::*;
    use crate::harness::Verdict;

    const FINISHED: u64 = 100_000;

    fn served(p99_us: Option<f64>) -> Served {
        let counted = Counted {
            offered: FINISHED,
            finished: FINISHED,
            unfinished: 0,
        };
        Served {
            short_p50_us: 1.0,
            short_p99_us: p99_us,
            short_requests: FINISHED,
            requests: 2 * FINISHED,
            counts: [counted; 2],
            preemptions: FINISHED,
            short_preemptions: 0,
            description: String::new(),
        }
    }

    fn mix(fcfs: f64, compiled: f64) -> MixResults {
        let runs = |name, p99| Runs::of(name, vec![Some(served(Some(p99))); 3]);
        MixResults {
            name: "store".to_owned(),
            times: Times {
                short_us: 1.0,
                long_us: 500.0,
            },
            load: LOAD,
            seconds: 0.3,
            contenders: vec![runs(FCFS, fcfs), runs(COMPILED_5, compiled)],
        }
    }

    /// A mix that meets its target, but for what one contender's repetitions are.
    fn spoilt(contender: usize, spoil: fn(&mut Served)) -> MixResults {
        let mut mix = mix(800.0, 100.0);
        let runs = &mut mix.contenders[contender].runs;
        runs.iter_mut().flatten().for_each(spoil);
        mix
    }

    #[test]
    fn the_target_is_to_completion_over_compiled_probes() {
        assert_eq!(mix(800.0, 100.0).target().verdict, Verdict::Met);
        assert_eq!(mix(790.0, 100.0).target().verdict, Verdict::Missed);
        let table = &section(&[mix(800.0, 100.0)]).tables[0];
        assert_eq!(table.rows[1][8], "8.00 (8.00..8.00)");
        assert_eq!(table.rows[1][5], "100000");
    }

    #[test]
    fn a_saturated_contender_has_no_p99_and_its_target_is_missed() {
        let unfinished = |one: &mut Served| one.counts[1].unfinished = 1;
        let behind = |one: &mut Served| one.counts[0].finished = FINISHED / 100 * 98;
        for spoil in [unfinished, behind] {
            let own = spoilt(1, spoil);
            assert_eq!(own.target().verdict, Verdict::Missed);
            let row = &section(&[own]).tables[0].rows[1];
            assert_eq!(row[6..9], ["saturated", "saturated", "-"]);
            let baseline = spoilt(0, spoil).target();
            assert_eq!(baseline.verdict, Verdict::NotShown);
            assert!(baseline.reason.unwrap().contains("c-FCFS is saturated"));
        }
        let mut both = spoilt(0, behind);
        both.contenders[1]
            .runs
            .clone_from(&spoilt(1, behind).contenders[1].runs);
        assert_eq!(both.target().verdict, Verdict::Missed);
    }

    #[test]
    fn a_contender_that_fails_misses_its_target() {
        let mut mix = mix(800.0, 100.0);
        mix.contenders[1].runs[0] = None;
        assert_eq!(mix.target().verdict, Verdict::Met);
        mix.contenders[1].runs[1] = None;
        assert_eq!(mix.target().verdict, Verdict::Missed);
        mix.contenders[1].runs[2] = None;
        assert_eq!(mix.target().verdict, Verdict::Missed);
    }

    #[test]
    fn without_a_p99_or_a_mix_nothing_is_claimed() {
        let few = spoilt(1, |one| one.short_p99_us = None);
        assert_eq!(few.target().verdict, Verdict::NotShown);
        let all = targets(&[mix(800.0, 100.0)]);
        let verdicts: Vec<_> = all.iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts[0], Verdict::Met);
        assert_eq!(verdicts[1..], [Verdict::NotShown; MIXES.len() - 1]);
        assert_eq!(all[0].name.replace("store", "store-50"), all[1].name);
    }

    #[test]
    fn a_burst_lasts_until_there_are_enough_short_requests() {
        let times = Times {
            short_us: 4.0,
            long_us: 796.0,
        };
        let [rare, half] = [0, 1].map(|number| &MIXES[number]);
        assert_eq!(seconds(rare, times, 0.3), 0.3);
        // 1500 requests a second, and half of them are short.
        assert_eq!(seconds(half, times, 0.3), 0.8);
        let times = Times {
            long_us: 196.0,
            ..times
        };
        assert!((seconds(half, times, 0.3) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(seconds(rare, times, 10.0), 0.8);
    }
}
