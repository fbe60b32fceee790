//! The pool's end.

use shinjuku::RunError;

use super::*;

#[test]
fn what_was_taken_finishes_and_the_rest_is_refused() {
    in_each_layout(|layout| {
        let pool = without_rescue(layout).contexts(1).start().unwrap();
        let (gate, held) = Gate::close(&pool);
        let (send, dropped_on) = mpsc::channel();
        let jobs: Vec<_> = (0..10)
            .map(|_| {
                let tells = Tells(send.clone());
                pool.run("batch", move || drop(tells))
            })
            .collect();
        let ended = thread::spawn(move || pool.shutdown(Duration::from_millis(10)));
        for job in jobs {
            let result = job.wait();
            let name = dropped_on.recv_timeout(PATIENCE).unwrap();
            let by_pool = name.starts_with("shinjuku-context") || name == "shinjuku-completion";
            match result {
                Err(RunError::Refused(Refusal::ShuttingDown)) => assert!(by_pool, "on {name}"),
                // The end was quicker than the refusal. The job cancelled what it had when it was
                // dropped here.
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
