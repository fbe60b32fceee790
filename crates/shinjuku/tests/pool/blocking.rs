//! Closures that wait.

use std::sync::Mutex;

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

/// This holds under a policy that never preempts, too.
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
