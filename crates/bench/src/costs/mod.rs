//! The table of costs: what the parts cost, and an empty request through dispatcher and worker, all
//! in one run. After tables 1 and 2 of the Shinjuku paper (NSDI'19).
//!
//! - `shinjuku_preempt::measure` times what takes its unsafe code: switches, contexts, interrupts.
//!   [`rows`] says what each of these rows is.
//! - [`operations`] are what one thread can time by itself.
//! - A decision is the dispatcher's turn for a request, with a stub worker.
//! - An empty request is a burst of the bench with the policies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use shinjuku::Config;
use shinjuku::stub::{Layout, StubWorkers};
use shinjuku_preempt::Realtime;
use shinjuku_preempt::measure::{self, Options};
use shinjuku_workload::Arrival;
use shinjuku_workload::repeat::Spread;

use crate::policies::burst::Bench;
use crate::policies::contender::Contender;
use crate::policies::results::CostDetail;
use crate::policies::simulated;
use crate::policies::work::Planned;
use crate::policies::work::Work;

pub mod operations;
pub mod rows;

use operations::Operation;

/// Empty requests in one burst: few enough to wait all at once.
const EMPTY_REQUESTS: u64 = 40_000;
/// Bursts of empty requests at each depth.
const ROUNDS: usize = 5;

/// Decisions in a round, and requests in the system meanwhile.
const DECISIONS: u64 = 100_000;
const IN_SYSTEM: u64 = 128;

/// Rounds in which the operations are timed, and about how long each in a round.
const OPERATION_ROUNDS: u32 = 15;
const OPERATION: Duration = Duration::from_millis(1);

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

impl Costs {
    /// Adds a row: the median over its rounds. One without rounds is left out.
    fn add(&mut self, name: impl Into<String>, rounds: &[f64], note: impl Into<String>) {
        let Some(spread) = Spread::of(rounds) else {
            return;
        };
        let detail = CostDetail {
            low: Some(spread.min),
            high: Some(spread.max),
            note: note.into(),
        };
        let name = name.into();
        self.details.insert(name.clone(), detail);
        self.nanos.insert(name, spread.median);
    }

    fn cost(&self, name: &str) -> Option<f64> {
        self.nanos.get(name).copied()
    }

    /// How each whole compares with its parts, as far as both are there.
    fn compare(&mut self) {
        for (whole, part) in rows::COMPARED {
            let costs = self.cost(whole).zip(self.cost(part));
            if let (Some((of_whole, of_part)), Some(detail)) = (costs, self.details.get_mut(*whole))
            {
                detail.note += &format!("; {:.2} times {part}", of_whole / of_part);
            }
        }
        let told = rows::TOLD.iter().filter_map(|name| {
            let detail = self.details.get(*name)?;
            Some(format!("{name}: {}", detail.note))
        });
        self.notes.extend(told);
        let (empty, trip) = ("request/empty/depth-2", "cache-line/round-trip");
        if let Some((empty, trip)) = self.cost(empty).zip(self.cost(trip)) {
            self.notes.push(format!(
                "An empty request through dispatcher and one worker takes {empty:.0} ns, {:.1} cache-line round trips.",
                empty / trip
            ));
        }
    }

    /// Takes rows over under the names that the simulator reads.
    fn for_the_simulator(&mut self) {
        for (name, source, nanos) in simulated::costs_by_probe(&self.nanos) {
            let detail = CostDetail {
                low: None,
                high: None,
                note: format!("{source}, under the name that the simulator reads"),
            };
            self.details.insert(name.to_owned(), detail);
            self.nanos.insert(name.to_owned(), nanos);
        }
    }
}

/// About how long [`measure()`] takes.
pub fn duration(quick: bool) -> Duration {
    Duration::from_secs(if quick { 6 } else { 15 })
}

/// Measures for some ten seconds, or some four if `quick`, and operations and empty requests after
/// that.
///
/// # Errors
/// If the cores cannot be had, or a burst failed.
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
        let row = rows::ROWS.iter().find(|(name, _)| *name == cost.name);
        let mut note = row.map_or(String::new(), |(_, note)| (*note).to_owned());
        if let Some(remark) = &cost.remark {
            note += &format!("; {remark}");
        }
        costs.add(cost.name, &cost.rounds, note);
    }
    time_operations(bench, &mut costs)?;
    for depth in [1, 2, 4] {
        let rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| empty_request(bench, depth))
            .collect::<Result<_>>()?;
        let note = format!("a request without work when many wait, {depth} staged at the worker");
        costs.add(format!("request/empty/depth-{depth}"), &rounds, note);
    }
    for (row, workers, depth) in rows::STUB_WORKERS {
        let note = format!(
            "a request through the dispatcher alone, {workers} workers with {depth} staged each: arrival, decision, message there \
             and back; the workers run nothing"
        );
        costs.add(row, &decisions(bench, workers, depth)?, note);
    }
    costs.compare();
    costs.for_the_simulator();
    Ok(costs)
}

/// Times the operations in turn, round by round, on a thread of its own: it becomes a worker.
fn time_operations(bench: &Bench, costs: &mut Costs) -> Result<()> {
    bench.rest();
    let (priority, throttling) = (bench.realtime_priority, bench.throttling);
    let rest = throttling.map_or(Duration::ZERO, |throttling| throttling.rest());
    let time = move || -> Result<Vec<(String, &str, Vec<f64>)>> {
        let mut all = operations::all()?;
        let calls: Vec<u64> = all.iter_mut().map(calls_of).collect();
        let mut rounds = vec![Vec::new(); all.len()];
        for _ in 0..OPERATION_ROUNDS {
            let realtime = priority.map(Realtime::enter);
            for ((operation, &calls), rounds) in all.iter_mut().zip(&calls).zip(&mut rounds) {
                let nanos = operation.time(calls).as_nanos() as f64;
                rounds.push(nanos / (calls * operation.batch) as f64);
            }
            drop(realtime);
            std::thread::sleep(rest);
        }
        let named = all.into_iter().zip(rounds);
        Ok(named
            .map(|(operation, rounds)| (operation.name.clone(), operation.note, rounds))
            .collect())
    };
    let timed = std::thread::spawn(time).join();
    for (name, note, rounds) in timed.map_err(|_| anyhow!("timing the operations failed"))?? {
        costs.add(name, &rounds, note);
    }
    Ok(())
}

/// How many calls take about as long as an operation is timed in a round.
fn calls_of(operation: &mut Operation) -> u64 {
    let mut calls = 1;
    while operation.time(calls) < OPERATION {
        calls *= 2;
    }
    calls
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

/// Nanoseconds a decision, by round; criterion's bench `dispatcher` has more of them.
fn decisions(bench: &Bench, workers: usize, depth: usize) -> Result<Vec<f64>> {
    bench.rest();
    // All stubs are one thread, so the layout has one worker.
    let config = Config::default()
        .workers(1)
        .contexts(64)
        .queue(1024)
        .depth(depth)
        .realtime_priority(bench.realtime_priority);
    // On a thread of its own, which is pinned.
    let time = move || -> Result<Vec<f64>> {
        let layout = Layout::plan(&config)?;
        let stubs = StubWorkers::start(&config, &layout, workers, IN_SYSTEM);
        let mut stubs = stubs.map_err(|error| anyhow!("no stub workers: {error}"))?;
        stubs.serve(DECISIONS);
        let mut round = || {
            let start = Instant::now();
            stubs.serve(DECISIONS);
            start.elapsed().as_nanos() as f64 / DECISIONS as f64
        };
        Ok((0..ROUNDS).map(|_| round()).collect())
    };
    let timed = std::thread::spawn(time).join();
    timed.map_err(|_| anyhow!("timing the dispatcher failed"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_spreads_and_comparisons() {
        let mut costs = Costs::default();
        costs.add("preempt/signal", &[30.0, 10.0, 1000.0], "whole");
        costs.add("signal/bare", &[15.0, 5.0, 500.0], "part");
        costs.add("signal/send", &[], "not measured");
        costs.compare();
        assert_eq!(costs.nanos.len(), 2);
        assert_eq!(costs.cost("preempt/signal"), Some(30.0));
        let whole = &costs.details["preempt/signal"];
        assert_eq!((whole.low, whole.high), (Some(10.0), Some(1000.0)));
        assert_eq!(whole.note, "whole; 2.00 times signal/bare");
        assert_eq!(costs.details["signal/bare"].note, "part");
        assert_eq!(
            costs.notes,
            ["preempt/signal: whole; 2.00 times signal/bare"]
        );
    }

    #[test]
    fn the_simulator_finds_its_rows() {
        let mut costs = Costs::default();
        costs.add("cache-line/one-way", &[50.0], "");
        costs.add("preempt/probe", &[-3.0], "");
        costs.for_the_simulator();
        assert_eq!(costs.cost("sim/message"), Some(50.0));
        assert_eq!(costs.cost("sim/preempt-receive"), Some(0.0));
        assert_eq!(costs.details["sim/message"].low, None);
    }
}
