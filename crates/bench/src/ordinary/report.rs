//! How the bench of ordinary code is shown: overheads with their targets, and times until code
//! gives way.

use anyhow::{Result, ensure};
use shinjuku_bench_ordinary::Answers;
use shinjuku_bench_ordinary::works::WORKS;
use shinjuku_plot::Table;
use shinjuku_workload::repeat::Spread;

use super::{Ordinary, Work, mixes};
use crate::harness::{Comparison, Goal, Measured, Runs, Section, Target, Verdict, by_repetition};
use crate::report::or_dash;

/// What compiled probes may cost: the mean over all works, and the worst.
const MEAN: Goal = Goal::AtMost(1.05);
const WORST: Goal = Goal::AtMost(1.15);

impl Work {
    /// What a job takes with compiled probes and without, in pairs of a repetition.
    fn pairs(&self) -> Vec<(f64, f64)> {
        let least = |runs: &Runs<_>| -> Vec<Option<f64>> {
            let of = |one: &Option<shinjuku_bench_ordinary::Duration>| one.map(|one| one.least_us);
            runs.runs.iter().map(of).collect()
        };
        let [plain, compiled] = &self.durations[..] else {
            return Vec::new();
        };
        by_repetition(&least(compiled), &least(plain))
    }

    /// What compiled probes make of the duration of a job.
    fn overhead(&self) -> Option<Spread> {
        let names = ["compiled probes", "plain"];
        let compared = Comparison::of(self.name.clone(), names, &self.pairs(), None);
        compared.ratio.map(|ratio| ratio.ratio)
    }
}

impl Ordinary {
    fn overheads(&self) -> Vec<Spread> {
        self.works.iter().filter_map(Work::overhead).collect()
    }

    /// The means over all works: of medians, and of each work's least and largest.
    fn mean_overhead(&self) -> Option<Spread> {
        let all = self.overheads();
        let mean = |of: fn(&Spread) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        (!all.is_empty()).then(|| Spread {
            median: mean(|one| one.median),
            min: mean(|one| one.min),
            max: mean(|one| one.max),
        })
    }

    fn worst_overhead(&self) -> Option<Spread> {
        let all = self.overheads().into_iter();
        all.max_by(|one, other| one.median.total_cmp(&other.median))
    }
}

/// The target of a figure that takes all works: what one of them would have made of it cannot be
/// known.
fn of_all(works: &[Work], name: &str, goal: Goal, measured: Option<Spread>) -> Target {
    let target = Target::judged(name, goal, measured, "no work was measured");
    let without: Vec<_> = works
        .iter()
        .filter(|work| work.overhead().is_none())
        .map(|work| &work.name[..])
        .collect();
    if !without.is_empty() {
        let without = without.join("; ");
        target.missed(format!("not both programs have a figure of: {without}"))
    } else if works.len() < WORKS.len() && target.verdict == Verdict::Met {
        Target::not_shown(name, goal, "not all works were measured")
    } else {
        target
    }
}

impl Measured for Ordinary {
    const BENCH: &'static str = "ordinary";
    const TITLE: &'static str = "ordinary code with compiled probes";
    const DIRECTORY: &'static str = "bench-ordinary";

    fn check(&self) -> Result<()> {
        for work in &self.works {
            ensure!(
                work.durations.len() == 2 && work.answers.len() == 2,
                "{}: there are two contenders of each kind",
                work.name
            );
        }
        Ok(())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("Works", self.works.len().to_string())]
    }

    fn targets(&self) -> Vec<Target> {
        let target = |name, goal, measured| of_all(&self.works, name, goal, measured);
        let overheads = [
            target(
                "duration with compiled probes / plain, mean of all works",
                MEAN,
                self.mean_overhead(),
            ),
            target(
                "duration with compiled probes / plain, worst work",
                WORST,
                self.worst_overhead(),
            ),
        ];
        let mixes = mixes::targets(&self.mixes);
        overheads.into_iter().chain(mixes).collect()
    }

    fn sections(&self) -> Vec<Section> {
        vec![
            self.durations(),
            self.answers(),
            mixes::section(&self.mixes),
        ]
    }
}

impl Ordinary {
    fn durations(&self) -> Section {
        let mut table = Table::new(
            "duration of a job, least of each repetition; medians",
            ["work", "plain us", "compiled probes us", "ratio", "range"],
        );
        for work in &self.works {
            let least = work.durations.iter();
            let least = least.map(|runs| or_dash(runs.median(|one| Some(one.least_us))));
            let overhead = work.overhead();
            let ratio = overhead.map_or_else(|| "-".to_owned(), |one| format!("{:.3}", one.median));
            let range = overhead.map_or_else(String::new, |one| {
                format!("({:.3}..{:.3})", one.min, one.max)
            });
            let row = [work.name.clone()].into_iter().chain(least);
            table.push(row.chain([ratio, range]));
        }
        table.notes.push(
            "SQLite is C: the usual C compiler has built it plain, clang with probes. Clang before 20 has no gate, and \
             each of its entries is a call."
                .to_owned(),
        );
        Section::new("What compiled probes cost", [table])
    }

    fn answers(&self) -> Section {
        let mut table = Table::new(
            "time until the code has given way and the asking core knows; medians",
            [
                "work",
                "compiled p50 us",
                "p99 us",
                "left to a signal",
                "signal p50 us",
                "p99 us",
            ],
        );
        for work in &self.works {
            let [compiled, signal] = &work.answers[..] else {
                continue;
            };
            let of = |runs: &Runs<Answers>, value: fn(&Answers) -> Option<f64>| {
                or_dash(runs.median(value))
            };
            let unanswered = compiled.median(|one| {
                (one.requests > 0).then(|| 100.0 * one.unanswered as f64 / one.requests as f64)
            });
            table.push([
                work.name.clone(),
                of(compiled, |one| one.p50_us),
                of(compiled, |one| one.p99_us),
                unanswered.map_or_else(|| "-".to_owned(), |one| format!("{one:.1} %")),
                of(signal, |one| one.p50_us),
                of(signal, |one| one.p99_us),
            ]);
        }
        table.notes.push(
            "Left to a signal: not answered at a function entry within 100 us. The times are of the others.".to_owned(),
        );
        Section::new("How soon code gives way", [table])
    }
}

#[cfg(test)]
mod tests {
    use shinjuku_bench_ordinary::Duration;

    use super::*;
    use crate::harness::Verdict;

    fn work(name: &str, plain: [f64; 3], compiled: [f64; 3]) -> Work {
        let runs = |name, least: [f64; 3]| {
            Runs::of(name, least.map(|least_us| Some(Duration { least_us })))
        };
        Work {
            name: name.to_owned(),
            durations: vec![runs("plain", plain), runs("compiled probes", compiled)],
            answers: vec![Runs::new("compiled probes"), Runs::new("signal")],
        }
    }

    /// All works, each with this figure of both programs.
    fn all(plain: [f64; 3], compiled: [f64; 3]) -> Ordinary {
        let works = WORKS.map(|(name, _)| work(name, plain, compiled));
        Ordinary {
            works: works.into(),
            mixes: Vec::new(),
        }
    }

    fn of_works(ordinary: &Ordinary) -> [Target; 2] {
        let mut targets = ordinary.targets().into_iter();
        std::array::from_fn(|_| targets.next().unwrap())
    }

    #[test]
    fn the_targets_are_the_mean_of_all_works_and_the_worst_of_them() {
        let mut ordinary = all([10.0; 3], [10.0, 10.2, 10.1]);
        ordinary.works[1] = work("b", [100.0; 3], [120.0, 119.0, 118.0]);
        ordinary.check().unwrap();
        let works = WORKS.len() as f64;
        let [mean, worst] = of_works(&ordinary);
        let expected = 1.0 + (0.01 * (works - 1.0) + 0.19) / works;
        assert!((mean.measured.unwrap() - expected).abs() < 1e-9, "{mean:?}");
        assert!((worst.measured.unwrap() - 1.19).abs() < 1e-9, "{worst:?}");
        assert_eq!(
            (mean.verdict, worst.verdict),
            (Verdict::Met, Verdict::Missed)
        );
        let sections = ordinary.sections();
        assert_eq!(sections[0].tables[0].rows[1][3], "1.190");
        assert_eq!(sections[1].tables[0].rows[0][3], "-", "no answers");
    }

    #[test]
    fn a_work_whose_program_fails_misses_both_targets_by_name() {
        let mut ordinary = all([10.0; 3], [10.0; 3]);
        let met = |target: &Target| target.verdict == Verdict::Met;
        assert!(of_works(&ordinary).iter().all(met));
        ordinary.works[2].durations[1].runs = vec![None; 3];
        for target in of_works(&ordinary) {
            assert_eq!(target.verdict, Verdict::Missed);
            assert!(target.reason.unwrap().ends_with(WORKS[2].0));
        }
    }

    #[test]
    fn a_bench_that_ended_early_shows_no_mean() {
        let mut ordinary = all([10.0; 3], [10.0; 3]);
        ordinary.works.pop();
        let shown = |target: &Target| target.verdict != Verdict::NotShown;
        assert!(!of_works(&ordinary).iter().any(shown));
    }

    #[test]
    fn without_works_nothing_is_claimed() {
        let nothing = Ordinary {
            works: Vec::new(),
            mixes: Vec::new(),
        };
        let shown = |target: &Target| target.verdict != Verdict::NotShown;
        assert!(!nothing.targets().iter().any(shown));
    }
}
