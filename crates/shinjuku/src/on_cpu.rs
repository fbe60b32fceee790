//! What requests take of the CPU in the layouts `inline` and `symmetric`, without the time for
//! which their thread was away from it: descheduled, or blocked in the kernel.
//!
//! The TSC tells how long a request took, and mostly that is what it took of the CPU. Only when it
//! took suspiciously long is the kernel asked, after the request: a system call among many
//! microseconds. Beside others Linux deschedules a thread for hundreds of them at the least.

use std::cell::Cell;
use std::time::Duration;

use shinjuku_preempt::{Clock, Cycles, ProcessorTime};

/// Shorter times are taken for time on the CPU.
const UNNOTICED: Duration = Duration::from_micros(50);
/// The kernel is asked so often at the least: its clock and the TSC do not go quite alike.
const FORGOTTEN: Duration = Duration::from_millis(10);

/// For the requests of the calling thread.
pub(crate) struct OnCpu {
    time: ProcessorTime,
    unnoticed: Cycles,
    forgotten: Cycles,
    /// When the request before ended.
    ended: Cell<Cycles>,
    /// Since when the request runs, and what the thread had been away by then.
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

    /// A request has begun at `start`. What the thread was away before is not its affair.
    #[inline]
    pub(crate) fn begin(&self, start: Cycles) {
        let is_after_gap = start.since(self.ended.get()) > self.unnoticed;
        if is_after_gap || start.since(self.time.asked_at()) > self.forgotten {
            self.time.ask();
        }
        self.start.set(start);
        self.away.set(self.time.away());
    }

    /// It has ended or given way at `end`. For how long the thread was away meanwhile.
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
