//! How the bench of `auto` is shown: at every point `auto`, the best of the others, the ratio, and
//! what `auto` chose.

use shinjuku_plot::{Figure, Point as Plotted, Series, Style, Table, XAxis, YAxis};
use shinjuku_workload::repeat::Spread;

use super::contender::{AUTO, to_completion};
use super::{Auto, Point, Served};
use crate::harness::{Comparison, Goal, Measured, Runs, Section, Target, distinct};
use crate::policies::summary::percent;
use crate::report::figure;

/// Of `auto`'s p99, beside the best of the others.
const NEAR: Goal = Goal::AtMost(1.25);
/// Of `auto`'s lowest repetition, beside the highest of c-FCFS.
const NEVER_WORSE: Goal = Goal::AtMost(1.0);
/// Work that ran slower makes the figures of its point doubtful.
const SLOW: f64 = 1.25;

fn p99(served: &Served) -> Option<f64> {
    served.p99_us
}

/// The p99 of a contender that answered everything in all repetitions.
fn steady(runs: &Runs<Served>) -> Option<Spread> {
    let is_steady = runs.measured().all(|one| one.p99_us.is_some());
    runs.spread(p99).filter(|_| is_steady)
}

impl Point {
    fn name(&self) -> String {
        format!("{} at {}", self.mix, percent(self.load))
    }

    fn of(&self, name: &str) -> Option<&Runs<Served>> {
        self.runs.iter().find(|runs| runs.name == name)
    }

    /// The contender with the lowest median of all but `auto`.
    fn best(&self) -> Option<(&Runs<Served>, Spread)> {
        let others = self.runs.iter().filter(|runs| runs.name != AUTO);
        let steady = others.filter_map(|runs| Some((runs, steady(runs)?)));
        steady.min_by(|(_, one), (_, other)| one.median.total_cmp(&other.median))
    }

    fn compare(&self) -> Option<Comparison> {
        let (best, _) = self.best()?;
        Some(self.of(AUTO)?.compare(best, self.name(), Some(NEAR), p99))
    }

    /// Missed where `auto` left requests unanswered and another one did not.
    fn target(&self) -> Option<Target> {
        let target = Target::of(&self.compare()?)?;
        match steady(self.of(AUTO)?) {
            Some(_) => Some(target),
            None => Some(target.missed("auto left requests unanswered, and the best did not")),
        }
    }

    /// `auto`'s lowest repetition over the highest of what runs to completion in the layout that
    /// `auto` chose.
    fn over_completion(&self) -> Option<f64> {
        let layout = match self.choice()?.contains("symmetric") {
            true => "symmetric",
            false => "threads",
        };
        let under = steady(self.of(&to_completion(layout))?)?;
        let auto = self
            .of(AUTO)?
            .spread(p99)
            .map_or(f64::INFINITY, |auto| auto.min);
        Some(auto / under.max)
    }

    /// What `auto` had chosen at the end of its last repetition.
    fn choice(&self) -> Option<&str> {
        self.of(AUTO)?.measured().last()?.description.as_deref()
    }

    fn slow(&self) -> Option<String> {
        let times = self
            .runs
            .iter()
            .filter_map(|runs| runs.spread(|one| one.times_slower));
        let least = times.map(|times| times.median).reduce(f64::min)?;
        (least > SLOW).then(|| {
            format!(
                "{}: what was never preempted took {least:.2} times as long as calibrated: other programs, or a slower clock, are in \
                 these figures.",
                self.name()
            )
        })
    }
}

impl Auto {
    /// Points whose work ran slower than calibrated.
    pub fn slow(&self) -> Vec<String> {
        self.points.iter().filter_map(Point::slow).collect()
    }

    fn never_worse(&self) -> Option<Target> {
        let all = self.points.iter();
        let worst = all.filter_map(|point| Some((point.over_completion()?, point.name())));
        let (ratio, name) = worst.max_by(|one, other| one.0.total_cmp(&other.0))?;
        let figure = Spread {
            median: ratio,
            min: ratio,
            max: ratio,
        };
        let name = format!("lowest of auto / highest of c-FCFS, at the worst point ({name})");
        Some(match ratio.is_finite() {
            true => Target::measured(name, NEVER_WORSE, figure),
            false => Target::not_shown(name, NEVER_WORSE, "")
                .missed("auto left requests unanswered, and c-FCFS did not"),
        })
    }

    fn table(&self) -> Table {
        let mut table = Table::new(
            "p99 of short requests, or of all where they are alike, µs; medians",
            [
                "",
                "auto",
                "spread",
                "best of the others",
                "its p99",
                "spread",
                "auto / it",
            ],
        );
        for point in &self.points {
            let auto = cells(point.of(AUTO).and_then(steady));
            let best = point.best();
            let [its, its_spread] = cells(best.map(|(_, spread)| spread));
            let ratio = point.compare().and_then(|compared| compared.ratio);
            let ratio = ratio.map_or_else(|| "-".to_owned(), |one| figure(one.ratio.median));
            let [auto, spread] = auto;
            let name = best.map_or_else(|| "-".to_owned(), |(runs, _)| runs.name.clone());
            table.push([point.name(), auto, spread, name, its, its_spread, ratio]);
        }
        table
    }
}

/// Median, and lowest and highest.
fn cells(spread: Option<Spread>) -> [String; 2] {
    spread.map_or_else(
        || ["saturated".to_owned(), String::new()],
        |spread| {
            let range = format!("{}-{}", figure(spread.min), figure(spread.max));
            [figure(spread.median), range]
        },
    )
}

impl Measured for Auto {
    const BENCH: &'static str = "auto";
    const TITLE: &'static str = "auto beside all that could be chosen";
    const DIRECTORY: &'static str = "bench-auto";

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("Cores of the contenders", self.cores.to_string())]
    }

    fn targets(&self) -> Vec<Target> {
        let near = self.points.iter().filter_map(Point::target);
        near.chain(self.never_worse()).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let choices = self.points.iter().filter_map(|point| {
            let choice = point.choice()?;
            Some(format!("{}: {choice}", point.name()))
        });
        let mut sections = vec![Section {
            heading: "auto beside the best".to_owned(),
            introduction: Some(
                "Load is the share of what the workers of the layout threads can do. The best is found afterwards, at each point."
                    .to_owned(),
            ),
            tables: vec![self.table()],
            details: choices.collect(),
            ..Section::default()
        }];
        for mix in distinct(self.points.iter().map(|point| point.mix.as_str())) {
            sections.push(Section {
                heading: mix.to_owned(),
                figures: vec![self.figure(mix)],
                ..Section::default()
            });
        }
        sections
    }
}

impl Auto {
    fn figure(&self, mix: &str) -> Figure {
        let points: Vec<&Point> = self
            .points
            .iter()
            .filter(|point| point.mix == mix)
            .collect();
        let names =
            distinct((points.iter()).flat_map(|point| point.runs.iter().map(|runs| &runs.name)));
        let plotted = |point: &&Point, name: &str| {
            let spread = point.of(name).and_then(steady);
            Plotted {
                x: point.load * 100.0,
                y: spread.map(|spread| spread.median),
                spread: spread.map(|spread| (spread.min, spread.max)),
            }
        };
        let series = names.iter().enumerate().map(|(number, name)| Series {
            label: (*name).clone(),
            style: Style::Contender(number),
            points: points.iter().map(|point| plotted(point, name)).collect(),
        });
        Figure {
            name: mix.replace([',', ' '], "-"),
            title: format!("{mix}: p99 latency"),
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "p99 latency (µs, log)".to_owned(),
            bars: "lowest and highest repetition",
            series: series.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict;
    use crate::policies::results::Class;

    fn runs(name: &str, p99s: [Option<f64>; 3]) -> Runs<Served> {
        let served = |p99_us| {
            Some(Served {
                p99_us,
                times_slower: Some(1.0),
                description: Some(format!("{name} in words")),
            })
        };
        Runs {
            name: name.to_owned(),
            runs: p99s.map(served).to_vec(),
        }
    }

    fn auto(own: [Option<f64>; 3]) -> Auto {
        let point = Point {
            mix: "hi".to_owned(),
            load: 0.4,
            class: Class::Short,
            runs: vec![
                runs(AUTO, own),
                runs("threads, to completion", [Some(1000.0); 3]),
                runs("threads, probe 5 us", [Some(30.0), Some(20.0), Some(25.0)]),
                // Lower, but not in all repetitions.
                runs("symmetric, probe 5 us", [Some(10.0), None, Some(10.0)]),
            ],
        };
        Auto {
            cores: 2,
            points: vec![point],
        }
    }

    #[test]
    fn auto_is_compared_with_the_best_of_those_that_answer_everything() {
        let near = auto([Some(33.0), Some(24.0), Some(30.0)]);
        let verdicts: Vec<_> = near.targets().iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [Verdict::Met, Verdict::Met]);
        let row = &near.table().rows[0];
        assert_eq!(
            (row[3].as_str(), row[4].as_str()),
            ("threads, probe 5 us", "25.0")
        );
        let far = auto([Some(39.0), Some(27.0), Some(33.0)]);
        assert_eq!(far.targets()[0].verdict, Verdict::Missed);
        assert_eq!(far.targets()[1].verdict, Verdict::Met);
    }

    #[test]
    fn what_auto_leaves_unanswered_is_missed() {
        let unanswered = auto([None; 3]);
        let verdicts: Vec<_> = unanswered.targets().iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [Verdict::Missed, Verdict::Missed]);
        let once = auto([Some(25.0), None, Some(25.0)]);
        assert_eq!(once.targets()[0].verdict, Verdict::Missed);
    }

    #[test]
    fn the_choice_is_told_in_the_runtimes_words() {
        let sections = auto([Some(25.0); 3]).sections();
        assert_eq!(sections[0].details, ["hi at 40 %: auto in words"]);
        assert_eq!(sections[1].figures[0].series.len(), 4);
    }
}
