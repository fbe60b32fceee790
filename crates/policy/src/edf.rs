//! EDF: earliest deadline first.
//!
//! - Each class has a *budget*: a request's deadline is its arrival plus its class's budget, which
//!   is the class's SLO by default. A budget may be negative: the request is late when it arrives.
//!   A request that brings a deadline keeps that one ([`Policy::arrive_due`](crate::Policy)).
//! - A budget that is learnt applies to requests that arrive from then on.
//! - Next is the waiting request with the earliest deadline; ties go by order of arrival.
//! - A request runs for its class's quantum. If others wait then, it is preempted and goes back to
//!   its place by deadline: a request with an earlier deadline that arrived meanwhile goes first.
//!
//! Source: Wang et al., *TailGuard: Tail Latency SLO Guaranteed Task Scheduling for Data-Intensive
//! User-Facing Applications*, ICDCS 2023. Its T-EDFQ is this policy without a quantum. Its TF-EDFQ
//! sets the budget: the SLO less what a query of that fan-out needs in an empty system. The client
//! knows the fan-out, so there the deadline comes with the request (`shinjuku-fanout`).

use alloc::boxed::Box;

use crate::Nanos;
use crate::ranked::{Rank, Ranked, Rule};
use crate::registry::Registered;

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "edf",
    label: "EDF",
    rule: "one queue; the earliest deadline (arrival + SLO) first",
    after: "TailGuard",
    preempts: true,
    needs_slo: true,
    requeues: false,
    by_class: true,
    by_flow: false,
    by_worker: false,
    build: |parameters| {
        let budgets = parameters.by_class(|class, own| match own.budget_ns {
            Some(budget) => Ok(budget),
            None => parameters.slo_of(class, own).map(budget),
        })?;
        let rule = |(value, quantum)| Rule { value, quantum };
        let rules = budgets
            .into_iter()
            .zip(parameters.quanta())
            .map(rule)
            .collect();
        let deadline: Rank = |task, budget, due| match due {
            Some(due) => i128::from(due.0),
            None => i128::from(task.arrival.0) + i128::from(budget),
        };
        let policy = Ranked::new("EDF", parameters.capacity, rules, deadline)?;
        Ok(Box::new(policy.with_slos_as(budget)))
    },
};

/// Deadline minus arrival of a class with this SLO.
fn budget(slo: Nanos) -> i64 {
    i64::try_from(slo.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClassId, ClassParameters, FlowId, Parameters, Task, TaskId, Want, WorkerId};

    fn task(id: u32, arrival: u64) -> Task {
        Task {
            id: TaskId(id),
            class: ClassId(0),
            flow: FlowId(0),
            arrival: Nanos(arrival),
            started: false,
        }
    }

    #[test]
    fn a_deadline_that_a_request_brings_goes_before_its_classs_and_outlasts_a_preemption() {
        let mut parameters = Parameters::new(8, 1);
        parameters.classes = alloc::vec![ClassParameters::with_slo(Nanos(100))];
        let mut policy = (REGISTERED.build)(&parameters).unwrap();
        let worker = WorkerId(0);
        policy.arrive(task(0, 10)).unwrap(); // due at 110
        policy.arrive_due(task(1, 11), Nanos(200)).unwrap();
        policy.arrive_due(task(2, 12), Nanos(0)).unwrap();
        policy.arrive_due(task(3, 13), Nanos(109)).unwrap();
        let late = policy.next(worker, Nanos(13), Want::Any).unwrap();
        assert_eq!(late.id, TaskId(2));
        let started = Task {
            started: true,
            ..late
        };
        policy.preempted(started, worker, Nanos(14));
        let order: alloc::vec::Vec<_> =
            core::iter::from_fn(|| policy.next(worker, Nanos(14), Want::Any))
                .map(|task| task.id.0)
                .collect();
        assert_eq!(order, [2, 3, 0, 1]);
    }
}
