//! The dispatcher's loop: takes requests in, and says which worker runs.
//!
//! After start it takes no memory. Its system calls for a request are the source's and the worker's
//! waking; for one that is preempted, also those that set the worker's priority; and setting the
//! timer, once in a threshold at most.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Thread};
use std::time::Duration;

use shinjuku_preempt::SchedulingClass;

use super::switcher::Timer;
use super::worker::{Control, NO_WORKER, Slots};
use super::{ServerReport, Source};

/// How long the dispatcher sleeps when all workers do, each with a request.
const ALL_SLEEP: Duration = Duration::from_micros(100);

/// What the dispatcher knows of a worker.
pub(super) struct Worker {
    pub(super) tid: u32,
    thread: Thread,
    /// Whether it has the priority of one that may run.
    raised: bool,
}

impl Worker {
    pub(super) fn new(tid: u32, thread: Thread) -> Self {
        Self {
            tid,
            thread,
            raised: true,
        }
    }
}

pub(super) struct Dispatcher<S: Source> {
    pub(super) control: Arc<Control>,
    pub(super) timer: Option<Arc<Timer>>,
    pub(super) workers: Vec<Worker>,
    pub(super) slots: Arc<Slots<S::Request>>,
    /// Preempted workers' class, and that of the one that may run.
    pub(super) classes: [SchedulingClass; 2],
    /// Workers without a request.
    pub(super) idle: Vec<usize>,
    /// Workers with a request that do not have the priority to run, in the order in which they
    /// lost it.
    pub(super) outstanding: VecDeque<usize>,
    pub(super) source: S,
    pub(super) report: ServerReport,
}

impl<S: Source> Dispatcher<S> {
    /// Serves until it is told to end.
    pub(super) fn serve(mut self) -> ServerReport {
        while !self.control.dispatcher_ends.load(Ordering::Acquire) {
            self.collect();
            let Some(&worker) = self.idle.last() else {
                self.resume();
                continue;
            };
            // While it waits, preempted workers run.
            let request = self.source.poll().or_else(|| self.source.wait());
            if let Some(request) = request {
                self.idle.pop();
                self.give(worker, request);
            }
        }
        self.report
    }

    /// Outstanding workers that have finished meanwhile are idle.
    fn collect(&mut self) {
        for _ in 0..self.outstanding.len() {
            let Some(worker) = self.outstanding.pop_front() else {
                return;
            };
            match self.is_busy(worker) {
                true => self.outstanding.push_back(worker),
                false => self.idle.push(worker),
            }
        }
    }

    fn is_busy(&self, worker: usize) -> bool {
        self.control.states[worker].busy.load(Ordering::Acquire)
    }

    /// Gives an idle worker a request. It runs before this returns, until it has finished, sleeps,
    /// or has lost its priority.
    fn give(&mut self, worker: usize, request: S::Request) {
        self.report.requests += 1;
        *self.slots.slot(worker) = Some(request);
        let state = &self.control.states[worker];
        state.busy.store(true, Ordering::Release);
        self.let_run(worker);
    }

    /// No worker is idle: the one that has waited longest goes on.
    fn resume(&mut self) {
        if let Some(worker) = self.outstanding.pop_front() {
            self.report.resumed += 1;
            let slept = self.let_run(worker);
            if slept {
                thread::sleep(ALL_SLEEP);
            }
        }
    }

    /// Whether the worker sleeps within its request.
    fn let_run(&mut self, worker: usize) -> bool {
        let [preempted, allowed] = self.classes;
        let state = &self.control.states[worker];
        state.preempted.store(false, Ordering::Release);
        self.control.current.store(worker, Ordering::Release);
        if let Some(timer) = &self.timer {
            timer.begin();
        }
        let of = &mut self.workers[worker];
        if !of.raised {
            // It was permitted when the threads began, here and below.
            let _ = allowed.give_to(of.tid);
            of.raised = true;
        }
        of.thread.unpark();
        // Here the worker has run.
        self.control.current.store(NO_WORKER, Ordering::Release);
        let was_preempted = state.preempted.load(Ordering::Acquire);
        if !state.busy.load(Ordering::Acquire) {
            of.raised = !was_preempted;
            self.idle.push(worker);
            return false;
        }
        if !was_preempted {
            let _ = preempted.give_to(of.tid);
        }
        of.raised = false;
        self.report.preemptions += u64::from(was_preempted);
        self.outstanding.push_back(worker);
        !was_preempted
    }
}
