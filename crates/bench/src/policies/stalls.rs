//! The host's own stalls: for how long the cores in use are taken away from the highest priority
//! there is, by the hypervisor, by interrupts, by the firmware. No scheduler of requests gets below
//! them.
//!
//! A thread on each core, pinned and with the priority of the measured threads, reads the
//! time-stamp counter without a pause, before the bench and after it. Two readings further apart
//! than [`LEAST`] had a stall between them.
//!
//! **The floor.** Take a short request that arrives at a random moment, and nothing else: no other
//! requests, no cost, no service time. It waits if its moment lies in a stall of the dispatcher's
//! core, or of the core of the worker that it goes to, and then for what is left of that stall. So
//! with `T` the time watched and `g` the length of each stall of a core, it waits there for more
//! than `x` with probability `sum(max(0, g - x)) / T`. The dispatcher's and the mean of the
//! workers' are added up, since both at once are rare. The floor is the `x` that 1 % of such
//! requests exceed: 0 where stalls take less than 1 % of the time. It is a lower bound of p99: a
//! request that arrives in a stall also waits for those that arrived in it before.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use core_affinity::CoreId;
use shinjuku_preempt::{Clock, Cycles, Realtime};

use super::burst::Bench;
use super::results::{CoreStalls, HostStalls};

/// Shorter gaps are no stalls, ns: the loop itself takes a hundredth of it.
const LEAST: u64 = 1_000;
/// The longest that a core is watched without a rest: real-time threads are throttled otherwise.
const LONGEST: Duration = Duration::from_millis(500);
/// Stalls kept of one such turn; with more of them it ends early.
const MOST: usize = 1 << 17;

/// The stalls of one core.
#[derive(Clone, Debug, Default)]
struct Watched {
    /// Time watched, ns.
    time: u64,
    /// Length of each stall, ns.
    stalls: Vec<u64>,
}

impl Watched {
    /// The probability that a random moment lies in a stall that lasts for more than `x` ns after
    /// it.
    fn exceeds(&self, x: f64) -> f64 {
        let left = self.stalls.iter().map(|&stall| (stall as f64 - x).max(0.0));
        left.sum::<f64>() / self.time.max(1) as f64
    }

    fn add(&mut self, other: Self) {
        self.time += other.time;
        self.stalls.extend(other.stalls);
    }
}

/// What was seen on the cores in use: the dispatcher's first, then the workers'.
#[derive(Clone, Debug)]
pub struct Stalls {
    cores: Vec<CoreId>,
    before: Vec<Watched>,
    after: Vec<Watched>,
}

impl Stalls {
    /// Watches `cores`, the dispatcher's first, for so long before the bench.
    ///
    /// # Errors
    /// If a core cannot be watched.
    pub fn before(bench: &Bench, cores: &[CoreId], time: Duration) -> Result<Self> {
        Ok(Self {
            cores: cores.to_vec(),
            before: watch_all(bench, cores, time)?,
            after: Vec::new(),
        })
    }

    /// Watches the same cores for so long after it.
    ///
    /// # Errors
    /// If a core cannot be watched.
    pub fn after(&mut self, bench: &Bench, time: Duration) -> Result<()> {
        self.after = watch_all(bench, &self.cores, time)?;
        Ok(())
    }

    /// For the report.
    pub fn summary(&self) -> HostStalls {
        let mut all = self.before.clone();
        for (watched, after) in all.iter_mut().zip(self.after.iter().cloned()) {
            watched.add(after);
        }
        let core = |(at, watched): (usize, &Watched)| CoreStalls {
            core: self.cores[at].id,
            role: if at == 0 { "dispatcher" } else { "worker" }.to_owned(),
            seconds: watched.time as f64 / 1e9,
            stalls: watched.stalls.len() as u64,
            share: watched.exceeds(0.0),
            longest_us: watched
                .stalls
                .iter()
                .max()
                .map_or(0.0, |&longest| longest as f64 / 1e3),
        };
        HostStalls {
            p99_us: floor_ns(&all) / 1e3,
            before_p99_us: floor_ns(&self.before) / 1e3,
            after_p99_us: (!self.after.is_empty()).then(|| floor_ns(&self.after) / 1e3),
            cores: all.iter().enumerate().map(core).collect(),
        }
    }
}

/// The wait that 1 % of the requests of the model exceed, ns; the first core is the dispatcher's.
fn floor_ns(cores: &[Watched]) -> f64 {
    let Some((dispatcher, workers)) = cores.split_first() else {
        return 0.0;
    };
    let exceeds = |x: f64| {
        let at_workers: f64 = workers.iter().map(|worker| worker.exceeds(x)).sum();
        dispatcher.exceeds(x) + at_workers / workers.len().max(1) as f64
    };
    if exceeds(0.0) <= 0.01 {
        return 0.0;
    }
    let longest = cores.iter().flat_map(|core| &core.stalls).max();
    let (mut low, mut high) = (0.0, longest.map_or(0.0, |&longest| longest as f64));
    // To a nanosecond, of stalls of up to a second.
    for _ in 0..30 {
        let middle = (low + high) / 2.0;
        if exceeds(middle) > 0.01 {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Watches all cores at once, in turns that are short enough for real-time threads.
fn watch_all(bench: &Bench, cores: &[CoreId], time: Duration) -> Result<Vec<Watched>> {
    let bound = bench
        .throttling
        .map_or(LONGEST, |throttling| throttling.longest());
    let turn = LONGEST.min(bound).min(time);
    let priority = bench.realtime_priority;
    let mut all = vec![Watched::default(); cores.len()];
    for _ in 0..(time.as_secs_f64() / turn.as_secs_f64()).round() as u32 {
        bench.rest();
        let start = &Barrier::new(cores.len());
        let seen = std::thread::scope(|scope| {
            let threads: Vec<_> = (cores.iter())
                .map(|&core| scope.spawn(move || watch(core, turn, priority, start)))
                .collect();
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().ok().flatten());
            ended.collect::<Option<Vec<_>>>()
        });
        bench.ended.set(Some(Instant::now()));
        let seen = seen.context("a thread that watches for the host's stalls cannot be pinned")?;
        all.iter_mut()
            .zip(seen)
            .for_each(|(all, seen)| all.add(seen));
    }
    Ok(all)
}

/// Watches one core from the calling thread; `None`: the thread cannot be pinned there.
fn watch(core: CoreId, turn: Duration, priority: Option<i32>, start: &Barrier) -> Option<Watched> {
    let clock = Clock::get();
    let is_pinned = core_affinity::set_for_current(core);
    // Written once, so that no page of it faults meanwhile.
    let mut stalls = vec![u64::MAX; MOST];
    stalls.clear();
    let _realtime = priority.map(Realtime::enter);
    start.wait();
    let (least, turn) = (
        clock.to_cycles(LEAST),
        clock.to_cycles(turn.as_nanos() as u64),
    );
    let begin = Cycles::now();
    let mut last = begin;
    while last.since(begin) < turn && stalls.len() < MOST {
        let now = Cycles::now();
        let gap = now.since(last);
        if gap >= least {
            stalls.push(clock.to_nanos(gap));
        }
        last = now;
    }
    is_pinned.then(|| Watched {
        time: clock.to_nanos(last.since(begin)),
        stalls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(time_us: u64, stalls_us: &[u64]) -> Watched {
        Watched {
            time: time_us * 1000,
            stalls: stalls_us.iter().map(|us| us * 1000).collect(),
        }
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1.0, "{found} ns, not {expected}");
    }

    #[test]
    fn a_request_waits_for_what_is_left_of_the_stall_it_arrives_in() {
        let quiet = watched(1_000_000, &[]);
        // 4 % of the moments lie in stalls of 40 us; a quarter of these in their first 10 us, so 1
        // % waits more than 30 us.
        let host = watched(1_000_000, &[40; 1000]);
        near(floor_ns(&[quiet.clone(), host.clone()]), 30_000.0);
        // The same on the dispatcher's core.
        near(floor_ns(&[host.clone(), quiet.clone()]), 30_000.0);
        // On both: 8 %, so it is in their first 5 us.
        near(floor_ns(&[host.clone(), host.clone()]), 35_000.0);
        // A request goes to one of two workers.
        near(floor_ns(&[quiet.clone(), host.clone(), quiet]), 20_000.0);
    }

    #[test]
    fn long_stalls_weigh_by_the_moments_in_them() {
        // Ten thousand of 1 us and one of 10 ms: 1 % of the moments lie in each kind. What exceeds
        // 1 us is the long one's.
        let mut host = watched(1_000_000, &[1; 10_000]);
        host.stalls.push(10_000_000);
        let floor = floor_ns(&[host]);
        assert!(floor > 999.0 && floor < 1_001.0, "{floor}");
    }

    #[test]
    fn stalls_of_less_than_a_hundredth_of_the_time_leave_p99_alone() {
        assert_eq!(floor_ns(&[watched(1_000_000, &[90; 100])]), 0.0);
        assert_eq!(floor_ns(&[]), 0.0);
    }

    #[test]
    fn before_and_after_are_one_in_the_summary() {
        let stalls = Stalls {
            cores: vec![CoreId { id: 3 }, CoreId { id: 5 }],
            before: vec![watched(1_000_000, &[]), watched(1_000_000, &[80; 1000])],
            after: vec![watched(1_000_000, &[]), watched(1_000_000, &[7])],
        };
        let summary = stalls.summary();
        near(summary.before_p99_us * 1e3, 70_000.0);
        assert_eq!(summary.after_p99_us, Some(0.0));
        // Half as often.
        near(summary.p99_us * 1e3, 60_000.0);
        let worker = &summary.cores[1];
        assert_eq!((worker.core, worker.role.as_str()), (5, "worker"));
        assert_eq!(
            (worker.stalls, worker.longest_us, worker.seconds),
            (1001, 80.0, 2.0)
        );
        assert!((worker.share - 0.04).abs() < 1e-4);
    }

    #[test]
    fn a_core_can_be_watched() {
        let core = core_affinity::get_core_ids().unwrap()[0];
        let seen = watch(core, Duration::from_millis(5), None, &Barrier::new(1)).unwrap();
        assert!(seen.time >= 5_000_000);
        assert!(watch(CoreId { id: 1000 }, Duration::ZERO, None, &Barrier::new(1)).is_none());
    }
}
