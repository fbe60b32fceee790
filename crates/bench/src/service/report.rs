//! How the bench of services is shown: targets, a table a load, what it cost, and plots.

use anyhow::{Result, ensure};
use shinjuku_plot::{Figure, Series, Table, XAxis, YAxis};

use super::contender::{
    INLINE, POOL, POOL_COMPILED, POOL_KERNEL_THREADS, POOL_TOKEN, SPAWN_BLOCKING,
};
use super::routes::{ROUTES, SHORT};
use super::{AtLoad, Cell, RouteFigures, Service};
use crate::harness::{Comparison, Goal, Measured, Runs, Section, Target, comparisons};
use crate::report::{BARS, cells, figure, or_dash, point};

/// The load that the targets are about.
const AT: f64 = 0.6;
/// p99 of a short route, pool over others.
const SHORTER: Goal = Goal::AtMost(0.1);
/// Throughput at saturation, pool over the best of the others.
const THROUGHPUT: Goal = Goal::AtLeast(0.95);
/// Ways to run a pool. The targets are about the first, which is what a service gets that says
/// nothing and permits nothing. The others are shown beside the same contenders.
const POOLS: [&str; 4] = [POOL, POOL_TOKEN, POOL_KERNEL_THREADS, POOL_COMPILED];

/// A percentile: as a file's name, in words, and where it stands.
type Measure = (&'static str, &'static str, fn(&RouteFigures) -> Option<f64>);
const MEASURES: [Measure; 3] = [
    ("p50", "median", |route| route.p50_us),
    ("p99", "p99", |route| route.p99_us),
    ("p999", "p99.9", |route| route.p999_us),
];

impl Measured for Service {
    const BENCH: &'static str = "service";
    const TITLE: &'static str = "a web service";
    const DIRECTORY: &'static str = "bench-service";

    fn check(&self) -> Result<()> {
        for load in &self.loads {
            ensure!(
                load.contenders.len() == self.saturation.len(),
                "at {:.0} % there are not the contenders of saturation",
                load.share * 100.0
            );
        }
        Ok(())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let client = match self.client_has_its_own_cores {
            true => "on cores of its own",
            false => "on the server's cores; its share is in the tables",
        };
        let mut cells = self.saturation.iter().flat_map(Runs::measured).peekable();
        let class = match cells.peek().is_some() && cells.all(|cell| cell.client_realtime) {
            true => "under SCHED_FIFO",
            false => "not under SCHED_FIFO, so late when the server is busy",
        };
        vec![
            ("Server", "examples/web, on two cores".to_owned()),
            (
                "Client",
                format!("hyper, HTTP/1.1 with keep-alive, {client}; {class}"),
            ),
            (
                "100 %",
                format!(
                    "{:.0} requests/s: {INLINE} at saturation",
                    self.capacity_rps
                ),
            ),
        ]
    }

    fn targets(&self) -> Vec<Target> {
        let at = self.at_target();
        let mut targets = Vec::new();
        for other in [SPAWN_BLOCKING, INLINE] {
            for route in SHORT {
                targets.push(shorter(at, route, other));
            }
        }
        targets.push(self.throughput_target());
        targets
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections: Vec<_> = self.loads.iter().map(at_load).collect();
        let figures = ROUTES
            .iter()
            .flat_map(|route| MEASURES.map(|measure| self.plot(route.name, measure)));
        if let Some(first) = sections.first_mut() {
            first.figures = figures.filter(|one| !one.series.is_empty()).collect();
            first.introduction = Some(
                "Latency counts from the moment at which a request was due, open loop. Medians \
                 over the repetitions, in which the contenders took turns with the same arrivals. \
                 A lost request counts as one that takes for ever: a percentile that this reaches \
                 is left out, and so is p99.9 of fewer than a thousand requests. A repetition in \
                 which the server fell behind with a route has no percentiles at all."
                    .to_owned(),
            );
        }
        sections.extend(self.other_pools());
        sections.push(self.saturated());
        sections.push(self.themselves());
        sections
    }
}

/// p99 of a short route with this pool, over another contender's.
fn p99_of_pairs(
    at: &[Runs<Cell>],
    route: &str,
    [pool, other]: [&str; 2],
    goal: Option<Goal>,
) -> Comparison {
    let what = format!("p99 of /{route} at {:.0} %", AT * 100.0);
    let p99 = |cell: &Cell| cell.route(route)?.p99_us;
    match (Runs::named(at, pool), Runs::named(at, other)) {
        (Some(pool), Some(other)) => pool.compare(other, what, goal, p99),
        _ => Comparison::of(what, [pool, other], &[], goal),
    }
}

/// The target for p99 of a short route.
fn shorter(at: &[Runs<Cell>], route: &str, other: &str) -> Target {
    let compared = p99_of_pairs(at, route, [POOL, other], Some(SHORTER));
    let target = Target::of(&compared).expect("the comparison has a goal");
    match Runs::named(at, POOL) {
        None => unless_there(target, at),
        Some(pool) => {
            let (without, all) = (without_p99(pool, route), pool.runs.len());
            match 2 * without > all {
                true => target.missed(format!(
                    "in {without} of {all} repetitions the server failed, fell behind, or lost so \
                     many requests that there is no p99"
                )),
                false => unless_lost(target, pool),
            }
        }
    }
}

/// A target of the pool, whose runs these are: it is not reached by failing to answer.
fn unless_lost(target: Target, pool: &Runs<Cell>) -> Target {
    match lost(pool) {
        0 => target,
        lost => target.missed(format!(
            "{lost} requests were not answered as they should be"
        )),
    }
}

/// How many repetitions failed, or have no p99 of a route of which requests were sent.
fn without_p99(runs: &Runs<Cell>, route: &str) -> usize {
    let is_without = |run: &&Option<Cell>| match run {
        None => true,
        Some(cell) => cell
            .route(route)
            .is_some_and(|route| route.p99_us.is_none()),
    };
    runs.runs.iter().filter(is_without).count()
}

/// A target of the pool, which is not among `measured`. What every service gets cannot be missing.
fn unless_there(target: Target, measured: &[Runs<Cell>]) -> Target {
    match measured {
        [] => target,
        _ => target.missed("its server did not start: the notes say why"),
    }
}

impl Service {
    /// The contenders at the load that the targets are about.
    fn at_target(&self) -> &[Runs<Cell>] {
        let mut loads = self.loads.iter();
        let at = loads.find(|load| (load.share - AT).abs() < 1e-9);
        at.map_or(&[], |load| &load.contenders)
    }

    /// Throughput at saturation with this pool, over the best that is no pool.
    fn throughput(&self, pool: &str, goal: Option<Goal>) -> Comparison {
        let rps = |cell: &Cell| Some(cell.answered_rps);
        let others = self
            .saturation
            .iter()
            .filter(|one| !POOLS.contains(&one.name.as_str()));
        let best = others.max_by(|one, other| {
            let of = |runs: &Runs<Cell>| runs.median(rps).unwrap_or_default();
            of(one).total_cmp(&of(other))
        });
        let what = "throughput at saturation";
        match (Runs::named(&self.saturation, pool), best) {
            (Some(pool), Some(best)) => pool.compare(best, what, goal, rps),
            _ => Comparison::of(what, [pool, "the best"], &[], goal),
        }
    }

    fn throughput_target(&self) -> Target {
        let compared = self.throughput(POOL, Some(THROUGHPUT));
        let target = Target::of(&compared).expect("the comparison has a goal");
        match Runs::named(&self.saturation, POOL) {
            None => unless_there(target, &self.saturation),
            Some(pool) => unless_lost(target, pool),
        }
    }

    /// What the targets ask of the first pool, of those of the others that were measured; unjudged.
    fn other_pools(&self) -> Option<Section> {
        let mut shown = Vec::new();
        let was_measured = |pool: &&&str| Runs::named(&self.saturation, pool).is_some();
        for pool in POOLS[1..].iter().filter(was_measured) {
            for other in [SPAWN_BLOCKING, INLINE] {
                let of_route = |route| p99_of_pairs(self.at_target(), route, [pool, other], None);
                shown.extend(SHORT.map(of_route));
            }
            shown.push(self.throughput(pool, None));
        }
        Some(Section {
            introduction: Some(format!(
                "The targets are about `{POOL}`. These take a token, cores or a build of their own."
            )),
            ..Section::new("The other pools", [comparisons(&shown)?])
        })
    }

    fn plot(&self, route: &str, (file, words, value): Measure) -> Figure {
        let names = self.saturation.iter().map(|runs| runs.name.clone());
        let series = names.enumerate().map(|(number, name)| {
            let points = self.loads.iter().filter_map(|load| {
                let runs = Runs::named(&load.contenders, &name)?;
                let spread = runs.spread(|cell| cell.route(route).and_then(value))?;
                Some(point(load.offered_rps, Some(spread)))
            });
            let points = points.collect();
            Series::contender(number, name, points)
        });
        Figure {
            name: format!("{route}-{file}"),
            title: format!("/{route}: {words}"),
            x: XAxis::Linear("offered load (requests/s)"),
            y: YAxis::Logarithmic,
            y_label: format!("{words} (µs, log)"),
            bars: BARS,
            series: series.filter(|one| !one.points.is_empty()).collect(),
        }
    }

    fn saturated(&self) -> Section {
        let mut table = Table::new(
            "as many requests under way as connections",
            [
                "",
                "answers/s",
                "range",
                "CPU us a request",
                "client's cores",
                "failed",
            ],
        );
        for runs in &self.saturation {
            let [rps, range] = cells(runs.spread(|cell| Some(cell.answered_rps)));
            table.push([
                runs.name.clone(),
                rps,
                range,
                number(runs, |cell| cell.server_us_per_request),
                number(runs, |cell| cell.client_cores),
                lost(runs).to_string(),
            ]);
        }
        Section::new("Saturation", [table])
    }

    /// What the contenders said, and how much memory they took in all.
    fn themselves(&self) -> Section {
        let mut table = Table::new(
            "servers",
            ["", "most memory, MiB", "what it says of itself"],
        );
        for runs in &self.saturation {
            let points = self
                .loads
                .iter()
                .filter_map(|load| Runs::named(&load.contenders, &runs.name));
            let cells = points.chain([runs]).flat_map(Runs::measured);
            let peak = cells.map(|cell| cell.peak_mib).fold(0.0, f64::max);
            let said = self.descriptions.get(&runs.name).cloned();
            table.push([runs.name.clone(), figure(peak), said.unwrap_or_default()]);
        }
        Section::new("The servers", [table])
    }
}

fn number(runs: &Runs<Cell>, value: fn(&Cell) -> f64) -> String {
    or_dash(runs.median(|cell| Some(value(cell))))
}

fn lost(runs: &Runs<Cell>) -> u64 {
    runs.measured().map(Cell::lost).sum()
}

fn at_load(load: &AtLoad) -> Section {
    let percentiles = ["p50", "p99", "p99.9"];
    let mut header = vec![String::new()];
    for route in &ROUTES {
        header.push(format!("/{} {}", route.name, percentiles[0]));
        header.extend(percentiles[1..].iter().map(ToString::to_string));
    }
    let mut latencies = Table::new("latencies in µs", header);
    let mut costs = Table::new(
        "costs",
        [
            "",
            "answers/s",
            "server's cores",
            "CPU us a request",
            "client's cores",
            "client late, p99 us",
            "failed",
            "saturated",
        ],
    );
    for runs in &load.contenders {
        let mut row = vec![runs.name.clone()];
        for route in &ROUTES {
            for (.., value) in MEASURES {
                let found = runs.median(|cell| cell.route(route.name).and_then(value));
                row.push(or_dash(found));
            }
        }
        latencies.push(row);
        costs.push([
            runs.name.clone(),
            number(runs, |cell| cell.answered_rps),
            number(runs, |cell| cell.server_cores),
            number(runs, |cell| cell.server_us_per_request),
            number(runs, |cell| cell.client_cores),
            number(runs, |cell| cell.late_p99_us),
            lost(runs).to_string(),
            format!(
                "{} of {}",
                runs.measured().filter(|cell| cell.saturated).count(),
                runs.runs.len()
            ),
        ]);
    }
    let (percent, rps) = (load.share * 100.0, load.offered_rps);
    Section::new(
        format!("{percent:.0} %: {rps:.0} requests/s"),
        [latencies, costs],
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::harness::Verdict;

    fn cell(rps: f64, p99_us: f64) -> Cell {
        let route = |name: &&str| RouteFigures {
            name: (*name).to_owned(),
            requests: 100,
            p50_us: Some(p99_us / 2.0),
            p99_us: Some(p99_us),
            p999_us: Some(p99_us * 2.0),
        };
        Cell {
            answered_rps: rps,
            failed: 0,
            unanswered: 0,
            saturated: false,
            server_cores: 1.0,
            server_us_per_request: 500.0,
            client_cores: 0.1,
            client_realtime: true,
            late_p99_us: 20.0,
            peak_mib: 64.0,
            routes: SHORT.iter().map(route).collect(),
        }
    }

    fn service(contenders: &[(&str, f64, f64)]) -> Service {
        let runs: Vec<_> = (contenders.iter())
            .map(|&(name, rps, p99_us)| {
                let cell = || Some(cell(rps, p99_us));
                Runs::of(name, [cell(), None, cell()])
            })
            .collect();
        Service {
            client_has_its_own_cores: false,
            descriptions: BTreeMap::new(),
            capacity_rps: 1000.0,
            saturation: runs.clone(),
            loads: vec![AtLoad {
                share: AT,
                offered_rps: 600.0,
                contenders: runs,
            }],
        }
    }

    #[test]
    fn the_targets_are_one_pools_short_routes_and_throughput() {
        let measured = service(&[
            (INLINE, 1000.0, 9_000.0),
            (SPAWN_BLOCKING, 900.0, 20_000.0),
            (POOL, 960.0, 1_000.0),
            (POOL_TOKEN, 500.0, 500.0),
        ]);
        measured.check().unwrap();
        let verdict = |part: &str| {
            let found = measured
                .targets()
                .into_iter()
                .find(|one| one.name.contains(part));
            found.unwrap_or_else(|| panic!("no target {part}")).verdict
        };
        let of_pool = |what: &str, other: &str| verdict(&format!("{what}: {POOL} / {other}"));
        assert_eq!(of_pool("/health at 60 %", SPAWN_BLOCKING), Verdict::Met);
        assert_eq!(of_pool("/range at 60 %", INLINE), Verdict::Missed);
        assert_eq!(of_pool("saturation", INLINE), Verdict::Met);
        let judged = measured.targets().len();
        assert_eq!(judged, 2 * SHORT.len() + 1);
        let shown = measured.other_pools().unwrap();
        assert_eq!(
            shown.tables[0].rows.len(),
            judged,
            "the same of the other pool"
        );
    }

    /// No contender passes by refusing what it cannot answer in time, or by not being there.
    #[test]
    fn a_pool_that_loses_requests_or_does_not_start_misses_its_targets() {
        let others = [
            (INLINE, 1000.0, 9_000.0),
            (SPAWN_BLOCKING, 900.0, 20_000.0),
            (POOL, 960.0, 1.0),
        ];
        let verdicts = |service: &Service| {
            let targets = service.targets();
            targets.iter().map(|one| one.verdict).collect::<Vec<_>>()
        };
        let absent = service(&others[..2]);
        assert_eq!(verdicts(&absent), [Verdict::Missed; 5]);
        let mut loses = service(&others);
        assert_eq!(verdicts(&loses), [Verdict::Met; 5]);
        // A login that fails at once leaves the cores to all others.
        let mut fails = service(&others);
        for runs in [&mut fails.saturation, &mut fails.loads[0].contenders] {
            runs.last_mut().unwrap().runs[0].as_mut().unwrap().failed = 1;
        }
        assert_eq!(verdicts(&fails), [Verdict::Missed; 5]);
        let pool = loses.loads[0].contenders.last_mut().unwrap();
        let routes = &mut pool.runs[0].as_mut().unwrap().routes;
        routes.iter_mut().for_each(|route| route.p99_us = None);
        // With the repetition that failed, two of three.
        let [short @ .., throughput] = &verdicts(&loses)[..] else {
            panic!("there are targets");
        };
        assert_eq!(
            (short, *throughput),
            (&[Verdict::Missed; 4][..], Verdict::Met)
        );
    }

    #[test]
    fn every_contender_is_in_every_table_and_plot() {
        let measured = service(&[(INLINE, 1000.0, 9_000.0), (POOL, 960.0, 1_000.0)]);
        let sections = measured.sections();
        assert_eq!(sections.len(), 3);
        let mut tables = sections.iter().flat_map(|one| &one.tables);
        assert!(tables.all(|table| table.rows.len() == 2));
        let figures = &sections[0].figures;
        assert_eq!(figures.len(), SHORT.len() * MEASURES.len());
        assert!(figures.iter().all(|figure| figure.series.len() == 2));
    }

    #[test]
    fn without_measurements_nothing_is_claimed() {
        let nothing = service(&[]);
        let shown = |target: &Target| target.verdict != Verdict::NotShown;
        assert!(!nothing.targets().iter().any(shown));
    }
}
