//! A transport of the runtime's: arrivals drawn ahead of time, injected by the dispatcher's own
//! thread at their intended moments, finish times noted by the workers. No network, no other
//! thread: what is measured is the scheduling alone.
//!
//! Where several dispatchers serve, each injects the arrivals of its own flows, as a network card
//! with a queue for each would: a flow is one dispatcher's, and two arrivals in a row may be.
//!
//! Open loop: an arrival's time is the intended one, however late the dispatcher comes to see it.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shinjuku_net::{self as net, Failure, Glance, Refusal, Replier, Transport, Wake};
use shinjuku_preempt::Clock;

use crate::{Arrival, Record};

/// Time between the dispatcher's first look and the first arrival, ns: every thread has its core by
/// then.
const LEAD_IN: u64 = 2_000_000;
/// What the dispatcher may take until that look.
const LONGEST_START: Duration = Duration::from_secs(5);

/// One arrival: when, whose, and the work it brings.
pub type Planned<Work> = (Arrival, Work);

/// What the burst's threads tell the thread that waits for them.
#[derive(Default)]
pub struct Progress {
    /// When the first arrival was due, ns of the process's [`Clock`]; 0 before.
    pub start: AtomicU64,
    /// Injectors that have not injected all their arrivals.
    left: AtomicUsize,
    /// Wakes the loops that sleep because they have nothing to do.
    wakes: Mutex<Vec<Wake>>,
    /// Refused arrivals, by index.
    refused: Mutex<Vec<u32>>,
    /// Index and finish time of the others, per worker; filled when the workers have ended.
    finished: Mutex<Vec<Vec<(u32, u64)>>>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Progress")
            .field("start", &self.start)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Progress {
    /// Whether loops sleep until requests come. [`Self::begin`] has to wake these.
    pub fn is_attended(&self) -> bool {
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        !wakes.is_empty()
    }

    /// Waits until the first arrival is due, and wakes the loops that sleep by then: those that
    /// have had nothing to do since the runtime's start.
    pub fn begin(&self) {
        let clock = Clock::get();
        let give_up = Instant::now() + LONGEST_START;
        let is_due = || {
            let start = self.start.load(Ordering::Acquire);
            start > 0 && clock.now_nanos() > start
        };
        while !is_due() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_micros(100));
        }
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        for wake in wakes.iter() {
            wake();
        }
    }

    /// Whether every arrival has been injected.
    pub fn is_exhausted(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Requests that finished by `until`, in order of arrival, once the workers have ended.
    pub fn records<Work>(&self, arrivals: &[Planned<Work>], until: u64) -> Vec<Record> {
        let start = self.start.load(Ordering::Acquire);
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let mut finished: Vec<_> = finished.iter().flatten().copied().collect();
        finished.retain(|(_, at)| *at <= until);
        finished.sort_unstable();
        let record = |(index, at): (u32, u64)| {
            let arrival = &arrivals[index as usize].0;
            let arrival_ns = start + arrival.at_ns;
            Record {
                arrival_ns,
                service_ns: arrival.service_ns,
                finish_ns: at.max(arrival_ns),
                class: arrival.class,
            }
        };
        finished.into_iter().map(record).collect()
    }

    /// Refused arrivals, by index, once the injectors are gone.
    pub fn refused(&self) -> Vec<u32> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.clone()
    }

    /// When the first arrival is due, if it is `now`, unless another injector has set that.
    fn start(&self, now_nanos: u64) -> u64 {
        let ours = now_nanos + LEAD_IN;
        let set = (self.start).compare_exchange(0, ours, Ordering::AcqRel, Ordering::Acquire);
        set.map_or_else(|theirs| theirs, |_| ours)
    }
}

/// Injects one burst, or those requests of it whose flow is its own.
#[derive(Debug)]
pub struct Injector<Work> {
    arrivals: Arc<[Planned<Work>]>,
    /// Which of them it injects, by index, in order of time.
    own: Box<[u32]>,
    /// Of `own`, the first that it has not injected.
    next: usize,
    start: u64,
    /// When the next arrival is due; 0 before the start. A loop reads it to learn whether to poll.
    next_due: Arc<AtomicU64>,
    refused: Vec<u32>,
    progress: Arc<Progress>,
}

impl<Work> Injector<Work> {
    /// This many injectors, which together inject `arrivals`. These are in order of time. A flow
    /// belongs to the injector that its number gives, modulo theirs; so one more flow belongs to
    /// the first ones where the flows cannot be shared out evenly.
    pub fn several(
        number: usize,
        arrivals: &Arc<[Planned<Work>]>,
        progress: &Arc<Progress>,
    ) -> Vec<Self> {
        progress.left.store(number, Ordering::Release);
        let mut parts = vec![Vec::new(); number];
        for (index, (arrival, _)) in arrivals.iter().enumerate() {
            parts[arrival.flow as usize % number].push(index as u32);
        }
        let injector = |own: Vec<u32>| Self {
            arrivals: Arc::clone(arrivals),
            refused: Vec::with_capacity(own.len()),
            own: own.into(),
            next: 0,
            start: 0,
            next_due: Arc::default(),
            progress: Arc::clone(progress),
        };
        parts.into_iter().map(injector).collect()
    }

    /// When the next one is due; never, after the last.
    fn due(&self) -> u64 {
        let next = self.own.get(self.next);
        next.map_or(u64::MAX, |&index| {
            self.start + self.arrivals[index as usize].0.at_ns
        })
    }
}

impl<Work> Drop for Injector<Work> {
    fn drop(&mut self) {
        let mut refused = (self.progress.refused)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        refused.append(&mut self.refused);
    }
}

impl<Work: Copy + Send + Sync + 'static> Transport for Injector<Work> {
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
            self.start = self.progress.start(now_nanos);
        } else if self.next >= self.own.len() {
            return;
        }
        let end = self.own.len().min(self.next.saturating_add(room));
        while self.next < end && self.due() <= now_nanos {
            let index = self.own[self.next];
            let (arrival, work) = &self.arrivals[index as usize];
            let arrived_nanos = self.start + arrival.at_ns;
            let request = net::Arrival::new(*work, index, arrived_nanos);
            deliver(request.class(arrival.class).flow(arrival.flow.into()));
            self.next += 1;
        }
        self.next_due.store(self.due(), Ordering::Relaxed);
        if self.next >= self.own.len() {
            self.progress.left.fetch_sub(1, Ordering::AcqRel);
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
        // Between two arrivals no loop sleeps: the runtime's own back-off is set longer than any
        // gap that matters.
        std::thread::sleep(patience.min(Duration::from_millis(1)));
    }

    /// [`Progress::begin`] wakes the loops that sleep before the first arrival. After it no loop
    /// sleeps: see `wait`.
    fn attend(&mut self, wake: Wake) -> Option<Glance> {
        let wakes = self.progress.wakes.lock();
        wakes.unwrap_or_else(PoisonError::into_inner).push(wake);
        let (next_due, clock) = (Arc::clone(&self.next_due), Clock::get());
        Some(Box::new(move || {
            next_due.load(Ordering::Relaxed) <= clock.now_nanos()
        }))
    }

    /// Later arrivals are there once the clock says so.
    const WAKES_THE_BUSY: bool = false;

    fn close(&mut self) {
        self.next = self.own.len();
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
