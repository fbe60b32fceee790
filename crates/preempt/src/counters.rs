//! What happened to preemptions, counted per worker.
//!
//! Each worker's counters have one writer at a time (the worker's thread, or the signal handler on
//! it, or the thread of the context that it runs), so a load and a store are enough; an increment
//! can be lost only between a handler and the code it interrupted, and where a signal comes to the
//! worker's own thread while a context that is a kernel thread runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Live counters of one worker; read them with [`snapshot`](Self::snapshot) from any thread.
#[derive(Default, Debug)]
#[repr(align(128))]
pub struct Counters {
    pub(crate) taken_by_probe: AtomicU64,
    pub(crate) taken_by_compiled_probe: AtomicU64,
    pub(crate) taken_by_interrupt: AtomicU64,
    pub(crate) taken_at_guard: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) deferred: AtomicU64,
    pub(crate) migrations: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CountersSnapshot {
    /// Preemptions taken at a probe.
    pub taken_by_probe: u64,
    /// Preemptions taken at a [compiled probe](crate::CompiledProbes).
    pub taken_by_compiled_probe: u64,
    /// Preemptions taken inside an interrupt (signal).
    pub taken_by_interrupt: u64,
    /// Preemptions taken at the end of `without_preemption` or on entry to the context, after being
    /// held off.
    pub taken_at_guard: u64,
    /// Interrupts that found nothing to preempt: their request had ended or yielded already.
    pub late: u64,
    /// Interrupts and probes that a guard, or too little stack, held off.
    pub deferred: u64,
    /// Resumptions on another worker than the last.
    pub migrations: u64,
}

impl CountersSnapshot {
    /// All preemptions taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken_by_probe
            + self.taken_by_compiled_probe
            + self.taken_by_interrupt
            + self.taken_at_guard
    }
}

impl std::ops::AddAssign for CountersSnapshot {
    fn add_assign(&mut self, other: Self) {
        self.taken_by_probe += other.taken_by_probe;
        self.taken_by_compiled_probe += other.taken_by_compiled_probe;
        self.taken_by_interrupt += other.taken_by_interrupt;
        self.taken_at_guard += other.taken_at_guard;
        self.late += other.late;
        self.deferred += other.deferred;
        self.migrations += other.migrations;
    }
}

#[inline]
pub(crate) fn count(counter: &AtomicU64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}

impl Counters {
    /// Reads all counters, one by one: a sum may be off by events in between.
    #[must_use]
    pub fn snapshot(&self) -> CountersSnapshot {
        CountersSnapshot {
            taken_by_probe: self.taken_by_probe.load(Ordering::Relaxed),
            taken_by_compiled_probe: self.taken_by_compiled_probe.load(Ordering::Relaxed),
            taken_by_interrupt: self.taken_by_interrupt.load(Ordering::Relaxed),
            taken_at_guard: self.taken_at_guard.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            deferred: self.deferred.load(Ordering::Relaxed),
            migrations: self.migrations.load(Ordering::Relaxed),
        }
    }
}
