//! The runtime's tests in the layout `threads`, and the tests of that layout alone: several
//! workers, requests staged at them, and a dispatcher that sees whether any request waits before it
//! preempts.

#[path = "suite/mod.rs"]
pub mod suite;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::net::Refusal;
use shinjuku::policy::{ClassId, FlowId};
use shinjuku::{
    MechanismKind, RequestContext, RequestHandler, Runtime, SubmitOptions, TicketError,
    preempt_point,
};
use shinjuku_tests_support::{PATIENCE, wait_for};

use self::suite::{Job, config, jobs, spin_for};

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
    config.depth = Some(2);
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
    let mut staged = handle
        .submit_with(options, Box::new(|| 2u64) as Job)
        .unwrap();
    assert_eq!(
        staged.wait_timeout(PATIENCE),
        Some(Err(TicketError::Refused(Refusal::DeadlinePassed)))
    );
    stop.store(true, Ordering::Relaxed);
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
    let runtime = jobs(config(1, MechanismKind::None).queue(3).contexts(2));
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
    config.policy.kind = "c-fcfs".into();
    config.depth = Some(2);
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
    // Some of these are staged behind the endless one, and come back when the other worker has done
    // the rest.
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

/// This holds under policies that preempt nothing, too. With a queue per worker, requests of one
/// flow wait for one worker.
#[test]
fn what_waits_for_a_blocked_worker_starts_at_its_stand_in() {
    for (kind, workers, flows) in [
        ("c-fcfs", 1, [1, 2]),
        ("d-fcfs", 2, [1, 1]),
        ("stealing", 1, [1, 2]),
    ] {
        let mut config = config(workers, MechanismKind::Probe);
        config.policy.kind = kind.into();
        config.rescue_after_ms = 1.0;
        let runtime = jobs(config);
        let handle = runtime.handle();
        let submit = |flow, job: Job| {
            let options = SubmitOptions::new(ClassId(0)).flow(FlowId(flow));
            handle.submit_with(options, job).unwrap()
        };
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut waits = submit(flows[0], Box::new(move || receiver.recv().unwrap_or(0)));
        wait_for("the start", || runtime.statistics().started == 1);
        let sends = submit(flows[1], Box::new(move || sender.send(7).is_ok().into()));
        let answer = waits.wait_timeout(PATIENCE);
        assert_eq!(answer.expect("none hangs"), Ok(7), "{kind:?}");
        assert_eq!(sends.wait(), Ok(1), "{kind:?}");
        // The dispatcher counts after it has sent, and may lose its core in between.
        wait_for("the count", || runtime.statistics().rescued > 0);
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

/// Serves one lock's holder, which computes with probes, and eight requests that want the lock,
/// with so few spares. Returns how many of the eight had begun when the holder released the lock.
/// The quantum is long enough that they reach the lock before they are asked to give way.
fn began_before_the_lock_was_free(spares: usize, holder_computes: Duration) -> u64 {
    let mut config = config(1, MechanismKind::Probe);
    config.policy.quantum_us = 10_000.0;
    config.rescue_after_ms = 1.0;
    config.spare_workers = Some(spares);
    let runtime = jobs(config);
    let handle = runtime.handle();
    let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
    let (lock, go) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
    let begun = Arc::new(AtomicU64::new(0));
    let (locks, seen, count) = (Arc::clone(&lock), Arc::clone(&go), Arc::clone(&begun));
    let mut holds = submit(Box::new(move || {
        let _held = locks.lock();
        // Asleep, it would count as blocked.
        let start = Instant::now();
        while !seen.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        spin_for(holder_computes);
        count.load(Ordering::Relaxed)
    }));
    wait_for("the lock", || lock.try_lock().is_err());
    let wait = (0..8).map(|_| {
        let (locks, begins) = (Arc::clone(&lock), Arc::clone(&begun));
        submit(Box::new(move || {
            begins.fetch_add(1, Ordering::Relaxed);
            locks.lock().is_ok().into()
        }))
    });
    let wait: Vec<_> = wait.collect();
    go.store(true, Ordering::Relaxed);
    for mut ticket in wait {
        assert_eq!(ticket.wait_timeout(PATIENCE).expect("none hangs"), Ok(1));
    }
    let begun = holds.wait_timeout(PATIENCE).expect("none hangs");
    assert!(runtime.shutdown(PATIENCE).is_clean());
    begun.unwrap()
}

/// A lock's holder was preempted, and a request that waits for the lock blocks the worker. Fresh
/// requests that want the lock would each take a spare.
#[test]
fn suspended_requests_stand_in_first_for_one_may_hold_the_lock() {
    let begun = began_before_the_lock_was_free(9, Duration::from_millis(12));
    assert!(begun <= 5, "{begun} requests ran into the lock");
}

/// The lock's holder needs more turns than there are spares, and after each a fresh request that
/// wants the lock may take a spare, but not the last one.
#[test]
fn the_last_spare_is_for_suspended_requests() {
    began_before_the_lock_was_free(2, Duration::from_millis(80));
}

/// Under a policy without a quantum, a request that runs at a spare is not preempted when the
/// worker is back: it would stand behind requests that came later.
#[test]
fn first_come_first_served_is_so_at_a_spare_too() {
    let mut config = config(1, MechanismKind::Probe);
    config.policy.kind = "c-fcfs".into();
    let runtime = jobs(config);
    let handle = runtime.handle();
    let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
    let (let_go, blocked) = std::sync::mpsc::channel::<()>();
    let blocks = submit(Box::new(move || blocked.recv().is_err().into()));
    wait_for("the start", || runtime.statistics().started == 1);
    let (go, begun) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (seen, begins) = (Arc::clone(&go), Arc::clone(&begun));
    let long = submit(Box::new(move || {
        begins.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !seen.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        preempt_point();
        1
    }));
    // What a spare has not begun goes back to a worker that is free.
    wait_for("the spare", || begun.load(Ordering::Relaxed));
    let running = || runtime.statistics().running;
    wait_for("a look around with both running", || running() == 2);
    drop(let_go);
    assert_eq!(blocks.wait(), Ok(1));
    wait_for("a look around with one running", || running() == 1);
    // When the dispatcher has sent one more request, it has looked at the spares.
    assert_eq!(submit(Box::new(|| 2)).wait(), Ok(2));
    go.store(true, Ordering::Relaxed);
    assert_eq!(long.wait(), Ok(1));
    let statistics = runtime.statistics();
    assert!(statistics.rescued > 0, "{statistics}");
    assert_eq!(statistics.preemptions.taken(), 0, "{statistics}");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Beside a worker that computes, a spare would share the core. It comes after ten times as long,
/// for suspended requests.
#[test]
fn a_handler_that_computes_is_not_taken_for_blocked() {
    const LONG: Duration = Duration::from_millis(150);
    let mut config = config(1, MechanismKind::Probe);
    config.rescue_after_ms = 50.0;
    let runtime = jobs(config);
    let handle = runtime.handle();
    let go = Arc::new(AtomicBool::new(false));
    let (seen, tell) = (Arc::clone(&go), Arc::clone(&go));
    let suspended = handle.submit(
        ClassId(0),
        Box::new(move || {
            let start = Instant::now();
            while !seen.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                preempt_point();
            }
            1
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let computes = handle.submit(
        ClassId(0),
        Box::new(move || {
            let start = Instant::now();
            while start.elapsed() < LONG {
                std::hint::spin_loop();
            }
            tell.store(true, Ordering::Relaxed);
            2
        }),
    );
    assert_eq!(computes.unwrap().wait(), Ok(2));
    assert_eq!(suspended.unwrap().wait(), Ok(1));
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let statistics = report.statistics.expect("it ran");
    assert!(statistics.preemptions.taken() > 0, "{statistics}");
    assert_eq!(statistics.workers_blocked, 0, "{statistics}");
    assert_eq!(statistics.rescued, 0, "{statistics}");
}
