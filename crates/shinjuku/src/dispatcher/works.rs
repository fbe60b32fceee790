//! A dispatcher that works when it has nothing else to do (Iyer et al., *Achieving
//! Microsecond-Scale Tail Latency Efficiently with Approximate Optimal Scheduling*, SOSP 2023:
//! Concord).
//!
//! ```text
//!   a dispatcher's thread:  turn ─▶ nothing to do, all workers busy, a fresh request waits
//!                             ▲        │ the dispatcher lies in the relay
//!                             │        ▼
//!                             └── the request runs here ─▶ finished, or suspended for any worker
//!                                      │ not back `rescue_after` after it began
//!                                      ▼
//!   the other one:          takes the dispatcher; the first one stands by when it is back
//! ```
//!
//! A dispatcher's thread is a worker as well, with a mailbox of its own: its *desk*. What it runs
//! there has a deadline before it starts, which its probes look for. The probes that read the clock
//! also look whether a worker has become idle, and give way then. What gives way is a suspended
//! request like any other, and a worker goes on with it. A desk runs fresh requests only: those
//! wait for nobody who is suspended, unless they come to a lock.
//!
//! Such a request can block in the kernel, and what it waits for can be a suspended request's. So
//! the role moves: a second thread stands by, looks each `rescue_after` while the first one works,
//! and takes the dispatcher if that has lain there for so long. The request left behind answers by
//! its desk's mailbox. Until then the dispatcher runs none itself, so two threads are enough.
//!
//! Which request: the fresh one that has waited for longest, whatever the policy's order. It takes
//! no worker's time, so nothing that the policy would put first is later for it.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use shinjuku_net::Transport;
use shinjuku_policy::{Nanos, WorkerId};
use shinjuku_preempt::{Clock, Cycles, Handover, LastAnswer, Parker, QuantumEnd, Worker};

use super::{Control, Dispatcher, Round};
use crate::worker::{LONGEST_SLEEP, Orders, WorkerLoop};

/// A dispatcher's threads: one has it, the other stands by.
pub(crate) const DESKS: usize = 2;

/// A slice is so many times as long as what leaving it costs: a twentieth is lost.
const WORTH: u64 = 20;
const SHORTEST_SLICE: Nanos = Nanos::from_micros(2);
/// Nobody dispatches for so long.
const LONGEST_SLICE: Nanos = Nanos::from_micros(10);

/// Who stands by while the other one works sees the end within this time.
const LONGEST_LOOK: Duration = Duration::from_millis(20);

/// What lies in the relay is not told any further.
const LIES: usize = 1;
/// When the thread that has the dispatcher is stuck: it runs no request.
const NEVER: u64 = u64::MAX;

/// How long a dispatcher runs a request at a time where preempting one by probe takes `cost` of its
/// worker.
pub(crate) fn slice(cost: Nanos) -> Nanos {
    Nanos(cost.0.saturating_mul(WORTH)).clamp(SHORTEST_SLICE, LONGEST_SLICE)
}

/// Where the dispatcher lies while its thread runs a request.
pub(crate) struct Relay<Tr: Transport> {
    place: Handover<Dispatcher<Tr>>,
    /// From when on the other thread takes it (TSC). Written by the thread that has it.
    stuck_at: AtomicU64,
    desks: [Desk; DESKS],
    rescue_after: Duration,
    rescue_cycles: Cycles,
    orders: Arc<Orders>,
}

/// One of the threads, for the other to wake it.
#[derive(Default)]
struct Desk {
    parker: Parker,
    thread: OnceLock<Thread>,
}

impl<Tr: Transport> Relay<Tr> {
    /// Without a dispatcher yet.
    pub(crate) fn new(rescue_after: Nanos, orders: Arc<Orders>) -> Self {
        Self {
            place: Handover::new(),
            stuck_at: AtomicU64::new(NEVER),
            desks: Default::default(),
            rescue_after: Duration::from_nanos(rescue_after.0),
            rescue_cycles: Clock::get().to_cycles(rescue_after.0),
            orders,
        }
    }

    /// One of these threads gets the dispatcher.
    pub(crate) fn begin(
        &self,
        dispatcher: Box<Dispatcher<Tr>>,
        threads: impl IntoIterator<Item = Thread>,
    ) {
        for (desk, thread) in self.desks.iter().zip(threads) {
            let is_new = desk.thread.set(thread).is_ok();
            assert!(is_new, "threads are introduced once");
        }
        self.stuck_at.store(0, Ordering::Relaxed);
        self.place.leave(dispatcher, LIES);
        if let Some(first) = self.desks[0].thread.get() {
            first.unpark();
        }
    }

    /// The thread at `desk` is about to run a request: the other one watches it from now on. That
    /// may take a system call, which is not to be part of the request's slice.
    fn announce(&self, desk: usize) {
        let stuck_at = Cycles::now().0.saturating_add(self.rescue_cycles.0);
        self.stuck_at
            .store(stuck_at.min(NEVER - 1), Ordering::Relaxed);
        // Either the other thread sees that it is to look, or this one that the other sleeps.
        fence(Ordering::SeqCst);
        let other = &self.desks[1 - desk];
        if let Some(thread) = other.thread.get() {
            other.parker.wake(thread);
        }
    }

    /// The thread runs the request next.
    fn lend(&self, dispatcher: Box<Dispatcher<Tr>>) {
        self.place.leave(dispatcher, LIES);
    }

    /// The dispatcher, unless the other thread has it.
    fn take(&self) -> Option<Box<Dispatcher<Tr>>> {
        let dispatcher = self.place.take()?;
        self.stuck_at.store(NEVER, Ordering::Relaxed);
        Some(dispatcher)
    }

    /// Stands by until the thread that has the dispatcher is stuck. `None`: everything is over.
    ///
    /// Should that thread be back meanwhile, and have lent the dispatcher again, it finds itself
    /// relieved early, which does no harm.
    fn stand_by(&self, desk: usize) -> Option<Box<Dispatcher<Tr>>> {
        let is_over = || self.orders.get() == Orders::END;
        let mut last = NEVER;
        while !is_over() {
            let stuck_at = self.stuck_at.load(Ordering::Relaxed);
            if Cycles::now().0 >= stuck_at
                && let Some(dispatcher) = self.take()
            {
                return Some(dispatcher);
            }
            if stuck_at == NEVER && last == NEVER {
                self.desks[desk].parker.sleep(LONGEST_SLEEP, || {
                    fence(Ordering::SeqCst);
                    is_over() || self.stuck_at.load(Ordering::Relaxed) != NEVER
                });
            } else {
                std::thread::park_timeout(self.rescue_after.min(LONGEST_LOOK));
            }
            last = stuck_at;
        }
        None
    }
}

/// What one of the threads has besides what a worker has.
pub(crate) struct Post<Tr: Transport> {
    pub(crate) desk: usize,
    pub(crate) relay: Arc<Relay<Tr>>,
    /// Of each worker, for what runs at the desk.
    pub(crate) last_answers: Vec<LastAnswer>,
}

/// One of the threads that have the dispatcher in turn.
pub(crate) struct DispatcherThread<Tr: Transport> {
    post: Post<Tr>,
    worker: Worker,
    /// Serves what the dispatcher sends to its own desk.
    serving: WorkerLoop<Tr>,
}

impl<Tr: Transport> DispatcherThread<Tr> {
    pub(crate) fn new(post: Post<Tr>, worker: Worker, serving: WorkerLoop<Tr>) -> Self {
        Self {
            post,
            worker,
            serving,
        }
    }

    /// Runs until everything is over.
    pub(crate) fn run(mut self) {
        while let Some(dispatcher) = self.post.relay.stand_by(self.post.desk) {
            self.serve(dispatcher);
        }
    }

    /// Dispatches until the other thread does, or everything is over.
    fn serve(&mut self, mut dispatcher: Box<Dispatcher<Tr>>) {
        let Self {
            post:
                Post {
                    desk,
                    relay,
                    last_answers,
                },
            worker,
            serving,
        } = self;
        loop {
            dispatcher.served_at(*desk);
            match dispatcher.round() {
                Round::Over => return dispatcher.end(),
                Round::Again => {}
                Round::Work => {
                    relay.announce(*desk);
                    dispatcher.expect_answers(last_answers);
                    dispatcher.begins_slice();
                    relay.lend(dispatcher);
                    let is_a_worker_idle = &mut || last_answers.iter().any(LastAnswer::is_there);
                    worker.serve_once(serving, is_a_worker_idle);
                    match relay.take() {
                        Some(back) => dispatcher = back,
                        None => return,
                    }
                }
            }
        }
    }
}

impl<Tr: Transport> Dispatcher<Tr> {
    /// Sends a fresh request to the desk of the thread that has the dispatcher, if the rules have
    /// it work, there is one, and no worker is idle. Tells whether.
    pub(super) fn takes_work(&mut self, now: Nanos) -> bool {
        let is_wanted = self.rules.works.is_some()
            && self.fresh() > 0
            && self.control.state() == Control::SERVE
            && self.states[..self.workers]
                .iter()
                .all(|state| state.out() > 0)
            // One that was left behind would have to be relieved by a third thread.
            && !self.is_within_own_work()
            // Each that outlasts its slice keeps a context until a worker has time for it.
            && self.contexts.in_use() < self.contexts.free()
            && self.contexts.prepare();
        if !is_wanted {
            return false;
        }
        let at = self.desks + self.active_desk;
        let Some(task) = self.policy.take_fresh(self.states[at].worker) else {
            return false;
        };
        let Some(runnable) = self.runnable(task.id, at, now) else {
            return false;
        };
        self.states[at].send(task.id, runnable, now);
        self.statistics.run_by_dispatcher();
        true
    }

    /// What was sent to the desk of the thread that has the dispatcher is to give way after a slice
    /// from now.
    fn begins_slice(&self) {
        let sent = self.states[self.desks + self.active_desk].running();
        if let (Some(sent), Some(slice)) = (sent, self.rules.works) {
            let slice = self.clock.to_cycles(slice.0);
            sent.dispatched
                .request_after(Cycles::now(), slice, QuantumEnd::Probes);
        }
    }

    /// Whether a dispatcher's thread is within a request, or has not been heard of since.
    pub(super) fn is_within_own_work(&self) -> bool {
        self.states[self.desks..]
            .iter()
            .any(|state| state.out() > 0)
    }

    /// Takes what dispatchers' threads have answered.
    pub(super) fn take_own_answers(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        for desk in self.desks..self.states.len() {
            worked |= self.states[desk].out() > 0 && self.take_answers(desk, now);
        }
        worked
    }

    /// The thread at `desk` has the dispatcher.
    fn served_at(&mut self, desk: usize) {
        let before = std::mem::replace(&mut self.active_desk, desk);
        if before != desk && self.states[self.desks + before].out() > 0 {
            self.statistics.dispatcher_relieved();
        }
    }

    /// What workers have been sent by now is what these tell of.
    fn expect_answers(&self, last_answers: &mut [LastAnswer]) {
        for (state, last) in self.states.iter().zip(last_answers) {
            state.sender.expect(last);
        }
    }
}

/// To a policy that preempts, the desks are any worker.
pub(crate) const POLICY_ID: WorkerId = WorkerId(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_worth_its_end_and_short() {
        assert_eq!(slice(Nanos(300)), Nanos(6_000));
        assert_eq!(slice(Nanos(0)), SHORTEST_SLICE);
        assert_eq!(slice(Nanos(2_000)), LONGEST_SLICE);
        assert_eq!(slice(Nanos::MAX), LONGEST_SLICE);
    }
}
