//! Shutting down, with and without requests that do not finish.

use super::*;

#[test]
fn shutdown_drains_what_was_admitted() {
    let runtime = jobs(config(2, MechanismKind::Probe));
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..50)
        .map(|n| {
            handle.submit(
                ClassId(0),
                Box::new(move || {
                    spin_for(Duration::from_micros(500));
                    n
                }),
            )
        })
        .collect();
    wait_for("the intake", || runtime.statistics().received == 50);
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.unwrap().wait(), Ok(n as u64));
    }
    assert_eq!(
        handle
            .submit(ClassId(0), Box::new(|| 1))
            .unwrap_err()
            .cause(),
        Refusal::ShuttingDown
    );
}

#[test]
fn an_observer_outlives_the_runtime_and_counts_what_submit_refuses() {
    let runtime = jobs(config(1, MechanismKind::Probe));
    let (handle, observer) = (runtime.handle(), runtime.observer());
    let ticket = handle.submit(ClassId(0), Box::new(|| 1)).unwrap();
    assert_eq!(ticket.wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
    assert!(handle.submit(ClassId(0), Box::new(|| 2)).is_err());
    let statistics = observer.statistics();
    assert_eq!((statistics.finished(), statistics.received), (1, 2));
    assert_eq!(statistics.refused.of(Refusal::ShuttingDown), 1);
}

#[test]
fn a_deadline_without_end_is_none() {
    let report = jobs(config(1, MechanismKind::Probe)).shutdown(Duration::MAX);
    assert!(report.is_clean(), "{report}");
}

/// Stopped within the allocator and never resumed, a request would keep its lock for good.
#[test]
fn after_an_unclean_shutdown_the_program_can_allocate() {
    if std::env::var_os("SHINJUKU_TEST_CHILD").is_none() {
        // In a process of its own, since unfinished requests go on in the background.
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::after_an_unclean_shutdown_the_program_can_allocate");
        must_pass(this_test(&name).env("SHINJUKU_TEST_CHILD", "1"));
        return;
    }
    // All requests come to one symmetric loop, which has half of the contexts.
    let runtime = jobs(config(2, MechanismKind::Signal).contexts(128));
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..64)
        .map(|n| {
            handle.submit(
                ClassId(0),
                Box::new(move || {
                    let mut kept: Vec<Vec<u8>> = Vec::new();
                    while std::hint::black_box(true) {
                        kept.push(Vec::with_capacity(1500 + (kept.len() * 97 + n) % 5000));
                        if kept.len() > 32 {
                            kept.clear();
                        }
                    }
                    0
                }),
            )
        })
        .collect();
    wait_for("preemptions", || {
        let statistics = runtime.statistics();
        statistics.started == 64 && statistics.preemptions.taken() > 200
    });
    let report = runtime.shutdown(Duration::ZERO);
    assert_eq!(report.unfinished.len(), 64, "{report}");
    for ticket in tickets {
        assert_eq!(ticket.unwrap().wait(), Err(TicketError::RuntimeEnded));
    }
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                let all: Vec<Vec<u8>> = (0..500)
                    .map(|n| Vec::with_capacity(1500 + n * 97 % 5000))
                    .collect();
                all.len()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 500);
    }
}
