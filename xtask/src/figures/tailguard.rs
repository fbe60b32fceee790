//! The policies of Wang et al., *TailGuard*, ICDCS 2023, on servers and queries of ours.

use anyhow::Result;
use shinjuku_sim::fanout::{Discipline, FanoutScenario};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::source::{Claim, TAILGUARD};
use super::sweep::{SEED, at, each};
use super::{Drawing, Effort, Entry};
use shinjuku_plot::{Point, Series, XAxis, YAxis};

pub(super) const FIGURES: &[Entry] = &[Entry {
    source: &TAILGUARD,
    name: "tailguard",
    title: "Highest load that keeps both SLOs: 100 servers, fan-out 1, 10, 100",
    seconds: 60,
    claims: &[Claim {
        place: "abstract",
        says: "with deadlines from SLO and fan-out the servers carry more load within the SLOs than under the three other \
               policies: FIFO, priorities, and deadlines from the SLO alone (by up to 80 % there, with three applications \
               of the Tailbench suite).",
        test: "tailguard_carries_more_load_than_fifo_priority_and_plain_edf",
    }],
    ours: "100 servers, queries of 1, 10 and 100 tasks, the SLOs and the service times; none of the abstract's \
           applications is simulated.",
    draw: policies,
}];

fn policies(effort: Effort) -> Result<Drawing> {
    // As for a key-value store: a narrow body, and one task in 2000 that takes near three times as
    // long. So queries of 100 tasks take longer than those of one even in an empty system, which is
    // what deadlines by fan-out are about.
    let body = Class::new("body", 1_999.0, ServiceTime::lognormal(176.0, 18.0)?);
    let tail = Class::new("tail", 1.0, ServiceTime::fixed(475.0)?);
    let mix = Mix::new("store", vec![body, tail])?;
    let slos_us = [600.0, 800.0, 1_000.0, 1_200.0, 1_400.0];
    let line = |(number, discipline): (usize, Discipline)| {
        let mut points = Vec::new();
        for slo_us in slos_us {
            effort.check_time()?;
            let fanouts = vec![(1, 100.0), (10, 10.0), (100, 1.0)];
            let slos_us = vec![(slo_us, 1.0), (1.5 * slo_us, 1.0)];
            let scenario = FanoutScenario {
                discipline,
                queries: effort.search_requests,
                ..FanoutScenario::new(mix.clone(), 100, fanouts, slos_us)
            };
            let step = 1.0 / f64::from(1 << effort.halvings);
            let load = 100.0 * scenario.highest_load(step, SEED)?;
            points.push(Point::exact(slo_us, load));
        }
        Ok(Series::contender(number, discipline.name(), points))
    };
    // A search is one run after the other, so the lines are drawn side by side.
    let series: Vec<Series> = std::thread::scope(|scope| {
        let lines = Discipline::ALL.into_iter().enumerate();
        let threads: Vec<_> = lines.map(|of| scope.spawn(move || line(of))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Series>>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<_>>()
    })?;
    let found = each(&series, |one| {
        format!("{} {} %", one.label, at(one, 1_000.0))
    });
    Ok(Drawing {
        x: XAxis::Logarithmic("tighter SLO on p99 (µs, log); the other is 1.5 times it"),
        y: YAxis::Percent,
        y_label: "highest load (% of the servers' capacity)",
        bars: "",
        series,
        found: format!("with SLOs of 1000 and 1500 µs: {found}."),
    })
}
