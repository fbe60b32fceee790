//! Verified, sound policies work as before, and the calls of [`Verified`] itself do what they say.

use proptest::prelude::*;
use shinjuku_policy::verified::PROGRESS_QUANTUM;
use shinjuku_policy::{
    ClassId, ClassParameters, ClassRule, DFcfs, MultiQueue, Nanos, Parameters, Policy, Registered,
    Requeue, SingleQueue, Task, TaskId, Verified, Want, WorkerId, registry,
};

use crate::driver::{CAPACITY, Driver, Event, Step, WORKERS, steps};

const WORKER: WorkerId = WorkerId(0);

/// A policy of the registry, or one that only its own constructor can make.
#[derive(Clone, Copy, Debug)]
enum Sound {
    Registered(Registered, Requeue),
    /// Such a policy, with one of three classes behind it.
    BeforeBestEffort(Registered, Requeue),
    Bounded,
}

impl Sound {
    fn build(self) -> Box<dyn Policy> {
        match self {
            Self::Registered(registered, requeue) | Self::BeforeBestEffort(registered, requeue) => {
                let mut parameters = Parameters::new(CAPACITY, usize::from(WORKERS));
                parameters.quantum = Nanos(5);
                parameters.requeue = Some(requeue);
                parameters.classes = [1, 10, 300]
                    .map(|slo| ClassParameters::with_slo(Nanos(slo)))
                    .to_vec();
                if let Self::BeforeBestEffort(..) = self {
                    parameters.best_effort.classes.push(ClassId(1));
                    parameters.best_effort.started = 2;
                }
                registered.build(&parameters).unwrap()
            }
            Self::Bounded => Box::new(
                DFcfs::new(CAPACITY, 5)
                    .unwrap()
                    .with_queue_bound(2)
                    .unwrap(),
            ),
        }
    }
}

fn sound_policy() -> impl Strategy<Value = Sound> {
    let registered = prop::sample::select(registry::ALL);
    let requeue = prop_oneof![Just(Requeue::Tail), Just(Requeue::Head)];
    prop_oneof![
        8 => (registered.clone(), requeue.clone())
            .prop_map(|(one, requeue)| Sound::Registered(one, requeue)),
        4 => (registered, requeue)
            .prop_map(|(one, requeue)| Sound::BeforeBestEffort(one, requeue)),
        1 => Just(Sound::Bounded),
    ]
}

fn task(id: u32) -> Task {
    Task {
        id: TaskId(id),
        class: Default::default(),
        flow: Default::default(),
        arrival: Nanos(0),
        started: false,
    }
}

fn verified(policy: impl Policy + 'static) -> Verified {
    Verified::new(Box::new(policy), CAPACITY).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn sound_policies_are_never_accused(policy in sound_policy(), steps in steps(), k in 1_u32..4) {
        let watched = Verified::new(policy.build(), CAPACITY).unwrap().with_progress_limit(k).unwrap();
        let mut driver = Driver::new(watched);
        for step in steps {
            let event = driver.step(step);
            let watched = &driver.subject;
            prop_assert_eq!(watched.error(), None, "after {:?}", event);
            let started = driver.waiting.values().filter(|task| task.started).count();
            prop_assert_eq!(watched.waiting_started(), started);
            prop_assert_eq!(watched.is_empty(), driver.waiting.is_empty());
            if let Event::Answered { worker, want, answer: None } = event {
                prop_assert_eq!(watched.waiting(worker, want), 0);
            }
        }
    }

    // With a limit never reached, the progress rule does not change a single answer.
    #[test]
    fn below_the_limit_nothing_changes(policy in sound_policy(), steps in steps()) {
        let watched = Verified::new(policy.build(), CAPACITY).unwrap().with_progress_limit(u32::MAX).unwrap();
        let (mut bare, mut watched) = (Driver::new(policy.build()), Driver::new(watched));
        for step in steps {
            // `take_fresh` chooses by itself.
            if !matches!(step, Step::Remove { .. }) {
                bare.step(step);
                watched.step(step);
                prop_assert_eq!(&bare.out, &watched.out);
            }
        }
        prop_assert_eq!(watched.subject.progress_interventions(), 0);
    }
}

#[test]
fn take_fresh_takes_all_that_never_ran_in_order() {
    let mut policy = verified(SingleQueue::new(CAPACITY, Nanos(5)).unwrap());
    for id in [3, 1, 2, 0] {
        policy.arrive(task(id)).unwrap();
    }
    let first = policy.next(WORKER, Nanos(0), Want::Any).unwrap();
    policy.preempted(first.id, WORKER, Nanos(5));
    // A request that was staged and recalled is still before those that came later.
    let staged = policy.next(WORKER, Nanos(5), Want::Any).unwrap();
    policy.returned(staged.id, WORKER);
    let mut taken = Vec::new();
    while let Some(task) = policy.take_fresh(WORKER) {
        assert!(!task.started);
        policy.finished(task.id, WORKER);
        taken.push(task.id.0);
    }
    assert_eq!(taken, [1, 2, 0]);
    assert_eq!((policy.len(), policy.waiting_started()), (1, 1));
    assert_eq!(
        policy.next(WORKER, Nanos(5), Want::Any).map(|task| task.id),
        Some(first.id)
    );
    assert_eq!(policy.error(), None);
}

#[test]
fn no_request_runs_without_a_quantum_while_started_ones_wait() {
    let rules = [
        ClassRule::new(Nanos(1), Nanos(7)),
        ClassRule::new(Nanos(1), Nanos::MAX),
    ];
    let mut policy = verified(MultiQueue::new(CAPACITY, &rules).unwrap());
    let unlimited = Task {
        class: shinjuku_policy::ClassId(1),
        ..task(1)
    };
    policy.arrive(task(0)).unwrap();
    policy.arrive(unlimited).unwrap();
    assert_eq!(policy.next(WORKER, Nanos(0), Want::Any), Some(task(0)));
    assert_eq!(
        policy.next(WorkerId(1), Nanos(0), Want::Any),
        Some(unlimited)
    );
    assert_eq!(policy.quantum(TaskId(0)), Some(Nanos(7)));
    assert_eq!(policy.quantum(TaskId(1)), None);
    policy.preempted(TaskId(0), WORKER, Nanos(7));
    assert_eq!(policy.quantum(TaskId(1)), Some(PROGRESS_QUANTUM));
    assert_eq!(
        policy.next(WORKER, Nanos(7), Want::Any),
        Some(Task {
            started: true,
            ..task(0)
        })
    );
    assert_eq!(policy.quantum(TaskId(0)), Some(Nanos(7)));
    assert_eq!(policy.quantum(TaskId(1)), None);
}

#[test]
fn bounds_are_the_policys_and_the_capacity() {
    let bounded = DFcfs::new(CAPACITY, 1)
        .unwrap()
        .with_queue_bound(1)
        .unwrap();
    let mut policy = verified(bounded);
    assert_eq!(policy.name(), "d-FCFS(1 workers)");
    assert!(
        policy.arrive(task(CAPACITY as u32)).is_err(),
        "no such slot"
    );
    assert!(policy.arrive(task(0)).is_ok());
    assert!(policy.arrive(task(1)).is_err(), "the queue is full");
    assert_eq!(policy.next(WORKER, Nanos(0), Want::Any), Some(task(0)));
    assert!(policy.arrive(task(1)).is_ok());
    assert_eq!(policy.len(), 1);
}

/// A policy may let requests wait for a busy worker for any time.
#[test]
fn waiting_for_another_worker_is_no_stall() {
    let mut policy = verified(DFcfs::new(CAPACITY, 2).unwrap());
    policy.arrive(task(0)).unwrap();
    policy.arrive(task(1)).unwrap();
    let home = [WorkerId(0), WorkerId(1)]
        .into_iter()
        .find(|&worker| policy.waiting(worker, Want::Any) > 0)
        .unwrap();
    let other = WorkerId(1 - home.0);
    assert_eq!(policy.next(home, Nanos(0), Want::Any), Some(task(0)));
    for poll in 0..1_000 {
        assert_eq!(
            policy.next(other, Nanos::from_millis(poll), Want::Any),
            None
        );
    }
    assert_eq!(policy.error(), None);
}

#[test]
fn a_request_that_is_preempted_often_has_longer_quanta_up_to_a_bound() {
    let policy = || {
        let built = SingleQueue::new(2, Nanos(7)).unwrap();
        Verified::new(Box::new(built), 2).unwrap()
    };
    for (mut policy, grows) in [(policy(), false), (policy().with_longer_quanta(true), true)] {
        let mut stretches = Vec::new();
        policy.arrive(task(0)).unwrap();
        for _ in 0..70_000 {
            policy.next(WORKER, Nanos(0), Want::Any).unwrap();
            stretches.push(policy.stretch(TaskId(0)));
            policy.preempted(TaskId(0), WORKER, Nanos(0));
        }
        let (often, oftener) = if grows { (2, 4) } else { (1, 1) };
        assert_eq!(stretches[..8], [1; 8]);
        assert_eq!(stretches[8..16], [often; 8]);
        assert!(stretches[16..].iter().all(|stretch| *stretch == oftener));
        assert_eq!(policy.quantum(TaskId(0)), Some(Nanos(7)));
        // The slot's next request begins anew.
        policy.next(WORKER, Nanos(0), Want::Any).unwrap();
        policy.finished(TaskId(0), WORKER);
        policy.arrive(task(0)).unwrap();
        assert_eq!(policy.stretch(TaskId(0)), 1);
    }
}
