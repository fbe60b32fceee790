//! The service experiment at rising load: the pool, with probes and without, beside rayon and
//! `spawn_blocking`.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shinjuku::{Config, LayoutKind};
use shinjuku_plot::{Figure, Point as Plotted, Series, Style, Table, XAxis, YAxis};
use shinjuku_workload::repeat::Spread;

use crate::closures::{Contender, Experiment, Outcome};
use crate::harness::{Comparison, Goal, Runs, Section, Session, Target};
use crate::report::figure;

/// Shares of all cores that the requests take: 0.1 to 1.6 cores of two.
pub const LOADS: [f64; 6] = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
/// At these there are goals.
const WITH_GOALS: [f64; 3] = [0.2, 0.4, 0.6];

/// What the goals are about.
const POOL: &str = "symmetric, probes";

/// Of short requests' p99, beside rayon's and `spawn_blocking`'s.
const SHORT: Goal = Goal::AtMost(1.0 / 6.0);
/// Of long requests' p99, beside rayon's.
const LONG: Goal = Goal::AtMost(3.0);
/// Of fewer requests the p99 is the largest latency, by which no goal is judged.
const FEWEST: f64 = 100.0;
/// Of the processor time, beside rayon's, at every load.
const CPU: Goal = Goal::AtMost(1.1);
/// Work that takes longer than calibrated makes every figure of its point doubtful.
const SLOW: f64 = 1.25;

/// One load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Share of all cores.
    pub load: f64,
    /// How many cores that is.
    pub busy_cores: f64,
    /// What came of it, contender by contender.
    pub runs: Vec<Runs<Outcome>>,
}

fn contenders() -> Vec<Contender> {
    let threads = Config::default().layout(LayoutKind::Threads);
    vec![
        Contender::pool(POOL, Config::default()),
        Contender::pool_without_probes("symmetric, to completion", Config::default(), false),
        Contender::pool_without_probes("symmetric, signals", Config::default(), true),
        Contender::pool("threads, probes", threads),
        Contender::RAYON,
        Contender::SPAWN_BLOCKING,
    ]
}

/// About how long so many loads take.
pub fn duration(session: &Session, loads: usize) -> Duration {
    session.all(Experiment::each(session.length()), contenders().len()) * loads as u32
}

/// Measures these loads.
///
/// # Errors
/// It was interrupted, or the work cannot be calibrated.
pub fn measure(session: &mut Session, loads: &[f64], points: &mut Vec<Point>) -> Result<()> {
    let cores = session.cores.len();
    let experiment = Experiment::service(cores)?;
    session.notes.push(experiment.note());
    let length = session.length();
    for &load in loads {
        let busy_cores = load * cores as f64;
        let runs = session.interleave(
            &format!("service, {busy_cores:.1} of {cores} cores"),
            &mut contenders(),
            |one| one.name.to_owned(),
            Experiment::each(length),
            |one, seed| {
                let arrivals = experiment.arrivals(busy_cores, length, seed)?;
                experiment.run(one, &arrivals, length).map(Some)
            },
        )?;
        let point = Point {
            load,
            busy_cores,
            runs,
        };
        session.notes.extend(point.slow());
        points.push(point);
    }
    Ok(())
}

impl Point {
    fn of(&self, name: &str) -> Option<&Runs<Outcome>> {
        self.runs.iter().find(|runs| runs.name == name)
    }

    fn place(&self) -> String {
        format!("service, {:.1} cores", self.busy_cores)
    }

    /// What runs to completion on threads that wait for nothing takes little beside its work: if it
    /// takes much, the work itself ran slower than calibrated.
    fn slow(&self) -> Option<String> {
        let rayon = self.of(Contender::RAYON.name)?;
        let times = rayon.spread(|one| one.cpu_over_work)?.median;
        (times > SLOW && self.load >= 0.4).then(|| {
            format!(
                "{}: rayon took {times:.2} times the processor time that the work was calibrated to; other programs, or a slower \
                 clock, are in these figures.",
                self.place()
            )
        })
    }

    /// The pool's figures over the others', each with its target if it has one.
    pub fn judge(&self) -> Vec<(Comparison, Option<Target>)> {
        let others = [Contender::RAYON.name, Contender::SPAWN_BLOCKING.name];
        let [Some(pool), Some(rayon), Some(blocking)] =
            [POOL, others[0], others[1]].map(|name| self.of(name))
        else {
            return Vec::new();
        };
        let goal = |goal| WITH_GOALS.contains(&self.load).then_some(goal);
        let what = |of: &str| format!("{}: {of}", self.place());
        let short = |one: &Outcome| one.short_p99_us;
        let long = |one: &Outcome| one.long_p99_us;
        let (longs, target) = pool.judge(rayon, what("long p99"), goal(LONG), long);
        vec![
            pool.judge(rayon, what("short p99"), goal(SHORT), short),
            pool.judge(blocking, what("short p99"), goal(SHORT), short),
            (
                longs,
                target.map(|target| self.of_enough_long(target, pool)),
            ),
            pool.judge(blocking, what("long p99"), None, long),
            pool.judge(rayon, what("processor time"), Some(CPU), |one| one.cpu_us),
        ]
    }

    /// A target for the long requests' p99, which is not shown where these were too few. The
    /// contenders have the same requests, so what neither can show is nobody's fault.
    fn of_enough_long(&self, target: Target, pool: &Runs<Outcome>) -> Target {
        let long = |one: &Outcome| one.long_p99_us;
        let runs = self.runs.iter();
        let of_one = |runs: &Runs<Outcome>| runs.median(|one| Some(one.long_requests? as f64));
        match runs.filter_map(of_one).reduce(f64::max) {
            Some(requests) if requests < FEWEST => {
                let why = format!("{requests:.0} long requests are too few for a p99");
                Target::not_shown(target.name, target.wanted, why).needs_most_of(pool, long)
            }
            _ => target,
        }
    }

    /// Whether the pool answered everything.
    pub fn answered(&self) -> Target {
        let name = format!("{}: unanswered: {POOL}", self.place());
        let goal = Goal::AtMost(0.0);
        let Some(runs) = self.of(POOL) else {
            return Target::not_shown(name, goal, "the pool was not measured");
        };
        let of_one = |one: &Outcome| Some(one.unanswered as f64);
        let left = runs.spread(of_one);
        let target = Target::judged(name, goal, left, "no repetition was measured");
        let target = match left {
            Some(left) if left.max > 0.0 && left.median == 0.0 => {
                target.missed("a repetition left some unanswered")
            }
            _ => target,
        };
        target.needs_most_of(runs, of_one)
    }
}

/// At which load the pool's short p99 is worst beside rayon's, beyond the spread: its lowest
/// repetition over rayon's highest. Missed where the pool lacks it in most repetitions of a load.
pub fn never_worse(points: &[Point]) -> Option<Target> {
    let short = |one: &Outcome| one.short_p99_us;
    let of_one = |point: &Point| {
        let spread = |name| point.of(name)?.spread(short);
        let (pool, rayon) = (spread(POOL)?, spread(Contender::RAYON.name)?);
        Some((pool.min / rayon.max, point.busy_cores))
    };
    let worst = points.iter().filter_map(of_one);
    let worst = worst.max_by(|one, other| one.0.total_cmp(&other.0));
    let name = format!("service, all loads: short p99, lowest of {POOL} / highest of rayon");
    let goal = Goal::AtMost(1.0);
    let target = match worst {
        Some((ratio, busy_cores)) => {
            let figure = Spread {
                median: ratio,
                min: ratio,
                max: ratio,
            };
            Target::measured(
                format!("{name} (worst at {busy_cores:.1} cores)"),
                goal,
                figure,
            )
        }
        None => Target::not_shown(name, goal, "at no load both have a p99"),
    };
    let pools = points.iter().filter_map(|point| point.of(POOL));
    let target = pools.fold(target, |target, pool| target.needs_most_of(pool, short));
    (!points.is_empty()).then_some(target)
}

/// The plots and a table a load.
pub fn section(points: &[Point], cores: usize) -> Section {
    let introduction = format!(
        "99 % of the requests take 20 µs and 1 % take 5 ms, within an ordinary process on {cores} cores. All contenders get the same \
         requests, as closures of one class. Latency counts from the moment that a request was due; processor time is the process's \
         without the generator's thread, and so without what this one does to hand requests over."
    );
    let plot = |name, title, y_label, value: fn(&Outcome) -> Option<f64>| Figure {
        name: format!("service-{name}"),
        title: format!("service: {title}"),
        x: XAxis::Load,
        y: YAxis::Logarithmic,
        y_label: format!("{y_label} (µs, log)"),
        bars: "lowest and highest repetition",
        series: series(points, value),
    };
    Section {
        heading: "A pool in an ordinary process".to_owned(),
        introduction: Some(introduction),
        figures: vec![
            plot("short-p99", "p99 of short requests", "p99 latency", |one| {
                one.short_p99_us
            }),
            plot("long-p99", "p99 of long requests", "p99 latency", |one| {
                one.long_p99_us
            }),
            plot("cpu", "processor time a request", "processor time", |one| {
                one.cpu_us
            }),
        ],
        tables: points.iter().map(table).collect(),
        ..Section::default()
    }
}

fn series(points: &[Point], value: fn(&Outcome) -> Option<f64>) -> Vec<Series> {
    let plotted = |point: &Point, name: &str| {
        let spread = point.of(name)?.spread(value);
        Some(Plotted {
            x: point.load * 100.0,
            y: spread.map(|spread| spread.median),
            spread: spread.map(|spread| (spread.min, spread.max)),
        })
    };
    let line = |(number, contender): (usize, Contender)| Series {
        label: contender.name.to_owned(),
        style: Style::Contender(number),
        points: (points.iter())
            .filter_map(|point| plotted(point, contender.name))
            .collect(),
    };
    contenders().into_iter().enumerate().map(line).collect()
}

fn table(point: &Point) -> Table {
    let mut table = Table::new(
        format!(
            "{:.1} cores busy with requests: latency and processor time, µs; medians",
            point.busy_cores
        ),
        [
            "",
            "short p50",
            "short p99",
            "spread",
            "long p50",
            "long p99",
            "long requests",
            "unanswered",
            "cpu a request",
            "generator late, p99",
        ],
    );
    for runs in &point.runs {
        let median = |value: fn(&Outcome) -> Option<f64>| {
            let spread = runs.spread(value);
            spread.map_or_else(|| "-".to_owned(), |spread| figure(spread.median))
        };
        let spread = runs.spread(|one| one.short_p99_us);
        let spread = spread.map_or_else(String::new, |spread| {
            format!("{}-{}", figure(spread.min), figure(spread.max))
        });
        let count = |runs: &Runs<Outcome>| {
            let requests = runs.median(|one| Some(one.long_requests? as f64));
            requests.map_or_else(|| "-".to_owned(), |requests| format!("{requests:.0}"))
        };
        let unanswered: u64 = runs.measured().map(|one| one.unanswered).sum();
        table.push([
            runs.name.clone(),
            median(|one| one.short_p50_us),
            median(|one| one.short_p99_us),
            spread,
            median(|one| one.long_p50_us),
            median(|one| one.long_p99_us),
            count(runs),
            unanswered.to_string(),
            median(|one| one.cpu_us),
            median(|one| one.late_p99_us),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict;

    fn outcome(short_p99_us: f64, unanswered: u64) -> Outcome {
        Outcome {
            requests: 1000,
            unanswered,
            short_p50_us: Some(20.0),
            short_p99_us: (unanswered == 0).then_some(short_p99_us),
            long_p50_us: Some(5000.0),
            long_p99_us: (unanswered == 0).then_some(6000.0),
            long_requests: Some(100),
            cpu_us: Some(70.0),
            cpu_over_work: Some(1.0),
            cores_used: 0.4,
            late_p99_us: Some(5.0),
            description: None,
        }
    }

    fn point(load: f64, pool: [(f64, u64); 2], others: [f64; 2]) -> Point {
        let runs = |name: &str, outcomes: [Outcome; 2]| Runs {
            name: name.to_owned(),
            runs: outcomes.map(Some).to_vec(),
        };
        let other = |name| runs(name, others.map(|p99| outcome(p99, 0)));
        Point {
            load,
            busy_cores: 2.0 * load,
            runs: vec![
                runs(POOL, pool.map(|(p99, left)| outcome(p99, left))),
                other(Contender::RAYON.name),
                other(Contender::SPAWN_BLOCKING.name),
            ],
        }
    }

    fn judged(point: &Point) -> Vec<Option<Verdict>> {
        let judged = point.judge().into_iter();
        judged.map(|(_, target)| Some(target?.verdict)).collect()
    }

    #[test]
    fn goals_are_set_at_three_loads_and_met_by_a_sixth() {
        let at = |load| judged(&point(load, [(100.0, 0); 2], [700.0; 2]));
        let met = Some(Verdict::Met);
        assert_eq!(at(0.2), [met, met, met, None, met]);
        let elsewhere = at(0.1).into_iter().flatten().count();
        assert_eq!(elsewhere, 1, "processor time alone");
    }

    #[test]
    fn an_unanswered_request_misses_the_target_even_in_one_repetition() {
        let verdict = |pool| point(0.2, pool, [700.0; 2]).answered().verdict;
        assert_eq!(verdict([(1.0, 0), (1.0, 0)]), Verdict::Met);
        assert_eq!(verdict([(1.0, 0), (1.0, 3)]), Verdict::Missed);
    }

    #[test]
    fn few_long_requests_show_no_p99_and_are_no_excuse_for_a_failure() {
        let mut point = point(0.2, [(100.0, 0); 2], [700.0; 2]);
        let of_long = |point: &Point| point.judge()[2].1.clone().unwrap();
        for runs in point.runs.iter_mut().flat_map(|runs| &mut runs.runs) {
            runs.as_mut().unwrap().long_requests = Some(54);
        }
        let few = of_long(&point);
        assert_eq!(few.verdict, Verdict::NotShown);
        let why = few.reason.unwrap();
        assert_eq!(why, "54 long requests are too few for a p99");
        assert_eq!(table(&point).rows[0][6], "54");
        let once = point.runs[0].runs[0].clone();
        for failing in [vec![once, None, None], vec![None; 2]] {
            point.runs[0].runs = failing;
            assert_eq!(of_long(&point).verdict, Verdict::Missed);
        }
    }

    #[test]
    fn a_pool_that_fails_in_most_repetitions_misses_every_target() {
        let mut failing = point(0.2, [(1.0, 0); 2], [700.0; 2]);
        let once = failing.runs[0].runs[0].clone();
        failing.runs[0].runs = vec![once, None, None];
        let missed = Some(Verdict::Missed);
        assert_eq!(failing.answered().verdict, Verdict::Missed);
        assert_eq!(judged(&failing), [missed, missed, missed, None, missed]);
        failing.runs[0].runs = vec![None; 3];
        assert_eq!(failing.answered().verdict, Verdict::Missed);
        let fine = point(0.4, [(1.0, 0); 2], [700.0; 2]);
        let worse = never_worse(&[fine, failing]).unwrap();
        assert_eq!(worse.verdict, Verdict::Missed, "{worse:?}");
    }

    #[test]
    fn worse_than_rayon_is_what_no_repetition_denies() {
        let worse = |pool: [f64; 2], others| {
            let points = [
                point(0.2, [(1.0, 0); 2], [700.0; 2]),
                point(0.8, pool.map(|p99| (p99, 0)), others),
            ];
            never_worse(&points).unwrap().verdict
        };
        assert_eq!(worse([300.0, 400.0], [200.0, 310.0]), Verdict::Met);
        assert_eq!(worse([320.0, 400.0], [200.0, 310.0]), Verdict::Missed);
        assert_eq!(never_worse(&[]), None);
    }
}
