//! What holds where dispatcher and workers have threads of their own: several workers, requests staged at them, and a
//! dispatcher that sees whether anybody waits before it preempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use shinjuku::net::Refusal;
use shinjuku::policy::ClassId;
use shinjuku::{
    Config, MechanismKind, PolicyKind, RequestContext, RequestHandler, Runtime, SubmitOptions,
    TicketError,
};

use super::suite::{Job, PATIENCE, config, jobs, spin_for, wait_for};

#[test]
fn nothing_is_preempted_while_nothing_waits() {
    let runtime = jobs(config(1, MechanismKind::Escalation));
    let ticket = runtime.handle().submit(
        ClassId(0),
        Box::new(|| {
            spin_for(Duration::from_millis(50));
            1
        }),
    );
    assert_eq!(ticket.unwrap().wait(), Ok(1));
    let preemptions = runtime.statistics().preemptions;
    assert_eq!((preemptions.requested, preemptions.taken()), (0, 0));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_staged_request_does_not_outlive_its_deadline() {
    let mut config = config(1, MechanismKind::None);
    config.depth = 2;
    let runtime = jobs(config);
    let handle = runtime.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let long = handle.submit(
        ClassId(0),
        Box::new(move || {
            wait_for("the end", || theirs.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let options = SubmitOptions::new(ClassId(0)).deadline(Duration::from_millis(5));
    let staged = handle
        .submit_with(options, Box::new(|| 2u64) as Job)
        .unwrap();
    std::thread::sleep(Duration::from_millis(60));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(
        staged.wait(),
        Err(TicketError::Refused(Refusal::DeadlinePassed))
    );
    assert_eq!(long.unwrap().wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_panic_on_a_workers_thread_is_an_error_that_names_it() {
    struct PanicsPerCore;
    impl RequestHandler for PanicsPerCore {
        type Request = ();
        type Reply = ();
        type PerCore = ();
        fn init_per_core(&self, worker: usize) {
            assert!(worker < 1, "on purpose");
        }
        fn handle_request(&self, (): (), _: &RequestContext<'_, ()>) {}
    }
    let error = Runtime::builder(PanicsPerCore)
        .config(config(2, MechanismKind::Probe))
        .start()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("init_per_core panicked on the thread of worker 1"),
        "{error}"
    );
}

#[test]
fn full_is_a_counted_refusal() {
    let runtime = jobs(Config {
        queue: 3,
        contexts: 2,
        ..config(1, MechanismKind::None)
    });
    let handle = runtime.handle();
    let open = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&open);
    let first = handle.submit(
        ClassId(0),
        Box::new(move || {
            wait_for("the gate", || theirs.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let rest: Vec<_> = (0..10)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    wait_for("the refusals", || {
        runtime.statistics().refused.of(Refusal::QueueFull) == 7
    });
    open.store(true, Ordering::Relaxed);
    assert_eq!(first.unwrap().wait(), Ok(1));
    let answers: Vec<_> = rest.into_iter().map(|ticket| ticket.wait()).collect();
    assert_eq!(answers[..3], [Ok(0), Ok(1), Ok(2)]);
    assert!(
        answers[3..]
            .iter()
            .all(|answer| *answer == Err(TicketError::Refused(Refusal::QueueFull)))
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn an_idle_worker_takes_what_is_staged_elsewhere() {
    let mut config = config(2, MechanismKind::None);
    config.policy.kind = PolicyKind::CFcfs;
    config.depth = 2;
    let runtime = jobs(config);
    let handle = runtime.handle();
    let (stop, started) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let (their_stop, theirs) = (Arc::clone(&stop), Arc::clone(&started));
    let endless = handle.submit(
        ClassId(0),
        Box::new(move || {
            theirs.fetch_add(1, Ordering::Relaxed);
            wait_for("the end", || their_stop.load(Ordering::Relaxed));
            0
        }),
    );
    wait_for("the start", || started.load(Ordering::Relaxed) == 1);
    // Some of these are staged behind the endless one, and come back when the other worker has done the rest.
    let tickets: Vec<_> = (0..3)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    for (n, mut ticket) in tickets.into_iter().enumerate() {
        assert_eq!(
            ticket
                .wait_timeout(PATIENCE)
                .expect("not behind the endless one"),
            Ok(n as u64)
        );
    }
    stop.store(true, Ordering::Relaxed);
    assert_eq!(endless.unwrap().wait(), Ok(0));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}
