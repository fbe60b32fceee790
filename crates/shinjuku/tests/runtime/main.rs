//! The runtime from outside: requests submitted in this process.
#![allow(missing_docs)]

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
    CFcfs, ClassId, Full, Nanos, Policy, Requeue, Task, TaskId, Want, WorkerId,
};
use shinjuku::{
    ClassConfig, Config, HardPreemption, MechanismKind, PolicyKind, RequestContext, RequestHandler,
    Runtime, SubmitOptions, TicketError, handler_fn, in_context, preempt_point, without_preemption,
};

const PATIENCE: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce() -> u64 + Send>;

/// Tests run on whatever cores there are, several at a time.
fn config(workers: usize, mechanism: MechanismKind) -> Config {
    let mut config = Config {
        workers: Some(workers),
        contexts: 16,
        spare_workers: Some(4),
        ..Config::default()
    };
    config.cores.share = true;
    config.preemption.mechanism = mechanism;
    config.policy.quantum_us = 100.0;
    config
}

fn token() -> HardPreemption {
    // SAFETY: the tests' handlers rely on nothing that the token's contract excludes.
    unsafe { HardPreemption::allow() }
}

fn jobs(config: Config) -> Runtime<impl RequestHandler<Request = Job, Reply = u64>> {
    Runtime::builder(handler_fn(|job: Job| job()))
        .config(config)
        .allow_hard_preemption(token())
        .start()
        .unwrap()
}

fn spin_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        preempt_point();
    }
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_micros(200));
    }
}
