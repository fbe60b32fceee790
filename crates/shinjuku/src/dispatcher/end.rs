//! The end: what never started is turned away, what runs is asked to stop, the rest is left to be reported.

use shinjuku_net::{Refusal, Transport};
use shinjuku_policy::{ClassId, Nanos, Verified, WorkerId};
use shinjuku_preempt::Idle;

use super::{Dispatcher, Place};
use crate::request::{Done, Job};

/// After the shutdown's deadline, running requests have this long to answer a last preemption.
const LAST_WORD: Nanos = Nanos::from_millis(20);

/// What the dispatcher leaves behind.
pub(crate) struct Remains<Tr: Transport> {
    pub(crate) transport: Tr,
    /// Contexts that can be handed back.
    pub(crate) idle: Vec<Idle<Job<Tr>, Done<Tr>>>,
    /// Classes of the requests that started and did not finish.
    pub(crate) unfinished: Vec<ClassId>,
    /// Workers (spares after the others) that hold a request they do not give back.
    pub(crate) blocked: Vec<usize>,
    pub(crate) policy: Verified,
}

impl<Tr: Transport> Dispatcher<Tr> {
    /// Turns away what never started, asks what runs to stop, and leaves the rest to be reported.
    pub(super) fn end(mut self) -> Remains<Tr> {
        for at in 0..self.desks.len() {
            while self.take_back(at) {}
        }
        while let Some(task) = self.policy.take_fresh(WorkerId(0)) {
            let place = std::mem::replace(&mut self.records[task.id.0 as usize].place, Place::Free);
            if let Place::Fresh(request, route) = place {
                self.statistics.refused(Refusal::ShuttingDown);
                self.transport.refuse(request, route, Refusal::ShuttingDown);
            }
        }
        let start = self.now();
        for at in 0..self.desks.len() {
            self.ask_spare(at, start);
        }
        while self.desks.iter().any(|desk| desk.out() > 0) {
            let now = self.now();
            if now.since(start) > LAST_WORD {
                break;
            }
            for at in 0..self.desks.len() {
                self.take_answers(at, now);
            }
            std::hint::spin_loop();
        }
        self.publish_gauges();
        let unfinished = self
            .records
            .iter()
            .filter(|record| !matches!(record.place, Place::Free))
            .map(|record| record.class)
            .collect();
        let blocked = (0..self.desks.len())
            .filter(|&at| self.desks[at].out() > 0)
            .collect();
        Remains {
            transport: self.transport,
            idle: self.idle,
            unfinished,
            blocked,
            policy: self.policy,
        }
    }
}
