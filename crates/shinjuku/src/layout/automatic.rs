//! Which layout `auto` means, and why.
//!
//! The first row that applies decides:
//!
//! | asked for, or found | layout |
//! |---|---|
//! | one core, nothing said of workers and cores, contexts that are stacks | `inline` |
//! | something that only a dispatcher's own thread can do | `threads` |
//! | a policy of the program's own, or that tells workers apart | `threads` |
//! | so many workers that a core is left for the dispatcher, or threads that share cores | `threads` |
//! | fewer than eight cores | `symmetric` |
//! | else | `threads` |
//!
//! A core that only dispatches is half of two cores and a quarter of four. On two, `symmetric` has
//! 1.8 times the capacity of `threads`, and a lower p99 at every load (docs/measurements.md). From
//! some number on, one queue for all cores is worth a core. That number has not been measured:
//! eight is a guess.

use super::machine::Machine;
use crate::config::{Config, CoresConfig, LayoutKind, MechanismKind};

/// From so many cores on, one of them is the dispatcher's.
const MANY: usize = 8;

/// A layout, and why it was chosen.
pub(super) type Choice = (LayoutKind, &'static str);

/// The layout that `auto` means with `config` on this machine.
pub(super) fn choose(machine: &Machine, config: &Config) -> Choice {
    let threads = |why| (LayoutKind::Threads, why);
    if has_only_core(machine, config) && !config.context_kind.is_kernel_thread() {
        return (LayoutKind::Inline, "there is one core");
    }
    if let Some(why) = needs_dispatcher(config).or_else(|| is_about_workers(config)) {
        return threads(why);
    }
    if let Some(why) = has_room_for_dispatcher(machine, config) {
        return threads(why);
    }
    match machine.allowed.len().min(machine.parallelism) {
        MANY.. => threads("one core of many is for the dispatcher"),
        _ => (
            LayoutKind::Symmetric,
            "on few cores none is spared for a dispatcher",
        ),
    }
}

/// What `config` asks for that only a dispatcher with a thread of its own can do, or does at a
/// fraction of the cost.
pub(crate) fn needs_dispatcher(config: &Config) -> Option<&'static str> {
    let is_for_dispatcher = matches!(
        config.preemption.mechanism,
        MechanismKind::Guest | MechanismKind::Dune
    );
    let is_by_entries = config.preemption.mechanism == MechanismKind::CompiledProbe;
    if config.cores.dispatcher.is_some() {
        Some("`cores.dispatcher` names a core for one")
    } else if config.dispatcher.works {
        Some("`dispatcher.works` is for one that has a thread")
    } else if config.context_kind.is_kernel_thread() {
        Some("a dispatcher stops contexts that are kernel threads")
    } else if is_for_dispatcher {
        Some("the mechanism takes a dispatcher that asks")
    } else if is_by_entries {
        Some("a dispatcher raises the gate of compiled probes without a signal")
    } else if config.depth.is_some_and(|depth| depth > 1) {
        Some("`depth` is of requests that a dispatcher stages")
    } else {
        None
    }
}

/// Why the policy has to see all workers.
fn is_about_workers(config: &Config) -> Option<&'static str> {
    match config.policy.kind.registered() {
        None => Some("the program's own policy sees all requests so"),
        Some(policy) => policy
            .by_worker
            .then_some("the policy tells workers apart, so it has to see them all"),
    }
}

/// Whether the process may use one core only, and `config` says nothing of workers and cores.
pub(super) fn has_only_core(machine: &Machine, config: &Config) -> bool {
    machine.allowed.len() == 1 && config.workers.is_none() && config.cores == CoresConfig::default()
}

/// Where workers are given: why there is room for a dispatcher beside them.
fn has_room_for_dispatcher(machine: &Machine, config: &Config) -> Option<&'static str> {
    let listed = &config.cores.workers;
    let is_listed = !listed.is_empty();
    let workers = config.workers.or(is_listed.then_some(listed.len()))?;
    let is_free = |core: &&usize| !listed.contains(core);
    let free = machine.allowed.iter().filter(is_free).count();
    if config.cores.share {
        Some("so many workers share cores")
    } else if free > workers.saturating_sub(listed.len()) {
        Some("the workers given leave a core for the dispatcher")
    } else {
        None
    }
}
