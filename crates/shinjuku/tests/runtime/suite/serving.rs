//! Serving: requests in, replies out, short ones past long ones.

use super::*;

#[test]
fn requests_are_answered_from_any_thread() {
    let runtime = Runtime::builder(handler_fn(|n: u64| n * 2))
        .config(config(2, MechanismKind::Probe))
        .start()
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let handle = runtime.handle();
            scope.spawn(move || {
                for n in 0..500 {
                    let ticket = handle.submit(ClassId(0), thread * 1000 + n).unwrap();
                    assert_eq!(ticket.wait().unwrap(), 2 * (thread * 1000 + n));
                }
            });
        }
    });
    let statistics = runtime.statistics();
    assert_eq!((statistics.received, statistics.failed()), (2000, 0));
    assert!(statistics.to_string().contains("2000"), "{statistics}");
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.contexts_returned, 16);
}

#[test]
fn every_policy_serves() {
    for registered in registry::ALL {
        for depth in [1, 4] {
            let mut config = config(2, MechanismKind::Probe);
            config.policy.kind = (*registered).into();
            config.depth = Some(depth);
            config.class = ["short", "long"]
                .map(|name| ClassConfig::new(name).slo_us(100.0))
                .to_vec();
            let runtime = Runtime::builder(handler_fn(|long: bool| {
                spin_for(Duration::from_micros(if long { 1500 } else { 1 }));
                long
            }))
            .config(config)
            .start()
            .unwrap();
            let handle = runtime.handle();
            let tickets: Vec<_> = (0..300u64)
                .map(|n| {
                    let long = n % 20 == 0;
                    let options = SubmitOptions::new(ClassId(u16::from(long)))
                        .flow(shinjuku::policy::FlowId(n % 7));
                    (long, handle.submit_with(options, long).unwrap())
                })
                .collect();
            for (long, ticket) in tickets {
                assert_eq!(ticket.wait(), Ok(long), "{registered} at depth {depth}");
            }
            let report = runtime.shutdown(PATIENCE);
            assert!(
                report.is_clean() && report.policy_error.is_none(),
                "{registered} at depth {depth}: {report}"
            );
        }
    }
}

#[test]
fn a_short_request_overtakes_a_long_one_by_probe_and_by_signal() {
    for mechanism in [
        MechanismKind::Probe,
        MechanismKind::Signal,
        MechanismKind::Escalation,
        MechanismKind::Auto,
    ] {
        let runtime = jobs(config(1, mechanism));
        let handle = runtime.handle();
        let done = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&done);
        let probes = mechanism == MechanismKind::Probe;
        let long = handle
            .submit(
                ClassId(0),
                Box::new(move || {
                    let start = Instant::now();
                    while !theirs.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                        if probes {
                            preempt_point();
                        }
                    }
                    u64::from(theirs.load(Ordering::Relaxed))
                }),
            )
            .unwrap();
        let short = handle.submit(
            ClassId(0),
            Box::new(move || {
                done.store(true, Ordering::Relaxed);
                7
            }),
        );
        assert_eq!(short.unwrap().wait(), Ok(7));
        assert_eq!(
            long.wait(),
            Ok(1),
            "{mechanism}: the short one ran while the long one was suspended"
        );
        // A host that takes the core away may have a spare come first, which is counted once it is
        // sent the request.
        wait_for("the count", || {
            let statistics = runtime.statistics();
            statistics.preemptions.taken() + statistics.rescued > 0
        });
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

#[test]
fn guarded_sections_are_not_interrupted_by_signals() {
    // Without spares: if the kernel takes the worker off its core, a spare would run beside it.
    let runtime = jobs(config(1, MechanismKind::Signal).spare_workers(0));
    let handle = runtime.handle();
    let inside = Arc::new(AtomicU64::new(0));
    let enough = Arc::new(AtomicBool::new(false));
    let tickets: Vec<_> = (0..4)
        .map(|_| {
            let (inside, enough) = (Arc::clone(&inside), Arc::clone(&enough));
            handle.submit(
                ClassId(0),
                Box::new(move || {
                    let (mut worst, start) = (0, Instant::now());
                    while !enough.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                        without_preemption(|| {
                            worst = worst.max(inside.fetch_add(1, Ordering::Relaxed));
                            let end = Instant::now() + Duration::from_micros(50);
                            while Instant::now() < end {}
                            inside.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                    worst
                }),
            )
        })
        .collect();
    wait_for(
        "a preemption held off, and taken at the end of the guard",
        || {
            let preemptions = runtime.statistics().preemptions;
            preemptions.deferred > 0 && preemptions.taken() > 20
        },
    );
    enough.store(true, Ordering::Relaxed);
    for ticket in tickets {
        assert_eq!(
            ticket.unwrap().wait(),
            Ok(0),
            "one worker: never two inside"
        );
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn per_core_state_is_reached_with_preemption_held_off() {
    struct Counting {
        started: AtomicU64,
    }
    impl RequestHandler for Counting {
        type Request = ();
        type Reply = u64;
        type PerCore = (usize, u64);

        fn init(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            self.started.store(1, Ordering::Relaxed);
            Ok(())
        }

        fn init_per_core(&self, worker: usize) -> (usize, u64) {
            assert_eq!(self.started.load(Ordering::Relaxed), 1, "init comes first");
            (worker, 0)
        }

        fn handle_request(&self, (): (), context: &RequestContext<'_, (usize, u64)>) -> u64 {
            spin_for(Duration::from_micros(300));
            context.per_core(|(_, count)| {
                let before = *count;
                spin_for(Duration::from_micros(50));
                *count = before + 1;
                *count
            })
        }
    }
    let runtime = Runtime::builder(Counting {
        started: AtomicU64::new(0),
    })
    .config(config(2, MechanismKind::Escalation))
    .allow_hard_preemption(token())
    .start()
    .unwrap();
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..100)
        .map(|_| handle.submit(ClassId(0), ()).unwrap())
        .collect();
    let counts: Vec<u64> = tickets
        .into_iter()
        .map(|ticket| ticket.wait().unwrap())
        .collect();
    // No increment was lost: the counts of the workers are 1, 2, 3 ... each.
    let most = counts.iter().max().unwrap();
    assert!(
        *most <= 100 && counts.iter().filter(|&&count| count == 1).count() <= 6,
        "{counts:?}"
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Dispatcher and worker on one core, each spinning at the same real-time priority, would wait for
/// each other for ever.
#[test]
fn one_shared_core_serves_under_real_time_priority() {
    std::thread::spawn(|| {
        let core = core_affinity::get_core_ids().unwrap()[0];
        assert!(core_affinity::set_for_current(core));
        for idle_backoff_us in [100.0, 0.0] {
            let config = config(1, MechanismKind::Probe)
                .realtime_priority(1)
                .idle_backoff_us(idle_backoff_us);
            let started = Runtime::builder(handler_fn(|n: u64| n + 1))
                .config(config)
                .start();
            let runtime = match started {
                Ok(runtime) => runtime,
                Err(shinjuku::StartError::Realtime(error)) => {
                    println!("SKIPPED one_shared_core_serves_under_real_time_priority: {error}");
                    return;
                }
                Err(error) => panic!("{error}"),
            };
            for n in 0..50 {
                let mut ticket = runtime.handle().submit(ClassId(0), n).unwrap();
                assert_eq!(ticket.wait_timeout(PATIENCE).expect("answered"), Ok(n + 1));
            }
            assert!(runtime.shutdown(PATIENCE).is_clean());
        }
    })
    .join()
    .unwrap();
}
