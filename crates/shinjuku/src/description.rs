//! The line that a runtime logs at start: what it runs on, and what was chosen for it.

use shinjuku_policy::{Nanos, Verified};

use crate::config::{Config, ContextKind};
use crate::layout::Layout;
use crate::learned::Learned;

/// The line that is logged at start.
pub(crate) fn describe(
    config: &Config,
    layout: &Layout,
    works: Option<Nanos>,
    policy: &str,
    preemption: &str,
) -> String {
    let threads = match layout.inline {
        true => layout.to_string(),
        false => format!("{} workers", layout.workers.len()),
    };
    let why = match layout.why {
        Some(why) => format!(" (auto: {why})"),
        None => " (as configured)".to_owned(),
    };
    let depth = match (depth(config, layout), config.depth) {
        (1, _) if layout.inline => String::new(),
        (depth, Some(_)) => format!(" at depth {depth} (as configured)"),
        (1, None) => String::new(),
        (depth, None) => format!(" at depth {depth} (auto)"),
    };
    let quanta = match config.preemption.raises_quanta() {
        true => "auto",
        false => "as configured",
    };
    let kind = match config.context_kind {
        ContextKind::Stack => "",
        ContextKind::KernelThread => " that are kernel threads",
    };
    let works = works.map_or_else(String::new, |slice| {
        format!(
            "; the dispatcher works, {:.1} us at a time",
            slice.as_micros_f64()
        )
    });
    format!(
        "{threads}{why}{depth}, {} contexts{kind}, policy {policy}; preemption {preemption}; quanta {quanta}{works}",
        config.contexts
    )
}

/// The policy by its name, with what it learns.
pub(crate) fn policy_in_words(policy: Option<&Verified>, learned: Option<&Learned>) -> String {
    let name = policy.map_or("", Verified::name);
    match learned {
        Some(learned) => format!("{name}, which learns {}", learned.subjects()),
        None => name.to_owned(),
    }
}

/// How many requests a worker is given at a time. A loop takes what it runs.
pub(crate) fn depth(config: &Config, layout: &Layout) -> usize {
    match layout.inline {
        true => 1,
        false => config.depth_at(layout.workers.len()),
    }
}
