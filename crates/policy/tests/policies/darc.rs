//! DARC: what it measures, how it divides the workers, and that only short classes run at every
//! worker.

use shinjuku_policy::darc::{Demand, WINDOW};
use shinjuku_policy::{ClassId, Darc, Nanos, Policy, Task, TaskId, Want, WorkerId};

fn task(id: u32, class: u16, arrival: u64) -> Task {
    Task {
        id: TaskId(id),
        class: ClassId(class),
        flow: Default::default(),
        arrival: Nanos(arrival),
        started: false,
    }
}

/// Requests of this number and mean service time.
fn demand(requests: u64, mean: u64) -> Demand {
    Demand {
        requests,
        time: Nanos(requests * mean),
    }
}

/// Each class's first worker, by class.
fn first_workers(workers: usize, demands: &[Demand]) -> Vec<u16> {
    let policy = Darc::new(8, workers, demands.len()).unwrap();
    let mut reserved: Vec<_> = policy.with_demand(demands).reserved().collect();
    reserved.sort_unstable_by_key(|(class, _)| *class);
    reserved.iter().map(|(_, first)| first.0).collect()
}

#[test]
fn workers_are_divided_by_demand() {
    // Half of the time each: the long class has the second half.
    let halves = [demand(1_000, 1), demand(10, 100)];
    assert_eq!(first_workers(8, &halves), [0, 4]);
    // The order is that of the measured times.
    let turned = [demand(10, 100), demand(1_000, 1)];
    assert_eq!(first_workers(8, &turned), [4, 0]);
    // Even a class with hardly any demand has a worker.
    let rare = [demand(1, 1), demand(100, 100)];
    assert_eq!(first_workers(8, &rare), [0, 1]);
    // 1.9, 4.2 and 1.9 of 8 workers.
    let three = [demand(24, 1_000), demand(5, 10_400), demand(1, 24_000)];
    assert_eq!(first_workers(8, &three), [0, 2, 6]);
    // Classes that are alike share; those that find no worker left share the last.
    let alike = [demand(10, 10), demand(10, 20), demand(10, 41)];
    assert_eq!(first_workers(4, &alike), [0, 0, 2]);
    let crowded = [demand(1, 1), demand(1, 10), demand(1, 100)];
    assert_eq!(first_workers(2, &crowded), [0, 1, 1]);
    assert_eq!(first_workers(1, &crowded), [0, 0, 0]);
    // A class that was never seen counts as the longest.
    let unseen = [Demand::default(), demand(10, 10)];
    assert_eq!(first_workers(4, &unseen), [3, 0]);
    // Without any demand, all are open to all.
    assert_eq!(first_workers(4, &[Demand::default(); 2]), [0, 0]);
}

#[test]
fn long_requests_leave_the_workers_of_short_ones_idle() {
    let halves = [demand(1_000, 1), demand(10, 100)];
    let mut policy = Darc::new(8, 2, 2).unwrap().with_demand(&halves);
    let now = Nanos(9);
    let next = |policy: &mut Darc, worker| {
        let next = policy.next(WorkerId(worker), now, Want::Any);
        next.map(|task| task.id.0)
    };
    policy.arrive(task(0, 1, 0)).unwrap();
    policy.arrive(task(1, 1, 1)).unwrap();
    assert_eq!(policy.waiting(WorkerId(0), Want::Any), 0);
    assert_eq!(next(&mut policy, 0), None);
    assert_eq!(next(&mut policy, 1), Some(0));
    // Short ones go anywhere, and before long ones.
    policy.arrive(task(2, 0, 2)).unwrap();
    policy.arrive(task(3, 0, 3)).unwrap();
    assert_eq!(next(&mut policy, 1), Some(2));
    assert_eq!(next(&mut policy, 0), Some(3));
    assert_eq!((policy.len(), next(&mut policy, 1)), (1, Some(1)));
}

#[test]
fn demand_is_measured_and_until_then_arrivals_are_in_order() {
    let mut policy = Darc::new(8, 4, 2).unwrap();
    let serve = |policy: &mut Darc, class: u16, ran: u64| {
        policy.arrive(task(0, class, 0)).unwrap();
        let sent = policy.next(WorkerId(3), Nanos(0), Want::Any).unwrap();
        policy.finished_after(sent, WorkerId(3), Nanos(ran));
    };
    policy.arrive(task(1, 1, 5)).unwrap();
    policy.arrive(task(2, 0, 6)).unwrap();
    // The long class comes first, at a worker that it will not have.
    let first = policy.next(WorkerId(0), Nanos(9), Want::Any).unwrap();
    assert_eq!(first.id, TaskId(1));
    let second = policy.next(WorkerId(0), Nanos(9), Want::Any).unwrap();
    assert_eq!(second.id, TaskId(2));
    // One in a hundred is a hundred times as long.
    for number in 0..WINDOW {
        assert!(policy.reserved().all(|(_, first)| first == WorkerId(0)));
        let is_long = number % 100 == 99;
        serve(
            &mut policy,
            u16::from(is_long),
            if is_long { 9_900 } else { 100 },
        );
    }
    let reserved: Vec<_> = policy.reserved().collect();
    assert_eq!(reserved, [(0, WorkerId(0)), (1, WorkerId(2))]);
    // Then the classes change places.
    for number in 0..8 * WINDOW {
        let is_long = number % 100 == 99;
        serve(
            &mut policy,
            u16::from(!is_long),
            if is_long { 9_900 } else { 100 },
        );
    }
    let reserved: Vec<_> = policy.reserved().collect();
    assert_eq!(reserved, [(1, WorkerId(0)), (0, WorkerId(2))]);
}
