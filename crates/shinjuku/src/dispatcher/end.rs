//! The end: requests that never started are turned away; those that started and do not finish are
//! reported, and not abandoned.
//!
//! A context that stays suspended for good keeps the locks that it holds. A signal can have stopped
//! it within the allocator, and then no thread could allocate. So after the report the dispatcher
//! and the workers go on with the started requests, in the background, until these have finished;
//! the shutdown does not wait for that.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use shinjuku_net::{Refusal, Transport};
use shinjuku_policy::{ClassId, Nanos, PolicyError, WorkerId};
use shinjuku_preempt::Idle;

use super::{Dispatcher, Place};
use crate::request::{Done, Job};
use crate::worker::Orders;
use crate::worker_state::WorkerState;

/// How much longer than the shutdown's deadline requests have to finish.
pub(super) const LAST_WORD: Nanos = Nanos::from_millis(5);
/// How often a closed transport is polled at most. What it delivers after that is not refused.
const LAST_POLLS: usize = 1024;
/// How long the dispatcher sleeps between two turns in the background.
pub(crate) const BACKGROUND_TURN: Duration = Duration::from_micros(200);

/// What the dispatcher leaves for the end of a shutdown. Its memory is taken at start.
pub(crate) struct Remaining<Tr: Transport> {
    /// Unless requests are unfinished.
    pub(crate) transport: Option<Tr>,
    /// Contexts that can be handed back.
    pub(crate) idle: Vec<Idle<Job<Tr>, Done<Tr>>>,
    /// Classes of the requests that started and did not finish.
    pub(crate) unfinished: Vec<ClassId>,
    /// How many workers, spares included, are within a request.
    pub(crate) busy_workers: usize,
    pub(crate) policy_error: Option<PolicyError>,
}

/// Where the dispatcher leaves what remains. Only the dispatcher locks it, once, and the thread
/// that shuts the runtime down: never a handler.
pub(crate) struct ShutdownHandoff<Tr: Transport>(Mutex<Option<Remaining<Tr>>>);

impl<Tr: Transport> ShutdownHandoff<Tr> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn take(&self) -> Option<Remaining<Tr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the dispatcher has left what remains.
    pub(crate) fn is_left(&self) -> bool {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.is_some()
    }

    fn leave(&self, remaining: Remaining<Tr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(remaining);
    }
}

impl<Tr: Transport> Dispatcher<Tr> {
    /// Refuses the requests that never started, and hands over what remains. Goes on in the
    /// background if started requests have not finished.
    pub(super) fn end(mut self) {
        self.turn_away_the_rest();
        let start = self.now();
        while !self.is_quiet() && self.now().since(start) < LAST_WORD {
            let now = self.now();
            self.turn(now);
        }
        if self.is_over_or_report() {
            return self.leave();
        }
        while !self.is_quiet() {
            let now = self.now();
            self.turn(now);
            std::thread::sleep(BACKGROUND_TURN);
        }
        self.dismiss();
    }

    /// Everything has finished: the workers end.
    pub(super) fn dismiss(&self) {
        dismiss(&self.orders, &self.states);
    }

    /// Refuses the requests that never started, and those that are still in the transport.
    pub(super) fn turn_away_the_rest(&mut self) {
        let now = self.now();
        for at in 0..self.states.len() {
            while self.take_back(at, now) {}
        }
        self.turn_away_fresh();
        for _ in 0..LAST_POLLS {
            if !self.poll(now) {
                break;
            }
            self.turn_away_fresh();
        }
    }

    fn turn_away_fresh(&mut self) {
        while let Some(task) = self.policy.take_fresh(WorkerId(0)) {
            let place = std::mem::replace(&mut self.records[task.id.0 as usize].place, Place::Free);
            if let Place::Fresh(request, route) = place {
                self.statistics.refused(Refusal::ShuttingDown);
                self.transport.refuse(request, route, Refusal::ShuttingDown);
            }
            self.policy.finished(task.id, WorkerId(0));
            self.free.push(task.id);
        }
    }

    /// Whether everything has finished. If not, hands over the report, and the workers go on in the
    /// background.
    pub(super) fn is_over_or_report(&mut self) -> bool {
        let is_over = self
            .records
            .iter()
            .all(|record| matches!(record.place, Place::Free));
        if !is_over {
            let remaining = self.remaining();
            self.orders.go_on_in_background();
            self.shutdown_handoff.leave(remaining);
        }
        is_over
    }

    /// Everything has finished: hands over what remains, the transport included.
    pub(super) fn leave(mut self) {
        let remaining = self.remaining();
        // This comes before the workers are dismissed: the shutdown takes a thread that has ended
        // before the hand-off for one that has panicked.
        self.shutdown_handoff.leave(Remaining {
            transport: Some(self.transport),
            ..remaining
        });
        dismiss(&self.orders, &self.states);
    }

    /// What remains, without the transport.
    fn remaining(&mut self) -> Remaining<Tr> {
        self.publish_gauges();
        let mut unfinished = std::mem::take(&mut self.unfinished);
        let started = self
            .records
            .iter()
            .filter(|record| !matches!(record.place, Place::Free));
        unfinished.extend(started.map(|record| record.class));
        Remaining {
            transport: None,
            idle: self.contexts.give_up(),
            unfinished,
            busy_workers: self.states.iter().filter(|state| state.out() > 0).count(),
            policy_error: self.policy.error().cloned(),
        }
    }
}

/// One of the dispatchers has ended; after the last one, all threads end.
fn dismiss<Tr: Transport>(orders: &Orders, states: &[WorkerState<Tr>]) {
    if orders.one_is_over() {
        for state in states {
            state.thread.unpark();
        }
    }
}
