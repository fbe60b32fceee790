//! The checks behind [`Config::validate`]: ranges first, then what values must be beside each
//! other.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

use shinjuku_policy::registry;
use shinjuku_preempt::{MAX_DEPTH, PoolConfig};

use super::{ClassConfig, Config, ConfigError, LayoutKind, MechanismKind, QuantaKind};
use crate::layout::{CORES, Layout};

/// From one nanosecond to an hour.
const MICROS: RangeInclusive<f64> = 0.001..=3.6e9;

const MAX_CLASSES: usize = u16::MAX as usize;

pub(super) fn config(config: &Config, own_policies: &[&str]) -> Result<(), ConfigError> {
    numbers(config)?;
    layout(config)?;
    policy(config)?;
    quanta(config)?;
    classes(config)?;
    policy_name(config, own_policies)?;
    best_effort(config)?;
    working_dispatcher(config)?;
    let workers = Layout::plan(config)?.workers.len();
    let (least, why) = match config.has_best_effort() {
        true => (
            2 * workers,
            "two per worker, since best effort may hold half of them",
        ),
        false => (workers, "one per worker"),
    };
    if config.contexts < least {
        return Err(ConfigError::invalid(
            "contexts",
            config.contexts,
            format!("at least {least}, {why}"),
            "raise it, or lower `workers`",
        ));
    }
    Ok(())
}

fn numbers(config: &Config) -> Result<(), ConfigError> {
    let listed = Some(config.cores.workers.len()).filter(|&listed| listed > 0);
    if let Some(workers) = config.workers.or(listed) {
        let advice = "leave it out to have as many as the cores suit";
        within("workers", workers, 1..=CORES, advice)?;
    }
    let contexts = 1..=PoolConfig::MAX_CONTEXTS;
    let advice = "choose how many requests may have started and not finished";
    within("contexts", config.contexts, contexts, advice)?;
    let stack = PoolConfig::MIN_STACK / 1024..=1 << 20;
    let advice = "choose what a handler's deepest call needs; 256 suits most";
    within("stack_kib", config.stack_kib, stack, advice)?;
    let advice = "choose how many requests may wait before more are refused";
    within("queue", config.queue, 1..=1 << 24, advice)?;
    let advice = "1 suits most, 2 handlers so short that the dispatcher is waited for";
    if let Some(depth) = config.depth {
        within("depth", depth, 1..=MAX_DEPTH, advice)?;
    }
    let advice = "choose how many handlers may block in the kernel at a time";
    if let Some(spare_workers) = config.spare_workers {
        within("spare_workers", spare_workers, 0..=65535, advice)?;
    }
    let advice =
        "5 suits most; the less, the more often a worker that is only slow is taken for blocked";
    within("rescue_after_ms", config.rescue_after_ms, 0.1..=6e4, advice)?;
    let advice = "100 suits most; 0 never sleeps";
    within(
        "idle_backoff_us",
        config.idle_backoff_us,
        0.0..=3.6e9,
        advice,
    )?;
    if let Some(priority) = config.realtime_priority {
        let advice = "leave it out to have ordinary scheduling";
        within("realtime_priority", priority, 1..=99, advice)?;
    }
    if let Some(after) = config.stalls.report_after_ms {
        let advice = "10 suits services; leave it out to look for none";
        within("stalls.report_after_ms", after, 1.0..=6e4, advice)?;
    }
    let grace = config.preemption.grace_us;
    let advice = "15 suits most; 0 does not wait for the probe";
    within("preemption.grace_us", grace, 0.0..=3.6e9, advice)
}

/// Contexts that are kernel threads need the layout `threads`.
fn layout(config: &Config) -> Result<(), ConfigError> {
    let layout = match config.layout {
        LayoutKind::Inline => "\"inline\"",
        LayoutKind::Symmetric => "\"symmetric\"",
        LayoutKind::Auto | LayoutKind::Threads => return Ok(()),
    };
    if !config.context_kind.is_kernel_thread() {
        return Ok(());
    }
    Err(ConfigError::invalid(
        "layout",
        layout,
        "\"threads\", since context_kind is \"kernel-thread\"",
        "a request that has a thread of its own is stopped by a dispatcher on another; leave `layout` or \
         `context_kind` out",
    ))
}

/// Quanta cannot be raised for a special mode that is asked for by name: its cost is measured only
/// where `auto` chooses it.
fn quanta(config: &Config) -> Result<(), ConfigError> {
    let preemption = &config.preemption;
    let has_mode = matches!(
        preemption.mechanism,
        MechanismKind::Guest | MechanismKind::Dune
    );
    if preemption.quanta != QuantaKind::Raised || !has_mode {
        return Ok(());
    }
    Err(ConfigError::invalid(
        "preemption.quanta",
        "\"raised\"",
        format!(
            "\"configured\", since preemption.mechanism is \"{}\"",
            preemption.mechanism
        ),
        "leave it out, or choose preemption.mechanism = \"auto\"",
    ))
}

fn policy(config: &Config) -> Result<(), ConfigError> {
    let policy = &config.policy;
    let advice = "5 suits probes; to run to completion choose policy.kind = \"c-fcfs\"";
    within("policy.quantum_us", policy.quantum_us, MICROS, advice)?;
    let limit = policy.progress_limit;
    within(
        "policy.progress_limit",
        limit,
        1..=1_000_000,
        "16 suits most",
    )
}

fn classes(config: &Config) -> Result<(), ConfigError> {
    let count = config.class.len();
    if !(1..=MAX_CLASSES).contains(&count) {
        return Err(ConfigError::invalid(
            "class",
            format!("a list of {count}"),
            format!("a list of 1 to {MAX_CLASSES}"),
            "leave it out to have one class named `default`",
        ));
    }
    let mut seen = HashMap::with_capacity(count);
    for (number, class) in config.class.iter().enumerate() {
        let key = |field| key_of(number, class, field);
        if class.name.is_empty() {
            let advice = "name the class as statistics shall show it";
            return Err(ConfigError::invalid(
                key("name"),
                "\"\"",
                "not empty",
                advice,
            ));
        }
        if let Some(first) = seen.insert(class.name.as_str(), number) {
            return Err(ConfigError::invalid(
                key("name"),
                format!("{:?}", class.name),
                "unlike every other class's",
                format!("class[{first}] has that name: rename one of them"),
            ));
        }
        if let Some(slo) = class.slo_us {
            let advice = "choose the latency that 99 % of the class should keep";
            within(key("slo_us"), slo, MICROS, advice)?;
        }
        if let Some(quantum) = class.quantum_us {
            let advice = "leave it out to have `policy.quantum_us`";
            within(key("quantum_us"), quantum, MICROS, advice)?;
        }
        if let Some(deadline) = class.deadline_us {
            let advice = "leave it out to have none";
            within(key("deadline_us"), deadline, MICROS, advice)?;
        }
    }
    Ok(())
}

/// The policy is known.
fn policy_name(config: &Config, own_policies: &[&str]) -> Result<(), ConfigError> {
    let name = config.policy.kind.as_str();
    if own_policies.contains(&name) {
        return Ok(());
    }
    if registry::named(name).is_ok() {
        return Ok(());
    }
    let mut names: Vec<_> = registry::ALL.iter().map(|one| one.name).collect();
    names.extend(own_policies);
    Err(ConfigError::invalid(
        "policy.kind",
        format!("{name:?}"),
        format!("one of {}", names.join(", ")),
        "a policy of your own is named by `Builder::policy_with`",
    ))
}

/// Best-effort classes are some of the classes, and not all. None of their requests is staged.
fn best_effort(config: &Config) -> Result<(), ConfigError> {
    let key = "policy.best_effort";
    let names = &config.policy.best_effort;
    let classes: Vec<_> = config.class.iter().map(|one| one.name.as_str()).collect();
    for (at, name) in names.iter().enumerate() {
        if !classes.contains(&name.as_str()) || names[..at].contains(name) {
            return Err(ConfigError::invalid(
                key,
                format!("{names:?}"),
                format!("some of the classes, each once: {}", classes.join(", ")),
                format!("mend or leave out {name:?}"),
            ));
        }
    }
    if names.len() == classes.len() {
        let advice = "leave out the class that the others are to give way to";
        return Err(ConfigError::invalid(
            key,
            format!("{names:?}"),
            "not all of the classes",
            advice,
        ));
    }
    match config.depth {
        Some(depth) if depth > 1 && !names.is_empty() => Err(ConfigError::invalid(
            "depth",
            depth,
            "1, since policy.best_effort names classes",
            "a best-effort request that is staged would be ahead of what comes later; leave it out",
        )),
        _ => Ok(()),
    }
}

/// A dispatcher that works has what it takes to stop in time.
fn working_dispatcher(config: &Config) -> Result<(), ConfigError> {
    if !config.dispatcher.works {
        return Ok(());
    }
    let mechanism = config.preemption.mechanism;
    let policy = registry::named(config.policy.kind.as_str());
    let (why_not, advice) = if config.context_kind.is_kernel_thread() {
        (
            "context_kind is \"kernel-thread\"",
            "a request's own thread is not the dispatcher's; leave one of the two out",
        )
    } else if !matches!(config.layout, LayoutKind::Auto | LayoutKind::Threads) {
        (
            "layout is not \"threads\"",
            "in the other layouts every thread serves anyway; leave one of the two out",
        )
    } else if mechanism != MechanismKind::Probe {
        (
            "preemption.mechanism is not \"probe\"",
            "what runs on the dispatcher's thread gives way at its own probes alone; choose \"probe\"",
        )
    } else if !policy.is_ok_and(|policy| policy.preempts) {
        (
            "policy.kind is none of c-pre-sq, c-pre-mq, edf and priority",
            "what it has begun goes on at any worker; choose one of these",
        )
    } else if config.has_best_effort() {
        (
            "policy.best_effort names classes",
            "what it has begun of them would keep a context until all else is idle; leave one of the two out",
        )
    } else {
        return Ok(());
    };
    Err(ConfigError::invalid(
        "dispatcher.works",
        true,
        format!("false, since {why_not}"),
        advice,
    ))
}

/// `class[1].slo_us (class "get")`
fn key_of(number: usize, class: &ClassConfig, field: &str) -> String {
    if class.name.is_empty() {
        format!("class[{number}].{field}")
    } else {
        format!("class[{number}].{field} (class {:?})", class.name)
    }
}

fn within<T: PartialOrd + fmt::Display>(
    key: impl Into<String>,
    value: T,
    allowed: RangeInclusive<T>,
    advice: &str,
) -> Result<(), ConfigError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let allowed = format!("{} to {}", allowed.start(), allowed.end());
    Err(ConfigError::invalid(key, value, allowed, advice))
}
