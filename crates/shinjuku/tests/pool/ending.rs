//! The pool's end.

use shinjuku::RunError;

use super::*;

#[test]
fn what_was_taken_finishes_and_the_rest_is_refused() {
    in_each_layout(|layout| {
        let pool = without_rescue(layout).contexts(1).start().unwrap();
        let (gate, held) = Gate::close(&pool);
        let jobs: Vec<_> = (0..10)
            .map(|_| {
                let (send, dropped_on) = mpsc::channel();
                let tells = Tells(send);
                (pool.run("batch", move || drop(tells)), dropped_on)
            })
            .collect();
        let ended = thread::spawn(move || pool.shutdown(Duration::from_millis(10)));
        for (job, dropped_on) in jobs {
            let result = job.wait();
            let name = dropped_on.recv_timeout(PATIENCE).unwrap();
            let by_pool = name.starts_with("shinjuku-context") || name == "shinjuku-completion";
            match result {
                Err(RunError::Refused(Refusal::ShuttingDown)) => assert!(by_pool, "on {name}"),
                // The pool ended before the refusal. Dropped here, the job cancels the closure.
                Err(RunError::RuntimeEnded) => {}
                other => panic!("{layout:?}: {other:?}"),
            }
        }
        gate.open();
        let _ = held.wait();
        let _ = ended.join().unwrap();
    });
}

#[test]
fn a_clean_shutdown_waits() {
    with_pool(|pool| {
        for n in 0..100 {
            pool.run("batch", move || n).detach();
        }
    });
}

#[test]
fn what_is_unfinished_resolves_and_the_report_names_it() {
    in_each_layout(|layout| {
        let pool = builder(layout).start().unwrap();
        let (gate, held) = Gate::close(&pool);
        let report = pool.shutdown(Duration::from_millis(20));
        assert_eq!(report.unfinished, ["interactive"], "{layout:?}: {report}");
        assert!(matches!(held.wait(), Err(RunError::RuntimeEnded)));
        gate.open();
    });
}

#[test]
fn a_pool_with_defaults_says_what_it_took() {
    let pool = Pool::new(["interactive", "batch"]).unwrap();
    assert!(
        pool.description().contains("policy"),
        "{}",
        pool.description()
    );
    assert_eq!(pool.run("interactive", || 2 + 2).wait().unwrap(), 4);
    let observer = pool.observer();
    drop(pool);
    assert_eq!(observer.statistics().finished(), 1);
    assert!(Pool::new(["twice", "twice"]).is_err());
}

/// A pool that is dropped runs the closures that it was given before, also those that no dispatcher
/// has taken in.
#[test]
fn what_was_submitted_before_the_pool_is_dropped_runs() {
    const CLOSURES: usize = 500;
    in_each_layout(|layout| {
        for round in 0..5 {
            let pool = builder(layout).start().unwrap();
            let jobs: Vec<_> = (0..CLOSURES)
                .map(|n| pool.run("batch", move || n))
                .collect();
            let report = pool.shutdown(PATIENCE);
            assert!(report.is_clean(), "{layout:?}, round {round}: {report}");
            for (n, job) in jobs.into_iter().enumerate() {
                let outcome = job.wait();
                assert!(
                    matches!(outcome, Ok(result) if result == n),
                    "{layout:?}, round {round}, closure {n}: {outcome:?}"
                );
            }
        }
    });
}

/// If the drop waited, the closure would wait for its own end for a second, and then count as
/// unfinished.
#[test]
fn the_last_owner_may_be_one_of_the_pools_own_closures() {
    in_each_layout(|layout| {
        let pool = Arc::new(builder(layout).start().unwrap());
        let (inner, observer) = (Arc::clone(&pool), pool.observer());
        let (send, owned) = mpsc::channel();
        let job = pool.run("batch", move || {
            owned.recv_timeout(PATIENCE).unwrap();
            let is_last = Arc::into_inner(inner).map(drop).is_some();
            (is_last, thread::current().name().map(str::to_owned))
        });
        drop(pool);
        send.send(()).unwrap();
        let (is_last, name) = job
            .wait()
            .unwrap_or_else(|error| panic!("{layout:?}: {error}"));
        assert!(is_last, "{layout:?}: {name:?}");
        wait_for("the end", || observer.statistics().finished() == 1);
    });
}

/// A future that owns the pool, and is dropped where its job wakes it.
#[test]
fn the_last_owner_may_be_a_waker() {
    struct Owner {
        pool: Mutex<Option<Arc<Pool>>>,
        dropped: mpsc::Sender<(bool, Duration)>,
    }
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {
            let pool = self.pool.lock().unwrap().take();
            let start = Instant::now();
            let is_last = pool.and_then(Arc::into_inner).map(drop).is_some();
            let _ = self.dropped.send((is_last, start.elapsed()));
        }
    }
    let took = |layout| {
        let pool = Arc::new(builder(layout).start().unwrap());
        let (gate, mut held) = Gate::close(&pool);
        let (send, dropped) = mpsc::channel();
        let owner = Arc::new(Owner {
            pool: Mutex::new(Some(pool)),
            dropped: send,
        });
        let waker = Waker::from(owner);
        assert!(
            Pin::new(&mut held)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        gate.open();
        let (is_last, took) = dropped.recv_timeout(PATIENCE).unwrap();
        assert!(is_last, "{layout:?}");
        took
    };
    for layout in LAYOUTS {
        // If the end waited for the completion thread, that would take a second each time.
        wait_for("a short end", || took(layout) < Duration::from_millis(900));
    }
}
