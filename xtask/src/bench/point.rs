//! One point of a plot: a contender at a load, over all repetitions.

use anyhow::Result;
use shinjuku_workload::repeat::median;
use shinjuku_workload::{Figures, Summary};

use super::burst::Outcome;
use super::contender::Contender;
use super::mixes::BenchMix;
use crate::report::results::{Class, Run};

/// The repetitions of a point.
#[derive(Debug, Default)]
pub struct Point {
    outcomes: Vec<(Outcome, Option<Summary>)>,
}

impl Point {
    /// Adds a repetition.
    pub fn add(&mut self, mix: &BenchMix, outcome: Outcome) -> Result<()> {
        let summary = if outcome.records.is_empty() {
            None
        } else {
            Some(Summary::of(&mix.mix, &outcome.records)?)
        };
        // The summary is all that is needed later, and a long bench has millions of records.
        self.outcomes.push((
            Outcome {
                records: Vec::new(),
                ..outcome
            },
            summary,
        ));
        Ok(())
    }

    /// p99 of each repetition, us.
    pub fn p99s(&self, mix: &BenchMix, class: Class) -> Vec<f64> {
        self.each(mix, class, |figures| figures.p99_ns as f64 / 1e3)
    }

    fn each(&self, mix: &BenchMix, class: Class, figure: impl Fn(&Figures) -> f64) -> Vec<f64> {
        self.outcomes
            .iter()
            .filter_map(|(_, summary)| of_class(summary.as_ref()?, mix, class).map(&figure))
            .collect()
    }

    /// The report's rows for this point, one a class.
    pub fn runs(&self, mix: &BenchMix, load: f64, contender: &Contender) -> Vec<Run> {
        let refused: u64 = self
            .outcomes
            .iter()
            .map(|(outcome, _)| outcome.refused.len() as u64)
            .sum();
        let total = |figure: fn(&Outcome) -> u64| {
            self.outcomes
                .iter()
                .map(|(outcome, _)| figure(outcome))
                .sum::<u64>()
        };
        let seconds = total(|outcome| outcome.window_ns) as f64 / 1e9;
        let offered_rps = total(|outcome| outcome.offered) as f64 / seconds;
        let throughput_rps = total(|outcome| outcome.finished) as f64 / seconds;
        let saturated = Run::is_saturated(refused, throughput_rps, offered_rps);
        let (classes, share) = (mix.mix.classes().len(), |class| class_share(mix, class));
        let wanted: &[Class] = if classes > 1 {
            &[Class::Short, Class::Long, Class::All]
        } else {
            &[Class::All]
        };
        let row = |&class: &Class| {
            let middle = |figure: fn(&Figures) -> f64| median(&self.each(mix, class, figure));
            let p99s = self.p99s(mix, class);
            let indices = class_indices(mix, class);
            let mut run = Run {
                mix: mix.mix.name().to_owned(),
                load,
                policy: contender.policy_name().to_owned(),
                mechanism: contender.mechanism_name(),
                quantum_us: contender.quantum_us,
                class,
                n: self
                    .each(mix, class, |figures| figures.requests as f64)
                    .iter()
                    .sum::<f64>() as u64,
                p50_us: middle(|figures| figures.p50_ns as f64 / 1e3),
                p99_us: median(&p99s),
                p999_us: middle(|figures| figures.p999_ns as f64 / 1e3),
                p99_slowdown: middle(|figures| figures.p99_slowdown),
                throughput_rps: throughput_rps * share(class),
                preemptions: (self.outcomes.iter())
                    .flat_map(|(outcome, _)| {
                        indices.clone().filter_map(|at| outcome.preemptions.get(at))
                    })
                    .sum(),
                offered_rps: offered_rps * share(class),
                saturated,
                refusals: (self.outcomes.iter())
                    .flat_map(|(outcome, _)| &outcome.refused)
                    .filter(|&&class| indices.contains(&usize::from(class)))
                    .count() as u64,
                p99_us_min: p99s.iter().copied().reduce(f64::min),
                p99_us_max: p99s.iter().copied().reduce(f64::max),
                ideal_p99_us: None,
                predicted_p99_us: None,
                picked: (contender.mechanism == shinjuku::MechanismKind::Auto)
                    .then(|| {
                        self.outcomes
                            .first()
                            .map(|(outcome, _)| outcome.description.clone())
                    })
                    .flatten(),
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

fn class_share(mix: &BenchMix, class: Class) -> f64 {
    class_indices(mix, class)
        .map(|at| mix.mix.share(at as u16))
        .sum()
}

fn of_class<'a>(summary: &'a Summary, mix: &BenchMix, class: Class) -> Option<&'a Figures> {
    match class {
        Class::All => Some(&summary.all),
        _ => summary.class(class_indices(mix, class).start as u16),
    }
}
