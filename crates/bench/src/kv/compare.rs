//! Ratios between contenders, seed by seed, and what is asked of them. Pairs in which the client
//! was late, or requests failed or were lost, say nothing of the servers and are left out.

use shinjuku_loadgen::{Figures, Mark};
use shinjuku_workload::repeat::Spread;

use super::results::{Cell, Kind, ScenarioResults, WithinSlo};
use super::scenario::{JUDGED, Scenario};
use crate::harness::{Comparison, Goal, Target};

/// The class that the targets are about, and the long one beside it.
const GET: usize = 0;
const SCAN: usize = 1;

/// Fills in comparisons and loads within the SLO.
pub fn complete(results: &mut ScenarioResults, scenario: &Scenario, slo_us: f64) {
    let asked = asked(scenario);
    results.comparisons = asked.iter().filter_map(|one| one.of(results)).collect();
    if scenario.name != "rocksdb-8bc" {
        let contenders = results.contenders.clone();
        let within = |contender: String| within_slo(results, contender, slo_us);
        results.within_slo = contenders.into_iter().map(within).collect();
    }
    if scenario.name == "rocksdb-8a" {
        for (over, goal) in WITHIN {
            let pairs: Vec<_> = rates(results, over, slo_us)
                .zip(rates(results, WITHIN_OF, slo_us))
                .map(|(own, against)| own.into_iter().zip(against).collect())
                .unwrap_or_default();
            let compared = Comparison::of(WITHIN_SLO, [over, WITHIN_OF], &pairs, goal);
            results.comparisons.push(compared);
        }
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
pub fn targets(all: &[ScenarioResults]) -> Vec<Target> {
    let mut targets = Vec::new();
    for scenario in Scenario::all() {
        let results = all.iter().find(|one| one.name == scenario.name);
        let asked = asked(&scenario);
        let judged = asked
            .iter()
            .map(|one| (&*one.what, one.over, one.under, one.goal));
        let within = WITHIN.iter().filter(|_| scenario.name == "rocksdb-8a");
        let within = within.map(|&(over, goal)| (WITHIN_SLO, over, WITHIN_OF, goal));
        for (what, over, under, goal) in judged.chain(within) {
            let Some(goal) = goal else {
                continue;
            };
            let name = format!("{}, {what}: {over} / {under}", scenario.name);
            let mut compared = results.iter().flat_map(|results| &results.comparisons);
            let compared =
                compared.find(|one| (&*one.what, &*one.over, &*one.under) == (what, over, under));
            let target = match compared.and_then(Target::of) {
                Some(target) => Target { name, ..target },
                None => Target::not_shown(
                    name,
                    goal,
                    "not measured, or one of the two did not compete",
                ),
            };
            targets.push(target);
        }
    }
    targets
}

fn asked(scenario: &Scenario) -> Vec<Asked> {
    match scenario.name {
        "get-set" => get_set(scenario),
        "get-scan" | "get-long-scan" => get_scan(),
        _ => rocksdb(),
    }
}

/// A figure of a cell.
type Value = fn(&Cell) -> Option<f64>;

/// A comparison to make.
struct Asked {
    what: String,
    kind: Kind,
    value: Value,
    over: &'static str,
    under: &'static str,
    goal: Option<Goal>,
}

impl Asked {
    /// `None` if one of the two did not compete.
    fn of(&self, results: &ScenarioResults) -> Option<Comparison> {
        let competed = |name: &str| results.contenders.iter().any(|one| one == name);
        if !competed(self.over) || !competed(self.under) {
            return None;
        }
        let pairs: Vec<_> = results
            .cells(self.over, &self.kind)
            .filter_map(|own| {
                let mut others = results.cells(self.under, &self.kind);
                let other = others.find(|other| other.seed == own.seed)?;
                if !is_sound(own) || !is_sound(other) {
                    return None;
                }
                (self.value)(own).zip((self.value)(other))
            })
            .collect();
        let names = [self.over, self.under];
        Some(Comparison::of(&self.what, names, &pairs, self.goal))
    }
}

/// Whether its figures are the server's, and of all requests.
fn is_sound(cell: &Cell) -> bool {
    let spoilt = [Mark::Behind, Mark::Losses, Mark::Errors];
    !spoilt.iter().any(|mark| cell.point.marks.contains(mark))
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
                    kind: kind.clone(),
                    value,
                    over,
                    under: "redis",
                    goal,
                });
            };
            ask("throughput", throughput, goal(Goal::AtLeast(0.9)));
            ask("p99", get_p99, goal(Goal::AtMost(1.3)));
            ask("throughput per CPU second", efficiency, None);
        }
        asked.push(Asked {
            what: "GET p99 at 50 %".to_owned(),
            kind: judged(),
            value: get_p99,
            over,
            under: "redis",
            goal: goal(Goal::AtMost(1.3)),
        });
    }
    asked.extend(scenario.saturations.iter().map(|saturation| Asked {
        what: format!("throughput, {}", saturation.name),
        kind: Kind::Saturation {
            name: saturation.name.to_owned(),
        },
        value: throughput,
        over: "mq-symmetric",
        under: "mq-threads",
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
                kind: judged(),
                value: get_p99,
                over,
                under,
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
        kind: judged(),
        value,
        over,
        under,
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

/// How far a contender keeps GET's p99 within the bound.
fn within_slo(results: &ScenarioResults, contender: String, slo_us: f64) -> WithinSlo {
    let highest = highest_share(results);
    let reached = by_seed(results, &contender, slo_us);
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

/// The loads that keep to the SLO, one a seed; `None` unless every seed has one.
fn rates(results: &ScenarioResults, contender: &str, slo_us: f64) -> Option<Vec<f64>> {
    let reached = by_seed(results, contender, slo_us).into_iter();
    let rates: Option<Vec<f64>> = reached.map(|one| one.map(|(_, rate)| rate)).collect();
    rates.filter(|rates| !rates.is_empty())
}

/// For each seed the highest load within the bound, with all lower ones within it: its share and
/// rate.
fn by_seed(results: &ScenarioResults, contender: &str, slo_us: f64) -> Vec<Option<(f64, f64)>> {
    let mut seeds: Vec<u64> = results.cells.iter().map(|cell| cell.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let of_seed = |seed: &u64| {
        let mut loads: Vec<(f64, &Cell)> = (results.cells.iter())
            .filter(|cell| cell.contender == contender && cell.seed == *seed)
            .filter_map(|cell| match cell.kind {
                Kind::Load { share } => Some((share, cell)),
                Kind::Saturation { .. } => None,
            })
            .collect();
        loads.sort_by(|a, b| a.0.total_cmp(&b.0));
        let keeps = |cell: &Cell| {
            let saturated = cell.point.marks.contains(&Mark::Saturated);
            !saturated && is_sound(cell) && get_p99(cell).is_some_and(|p99| p99 <= slo_us)
        };
        let within = loads.iter().take_while(|(_, cell)| keeps(cell));
        within
            .last()
            .map(|(share, cell)| (*share, cell.point.offered_rps))
    };
    seeds.iter().map(of_seed).collect()
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
        let targets = targets(&[results]);
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
