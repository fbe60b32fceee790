//! What is learnt from service times that are made up, and how policies take it.

use shinjuku_policy::learner::{FIRST_SLO, HEAD_AFTER, LOOK_EVERY, REMEMBERED};
use shinjuku_policy::{
    ClassId, ClassParameters, FlowId, Learner, Lesson, Nanos, Parameters, Registered, Requeue,
    Task, TaskId, Verified, Want, WorkerId, edf, multi_queue, priority, registry, single_queue,
};

const WORKER: WorkerId = WorkerId(0);
const SHORT: ClassId = ClassId(0);
const LONG: ClassId = ClassId(1);

/// Two classes and eight workers, everything left open.
fn open() -> Parameters {
    let mut parameters = Parameters::new(8, 8);
    parameters.classes = vec![ClassParameters::default(); 2];
    parameters.learns = true;
    parameters
}

fn watched(policy: Registered, parameters: &Parameters) -> Verified {
    let built = policy.build(parameters).unwrap();
    Verified::new(built, parameters.capacity)
        .unwrap()
        .with_learner(Learner::new(policy, parameters))
}

fn task(slot: u32, class: ClassId, arrival: u64) -> Task {
    Task {
        id: TaskId(slot),
        class,
        flow: FlowId(0),
        arrival: Nanos(arrival),
        started: false,
    }
}

/// Requests of a class, one after the other, each of such a length in ns.
fn serve(policy: &mut Verified, class: ClassId, lengths: impl IntoIterator<Item = u64>) {
    for length in lengths {
        policy.arrive(task(0, class, 0)).unwrap();
        let served = policy.next(WORKER, Nanos(0), Want::Any).unwrap();
        policy.finished_after(served.id, WORKER, Nanos(length));
    }
}

fn times(number: u64, length: u64) -> impl Iterator<Item = u64> {
    (0..number).map(move |_| length)
}

fn lesson(policy: &Verified, at: usize) -> Lesson {
    policy.learner().unwrap().lessons().nth(at).unwrap()
}

fn slo(policy: &Verified, class: ClassId) -> Nanos {
    lesson(policy, usize::from(class.0)).slo.unwrap()
}

/// The order in which requests of these classes and arrivals are answered at 1 ms.
fn order(policy: &mut Verified, requests: &[(ClassId, u64)]) -> Vec<u32> {
    for (slot, (class, arrival)) in (0..).zip(requests) {
        policy.arrive(task(slot, *class, *arrival)).unwrap();
    }
    let next = || policy.next(WORKER, Nanos::from_millis(1), Want::Any);
    let order: Vec<_> = std::iter::from_fn(next).map(|task| task.id).collect();
    for id in &order {
        policy.finished(*id, WORKER);
    }
    order.into_iter().map(|id| id.0).collect()
}

#[test]
fn policies_that_go_by_slos_learn_them_and_the_order_follows() {
    // The long request came first, and both have waited for about as long.
    let requests = [(LONG, 900_000), (SHORT, 901_000)];
    for policy in [multi_queue::REGISTERED, edf::REGISTERED] {
        let mut policy = watched(policy, &open());
        assert_eq!(
            [SHORT, LONG].map(|class| slo(&policy, class)),
            [FIRST_SLO; 2]
        );
        assert_eq!(order(&mut policy, &requests), [0, 1]);
        serve(&mut policy, SHORT, times(100, 1_000));
        serve(&mut policy, LONG, times(100, 100_000));
        // p99 and 14 / 8 times half of the mean: of equal lengths.
        assert_eq!(slo(&policy, SHORT), Nanos(1_875));
        assert_eq!(slo(&policy, LONG), Nanos(187_500));
        assert_eq!(order(&mut policy, &requests), [1, 0], "{}", policy.name());
    }
}

#[test]
fn what_is_given_is_not_learnt_key_by_key() {
    let mut parameters = open();
    parameters.classes[0].slo = Some(Nanos(7));
    parameters.classes[1].requeue = Some(Requeue::Tail);
    let learner = Learner::new(multi_queue::REGISTERED, &parameters).unwrap();
    let [short, long] = [0, 1].map(|at| learner.lessons().nth(at).unwrap());
    assert_eq!((short.slo, short.requeue), (None, Some(Requeue::Tail)));
    // Unknown, it is as urgent as the most urgent one that is given.
    assert_eq!((long.slo, long.requeue), (Some(Nanos(7)), None));

    parameters.requeue = Some(Requeue::Head);
    parameters.classes[1].slo = Some(Nanos(70));
    assert!(Learner::new(multi_queue::REGISTERED, &parameters).is_none());
    assert!(Learner::new(single_queue::REGISTERED, &parameters).is_none());
    let nothing_open = Parameters::new(8, 8);
    for policy in registry::ALL {
        assert!(Learner::new(*policy, &nothing_open).is_none(), "{policy}");
    }
    assert!(Learner::new(priority::REGISTERED, &open()).is_none());
}

#[test]
fn best_effort_teaches_nothing() {
    let mut parameters = open();
    parameters.best_effort.classes = vec![LONG];
    let mut policy = watched(single_queue::REGISTERED, &parameters);
    serve(&mut policy, LONG, times(HEAD_AFTER, 7));
    assert_eq!(lesson(&policy, 0).requeue, Some(Requeue::Tail));
    let learner = Learner::new(multi_queue::REGISTERED, &parameters).unwrap();
    assert_eq!(learner.lessons().len(), 1);
}

#[test]
fn an_slo_changes_slowly_and_only_if_it_is_worth_it() {
    let mut policy = watched(multi_queue::REGISTERED, &open());
    serve(&mut policy, SHORT, times(REMEMBERED, 1_000));
    let first = slo(&policy, SHORT);
    serve(&mut policy, SHORT, times(REMEMBERED, 1_100));
    assert_eq!(slo(&policy, SHORT), first);
    // Half of what is counted is a hundred times as long.
    let mut last = first;
    for _ in 0..REMEMBERED / LOOK_EVERY {
        serve(&mut policy, SHORT, times(LOOK_EVERY, 100_000));
        let now = slo(&policy, SHORT);
        assert!(now >= last && now.0 <= 2 * last.0, "{last} {now}");
        last = now;
    }
    assert!(last.0 > 100_000, "{last}");
}

/// Requests preempted once stand in this order afterwards: those of slots 0 and 1.
fn places(policy: &mut Verified) -> [u32; 2] {
    policy.arrive(task(0, SHORT, 0)).unwrap();
    policy.next(WORKER, Nanos(0), Want::Any).unwrap();
    policy.arrive(task(1, SHORT, 0)).unwrap();
    policy.preempted(TaskId(0), WORKER, Nanos(10));
    let answered = [(); 2].map(|()| policy.next(WORKER, Nanos(10), Want::Any).unwrap().id);
    for id in answered {
        policy.finished(id, WORKER);
    }
    answered.map(|id| id.0)
}

#[test]
fn light_tails_go_to_the_head_and_heavy_ones_back_to_the_tail() {
    for policy in [single_queue::REGISTERED, multi_queue::REGISTERED] {
        let mut policy = watched(policy, &open());
        let is_single = lesson(&policy, 0).class.is_none();
        serve(&mut policy, SHORT, times(HEAD_AFTER - 1, 1_000));
        assert_eq!(places(&mut policy), [1, 0]);
        serve(&mut policy, SHORT, times(LOOK_EVERY, 1_000));
        assert_eq!(places(&mut policy), [0, 1]);
        assert_eq!(policy.learner().unwrap().is_first_come(), is_single);
        // Of two classes' requests in one queue, a request that runs on is one of the long ones.
        let other = if is_single { LONG } else { SHORT };
        serve(&mut policy, other, times(LOOK_EVERY, 20_000));
        assert_eq!(places(&mut policy), [1, 0]);
        assert!(!policy.learner().unwrap().is_first_come());
    }
}

#[test]
fn a_class_of_its_own_queue_is_as_light_as_its_own_requests() {
    let mut policy = watched(multi_queue::REGISTERED, &open());
    serve(&mut policy, SHORT, times(HEAD_AFTER, 1_000));
    serve(&mut policy, LONG, times(HEAD_AFTER, 1_000_000));
    assert_eq!(
        [0, 1].map(|at| lesson(&policy, at).requeue),
        [Some(Requeue::Head); 2]
    );
}

#[test]
fn a_request_that_does_not_end_leaves_the_head() {
    let mut policy = watched(single_queue::REGISTERED, &open());
    serve(&mut policy, SHORT, times(HEAD_AFTER, 10_000));
    assert_eq!(lesson(&policy, 0).requeue, Some(Requeue::Head));
    policy.arrive(task(0, SHORT, 0)).unwrap();
    let mut quanta = 0;
    while lesson(&policy, 0).requeue == Some(Requeue::Head) {
        quanta += 1;
        policy.next(WORKER, Nanos(0), Want::Any).unwrap();
        policy.ran_unfinished(TaskId(0), Nanos(quanta * 5_000));
        policy.preempted(TaskId(0), WORKER, Nanos(0));
        assert!(
            quanta < 100,
            "it has run for {} times as long as any",
            quanta / 2
        );
    }
}
