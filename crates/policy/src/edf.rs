//! EDF: earliest deadline first.
//!
//! - Each class has a *budget*: a request's deadline is its arrival plus its class's budget, which
//!   is the class's SLO by default. A budget may be negative: the request is late when it arrives.
//! - Next is the waiting request with the earliest deadline; ties go by order of arrival.
//! - A request runs for its class's quantum. If others wait then, it is preempted and goes back to
//!   its place by deadline: a request with an earlier deadline that arrived meanwhile goes first.
//!
//! Source: Wang et al., *TailGuard: Tail Latency SLO Guaranteed Task Scheduling for Data-Intensive
//! User-Facing Applications*, ICDCS 2023. Its T-EDFQ is this policy without a quantum. Its TF-EDFQ
//! sets the budget: the SLO less what a query of that fan-out needs in an empty system.

use alloc::boxed::Box;

use crate::ParameterError;
use crate::ranked::{Ranked, Rule};
use crate::registry::Registered;

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "edf",
    label: "EDF",
    rule: "one queue; the earliest deadline (arrival + SLO) first",
    after: "TailGuard",
    preempts: true,
    needs_slo: true,
    build: |parameters| {
        let budgets = parameters.by_class(|class, parameters| {
            let of_slo = || {
                parameters
                    .slo
                    .map(|slo| i64::try_from(slo.0).unwrap_or(i64::MAX))
            };
            let budget = parameters.budget_ns.or_else(of_slo);
            budget.ok_or(ParameterError::MissingSlo { class })
        })?;
        let rule = |(value, quantum)| Rule { value, quantum };
        let rules = budgets
            .into_iter()
            .zip(parameters.quanta())
            .map(rule)
            .collect();
        let deadline = |task: &crate::Task, budget| i128::from(task.arrival.0) + i128::from(budget);
        Ok(Box::new(Ranked::new(
            "EDF",
            parameters.capacity,
            rules,
            deadline,
        )?))
    },
};
