//! Closures that wait.

use std::sync::{Mutex, Weak};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;

/// Each closure waits for the next, so all have started before one ends.
fn nested(pool: &Arc<Pool>, depth: u32) -> u32 {
    if depth == 0 {
        return 0;
    }
    let inner = pool.clone();
    let job = pool.run("batch", move || nested(&inner, depth - 1));
    1 + match depth % 3 {
        0 => job.wait().unwrap(),
        1 => block_on(job).unwrap(),
        _ => pool.scope(|scope| {
            scope
                .run("interactive", || job.wait().unwrap())
                .wait()
                .unwrap()
        }),
    }
}

#[test]
fn fifty_closures_wait_for_each_other_on_one_worker() {
    in_each_layout(|layout| {
        let pool = Arc::new(builder(layout).contexts(128).start().unwrap());
        let inner = pool.clone();
        let depth = pool.run("interactive", move || nested(&inner, 50)).wait();
        assert_eq!(depth.unwrap(), 50, "{layout:?}");
        // The closures have dropped their references before they answered, or do so now.
        let mut pool = pool;
        let start = Instant::now();
        let pool = loop {
            match Arc::try_unwrap(pool) {
                Ok(pool) => break pool,
                Err(shared) => pool = shared,
            }
            assert!(start.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(1));
        };
        assert!(pool.shutdown(PATIENCE).is_clean());
    });
}

/// Notes what is said as an error.
struct Errors(Arc<Mutex<Vec<String>>>);

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Message<'a>(&'a Errors);
        impl Visit for Message<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0.0.lock().unwrap().push(format!("{value:?}"));
                }
            }
        }
        event.record(&mut Message(self));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// While it waits it has no part in the pool, which can end.
fn waits_for_the_next(pool: &Weak<Pool>, depth: u32) {
    if depth > 0 {
        let inner = pool.clone();
        let next = move || waits_for_the_next(&inner, depth - 1);
        let job = pool.upgrade().map(|pool| pool.run("batch", next));
        let _ = job.map(Job::wait);
    }
}

/// More closures wait for each other than there are contexts. One that waits for long, and not for
/// ever, is no reason to say so.
#[test]
fn a_pool_that_stands_still_says_so_once() {
    in_each_layout(|layout| {
        let errors = Arc::new(Mutex::new(Vec::new()));
        let _default = tracing::subscriber::set_default(Errors(errors.clone()));
        let pool = Arc::new(builder(layout).start().unwrap());
        let sleeps = || thread::sleep(Duration::from_millis(1_500));
        let inner = pool.clone();
        let waits = pool.run("batch", move || inner.run("batch", sleeps).wait());
        waits.wait().unwrap().unwrap();
        assert!(errors.lock().unwrap().is_empty(), "{layout:?}: {errors:?}");

        let inner = Arc::downgrade(&pool);
        let job = pool.run("batch", move || waits_for_the_next(&inner, 40));
        wait_for("the error", || !errors.lock().unwrap().is_empty());
        let said = errors.lock().unwrap().join("; ");
        assert!(
            said.contains("stands still: all 16 closures"),
            "{layout:?}: {said}"
        );
        assert!(said.contains("raise `contexts` (16)"), "{said}");
        let pool = Arc::into_inner(pool).unwrap();
        drop(pool.shutdown(Duration::ZERO));
        // Those that wait are told of the end, and return.
        drop(job.wait());
        assert_eq!(errors.lock().unwrap().len(), 1);
    });
}

/// What docs/pool.md says of code without probes: a spare stands in for the only loop.
#[test]
fn a_pool_by_default_serves_beside_foreign_code() {
    let pool = Pool::builder(["interactive", "batch"]).workers(1);
    let pool = pool.start().unwrap();
    assert!(pool.description().contains("symmetric"), "{pool:?}");
    let (gate, held) = Gate::close(&pool);
    for _ in 0..20 {
        pool.run("interactive", || ()).wait().unwrap();
    }
    // The gate's is not among them.
    wait_for("the count", || pool.statistics().finished() == 20);
    gate.open();
    held.wait().unwrap();
    assert!(pool.shutdown(PATIENCE).is_clean());
}

/// Under a policy that never preempts, too.
#[test]
fn closures_wait_for_later_ones_without_a_quantum() {
    in_each_layout(|layout| {
        let policy = PolicyConfig::new("c-fcfs");
        let pool = builder(layout).policy(policy).start().unwrap();
        for _ in 0..3 {
            let (send, receive) = mpsc::channel();
            let waits = pool.run("interactive", move || receive.recv_timeout(PATIENCE));
            let sends = pool.run("batch", move || send.send(5).unwrap());
            assert_eq!(waits.wait().unwrap(), Ok(5), "{layout:?}");
            sends.wait().unwrap();
        }
        assert!(pool.shutdown(PATIENCE).is_clean());
    });
}

/// Closures that sleep are relieved, however long earlier ones slept: `auto` does not count that
/// time as the length of requests.
#[test]
fn blocked_closures_are_relieved_again_and_again() {
    in_each_layout(|layout| {
        let auto = PreemptionConfig::new(MechanismKind::Auto);
        let pool = builder(layout).preemption(auto).start().unwrap();
        for round in 0..4 {
            let before = pool.statistics().rescued;
            let sleeps = || thread::sleep(Duration::from_millis(60));
            let jobs: Vec<_> = (0..6).map(|_| pool.run("batch", sleeps)).collect();
            for job in jobs {
                job.wait().unwrap();
            }
            let rescued = pool.statistics().rescued - before;
            assert!(
                rescued > 0,
                "{layout:?}, round {round}: {}",
                pool.description()
            );
        }
        assert!(pool.shutdown(PATIENCE).is_clean());
    });
}

#[test]
fn two_closures_and_a_channel() {
    with_pool(|pool| {
        let (send, receive) = mpsc::channel();
        let waits = pool.run("interactive", move || {
            receive.recv_timeout(PATIENCE).unwrap()
        });
        let sends = pool.run("batch", move || send.send(5).unwrap());
        assert_eq!(waits.wait().unwrap(), 5);
        sends.wait().unwrap();
    });
}

#[test]
fn closures_use_rayon() {
    with_pool(|pool| {
        let sum = pool.run("batch", || {
            let (left, right) = rayon::join(|| (0..1000u64).sum::<u64>(), || 1);
            left + right
        });
        assert_eq!(sum.wait().unwrap(), 499_501);
    });
}

#[test]
fn closures_use_tokios_handle_and_tasks_await_jobs() {
    in_each_layout(|layout| {
        let pool = Arc::new(builder(layout).start().unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (inner, logs) = (pool.clone(), log.clone());
        let sum = runtime.block_on(async move {
            let handle = tokio::runtime::Handle::current();
            let job = inner.run("batch", move || {
                // This thread is none of tokio's.
                let slept = handle.block_on(async {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    tokio::spawn(async { 20 }).await.unwrap()
                });
                logs.lock().unwrap().push("slept");
                slept + 1
            });
            job.await.unwrap() * 2
        });
        assert_eq!(sum, 42, "{layout:?}");
        assert_eq!(*log.lock().unwrap(), ["slept"]);

        // A time limit of tokio's cancels.
        let pool = without_rescue(layout).start().unwrap();
        let limited = runtime.block_on(async {
            let (gate, held) = Gate::close(&pool);
            let job = pool.run("batch", || panic!("cancelled, and yet it ran"));
            let limited = tokio::time::timeout(Duration::from_millis(1), job).await;
            gate.open();
            held.await.unwrap();
            limited.map(|_: Result<(), _>| ())
        });
        assert!(limited.is_err());
        wait_for("the count", || refused(&pool, Refusal::Cancelled) == 1);
    });
}

/// One thread submits all closures, and each of the first ones waits for what the last one sends.
/// Together they need more contexts than one loop keeps.
#[test]
fn closures_that_wait_may_hold_nearly_all_contexts_of_all_loops() {
    let config = Config::default().layout(LayoutKind::Symmetric).workers(8);
    let cores = CoresConfig::default().share(true);
    let pool = Pool::builder(["batch"]).config(config.contexts(64).cores(cores));
    let pool = pool.start().unwrap();
    let waits = 40;
    let (send, receive) = mpsc::channel();
    let receive = Arc::new(Mutex::new(receive));
    let jobs: Vec<_> = (0..waits)
        .map(|_| {
            let receive = Arc::clone(&receive);
            pool.run("batch", move || {
                receive.lock().unwrap().recv_timeout(PATIENCE)
            })
        })
        .collect();
    let sends = pool.run("batch", move || {
        (0..waits).for_each(|n| send.send(n).unwrap())
    });
    let mut received: Vec<_> = (jobs.into_iter())
        .map(|job| job.wait().unwrap().expect("the sender never started"))
        .collect();
    sends.wait().unwrap();
    received.sort_unstable();
    assert!(received.into_iter().eq(0..waits));
    let report = pool.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
}
