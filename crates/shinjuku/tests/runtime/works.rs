//! A dispatcher that runs requests itself when it has nothing else to do (`dispatcher.works`).
//!
//! With one worker, within a request that ends only when it is told to, nobody but the dispatcher
//! can serve the others.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use shinjuku::net::Failure;
use shinjuku::policy::{ClassId, registry};
use shinjuku::{
    ClassConfig, Config, ContextKind, DispatcherConfig, Handle, LayoutKind, MechanismKind,
    PolicyConfig, Runtime, Ticket, TicketError, handler_fn, preempt_point,
};
use shinjuku_preempt::current_worker;
use shinjuku_tests_support::{PATIENCE, wait_for};

use super::threads::suite::{self, Job, spin_for};

/// One worker, which keeps what it has: the quantum is longer than any test.
fn config() -> Config {
    let mut config = suite::config(1, MechanismKind::Probe)
        .depth(1)
        .dispatcher(DispatcherConfig::default().works(true));
    config.policy.quantum_us = 1e8;
    config
}

fn start(config: Config) -> Runtime<Job, u64> {
    let builder = Runtime::builder(handler_fn(|job: Job| job()));
    builder.config(config).start().unwrap()
}

fn submit(handle: &Handle<Job, u64>, job: impl FnOnce() -> u64 + Send + 'static) -> Ticket<u64> {
    handle.submit(ClassId(0), Box::new(job) as Job).unwrap()
}

fn reply(mut ticket: Ticket<u64>) -> Result<u64, TicketError> {
    ticket.wait_timeout(PATIENCE).expect("a reply in time")
}

/// Probes until it is so, or for longer than any test has patience.
fn probe_until(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        preempt_point();
    }
    true
}

/// The one worker's request, which runs until it is let go. The dispatcher may begin it, if the
/// worker has not answered for the last one; then it goes on at the worker.
struct Busy {
    go: Arc<AtomicBool>,
    ticket: Ticket<u64>,
}

impl Busy {
    fn begin(handle: &Handle<Job, u64>) -> Self {
        let (go, runs) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (theirs, began) = (Arc::clone(&go), Arc::clone(&runs));
        let ticket = submit(handle, move || {
            let is_there = probe_until(|| current_worker() == Some(0));
            began.store(true, Ordering::Relaxed);
            u64::from(is_there && probe_until(|| theirs.load(Ordering::Relaxed)))
        });
        wait_for("the worker", || runs.load(Ordering::Relaxed));
        Self { go, ticket }
    }

    fn end(self) {
        self.go.store(true, Ordering::Relaxed);
        assert_eq!(reply(self.ticket), Ok(1));
    }
}

#[test]
fn short_requests_are_served_while_the_worker_is_busy() {
    // However long the machine keeps a thread from its core, none is stuck.
    let runtime = start(config().rescue_after_ms(6e4));
    let description = runtime.description();
    assert!(
        description.contains("; the dispatcher works, "),
        "{description}"
    );
    let handle = runtime.handle();
    let busy = Busy::begin(&handle);
    for n in 0..100 {
        assert_eq!(reply(submit(&handle, move || n)), Ok(n));
    }
    let failed = submit(&handle, || panic!("meant"));
    assert_eq!(reply(failed), Err(TicketError::Failed(Failure::Panicked)));
    busy.end();
    // Replies are there before they are counted.
    wait_for("the counts", || {
        let statistics = runtime.statistics();
        (statistics.finished(), statistics.failed()) == (101, 1)
    });
    let statistics = runtime.statistics();
    assert_eq!(
        (statistics.run_by_dispatcher, statistics.dispatcher_relieved),
        (101, 0)
    );
    assert_eq!(statistics.preemptions.taken(), 0, "all were short");
    let shown = statistics.to_string();
    assert!(shown.contains(", began 101 requests itself"), "{shown}");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn by_default_the_dispatcher_only_dispatches() {
    let runtime = start(config().dispatcher(DispatcherConfig::default()));
    assert!(!runtime.description().contains("works"));
    let handle = runtime.handle();
    let busy = Busy::begin(&handle);
    let mut waits = submit(&handle, || 7);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(waits.try_take(), None, "nobody is there for it");
    busy.end();
    assert_eq!(reply(waits), Ok(7));
    assert_eq!(runtime.statistics().run_by_dispatcher, 0);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn what_the_dispatcher_began_goes_on_at_a_worker() {
    let runtime = start(config());
    let handle = runtime.handle();
    let busy = Busy::begin(&handle);
    let (began, began_at) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (begins, at) = (Arc::clone(&began), Arc::clone(&began_at));
    let long = submit(&handle, move || {
        OWN.set(7);
        let text = String::from("on its stack");
        // Before anything at which it can be asked to leave.
        begins.store(true, Ordering::Relaxed);
        at.store(current_worker().unwrap().into(), Ordering::Relaxed);
        assert!(probe_until(|| current_worker() == Some(0)));
        OWN.get() + text.len() as u64
    });
    wait_for("the dispatcher", || began.load(Ordering::Relaxed));
    wait_for("its deadline", || {
        runtime.statistics().preemptions.taken() > 0
    });
    // It is one of many for the dispatcher, which begins others meanwhile and resumes none.
    assert_eq!(reply(submit(&handle, || 3)), Ok(3));
    busy.end();
    assert_eq!(reply(long), Ok(7 + 12));
    assert_eq!(OWN.get(), 0, "this thread's own");
    let statistics = runtime.statistics();
    assert_eq!(statistics.run_by_dispatcher, 2);
    let preemptions = statistics.preemptions;
    assert_eq!((preemptions.taken(), preemptions.requested), (1, 1));
    assert_eq!(preemptions.migrations, 1);
    assert!(
        began_at.load(Ordering::Relaxed) > 4,
        "neither worker nor spare"
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// The others are for workers, which could begin no request without a context.
#[test]
fn what_the_dispatcher_began_holds_half_of_the_contexts_at_most() {
    let runtime = start(config().contexts(8));
    let handle = runtime.handle();
    let busy = Busy::begin(&handle);
    let tickets: Vec<_> = (0..10)
        .map(|_| {
            submit(&handle, || {
                u64::from(probe_until(|| current_worker() == Some(0)))
            })
        })
        .collect();
    wait_for("the dispatcher", || {
        runtime.statistics().preemptions.taken() == 3
    });
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(runtime.statistics().run_by_dispatcher, 3);
    busy.end();
    for ticket in tickets {
        assert_eq!(reply(ticket), Ok(1));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_request_that_blocks_does_not_stop_dispatching() {
    let runtime = start(config());
    let handle = runtime.handle();
    for round in 1..=3 {
        let busy = Busy::begin(&handle);
        let (let_go, go) = mpsc::channel::<u64>();
        let (tell, told) = mpsc::channel();
        let before = runtime.statistics().dispatcher_relieved;
        let blocks = submit(&handle, move || {
            OWN.set(round);
            tell.send(()).unwrap();
            go.recv().unwrap() + OWN.replace(0)
        });
        told.recv_timeout(PATIENCE).unwrap();
        busy.end();
        // It blocks the thread that had the dispatcher.
        for n in 0..10 {
            assert_eq!(reply(submit(&handle, move || n)), Ok(n));
        }
        wait_for("the relief", || {
            runtime.statistics().dispatcher_relieved > before
        });
        let_go.send(10).unwrap();
        assert_eq!(reply(blocks), Ok(10 + round));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_request_that_does_not_probe_does_not_stop_dispatching() {
    let runtime = start(config());
    let handle = runtime.handle();
    let busy = Busy::begin(&handle);
    let (stop, runs) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (theirs, began) = (Arc::clone(&stop), Arc::clone(&runs));
    let spins = submit(&handle, move || {
        began.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !theirs.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        9
    });
    wait_for("the dispatcher", || runs.load(Ordering::Relaxed));
    busy.end();
    assert_eq!(reply(submit(&handle, || 1)), Ok(1));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(reply(spins), Ok(9));
    // A thread that Linux takes off its core is relieved as well.
    assert!(runtime.statistics().dispatcher_relieved >= 1);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// The holder was suspended; only a worker that the dispatcher sends it to can bring it back.
#[test]
fn a_lock_that_a_suspended_request_has_is_waited_for() {
    let runtime = start(config());
    let handle = runtime.handle();
    let busy = Busy::begin(&handle);
    let lock = Arc::new(Mutex::new(1));
    let (theirs, held) = (Arc::clone(&lock), Arc::<AtomicBool>::default());
    let holds = Arc::clone(&held);
    let holder = submit(&handle, move || {
        let mut value = theirs.lock().unwrap();
        holds.store(true, Ordering::Relaxed);
        assert!(probe_until(|| current_worker() == Some(0)));
        *value += 1;
        *value
    });
    wait_for("the lock", || held.load(Ordering::Relaxed));
    wait_for("its deadline", || {
        runtime.statistics().preemptions.taken() > 0
    });
    let (theirs, began) = (Arc::clone(&lock), Arc::<AtomicBool>::default());
    let runs = Arc::clone(&began);
    let waiter = submit(&handle, move || {
        runs.store(true, Ordering::Relaxed);
        *theirs.lock().unwrap() * 10
    });
    wait_for("the dispatcher", || began.load(Ordering::Relaxed));
    busy.end();
    assert_eq!((reply(holder), reply(waiter)), (Ok(2), Ok(20)));
    // A thread that Linux takes off its core is relieved as well.
    assert!(runtime.statistics().dispatcher_relieved >= 1);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn what_the_dispatcher_runs_at_the_end_is_reported_and_goes_on() {
    let runtime = start(config());
    let handle = runtime.handle();
    let busy = Busy::begin(&handle);
    let (let_go, go) = mpsc::channel::<u64>();
    let (tell, told) = mpsc::channel();
    let blocks = submit(&handle, move || {
        tell.send(0).unwrap();
        tell.send(go.recv().unwrap()).unwrap();
        0
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
    let report = runtime.shutdown(Duration::from_millis(50));
    assert_eq!(report.unfinished.len(), 2, "{report}");
    assert_eq!(reply(blocks), Err(TicketError::RuntimeEnded));
    busy.go.store(true, Ordering::Relaxed);
    let_go.send(5).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(5));
}

#[test]
fn requests_under_way_at_the_end_finish() {
    let runtime = start(config());
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..200)
        .map(|n| {
            submit(&handle, move || {
                spin_for(Duration::from_micros(40));
                n
            })
        })
        .collect();
    assert!(runtime.shutdown(PATIENCE).is_clean());
    for (n, ticket) in (0..).zip(tickets) {
        assert_eq!(reply(ticket), Ok(n));
    }
}

/// What a request does there: it keeps its thread-locals, its stack and its allocations.
fn ordinary_code(seed: u64) -> u64 {
    OWN.set(seed);
    let mut values = Vec::new();
    for step in 0..seed % 64 {
        values.push(Box::new(step));
        spin_for(Duration::from_micros(1));
        assert_eq!(OWN.get(), seed);
    }
    if seed.is_multiple_of(2_500) {
        // It blocks whichever thread it has.
        std::thread::sleep(Duration::from_millis(8));
    }
    values.iter().map(|value| **value).sum::<u64>() + OWN.replace(0)
}

#[test]
fn of_many_requests_none_is_lost() {
    const REQUESTS: u64 = 20_000;
    const IN_FLIGHT: usize = 64;
    let mut config = config().workers(2).contexts(64);
    config.policy.quantum_us = 20.0;
    let runtime = start(config);
    let handle = runtime.handle();
    let mut tickets = std::collections::VecDeque::new();
    let expected = |seed: u64| (0..seed % 64).sum::<u64>() + seed;
    for seed in 0..REQUESTS {
        if tickets.len() == IN_FLIGHT {
            let (seed, ticket): (u64, Ticket<u64>) = tickets.pop_front().unwrap();
            assert_eq!(reply(ticket), Ok(expected(seed)));
        }
        tickets.push_back((seed, submit(&handle, move || ordinary_code(seed))));
    }
    for (seed, ticket) in tickets {
        assert_eq!(reply(ticket), Ok(expected(seed)));
    }
    wait_for("the count", || runtime.statistics().finished() == REQUESTS);
    let statistics = runtime.statistics();
    assert!(statistics.run_by_dispatcher > 0, "{statistics}");
    assert!(statistics.preemptions.migrations > 0, "{statistics}");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn what_does_not_go_with_it_is_refused_in_words() {
    let refused = |config: Config, why: &str| {
        let builder = Runtime::builder(handler_fn(|n: u64| n)).config(config);
        let error = builder.start().unwrap_err().to_string();
        assert!(error.starts_with("`dispatcher.works` is true"), "{error}");
        assert!(error.contains(why), "{error}");
    };
    for mechanism in [
        MechanismKind::Auto,
        MechanismKind::Signal,
        MechanismKind::CompiledProbe,
        MechanismKind::None,
    ] {
        let mut config = config();
        config.preemption.mechanism = mechanism;
        refused(config, "preemption.mechanism");
    }
    for layout in [LayoutKind::Inline, LayoutKind::Symmetric] {
        refused(config().layout(layout).workers(None), "layout");
    }
    for plain in registry::ALL.iter().filter(|one| !one.preempts) {
        refused(config().policy(PolicyConfig::new(*plain)), "policy.kind");
    }
    refused(
        config().context_kind(ContextKind::KernelThread),
        "context_kind",
    );
    let classes = ["get", "batch"].map(ClassConfig::new);
    let best_effort = PolicyConfig::default().best_effort(["batch"]);
    refused(
        config().class(classes).policy(best_effort),
        "policy.best_effort",
    );
}

#[test]
fn a_file_says_so_and_auto_means_the_layout_threads() {
    let config = Config::from_toml(
        "[dispatcher]\nworks = true\n[preemption]\nmechanism = \"probe\"\n[cores]\nshare = true\n",
    )
    .unwrap();
    assert!(config.dispatcher.works && config.layout == LayoutKind::Auto);
    let runtime = Runtime::builder(handler_fn(|n: u64| n))
        .config(config)
        .start()
        .unwrap();
    let description = runtime.description();
    assert!(
        description.contains("`dispatcher.works` is for one that has a thread"),
        "{description}"
    );
    assert_eq!(
        runtime.handle().submit(ClassId(0), 4).unwrap().wait(),
        Ok(4)
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}
