//! The inline layout's threads: one has the dispatcher and is dispatcher and worker in turn; the
//! others stand by.
//!
//! ```text
//!   standing by ──first of them──▶ watching ──the request that runs is stuck: takes the dispatcher──▶ serving
//!        ▲                                                                                              │
//!        └───────── back from a request, and somebody else has the dispatcher by now ◀──────────────────┘
//! ```
//!
//! While a request runs, the dispatcher lies in the [`DispatcherHandoff`]. Its thread takes it back
//! when the request has finished or was preempted. A request that blocks its thread in the kernel
//! leaves it lying there, and so does one that computes and does not give way: nothing here tells
//! the two apart. After `rescue_after` the watching thread takes it and goes on with all others
//! (ARCHITECTURE.md, "Progress", rule 2). A request without a deadline is left alone until the end.
//! The dispatcher is in one place at a time, since it moves.
//!
//! Lending and taking back are an atomic exchange each. The lock on the roster is taken only when a
//! thread begins to stand by or takes over, and never within a request. Nothing here allocates,
//! frees or drops a user's value before the end.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use shinjuku_net::Transport;
use shinjuku_preempt::{Clock, Cycles, DeadlineTimer};

use crate::dispatcher::{Control, Deadline, Dispatcher, Next, Turn};
use crate::worker::{LONGEST_SLEEP, Orders, WorkerLoop};

/// Nobody watches: no thread is left to.
const NOBODY: usize = usize::MAX;
const NEVER: u64 = u64::MAX;

type Place<Tr> = AtomicCell<Option<Box<Dispatcher<Tr>>>>;

/// Where the dispatcher lies while a request runs, and who may take it.
pub(crate) struct DispatcherHandoff<Tr: Transport> {
    /// A place for each thread: what a thread takes back is what it lent, and not what another has
    /// lent since.
    lent: Box<[CachePadded<Place<Tr>>]>,
    /// The thread that lent it last.
    holder: AtomicUsize,
    /// When that thread's request counts as stuck (TSC); [`NEVER`] while nobody may take the
    /// dispatcher.
    stuck_at: AtomicU64,
    watcher: AtomicUsize,
    /// Threads that stand by and do not watch.
    roster: Mutex<Vec<usize>>,
    threads: OnceLock<Vec<Thread>>,
    /// How long a request may leave its deadline unanswered.
    rescue_after: Duration,
    rescue_cycles: Cycles,
    control: Arc<Control>,
    orders: Arc<AtomicU8>,
}

impl<Tr: Transport> DispatcherHandoff<Tr> {
    pub(crate) fn new(
        threads: usize,
        rescue_after: Duration,
        control: Arc<Control>,
        orders: Arc<AtomicU8>,
    ) -> Self {
        let nanos = u64::try_from(rescue_after.as_nanos()).unwrap_or(u64::MAX);
        Self {
            lent: (0..threads).map(|_| CachePadded::default()).collect(),
            holder: AtomicUsize::new(0),
            stuck_at: AtomicU64::new(NEVER),
            watcher: AtomicUsize::new(NOBODY),
            roster: Mutex::new(Vec::with_capacity(threads)),
            threads: OnceLock::new(),
            rescue_after,
            rescue_cycles: Clock::get().to_cycles(nanos),
            control,
            orders,
        }
    }

    /// All threads, so that they can wake each other.
    pub(crate) fn introduce(&self, threads: Vec<Thread>) {
        let known = self.threads.set(threads);
        assert!(known.is_ok(), "threads are introduced once");
    }

    /// Thread `me` is about to run a request.
    fn lend(&self, me: usize, dispatcher: Box<Dispatcher<Tr>>, deadline: Deadline) {
        let stuck_at = deadline
            .soft
            .map_or(NEVER, |soft| soft.0.saturating_add(self.rescue_cycles.0));
        let was = self.lent[me].swap(Some(dispatcher));
        debug_assert!(was.is_none(), "there is one dispatcher");
        // Not dropped: that would be a check and a call on the way to every request.
        std::mem::forget(was);
        self.holder.store(me, Ordering::Relaxed);
        self.stuck_at.store(stuck_at, Ordering::Relaxed);
    }

    /// Thread `me` is back from its request. `None`: another one has the dispatcher by now.
    fn take_back(&self, me: usize) -> Option<Box<Dispatcher<Tr>>> {
        let dispatcher = self.lent[me].swap(None)?;
        self.stuck_at.store(NEVER, Ordering::Relaxed);
        Some(dispatcher)
    }

    /// Stands by until it is the turn of thread `me`; `None`: everything is over.
    fn stand_by(&self, me: usize) -> Option<Box<Dispatcher<Tr>>> {
        {
            let mut roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
            if self.watcher.load(Ordering::Relaxed) == NOBODY {
                self.watcher.store(me, Ordering::Relaxed);
            } else {
                roster.push(me);
            }
        }
        while self.orders.load(Ordering::Acquire) != Orders::END {
            if self.watcher.load(Ordering::Acquire) != me {
                std::thread::park_timeout(LONGEST_SLEEP);
                continue;
            }
            std::thread::park_timeout(self.rescue_after);
            // At the end even what has no deadline is left behind, or nobody would report it.
            let is_stuck = Cycles::now().0 >= self.stuck_at.load(Ordering::Relaxed);
            if !is_stuck && !self.control.is_ending() {
                continue;
            }
            // Should another request have begun meanwhile, its thread finds itself relieved, which
            // does no harm.
            let holder = self.holder.load(Ordering::Relaxed);
            if let Some(mut dispatcher) = self.take_back(holder) {
                let spares_left = self.pass_the_watch_on();
                dispatcher.taken_over_by(me, spares_left);
                return Some(dispatcher);
            }
        }
        None
    }

    /// Another thread watches from now on; tells whether there is one.
    fn pass_the_watch_on(&self) -> bool {
        let mut roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
        // The first ones again and again: the others' rings and counters stay cold.
        let first = (0..roster.len()).min_by_key(|&place| roster[place]);
        let next = first.map_or(NOBODY, |place| roster.swap_remove(place));
        self.watcher.store(next, Ordering::Release);
        let thread = self.threads.get().and_then(|threads| threads.get(next));
        thread.inspect(|thread| thread.unpark()).is_some()
    }
}

/// One of the threads.
pub(crate) struct InlineLoop<Tr: Transport> {
    pub(crate) me: usize,
    pub(crate) worker: WorkerLoop<Tr>,
    /// The hard mechanism, where there is one.
    pub(crate) timer: Option<DeadlineTimer>,
    pub(crate) handoff: Arc<DispatcherHandoff<Tr>>,
    /// Where the first thread gets the dispatcher from.
    pub(crate) first: Option<mpsc::Receiver<Box<Dispatcher<Tr>>>>,
}

impl<Tr: Transport> InlineLoop<Tr> {
    /// Runs until everything is over.
    pub(crate) fn run(mut self) {
        let first = self.first.take().map(|first| first.recv());
        match first {
            Some(Ok(dispatcher)) => self.serve(dispatcher),
            // The runtime did not start.
            Some(Err(_)) => return,
            None => {}
        }
        while let Some(dispatcher) = self.handoff.stand_by(self.me) {
            self.serve(dispatcher);
        }
    }

    /// Dispatcher and worker in turn, until somebody else has the dispatcher or everything is over.
    fn serve(&mut self, mut dispatcher: Box<Dispatcher<Tr>>) {
        loop {
            match dispatcher.inline_turn(self.timer.as_mut()) {
                Turn::Run(deadline) => {
                    self.handoff.lend(self.me, dispatcher, deadline);
                    match self.run_requests(deadline.start) {
                        Some(back) => dispatcher = back,
                        None => return,
                    }
                }
                Turn::Again => {}
                Turn::Over => {
                    return dispatcher.inline_end();
                }
            }
        }
    }
    /// Runs the request that was sent at `start`, and after it those that can follow it at once.
    /// Gives the dispatcher back, unless another thread has it.
    fn run_requests(&mut self, start: Cycles) -> Option<Box<Dispatcher<Tr>>> {
        let Self {
            me,
            worker,
            timer,
            handoff,
            ..
        } = self;
        let mut back = None;
        worker.step_inline(start, |end| {
            if let Some(timer) = timer {
                timer.disarm();
            }
            let mut dispatcher = handoff.take_back(*me)?;
            match dispatcher.inline_next(end, timer.as_mut()) {
                Some(Next {
                    job,
                    generation,
                    deadline,
                }) => {
                    handoff.lend(*me, dispatcher, deadline);
                    Some((job, generation, deadline.start))
                }
                None => {
                    back = Some(dispatcher);
                    None
                }
            }
        });
        if let Some(timer) = timer {
            timer.disarm();
        }
        back.or_else(|| handoff.take_back(*me))
    }
}

#[cfg(test)]
mod tests;
