//! The runtime from outside: requests submitted in this process.
#![allow(missing_docs)]

use std::collections::HashSet;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::net::{Failure, Refusal};
use shinjuku::policy::{
    CFcfs, ClassId, Full, Nanos, Policy, Requeue, Task, TaskId, Want, WorkerId,
};
use shinjuku::{
    ClassConfig, Config, HardPreemption, MechanismKind, PolicyKind, RequestContext, RequestHandler,
    Runtime, SubmitOptions, TicketError, handler_fn, in_context, preempt_point, without_preemption,
};

const PATIENCE: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce() -> u64 + Send>;

/// Tests run on whatever cores there are, several at a time.
fn config(workers: usize, mechanism: MechanismKind) -> Config {
    let mut config = Config {
        workers: Some(workers),
        contexts: 16,
        spare_workers: Some(4),
        ..Config::default()
    };
    config.cores.share = true;
    config.preemption.mechanism = mechanism;
    config.policy.quantum_us = 100.0;
    config
}

fn token() -> HardPreemption {
    // SAFETY: the tests' handlers rely on nothing that the token's contract excludes.
    unsafe { HardPreemption::allow() }
}

fn jobs(config: Config) -> Runtime<impl RequestHandler<Request = Job, Reply = u64>> {
    Runtime::builder(handler_fn(|job: Job| job()))
        .config(config)
        .allow_hard_preemption(token())
        .start()
        .unwrap()
}

fn spin_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        preempt_point();
    }
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_micros(200));
    }
}

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
    for kind in [
        PolicyKind::CFcfs,
        PolicyKind::CPreSq,
        PolicyKind::CPreMq,
        PolicyKind::DFcfs,
        PolicyKind::Stealing,
    ] {
        for depth in [1, 4] {
            let mut config = config(2, MechanismKind::Probe);
            config.policy.kind = kind;
            config.depth = depth;
            config.class = ["short", "long"]
                .map(|name| ClassConfig {
                    slo_us: Some(100.0),
                    ..ClassConfig::new(name)
                })
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
                assert_eq!(ticket.wait(), Ok(long), "{kind:?} at depth {depth}");
            }
            let report = runtime.shutdown(PATIENCE);
            assert!(
                report.is_clean() && report.policy_error.is_none(),
                "{kind:?} at depth {depth}: {report}"
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
        let preemptions = runtime.statistics().preemptions;
        assert!(preemptions.taken() > 0, "{mechanism}: {preemptions:?}");
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

#[test]
fn nothing_is_preempted_while_nothing_waits() {
    let runtime = jobs(config(1, MechanismKind::Escalation));
    let ticket = runtime.handle().submit(
        ClassId(0),
        Box::new(|| {
            spin_for(Duration::from_millis(50));
            1
        }),
    );
    assert_eq!(ticket.unwrap().wait(), Ok(1));
    let preemptions = runtime.statistics().preemptions;
    assert_eq!((preemptions.requested, preemptions.taken()), (0, 0));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_panic_fails_one_request_and_the_context_serves_on() {
    let runtime = jobs(Config {
        contexts: 1,
        ..config(1, MechanismKind::Probe)
    });
    let handle = runtime.handle();
    for round in 0..20 {
        let ticket = handle.submit(
            ClassId(0),
            Box::new(move || {
                if round % 2 == 0 {
                    panic!("on purpose")
                } else {
                    round
                }
            }),
        );
        let expected = if round % 2 == 0 {
            Err(TicketError::Failed(Failure::Panicked))
        } else {
            Ok(round)
        };
        assert_eq!(ticket.unwrap().wait(), expected);
    }
    wait_for("the count", || {
        runtime.statistics().failed() == 10 && runtime.statistics().finished() == 10
    });
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn full_is_a_counted_refusal() {
    let runtime = jobs(Config {
        queue: 3,
        contexts: 2,
        ..config(1, MechanismKind::None)
    });
    let handle = runtime.handle();
    let open = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&open);
    let first = handle.submit(
        ClassId(0),
        Box::new(move || {
            wait_for("the gate", || theirs.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let rest: Vec<_> = (0..10)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    wait_for("the refusals", || {
        runtime.statistics().refused.of(Refusal::QueueFull) == 7
    });
    open.store(true, Ordering::Relaxed);
    assert_eq!(first.unwrap().wait(), Ok(1));
    let answers: Vec<_> = rest.into_iter().map(|ticket| ticket.wait()).collect();
    assert_eq!(answers[..3], [Ok(0), Ok(1), Ok(2)]);
    assert!(
        answers[3..]
            .iter()
            .all(|answer| *answer == Err(TicketError::Refused(Refusal::QueueFull)))
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn what_has_not_started_by_its_deadline_is_refused() {
    let mut config = config(1, MechanismKind::None);
    config.class = vec![
        ClassConfig::new("patient"),
        ClassConfig {
            deadline_us: Some(1_000.0),
            ..ClassConfig::new("hasty")
        },
    ];
    let runtime = jobs(config);
    let handle = runtime.handle();
    let long = handle.submit(
        ClassId(0),
        Box::new(|| {
            spin_for(Duration::from_millis(30));
            1
        }),
    );
    let patient = handle.submit(ClassId(0), Box::new(|| 2)).unwrap();
    let hasty = handle.submit(ClassId(1), Box::new(|| 3)).unwrap();
    let own = SubmitOptions::default().deadline(Duration::from_millis(2));
    let own = handle.submit_with(own, Box::new(|| 4u64) as Job).unwrap();
    let unknown = handle.submit(ClassId(9), Box::new(|| 5)).unwrap();
    assert_eq!(long.unwrap().wait(), Ok(1));
    assert_eq!(patient.wait(), Ok(2));
    assert_eq!(
        hasty.wait(),
        Err(TicketError::Refused(Refusal::DeadlinePassed))
    );
    assert_eq!(
        own.wait(),
        Err(TicketError::Refused(Refusal::DeadlinePassed))
    );
    assert_eq!(
        unknown.wait(),
        Err(TicketError::Refused(Refusal::UnknownClass))
    );
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

#[test]
fn waiting_on_a_ticket_inside_a_handler_is_an_error() {
    let handle_cell: Arc<Mutex<Option<shinjuku::Handle<Job, u64>>>> = Arc::default();
    let runtime = jobs(config(1, MechanismKind::Probe));
    *handle_cell.lock().unwrap() = Some(runtime.handle());
    let theirs = Arc::clone(&handle_cell);
    let outer = runtime.handle().submit(
        ClassId(0),
        Box::new(move || {
            assert!(in_context());
            let handle = theirs.lock().unwrap().take().unwrap();
            let inner = handle.submit(ClassId(0), Box::new(|| 1)).unwrap();
            u64::from(inner.wait() == Err(TicketError::InsideHandler))
        }),
    );
    assert_eq!(outer.unwrap().wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

// --- progress ----------------------------------------------------------------------------------------------

/// Several handlers, one mutex, one worker: whoever has the lock first is preempted with it, and the others run into
/// it meanwhile.
fn several_handlers_one_mutex(config: Config, probes: bool) {
    let runtime = jobs(config);
    let handle = runtime.handle();
    let mutex = Arc::new(Mutex::new(0u64));
    let preempted = Arc::new(AtomicBool::new(false));
    let tickets: Vec<_> = (0..6)
        .map(|_| {
            let (mutex, preempted) = (Arc::clone(&mutex), Arc::clone(&preempted));
            handle.submit(
                ClassId(0),
                Box::new(move || {
                    let mut count = mutex.lock().unwrap();
                    let start = Instant::now();
                    while !preempted.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                        if probes {
                            preempt_point();
                        }
                    }
                    *count += 1;
                    *count
                }),
            )
        })
        .collect();
    wait_for("a preemption", || {
        runtime.statistics().preemptions.taken() > 0
    });
    preempted.store(true, Ordering::Relaxed);
    let answers: HashSet<u64> = tickets
        .into_iter()
        .map(|ticket| {
            ticket
                .unwrap()
                .wait_timeout(PATIENCE)
                .expect("nobody hangs")
                .unwrap()
        })
        .collect();
    assert_eq!(answers.len(), 6);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn progress_several_handlers_one_mutex_one_worker_probes_alone() {
    let config = Config {
        spare_workers: Some(8),
        ..config(1, MechanismKind::Probe)
    };
    several_handlers_one_mutex(config, true);
}

#[test]
fn progress_several_handlers_one_mutex_mq_at_the_head_and_signals() {
    let mut config = config(1, MechanismKind::Signal);
    config.policy.kind = PolicyKind::CPreMq;
    config.policy.requeue = Requeue::Head;
    config.class = vec![ClassConfig {
        slo_us: Some(50.0),
        ..ClassConfig::new("only")
    }];
    several_handlers_one_mutex(config, false);
}

#[test]
fn progress_a_spin_lock_with_the_spinner_at_the_head() {
    let mut config = config(1, MechanismKind::Probe);
    config.policy.requeue = Requeue::Head;
    let runtime = jobs(config);
    let handle = runtime.handle();
    let held = Arc::new(AtomicBool::new(false));
    let tickets: Vec<_> = (0..3)
        .map(|n| {
            let held = Arc::clone(&held);
            handle.submit(
                ClassId(0),
                Box::new(move || {
                    while held.swap(true, Ordering::Acquire) {
                        preempt_point();
                    }
                    spin_for(Duration::from_millis(2));
                    held.store(false, Ordering::Release);
                    n
                }),
            )
        })
        .collect();
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(
            ticket
                .unwrap()
                .wait_timeout(PATIENCE)
                .expect("nobody hangs"),
            Ok(n as u64)
        );
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn progress_a_handler_that_blocks_in_read_for_ever() {
    let runtime = jobs(Config {
        spare_workers: Some(4),
        ..config(1, MechanismKind::Probe)
    });
    let handle = runtime.handle();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let blocking = Arc::new(AtomicBool::new(false));
    let (seen, tell) = (Arc::clone(&blocking), Arc::clone(&blocking));
    // There is one worker: the other one starts only while this one is suspended.
    let long = handle.submit(
        ClassId(0),
        Box::new(move || {
            let start = Instant::now();
            while !seen.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                preempt_point();
            }
            1
        }),
    );
    let blocked = handle
        .submit(
            ClassId(0),
            Box::new(move || {
                tell.store(true, Ordering::Relaxed);
                let mut byte = [0];
                reader.read(&mut byte).unwrap() as u64
            }),
        )
        .unwrap();
    assert_eq!(
        long.unwrap()
            .wait_timeout(PATIENCE)
            .expect("a spare goes on with it"),
        Ok(1)
    );
    wait_for("the count of rescues", || runtime.statistics().rescued > 0);
    let report = runtime.shutdown(Duration::from_millis(50));
    assert_eq!(
        (
            report.unfinished.len(),
            report.contexts_leaked,
            report.workers_leaked
        ),
        (1, 1, 1),
        "{report}"
    );
    assert_eq!(blocked.wait(), Err(TicketError::RuntimeEnded));
    drop(writer);
}

#[test]
fn a_blocking_handler_is_preempted_by_signal() {
    let runtime = jobs(config(1, MechanismKind::Signal));
    let handle = runtime.handle();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let blocked = handle
        .submit(
            ClassId(0),
            Box::new(move || {
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
                u64::from(byte[0])
            }),
        )
        .unwrap();
    for n in 0..10 {
        let other = handle.submit(ClassId(0), Box::new(move || n)).unwrap();
        assert_eq!(
            other.wait(),
            Ok(n),
            "the worker is free while the other waits"
        );
    }
    std::io::Write::write_all(&mut writer, &[42]).unwrap();
    assert_eq!(blocked.wait(), Ok(42));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

// --- wrong policies, wrong handlers ------------------------------------------------------------------------

#[test]
fn a_wrong_policy_is_reported_and_nothing_is_lost() {
    /// Answers tasks it was never given, now and then.
    struct Liar(CFcfs, u32);
    impl Policy for Liar {
        fn arrive(&mut self, task: Task) -> Result<(), Full> {
            self.0.arrive(task)
        }
        fn preempted(&mut self, task: Task, worker: WorkerId, now: Nanos) {
            self.0.preempted(task, worker, now);
        }
        fn returned(&mut self, task: Task, worker: WorkerId) {
            self.0.returned(task, worker);
        }
        fn finished(&mut self, task: Task, worker: WorkerId) {
            self.0.finished(task, worker);
        }
        fn next(&mut self, worker: WorkerId, now: Nanos, want: Want) -> Option<Task> {
            self.1 += 1;
            let honest = self.0.next(worker, now, want)?;
            Some(if self.1 > 20 {
                Task {
                    id: TaskId(honest.id.0 + 1),
                    ..honest
                }
            } else {
                honest
            })
        }
        fn remove(&mut self, id: TaskId, worker: WorkerId) -> Option<Task> {
            self.0.remove(id, worker)
        }
        fn quantum(&self, task: &Task) -> Option<Nanos> {
            self.0.quantum(task)
        }
        fn waiting(&self, worker: WorkerId, want: Want) -> usize {
            self.0.waiting(worker, want)
        }
        fn len(&self) -> usize {
            self.0.len()
        }
        fn name(&self) -> String {
            "liar".into()
        }
    }
    let config = config(1, MechanismKind::Probe);
    let policy = Liar(CFcfs::new(config.task_capacity(1)).unwrap(), 0);
    let runtime = Runtime::builder(handler_fn(|n: u64| n))
        .config(config)
        .own_policy(Box::new(policy))
        .start()
        .unwrap();
    let handle = runtime.handle();
    let tickets: Vec<_> = (0..200)
        .map(|n| handle.submit(ClassId(0), n).unwrap())
        .collect();
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.wait(), Ok(n as u64));
    }
    let report = runtime.shutdown(PATIENCE);
    assert!(
        report.is_clean() && report.policy_error.is_some(),
        "{report}"
    );
}

#[test]
fn start_errors_say_what_to_do() {
    let strict = Config {
        strict: true,
        ..config(1, MechanismKind::Signal)
    };
    let error = Runtime::builder(handler_fn(|n: u64| n))
        .config(strict)
        .start()
        .unwrap_err()
        .to_string();
    assert!(error.contains("allow_hard_preemption"), "{error}");
    let lenient = config(1, MechanismKind::Signal);
    let runtime = Runtime::builder(handler_fn(|n: u64| n))
        .config(lenient)
        .start()
        .unwrap();
    assert!(
        runtime.description().contains("probe, because"),
        "{}",
        runtime.description()
    );
    drop(runtime);
    struct Broken;
    impl RequestHandler for Broken {
        type Request = ();
        type Reply = ();
        type PerCore = ();
        fn init(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            Err("the data file is missing".into())
        }
        fn init_per_core(&self, _: usize) {}
        fn handle_request(&self, (): (), _: &RequestContext<'_, ()>) {}
    }
    let error = Runtime::builder(Broken)
        .config(config(1, MechanismKind::Probe))
        .start()
        .unwrap_err()
        .to_string();
    assert!(error.contains("the data file is missing"), "{error}");
    struct PanicsPerCore;
    impl RequestHandler for PanicsPerCore {
        type Request = ();
        type Reply = ();
        type PerCore = ();
        fn init_per_core(&self, worker: usize) {
            assert!(worker < 1, "on purpose");
        }
        fn handle_request(&self, (): (), _: &RequestContext<'_, ()>) {}
    }
    let error = Runtime::builder(PanicsPerCore)
        .config(config(2, MechanismKind::Probe))
        .start()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("init_per_core panicked on the thread of worker 1"),
        "{error}"
    );
}

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
fn guarded_sections_are_not_interrupted_by_signals() {
    // Without spares: one that stands in for a worker the kernel took off its core runs beside it.
    let runtime = jobs(Config {
        spare_workers: Some(0),
        ..config(1, MechanismKind::Signal)
    });
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

// --- found by review ----------------------------------------------------------------------------------------

#[test]
fn an_idle_worker_takes_what_is_staged_elsewhere() {
    let mut config = config(2, MechanismKind::None);
    config.policy.kind = PolicyKind::CFcfs;
    config.depth = 2;
    let runtime = jobs(config);
    let handle = runtime.handle();
    let (stop, started) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let (their_stop, theirs) = (Arc::clone(&stop), Arc::clone(&started));
    let endless = handle.submit(
        ClassId(0),
        Box::new(move || {
            theirs.fetch_add(1, Ordering::Relaxed);
            wait_for("the end", || their_stop.load(Ordering::Relaxed));
            0
        }),
    );
    wait_for("the start", || started.load(Ordering::Relaxed) == 1);
    // Some of these are staged behind the endless one, and come back when the other worker has done the rest.
    let tickets: Vec<_> = (0..3)
        .map(|n| handle.submit(ClassId(0), Box::new(move || n)).unwrap())
        .collect();
    for (n, mut ticket) in tickets.into_iter().enumerate() {
        assert_eq!(
            ticket
                .wait_timeout(PATIENCE)
                .expect("not behind the endless one"),
            Ok(n as u64)
        );
    }
    stop.store(true, Ordering::Relaxed);
    assert_eq!(endless.unwrap().wait(), Ok(0));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_staged_request_does_not_outlive_its_deadline() {
    let mut config = config(1, MechanismKind::None);
    config.depth = 2;
    let runtime = jobs(config);
    let handle = runtime.handle();
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let long = handle.submit(
        ClassId(0),
        Box::new(move || {
            wait_for("the end", || theirs.load(Ordering::Relaxed));
            1
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let options = SubmitOptions::new(ClassId(0)).deadline(Duration::from_millis(5));
    let staged = handle
        .submit_with(options, Box::new(|| 2u64) as Job)
        .unwrap();
    std::thread::sleep(Duration::from_millis(60));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(
        staged.wait(),
        Err(TicketError::Refused(Refusal::DeadlinePassed))
    );
    assert_eq!(long.unwrap().wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_deadline_without_end_is_none() {
    assert!(
        jobs(config(1, MechanismKind::Probe))
            .shutdown(Duration::MAX)
            .is_clean()
    );
}

/// Without a mechanism that interrupts blocked handlers there is a spare for each that can be blocked.
#[test]
fn progress_thirty_handlers_one_mutex_probes_alone() {
    let config = Config {
        contexts: 32,
        spare_workers: None,
        ..config(1, MechanismKind::Probe)
    };
    let runtime = jobs(config);
    let handle = runtime.handle();
    let lock = Arc::new(Mutex::new(()));
    let started = Arc::new(AtomicU64::new(0));
    let tickets: Vec<_> = (0..30)
        .map(|n| {
            let (lock, started) = (Arc::clone(&lock), Arc::clone(&started));
            handle.submit(
                ClassId(0),
                Box::new(move || {
                    started.fetch_add(1, Ordering::Relaxed);
                    while started.load(Ordering::Relaxed) < 30 {
                        preempt_point();
                    }
                    let _held = lock.lock().unwrap();
                    spin_for(Duration::from_millis(1));
                    n
                }),
            )
        })
        .collect();
    for (n, ticket) in tickets.into_iter().enumerate() {
        let answer = ticket
            .unwrap()
            .wait_timeout(PATIENCE)
            .expect("nobody hangs");
        assert_eq!(answer, Ok(n as u64));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Stopped within the allocator and never resumed, a request would keep its lock for good.
#[test]
fn after_an_unclean_shutdown_the_program_can_allocate() {
    if std::env::var_os("SHINJUKU_TEST_CHILD").is_none() {
        // In a process of its own: what does not finish goes on in the background.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "after_an_unclean_shutdown_the_program_can_allocate",
                "--exact",
            ])
            .env("SHINJUKU_TEST_CHILD", "1")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > 2 * PATIENCE {
                child.kill().unwrap();
                panic!("the program hangs");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success());
        return;
    }
    let runtime = jobs(Config {
        contexts: 64,
        ..config(2, MechanismKind::Signal)
    });
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
        runtime.statistics().preemptions.taken() > 200
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

/// Dispatcher and worker on one core, each spinning at the same real-time priority, would wait for each other for ever.
#[test]
fn one_shared_core_serves_under_real_time_priority() {
    std::thread::spawn(|| {
        let core = core_affinity::get_core_ids().unwrap()[0];
        assert!(core_affinity::set_for_current(core));
        for idle_backoff_us in [100.0, 0.0] {
            let config = Config {
                realtime_priority: Some(1),
                idle_backoff_us,
                ..config(1, MechanismKind::Probe)
            };
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
