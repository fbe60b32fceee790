//! Work stealing: one flow at one worker, in order; every victim equally likely.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shinjuku_policy::{FlowId, Nanos, Policy, Stealing, Task, TaskId, Want, WorkerId};

use crate::driver::{CAPACITY, Driver, Event, Step, WORKERS, steps};
use crate::reference::home;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_flow_runs_at_one_worker_and_in_order(steps in steps(), seed in any::<u64>()) {
        let policy = Stealing::new(CAPACITY, usize::from(WORKERS), seed).unwrap();
        let policy: Box<dyn Policy> = Box::new(policy);
        let mut driver = Driver::new(policy);
        // Requests of each flow in order of arrival, not yet finished.
        let mut flows: BTreeMap<FlowId, Vec<TaskId>> = BTreeMap::new();
        for step in steps {
            if matches!(step, Step::Remove { .. }) {
                continue;
            }
            match driver.step(step) {
                Event::Admitted(task) => flows.entry(task.flow).or_default().push(task.id),
                Event::Answered { answer: Some(task), .. } => {
                    prop_assert_eq!(flows[&task.flow][0], task.id, "not the flow's first");
                    let running = driver.out.values().filter(|(out, _)| out.flow == task.flow);
                    prop_assert_eq!(running.count(), 1);
                }
                Event::Finished(task) => {
                    let flow = flows.get_mut(&task.flow).unwrap();
                    flow.retain(|&id| id != task.id);
                }
                _ => {}
            }
        }
        driver.drain();
    }
}

fn task(id: u32, flow: u64) -> Task {
    Task {
        id: TaskId(id),
        class: Default::default(),
        flow: FlowId(flow),
        arrival: Nanos(0),
        started: false,
    }
}

/// A flow that belongs to each worker.
fn flows(workers: usize) -> Vec<u64> {
    let of = |worker| (0..).find(|&flow| home(FlowId(flow), workers) == worker);
    (0..workers)
        .map(|worker| of(worker).expect("some flow hashes to it"))
        .collect()
}

/// The victims of worker 0, which has no work, while all others have one flow each.
fn victims(workers: usize, seed: u64, draws: usize) -> Vec<usize> {
    let flows = flows(workers);
    let mut policy = Stealing::new(workers, workers, seed).unwrap();
    for (worker, &flow) in flows.iter().enumerate().skip(1) {
        policy.arrive(task(worker as u32, flow)).unwrap();
    }
    let mut victims = Vec::new();
    for _ in 0..draws {
        let stolen = policy
            .next(WorkerId(0), Nanos(0), Want::Any)
            .expect("work conserving");
        victims.push(stolen.id.0 as usize);
        policy.finished(stolen, WorkerId(0));
        policy.arrive(stolen).unwrap();
    }
    victims
}

#[test]
fn victims_are_drawn_uniformly() {
    let (workers, draws) = (6, 5_000);
    let victims = victims(workers, 42, draws);
    let expected = draws as f64 / (workers - 1) as f64;
    let count = |worker| victims.iter().filter(|&&victim| victim == worker).count() as f64;
    let chi_squared: f64 = (1..workers)
        .map(|worker| (count(worker) - expected).powi(2) / expected)
        .sum();
    // 99.9 % quantile of chi-squared with 4 degrees of freedom; the seed is fixed.
    assert!(chi_squared < 18.5, "chi-squared {chi_squared}");
    // The draws are independent: each pair of successive victims occurs about equally often.
    let pairs = victims.windows(2).filter(|pair| pair[0] == pair[1]).count() as f64;
    assert!(
        (pairs - expected).abs() < 5.0 * expected.sqrt(),
        "{pairs} repetitions"
    );
}

#[test]
fn the_seed_decides() {
    assert_eq!(victims(6, 1, 50), victims(6, 1, 50));
    assert_ne!(victims(6, 1, 50), victims(6, 2, 50));
}

#[test]
fn own_work_comes_first() {
    let workers = 4;
    let flows = flows(workers);
    let mut policy = Stealing::new(16, workers, 7).unwrap();
    for (worker, &flow) in flows.iter().enumerate() {
        policy.arrive(task(worker as u32, flow)).unwrap();
    }
    for worker in 0..workers {
        let next = policy.next(WorkerId(worker as u16), Nanos(0), Want::Any);
        assert_eq!(next.map(|task| task.id.0), Some(worker as u32));
    }
}

#[test]
fn a_flow_with_more_requests_goes_behind_the_others() {
    let mut policy = Stealing::new(4, 1, 0).unwrap();
    for (id, flow) in [(0, 1), (1, 1), (2, 2)] {
        policy.arrive(task(id, flow)).unwrap();
    }
    let mut order = Vec::new();
    while let Some(task) = policy.next(WorkerId(0), Nanos(0), Want::Any) {
        order.push(task.id.0);
        policy.finished(task, WorkerId(0));
    }
    assert_eq!(order, [0, 2, 1]);
}
