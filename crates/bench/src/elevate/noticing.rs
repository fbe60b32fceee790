//! What it costs to notice that one of the scheduled sleeps.
//!
//! The slides name this as the trick's limit: the scheduler does not notice. Linux offers several
//! ways to look, each with a price for every look. The sentinel has a price only when one of the
//! scheduled sleeps: what the next one waits beyond the kernel's own switch.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shinjuku_elevate::{Config, Elevation, OnSleep, Table, Target};
use shinjuku_preempt::{Clock, Cycles, SchedulingClass};
use shinjuku_workload::repeat::median;

use super::{AROUND, Bench};
use crate::harness::Runs;

/// Most samples of the watcher.
const MOST: usize = 1 << 14;

/// A way to notice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub tells: String,
    /// Its name, and its price in microseconds.
    pub micros: Runs<f64>,
}

#[derive(Clone, Copy)]
enum Way {
    /// Reading a file of `/proc`, opened before.
    Read(&'static str),
    GetAttributes,
    /// From the one's sleep until the other runs.
    Sleeps(OnSleep),
}

const WAYS: [(&str, Way, &str); 6] = [
    (
        "/proc/TID/stat, one reading",
        Way::Read("/proc/thread-self/stat"),
        "the state: asleep or not",
    ),
    (
        "/proc/TID/schedstat, one reading",
        Way::Read("/proc/thread-self/schedstat"),
        "the time run: if it stands still in the slot, asleep",
    ),
    (
        "PSI (/proc/pressure/cpu), one reading",
        Way::Read("/proc/pressure/cpu"),
        "how long any thread waited for a core: not which one, and in windows of 500 ms at the shortest",
    ),
    (
        "sched_getattr, one call",
        Way::GetAttributes,
        "class and priority: not the state, so no way",
    ),
    (
        "slots are kept: from one's sleep until another runs",
        Way::Sleeps(OnSleep::Keep),
        "nothing: the kernel's own switch",
    ),
    (
        "the sentinel: from one's sleep until the next runs",
        Way::Sleeps(OnSleep::Next),
        "that the one that may run sleeps, when it does",
    ),
];

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>> {
    let config = bench.config(Table::round_robin(2)?, Duration::from_millis(1));
    let length = bench.length;
    let mut ways = WAYS;
    let runs = bench.session.interleave(
        "noticing a sleep",
        &mut ways,
        |(name, ..)| (*name).to_owned(),
        length + AROUND,
        |(_, way, _), _| match *way {
            Way::Read(file) => read(file),
            Way::GetAttributes => Ok(price(|| SchedulingClass::of(0).is_ok())),
            Way::Sleeps(on_sleep) => sleeps(config.clone().on_sleep(on_sleep), length),
        },
    )?;
    let rows = WAYS.iter().zip(runs);
    Ok(rows
        .map(|((_, _, tells), micros)| Row {
            tells: (*tells).to_owned(),
            micros,
        })
        .collect())
}

/// A look's price, us: the least of several hundred, since nothing makes one quicker.
fn price(mut look: impl FnMut() -> bool) -> Option<f64> {
    let clock = Clock::get();
    let mut least = u64::MAX;
    for _ in 0..500 {
        let begun = Cycles::now();
        if !look() {
            return None;
        }
        least = least.min(Cycles::now().since(begun).0);
    }
    Some(clock.to_nanos(Cycles(least)) as f64 / 1e3)
}

fn read(path: &str) -> Result<Option<f64>> {
    // Without PSI the file is not there.
    let Ok(file) = File::open(path) else {
        return Ok(None);
    };
    let mut text = [0; 1024];
    Ok(price(|| {
        file.read_at(&mut text, 0).is_ok_and(|read| read > 0)
    }))
}

/// The one of two threads that does not sleep: how long after the other's sleep it ran.
#[derive(Default)]
struct Watcher {
    /// The last sleep that it saw.
    seen: u64,
    /// Cycles.
    samples: Vec<u64>,
}

impl Watcher {
    /// Sees the other's last sleep, `now`. Before `from` the two were not scheduled yet, and ran as
    /// Linux had them: those sleeps are no samples.
    fn look(&mut self, asleep: u64, from: u64, now: impl FnOnce() -> u64) {
        if asleep != self.seen && asleep > from {
            self.samples.push(now().saturating_sub(asleep));
        }
        self.seen = asleep;
    }

    /// The median, us.
    fn median(&self, clock: Clock) -> Option<f64> {
        let micros = |&cycles: &u64| clock.to_nanos(Cycles(cycles)) as f64 / 1e3;
        median(&self.samples.iter().map(micros).collect::<Vec<_>>())
    }
}

/// Two threads: one says when it goes to sleep, and the other sees how long ago that was when it
/// runs again. The median, us.
fn sleeps(config: Config, length: Duration) -> Result<Option<f64>> {
    let (asleep_since, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    // When both are scheduled: not yet.
    let scheduled = Arc::new(AtomicU64::new(u64::MAX));
    let (told, tids) = mpsc::channel();
    let end = Instant::now() + length + AROUND;
    let sleeper = {
        let (since, stop, told) = (Arc::clone(&asleep_since), Arc::clone(&stop), told.clone());
        thread::spawn(move || {
            let _ = told.send((0, tid()));
            while !stop.load(Relaxed) && Instant::now() < end {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(50) {
                    std::hint::spin_loop();
                }
                since.store(Cycles::now().0, Relaxed);
                thread::sleep(Duration::from_micros(200));
            }
        })
    };
    let watcher = {
        let (since, stop) = (Arc::clone(&asleep_since), Arc::clone(&stop));
        let scheduled = Arc::clone(&scheduled);
        thread::spawn(move || {
            let _ = told.send((1, tid()));
            let mut watcher = Watcher::default();
            watcher.samples.reserve(MOST);
            while !stop.load(Relaxed) && Instant::now() < end && watcher.samples.len() < MOST {
                let from = scheduled.load(Relaxed);
                watcher.look(since.load(Relaxed), from, || Cycles::now().0);
            }
            watcher
        })
    };
    let mut both = [tids.recv()?, tids.recv()?];
    both.sort_unstable();
    let targets = both.map(|(_, tid)| Target::Thread(tid));
    let elevation = Elevation::start(config, &targets, None)?;
    scheduled.store(Cycles::now().0, Relaxed);
    thread::sleep(length);
    stop.store(true, Relaxed);
    elevation.stop()?;
    sleeper.join().ok().context("the sleeper panicked")?;
    let watcher = watcher.join().ok().context("the watcher panicked")?;
    Ok(watcher.median(Clock::get()))
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_from_before_both_were_scheduled_are_no_samples() {
        let mut watcher = Watcher::default();
        watcher.look(10, u64::MAX, || 1000);
        assert!(watcher.samples.is_empty());
        // One from before that is noticed only then.
        watcher.look(20, 30, || 1000);
        assert!(watcher.samples.is_empty());
        for now in [45, 50] {
            watcher.look(40, 30, || now);
        }
        assert_eq!(watcher.samples, [5], "each sleep once");
    }
}
