//! Priorities and deadlines.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use shinjuku::{ClassConfig, HardPreemption, RunError, RunOptions};

use super::*;

/// A pool that runs closures one after the other, without preemption, which would blur the order.
fn one_at_a_time(layout: LayoutKind) -> Pool {
    let policy = shinjuku::PolicyConfig::new("c-fcfs");
    builder(layout).policy(policy).contexts(1).start().unwrap()
}

#[test]
fn the_higher_priority_starts_first_and_equals_in_their_order() {
    in_each_layout(|layout| {
        let pool = one_at_a_time(layout);
        let (gate, held) = Gate::close(&pool);
        let started = Arc::new(Mutex::new(Vec::new()));
        let jobs: Vec<_> = [0, 0, 3, 0, 9, 3, 0]
            .into_iter()
            .enumerate()
            .map(|(at, priority)| {
                let started = started.clone();
                let options = RunOptions::new("batch").priority(priority);
                pool.run(options, move || started.lock().unwrap().push(at))
            })
            .collect();
        gate.open();
        held.wait().unwrap();
        for job in jobs {
            job.wait().unwrap();
        }
        assert_eq!(
            *started.lock().unwrap(),
            [4, 2, 5, 0, 1, 3, 6],
            "{layout:?}"
        );
        let report = pool.shutdown(PATIENCE);
        let statistics = report.statistics.unwrap();
        assert_eq!(statistics.classes[1].finished, 7);
        assert_eq!(statistics.in_system(), 0);
    });
}

/// A closure that one with a priority has displaced still runs, and cancelled closures hold up no
/// other.
#[test]
fn cancelled_ones_leave_the_order() {
    in_each_layout(|layout| {
        let pool = one_at_a_time(layout);
        let (gate, held) = Gate::close(&pool);
        let started = Arc::new(Mutex::new(Vec::new()));
        let mut jobs: Vec<_> = [5, 0, 8, 0, 2]
            .into_iter()
            .enumerate()
            .map(|(at, priority)| {
                let started = started.clone();
                let options = RunOptions::new("batch").priority(priority);
                Some(pool.run(options, move || started.lock().unwrap().push(at)))
            })
            .collect();
        drop(jobs[2].take());
        drop(jobs[1].take());
        gate.open();
        held.wait().unwrap();
        for job in jobs.into_iter().flatten() {
            job.wait().unwrap();
        }
        assert_eq!(*started.lock().unwrap(), [0, 4, 3], "{layout:?}");
        wait_for("the count", || refused(&pool, Refusal::Cancelled) == 2);
        assert!(pool.shutdown(PATIENCE).is_clean());
    });
}

/// The earliest deadline first, in the place of the class's objective.
#[test]
fn deadlines_order_the_queue_under_edf() {
    in_each_layout(|layout| {
        let slo = |name: &str| ClassConfig::new(name).slo_us(1_800e6);
        let config = Config::default()
            .class(["interactive", "batch"].map(slo))
            .layout(layout)
            .contexts(1);
        let pool = Pool::builder(["interactive", "batch"])
            .config(config)
            .workers((layout != LayoutKind::Inline).then_some(1))
            .cores(shinjuku::CoresConfig::default().share(true))
            .policy(shinjuku::PolicyConfig::new("edf"))
            .rescue_after_ms(60_000.0)
            .start()
            .unwrap();
        let (gate, held) = Gate::close(&pool);
        let started = Arc::new(Mutex::new(Vec::new()));
        let jobs: Vec<_> = [Some(3_600), None, Some(900), Some(600)]
            .into_iter()
            .enumerate()
            .map(|(at, seconds)| {
                let started = started.clone();
                let mut options = RunOptions::new("batch");
                if let Some(seconds) = seconds {
                    options = options.deadline(Duration::from_secs(seconds));
                }
                pool.run(options, move || started.lock().unwrap().push(at))
            })
            .collect();
        // A dispatcher hands out what it knows before it polls again. In the other layouts nobody
        // polls before the gate opens.
        if layout == LayoutKind::Threads {
            wait_for("all of them", || pool.statistics().received == 5);
        }
        gate.open();
        held.wait().unwrap();
        for job in jobs {
            job.wait().unwrap();
        }
        assert_eq!(*started.lock().unwrap(), [3, 2, 1, 0], "{layout:?}");
        assert!(pool.shutdown(PATIENCE).is_clean());
    });
}

#[test]
fn late_ones_are_refused_and_counted() {
    in_each_layout(|layout| {
        let strict = ClassConfig::new("batch").deadline_us(1.0);
        let config = Config::default().class([strict]).layout(layout).contexts(1);
        let pool = Pool::builder(["interactive", "batch"]).config(config);
        let cores = shinjuku::CoresConfig::default().share(true);
        let pool = pool
            .cores(cores)
            .policy(shinjuku::PolicyConfig::new("c-fcfs"));
        let pool = pool.start().unwrap();
        let (send, dropped_on) = mpsc::channel();
        let (gate, held) = Gate::close(&pool);
        let mut late = Vec::new();
        let soon = Duration::from_millis(1);
        for options in [
            RunOptions::new("batch"),
            RunOptions::new("batch").priority(1),
            RunOptions::new("interactive").deadline(soon),
            RunOptions::new("interactive").deadline(soon).priority(1),
        ] {
            let tells = Tells(send.clone());
            late.push(pool.run(options, move || drop(tells)));
        }
        let forever = RunOptions::new("batch").deadline(Duration::MAX);
        let in_time = pool.run(forever, || 1);
        thread::sleep(soon * 2);
        gate.open();
        held.wait().unwrap();
        assert_eq!(in_time.wait().unwrap(), 1);
        for job in late {
            let result = job.wait();
            let is_late = matches!(result, Err(RunError::Refused(Refusal::DeadlinePassed)));
            assert!(is_late, "{layout:?}: {result:?}");
            let name = dropped_on.recv_timeout(PATIENCE).unwrap();
            let allowed = ["shinjuku-completion", "shinjuku-context-0"];
            assert!(allowed.contains(&name.as_str()), "dropped on {name}");
        }
        let statistics = pool.shutdown(PATIENCE).statistics.unwrap();
        assert_eq!(statistics.refused.of(Refusal::DeadlinePassed), 4);
        assert_eq!((statistics.failed(), statistics.in_system()), (0, 0));
    });
}

/// The queue's bound holds with priorities, too: as many closures are refused as do not fit, and
/// each job has its outcome, in whatever order tokens and closures meet.
#[test]
fn a_full_queue_refuses() {
    in_each_layout(|layout| {
        let pool = builder(layout).queue(4).contexts(1);
        let policy = shinjuku::PolicyConfig::new("c-fcfs");
        let pool = pool.policy(policy).start().unwrap();
        let (mut ran, rounds) = (0, 20);
        for round in 1..=rounds {
            let (gate, held) = Gate::close(&pool);
            let jobs: Vec<_> = (0..20u8)
                .map(|n| pool.run(RunOptions::new("batch").priority(n % 3), move || n))
                .collect();
            // Inline, no thread may look at them before the gate opens.
            if layout == LayoutKind::Threads {
                wait_for("refusals", || {
                    refused(&pool, Refusal::QueueFull) == 16 * round
                });
            }
            gate.open();
            held.wait().unwrap();
            for job in jobs {
                match job.wait() {
                    Ok(_) => ran += 1,
                    Err(RunError::Refused(Refusal::QueueFull)) => {}
                    Err(other) => panic!("{layout:?}: {other}"),
                }
            }
        }
        let statistics = pool.shutdown(PATIENCE).statistics.unwrap();
        assert_eq!(statistics.refused.of(Refusal::QueueFull), 20 * rounds - ran);
        assert_eq!(statistics.in_system(), 0);
    });
}

/// Signals cost more than most closures, and nobody needs one here until the third closure comes.
#[test]
fn what_runs_alone_is_interrupted_only_once_another_comes() {
    const ALONE: Duration = Duration::from_millis(60);
    let policy = PolicyConfig::new("priority").quantum_us(200.0);
    let pool = Pool::builder(["interactive", "batch"])
        .workers(2)
        .policy(policy)
        .preemption(PreemptionConfig::new(MechanismKind::Signal))
        // SAFETY: the closures below only spin.
        .allow_hard_preemption(unsafe { HardPreemption::allow() })
        .start()
        .unwrap();
    let [runs, over] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let spinning: Vec<_> = (0..2)
        .map(|_| {
            let (runs, over) = (Arc::clone(&runs), Arc::clone(&over));
            pool.run("batch", move || {
                runs.fetch_add(1, Ordering::AcqRel);
                while over.load(Ordering::Acquire) == 0 {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    wait_for("both to run", || runs.load(Ordering::Acquire) == 2);
    // A host that takes the core away may have another thread relieve the loop first.
    let interrupted = || {
        let statistics = pool.statistics();
        statistics.preemptions.by_interrupt + statistics.rescued
    };
    // By the quantum it would be hundreds. One that was on its way may come; and while the machine
    // keeps one loop from its core, the other one has both closures.
    let mut before = interrupted();
    wait_for("no interrupts for nobody", || {
        thread::sleep(ALONE);
        let so_far = interrupted();
        so_far - std::mem::replace(&mut before, so_far) <= 2
    });
    let mut urgent = pool.run("interactive", move || over.store(1, Ordering::Release));
    urgent.wait_timeout(PATIENCE).unwrap().unwrap();
    assert!(interrupted() > before, "something gave way");
    for closure in spinning {
        closure.wait().unwrap();
    }
    assert!(pool.shutdown(PATIENCE).is_clean());
}

/// The urgent closure spins for what a suspended one has, and nobody else comes.
#[test]
fn an_urgent_closure_gives_way_to_the_one_whose_lock_it_wants() {
    let pool = Pool::builder(["interactive", "batch"])
        .workers(1)
        .preemption(PreemptionConfig::new(MechanismKind::Signal))
        // SAFETY: the closures below only spin.
        .allow_hard_preemption(unsafe { HardPreemption::allow() })
        .start()
        .unwrap();
    let lock = Arc::new(AtomicUsize::new(0));
    let held = Arc::clone(&lock);
    let batch = pool.run("batch", move || {
        held.store(1, Ordering::Release);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        held.store(0, Ordering::Release);
    });
    wait_for("the lock", || lock.load(Ordering::Acquire) == 1);
    let mut urgent = pool.run("interactive", move || {
        while lock.load(Ordering::Acquire) == 1 {
            std::hint::spin_loop();
        }
    });
    urgent.wait_timeout(PATIENCE).unwrap().unwrap();
    batch.wait().unwrap();
    assert!(pool.shutdown(PATIENCE).is_clean());
}

#[test]
fn of_several_classes_the_first_is_the_most_urgent_unless_a_policy_is_set() {
    let policy = |pool: PoolBuilder| pool.workers(1).start().unwrap().description();
    assert!(policy(Pool::builder(["interactive", "batch"])).contains("policy priority(2 classes)"));
    assert!(policy(Pool::builder(["batch"])).contains("policy c-PRE-SQ("));
    let fair = Pool::builder(["a", "b"]).policy(PolicyConfig::new("c-pre-sq"));
    assert!(policy(fair).contains("policy c-PRE-SQ("));
}
