//! Ratios between contenders, seed by seed, and what is asked of them. Seeds with which the client
//! was late say nothing of the servers and are left out. Errors and losses are a server's own: it
//! lacks its figure there, and a target is missed where the side that it is about lacks most.

use shinjuku_loadgen::{Figures, Mark};
use shinjuku_workload::repeat::Spread;

use super::results::{Cell, Kind, ScenarioResults, WithinSlo};
use super::scenario::{JUDGED, Scenario};
use crate::harness::{Comparison, Goal, Runs, Target};

/// The class that the targets are about, and the long one beside it.
const GET: usize = 0;
const SCAN: usize = 1;

/// Fills in comparisons and loads within the SLO.
pub fn complete(results: &mut ScenarioResults, scenario: &Scenario, slo_us: f64) {
    let asked = asked(scenario);
    let judged = asked.iter().filter_map(|one| one.judge(results, slo_us));
    results.comparisons = judged.map(|(compared, _)| compared).collect();
    if scenario.name != "rocksdb-8bc" {
        let contenders = results.contenders.clone();
        let within = |contender: String| within_slo(results, contender, slo_us);
        results.within_slo = contenders.into_iter().map(within).collect();
    }
}

/// The comparison of figure 8a: how much load each contender over RocksDB takes.
const WITHIN_SLO: &str = "load that keeps GET p99 within the SLO";
const WITHIN_OF: &str = "rocksdb-none";
const WITHIN: [(&str, Option<Goal>); 4] = [
    ("rocksdb-mq", Some(Goal::AtLeast(3.0))),
    ("rocksdb-sq", None),
    ("rocksdb-mq-signal", None),
    ("rocksdb-sq-signal", None),
];

/// GETs of `symmetric` over those of `threads`, on two cores shared with the client.
const BOTH_CORES: Goal = Goal::AtLeast(1.6);

/// The targets of all scenarios: those measured, and those that were not.
pub fn targets(all: &[ScenarioResults], slo_us: f64) -> Vec<Target> {
    let mut targets = Vec::new();
    for scenario in Scenario::all() {
        let results = all.iter().find(|one| one.name == scenario.name);
        for one in asked(&scenario) {
            let Some(goal) = one.goal else {
                continue;
            };
            let name = format!(
                "{}, {}: {} / {}",
                scenario.name, one.what, one.over, one.under
            );
            let judged = results.and_then(|results| one.judge(results, slo_us)?.1);
            targets.push(match judged {
                Some(target) => Target { name, ..target },
                None => Target::not_shown(
                    name,
                    goal,
                    "not measured, or one of the two did not compete",
                ),
            });
        }
    }
    targets
}

fn asked(scenario: &Scenario) -> Vec<Asked> {
    match scenario.name {
        "get-set" => get_set(scenario),
        "get-scan" | "get-long-scan" => get_scan(),
        "rocksdb-8a" => rocksdb().into_iter().chain(loads_within()).collect(),
        _ => rocksdb(),
    }
}

/// A figure of a cell.
type Value = fn(&Cell) -> Option<f64>;

/// What is compared of two contenders.
enum Measure {
    /// A figure under this load.
    Under(Kind, Value),
    /// The highest load within the SLO.
    WithinSlo,
}

/// A comparison to make.
struct Asked {
    what: String,
    measure: Measure,
    over: &'static str,
    under: &'static str,
    /// Which of the two is to show the goal: it misses that where it lacks its figures.
    ours: &'static str,
    goal: Option<Goal>,
}

/// The client was late: neither the server's figure, nor the lack of one, is the server's.
#[derive(Debug, PartialEq)]
struct Late;

impl Asked {
    /// The comparison, and the target if there is a goal; `None` if one of the two did not compete.
    fn judge(
        &self,
        results: &ScenarioResults,
        slo_us: f64,
    ) -> Option<(Comparison, Option<Target>)> {
        let competed = |name: &str| results.contenders.iter().any(|one| one == name);
        if !competed(self.over) || !competed(self.under) {
            return None;
        }
        let [over, under] = self.runs(results, slo_us);
        let figure = |one: &f64| Some(*one);
        let compared = over.compare(&under, &self.what, self.goal, figure);
        let ours = if self.ours == self.over { over } else { under };
        let target = Target::of(&compared).map(|target| target.needs_most_of(&ours, figure));
        Some((compared, target))
    }

    /// The figures of both, seed by seed, without the seeds with which the client was late.
    fn runs(&self, results: &ScenarioResults, slo_us: f64) -> [Runs<f64>; 2] {
        let mut runs = [self.over, self.under].map(Runs::new);
        let is_of = |kind: &Kind| match &self.measure {
            Measure::Under(own, _) => kind == own,
            Measure::WithinSlo => matches!(kind, Kind::Load { .. }),
        };
        for seed in seeds(results, is_of) {
            let figure = |name| self.figure(results, name, seed, slo_us);
            if let (Ok(over), Ok(under)) = (figure(self.over), figure(self.under)) {
                runs[0].runs.push(over);
                runs[1].runs.push(under);
            }
        }
        runs
    }

    /// A contender's figure; `None` where its turn failed or lacks it.
    fn figure(
        &self,
        results: &ScenarioResults,
        contender: &str,
        seed: u64,
        slo_us: f64,
    ) -> Result<Option<f64>, Late> {
        match &self.measure {
            Measure::Under(kind, value) => {
                let mut cells = results.cells(contender, kind);
                match cells.find(|cell| cell.seed == seed) {
                    Some(cell) if is_late(cell) => Err(Late),
                    Some(cell) if is_whole(cell) => Ok(value(cell)),
                    _ => Ok(None),
                }
            }
            Measure::WithinSlo => {
                let reached = highest_within(results, contender, seed, slo_us)?;
                Ok(reached.map(|(_, rate)| rate))
            }
        }
    }
}

/// The seeds of the cells of such kinds, whoever's.
fn seeds(results: &ScenarioResults, is_of: impl Fn(&Kind) -> bool) -> Vec<u64> {
    let cells = results.cells.iter().filter(|cell| is_of(&cell.kind));
    let mut seeds: Vec<u64> = cells.map(|cell| cell.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    seeds
}

fn is_late(cell: &Cell) -> bool {
    cell.point.marks.contains(&Mark::Behind)
}

/// Whether its figures are of all requests: the server refused, lost and failed none.
fn is_whole(cell: &Cell) -> bool {
    let marks = &cell.point.marks;
    !marks.contains(&Mark::Losses) && !marks.contains(&Mark::Errors)
}

fn figures(cell: &Cell, class: usize) -> Option<&Figures> {
    cell.point.classes.get(class).map(|class| &class.figures)
}

fn get_p99(cell: &Cell) -> Option<f64> {
    figures(cell, GET)?.p99_us
}

fn scan_p99(cell: &Cell) -> Option<f64> {
    figures(cell, SCAN)?.p99_us
}

fn throughput(cell: &Cell) -> Option<f64> {
    Some(cell.point.all.throughput_rps)
}

/// Answers per CPU second of the server.
pub fn efficiency(cell: &Cell) -> Option<f64> {
    (cell.cpu_cores > 0.0).then(|| cell.point.all.throughput_rps / cell.cpu_cores)
}

fn judged() -> Kind {
    Kind::Load { share: JUDGED }
}

/// Our throughput and p99 against redis-server's, and GETs with both layouts that take two cores.
fn get_set(scenario: &Scenario) -> Vec<Asked> {
    let mut asked = Vec::new();
    for over in ["mq", "sq", "fcfs", "mq-threads", "mq-symmetric"] {
        // What shares the client's core says little of the server.
        let judges = !["mq-threads", "mq-symmetric"].contains(&over);
        let goal = |goal| judges.then_some(goal);
        for saturation in &scenario.saturations {
            let kind = Kind::Saturation {
                name: saturation.name.to_owned(),
            };
            let mut ask = |what, value: Value, goal| {
                asked.push(Asked {
                    what: format!("{what}, {}", saturation.name),
                    measure: Measure::Under(kind.clone(), value),
                    over,
                    under: "redis",
                    ours: over,
                    goal,
                });
            };
            ask("throughput", throughput, goal(Goal::AtLeast(0.9)));
            ask("p99", get_p99, goal(Goal::AtMost(1.3)));
            ask("throughput per CPU second", efficiency, None);
        }
        asked.push(Asked {
            what: "GET p99 at 50 %".to_owned(),
            measure: Measure::Under(judged(), get_p99),
            over,
            under: "redis",
            ours: over,
            goal: goal(Goal::AtMost(1.3)),
        });
    }
    asked.extend(scenario.saturations.iter().map(|saturation| Asked {
        what: format!("throughput, {}", saturation.name),
        measure: Measure::Under(
            Kind::Saturation {
                name: saturation.name.to_owned(),
            },
            throughput,
        ),
        over: "mq-symmetric",
        under: "mq-threads",
        ours: "mq-symmetric",
        goal: Some(BOTH_CORES),
    }));
    asked
}

/// How much later GETs are answered elsewhere, at half of redis-server's capacity.
fn get_scan() -> Vec<Asked> {
    let mut asked = Vec::new();
    for under in ["mq", "sq", "mq-threads", "mq-symmetric"] {
        for over in ["redis", "fcfs"] {
            asked.push(Asked {
                what: "GET p99 at 50 %".to_owned(),
                measure: Measure::Under(judged(), get_p99),
                over,
                under,
                ours: under,
                goal: (under == "mq").then_some(Goal::AtLeast(5.0)),
            });
        }
    }
    asked
}

/// The order of figures 8b and 8c of the Shinjuku paper (section 4.4): without preemption SCANs are
/// favoured over GETs, SQ mends that, and MQ improves SCANs. The paper does not compare GETs under
/// SQ with those under MQ, so that ratio has no target.
fn rocksdb() -> Vec<Asked> {
    let ask = |what: &str, value: Value, over, under, goal: f64| Asked {
        what: format!("{what} at 50 %"),
        measure: Measure::Under(judged(), value),
        over,
        under,
        ours: under,
        goal: (goal > 0.0).then_some(Goal::AtLeast(goal)),
    };
    vec![
        ask("GET p99", get_p99, "rocksdb-none", "rocksdb-sq", 1.0),
        ask("GET p99", get_p99, "rocksdb-sq", "rocksdb-mq", 0.0),
        ask("SCAN p99", scan_p99, "rocksdb-sq", "rocksdb-mq", 1.0),
        ask("GET p99", get_p99, "rocksdb-none", "rocksdb-mq", 0.0),
        ask("GET p99", get_p99, "rocksdb-none", "rocksdb-sq-signal", 0.0),
        ask("GET p99", get_p99, "rocksdb-none", "rocksdb-mq-signal", 0.0),
    ]
}

/// Figure 8a of the paper.
fn loads_within() -> impl Iterator<Item = Asked> {
    WITHIN.into_iter().map(|(over, goal)| Asked {
        what: WITHIN_SLO.to_owned(),
        measure: Measure::WithinSlo,
        over,
        under: WITHIN_OF,
        ours: over,
        goal,
    })
}

/// How far a contender keeps GET's p99 within the bound.
fn within_slo(results: &ScenarioResults, contender: String, slo_us: f64) -> WithinSlo {
    let highest = highest_share(results);
    let reached: Vec<_> = seeds(results, |kind| matches!(kind, Kind::Load { .. }))
        .into_iter()
        .map(|seed| highest_within(results, &contender, seed, slo_us))
        .map(|reached| reached.ok().flatten())
        .collect();
    let rates: Vec<f64> = reached.iter().flatten().map(|(_, rate)| *rate).collect();
    let at_the_end = !reached.is_empty()
        && reached
            .iter()
            .all(|one| one.is_some_and(|(share, _)| share >= highest));
    WithinSlo {
        // Repetitions that never kept it count as such: without all of them there is no figure.
        rps: (rates.len() == reached.len())
            .then(|| Spread::of(&rates))
            .flatten(),
        contender,
        at_the_end,
    }
}

fn highest_share(results: &ScenarioResults) -> f64 {
    let shares = results.cells.iter().filter_map(|cell| match cell.kind {
        Kind::Load { share } => Some(share),
        Kind::Saturation { .. } => None,
    });
    shares.fold(0.0, f64::max)
}

/// The highest load within the bound, with all lower ones within it: its share and rate. There is
/// none where errors or losses leave open whether a load is within it: an end of the row there
/// would make the other contender look better than it is.
fn highest_within(
    results: &ScenarioResults,
    contender: &str,
    seed: u64,
    slo_us: f64,
) -> Result<Option<(f64, f64)>, Late> {
    let mut loads: Vec<(f64, &Cell)> = (results.cells.iter())
        .filter(|cell| cell.contender == contender && cell.seed == seed)
        .filter_map(|cell| match cell.kind {
            Kind::Load { share } => Some((share, cell)),
            Kind::Saturation { .. } => None,
        })
        .collect();
    loads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut highest = None;
    for (share, cell) in loads {
        let saturated = cell.point.marks.contains(&Mark::Saturated);
        let is_within = !saturated && get_p99(cell).is_some_and(|p99| p99 <= slo_us);
        if is_late(cell) {
            return Err(Late);
        } else if !is_within {
            break;
        } else if !is_whole(cell) {
            return Ok(None);
        }
        highest = Some((share, cell.point.offered_rps));
    }
    Ok(highest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Verdict;
    use crate::kv::results::tests::{cell, scenario_results};
    use crate::kv::scenario::Saturation;

    #[test]
    fn ratios_pair_seeds_and_targets_are_judged_by_the_median() {
        let mut cells = Vec::new();
        for (seed, redis, mq) in [(1, 1000.0, 100.0), (2, 800.0, 100.0), (3, 900.0, 300.0)] {
            cells.push(cell("redis", 0.5, seed, redis));
            cells.push(cell("mq", 0.5, seed, mq));
        }
        // One more of redis, without its pair.
        cells.push(cell("redis", 0.5, 4, 5.0));
        let mut results = scenario_results(&["redis", "mq"], cells);
        let all = Scenario::all();
        complete(&mut results, &all[1], 200.0);
        assert_eq!(results.comparisons.len(), 1);
        let first = &results.comparisons[0];
        assert_eq!((first.pairs, first.met()), (3, Some(true)));
        assert_eq!(first.ratio.as_ref().unwrap().ratio.median, 8.0);
    }

    /// The verdict on GETs beside SCANs, redis over mq, of five seeds with the marks that `mark`
    /// has for a contender, and how many pairs there are.
    fn verdict(mark: impl Fn(&str, u64) -> Option<Mark>) -> (Verdict, usize) {
        let mut cells = Vec::new();
        for seed in 1..=5 {
            for (name, p99) in [("redis", 1000.0), ("mq", 100.0)] {
                let mut cell = cell(name, 0.5, seed, p99);
                cell.point.marks.extend(mark(name, seed));
                cells.push(cell);
            }
        }
        let mut results = scenario_results(&["redis", "mq"], cells);
        complete(&mut results, &Scenario::all()[1], 200.0);
        let pairs = results.comparisons[0].pairs;
        let targets = targets(&[results], 200.0);
        let ours = |one: &&Target| one.name == "get-scan, GET p99 at 50 %: redis / mq";
        (targets.iter().find(ours).unwrap().verdict, pairs)
    }

    #[test]
    fn what_our_server_fails_or_loses_is_missed_and_a_late_client_is_nobodys_fault() {
        let of = |who: &'static str, seeds: u64, mark| {
            verdict(move |name, seed| (name == who && seed <= seeds).then_some(mark))
        };
        for mark in [Mark::Losses, Mark::Errors] {
            assert_eq!(of("mq", 2, mark), (Verdict::Met, 3));
            assert_eq!(of("mq", 3, mark), (Verdict::Missed, 2));
            assert_eq!(of("mq", 5, mark), (Verdict::Missed, 0));
            assert_eq!(of("redis", 5, mark), (Verdict::NotShown, 0));
        }
        assert_eq!(of("mq", 3, Mark::Behind), (Verdict::Met, 2));
        assert_eq!(of("mq", 5, Mark::Behind), (Verdict::NotShown, 0));
    }

    #[test]
    fn a_server_of_ours_whose_turns_failed_misses_its_target() {
        let cells = (1..=3).map(|seed| cell("redis", 0.5, seed, 1000.0));
        let mut results = scenario_results(&["redis", "mq"], cells.collect());
        complete(&mut results, &Scenario::all()[1], 200.0);
        let targets = targets(&[results], 200.0);
        let missed = |one: &&Target| one.verdict == Verdict::Missed;
        assert_eq!(targets.iter().filter(missed).count(), 1);
    }

    #[test]
    fn a_load_of_which_nothing_is_known_takes_its_seed_from_both() {
        let compared = |mark: Option<Mark>, p99: f64| {
            let mut cells = Vec::new();
            for seed in 1..=3 {
                for (share, none, mq) in [(0.1, 50.0, 50.0), (0.3, p99, 50.0), (0.5, 900.0, 50.0)] {
                    cells.push(cell("rocksdb-none", share, seed, none));
                    cells.push(cell("rocksdb-mq", share, seed, mq));
                }
            }
            let spoilt = |one: &&mut Cell| {
                let at = Kind::Load { share: 0.3 };
                (&*one.contender, &one.kind, one.seed) == ("rocksdb-none", &at, 2)
            };
            let marks = &mut cells.iter_mut().find(spoilt).unwrap().point.marks;
            marks.extend(mark);
            let results = scenario_results(&["rocksdb-none", "rocksdb-mq"], cells);
            let asked = loads_within().next().unwrap();
            let (compared, target) = asked.judge(&results, 200.0).unwrap();
            let ratio = compared.ratio.unwrap().ratio;
            (compared.pairs, ratio.max, target.unwrap().verdict)
        };
        // The row's end is known by its latency, whatever else was lost.
        assert_eq!(compared(None, 900.0), (3, 5.0, Verdict::Met));
        assert_eq!(compared(Some(Mark::Losses), 900.0), (3, 5.0, Verdict::Met));
        // 0.5 over 0.3, and never over 0.1.
        for (mark, pairs) in [(None, 3), (Some(Mark::Behind), 2), (Some(Mark::Losses), 2)] {
            let (found, ratio, verdict) = compared(mark, 50.0);
            assert_eq!((found, verdict), (pairs, Verdict::Missed), "{mark:?}");
            assert!(ratio < 2.0, "{mark:?}: {ratio}");
        }
    }

    #[test]
    fn layouts_on_both_cores_are_judged_by_their_gets() {
        let scenario = &Scenario::all()[0];
        let saturated = |contender: &str, share, saturation: &Saturation| Cell {
            kind: Kind::Saturation {
                name: saturation.name.to_owned(),
            },
            ..cell(contender, share, 1, 10.0)
        };
        let mut cells = Vec::new();
        for (saturation, share) in scenario.saturations.iter().zip([0.9, 0.7]) {
            cells.push(saturated("mq-threads", 0.5, saturation));
            cells.push(saturated("mq-symmetric", share, saturation));
        }
        let mut results = scenario_results(&["mq-threads", "mq-symmetric"], cells);
        results.name = scenario.name.to_owned();
        complete(&mut results, scenario, 200.0);
        let targets = targets(&[results], 200.0);
        let verdicts: Vec<_> = (targets.iter())
            .filter(|target| target.name.ends_with("mq-symmetric / mq-threads"))
            .map(|target| target.verdict)
            .collect();
        assert_eq!(verdicts, [Verdict::Met, Verdict::Missed]);
    }

    #[test]
    fn a_load_within_the_slo_has_all_lower_ones_within_it() {
        let mut cells = Vec::new();
        for (share, p99) in [(0.1, 50.0), (0.3, 250.0), (0.5, 90.0)] {
            cells.push(cell("mq", share, 1, p99));
        }
        let results = scenario_results(&["mq"], cells);
        let of = |slo| within_slo(&results, "mq".to_owned(), slo);
        assert_eq!(of(100.0).rps.unwrap().median, 100.0);
        assert!(!of(100.0).at_the_end);
        assert_eq!(of(10.0).rps, None);
        let all = of(1000.0);
        assert_eq!((all.rps.unwrap().median, all.at_the_end), (500.0, true));
    }
}
