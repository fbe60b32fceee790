//! The runtime's tests once more, in the inline layout.

#[path = "suite/mod.rs"]
mod suite;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::net::{Failure, Refusal};
use shinjuku::policy::{ClassId, Full, Nanos, Policy, Task, TaskId, Want, WorkerId};
use shinjuku::{
    ClassConfig, MechanismKind, PolicyConfig, Runtime, SubmitOptions, TicketError, handler_fn,
    preempt_point,
};
use shinjuku_tests_support::{PATIENCE, wait_for};

use self::suite::{Job, config, jobs, spin_for};

#[test]
fn what_arrived_while_a_request_ran_is_refused_beyond_the_bound() {
    let runtime = jobs(config(1, MechanismKind::None).queue(3).contexts(2));
    let handle = runtime.handle();
    let (started, open) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (starts, gate) = (Arc::clone(&started), Arc::clone(&open));
    let first = handle.submit(
        ClassId(0),
        Box::new(move || {
            starts.store(true, Ordering::Relaxed);
            wait_for("the gate", || gate.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || started.load(Ordering::Relaxed));
    let rest: Vec<_> = (0..10)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    open.store(true, Ordering::Relaxed);
    assert_eq!(first.unwrap().wait(), Ok(1));
    let answers: Vec<_> = rest.into_iter().map(|ticket| ticket.wait()).collect();
    assert_eq!(answers[..3], [Ok(0), Ok(1), Ok(2)]);
    // A turn takes as many requests as there are slots; three of these may wait.
    let refused = Err(TicketError::Refused(Refusal::QueueFull));
    assert!(answers[3..].contains(&refused), "{answers:?}");
    let as_they_should = |(n, answer)| answer == &Ok(n) || answer == &refused;
    assert!((0..).zip(&answers).all(as_they_should), "{answers:?}");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// The requests behind the first wait together, and each follows the one before on its context,
/// except those whose deadline is over.
#[test]
fn in_a_row_each_keeps_its_place_and_its_deadline() {
    let runtime = jobs(config(1, MechanismKind::None));
    let handle = runtime.handle();
    let started = Arc::new(AtomicBool::new(false));
    let open = Arc::new(AtomicBool::new(false));
    let (starts, gate) = (Arc::clone(&started), Arc::clone(&open));
    let first = Box::new(move || {
        starts.store(true, Ordering::Relaxed);
        wait_for("the gate", || gate.load(Ordering::Relaxed));
        0
    });
    let first = handle.submit(ClassId(0), first).unwrap();
    wait_for("the start", || started.load(Ordering::Relaxed));
    let ran = Arc::new(AtomicU64::new(0));
    let late = SubmitOptions::new(ClassId(0)).deadline(Duration::from_millis(1));
    let rest: Vec<_> = (1..=40)
        .map(|number| {
            let ran = Arc::clone(&ran);
            let job = Box::new(move || {
                if number % 7 == 0 {
                    panic!("meant");
                }
                assert_ne!(number % 5, 0, "its time was over");
                ran.fetch_add(1, Ordering::Relaxed)
            });
            let options = match number % 5 {
                0 => late,
                _ => SubmitOptions::new(ClassId(0)),
            };
            handle.submit_with(options, job).unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_millis(3));
    open.store(true, Ordering::Relaxed);
    assert_eq!(first.wait(), Ok(0));
    let mut place = 0;
    for (number, ticket) in (1..).zip(rest) {
        let expected = match number {
            _ if number % 5 == 0 => Err(TicketError::Refused(Refusal::DeadlinePassed)),
            _ if number % 7 == 0 => Err(TicketError::Failed(Failure::Panicked)),
            _ => {
                place += 1;
                Ok(place - 1)
            }
        };
        assert_eq!(ticket.wait(), expected, "request {number}");
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
}

#[test]
fn others_are_served_while_handlers_sleep() {
    let runtime = jobs(config(1, MechanismKind::Probe).spare_workers(3));
    let handle = runtime.handle();
    let open = Arc::new(AtomicBool::new(false));
    let sleepers: Vec<_> = (0..3)
        .map(|_| {
            let gate = Arc::clone(&open);
            handle.submit(
                ClassId(0),
                Box::new(move || {
                    wait_for("the gate", || gate.load(Ordering::Relaxed));
                    1
                }),
            )
        })
        .collect();
    for n in 0..100 {
        let mut ticket = handle.submit(ClassId(0), Box::new(move || n)).unwrap();
        assert_eq!(ticket.wait_timeout(PATIENCE).expect("none hangs"), Ok(n));
    }
    open.store(true, Ordering::Relaxed);
    for sleeper in sleepers {
        assert_eq!(sleeper.unwrap().wait(), Ok(1));
    }
    // Relieved threads stand by again, and can relieve others.
    let again = handle.submit(
        ClassId(0),
        Box::new(|| {
            std::thread::sleep(Duration::from_millis(50));
            2
        }),
    );
    let meanwhile = handle.submit(ClassId(0), Box::new(|| 3)).unwrap();
    assert_eq!(meanwhile.wait(), Ok(3));
    assert_eq!(again.unwrap().wait(), Ok(2));
    let statistics = runtime.statistics();
    assert!(statistics.rescued >= 3, "{statistics}");
    let report = runtime.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
}

#[test]
fn a_request_short_of_its_deadline_is_not_preempted() {
    let mut config = config(1, MechanismKind::Escalation);
    config.policy.quantum_us = 3.6e9;
    let runtime = jobs(config);
    for _ in 0..20 {
        let ticket = runtime.handle().submit(
            ClassId(0),
            Box::new(|| {
                spin_for(Duration::from_millis(2));
                1
            }),
        );
        assert_eq!(ticket.unwrap().wait(), Ok(1));
    }
    assert_eq!(runtime.statistics().preemptions.taken(), 0);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// The gauges show a request before it runs, since its thread publishes nothing meanwhile.
#[test]
fn statistics_know_of_the_request_that_runs() {
    let runtime = jobs(config(1, MechanismKind::Probe).spare_workers(0));
    let handle = runtime.handle();
    for _ in 0..20 {
        wait_for("quiet", || runtime.statistics().running == 0);
        let (started, open) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (starts, gate) = (Arc::clone(&started), Arc::clone(&open));
        let job = move || {
            starts.store(true, Ordering::Release);
            wait_for("the gate", || gate.load(Ordering::Acquire));
            1
        };
        let ticket = handle.submit(ClassId(0), Box::new(job)).unwrap();
        wait_for("the start", || started.load(Ordering::Acquire));
        let now = runtime.statistics();
        assert_eq!((now.waiting, now.started, now.running), (0, 1, 1), "{now}");
        open.store(true, Ordering::Release);
        assert_eq!(ticket.wait(), Ok(1));
    }
    // Quanta are of time on the CPU, of which a busy machine may give a request little.
    wait_for("a preemption", || {
        let long = handle.submit(
            ClassId(0),
            Box::new(|| {
                spin_for(Duration::from_millis(5));
                2
            }),
        );
        assert_eq!(long.unwrap().wait(), Ok(2));
        let preemptions = runtime.statistics().preemptions;
        preemptions.taken() > 0 && preemptions.requested > 0
    });
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_long_request_with_probes_and_one_without_let_a_short_one_by() {
    for (mechanism, probes) in [
        (MechanismKind::Probe, true),
        (MechanismKind::Signal, false),
        (MechanismKind::Escalation, false),
    ] {
        let runtime = jobs(config(1, mechanism));
        let handle = runtime.handle();
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let long = handle.submit(
            ClassId(0),
            Box::new(move || {
                let start = Instant::now();
                while !seen.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                    if probes {
                        preempt_point();
                    }
                }
                u64::from(start.elapsed() < PATIENCE)
            }),
        );
        let short = handle.submit(
            ClassId(0),
            Box::new(move || {
                done.store(true, Ordering::Relaxed);
                7
            }),
        );
        assert_eq!(short.unwrap().wait(), Ok(7), "{mechanism}");
        assert_eq!(long.unwrap().wait(), Ok(1), "{mechanism}");
        let statistics = runtime.statistics();
        // A host that takes the core away may have a spare come first.
        let is_overtaken = statistics.preemptions.taken() + statistics.rescued;
        assert!(is_overtaken > 0, "{mechanism}: {statistics:?}");
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

/// Makes seven short requests wait behind one that is held, and then those of `submit`. So the
/// latter follow a short one on its context.
fn behind_short_ones<Out>(
    handle: &shinjuku::Handle<suite::Job, u64>,
    submit: impl FnOnce() -> Out,
) -> Out {
    let started = Arc::new(AtomicBool::new(false));
    let open = Arc::new(AtomicBool::new(false));
    let (starts, gate) = (Arc::clone(&started), Arc::clone(&open));
    let first = Box::new(move || {
        starts.store(true, Ordering::Relaxed);
        wait_for("the gate", || gate.load(Ordering::Relaxed));
        0
    });
    let first = handle.submit(ClassId(0), first).unwrap();
    wait_for("the start", || started.load(Ordering::Relaxed));
    let short: Vec<_> = (1..8)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    let out = submit();
    open.store(true, Ordering::Relaxed);
    assert_eq!(first.wait(), Ok(0));
    for (n, ticket) in (1..).zip(short) {
        assert_eq!(ticket.wait(), Ok(n));
    }
    out
}

#[test]
fn whoever_goes_on_from_a_short_one_is_preempted_as_ever() {
    const BOUND: Duration = Duration::from_secs(30);
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        let runtime = jobs(config(1, mechanism));
        let handle = runtime.handle();
        for _ in 0..20 {
            let (long, short) = behind_short_ones(&handle, || {
                let passed = Arc::new(AtomicBool::new(false));
                let passes = Arc::clone(&passed);
                let long = Box::new(move || {
                    let start = Instant::now();
                    while !passed.load(Ordering::Relaxed) && start.elapsed() < BOUND {
                        if mechanism == MechanismKind::Probe {
                            preempt_point();
                        }
                    }
                    u64::from(start.elapsed() < BOUND)
                });
                let short = Box::new(move || {
                    passes.store(true, Ordering::Relaxed);
                    7
                });
                let long = handle.submit(ClassId(0), long).unwrap();
                (long, handle.submit(ClassId(0), short).unwrap())
            });
            assert_eq!(short.wait(), Ok(7));
            assert_eq!(long.wait(), Ok(1), "{mechanism}: the short one got by");
        }
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

#[test]
fn whoever_goes_on_from_a_short_one_is_relieved_when_it_blocks() {
    let runtime = jobs(config(1, MechanismKind::Probe).spare_workers(2));
    let handle = runtime.handle();
    for _ in 0..20 {
        let (blocking, short) = behind_short_ones(&handle, || {
            let (tell, told) = std::sync::mpsc::channel();
            let blocking = Box::new(move || u64::from(told.recv_timeout(PATIENCE).is_ok()));
            let short = Box::new(move || {
                let _ = tell.send(());
                7
            });
            let blocking = handle.submit(ClassId(0), blocking).unwrap();
            (blocking, handle.submit(ClassId(0), short).unwrap())
        });
        assert_eq!(short.wait(), Ok(7));
        assert_eq!(blocking.wait(), Ok(1));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Each request has its own arrival and class. (`src/worker/tests.rs` checks its service time: here
/// a row is over within 10 us, and another request's time would hardly show.)
#[test]
fn whoever_goes_on_from_another_is_counted_by_itself() {
    const LONG: Duration = Duration::from_millis(100);
    let runtime = jobs(
        config(1, MechanismKind::None)
            .class([ClassConfig::new("before"), ClassConfig::new("after")]),
    );
    let handle = runtime.handle();
    let after: Vec<_> = behind_short_ones(&handle, || {
        let long = Box::new(|| {
            spin_for(LONG);
            1
        });
        let _long = handle.submit(ClassId(0), long).unwrap();
        (0..9)
            .map(|n| handle.submit(ClassId(1), Box::new(move || n)).unwrap())
            .collect()
    });
    for (n, ticket) in (0..).zip(after) {
        assert_eq!(ticket.wait(), Ok(n));
    }
    let report = runtime.shutdown(PATIENCE);
    let statistics = report.statistics.expect("it had started");
    let after = &statistics.classes[1];
    assert_eq!(after.finished, 9);
    let (least, slowdown) = (after.latency(0.0), after.slowdown(0.5));
    assert!(least >= LONG.mul_f64(0.9), "{least:?}");
    assert!(slowdown > 3.0, "{slowdown}");
}

/// The next request is taken from the dispatcher on the context's stack, which has room for that
/// beside what handlers are promised.
#[test]
fn large_requests_follow_each_other_on_small_stacks() {
    const STACK_KIB: usize = 128;
    type Large = [u8; 8 * 1024];
    let config = config(1, MechanismKind::None)
        .stack_kib(STACK_KIB)
        .contexts(2);
    let runtime = shinjuku::Runtime::builder(shinjuku::handler_fn(|request: Large| request[7]))
        .config(config)
        .start()
        .unwrap();
    let handle = runtime.handle();
    for _ in 0..20 {
        let tickets: Vec<_> = (0..32)
            .map(|n| (n, handle.submit(ClassId(0), [n; 8 * 1024]).unwrap()))
            .collect();
        for (n, ticket) in tickets {
            assert_eq!(ticket.wait(), Ok(n));
        }
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn auto_says_what_preempting_costs_on_this_thread() {
    let describe = || {
        let runtime = jobs(config(1, MechanismKind::Auto));
        let description = runtime.description();
        println!("{description}");
        assert!(
            description.starts_with("inline on any core"),
            "{description}"
        );
        assert!(description.contains("then signal"), "{description}");
        assert!(runtime.shutdown(PATIENCE).is_clean());
        description
    };
    let start = Instant::now();
    loop {
        let description = describe();
        if description.contains("the rest measured") {
            return;
        }
        // That is right if the machine was too busy for the calibration.
        let is_assumed = description.contains("assumed: the calibration could not run");
        assert!(is_assumed && start.elapsed() < PATIENCE, "{description}");
    }
}

/// A quantum that is shorter than setting the timer, entering a context, and returning into a
/// request that a signal stopped.
#[test]
fn a_quantum_shorter_than_its_cost_lets_requests_get_on_all_the_same() {
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        let mut config = config(1, mechanism);
        config.policy.quantum_us = 0.001;
        let runtime = jobs(config);
        let handle = runtime.handle();
        let work = || (0..300_000u64).fold(1, |value, n| std::hint::black_box(value ^ n));
        let tickets: Vec<_> = (0..4)
            .map(|_| handle.submit(ClassId(0), Box::new(work)).unwrap())
            .collect();
        for mut ticket in tickets {
            assert!(ticket.wait_timeout(PATIENCE).expect("it gets on").is_ok());
        }
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

/// Nothing is preempted, so no thread relieves the request's thread. Nevertheless the end comes,
/// and reports the request.
#[test]
fn a_blocked_request_without_a_deadline_is_reported_at_the_end() {
    let runtime = jobs(config(1, MechanismKind::None));
    let (started, open) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (starts, gate) = (Arc::clone(&started), Arc::clone(&open));
    let blocked = runtime.handle().submit(
        ClassId(0),
        Box::new(move || {
            starts.store(true, Ordering::Relaxed);
            wait_for("the gate", || gate.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || started.load(Ordering::Relaxed));
    let report = runtime.shutdown(Duration::from_millis(50));
    assert_eq!(report.unfinished, ["default"], "{report}");
    assert_eq!(report.contexts_leaked, 1, "{report}");
    open.store(true, Ordering::Relaxed);
    drop(blocked);
}

/// First come, first served, with a quantum while that is wanted.
struct SomeQuanta(VecDeque<Task>);

static HAS_QUANTUM: AtomicBool = AtomicBool::new(true);

impl Policy for SomeQuanta {
    fn arrive(&mut self, task: Task) -> Result<(), Full> {
        self.0.push_back(task);
        Ok(())
    }
    fn preempted(&mut self, task: Task, _: WorkerId, _: Nanos) {
        self.0.push_back(task);
    }
    fn returned(&mut self, task: Task, _: WorkerId) {
        self.0.push_front(task);
    }
    fn next(&mut self, worker: WorkerId, _: Nanos, want: Want) -> Option<Task> {
        let first = self.0.iter().find(|task| want.includes(task))?.id;
        self.remove(first, worker)
    }
    fn remove(&mut self, id: TaskId, _: WorkerId) -> Option<Task> {
        let at = self.0.iter().position(|task| task.id == id)?;
        self.0.remove(at)
    }
    fn quantum(&self, _: &Task) -> Option<Nanos> {
        let has_quantum = HAS_QUANTUM.load(Ordering::Relaxed);
        has_quantum.then_some(Nanos::from_micros(200))
    }
    fn waiting(&self, _: WorkerId, want: Want) -> usize {
        self.0.iter().filter(|task| want.includes(task)).count()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn name(&self) -> String {
        "some quanta".to_owned()
    }
}

/// The holder is the last one that is suspended. With it the waiter waits again, for whose sake the
/// holder has a deadline.
#[test]
fn progress_who_stood_aside_for_a_lock_waits_while_the_holder_runs() {
    let runtime = Runtime::builder(handler_fn(|job: Job| job()))
        .policy_with("some-quanta", |given| {
            Ok(Box::new(SomeQuanta(VecDeque::with_capacity(
                given.capacity,
            ))))
        })
        .config(config(1, MechanismKind::Signal).policy(PolicyConfig::new("some-quanta")))
        .allow_hard_preemption(suite::token())
        .start()
        .unwrap();
    let handle = runtime.handle();
    let lock = Arc::new(Mutex::new(()));
    let (held, has_it) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (locks, holds, has_gone_on) = (Arc::clone(&lock), Arc::clone(&held), Arc::clone(&has_it));
    let until = |condition: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !condition() && start.elapsed() < PATIENCE {
            spin_for(Duration::from_micros(10));
        }
    };
    let holder = Box::new(move || {
        let guard = locks.lock();
        holds.store(true, Ordering::Relaxed);
        until(&|| !HAS_QUANTUM.load(Ordering::Relaxed));
        drop(guard);
        until(&|| has_gone_on.load(Ordering::Relaxed));
        has_gone_on.load(Ordering::Relaxed).into()
    });
    let holder = handle.submit(ClassId(0), holder).unwrap();
    wait_for("the lock", || held.load(Ordering::Relaxed));
    let waiter = Box::new(move || {
        // This request has its own already.
        HAS_QUANTUM.store(false, Ordering::Relaxed);
        let _guard = lock.lock();
        has_it.store(true, Ordering::Relaxed);
        7
    });
    let waiter = handle.submit(ClassId(0), waiter).unwrap();
    assert_eq!((holder.wait(), waiter.wait()), (Ok(1), Ok(7)));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}
