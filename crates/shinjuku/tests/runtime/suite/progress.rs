//! Progress: locks held by suspended requests, and handlers that block.

use super::*;

/// Several handlers, one mutex, one worker: the first to have the lock is preempted with it, and
/// the others run into it meanwhile.
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
                .expect("none hangs")
                .unwrap()
        })
        .collect();
    assert_eq!(answers.len(), 6);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn progress_several_handlers_one_mutex_one_worker_probes_alone() {
    let config = config(1, MechanismKind::Probe).spare_workers(8);
    several_handlers_one_mutex(config, true);
}

#[test]
fn progress_several_handlers_one_mutex_mq_at_the_head_and_signals() {
    let mut config = config(1, MechanismKind::Signal);
    config.policy.kind = "c-pre-mq".into();
    config.policy.requeue = Some(Requeue::Head);
    config.class = vec![ClassConfig::new("only").slo_us(50.0)];
    several_handlers_one_mutex(config, false);
}

/// By default there is a spare for each handler that can be blocked.
#[test]
fn progress_thirty_handlers_one_mutex_probes_alone() {
    let runtime = jobs(with_default_spares(MechanismKind::Probe));
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
        let answer = ticket.unwrap().wait_timeout(PATIENCE).expect("none hangs");
        assert_eq!(answer, Ok(n as u64));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// One request has the lock and is stopped by signal. The others wait for the lock where no signal
/// stops them, as an allocation does within `without_preemption`.
#[test]
fn progress_thirty_handlers_one_mutex_behind_guards_and_signals() {
    let runtime = jobs(with_default_spares(MechanismKind::Signal));
    let handle = runtime.handle();
    let lock = Arc::new(Mutex::new(()));
    let (started, blocked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let reaches = |count: &AtomicU64, number| {
        let start = Instant::now();
        while count.load(Ordering::Relaxed) < number && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
    };
    let tickets: Vec<_> = (0..30)
        .map(|n| {
            let (lock, started, blocked) = (
                Arc::clone(&lock),
                Arc::clone(&started),
                Arc::clone(&blocked),
            );
            let job = move || {
                let held = (n == 0).then(|| lock.lock().unwrap());
                started.fetch_add(1, Ordering::Relaxed);
                reaches(&started, 30);
                blocked.fetch_add(1, Ordering::Relaxed);
                match held {
                    Some(_held) => reaches(&blocked, 30),
                    None => without_preemption(|| drop(lock.lock().unwrap())),
                }
                n
            };
            handle.submit(ClassId(0), Box::new(job))
        })
        .collect();
    for (n, ticket) in tickets.into_iter().enumerate() {
        let answer = ticket.unwrap().wait_timeout(PATIENCE).expect("none hangs");
        assert_eq!(answer, Ok(n as u64));
    }
    assert!(runtime.statistics().rescued > 16);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

fn with_default_spares(mechanism: MechanismKind) -> Config {
    config(1, mechanism).contexts(32).spare_workers(None)
}

#[test]
fn progress_a_spin_lock_with_the_spinner_at_the_head() {
    let mut config = config(1, MechanismKind::Probe);
    config.policy.requeue = Some(Requeue::Head);
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
            ticket.unwrap().wait_timeout(PATIENCE).expect("none hangs"),
            Ok(n as u64)
        );
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn progress_a_handler_that_blocks_in_read_for_ever() {
    let runtime = jobs(config(1, MechanismKind::Probe).spare_workers(4));
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
    // Its reply is there before its worker has answered.
    wait_for("the other's end", || runtime.statistics().started == 1);
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

/// Handlers wait in the kernel, one worker, probes alone; the request that sends what they wait for
/// comes last, and has never run.
fn handlers_wait_for_what_a_later_one_sends(waiting: usize) {
    let runtime = jobs(
        config(1, MechanismKind::Probe)
            .contexts(waiting + 1)
            .spare_workers(None)
            .rescue_after_ms(1.0),
    );
    let handle = runtime.handle();
    let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
    let (senders, tickets): (Vec<_>, Vec<_>) = (0..waiting)
        .map(|_| {
            let (sender, receiver) = std::sync::mpsc::channel();
            (
                sender,
                submit(Box::new(move || receiver.recv().unwrap_or(0))),
            )
        })
        .unzip();
    let last = submit(Box::new(move || {
        for (n, sender) in (1..).zip(senders) {
            sender.send(n).unwrap();
        }
        0
    }));
    for (n, mut ticket) in (1..).zip(tickets) {
        assert_eq!(ticket.wait_timeout(PATIENCE).expect("none hangs"), Ok(n));
    }
    assert_eq!(last.wait(), Ok(0));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn progress_a_handler_waits_for_what_a_fresh_one_sends() {
    handlers_wait_for_what_a_later_one_sends(1);
}

#[test]
fn progress_two_hundred_handlers_wait_for_what_a_fresh_one_sends() {
    handlers_wait_for_what_a_later_one_sends(200);
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

/// One request is preempted with a spin lock. Another spins for the lock where no probe and no
/// signal stops it: on the only worker, or, while the worker is blocked, on the spare in its place.
fn spinning_where_nothing_stops_it(mechanism: MechanismKind, is_worker_blocked: bool) {
    let runtime = jobs(config(1, mechanism));
    let handle = runtime.handle();
    let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
    let (let_go, blocked) = std::sync::mpsc::channel::<()>();
    let blocks = is_worker_blocked.then(|| {
        let blocks = submit(Box::new(move || blocked.recv().is_err().into()));
        wait_for("the start", || runtime.statistics().started == 1);
        blocks
    });
    let (held, spins) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (their_held, their_spins) = (Arc::clone(&held), Arc::clone(&spins));
    let mut holder = submit(Box::new(move || {
        their_held.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while !their_spins.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            preempt_point();
        }
        their_held.store(false, Ordering::Release);
        1
    }));
    wait_for("the lock", || held.load(Ordering::Relaxed));
    let mut spinner = submit(Box::new(move || {
        without_preemption(|| {
            spins.store(true, Ordering::Relaxed);
            let start = Instant::now();
            while held.swap(true, Ordering::Acquire) {
                if start.elapsed() > PATIENCE / 2 {
                    return 0;
                }
                std::thread::yield_now();
            }
            1
        })
    }));
    let answer = spinner.wait_timeout(PATIENCE);
    assert_eq!(answer, Some(Ok(1)), "the holder of the lock never ran");
    assert_eq!(holder.wait_timeout(PATIENCE), Some(Ok(1)));
    drop(let_go);
    if let Some(blocks) = blocks {
        assert_eq!(blocks.wait(), Ok(1));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn progress_a_lock_is_spun_for_without_probes() {
    spinning_where_nothing_stops_it(MechanismKind::Probe, false);
}

#[test]
fn progress_a_lock_is_spun_for_behind_a_guard_and_signals() {
    spinning_where_nothing_stops_it(MechanismKind::Signal, false);
}

#[test]
fn progress_a_lock_is_spun_for_at_a_spare() {
    spinning_where_nothing_stops_it(MechanismKind::Probe, true);
}

/// A signal has stopped a lock's holder, and stops each request that waits for the lock. Every new
/// request wants the lock. Not all of them wait for it before the holder has its next turn. How
/// many turns the holder needs depends on the host, which may leave it no time in one.
#[test]
fn a_locks_holder_goes_on_before_all_have_run_into_the_lock() {
    const WAITERS: u64 = 60;
    for requeue in [Requeue::Head, Requeue::Tail] {
        let mut config = config(1, MechanismKind::Signal);
        config.policy.quantum_us = 500.0;
        config.policy.requeue = Some(requeue);
        (config.contexts, config.spare_workers) = (80, Some(0));
        let runtime = jobs(config);
        let handle = runtime.handle();
        let submit = |job: Job| handle.submit(ClassId(0), job).unwrap();
        let (lock, ran_into_it) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
        let (locks, count) = (Arc::clone(&lock), Arc::clone(&ran_into_it));
        let go = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&go);
        let turns = Arc::new(AtomicU64::new(0));
        let turns_taken = Arc::clone(&turns);
        let holds = submit(Box::new(move || {
            let (held, before) = (locks.lock(), shinjuku_preempt::preemptions());
            without_preemption(|| wait_for("the others", || seen.load(Ordering::Relaxed)));
            // This takes four quanta of the holder's own time.
            for _ in 0..200 {
                spin_for(Duration::from_micros(10));
            }
            let so_far = count.load(Ordering::Relaxed);
            turns_taken.store(shinjuku_preempt::preemptions() - before, Ordering::Relaxed);
            drop(held);
            so_far
        }));
        wait_for("the lock", || lock.try_lock().is_err());
        let wait = (0..WAITERS).map(|_| {
            let (locks, count) = (Arc::clone(&lock), Arc::clone(&ran_into_it));
            submit(Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
                locks.lock().is_ok().into()
            }))
        });
        let wait: Vec<_> = wait.collect();
        go.store(true, Ordering::Relaxed);
        for mut ticket in wait {
            assert_eq!(ticket.wait_timeout(PATIENCE).expect("none hangs"), Ok(1));
        }
        let so_far = holds.wait().unwrap();
        let turns = turns.load(Ordering::Relaxed);
        assert!(
            so_far <= 3 * (turns + 1),
            "{so_far} requests ran into the lock, and its holder had {turns} turns"
        );
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}
