//! Every policy does what its reference does, step by step: order, bounds, counts, and which
//! requests may run.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shinjuku_policy::{
    CFcfs, ClassId, ClassParameters, ClassRule, DFcfs, Darc, FlowId, MultiQueue, Nanos, Parameters,
    Policy, Registered, Requeue, SingleQueue, Stealing, Task, TaskId, Want, WorkerId, registry,
};

use shinjuku_policy::darc::Demand;

use crate::driver::{CAPACITY, Driver, Event, Step, WORKERS, steps};
use crate::reference::{
    ByRank, FlowLines, Line, LinePerClass, LinePerWorker, OneLine, Reference, ReservedLines,
};

/// Whether an idle worker gets something whenever anything waits.
#[derive(PartialEq)]
pub enum Conserves {
    Work,
    /// Except for requests that wait for another of their flow, or for another worker.
    Less,
}

pub fn check(
    policy: Box<dyn Policy>,
    mut reference: impl Reference,
    conserves: Conserves,
    steps: Vec<Step>,
) {
    let mut driver = Driver::new(policy);
    for step in steps {
        let allowed = match step {
            Step::Next { worker, want } => reference.allowed(WorkerId(worker), driver.now, want),
            _ => Vec::new(),
        };
        match driver.step(step) {
            Event::Nothing => {}
            Event::Admitted(task) => {
                assert!(!reference.full(&task), "must refuse {task:?}");
                reference.arrive(task);
            }
            Event::Refused(task) => assert!(reference.full(&task), "must admit {task:?}"),
            Event::Answered { answer: None, .. } => assert_eq!(allowed, [], "must answer one"),
            Event::Answered {
                answer: Some(task), ..
            } => {
                assert!(allowed.contains(&task.id), "{task:?} is not in {allowed:?}");
                reference.take(task.id);
            }
            Event::Preempted(task) => reference.preempted(task),
            Event::Returned(task) => reference.returned(task),
            Event::Finished(task) => reference.finished(task),
            Event::Removed(task) => reference.take(task.id),
        }
        for worker in (0..WORKERS).map(WorkerId) {
            for want in [Want::Any, Want::StartedOnly] {
                let waiting = driver.subject.waiting(worker, want);
                assert_eq!(
                    waiting,
                    reference.waiting(worker, want),
                    "{worker:?}, {want:?}"
                );
                let wanted = driver
                    .waiting
                    .values()
                    .filter(|task| task.started || want == Want::Any);
                if conserves == Conserves::Work {
                    assert_eq!(waiting, wanted.count(), "{worker:?}, {want:?}");
                }
            }
        }
    }
    driver.drain();
}

pub fn lines(n: usize) -> Vec<Line> {
    (0..n).map(|_| Line::default()).collect()
}

fn requeue() -> impl Strategy<Value = Requeue> {
    prop_oneof![Just(Requeue::Tail), Just(Requeue::Head)]
}

fn rule() -> impl Strategy<Value = ClassRule> {
    (1_u64..50, 1_u64..9, requeue()).prop_map(|(slo, quantum, requeue)| {
        ClassRule::new(Nanos(slo), Nanos(quantum)).requeue(requeue)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn cfcfs(steps in steps()) {
        let policy = CFcfs::new(CAPACITY).unwrap();
        let reference = OneLine { line: Line::default(), requeue: Requeue::Tail };
        check(Box::new(policy), reference, Conserves::Work, steps);
    }

    #[test]
    fn single_queue(steps in steps(), requeue in requeue()) {
        let policy = SingleQueue::new(CAPACITY, Nanos(5)).unwrap().with_requeue(requeue);
        let reference = OneLine { line: Line::default(), requeue };
        check(Box::new(policy), reference, Conserves::Work, steps);
    }

    // Classes 0 to 3 arrive: the last class takes the numbers beyond it.
    #[test]
    fn multi_queue(
        steps in steps(),
        rules in prop::collection::vec(rule(), 1..=4),
        bound in 1..=CAPACITY,
    ) {
        let policy = MultiQueue::new(CAPACITY, &rules).unwrap().with_queue_bound(bound).unwrap();
        let reference = LinePerClass { lines: lines(rules.len()), rules, bound };
        check(Box::new(policy), reference, Conserves::Work, steps);
    }

    // Classes 0 to 3 arrive: the last class takes the numbers beyond it. A negative budget makes a
    // request late at arrival.
    #[test]
    fn edf(steps in steps(), budgets in prop::collection::vec(-200_i64..200, 1..=4)) {
        let mut parameters = Parameters::new(CAPACITY, 1);
        let class = |&budget| {
            let mut class = ClassParameters::default();
            class.budget_ns = Some(budget);
            class
        };
        parameters.classes = budgets.iter().map(class).collect();
        let rank = move |task: &Task| {
            let class = usize::from(task.class.0).min(budgets.len() - 1);
            i128::from(task.arrival.0) + i128::from(budgets[class])
        };
        let policy = registry::named("edf").unwrap().build(&parameters).unwrap();
        check(policy, ByRank::new(rank), Conserves::Work, steps);
    }

    #[test]
    fn priority(steps in steps(), priorities in prop::collection::vec(prop::option::of(0_u16..5), 1..=4)) {
        let mut parameters = Parameters::new(CAPACITY, 1);
        let class = |&priority| {
            let mut class = ClassParameters::default();
            class.priority = priority;
            class
        };
        parameters.classes = priorities.iter().map(class).collect();
        let rank = move |task: &Task| {
            let class = usize::from(task.class.0).min(priorities.len() - 1);
            i128::from(priorities[class].map_or(class, usize::from) as u64)
        };
        let policy = registry::named("priority").unwrap().build(&parameters).unwrap();
        check(policy, ByRank::new(rank), Conserves::Work, steps);
    }

    // Classes 0 to 3 arrive: the last class takes the numbers beyond it. Means are a factor of ten
    // apart, so that no two classes share.
    #[test]
    fn darc(
        steps in steps(),
        shares in prop::collection::vec(1_u64..9, 1..=4),
        longest_first in any::<bool>(),
    ) {
        let classes = shares.len();
        let rank = |class: usize| if longest_first { classes - 1 - class } else { class };
        let demand = |(class, share): (usize, &u64)| {
            let mean = 10_u64.pow(rank(class) as u32);
            let requests = share * 10_000 / mean;
            Demand { requests, time: Nanos(requests * mean) }
        };
        let demands: Vec<Demand> = shares.iter().enumerate().map(demand).collect();
        let policy = Darc::new(CAPACITY, usize::from(WORKERS), classes).unwrap();
        let sum: u64 = shares.iter().sum();
        let mut order: Vec<usize> = (0..classes).collect();
        order.sort_by_key(|class| rank(*class));
        let mut first = 0;
        let order = order.into_iter().map(|class| {
            let workers = (first..WORKERS).collect();
            let wanted = (shares[class] as f64 * f64::from(WORKERS) / sum as f64).round() as u16;
            first = (first + wanted.max(1)).min(WORKERS - 1);
            (class, workers)
        });
        let reference = ReservedLines { order: order.collect(), lines: lines(classes) };
        check(Box::new(policy.with_demand(&demands)), reference, Conserves::Less, steps);
    }

    #[test]
    fn dfcfs(steps in steps(), bound in 1..=CAPACITY) {
        let workers = usize::from(WORKERS);
        let policy = DFcfs::new(CAPACITY, workers).unwrap().with_queue_bound(bound).unwrap();
        let reference = LinePerWorker { lines: lines(workers), bound };
        check(Box::new(policy), reference, Conserves::Less, steps);
    }

    #[test]
    fn stealing(mut steps in steps(), seed in any::<u64>(), remove in any::<bool>()) {
        let workers = usize::from(WORKERS);
        let policy = Stealing::new(CAPACITY, workers, seed).unwrap();
        let (behind, ahead) = (BTreeMap::new(), BTreeMap::new());
        let reference = FlowLines { lines: lines(workers), behind, ahead };
        // A request that was pulled from behind its flow need not come back to a particular place.
        steps.retain(|step| match step {
            Step::Remove { .. } => remove,
            Step::Return { .. } => !remove,
            _ => true,
        });
        check(Box::new(policy), reference, Conserves::Less, steps);
    }
}

/// The comparison of each policy.
const COMPARED: &[(Registered, fn())] = &[
    (shinjuku_policy::single_queue::REGISTERED, single_queue),
    (shinjuku_policy::multi_queue::REGISTERED, multi_queue),
    (shinjuku_policy::cfcfs::REGISTERED, cfcfs),
    (shinjuku_policy::dfcfs::REGISTERED, dfcfs),
    (shinjuku_policy::stealing::REGISTERED, stealing),
    (shinjuku_policy::edf::REGISTERED, edf),
    (shinjuku_policy::priority::REGISTERED, priority),
    (shinjuku_policy::darc::REGISTERED, darc),
];

#[test]
fn every_policy_has_a_reference() {
    let compared: Vec<_> = COMPARED.iter().map(|(policy, _)| *policy).collect();
    assert_eq!(compared, registry::ALL);
}

#[test]
fn what_has_no_slot_or_waits_already_is_refused() {
    let mut parameters = Parameters::new(2, 1);
    parameters.classes = vec![ClassParameters::with_slo(Nanos(1))];
    for registered in registry::ALL {
        let mut policy = registered.build(&parameters).unwrap();
        let task = |id| shinjuku_policy::Task {
            id: shinjuku_policy::TaskId(id),
            class: Default::default(),
            flow: Default::default(),
            arrival: Nanos(0),
            started: false,
        };
        let name = policy.name();
        assert!(policy.arrive(task(2)).is_err(), "{name}");
        assert!(policy.arrive(task(0)).is_ok(), "{name}");
        assert!(policy.arrive(task(0)).is_err(), "{name}");
        assert!(policy.arrive(task(1)).is_ok(), "{name}");
        assert!(policy.arrive(task(1)).is_err(), "{name}");
        assert_eq!(policy.len(), 2, "{name}");
    }
}

#[test]
fn names_and_quanta() {
    let us = Nanos::from_micros;
    let task = |class| shinjuku_policy::Task {
        id: shinjuku_policy::TaskId(0),
        class: shinjuku_policy::ClassId(class),
        flow: Default::default(),
        arrival: Nanos(0),
        started: false,
    };
    let rules = [
        ClassRule::new(us(50), us(5)),
        ClassRule::new(us(1_000), Nanos::MAX).requeue(Requeue::Head),
    ];
    let multi = MultiQueue::new(1, &rules).unwrap();
    assert_eq!(multi.name(), "c-PRE-MQ(50us/5us, 1ms/never head)");
    assert_eq!(
        [0, 1, 7].map(|class| multi.quantum(&task(class))),
        [Some(us(5)), None, None]
    );

    let single = SingleQueue::new(1, Nanos(1_500)).unwrap();
    assert_eq!(
        (single.name().as_str(), single.quantum(&task(0))),
        ("c-PRE-SQ(1500ns)", Some(Nanos(1_500)))
    );
    let single = SingleQueue::new(1, Nanos::MAX)
        .unwrap()
        .with_requeue(Requeue::Head);
    assert_eq!(
        (single.name().as_str(), single.quantum(&task(0))),
        ("c-PRE-SQ(never, head)", None)
    );

    let unlimited: [(Box<dyn Policy>, &str); 3] = [
        (Box::new(CFcfs::new(1).unwrap()), "c-FCFS"),
        (Box::new(DFcfs::new(1, 4).unwrap()), "d-FCFS(4 workers)"),
        (
            Box::new(Stealing::new(1, 4, 0).unwrap()),
            "stealing(4 workers)",
        ),
    ];
    for (policy, name) in unlimited {
        assert_eq!(policy.name(), name);
        assert_eq!(policy.quantum(&task(0)), None, "{name}");
    }
}

#[test]
fn by_rank_a_request_gives_way_only_to_what_goes_before_it() {
    let task = |id: u32, class: u16| Task {
        id: TaskId(id),
        class: ClassId(class),
        flow: FlowId(0),
        arrival: Nanos(u64::from(id)),
        started: false,
    };
    let worker = WorkerId(0);
    for name in ["priority", "edf"] {
        let mut parameters = Parameters::new(CAPACITY, 1);
        parameters.classes = [10, 1_000]
            .map(|slo| ClassParameters::with_slo(Nanos(slo)))
            .to_vec();
        let mut policy = registry::named(name).unwrap().build(&parameters).unwrap();
        for id in 0..2 {
            policy.arrive(task(id, 1)).unwrap();
        }
        let first = policy.next(worker, Nanos(5), Want::Any).unwrap();
        assert_eq!(first.id, TaskId(0), "{name}");
        let worth =
            |policy: &dyn Policy, running| policy.worth_preempting(worker, Want::Any, running);
        assert_eq!(
            worth(&*policy, Some(&first)),
            0,
            "{name}: the second would not be next"
        );
        assert_eq!(worth(&*policy, None), 1, "{name}");
        policy.arrive(task(2, 0)).unwrap();
        assert!(worth(&*policy, Some(&first)) > 0, "{name}");
        policy.preempted(
            Task {
                started: true,
                ..first
            },
            worker,
            Nanos(6),
        );
        let urgent = policy.next(worker, Nanos(6), Want::Any).unwrap();
        assert_eq!(urgent.id, TaskId(2), "{name}");
        assert_eq!(worth(&*policy, Some(&urgent)), 0, "{name}");
    }
}
