//! Counting on the thread that is measured: bursts so short that most are over before another program gets the core.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::ThreadId;
use std::time::Instant;

use shinjuku_bench_dataplane::Rate;

/// Bursts of which each has its own figure. Further ones only count: the thread may not allocate.
const MOST: usize = 1 << 18;
/// Every so many bursts the kernel is asked what the thread has waited, which takes as long as some requests.
const ASK: usize = 16;
/// Cores that are told apart.
const CORES: usize = 8;

/// Without a single burst.
pub const NOTHING: &str = "nothing was answered while it was measured";

/// Where a measurement is.
#[derive(Clone, Default)]
pub struct Phase(Arc<AtomicU8>);

const MEASURED: u8 = 1;
const OVER: u8 = 2;

impl Phase {
    pub fn measure(&self) {
        self.0.store(MEASURED, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.0.store(OVER, Ordering::Relaxed);
    }

    fn is_measured(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MEASURED
    }

    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OVER
    }
}

/// Bursts, one right behind the other.
pub struct Bursts {
    phase: Phase,
    /// Requests in one, at least.
    length: u64,
    /// Of the burst under way: how many are answered, since when, and whether it is measured from its begin.
    replies: u64,
    since: Instant,
    measured: bool,
    nanos: Vec<f64>,
    requests: u64,
    seconds: f64,
    cores: Vec<usize>,
    /// When the first measured burst began.
    began: Wait,
    /// Requests a second so far, in the time that the thread had its core; `None`: cannot be told.
    sustained: Option<f64>,
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
            requests: 0,
            seconds: 0.0,
            cores: Vec::with_capacity(CORES),
            began: Wait::default(),
            sustained: None,
        }
    }

    pub fn is_over(&self) -> bool {
        self.phase.is_over()
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
        if self.measured && measured {
            let seconds = (now - self.since).as_secs_f64();
            self.requests += self.replies;
            self.seconds += seconds;
            if self.nanos.len() < MOST {
                self.nanos.push(seconds * 1e9 / self.replies as f64);
            }
            let core = rustix::thread::sched_getcpu();
            if self.cores.len() < CORES && !self.cores.contains(&core) {
                self.cores.push(core);
            }
            if self.nanos.len().is_multiple_of(ASK) {
                let waited = Wait::now().since(self.began);
                let had = waited.map(|waited| self.seconds - waited);
                let had = had.filter(|&seconds| seconds > 0.0);
                self.sustained = had.map(|seconds| self.requests as f64 / seconds);
            }
        } else if measured {
            self.began = Wait::now();
        }
        self.measured = measured;
        self.replies = 0;
        self.since = now;
    }

    /// What has been counted; `None` if no burst came to its end.
    pub fn rate(&self, wrong: u64, unanswered: u64) -> Option<Rate> {
        let mut nanos = self.nanos.clone();
        nanos.sort_by(f64::total_cmp);
        let last = nanos.len().checked_sub(1)?;
        let sustained = self.requests as f64 / self.seconds;
        Some(Rate {
            nanos: [1, 5, 9].map(|tenths| nanos[last * tenths / 10]),
            sustained: self.sustained.unwrap_or(sustained),
            cores: self.cores.clone(),
            requests: self.requests,
            wrong,
            unanswered,
        })
    }
}

/// How long a thread was ready to run and others had its core, since it began.
#[derive(Clone, Copy, Default)]
struct Wait(Option<(ThreadId, u64)>);

impl Wait {
    /// Of the calling thread. Takes no memory.
    fn now() -> Self {
        let nanos = || {
            let mut text = [0; 64];
            let mut file = File::open("/proc/thread-self/schedstat").ok()?;
            let length = file.read(&mut text).ok()?;
            let text = str::from_utf8(text.get(..length)?).ok()?;
            text.split_whitespace().nth(1)?.parse().ok()
        };
        Self(nanos().map(|nanos| (std::thread::current().id(), nanos)))
    }

    /// Seconds since `before`; `None` if that was another thread.
    fn since(self, before: Self) -> Option<f64> {
        let (thread, nanos) = self.0?;
        let (before_thread, before) = before.0?;
        (thread == before_thread).then(|| nanos.saturating_sub(before) as f64 / 1e9)
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
        let rate = bursts.rate(1, 2).unwrap();
        assert_eq!(rate.requests, 2 * BURST + 14);
        assert_eq!((rate.wrong, rate.unanswered), (1, 2));
        assert!(rate.nanos.is_sorted() && rate.nanos[0] > 0.0);
        assert!(!rate.cores.is_empty() && rate.sustained > 0.0);
    }

    #[test]
    fn nothing_measured_is_no_rate() {
        let mut bursts = Bursts::new(Phase::default(), BURST);
        bursts.count(3 * BURST);
        assert!(bursts.rate(0, 0).is_none());
    }
}
