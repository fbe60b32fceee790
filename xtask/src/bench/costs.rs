//! The cost table: what the parts cost, and an empty request through dispatcher and worker, all in
//! one run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use shinjuku_preempt::measure::{self, Options};
use shinjuku_workload::Arrival;
use shinjuku_workload::repeat::Spread;

use super::burst::Bench;
use super::contender::Contender;
use super::injector::Planned;
use super::simulated;
use super::work::Work;
use crate::report::results::CostDetail;

/// Empty requests in one burst: few enough to wait all at once.
const EMPTY_REQUESTS: u64 = 40_000;
/// Bursts of empty requests at each depth.
const ROUNDS: usize = 5;

/// The table.
#[derive(Debug, Default)]
pub struct Costs {
    /// Name to nanoseconds.
    pub nanos: BTreeMap<String, f64>,
    /// How sure each is.
    pub details: BTreeMap<String, CostDetail>,
    /// Remarks: the ratios that matter.
    pub notes: Vec<String>,
}

/// About how long [`measure`] takes.
pub fn duration(quick: bool) -> Duration {
    Duration::from_secs(if quick { 5 } else { 14 })
}

/// Measures for some ten seconds, or some four if `quick`, and empty requests after that.
pub fn measure(
    bench: &Bench,
    cores: (usize, usize),
    quick: bool,
    say: impl FnMut(&str) + Send,
) -> Result<Costs> {
    let options = Options {
        sender_core: cores.0,
        worker_core: cores.1,
        realtime: bench.realtime_priority.is_some(),
        hard: bench.mechanisms.has_signals().then_some(bench.token),
        quick,
    };
    let mut costs = Costs::default();
    for cost in measure::costs(options, say).context("measuring the cost table")? {
        if matches!(
            cost.name.as_str(),
            "context/start-finish" | "preempt/probe" | "preempt/signal" | "preempt/guest"
        ) {
            costs.notes.push(format!("{}: {}", cost.name, cost.note));
        }
        let detail = CostDetail {
            low: Some(cost.low),
            high: Some(cost.high),
            note: cost.note,
        };
        costs.details.insert(cost.name.clone(), detail);
        costs.nanos.insert(cost.name, cost.nanos);
    }
    for depth in [1, 2, 4] {
        let rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| empty_request(bench, depth))
            .collect::<Result<_>>()?;
        let Some(spread) = Spread::of(&rounds) else {
            continue;
        };
        let name = format!("request/empty/depth-{depth}");
        let detail = CostDetail {
            low: Some(spread.min),
            high: Some(spread.max),
            note: format!("a request without work when many wait, {depth} staged at the worker"),
        };
        costs.details.insert(name.clone(), detail);
        costs.nanos.insert(name, spread.median);
    }
    for (name, source, nanos) in simulated::costs_by_probe(&costs.nanos) {
        let detail = CostDetail {
            low: None,
            high: None,
            note: format!("{source}, under the name that the simulator reads"),
        };
        costs.details.insert(name.to_owned(), detail);
        costs.nanos.insert(name.to_owned(), nanos);
    }
    let cost = |name: &str| costs.nanos.get(name).copied();
    if let (Some(empty), Some(trip)) =
        (cost("request/empty/depth-2"), cost("cache-line/round-trip"))
    {
        costs.notes.push(format!(
            "An empty request through dispatcher and one worker takes {empty:.0} ns, {:.1} cache-line round trips.",
            empty / trip
        ));
    }
    Ok(costs)
}

/// Nanoseconds a request when many empty ones wait.
fn empty_request(bench: &Bench, depth: usize) -> Result<f64> {
    let empty = |_| -> Planned {
        (
            Arrival {
                at_ns: 0,
                service_ns: 1,
                flow: 0,
                class: 0,
            },
            Work::Spin {
                steps: 0,
                probes: false,
            },
        )
    };
    let arrivals: Arc<[Planned]> = (0..EMPTY_REQUESTS).map(empty).collect();
    let outcome = bench.burst_at_depth(&Contender::FCFS, &arrivals, 1, &[], depth)?;
    let finishes = || outcome.records.iter().map(|record| record.finish_ns);
    let (first, last) = (finishes().min(), finishes().max());
    let span = last
        .zip(first)
        .map(|(last, first)| last - first)
        .context("empty requests finish")?;
    Ok(span as f64 / (outcome.records.len() as f64 - 1.0))
}
