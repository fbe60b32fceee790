//! Best-effort classes: when they run, when they give way, and what room they leave.

use shinjuku::PolicyConfig;

use super::*;

const INTERACTIVE: ClassId = ClassId(0);
const BATCH: ClassId = ClassId(1);

/// Batch jobs behind `policy`, without spares for blocked workers.
fn behind(policy: PolicyConfig, mechanism: MechanismKind) -> Config {
    config(1, mechanism)
        .spare_workers(0)
        .class([
            ClassConfig::new("interactive").slo_us(100.0),
            ClassConfig::new("batch"),
        ])
        .policy(policy.best_effort(["batch"]))
}

/// A job that tells that it runs, and goes on until `end`, or until its patience is over.
fn until(end: &Arc<AtomicBool>, runs: &Arc<AtomicBool>) -> Job {
    let (end, runs) = (Arc::clone(end), Arc::clone(runs));
    Box::new(move || {
        runs.store(true, Ordering::Release);
        let start = Instant::now();
        while !end.load(Ordering::Acquire) {
            if start.elapsed() > PATIENCE {
                return 0;
            }
            preempt_point();
        }
        1
    })
}

fn flag() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}

/// The batch job has not run for any policy's quantum, so it is stopped for the other job alone.
#[test]
fn best_effort_gives_way_under_every_policy() {
    for kind in ["c-fcfs", "c-pre-sq", "c-pre-mq", "edf", "darc"] {
        let policy = PolicyConfig::new(kind).quantum_us(3.6e9);
        let runtime = jobs(behind(policy, MechanismKind::Probe));
        let handle = runtime.handle();
        for _ in 0..20 {
            let (end, runs) = (flag(), flag());
            let batch = handle.submit(BATCH, until(&end, &runs)).unwrap();
            wait_for("the batch job", || runs.load(Ordering::Acquire));
            let ends = move || {
                end.store(true, Ordering::Release);
                2
            };
            let interactive = handle.submit(INTERACTIVE, Box::new(ends)).unwrap();
            assert_eq!(interactive.wait(), Ok(2), "{kind}");
            assert_eq!(batch.wait(), Ok(1), "{kind}");
        }
        let report = runtime.shutdown(PATIENCE);
        assert!(report.is_clean(), "{kind}: {report}");
        let classes = &report.statistics.as_ref().unwrap().classes;
        let [interactive, batch] = &classes[..] else {
            panic!("two classes")
        };
        assert_eq!(
            (interactive.name.as_str(), batch.name.as_str()),
            ("interactive", "batch")
        );
        assert!(batch.preemptions >= 20, "{kind}: {report}");
    }
}

/// The interactive job has many quanta while the batch job waits, and keeps the worker.
#[test]
fn nothing_gives_way_to_best_effort() {
    let policy = PolicyConfig::new("c-pre-sq").quantum_us(50.0);
    let runtime = jobs(behind(policy, MechanismKind::Probe));
    let handle = runtime.handle();
    let (runs, came, never, may_end) = (flag(), flag(), flag(), flag());
    may_end.store(true, Ordering::Release);
    let (tells, has_come, meanwhile) = (runs.clone(), came.clone(), never.clone());
    let interactive = move || {
        tells.store(true, Ordering::Release);
        let start = Instant::now();
        while !has_come.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
            preempt_point();
        }
        spin_for(Duration::from_millis(5));
        u64::from(meanwhile.load(Ordering::Acquire))
    };
    let interactive = handle.submit(INTERACTIVE, Box::new(interactive)).unwrap();
    wait_for("the interactive job", || runs.load(Ordering::Acquire));
    let batch = handle.submit(BATCH, until(&may_end, &never)).unwrap();
    came.store(true, Ordering::Release);
    assert_eq!(interactive.wait(), Ok(0), "a batch job ran beside it");
    assert_eq!(batch.wait(), Ok(1));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// Of a flood of batch jobs, as many as half of the queue are admitted. The others are refused and
/// counted, and an interactive job finds room.
#[test]
fn best_effort_leaves_room_in_the_queue() {
    let policy = PolicyConfig::new("c-fcfs");
    let runtime = jobs(behind(policy, MechanismKind::Probe).queue(8));
    let handle = runtime.handle();
    let (end, runs) = (flag(), flag());
    let first = handle.submit(BATCH, until(&end, &runs)).unwrap();
    wait_for("the first batch job", || runs.load(Ordering::Acquire));
    let refused = || runtime.statistics().refused.of(Refusal::QueueFull);
    let flood: Vec<_> = (0..20)
        .filter_map(|_| handle.submit(BATCH, until(&end, &runs)).ok())
        .collect();
    wait_for("the refusals", || refused() == 16);
    let interactive = handle.submit(INTERACTIVE, Box::new(|| 2)).unwrap();
    assert_eq!(interactive.wait(), Ok(2));
    end.store(true, Ordering::Release);
    assert_eq!(first.wait(), Ok(1));
    let answers: Vec<_> = flood.into_iter().map(|ticket| ticket.wait()).collect();
    let served = answers.iter().filter(|answer| **answer == Ok(1)).count();
    assert_eq!((served, refused()), (4, 16), "{answers:?}");
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

/// The batch job is stopped within a lock, and the interactive one spins for that lock.
#[test]
fn progress_a_lock_that_best_effort_holds() {
    let mut policy = PolicyConfig::new("c-fcfs");
    policy.progress_limit = 2;
    let runtime = jobs(behind(policy, MechanismKind::Probe));
    let handle = runtime.handle();
    for _ in 0..5 {
        let (runs, is_wanted, is_free) = (flag(), flag(), flag());
        let (tells, wanted, frees) = (runs.clone(), is_wanted.clone(), is_free.clone());
        let batch = move || {
            tells.store(true, Ordering::Release);
            let start = Instant::now();
            while !wanted.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
                preempt_point();
            }
            spin_for(Duration::from_micros(200));
            frees.store(true, Ordering::Release);
            1
        };
        let batch = handle.submit(BATCH, Box::new(batch)).unwrap();
        wait_for("the batch job", || runs.load(Ordering::Acquire));
        let interactive = handle
            .submit(INTERACTIVE, until(&is_free, &is_wanted))
            .unwrap();
        assert_eq!(interactive.wait(), Ok(1), "the lock was never free");
        assert_eq!(batch.wait(), Ok(1));
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}
