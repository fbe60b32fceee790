//! What switching costs: the share of a core that a computing process has beside a busy loop. Half
//! is the best; what is missing went into switching.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shinjuku_elevate::{Config, Table, Target};

use super::delay::{Scheduled, patterns};
use super::turns::Turns;
use super::{AROUND, Bench, Moment, elevate, start_part};
use crate::harness::Runs;

const PERIODS_US: [u64; 8] = [5, 10, 20, 50, 100, 200, 500, 1000];
const FEW_US: [u64; 4] = [5, 20, 100, 1000];

/// A switching period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    pub period_us: u64,
    /// Events of A: alone on the core, then beside B in each pattern.
    pub events: Vec<Runs<u64>>,
}

impl Overhead {
    /// A's share in a pattern, repetition by repetition.
    pub fn shares(&self, pattern: &str) -> Vec<f64> {
        let of = |name| Runs::named(&self.events, name);
        let (Some(alone), Some(beside)) = (of(ALONE), of(pattern)) else {
            return Vec::new();
        };
        let pairs = beside.runs.iter().zip(&alone.runs);
        pairs
            .filter_map(|(beside, alone)| Some((*beside)? as f64 / (*alone)? as f64))
            .collect()
    }
}

/// The contender that has the core to itself.
const ALONE: &str = "alone";

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Vec<Overhead>> {
    let periods = if bench.few { &FEW_US[..] } else { &PERIODS_US };
    let mut overheads = Vec::new();
    for &period_us in periods {
        let period = Duration::from_micros(period_us);
        let both = bench.config(Table::round_robin(2)?, period);
        let alone = bench.config(Table::round_robin(1)?, Duration::from_millis(100));
        let mut contenders = vec![(ALONE, alone)];
        contenders.extend(patterns(bench).map(|(name, pattern)| {
            let both = both.clone();
            (name, both.pattern(pattern))
        }));
        let (length, stop) = (bench.length, bench.session.stop.clone());
        let directory = bench.session.directory.clone();
        let events = bench.session.interleave(
            &format!("CPU overhead, {period_us} us"),
            &mut contenders,
            |(name, _)| (*name).to_owned(),
            length + AROUND,
            |(_, config), _| events(config.clone(), length, &directory, &stop).map(Some),
        )?;
        overheads.push(Overhead { period_us, events });
    }
    Ok(overheads)
}

/// Events of A, beside B if the table has two.
fn events(config: Config, length: Duration, directory: &Path, stop: &AtomicBool) -> Result<u64> {
    let seconds = length.as_secs_f64();
    let of_child = seconds.to_string();
    let moment = Moment::soon();
    let common = ["--at", &moment.to_nanos(), "--seconds", &of_child];
    let compute = [&["compute"], &common[..]].concat();
    let mut all = vec![start_part(directory, &compute)?];
    if config.table.scheduled() > 1 {
        let busy = [&["busy"], &common[..], &["--least-us", "1000000"]].concat();
        all.push(start_part(directory, &busy)?);
    }
    let targets: Vec<_> = all
        .iter()
        .map(|process| Target::Process(process.child.id()))
        .collect();
    let scheduled = Scheduled::by(&config);
    let elevation = elevate(config, &targets)?;
    moment.check()?;
    let mut all = all.into_iter();
    let events = all.next().context("A was started")?;
    let events = events.result(seconds, stop)?;
    // B ends by itself, as A does.
    for busy in all {
        let _: Turns = busy.result(seconds, stop)?;
    }
    scheduled.check()?;
    scheduled.check_turns(&elevation.stop()?)?;
    Ok(events)
}
