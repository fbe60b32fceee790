//! Closures that borrow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;

use shinjuku::{RunError, RunOptions};

use super::*;

#[test]
fn closures_borrow_from_outside() {
    with_pool(|pool| {
        let words = vec!["one".to_owned(), "two".to_owned(), "three".to_owned()];
        let words = &words;
        let mut lengths = vec![0; words.len()];
        let sum = pool.scope(|scope| {
            for (length, word) in lengths.iter_mut().zip(words) {
                scope.run("batch", move || *length = word.len());
            }
            let urgent = RunOptions::new("interactive").priority(3);
            let mut longest = scope.run(urgent, || words.iter().max_by_key(|word| word.len()));
            let longest = longest.wait_timeout(PATIENCE).unwrap().unwrap();
            assert_eq!(longest.map(String::as_str), Some("three"));
            let inner = scope.run("batch", move || {
                scope.run("interactive", || words.len()).wait().unwrap()
            });
            inner.wait().unwrap()
        });
        assert_eq!((sum, lengths), (3, vec![3, 3, 5]));
    });
}

/// A scope's closures use what they borrow until the scope's end, whatever happens to the body and
/// the jobs.
#[test]
fn all_have_ended_when_the_scope_ends_even_if_the_body_panics() {
    with_pool(|pool| {
        for forgets in [false, true] {
            let done = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.scope(|scope| {
                    for _ in 0..20 {
                        let job = scope.run("batch", || {
                            thread::sleep(Duration::from_micros(200));
                            done.fetch_add(1, Ordering::Relaxed);
                        });
                        if forgets {
                            std::mem::forget(job);
                        }
                    }
                    panic!("on purpose: the body");
                })
            }));
            assert!(result.is_err());
            assert_eq!(done.into_inner(), 20);
        }
    });
}

#[test]
fn a_panic_is_told_to_who_looks_or_else_by_the_scope() {
    with_pool(|pool| {
        let local = 5;
        pool.scope(|scope| {
            let job = scope.run("batch", || {
                assert_eq!(local, 6, "on purpose");
            });
            let error = job.wait().unwrap_err();
            assert!(matches!(&error, RunError::Panicked(_)), "{error:?}");
            let payload = error.into_panic().unwrap();
            assert!(
                payload
                    .downcast_ref::<String>()
                    .unwrap()
                    .contains("on purpose")
            );
        });
        let unlooked = catch_unwind(AssertUnwindSafe(|| {
            pool.scope(|scope| {
                scope.run("batch", || assert_eq!(local, 6, "on purpose"));
            });
        }));
        assert!(unlooked.is_err());
        wait_for("the count", || pool.statistics().failed() == 2);
    });
}

#[test]
fn a_refusal_is_told_to_who_looks_or_else_by_the_scope() {
    with_pool(|pool| {
        let local = 5;
        pool.scope(|scope| {
            let result = scope.run("bathc", || local).wait();
            assert!(matches!(
                result,
                Err(RunError::Refused(Refusal::UnknownClass))
            ));
        });
        let unlooked = catch_unwind(AssertUnwindSafe(|| {
            pool.scope(|scope| {
                scope.run("bathc", || local);
            });
        }));
        assert!(unlooked.is_err());
    });
}
