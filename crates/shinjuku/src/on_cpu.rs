//! What requests take of the CPU in the layouts `inline` and `symmetric`, without the time for
//! which their thread was away from it: descheduled, or blocked in the kernel.
//!
//! The TSC tells how long a request took, and mostly its thread was on the CPU for all of that
//! time. Only after a request that took suspiciously long is the kernel asked, by a system call
//! that costs little beside the request. Linux deschedules a thread for hundreds of microseconds
//! at least.

use std::cell::Cell;
use std::time::Duration;

use shinjuku_preempt::{Clock, Cycles, ProcessorTime};

/// Shorter times count as time on the CPU without asking.
const UNNOTICED: Duration = Duration::from_micros(50);
/// The kernel is asked at least this often: its clock and the TSC drift apart.
const FORGOTTEN: Duration = Duration::from_millis(10);

/// Measures the requests of the calling thread.
pub(crate) struct OnCpu {
    time: ProcessorTime,
    unnoticed: Cycles,
    forgotten: Cycles,
    /// When the request before ended.
    ended: Cell<Cycles>,
    /// When the request began, and for how long the thread had been away by then.
    start: Cell<Cycles>,
    away: Cell<Cycles>,
}

impl OnCpu {
    pub(crate) fn new(time: ProcessorTime) -> Self {
        let cycles = |time: Duration| Clock::get().to_cycles(time.as_nanos() as u64);
        Self {
            time,
            unnoticed: cycles(UNNOTICED),
            forgotten: cycles(FORGOTTEN),
            ended: Cell::default(),
            start: Cell::default(),
            away: Cell::default(),
        }
    }

    /// A request has begun at `start`. Time that the thread was away before does not count for it.
    #[inline]
    pub(crate) fn begin(&self, start: Cycles) {
        let is_after_gap = start.since(self.ended.get()) > self.unnoticed;
        if is_after_gap || start.since(self.time.asked_at()) > self.forgotten {
            self.time.ask();
        }
        self.start.set(start);
        self.away.set(self.time.away());
    }

    /// The request has ended or given way at `end`. Gives the time that the thread was away
    /// meanwhile.
    #[inline]
    pub(crate) fn end(&self, end: Cycles) -> Cycles {
        self.ended.set(end);
        let took = end.since(self.start.get());
        let away = match took > self.unnoticed {
            true => self.time.ask(),
            false => self.time.away(),
        };
        Cycles(away.since(self.away.get()).0.min(took.0))
    }
}
