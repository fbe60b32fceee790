//! The outcomes that jobs bring.

use shinjuku::policy::ClassId;
use shinjuku::{RunError, RunOptions};

use super::*;

#[test]
fn results_come_in_every_way_of_waiting() {
    with_pool(|pool| {
        let text = String::from("of any type");
        let words = pool.run("batch", move || {
            text.split(' ').map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(words.wait().unwrap(), ["of", "any", "type"]);
        assert_eq!(block_on(pool.run("interactive", || 7)).unwrap(), 7);
        let mut job = pool.run("batch", || [1u8; 4096]);
        assert_eq!(job.wait_timeout(PATIENCE).unwrap().unwrap(), [1; 4096]);
        assert!(matches!(job.try_take(), Some(Err(RunError::Taken))));
        let mut job = pool.run("batch", || ());
        wait_for("the result", || {
            job.try_take().is_some_and(|result| result.is_ok())
        });
    });
}

#[test]
fn classes_go_by_name_handle_and_number() {
    with_pool(|pool| {
        let class = pool.class("batch").unwrap();
        assert!(pool.class("bathc").is_none());
        for n in 0..3 {
            assert_eq!(pool.run("batch", move || n).wait().unwrap(), n);
            assert_eq!(pool.run(class, move || n).wait().unwrap(), n);
            assert_eq!(
                pool.run(&String::from("batch"), move || n).wait().unwrap(),
                n
            );
            let options = RunOptions::new(ClassId(1));
            assert_eq!(pool.run(options, move || n).wait().unwrap(), n);
        }
        wait_for("the count", || pool.statistics().classes[1].finished == 12);
        for unknown in [RunOptions::new("bathc"), ClassId(2).into()] {
            let result = pool.run(unknown.priority(1), || ()).wait();
            assert!(
                matches!(result, Err(RunError::Refused(Refusal::UnknownClass))),
                "{result:?}"
            );
        }
        assert_eq!(refused(pool, Refusal::UnknownClass), 2);
    });
}

#[test]
fn a_panic_keeps_its_payload_and_ends_its_closure_only() {
    with_pool(|pool| {
        let error = pool
            .run("batch", || panic!("on purpose: {}", 5))
            .wait()
            .unwrap_err();
        assert_eq!(error.to_string(), "the closure panicked: on purpose: 5");
        let error = block_on(pool.run("batch", || std::panic::panic_any(17u32))).unwrap_err();
        assert_eq!(error.to_string(), "the closure panicked");
        assert_eq!(error.into_panic().unwrap().downcast_ref(), Some(&17u32));
        assert_eq!(pool.run("batch", || 1).wait().unwrap(), 1);
        wait_for("the count", || pool.statistics().failed() == 2);
    });
}

#[test]
fn errors_go_anywhere() {
    fn anywhere<T: std::error::Error + Send + Sync + 'static>() {}
    anywhere::<RunError>();
    fn unpin<T: Send + Sync + Unpin + 'static>() {}
    unpin::<Job<std::cell::Cell<u8>>>();
    unpin::<Pool>();
}

/// A waker is called once the result is there, wherever the closure ends.
#[test]
fn no_result_is_missed() {
    with_pool(|pool| {
        thread::scope(|scope| {
            for way in 0..3 {
                scope.spawn(move || {
                    for n in 0..300u64 {
                        let mut job = pool.run("batch", move || n);
                        let result = match way {
                            0 => job.wait(),
                            1 => block_on(job),
                            _ => job.wait_timeout(PATIENCE).expect("a wake-up was lost"),
                        };
                        assert_eq!(result.unwrap(), n);
                    }
                });
            }
        });
    });
}

/// A configuration file's classes and those in code are put together.
#[test]
fn a_configuration_adds_to_the_classes() {
    let config = Config::from_toml(
        r#"
        contexts = 4
        [[class]]
        name = "extra"
        [[class]]
        name = "batch"
        deadline_us = 1000000
        "#,
    );
    let pool = Pool::builder(["interactive", "batch"]).config(config.unwrap());
    let pool = pool.start().unwrap();
    let names = pool
        .statistics()
        .classes
        .into_iter()
        .map(|class| class.name);
    assert!(names.eq(["interactive", "batch", "extra"]));
    assert_eq!(pool.run("extra", || 1).wait().unwrap(), 1);
}
