//! The switcher: takes a worker's priority away when a request has run for the threshold.
//!
//! The timer is not set for each request: on a virtual machine that takes longer than a short
//! request. At most one is pending. When it rings, and the request that runs then has not run for
//! the threshold, the switcher sets it for what is left. So each request has the whole threshold,
//! and the timer rings twice in such a time at most.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use shinjuku_preempt::SchedulingClass;

use super::worker::{Control, NO_WORKER};

/// The switcher's timer.
#[derive(Debug)]
pub(super) struct Timer {
    descriptor: OwnedFd,
    threshold: Duration,
    /// Whether it is going to ring.
    pending: AtomicBool,
    made: Instant,
    /// When the present request began or went on, in ns since `made`.
    begun: AtomicU64,
}

impl Timer {
    pub(super) fn new(threshold: Duration) -> io::Result<Self> {
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self {
            descriptor,
            threshold,
            pending: AtomicBool::new(false),
            made: Instant::now(),
            begun: AtomicU64::new(0),
        })
    }

    fn now(&self) -> u64 {
        self.made.elapsed().as_nanos() as u64
    }

    /// A request begins or goes on.
    pub(super) fn begin(&self) {
        self.begun.store(self.now(), Ordering::Release);
        if !self.pending.swap(true, Ordering::AcqRel) {
            self.ring_after(self.threshold);
        }
    }

    /// Wakes the switcher, to let it see that it is to end.
    pub(super) fn ring(&self) {
        self.ring_after(Duration::from_nanos(1));
    }

    fn ring_after(&self, length: Duration) {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Itimerspec {
            it_interval: zero,
            it_value: Timespec {
                tv_sec: length.as_secs().cast_signed(),
                tv_nsec: i64::from(length.subsec_nanos()),
            },
        };
        // The kernel refuses only values and descriptors that make no sense.
        let _ = timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &value);
    }

    /// The switcher's loop. Dispatcher and workers do not run while this does: they are below it.
    pub(super) fn watch(&self, control: &Control, tids: &[u32], preempted: &SchedulingClass) {
        loop {
            // An error is an interruption, after which the time is looked at as well.
            let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
            if control.others_end.load(Ordering::Acquire) {
                return;
            }
            let current = control.current.load(Ordering::Acquire);
            let state = control.states.get(current);
            let Some(state) = state.filter(|state| state.busy.load(Ordering::Acquire)) else {
                debug_assert!(current == NO_WORKER || current < tids.len());
                self.pending.store(false, Ordering::Release);
                continue;
            };
            let ran = self.now() - self.begun.load(Ordering::Acquire);
            let left = self.threshold.saturating_sub(Duration::from_nanos(ran));
            if !left.is_zero() {
                self.ring_after(left);
                continue;
            }
            self.pending.store(false, Ordering::Release);
            state.preempted.store(true, Ordering::Release);
            // It was permitted when the threads began.
            let _ = preempted.give_to(tids[current]);
        }
    }
}
