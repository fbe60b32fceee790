//! The policies of Wang et al., *TailGuard*, ICDCS 2023: 100 servers, queries of 1, 10 and 100 tasks.

use anyhow::Result;
use shinjuku_sim::fanout::{Discipline, FanoutScenario};
use shinjuku_workload::{Class, Mix, ServiceTime};

use super::sweep::{SEED, at};
use super::{Drawing, Effort};
use crate::report::figures::{Figure, Point, Series, Style, XAxis, YAxis};

pub(super) fn policies(effort: Effort) -> Result<Drawing> {
    // About the mean that the paper gives for its key-value store.
    let service = ServiceTime::lognormal(176.0, 25.0)?;
    let mix = Mix::new("store", vec![Class::new("task", 1.0, service)])?;
    let slos_us = [600.0, 800.0, 1_000.0, 1_200.0, 1_400.0];
    let mut series = Vec::new();
    for (number, discipline) in Discipline::ALL.into_iter().enumerate() {
        let mut points = Vec::new();
        for slo_us in slos_us {
            let scenario = FanoutScenario {
                mix: mix.clone(),
                servers: 100,
                fanouts: vec![(1, 100.0), (10, 10.0), (100, 1.0)],
                slos_us: vec![(slo_us, 1.0), (1.5 * slo_us, 1.0)],
                percentile: 0.99,
                discipline,
                load: 0.5,
                queries: effort.requests,
            };
            let step = 1.0 / f64::from(1 << effort.halvings);
            points.push(Point {
                x: slo_us,
                y: Some(100.0 * scenario.highest_load(step, SEED)?),
                spread: None,
            });
        }
        series.push(Series {
            label: discipline.name().to_owned(),
            style: Style::Contender(number),
            points,
        });
    }
    let values: Vec<_> = series
        .iter()
        .map(|series| format!("{} {} %", series.label, at(series, 1_000.0)))
        .collect();
    Ok(Drawing {
        figure: Figure {
            name: "tailguard".to_owned(),
            title: "Highest load that keeps both SLOs: 100 servers, fan-out 1, 10, 100".to_owned(),
            x: XAxis::Logarithmic("tighter SLO on p99 (µs, log); the other is 1.5 times it"),
            y: YAxis::Percent,
            y_label: "highest load (% of the servers' capacity)".to_owned(),
            bars: "",
            series,
        },
        paper: "deadlines from SLO and fan-out carry more load than FIFO, priorities and deadlines from the SLO alone, the \
                more so the tighter the SLO; up to 80 % more than FIFO."
            .to_owned(),
        ours: format!("with SLOs of 1000 and 1500 µs: {}.", values.join(", ")),
    })
}
