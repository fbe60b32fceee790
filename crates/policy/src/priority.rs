//! Strict priority by class, first come, first served within a priority.
//!
//! - A class has a priority; the lower number goes first. The default is the class's number.
//! - A request runs for its class's quantum. If one that goes before it waits then, it is preempted
//!   and goes back to its place by priority and arrival. So a request waits at most one quantum for
//!   a lower priority.
//! - Low priorities can wait forever: that is the policy.
//!
//! The file is short because the queue is that of `ranked.rs`, which EDF uses as well.
//!
//! Source: Wang et al., *TailGuard*, ICDCS 2023, whose baseline PRIQ is this policy without a
//! quantum.

use alloc::boxed::Box;

use crate::ranked::{Rank, Ranked, Rule};
use crate::registry::Registered;

/// This policy in the registry.
pub const REGISTERED: Registered = Registered {
    name: "priority",
    label: "priority",
    rule: "one queue; the first class first, in order of arrival within a class",
    after: "TailGuard's PRIQ",
    preempts: true,
    needs_slo: false,
    requeues: false,
    by_class: true,
    by_flow: false,
    by_worker: false,
    build: |parameters| {
        let priorities =
            parameters.by_class(|class, parameters| Ok(parameters.priority.unwrap_or(class.0)))?;
        let rule = |(priority, quantum)| Rule {
            value: i64::from(priority),
            quantum,
        };
        let rules = priorities
            .into_iter()
            .zip(parameters.quanta())
            .map(rule)
            .collect();
        let rank: Rank = |_, priority, _| i128::from(priority);
        Ok(Box::new(Ranked::new(
            "priority",
            parameters.capacity,
            rules,
            rank,
        )?))
    },
};
