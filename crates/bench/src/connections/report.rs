//! Loads within ten mean service times, ratios, and the page.

use shinjuku_plot::{Figure, Series, Table, XAxis, YAxis};
use shinjuku_workload::repeat::Spread;

use super::contender::{CONTENDERS, FLOATING, IX, OURS, PARTITIONED, ZYGOS};
use super::scenario::SCENARIOS;
use super::{AtLoad, Cell, Connections, ScenarioResults};
use crate::harness::{
    Comparison, Goal, Measured, Runs, Section, Target, by_repetition, comparisons,
};
use crate::paper::reach;
use crate::report::{BARS, cells, figure, or_dash, point};

/// The talk's limit of p99: so many mean service times (slide 8).
pub const MEANS: f64 = 10.0;
/// How late the client's p99 may be, as a part of that limit.
const LATE: f64 = 0.25;
/// What the two lines of ratios are of.
const WITHIN: &str = "load within ten means";
const P99: &str = "p99";

/// Whose ratios are told: of loads as they stand, of latencies the other way round, so that more is
/// better for the first of both.
const PAIRS: [[&str; 2]; 6] = [
    [IX, FLOATING],
    [ZYGOS, FLOATING],
    [OURS, FLOATING],
    [FLOATING, PARTITIONED],
    [OURS, IX],
    [OURS, ZYGOS],
];

/// A request that is not answered at the lowest load is a defect of ours, whatever the machine: no
/// repetition may have one.
const ANSWERED: Goal = Goal::AtMost(0.0);

/// The client was late in a repetition before it reached the limit: how far it gets is not known.
struct Late;

impl Connections {
    /// Fills in what follows from the measured points.
    pub fn complete(&mut self) {
        for scenario in &mut self.scenarios {
            scenario.within = CONTENDERS.map(|one| scenario.within(one.name)).into();
        }
        self.comparisons = self
            .scenarios
            .iter()
            .flat_map(ScenarioResults::compare)
            .collect();
    }
}

impl AtLoad {
    fn of(&self, name: &str) -> Option<&Runs<Cell>> {
        Runs::named(&self.contenders, name)
    }
}

impl ScenarioResults {
    /// The limit of p99, us.
    fn limit_us(&self) -> f64 {
        MEANS * self.mean_us
    }

    /// Whether so much of a latency may be the client's that it says little of the server.
    fn is_late(&self, cell: &Cell) -> bool {
        cell.late_p99_us > LATE * self.limit_us()
    }

    /// The highest load of each repetition, per cent.
    fn within(&self, name: &str) -> Runs<f64> {
        let rows = self.rows(name).into_iter();
        Runs::of(name, rows.map(|row| row.ok().flatten()))
    }

    fn rows(&self, name: &str) -> Vec<Result<Option<f64>, Late>> {
        let runs = self.loads.iter().filter_map(|load| load.of(name));
        let repetitions = runs.map(|one| one.runs.len()).min().unwrap_or(0);
        (0..repetitions)
            .map(|number| self.row(name, number))
            .collect()
    }

    /// The highest load of one repetition, per cent.
    fn row(&self, name: &str, number: usize) -> Result<Option<f64>, Late> {
        let mut points = Vec::new();
        for load in &self.loads {
            let cell = load.of(name).and_then(|runs| runs.runs[number].as_ref());
            if cell.is_some_and(|cell| self.is_late(cell)) {
                return Err(Late);
            }
            let p99 = cell.and_then(|cell| cell.p99_us);
            points.push((load.share * 100.0, p99));
            if p99.is_none_or(|p99| p99 > self.limit_us()) {
                break;
            }
        }
        Ok(reach(points, self.limit_us()))
    }

    fn compare(&self) -> Vec<Comparison> {
        let lowest = self.loads.first().map(|load| load.share * 100.0);
        let mut compared = Vec::new();
        for [over, under] in PAIRS {
            let own: Vec<_> = self.within(over).runs;
            // Who is above the limit from the first point on counts with that point: the ratio is
            // then the least that it can be.
            let least = |row: Result<Option<f64>, Late>| row.ok()?.or(lowest);
            let least: Vec<_> = self.rows(under).into_iter().map(least).collect();
            let pairs = by_repetition(&own, &least);
            let what = format!("{}: {WITHIN}", self.name);
            compared.push(Comparison::of(what, [over, under], &pairs, None));
        }
        let judged = self.judged();
        for [quick, slow] in PAIRS {
            let runs = judged.and_then(|load| load.of(slow).zip(load.of(quick)));
            let what = format!("{}: {P99}", self.name);
            let p99 = |one: &Cell| one.p99_us.filter(|_| !self.is_late(one));
            compared.extend(runs.map(|(over, under)| over.compare(under, what, None, p99)));
        }
        compared
    }

    /// The load at which latencies are compared.
    fn judged(&self) -> Option<&AtLoad> {
        let scenario = SCENARIOS.iter().find(|one| one.name == self.name)?;
        self.loads
            .iter()
            .find(|load| load.share == scenario.judged())
    }

    /// Whether ours answered everything at the lowest load.
    fn answered(&self) -> Option<Target> {
        let name = format!("{}: most unanswered at the lowest load: {OURS}", self.name);
        let runs = self.loads.first()?.of(OURS)?;
        let of_one = |one: &Cell| Some(one.unanswered as f64);
        let most = runs.spread(of_one).map(|left| Spread {
            median: left.max,
            ..left
        });
        let target = Target::judged(name, ANSWERED, most, "no repetition was measured");
        Some(match runs.lacking(of_one) {
            0 => target,
            failed => target.missed(format!(
                "{failed} of {} repetitions failed",
                runs.runs.len()
            )),
        })
    }

    fn section(&self) -> Section {
        let scenario = SCENARIOS.iter().find(|one| one.name == self.name);
        let title = scenario.map_or(&*self.name, |one| one.title);
        let plotted = |load: &AtLoad, name: &str| {
            let spread = load.of(name)?.spread(|one| one.p99_us);
            Some(point(load.share * 100.0, spread))
        };
        let line = |(number, name): (usize, &str)| {
            let points = self.loads.iter().filter_map(|load| plotted(load, name));
            Series::contender(number, name, points.collect())
        };
        let names = CONTENDERS.iter().map(|one| one.name).enumerate();
        let plot = Figure {
            name: format!("connections-{}", self.name),
            title: format!("Two cores over TCP: {title}"),
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "p99 latency (µs, log)".to_owned(),
            bars: BARS,
            series: names.map(line).collect(),
        };
        let pace = self.pace.as_ref().map(pace);
        let tables = pace.into_iter().chain([self.loads_within()]);
        let tables = tables.chain(self.loads.iter().map(table));
        Section {
            notes: self.late_cells().into_iter().collect(),
            ..Section::new(title, tables).figures([plot])
        }
    }

    /// What is said of the cells that no ratio is made of.
    fn late_cells(&self) -> Option<String> {
        let runs = self.loads.iter().flat_map(|load| &load.contenders);
        let cells: Vec<_> = runs.flat_map(Runs::measured).collect();
        let late = cells.iter().filter(|cell| self.is_late(cell)).count();
        (late > 0).then(|| {
            format!(
                "No ratio is made of {late} of {} repetitions of a load, in which the client's p99 of being late was above {:.0} µs, \
                 a quarter of the limit.",
                cells.len(),
                LATE * self.limit_us()
            )
        })
    }

    fn loads_within(&self) -> Table {
        let mut table = Table::new(
            format!(
                "highest load with a p99 within {:.0} µs, %; medians",
                self.limit_us()
            ),
            ["", "load", "spread", "repetitions without"],
        );
        for runs in &self.within {
            let [load, spread] = cells(runs.spread(|&load| Some(load)));
            let without = runs.runs.iter().filter(|one| one.is_none()).count();
            table.push([runs.name.clone(), load, spread, without.to_string()]);
        }
        table
    }
}

impl Measured for Connections {
    const BENCH: &'static str = "connections";
    const TITLE: &'static str = "connections over TCP";
    const DIRECTORY: &'static str = "bench-connections";

    fn facts(&self) -> Vec<(&'static str, String)> {
        let cores: Vec<_> = self.cores.iter().map(ToString::to_string).collect();
        vec![
            ("Connections", self.connections.to_string()),
            ("Servers' cores", cores.join(", ")),
        ]
    }

    fn targets(&self) -> Vec<Target> {
        let answered = self.scenarios.iter().filter_map(ScenarioResults::answered);
        let compared = self.comparisons.iter().filter_map(Target::of);
        answered.chain(compared).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections: Vec<_> = self
            .scenarios
            .iter()
            .map(ScenarioResults::section)
            .collect();
        let said = self.descriptions.iter();
        sections.push(Section {
            introduction: Some(format!(
                "Of loads the first is over the second; of p99, at the load of the table, the second over the first: more is better for \
                 the first of both. Who is above {MEANS} means from the first load on counts with that load."
            )),
            details: said.map(|(name, said)| format!("{name}: {said}")).collect(),
            ..Section::new("Ratios", comparisons(&self.comparisons))
        });
        sections
    }
}

/// How transactions' times are distributed.
fn pace(pace: &shinjuku_bench_tpcc::Pace) -> Table {
    let header = ["", "transactions", "mean", "p50", "p90", "p99"];
    let mut table = Table::new("transactions alone, on one thread: time, µs", header);
    for times in &pace.times {
        let [mean, p50, p90, p99] =
            [times.mean_us, times.p50_us, times.p90_us, times.p99_us].map(figure);
        let count = times.transactions.to_string();
        table.push([times.name.clone(), count, mean, p50, p90, p99]);
    }
    table.notes.push(format!(
        "The mean by processor time is {} µs: {} µs, and {} ns more for each row.",
        figure(pace.mean_us),
        figure(pace.bare_mean_us),
        figure(pace.row_ns)
    ));
    table
}

fn table(load: &AtLoad) -> Table {
    let mut table = Table::new(
        format!(
            "{:.0} %, {:.0} requests a second: latency, µs; medians",
            load.share * 100.0,
            load.offered_rps
        ),
        [
            "",
            "p50",
            "p99",
            "spread",
            "unanswered",
            "helped, %",
            "client late, p99",
            "client's cores",
        ],
    );
    for runs in &load.contenders {
        let median = |value: fn(&Cell) -> Option<f64>| or_dash(runs.median(value));
        let [p99, spread] = cells(runs.spread(|one| one.p99_us));
        let unanswered: u64 = runs.measured().map(|one| one.unanswered).sum();
        table.push([
            runs.name.clone(),
            median(|one| one.p50_us),
            p99,
            spread,
            unanswered.to_string(),
            median(|one| Some(100.0 * one.helped? as f64 / one.requests.max(1) as f64)),
            median(|one| Some(one.late_p99_us)),
            median(|one| Some(one.client_cores)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shinjuku_bench_tpcc::Pace;

    use super::super::scenario::Scenario;
    use super::*;
    use crate::harness::Verdict;
    use crate::paper::{List, Run};

    fn cell(p99_us: Option<f64>) -> Cell {
        Cell {
            requests: 1000,
            unanswered: if p99_us.is_some() { 0 } else { 20 },
            helped: Some(250),
            p50_us: Some(20.0),
            p99_us,
            class_p99_us: BTreeMap::new(),
            late_p99_us: 3.0,
            client_cores: 0.3,
            client_realtime: true,
        }
    }

    /// Of each contender the p99 at 5, 10 and 20 %, in one repetition; the limit is 100.
    fn results(p99: &[(&str, [Option<f64>; 3])]) -> Connections {
        let at = |scenario: &Scenario, number: usize| AtLoad {
            share: scenario.loads(true)[number],
            offered_rps: 1.0,
            contenders: (p99.iter())
                .map(|(name, p99)| Runs::of(*name, [Some(cell(p99[number]))]))
                .collect(),
        };
        let of = |scenario: &Scenario| ScenarioResults {
            name: scenario.name.to_owned(),
            mean_us: 10.0,
            pace: Some(Pace {
                bare_mean_us: 5.0,
                mean_us: 33.0,
                row_ns: 900.0,
                row_steps: 500,
                times: Vec::new(),
            }),
            loads: (0..3).map(|number| at(scenario, number)).collect(),
            within: Vec::new(),
        };
        let mut results = Connections {
            connections: 8,
            cores: vec![0, 1],
            client_has_its_own_cores: false,
            descriptions: BTreeMap::new(),
            scenarios: SCENARIOS.iter().map(of).collect(),
            comparisons: Vec::new(),
        };
        results.complete();
        results
    }

    fn ratio(results: &Connections, what: &str, over: &str, under: &str) -> Option<f64> {
        let what = format!("10-us: {what}");
        let found = results
            .comparisons
            .iter()
            .find(|one| (&*one.what, &*one.over, &*one.under) == (&*what, over, under));
        Some(found?.ratio.as_ref()?.ratio.median)
    }

    #[test]
    fn ratios_are_of_loads_within_ten_means_and_of_latencies() {
        let results = results(&[
            (PARTITIONED, [Some(200.0), Some(400.0), None]),
            (FLOATING, [Some(50.0), Some(100.0), Some(400.0)]),
            (IX, [Some(50.0), Some(80.0), None]),
            (ZYGOS, [Some(30.0), Some(40.0), Some(60.0)]),
            (OURS, [Some(30.0), Some(50.0), Some(50.0)]),
        ]);
        let within: Vec<_> = results.scenarios[0]
            .within
            .iter()
            .map(|runs| runs.runs[0])
            .collect();
        assert_eq!(
            within,
            [None, Some(10.0), Some(10.0), Some(20.0), Some(20.0)]
        );
        assert_eq!(ratio(&results, WITHIN, OURS, FLOATING), Some(2.0));
        assert_eq!(ratio(&results, P99, FLOATING, OURS), Some(2.0));
        // Partitioned is above the limit from 5 % on.
        assert_eq!(ratio(&results, WITHIN, FLOATING, PARTITIONED), Some(2.0));
        assert_eq!(results.targets()[0].verdict, Verdict::Met);
        let sections = results.sections();
        assert_eq!(sections.len(), SCENARIOS.len() + 1);
        let table = &sections[0].tables[2];
        let helped = table.header.iter().position(|name| name == "helped, %");
        assert_eq!(table.rows[0][helped.unwrap()], "25.0");
    }

    #[test]
    fn what_we_leave_unanswered_is_missed() {
        let results = results(&[(OURS, [None; 3]), (FLOATING, [Some(10.0); 3])]);
        assert_eq!(results.targets()[0].verdict, Verdict::Missed);
        assert_eq!(ratio(&results, WITHIN, OURS, FLOATING), None);
    }

    #[test]
    fn nothing_is_compared_where_the_client_was_late() {
        let mut results = results(&[
            (FLOATING, [Some(200.0), Some(400.0), None]),
            (OURS, [Some(30.0), Some(50.0), Some(50.0)]),
        ]);
        assert_eq!(ratio(&results, WITHIN, OURS, FLOATING), Some(4.0));
        assert_eq!(results.sections()[0].notes, Vec::<String>::new());
        let mut with = |load: usize, contender: usize, late_p99_us| {
            let runs = &mut results.scenarios[0].loads[load].contenders[contender].runs;
            let before = runs[0].clone();
            runs[0].as_mut().unwrap().late_p99_us = late_p99_us;
            results.complete();
            let found = [
                ratio(&results, WITHIN, OURS, FLOATING),
                ratio(&results, P99, FLOATING, OURS),
            ];
            let notes = results.sections()[0].notes.len();
            results.scenarios[0].loads[load].contenders[contender].runs[0] = before;
            (found, notes)
        };
        // The limit is 100 us.
        assert_eq!(with(0, 0, 25.0), ([Some(4.0), Some(8.0)], 0));
        // That floating is above the limit from the first load on is not known.
        assert_eq!(with(0, 0, 26.0), ([None, Some(8.0)], 1));
        assert_eq!(with(1, 1, 26.0), ([None, None], 1));
        // Floating's row has ended before.
        assert_eq!(with(2, 0, 26.0), ([Some(4.0), Some(8.0)], 1));
    }

    #[test]
    fn one_repetition_that_failed_or_left_requests_misses() {
        let mut results = results(&[(OURS, [Some(10.0); 3])]);
        let mut verdict = |runs: [Option<Option<f64>>; 3]| {
            let runs = runs.map(|run| run.map(cell));
            results.scenarios[0].loads[0].contenders[0].runs = runs.into();
            results.targets()[0].verdict
        };
        let (good, bad) = (Some(Some(10.0)), Some(None));
        assert_eq!(verdict([good; 3]), Verdict::Met);
        assert_eq!(verdict([good, bad, good]), Verdict::Missed);
        assert_eq!(verdict([good, good, None]), Verdict::Missed);
        assert_eq!(verdict([None; 3]), Verdict::Missed);
    }

    #[test]
    fn what_the_list_of_claims_reads_is_there() {
        let all = CONTENDERS.map(|one| (one.name, [Some(10.0), Some(20.0), Some(30.0)]));
        let json = serde_json::to_value(results(&all)).unwrap();
        let list = List::read().unwrap();
        let own = Run::Command("connections".to_owned());
        let items = list.items.iter().filter(|item| item.run == own);
        let checks: Vec<_> = items.flat_map(|item| &item.checks).collect();
        assert!(checks.len() > 10, "{}", checks.len());
        for check in checks {
            let found = check.reads.of_results(&json);
            assert!(found.is_ok(), "{}: {:?}", check.what, check.reads);
        }
    }
}
