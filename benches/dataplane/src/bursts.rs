//! Counting on the thread that is measured: bursts so short that most are over before another
//! program gets the core.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Instant;

use shinjuku_bench_dataplane::Rate;

/// Bursts of which each has its own figure. Further ones only count: the thread may not allocate.
const MOST: usize = 1 << 18;
/// Every so many bursts the kernel is asked what the thread has waited, which takes as long as some
/// requests.
const ASK: u64 = 16;
/// Cores that are told apart.
const CORES: usize = 8;

/// Without a single burst.
pub const NOTHING: &str = "nothing was answered while it was measured";

/// Where a measurement is. After its end clients send no more, and servers go on until it is done.
#[derive(Clone, Default)]
pub struct Phase(Arc<Shared>);

#[derive(Default)]
struct Shared {
    phase: AtomicU8,
    late: AtomicU64,
}

const MEASURED: u8 = 1;
const OVER: u8 = 2;
const DONE: u8 = 3;

impl Phase {
    pub fn measure(&self) {
        self.0.phase.store(MEASURED, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.0.phase.store(OVER, Ordering::Relaxed);
    }

    pub fn done(&self) {
        self.0.phase.store(DONE, Ordering::Relaxed);
    }

    fn is_measured(&self) -> bool {
        self.0.phase.load(Ordering::Relaxed) == MEASURED
    }

    pub fn is_over(&self) -> bool {
        self.0.phase.load(Ordering::Relaxed) >= OVER
    }

    pub fn is_done(&self) -> bool {
        self.0.phase.load(Ordering::Relaxed) == DONE
    }

    /// So many replies came after the end.
    pub fn came_late(&self, replies: u64) {
        self.0.late.fetch_add(replies, Ordering::Relaxed);
    }

    /// Replies that came after the end, to all clients.
    pub fn late(&self) -> u64 {
        self.0.late.load(Ordering::Relaxed)
    }
}

/// Bursts, one right behind the other.
pub struct Bursts {
    phase: Phase,
    /// Requests in one, at least.
    length: u64,
    /// Of the burst under way: how many are answered, since when, and whether it is measured from
    /// its begin.
    replies: u64,
    since: Instant,
    measured: bool,
    nanos: Vec<f64>,
    bursts: u64,
    requests: u64,
    within: u64,
    seconds: f64,
    cores: Vec<usize>,
    /// Since the first measured burst began.
    waits: Waits,
    /// As of the last time that the kernel was asked: requests a second in the time that the thread
    /// had its core, and the share of the time that it had not. `None`: cannot be told.
    sustained: Option<(f64, f64)>,
}

impl Bursts {
    pub fn new(phase: Phase, length: u64) -> Self {
        Self {
            phase,
            length,
            replies: 0,
            since: Instant::now(),
            measured: false,
            nanos: Vec::with_capacity(MOST),
            bursts: 0,
            requests: 0,
            within: 0,
            seconds: 0.0,
            cores: Vec::with_capacity(CORES),
            waits: Waits::begin(None),
            sustained: None,
        }
    }

    /// Counts replies as they come, a few at a time.
    pub fn count(&mut self, replies: u64) {
        self.replies += replies;
        if self.replies >= self.length {
            self.finish();
        }
    }

    #[inline(never)]
    fn finish(&mut self) {
        let now = Instant::now();
        let measured = self.phase.is_measured();
        if measured {
            self.within += self.replies;
        }
        if self.measured && measured {
            let seconds = (now - self.since).as_secs_f64();
            self.bursts += 1;
            self.requests += self.replies;
            self.seconds += seconds;
            if self.nanos.len() < MOST {
                self.nanos.push(seconds * 1e9 / self.replies as f64);
            }
            let core = rustix::thread::sched_getcpu();
            if self.cores.len() < CORES && !self.cores.contains(&core) {
                self.cores.push(core);
            }
            if self.bursts.is_multiple_of(ASK) {
                self.waits.add(Wait::now());
                let told = self.waits.seconds;
                self.sustained = told.filter(|&waited| waited < self.seconds).map(|waited| {
                    let had = self.seconds - waited;
                    (self.requests as f64 / had, waited / self.seconds)
                });
            }
        } else if measured {
            self.waits = Waits::begin(Wait::now());
        }
        self.measured = measured;
        self.replies = 0;
        self.since = now;
    }

    /// What has been counted; `None` if no burst came to its end.
    pub fn rate(&self, wrong: u64) -> Option<Rate> {
        let mut nanos = self.nanos.clone();
        nanos.sort_by(f64::total_cmp);
        let last = nanos.len().checked_sub(1)?;
        let (sustained, waited) = self.sustained.unzip();
        Some(Rate {
            nanos: [1, 5, 9].map(|tenths| nanos[last * tenths / 10]),
            sustained: sustained.unwrap_or(self.requests as f64 / self.seconds),
            waited,
            cores: self.cores.clone(),
            requests: self.requests,
            within: self.within,
            wrong,
        })
    }
}

/// How long a thread was ready to run and others had its core, since it began.
#[derive(Clone, Copy)]
struct Wait {
    thread: ThreadId,
    nanos: u64,
}

impl Wait {
    /// Of the calling thread. Takes no memory.
    fn now() -> Option<Self> {
        let mut text = [0; 64];
        let mut file = File::open("/proc/thread-self/schedstat").ok()?;
        let length = file.read(&mut text).ok()?;
        let text = str::from_utf8(text.get(..length)?).ok()?;
        Some(Self {
            thread: std::thread::current().id(),
            nanos: text.split_whitespace().nth(1)?.parse().ok()?,
        })
    }
}

/// What the threads that counted have waited, one thread after the other: a runtime's dispatcher
/// may go on on another.
struct Waits {
    last: Option<Wait>,
    /// `None`: cannot be told.
    seconds: Option<f64>,
}

impl Waits {
    fn begin(now: Option<Wait>) -> Self {
        Self {
            last: now,
            seconds: now.map(|_| 0.0),
        }
    }

    /// Adds what the thread has waited since the last time. If another one has taken over since,
    /// that time counts as had: how much of it was waiting cannot be known.
    fn add(&mut self, now: Option<Wait>) {
        let since = |now: Wait| {
            let last = self.last.filter(|last| last.thread == now.thread);
            last.map_or(0.0, |last| {
                now.nanos.saturating_sub(last.nanos) as f64 / 1e9
            })
        };
        self.seconds = self
            .seconds
            .zip(now)
            .map(|(seconds, now)| seconds + since(now));
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u64 = 2000;

    #[test]
    fn only_bursts_that_began_and_ended_within_the_measurement_count() {
        let phase = Phase::default();
        let mut bursts = Bursts::new(phase.clone(), BURST);
        bursts.count(2 * BURST);
        phase.measure();
        // It began before.
        bursts.count(BURST);
        bursts.count(BURST - 1);
        bursts.count(10);
        bursts.count(BURST + 5);
        phase.end();
        // It ends after.
        bursts.count(BURST);
        let rate = bursts.rate(1).unwrap();
        assert_eq!(rate.requests, 2 * BURST + 14);
        // All that came meanwhile, to a burst.
        assert_eq!((rate.within, rate.wrong), (3 * BURST + 14, 1));
        assert!(rate.nanos.is_sorted() && rate.nanos[0] > 0.0);
        assert!(!rate.cores.is_empty() && rate.sustained > 0.0);
    }

    #[test]
    fn nothing_measured_is_no_rate() {
        let mut bursts = Bursts::new(Phase::default(), BURST);
        bursts.count(3 * BURST);
        assert!(bursts.rate(0).is_none());
    }

    #[test]
    fn waiting_adds_up_over_threads() {
        let here = std::thread::current().id();
        let there = std::thread::spawn(|| std::thread::current().id());
        let there = there.join().unwrap();
        let wait = |thread, seconds: u64| {
            let nanos = seconds * 1_000_000_000;
            Some(Wait { thread, nanos })
        };
        let mut waits = Waits::begin(wait(here, 5));
        waits.add(wait(here, 7));
        // What either waited around the change is not told.
        waits.add(wait(there, 100));
        waits.add(wait(there, 101));
        waits.add(wait(here, 20));
        waits.add(wait(here, 24));
        assert_eq!(waits.seconds, Some(7.0));
        waits.add(None);
        waits.add(wait(here, 25));
        assert_eq!(waits.seconds, None);
    }
}
