//! Best effort behind another policy: order, bounds, which requests give way, and which get a turn
//! nevertheless.

use proptest::prelude::*;
use shinjuku_policy::darc::Demand;
use shinjuku_policy::verified::PROGRESS_QUANTUM;
use shinjuku_policy::{
    BestEffort, BestEffortParameters, CFcfs, ClassId, ClassParameters, ClassRule, Darc, FlowId,
    MultiQueue, Nanos, ParameterError, Parameters, Policy, Requeue, SingleQueue, Task, TaskId,
    Verified, Want, WorkerId, registry,
};

use crate::driver::{CAPACITY, Driver, Event, Step, Subject, WORKERS, steps};
use crate::reference::{BehindAnother, ByRank, Line, LinePerClass, OneLine, Reference};
use crate::same_as_reference::{Conserves, check, lines};

const WORKER: WorkerId = WorkerId(0);

/// Which classes are best effort, how many may wait, and how many may have started.
#[derive(Clone, Copy, Debug)]
struct Behind {
    classes: [bool; 4],
    bound: usize,
    most_started: usize,
}

fn behind() -> impl Strategy<Value = Behind> {
    (any::<[bool; 4]>(), 1..=CAPACITY, 1..=CAPACITY).prop_map(|(classes, bound, most_started)| {
        Behind {
            classes,
            bound,
            most_started,
        }
    })
}

impl Behind {
    fn parameters(&self) -> BestEffortParameters {
        let numbers = (0..4).filter(|class| self.classes[usize::from(*class)]);
        let mut parameters = BestEffortParameters::default();
        parameters.classes = numbers.map(ClassId).collect();
        parameters.queue = self.bound;
        parameters.started = self.most_started;
        parameters
    }

    fn policy(&self, inner: impl Policy + 'static) -> Box<dyn Policy> {
        let inner = Box::new(inner);
        Box::new(BestEffort::around(inner, CAPACITY, &self.parameters()).unwrap())
    }

    fn reference<R: Reference>(&self, inner: R) -> BehindAnother<R> {
        BehindAnother {
            inner,
            line: Line::default(),
            is_behind: self.classes,
            bound: self.bound,
            most_started: self.most_started,
            started: Default::default(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn behind_one_queue(steps in steps(), behind in behind(), preempts in any::<bool>()) {
        let inner: Box<dyn Policy> = match preempts {
            true => behind.policy(SingleQueue::new(CAPACITY, Nanos(5)).unwrap()),
            false => behind.policy(CFcfs::new(CAPACITY).unwrap()),
        };
        let reference = OneLine { line: Line::default(), requeue: Requeue::Tail };
        check(inner, behind.reference(reference), Conserves::Less, steps);
    }

    #[test]
    fn behind_a_queue_per_class(steps in steps(), behind in behind()) {
        let rules = vec![ClassRule::new(Nanos(10), Nanos(5)), ClassRule::new(Nanos(3), Nanos(7))];
        let policy = behind.policy(MultiQueue::new(CAPACITY, &rules).unwrap());
        let reference = LinePerClass { lines: lines(2), rules, bound: CAPACITY };
        check(policy, behind.reference(reference), Conserves::Less, steps);
    }

    #[test]
    fn behind_deadlines(steps in steps(), behind in behind()) {
        let mut parameters = Parameters::new(CAPACITY, 1);
        parameters.classes = [7, 70].map(|slo| ClassParameters::with_slo(Nanos(slo))).to_vec();
        parameters.best_effort = behind.parameters();
        let policy = registry::named("edf").unwrap().build(&parameters).unwrap();
        let rank = |task: &Task| i128::from(task.arrival.0) + [7, 70, 70, 70][usize::from(task.class.0)];
        check(policy, behind.reference(ByRank::new(rank)), Conserves::Less, steps);
    }

    // Under any policy, a best-effort request is handed out only if the policy has no other for
    // that worker. No request is preempted for it, and it is asked to give way from the start.
    #[test]
    fn only_in_what_is_idle(steps in steps(), at in 0..registry::ALL.len()) {
        let mut parameters = Parameters::new(CAPACITY, usize::from(WORKERS));
        parameters.classes = [1, 10, 300].map(|slo| ClassParameters::with_slo(Nanos(slo))).to_vec();
        parameters.classes[1].slo = None;
        parameters.best_effort.classes.push(ClassId(1));
        let policy = registry::ALL[at].build(&parameters).unwrap();
        let watched = Verified::new(policy, CAPACITY).unwrap().with_progress_limit(u32::MAX).unwrap();
        let mut driver = Driver::new(watched);
        for step in steps {
            let worth = match step {
                Step::Next { worker, want } => driver.subject.worth_preempting(WorkerId(worker), want, None),
                _ => 0,
            };
            let event = driver.step(step);
            let watched = &driver.subject;
            if let Event::Answered { answer: Some(task), .. } = event {
                let is_behind = task.class == ClassId(1);
                prop_assert_eq!(worth == 0, is_behind, "{:?}", task);
                prop_assert_eq!(watched.is_best_effort(task.id), is_behind);
                if is_behind {
                    prop_assert_eq!(watched.quantum(task.id), Some(Nanos(0)));
                }
            }
            prop_assert_eq!(watched.error(), None, "after {:?}", event);
        }
        driver.drain();
    }
}

fn task(id: u32, class: u16) -> Task {
    Task {
        id: TaskId(id),
        class: ClassId(class),
        flow: FlowId(0),
        arrival: Nanos(u64::from(id)),
        started: false,
    }
}

/// Class 1 behind `inner`, with a progress rule that fires after two preemptions.
fn watched(inner: impl Policy + 'static) -> Verified {
    let mut parameters = BestEffortParameters::default();
    parameters.classes.push(ClassId(1));
    let policy = BestEffort::around(Box::new(inner), CAPACITY, &parameters).unwrap();
    let watched = Verified::new(Box::new(policy), CAPACITY).unwrap();
    watched.with_progress_limit(2).unwrap()
}

/// The workers that DARC keeps idle for short requests run best effort, and give way to short ones
/// alone.
#[test]
fn what_darc_keeps_idle_is_idle() {
    let demand = |requests, time| Demand {
        requests,
        time: Nanos(time),
    };
    let darc = Darc::new(CAPACITY, 2, 1 + 2).unwrap();
    let demands = [demand(1_000, 1_000), demand(0, 0), demand(1, 1_000)];
    let mut policy = watched(darc.with_demand(&demands));
    let [short, long] = [task(1, 0), task(2, 2)];
    policy.arrive(task(0, 1)).unwrap();
    policy.arrive(long).unwrap();
    assert_eq!(
        policy.next(WORKER, Nanos(9), Want::Any).map(|task| task.id),
        Some(TaskId(0))
    );
    assert_eq!(policy.worth_preempting(WORKER, Want::Any, None), 0);
    assert_eq!(policy.worth_preempting(WorkerId(1), Want::Any, None), 1);
    policy.arrive(short).unwrap();
    assert_eq!(policy.worth_preempting(WORKER, Want::Any, None), 1);
    policy.preempted(TaskId(0), WORKER, Nanos(10));
    assert_eq!(policy.next(WORKER, Nanos(10), Want::Any), Some(short));
}

/// The best-effort request may hold the lock for which the other spins. After two preemptions of
/// the other it runs until it is asked to give way; the second time, it has the other's quantum.
#[test]
fn the_progress_rule_gives_it_a_turn_of_the_others_quantum() {
    for (inner, quantum) in [
        (SingleQueue::new(CAPACITY, Nanos(5)).unwrap(), Nanos(5)),
        (
            SingleQueue::new(CAPACITY, Nanos::MAX).unwrap(),
            PROGRESS_QUANTUM,
        ),
    ] {
        let mut policy = watched(inner);
        policy.arrive(task(0, 1)).unwrap();
        let next = |policy: &mut Verified| {
            let next = policy.next(WORKER, Nanos(0), Want::Any);
            next.map(|task| task.id.0)
        };
        assert_eq!(next(&mut policy), Some(0));
        assert_eq!(policy.quantum(TaskId(0)), Some(Nanos(0)));
        policy.arrive(task(1, 0)).unwrap();
        policy.preempted(TaskId(0), WORKER, Nanos(0));
        for expected in [Nanos(0), quantum, Nanos(0), quantum] {
            for _ in 0..2 {
                assert_eq!(next(&mut policy), Some(1));
                policy.preempted(TaskId(1), WORKER, Nanos(0));
            }
            assert_eq!(next(&mut policy), Some(0));
            assert_eq!(policy.quantum(TaskId(0)), Some(expected));
            policy.preempted(TaskId(0), WORKER, Nanos(0));
        }
        assert_eq!(next(&mut policy), Some(1));
        policy.finished(TaskId(1), WORKER);
        assert_eq!(next(&mut policy), Some(0));
        assert_eq!(policy.quantum(TaskId(0)), Some(Nanos(0)));
    }
}

/// Any request for which a blocked one may wait can be given a turn.
#[test]
fn a_turn_can_be_granted() {
    let mut policy = watched(CFcfs::new(CAPACITY).unwrap());
    policy.arrive(task(0, 1)).unwrap();
    let sent = policy.next(WORKER, Nanos(0), Want::Any).unwrap();
    policy.grant_turn(sent.id);
    assert_eq!(policy.quantum(sent.id), Some(PROGRESS_QUANTUM));
    assert!(policy.is_best_effort(sent.id));
    policy.preempted(sent.id, WORKER, Nanos(0));
    policy.next(WORKER, Nanos(0), Want::Any).unwrap();
    assert_eq!(policy.quantum(sent.id), Some(Nanos(0)));
}

#[test]
fn bounds_of_zero_are_refused_and_the_name_tells() {
    let mut parameters = Parameters::new(CAPACITY, 1);
    let cfcfs = registry::named("c-fcfs").unwrap();
    // No class is best effort, so the bounds do not matter.
    parameters.best_effort.queue = 0;
    assert_eq!(cfcfs.build(&parameters).unwrap().name(), "c-FCFS");
    parameters.best_effort.classes.push(ClassId(0));
    let error = cfcfs.build(&parameters).err();
    assert_eq!(error, Some(ParameterError::ZeroQueueBound));
    parameters.best_effort.queue = 1;
    let mut policy = cfcfs.build(&parameters).unwrap();
    assert_eq!(policy.name(), "c-FCFS before best effort");
    assert!(Subject::arrive(&mut policy, task(0, 0)));
    assert!(!Subject::arrive(&mut policy, task(1, 0)));
    assert!(Subject::arrive(&mut policy, task(1, 1)));
}
