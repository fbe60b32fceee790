//! The transport of the bench: arrivals drawn ahead of time, injected by the dispatcher's own
//! thread at their intended moments, finish times noted by the workers. No network, no other
//! thread: what is measured is the scheduling alone.
//!
//! Open loop: an arrival's time is the intended one, however late the dispatcher comes to see it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shinjuku::net::{self, Failure, Refusal, Replier, Transport};
use shinjuku_preempt::Clock;
use shinjuku_workload::Arrival;

use super::work::Work;

/// Time between the dispatcher's first look and the first arrival, ns: every thread has its core by
/// then.
const LEAD_IN: u64 = 2_000_000;

/// One arrival: when, whose, and the work it brings.
pub type Planned = (Arrival, Work);

/// What the burst's threads tell the thread that waits for them.
#[derive(Debug, Default)]
pub struct Progress {
    /// When the first arrival was due, ns of the process's [`Clock`]; 0 before.
    pub start: AtomicU64,
    /// Whether every arrival has been injected.
    pub exhausted: AtomicBool,
    /// Refused arrivals, by index.
    pub refused: Mutex<Vec<u32>>,
    /// Index and finish time of the others, per worker; filled when the workers have ended.
    pub finished: Mutex<Vec<Vec<(u32, u64)>>>,
}

/// Injects one burst.
#[derive(Debug)]
pub struct Injector {
    arrivals: Arc<[Planned]>,
    next: usize,
    start: u64,
    refused: Vec<u32>,
    progress: Arc<Progress>,
}

impl Injector {
    /// Will inject `arrivals`, which are in order of time.
    pub fn new(arrivals: Arc<[Planned]>, progress: Arc<Progress>) -> Self {
        let refused = Vec::with_capacity(arrivals.len());
        Self {
            arrivals,
            next: 0,
            start: 0,
            refused,
            progress,
        }
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        let refused = std::mem::take(&mut self.refused);
        *self
            .progress
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = refused;
    }
}

impl Transport for Injector {
    type Request = Work;
    type Reply = ();
    type Route = u32;
    type Outgoing = u32;
    type Replier = Recorder;

    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(net::Arrival<Work, u32>),
    ) {
        if self.start == 0 {
            self.start = now_nanos + LEAD_IN;
            self.progress.start.store(self.start, Ordering::Release);
        }
        let end = self.arrivals.len().min(self.next + room);
        while self.next < end {
            let (arrival, work) = &self.arrivals[self.next];
            let due = self.start + arrival.at_ns;
            if due > now_nanos {
                return;
            }
            deliver(net::Arrival {
                request: *work,
                route: self.next as u32,
                class: arrival.class,
                flow: u64::from(arrival.flow),
                arrived_nanos: due,
                deadline_nanos: None,
                due_nanos: None,
            });
            self.next += 1;
        }
        if self.next == self.arrivals.len() {
            self.progress.exhausted.store(true, Ordering::Release);
        }
    }

    fn refuse(&mut self, _: Work, route: u32, _: Refusal) {
        self.refused.push(route);
    }

    fn conclude(route: u32, _: Result<(), Failure>) -> u32 {
        route
    }

    fn replier(&mut self) -> std::io::Result<Recorder> {
        // Written once, so that no page of it faults in the burst.
        let mut finished = vec![(u32::MAX, u64::MAX); self.arrivals.len()];
        finished.clear();
        Ok(Recorder {
            finished,
            clock: Clock::get(),
            progress: Arc::clone(&self.progress),
        })
    }

    fn wait(&mut self, patience: Duration) {
        // Between two arrivals nobody sleeps: the runtime's own back-off is set longer than any gap
        // that matters.
        std::thread::sleep(patience.min(Duration::from_millis(1)));
    }

    fn close(&mut self) {
        self.next = self.arrivals.len();
    }
}

/// Notes when requests finish.
#[derive(Debug)]
pub struct Recorder {
    finished: Vec<(u32, u64)>,
    clock: Clock,
    progress: Arc<Progress>,
}

impl Replier for Recorder {
    type Outgoing = u32;

    fn send(&mut self, index: u32) {
        self.finished.push((index, self.clock.now_nanos()));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let finished = std::mem::take(&mut self.finished);
        self.progress
            .finished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(finished);
    }
}
