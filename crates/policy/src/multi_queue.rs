//! c-PRE-MQ: centralised, preemptive, a queue per request class.
//!
//! - A queue per class, each in order of arrival; a class has an SLO, a quantum and a place for its
//!   preempted requests.
//! - Next is the class whose *head* has waited longest in proportion to its SLO: the largest (now -
//!   arrival) / SLO, compared exactly, ties to the lower class number. A preempted request keeps
//!   its arrival time, so all the time since then counts for it.
//! - With [`Want::StartedOnly`] the head is the first of the class that has run already.
//! - A class number beyond the last class counts as the last class. (The runtime checks classes
//!   before.)
//! - The optional bound on a queue counts all requests that wait in it, preempted ones included; it
//!   is checked only when a request arrives.
//!
//! Source: Kaffes et al., *Shinjuku*, NSDI 2019, section 3.4: its multi queue (MQ) policy, for
//! which it names BVT (Duda and Cheriton, SOSP 1999) as the inspiration; the rule is as in its
//! published dispatcher.
//!
//! # How often a waiting head is passed over
//!
//! Let `h` be the head of class i, arrived at `a_h`. If a request of class j, arrived at `a_j`, is
//! picked over it at time t, then (t - a_j) / S_j >= (t - a_h) / S_i, that is
//!
//! ```text
//!   a_j <= t - (S_j / S_i) (t - a_h) = a_h + (1 - S_j / S_i) (t - a_h)
//! ```
//!
//! If S_j >= S_i, only requests that arrived no later than `h` pass it. If S_j < S_i, only those
//! that arrived in the first (1 - S_j / S_i) of the time since `h` arrived do. Each passes `h` at
//! most once per quantum that it needs. So, from when `h` becomes head until t, class j passes it
//! at most
//!
//! ```text
//!   q_j * N_j(x_j)    times, where x_j = a_h + max(0, 1 - S_j / S_i) (t - a_h),
//! ```
//!
//! N_j(x) counts the requests of class j that arrived by x and had not finished when `h` became
//! head, and q_j is the most quanta that one of them needs. `h` runs when this backlog has run.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt::Write;

use crate::queue::Queues;
use crate::registry::Registered;
use crate::{ClassId, Full, Nanos, ParameterError, Policy, Requeue, Task, TaskId, Want, WorkerId};

/// The SLO, quantum and place for preempted requests of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClassRule {
    /// Service-level objective on latency. Only the ratio between classes matters.
    pub slo: Nanos,
    /// How long a request runs before it is preempted if others wait; [`Nanos::MAX`]: to
    /// completion.
    pub quantum: Nanos,
    /// Where a preempted request goes.
    pub requeue: Requeue,
}

impl ClassRule {
    /// A class with these times, whose preempted requests go to the tail.
    #[must_use]
    pub const fn new(slo: Nanos, quantum: Nanos) -> Self {
        Self {
            slo,
            quantum,
            requeue: Requeue::Tail,
        }
    }

    /// Sets [`requeue`](field@Self::requeue).
    #[must_use]
    pub const fn requeue(self, requeue: Requeue) -> Self {
        Self { requeue, ..self }
    }
}

/// A queue per class, picked by waiting time in proportion to the SLO (c-PRE-MQ). Work conserving.
pub struct MultiQueue {
    queues: Queues,
    classes: Box<[ClassRule]>,
    bound: usize,
}

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "c-pre-mq",
    label: "c-PRE-MQ",
    rule: "a queue per class; first the class that waited longest in proportion to its SLO",
    after: "Shinjuku",
    preempts: true,
    needs_slo: true,
    requeues: true,
    by_class: true,
    by_flow: false,
    by_worker: false,
    build: |parameters| {
        let rules = parameters.by_class(|class, own| {
            Ok(ClassRule {
                slo: parameters.slo_of(class, own)?,
                quantum: own.quantum.unwrap_or(parameters.quantum),
                requeue: own.requeue.or(parameters.requeue).unwrap_or_default(),
            })
        })?;
        Ok(Box::new(MultiQueue::new(parameters.capacity, &rules)?))
    },
};

impl MultiQueue {
    /// Queues for `capacity` requests in all, with task slots below `capacity`, and a class per
    /// rule.
    ///
    /// # Errors
    /// [`ParameterError::Capacity`], [`ParameterError::Classes`], [`ParameterError::ZeroSlo`],
    /// [`ParameterError::ZeroQuantum`].
    pub fn new(capacity: usize, classes: &[ClassRule]) -> Result<Self, ParameterError> {
        ParameterError::check_capacity(capacity)?;
        ParameterError::check_classes(classes.len())?;
        for (class, rule) in (0..).map(ClassId).zip(classes) {
            if rule.slo == Nanos(0) {
                return Err(ParameterError::ZeroSlo { class });
            }
            if rule.quantum == Nanos(0) {
                return Err(ParameterError::ZeroQuantum { class });
            }
        }
        let queues = Queues::new(capacity, classes.len());
        Ok(Self {
            queues,
            classes: classes.into(),
            bound: capacity,
        })
    }

    /// Refuses arrivals of a class of which `bound` requests wait already.
    ///
    /// # Errors
    /// [`ParameterError::ZeroQueueBound`].
    pub fn with_queue_bound(self, bound: usize) -> Result<Self, ParameterError> {
        ParameterError::check_queue_bound(bound)?;
        Ok(Self { bound, ..self })
    }

    fn queue_of(&self, task: &Task) -> usize {
        usize::from(task.class.0).min(self.classes.len() - 1)
    }

    /// The class to serve now, by the ratio rule.
    fn most_urgent(&self, now: Nanos, want: Want) -> Option<usize> {
        let mut most: Option<(usize, u128, u128)> = None;
        for (class, rule) in self.classes.iter().enumerate() {
            let Some(head) = self.queues.first(class, want) else {
                continue;
            };
            let waited = u128::from(now.since(head.arrival).0);
            let slo = u128::from(rule.slo.0);
            // waited / slo > most_waited / most_slo, without the division.
            if most.is_none_or(|(_, most_waited, most_slo)| waited * most_slo > most_waited * slo) {
                most = Some((class, waited, slo));
            }
        }
        most.map(|(class, ..)| class)
    }
}

impl Policy for MultiQueue {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        let queue = self.queue_of(&task);
        if !self.queues.is_free(task.id) || self.queues.len(queue, Want::Any) >= self.bound {
            return Err(Full);
        }
        self.queues.push_back(queue, task);
        Ok(())
    }

    fn preempted(&mut self, task: Task, _worker: WorkerId, _now: Nanos) {
        let queue = self.queue_of(&task);
        match self.classes[queue].requeue {
            Requeue::Tail => self.queues.push_back(queue, task),
            Requeue::Head => self.queues.push_front(queue, task),
        }
    }

    fn returned(&mut self, task: Task, _worker: WorkerId) {
        self.queues.put_back(self.queue_of(&task), task);
    }

    fn next(&mut self, _worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
        let class = self.most_urgent(now, want)?;
        self.queues.pop(class, want)
    }

    fn remove(&mut self, id: TaskId, _worker: WorkerId) -> Option<Task> {
        self.queues.remove(id)
    }

    fn quantum(&self, task: &Task) -> Option<Nanos> {
        let quantum = self.classes[self.queue_of(task)].quantum;
        (quantum != Nanos::MAX).then_some(quantum)
    }

    fn set_slo(&mut self, class: ClassId, slo: Nanos) {
        if let Some(rule) = self.classes.get_mut(usize::from(class.0)) {
            rule.slo = slo;
        }
    }

    fn set_requeue(&mut self, class: ClassId, requeue: Requeue) {
        if let Some(rule) = self.classes.get_mut(usize::from(class.0)) {
            rule.requeue = requeue;
        }
    }

    fn waiting(&self, _worker: WorkerId, want: Want) -> usize {
        self.queues.total(want)
    }

    fn len(&self) -> usize {
        self.queues.total(Want::Any)
    }

    /// `c-PRE-MQ(50us/5us, 1ms/10us)`: SLO and quantum of each class, as they are now.
    fn name(&self) -> String {
        let mut name = String::from("c-PRE-MQ(");
        for (class, rule) in self.classes.iter().enumerate() {
            let comma = if class == 0 { "" } else { ", " };
            let head = if rule.requeue == Requeue::Head {
                " head"
            } else {
                ""
            };
            // Writing to a String cannot fail.
            let _ = write!(name, "{comma}{}/{}{head}", rule.slo, rule.quantum);
        }
        name.push(')');
        name
    }
}
