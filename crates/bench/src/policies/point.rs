//! One point of a plot: a contender at a load, over all repetitions.

use anyhow::{Context, Result};
use shinjuku_workload::repeat::median;
use shinjuku_workload::{Figures, Length, Schedule, Summary};

use super::burst::{Bench, Outcome, Served};
use super::calibration::{Pace, Prices};
use super::contender::Contender;
use super::mixes::BenchMix;
use super::results::{Class, Run};
use super::saturation::{self, Counts};
use crate::harness::{Runs, Session, by_repetition};

/// The repetitions of a point.
#[derive(Debug, Default)]
pub struct Point {
    repetitions: Vec<Repetition>,
}

/// What is kept of an outcome: a long bench has too many records to keep them.
#[derive(Debug)]
struct Repetition {
    /// `None` if nothing finished.
    summary: Option<Summary>,
    counts: Vec<Counts>,
    served: Vec<Served>,
    /// `None` if no request finished whose work has a known length.
    pace: Option<Pace>,
    window_ns: u64,
    description: String,
    delivery: Option<String>,
}

/// The arrivals of a point, one schedule a repetition.
#[derive(Debug)]
pub struct Schedules(pub Vec<Schedule>);

impl Schedules {
    /// Draws them.
    ///
    /// # Errors
    /// If the mix has none at this load.
    pub fn draw(session: &Session, bench: &Bench, mix: &BenchMix, load: f64) -> Result<Self> {
        let length = Length::lasting(session.length());
        let seeds = session.settings.seeds.iter();
        let drawn = seeds.map(|&seed| mix.arrivals(load, bench.workers, length, seed));
        Ok(Self(drawn.collect::<Result<_>>()?))
    }

    /// Serves them by all contenders in turn; `name` is the point's.
    ///
    /// # Errors
    /// If a burst failed; the session's notes say which.
    pub fn measure(
        &self,
        session: &mut Session,
        bench: &Bench,
        mix: &BenchMix,
        name: &str,
        contenders: &[Contender],
        slos_us: &[f64],
    ) -> Result<Vec<Point>> {
        let first = session.settings.seeds.first().copied().unwrap_or_default();
        let each = bench.per_burst(session.length());
        let mut turns = contenders.to_vec();
        let all = session.interleave(name, &mut turns, Contender::name, each, |one, seed| {
            let arrivals = bench.plan(mix, &self.0[(seed - first) as usize], one.probes)?;
            let classes = mix.mix.classes().len();
            bench.burst(one, &arrivals, classes, slos_us).map(Some)
        })?;
        let point = |runs: Runs<Outcome>| {
            let mut point = Point::default();
            for outcome in runs.runs {
                let failed = || format!("{name}: {} failed in a repetition", runs.name);
                point.add(mix, outcome.with_context(failed)?)?;
            }
            Ok(point)
        };
        all.into_iter().map(point).collect()
    }
}

impl Point {
    /// Adds a repetition; all contenders add theirs in the same order of seeds.
    ///
    /// # Errors
    /// If the outcome's records are not of `mix`.
    pub fn add(&mut self, mix: &BenchMix, outcome: Outcome) -> Result<()> {
        let summary = if outcome.records.is_empty() {
            None
        } else {
            Some(Summary::of(&mix.mix, &outcome.records)?)
        };
        self.repetitions.push(Repetition {
            summary,
            pace: Pace::of(mix, &outcome),
            counts: outcome.counts,
            served: outcome.served,
            window_ns: outcome.window_ns,
            description: outcome.description,
            delivery: outcome.delivery,
        });
        Ok(())
    }

    /// p99 of each repetition, us; `None` where a repetition has no request of the class.
    pub fn p99s_us(&self, mix: &BenchMix, class: Class) -> Vec<Option<f64>> {
        self.each(mix, class, |figures| figures.p99_ns as f64 / 1e3)
    }

    /// The p99 of each repetition that both have, us; none where either is saturated.
    pub fn pairs(&self, under: &Self, mix: &BenchMix, class: Class) -> Vec<(f64, f64)> {
        if self.is_saturated() || under.is_saturated() {
            return Vec::new();
        }
        let p99s = |point: &Self| point.p99s_us(mix, class);
        by_repetition(&p99s(self), &p99s(under))
    }

    /// Whether the point is saturated, judged over all repetitions together.
    pub fn is_saturated(&self) -> bool {
        saturation::is_saturated(&self.counts())
    }

    /// How many times slower the work ran than calibrated: in the repetitions that the p99 of
    /// `class` is of, the middle ones, or, where there is none, in the median repetition; and in
    /// the repetition in which it ran slowest.
    pub fn times_slower(
        &self,
        mix: &BenchMix,
        class: Class,
        prices: &Prices,
    ) -> Option<(f64, f64)> {
        let p99s = self.p99s_us(mix, class);
        let timed = |(one, p99): (&Repetition, &Option<f64>)| {
            Some((*p99, one.pace.as_ref()?.times_slower(prices)))
        };
        let timed: Vec<_> = self
            .repetitions
            .iter()
            .zip(&p99s)
            .filter_map(timed)
            .collect();
        let times: Vec<f64> = timed.iter().map(|(_, times)| *times).collect();
        let worst = times.iter().copied().reduce(f64::max)?;
        let with_p99 = timed
            .iter()
            .filter_map(|(p99, times)| Some(((*p99)?, *times)));
        let mut with_p99: Vec<_> = with_p99.collect();
        if with_p99.is_empty() || self.is_saturated() {
            return Some((median(&times)?, worst));
        }
        with_p99.sort_by(|one, other| one.0.total_cmp(&other.0));
        let middle = &with_p99[(with_p99.len() - 1) / 2..=with_p99.len() / 2];
        let reported = middle.iter().map(|(_, times)| *times).reduce(f64::max)?;
        Some((reported, worst))
    }

    /// What became of the requests of each class in all repetitions.
    fn counts(&self) -> Vec<Counts> {
        let classes = self.repetitions.first().map_or(0, |one| one.counts.len());
        let of_class = |class: usize| self.repetitions.iter().map(|one| one.counts[class]).sum();
        (0..classes).map(of_class).collect()
    }

    fn each(
        &self,
        mix: &BenchMix,
        class: Class,
        figure: impl Fn(&Figures) -> f64,
    ) -> Vec<Option<f64>> {
        self.repetitions
            .iter()
            .map(|one| of_class(one.summary.as_ref()?, mix, class).map(&figure))
            .collect()
    }

    /// The report's rows for this point, one a class.
    pub fn runs(&self, mix: &BenchMix, load: f64, contender: &Contender) -> Vec<Run> {
        let wanted: &[Class] = if mix.mix.classes().len() > 1 {
            &[Class::Short, Class::Long, Class::All]
        } else {
            &[Class::All]
        };
        let counts = self.counts();
        let window_ns = self
            .repetitions
            .iter()
            .map(|one| one.window_ns)
            .sum::<u64>()
            .max(1);
        let per_second = |count: u64| count as f64 * 1e9 / window_ns as f64;
        let saturated = self.is_saturated();
        let row = |&class: &Class| {
            let known = |figure: fn(&Figures) -> f64| -> Vec<f64> {
                self.each(mix, class, figure)
                    .into_iter()
                    .flatten()
                    .collect()
            };
            let middle = |figure| median(&known(figure));
            let p99s = known(|figures| figures.p99_ns as f64 / 1e3);
            let indices = class_indices(mix, class);
            let counts: Counts = counts[indices.clone()].iter().copied().sum();
            let mut run = Run {
                mix: mix.mix.name().to_owned(),
                load,
                policy: contender.policy_name().to_owned(),
                mechanism: contender.mechanism_name(),
                quantum_us: contender.quantum_us,
                class,
                n: known(|figures| figures.requests as f64).iter().sum::<f64>() as u64,
                p50_us: middle(|figures| figures.p50_ns as f64 / 1e3),
                p99_us: median(&p99s),
                p999_us: middle(|figures| figures.p999_ns as f64 / 1e3),
                p99_slowdown: middle(|figures| figures.p99_slowdown),
                throughput_rps: per_second(counts.finished),
                preemptions: (self.repetitions.iter())
                    .flat_map(|one| indices.clone().filter_map(|at| one.served.get(at)))
                    .map(|served| served.preemptions)
                    .sum(),
                offered_rps: per_second(counts.offered),
                saturated,
                refusals: counts.refused,
                unfinished: counts.unfinished,
                p99_us_min: p99s.iter().copied().reduce(f64::min),
                p99_us_max: p99s.iter().copied().reduce(f64::max),
                ideal_p99_us: None,
                predicted_p99_us: None,
                times_slower: None,
                times_slower_max: None,
                picked: (self.repetitions.first())
                    .filter(|_| contender.mechanism == shinjuku::MechanismKind::Auto)
                    .map(|one| one.description.clone()),
                delivery: (self.repetitions.last()).and_then(|one| one.delivery.clone()),
            };
            if saturated {
                run.saturate();
            }
            run
        };
        wanted.iter().map(row).collect()
    }
}

/// Numbers of the mix's classes that `class` stands for.
fn class_indices(mix: &BenchMix, class: Class) -> std::ops::Range<usize> {
    let classes = mix.mix.classes().len();
    match class {
        Class::Short => 0..1,
        Class::Long => classes - 1..classes,
        Class::All => 0..classes,
    }
}

fn of_class<'a>(summary: &'a Summary, mix: &BenchMix, class: Class) -> Option<&'a Figures> {
    match class {
        Class::All => Some(&summary.all),
        _ => summary.class(class_indices(mix, class).start as u16),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shinjuku_workload::Record;

    use super::super::burst::Interrupts;
    use super::*;

    /// A burst in which every class has as many requests as `finished` says, all answered in time.
    fn outcome(finished: [u64; 2]) -> Outcome {
        let record = |at: u64, class: u16| Record {
            arrival_ns: at * 1000,
            service_ns: 500,
            finish_ns: at * 1000 + 1000,
            class,
        };
        let records = (0..2u16)
            .flat_map(|class| (0..finished[usize::from(class)]).map(move |at| record(at, class)))
            .collect();
        let counts = finished.map(|n| Counts {
            offered: n,
            finished: n,
            ..Counts::default()
        });
        Outcome {
            records,
            counts: counts.to_vec(),
            served: vec![
                Served::default(),
                Served {
                    preemptions: 7,
                    ..Served::default()
                },
            ],
            interrupts: Interrupts::default(),
            dispatcher_busy: Duration::ZERO,
            description: String::new(),
            delivery: None,
            window_ns: 1_000_000_000,
        }
    }

    fn point(mix: &BenchMix, outcomes: impl IntoIterator<Item = Outcome>) -> Point {
        let mut point = Point::default();
        for outcome in outcomes {
            point.add(mix, outcome).unwrap();
        }
        point
    }

    #[test]
    fn each_class_has_its_own_counts() {
        let mix = BenchMix::spinning("hi").unwrap();
        let point = point(&mix, [outcome([1000, 10]), outcome([1000, 30])]);
        let runs = point.runs(&mix, 0.5, &Contender::FCFS);
        let throughputs: Vec<f64> = runs.iter().map(|run| run.throughput_rps).collect();
        assert_eq!(throughputs, [1000.0, 20.0, 1020.0]);
        let preemptions: Vec<u64> = runs.iter().map(|run| run.preemptions).collect();
        assert_eq!(preemptions, [0, 14, 14]);
        assert!(runs.iter().all(|run| run.p99_us.is_some()));
    }

    #[test]
    fn a_class_without_requests_has_no_percentiles_and_is_not_saturated() {
        let mix = BenchMix::spinning("hi").unwrap();
        let runs = point(&mix, [outcome([1000, 0])]).runs(&mix, 0.5, &Contender::FCFS);
        assert_eq!((runs[1].n, runs[1].p99_us), (0, None));
        assert!(!runs[1].saturated && runs[0].p99_us.is_some());
    }

    #[test]
    fn a_repetition_without_records_keeps_its_place() {
        let mix = BenchMix::spinning("hi").unwrap();
        let empty = Outcome {
            records: Vec::new(),
            ..outcome([1000, 10])
        };
        let point = point(&mix, [empty, outcome([1000, 10])]);
        let p99s = point.p99s_us(&mix, Class::Short);
        assert!(p99s[0].is_none() && p99s[1].is_some());
    }
}
