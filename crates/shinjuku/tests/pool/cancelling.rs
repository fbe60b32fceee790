//! Dropping a job.

use shinjuku::{Cancelled, RunError, cancellation_point, cancellation_point_or_unwind};

use super::*;

#[test]
fn dropped_while_queued_it_is_dropped_unrun_at_once() {
    in_each_layout(|layout| {
        let pool = without_rescue(layout).start().unwrap();
        let (gate, held) = Gate::close(&pool);
        let (send, dropped_on) = mpsc::channel();
        for polled in [false, true] {
            let tells = Tells(send.clone());
            let mut job = pool.run("batch", move || {
                drop(tells);
                panic!("cancelled, and yet it ran")
            });
            if polled {
                assert!(
                    pin!(&mut job)
                        .poll(&mut Context::from_waker(Waker::noop()))
                        .is_pending()
                );
            }
            drop(job);
            // This thread has dropped it, before the worker is free.
            let name = dropped_on.try_recv().unwrap();
            assert_eq!(name, thread::current().name().unwrap_or(""));
        }
        gate.open();
        held.wait().unwrap();
        wait_for("the count", || refused(&pool, Refusal::Cancelled) == 2);
        let statistics = pool.shutdown(PATIENCE).statistics.unwrap();
        assert_eq!((statistics.failed(), statistics.in_system()), (0, 0));
        assert_eq!(statistics.classes[1].finished, 0);
    });
}

#[test]
fn a_cancelled_job_says_so() {
    in_each_layout(|layout| {
        let pool = without_rescue(layout).start().unwrap();
        let (gate, held) = Gate::close(&pool);
        let job = pool.run("batch", || 1);
        let awaited = pool.run("batch", || 2);
        job.cancel();
        job.cancel();
        assert!(matches!(job.wait(), Err(RunError::Cancelled)));
        gate.open();
        held.wait().unwrap();
        assert_eq!(awaited.wait().unwrap(), 2);
        let done = pool.run("batch", || 3);
        wait_for("the end", || pool.statistics().classes[1].finished == 2);
        done.cancel();
        assert_eq!(done.wait().unwrap(), 3, "what is done is done");
        assert!(pool.shutdown(PATIENCE).is_clean());
    });
}

/// Panics when dropped.
struct Explodes;

impl Drop for Explodes {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn a_cancelled_job_says_so_whatever_its_closure_does_when_dropped() {
    in_each_layout(|layout| {
        let pool = without_rescue(layout).start().unwrap();
        let (gate, held) = Gate::close(&pool);
        let explodes = || {
            let value = Explodes;
            move || drop(value)
        };
        let mut job = pool.run("batch", explodes());
        job.cancel();
        let outcome = job.wait_timeout(PATIENCE);
        assert!(matches!(outcome, Some(Err(RunError::Cancelled))));
        drop(pool.run("batch", explodes()));
        gate.open();
        held.wait().unwrap();
        assert!(pool.shutdown(PATIENCE).is_clean());
    });
}

/// A closure that runs until it is asked to stop, and then sends the reason.
fn runs_until_asked(pool: &Pool) -> (Job<()>, mpsc::Receiver<Cancelled>) {
    let (send, asked) = mpsc::channel();
    let (started, has_started) = mpsc::channel();
    let job = pool.run("batch", move || {
        assert_eq!(cancellation_point(), Ok(()));
        started.send(()).unwrap();
        loop {
            if let Err(cancelled) = cancellation_point() {
                return send.send(cancelled).unwrap();
            }
        }
    });
    has_started.recv_timeout(PATIENCE).unwrap();
    (job, asked)
}

#[test]
fn dropped_while_it_runs_it_is_asked_to_stop() {
    with_pool(|pool| {
        let (job, asked) = runs_until_asked(pool);
        drop(job);
        assert_eq!(asked.recv_timeout(PATIENCE), Ok(Cancelled));
        let (job, asked) = runs_until_asked(pool);
        job.cancel();
        assert_eq!(asked.recv_timeout(PATIENCE), Ok(Cancelled));
        job.wait().unwrap();
        // The next one on the same context is not asked.
        for _ in 0..100 {
            assert_eq!(
                pool.run("batch", cancellation_point).wait().unwrap(),
                Ok(())
            );
        }
        assert_eq!(cancellation_point(), Ok(()), "outside of a pool");
        cancellation_point_or_unwind();
    });
}

#[test]
fn a_detached_one_goes_on() {
    with_pool(|pool| {
        let (send, results) = mpsc::channel();
        for n in 0..10 {
            let send = send.clone();
            let job = pool.run("batch", move || {
                assert_eq!(cancellation_point(), Ok(()));
                send.send(n).unwrap();
            });
            job.detach();
        }
        let mut all: Vec<_> = (0..10)
            .map(|_| results.recv_timeout(PATIENCE).unwrap())
            .collect();
        all.sort();
        assert!(all.into_iter().eq(0..10));
    });
}

#[test]
fn it_unwinds_where_it_chose_to_and_is_no_panic() {
    with_pool(|pool| {
        let (send, dropped_on) = mpsc::channel();
        let (started, has_started) = mpsc::channel();
        let job = pool.run("batch", move || {
            let _tells = Tells(send);
            started.send(()).unwrap();
            loop {
                cancellation_point_or_unwind();
            }
        });
        has_started.recv_timeout(PATIENCE).unwrap();
        job.cancel();
        let result: Result<(), _> = job.wait();
        assert!(matches!(result, Err(RunError::Cancelled)), "{result:?}");
        let name = dropped_on.recv_timeout(PATIENCE).unwrap();
        assert!(name.starts_with("shinjuku-context"), "dropped on {name}");
        wait_for("the count", || pool.statistics().failed() == 1);
    });
}

/// A result that no one wants is dropped in its context, whatever its drop does.
#[test]
fn an_unwanted_result_is_dropped_in_its_context() {
    with_pool(|pool| {
        struct Panics(#[expect(dead_code, reason = "dropped")] Tells);
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("on purpose: a result's drop");
            }
        }
        let (send, dropped_on) = mpsc::channel();
        let (started, has_started) = mpsc::channel();
        let job = pool.run("batch", move || {
            started.send(()).unwrap();
            while cancellation_point().is_ok() {}
            Panics(Tells(send))
        });
        has_started.recv_timeout(PATIENCE).unwrap();
        drop(job);
        let name = dropped_on.recv_timeout(PATIENCE).unwrap();
        assert!(name.starts_with("shinjuku-context"), "dropped on {name}");
        assert_eq!(pool.run("batch", || 1).wait().unwrap(), 1);
    });
}

/// A cancelled closure makes room in the queue before its turn would come.
#[test]
fn cancelled_ones_keep_no_place_in_the_queue() {
    let pool = without_rescue(LayoutKind::Threads)
        .queue(64)
        .depth(1)
        .start()
        .unwrap();
    let (gate, held) = Gate::close(&pool);
    for round in 1..=3 {
        let jobs: Vec<_> = (0..64).map(|_| pool.run("batch", || ())).collect();
        wait_for("the queue", || pool.statistics().received > 64 * round);
        assert_eq!(refused(&pool, Refusal::QueueFull), 0, "round {round}");
        drop(jobs);
        // All of them: the dispatcher may be about to take what comes next.
        let gone = || refused(&pool, Refusal::Cancelled) == 64 * round;
        wait_for("their places", gone);
    }
    let live: Vec<_> = (0..64).map(|n| pool.run("batch", move || n)).collect();
    wait_for("the queue", || pool.statistics().received > 64 * 4);
    gate.open();
    held.wait().unwrap();
    for (n, job) in live.into_iter().enumerate() {
        assert_eq!(job.wait().unwrap(), n);
    }
    let statistics = pool.shutdown(PATIENCE).statistics.unwrap();
    assert_eq!((statistics.failed(), statistics.in_system()), (0, 0));
}
