//! A dispatcher that serves requests itself when it has nothing else to do (Concord, SOSP 2023).
//!
//! ```text
//!   no message, no worker free, a fresh request waits ─▶ switch, run ─┬─▶ finished
//!                                                                     ├─▶ a slice is over ────┐
//!                                 a message: a worker has nothing ────┴─▶ next probe ─▶ saved ┴─▶ waits
//! ```
//!
//! It runs fresh requests only, and workers go on with what it has begun. Messages wait in its
//! inbox meanwhile. It leaves at a probe, as a worker that is preempted, but sends nothing.

use rand::RngExt;
use shinjuku_policy::{Nanos, TaskId, WorkerId};

use super::{Message, NONE, Server};
use crate::Outcome;

/// What the dispatcher serves.
#[derive(Clone, Copy)]
pub(super) struct Own {
    id: u32,
    /// When it takes the request up.
    start_ns: u64,
    /// When the request's own instructions begin.
    from_ns: u64,
    /// When the dispatcher leaves it, or it has finished.
    pub(super) until_ns: u64,
}

/// Policies that preempt have one place for all workers, and the dispatcher.
const ANY: WorkerId = WorkerId(0);

impl Server {
    /// How many requests the dispatcher has begun to serve itself.
    #[must_use]
    pub fn run_by_dispatcher(&self) -> u64 {
        self.run_by_dispatcher
    }

    /// Has the dispatcher serve a fresh request, if there is one and it has nothing else to do.
    pub(super) fn work_itself(&mut self, now: u64) {
        let slice_ns = self.shape.works_ns;
        let is_wanted = slice_ns > 0
            && self.own.is_none()
            && self.inbox.is_empty()
            && self.idle_count == 0
            && self.policy.len() > self.policy.waiting_started();
        if !is_wanted {
            return;
        }
        let Some(task) = self.policy.take_fresh(ANY) else {
            return;
        };
        let start_ns = self.dispatcher_free_ns.max(now);
        let from_ns = start_ns + self.shape.overheads.switch_ns;
        let stop_ns = from_ns + slice_ns + self.until_probe();
        let finish_ns = from_ns + self.slots[task.id.0 as usize].remaining_ns;
        self.own = Some(Own {
            id: task.id.0,
            start_ns,
            from_ns,
            until_ns: finish_ns.min(stop_ns),
        });
    }

    /// When the dispatcher can do something else.
    pub(super) fn dispatcher_free_from(&self) -> u64 {
        let own_ns = self.own.map_or(0, |own| own.until_ns);
        self.dispatcher_free_ns.max(own_ns)
    }

    /// The time until the request's code looks.
    fn until_probe(&mut self) -> u64 {
        match self.shape.overheads.probe_interval_ns {
            0 => 0,
            interval => self.random.random_range(0..=interval),
        }
    }

    /// A message has come while the dispatcher serves: if it leaves a worker with nothing, the
    /// dispatcher leaves at the next probe.
    pub(super) fn look_up(&mut self, now: u64, message: Message) {
        let (Message::Finished(_, at) | Message::Preempted(_, at)) = message else {
            return;
        };
        let worker = &self.workers[at];
        let Some(mut own) = self.own else {
            return;
        };
        if worker.running != NONE || !worker.staged.is_empty() {
            return;
        }
        if now < own.start_ns {
            // It has not begun.
            self.policy.returned(TaskId(own.id), ANY);
            self.own = None;
            return;
        }
        own.until_ns = own.until_ns.min(now + self.until_probe());
        self.own = Some(own);
    }

    /// The dispatcher leaves its request, or has finished it.
    pub(super) fn leave_own(&mut self, now: u64) -> Option<Outcome> {
        let own = self.own.take()?;
        self.run_by_dispatcher += 1;
        let slot = &mut self.slots[own.id as usize];
        slot.remaining_ns -= now.saturating_sub(own.from_ns);
        if slot.remaining_ns == 0 {
            let request = slot.request;
            let ran = Nanos(request.service_ns);
            self.dispatcher_free_ns = self.dispatcher_free_ns.max(now);
            self.policy.finished_after(TaskId(own.id), ANY, ran);
            self.free.push(own.id);
            self.go_on(now);
            return Some(Outcome::Finished {
                request,
                at_ns: now,
            });
        }
        self.preemptions += 1;
        let receive_ns = self.shape.overheads.preempt_receive_ns;
        self.dispatcher_free_ns = self.dispatcher_free_ns.max(now) + receive_ns;
        let saved = Nanos(self.dispatcher_free_ns);
        self.preempted(own.id, ANY, saved);
        self.go_on(now);
        None
    }

    /// Messages are next, or another request.
    fn go_on(&mut self, now: u64) {
        if self.inbox.is_empty() {
            self.place(now);
            self.work_itself(now);
        }
    }
}
