//! The tests that every layout passes, and what all of the tests use.

mod best_effort;
mod misuse;
mod progress;
mod refusals;
mod serving;
mod shutdown;

use std::collections::HashSet;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::net::{Failure, Refusal};
use shinjuku::policy::{
    CFcfs, ClassId, Full, Nanos, ParameterError, Parameters, Policy, Requeue, Task, TaskId, Want,
    WorkerId, registry,
};
use shinjuku::{
    ClassConfig, Config, ContextKind, HardPreemption, LayoutKind, MechanismKind, RequestContext,
    RequestHandler, Runtime, SubmitOptions, TicketError, handler_fn, preempt_point,
    without_preemption,
};
pub use shinjuku_preempt::in_context;
use shinjuku_tests_support::process::{must_pass, this_test};
use shinjuku_tests_support::{PATIENCE, wait_for};

pub type Job = Box<dyn FnOnce() -> u64 + Send>;

/// The layout of the module that this is part of.
fn layout() -> LayoutKind {
    match module_path!() {
        "runtime::inline::suite" => LayoutKind::Inline,
        "runtime::symmetric::suite" => LayoutKind::Symmetric,
        _ => LayoutKind::Threads,
    }
}

/// Contexts that are kernel threads are stopped without the token.
pub fn on_kernel_threads() -> bool {
    module_path!().starts_with("runtime::kernel_threads")
}

/// Tests run on whatever cores there are, several at a time.
pub fn config(workers: usize, mechanism: MechanismKind) -> Config {
    let mut config = Config::default()
        .layout(layout())
        .workers((layout() != LayoutKind::Inline).then_some(workers))
        .contexts(16)
        .spare_workers(4);
    if on_kernel_threads() {
        config.context_kind = ContextKind::KernelThread;
    }
    config.cores.share = true;
    config.preemption.mechanism = mechanism;
    config.policy.quantum_us = 100.0;
    config
}

pub fn token() -> HardPreemption {
    // SAFETY: the tests' handlers rely on nothing that the token's contract excludes.
    unsafe { HardPreemption::allow() }
}

pub fn jobs(config: Config) -> Runtime<Job, u64> {
    let builder = Runtime::builder(handler_fn(|job: Job| job())).config(config);
    let builder = match on_kernel_threads() {
        true => builder,
        false => builder.allow_hard_preemption(token()),
    };
    builder.start().unwrap()
}

pub fn spin_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        preempt_point();
    }
}
