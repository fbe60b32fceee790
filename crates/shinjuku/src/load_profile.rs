//! What `auto` knows of the load: how long requests run, and how much of their time the workers are
//! busy with them.
//!
//! Running times are counted by magnitude. Old ones fade: all counts are halved at the end of a
//! period once enough requests are counted. How busy the workers are is an average over the last
//! periods, or over all of them at first. A single period says nothing: with a few long requests in
//! it, no worker idles in it, at any load.

use shinjuku_policy::{Nanos, ServiceTimes};

/// The counts are halved when so many requests are counted. Of rare long ones, say one in two
/// hundred, some hundred are among them.
const REMEMBERED: u64 = 1 << 15;
/// How many periods the average is over.
const PERIODS: f64 = 25.0;

/// What a period showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    /// Its length, times the number of workers.
    pub(crate) worker_time: Nanos,
    /// How much of that the workers were without a request.
    pub(crate) idle: Nanos,
    /// How much of it preemptions took.
    pub(crate) spent: Nanos,
}

/// The load in the last quarter of a second or so.
#[derive(Clone, Debug)]
pub(crate) struct LoadProfile {
    times: ServiceTimes,
    periods: f64,
    /// Share of the workers' time that goes into requests, preemptions not counted.
    busy: f64,
}

impl LoadProfile {
    /// Takes its memory.
    pub(crate) fn new() -> Self {
        Self {
            times: ServiceTimes::new(),
            periods: 0.0,
            busy: 0.0,
        }
    }

    /// Counts a finished request, which has run for `ran` in all.
    #[inline]
    pub(crate) fn finished(&mut self, ran: Nanos) {
        self.times.add(ran);
    }

    /// Takes in what a period showed.
    pub(crate) fn observe(&mut self, period: Period) {
        if period.worker_time.0 == 0 {
            return;
        }
        let without_requests = period.idle.0 + period.spent.0;
        let busy = 1.0 - (without_requests as f64 / period.worker_time.0 as f64).min(1.0);
        self.periods = (self.periods + 1.0).min(PERIODS);
        self.busy += (busy - self.busy) / self.periods;
        if self.times.count() >= REMEMBERED {
            self.times.fade();
        }
    }

    /// Share of the workers' time that requests take, preemptions not counted.
    pub(crate) fn busy(&self) -> f64 {
        self.busy
    }

    /// The length of the longest requests, in nanoseconds: the mean of their bin.
    pub(crate) fn longest(&self) -> f64 {
        self.times.longest_ns()
    }

    /// The lengths that requests have: for each, the share of the requests that have it, and the
    /// length in nanoseconds. The shortest come first.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.times.lengths()
    }
}
