//! Stalls: requests that run for longer than a limit without giving way, or that block their worker
//! for longer. Each place in the code is reported once.
//!
//! ```text
//!   shinjuku-stalls: looks at what each thread runs ─▶ the same for longer than the limit?
//!                                                         │ yes: counted, as computing or blocked
//!                                                         ▼
//!                    snapshot of its stack ─▶ frames ─▶ names ─▶ a new place? ─▶ one event
//! ```
//!
//! This thread does all of that. It interrupts a thread that serves requests only for the stack of
//! one that computes, once a stall, by a signal whose handler copies the stack. Without the feature
//! `backtraces` no signal is sent, and the place is the class.

#[cfg(feature = "backtraces")]
mod backtrace;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use shinjuku_preempt::{Clock, ContextId, Cycles, WorkerLink};
use tracing::Dispatch;

use crate::loops::Alarm;
use crate::observer::Observer;
use crate::start_error::StartError;

/// How often the threads are looked at in the time of one limit, so that a stall is found within a
/// quarter of it.
const LOOKS: u32 = 4;
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How many places are reported. Stalls at further places are only counted.
const PLACES: usize = 256;

/// How many stalls there were.
#[derive(Debug, Default)]
pub(crate) struct StallCounts {
    computing: AtomicU64,
    blocked: AtomicU64,
}

impl StallCounts {
    pub(crate) fn read(&self) -> Stalls {
        Stalls {
            computing: self.computing.load(Ordering::Relaxed),
            blocked: self.blocked.load(Ordering::Relaxed),
        }
    }
}

/// How often a request held its worker for longer than `stalls.report_after_ms`, by what the
/// request did. Both are 0 if that key is not set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Stalls {
    /// Requests that computed without giving way.
    pub computing: u64,
    /// Requests that were blocked in the kernel.
    pub blocked: u64,
}

/// What a thread runs, and since when.
type Slice = (ContextId, Cycles);

/// The thread that looks for stalls.
pub(crate) struct StallWatch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl StallWatch {
    /// Starts the thread. A request stalls only once it is asked to give way: where a dispatcher
    /// asks, while others wait; at a loop, unless it stands by there, as `loops` tells.
    ///
    /// # Errors
    /// [`StartError::Thread`] if the system gives no thread.
    pub(crate) fn start(
        observer: Observer,
        limit: Duration,
        loops: Option<Arc<Alarm>>,
    ) -> Result<Self, StartError> {
        let name = "shinjuku-stalls".to_owned();
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&is_over);
        let subscriber = tracing::dispatcher::get_default(Dispatch::clone);
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let mut search = Search {
            last: vec![None; observer.links.len()],
            limit: Clock::get().to_cycles(nanos),
            loops,
            places: HashSet::new(),
            #[cfg(feature = "backtraces")]
            backtraces: backtrace::Backtraces::new(),
            observer,
        };
        let pause = (limit / LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let body = move || {
            tracing::dispatcher::with_default(&subscriber, || {
                while !end.load(Ordering::Relaxed) {
                    search.look();
                    std::thread::park_timeout(pause);
                }
            });
        };
        let thread = (std::thread::Builder::new().name(name.clone()).spawn(body))
            .map_err(|cause| StartError::Thread { name, cause })?;
        Ok(Self { is_over, thread })
    }

    /// Tells the thread to end, and gives its handle.
    pub(crate) fn end(self) -> JoinHandle<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread
    }
}

/// What the thread knows.
struct Search {
    observer: Observer,
    limit: Cycles,
    loops: Option<Arc<Alarm>>,
    /// For each thread, the stall that was found last.
    last: Vec<Option<Slice>>,
    /// Hashes of the places that were reported.
    places: HashSet<u64>,
    #[cfg(feature = "backtraces")]
    backtraces: backtrace::Backtraces,
}

impl Search {
    fn look(&mut self) {
        let slices = self.observer.recorder.running();
        for (thread, slice) in slices.into_iter().enumerate() {
            let now = Cycles::now();
            let is_long = |slice: &Slice| now.since(slice.1) > self.limit;
            let Some(slice) = slice.filter(is_long) else {
                continue;
            };
            let is_known = self.last[thread] == Some(slice);
            if !is_known && self.is_asked(thread) {
                self.last[thread] = Some(slice);
                let link = self.observer.links[thread].clone();
                self.found(thread, &link, slice);
            }
        }
    }

    /// Whether the request that this thread runs is to give way.
    fn is_asked(&self, thread: usize) -> bool {
        if (self.loops.as_ref()).is_some_and(|loops| !loops.stands_by(thread)) {
            return true;
        }
        let dispatchers = self.observer.dispatchers.iter();
        dispatchers
            .map(|one| one.waiting())
            .any(|waiting| waiting > 0)
    }

    /// Counts and reports a stall that was not known before.
    fn found(&mut self, thread: usize, link: &WorkerLink, slice: Slice) {
        let is_blocked = link.is_blocked();
        let place = self.place(link, slice);
        if self.observer.recorder.running()[thread] != Some(slice) {
            // The request gave way meanwhile, so the stack may be another's.
            return;
        }
        let counts = &self.observer.stalls;
        let count = if is_blocked {
            &counts.blocked
        } else {
            &counts.computing
        };
        count.fetch_add(1, Ordering::Relaxed);
        let meta = self.observer.started.of(slice.0);
        let class = meta.and_then(|meta| {
            let names = &self.observer.class_names;
            names.get(usize::from(meta.class.0)).map(String::as_str)
        });
        let class = class.unwrap_or("unknown");
        let mut hasher = DefaultHasher::new();
        (class, is_blocked, place.as_ref().map(|place| &place.key)).hash(&mut hasher);
        if self.places.len() >= PLACES || !self.places.insert(hasher.finish()) {
            return;
        }
        let clock = Clock::get();
        let since = |cycles: Cycles| clock.to_nanos(Cycles::now().since(cycles)) as f64 / 1e6;
        let age = meta.map_or(0, |meta| clock.now_nanos().saturating_sub(meta.arrival.0));
        let did = if is_blocked {
            "blocked its worker"
        } else {
            "computed without giving way"
        };
        tracing::warn!(
            target: "shinjuku",
            class,
            thread = self.observer.recorder.name(thread),
            context = slice.0.0,
            age_ms = age as f64 / 1e6,
            "stall: a request of class `{class}` has {did} for {:.1} ms{}",
            since(slice.1),
            place.map_or_else(String::new, |place| place.text)
        );
    }

    #[cfg(feature = "backtraces")]
    fn place(&mut self, link: &WorkerLink, (context, _): Slice) -> Option<Place> {
        self.backtraces.take(link, context)
    }

    #[cfg(not(feature = "backtraces"))]
    #[expect(clippy::unused_self, reason = "with backtraces it is used")]
    fn place(&mut self, _: &WorkerLink, _: Slice) -> Option<Place> {
        None
    }
}

/// Where in the code a request was.
struct Place {
    /// Equal for the same place.
    key: Vec<String>,
    /// The frames with their sources, for the event.
    text: String,
}
