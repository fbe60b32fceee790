//! Constructors reject senseless parameters.

use shinjuku_policy::{
    CFcfs, ClassId, ClassParameters, ClassRule, DFcfs, MultiQueue, Nanos, ParameterError,
    Parameters, PolicyName, Registered, SingleQueue, Stealing, Verified, registry,
};

const RULE: ClassRule = ClassRule::new(Nanos(1), Nanos(1));

#[test]
fn capacity() {
    for given in [0, u32::MAX as usize, usize::MAX] {
        let error = Some(ParameterError::Capacity { given });
        assert_eq!(CFcfs::new(given).err(), error);
        assert_eq!(SingleQueue::new(given, Nanos(1)).err(), error);
        assert_eq!(MultiQueue::new(given, &[RULE]).err(), error);
        assert_eq!(DFcfs::new(given, 1).err(), error);
        assert_eq!(Stealing::new(given, 1, 0).err(), error);
        let policy = CFcfs::new(1).unwrap();
        assert_eq!(Verified::new(Box::new(policy), given).err(), error);
    }
}

#[test]
fn workers() {
    for given in [0, (1 << 16) + 1] {
        let error = Some(ParameterError::Workers { given });
        assert_eq!(DFcfs::new(1, given).err(), error);
        assert_eq!(Stealing::new(1, given, 0).err(), error);
    }
    assert!(DFcfs::new(1, 1 << 16).is_ok());
}

#[test]
fn classes() {
    assert_eq!(
        MultiQueue::new(1, &[]).err(),
        Some(ParameterError::Classes { given: 0 })
    );
    let too_many = vec![RULE; (1 << 16) + 1];
    assert_eq!(
        MultiQueue::new(1, &too_many).err(),
        Some(ParameterError::Classes { given: 65_537 })
    );

    let class = ClassId(1);
    let no_slo = ClassRule::new(Nanos(0), Nanos(1));
    assert_eq!(
        MultiQueue::new(1, &[RULE, no_slo]).err(),
        Some(ParameterError::ZeroSlo { class })
    );
    let no_quantum = ClassRule::new(Nanos(1), Nanos(0));
    let error = Some(ParameterError::ZeroQuantum { class });
    assert_eq!(MultiQueue::new(1, &[RULE, no_quantum]).err(), error);
    let error = Some(ParameterError::ZeroQuantum { class: ClassId(0) });
    assert_eq!(SingleQueue::new(1, Nanos(0)).err(), error);
}

#[test]
fn bounds_and_limits() {
    let multi = MultiQueue::new(1, &[RULE]).unwrap();
    assert_eq!(
        multi.with_queue_bound(0).err(),
        Some(ParameterError::ZeroQueueBound)
    );
    let distributed = DFcfs::new(1, 1).unwrap();
    assert_eq!(
        distributed.with_queue_bound(0).err(),
        Some(ParameterError::ZeroQueueBound)
    );
    let policy = CFcfs::new(1).unwrap();
    let verified = Verified::new(Box::new(policy), 1).unwrap();
    assert_eq!(
        verified.with_progress_limit(0).err(),
        Some(ParameterError::ZeroProgressLimit)
    );
}

#[test]
fn errors_name_the_value_and_the_choice() {
    let error = ParameterError::Workers { given: 0 };
    assert_eq!(error.to_string(), "0 workers: choose 1 to 65536");
}

#[test]
fn every_policy_of_the_registry_checks_what_it_goes_by() {
    let mut good = Parameters::new(4, 2);
    good.classes = vec![ClassParameters::with_slo(Nanos(9)); 2];
    for one in registry::ALL {
        let build = |change: &dyn Fn(&mut Parameters)| {
            let mut parameters = good.clone();
            change(&mut parameters);
            one.build(&parameters).err()
        };
        assert_eq!(build(&|_| {}), None, "{one}");
        let none = build(&|parameters| parameters.capacity = 0);
        assert_eq!(none, Some(ParameterError::Capacity { given: 0 }), "{one}");

        let class = ClassId(1);
        let no_slo = build(&|parameters| parameters.classes[1].slo = None);
        let missing = one
            .needs_slo
            .then_some(ParameterError::MissingSlo { class });
        assert_eq!(no_slo, missing, "{one}");
        let learnt = build(&|parameters| {
            parameters.classes[1].slo = None;
            parameters.learns = true;
        });
        assert_eq!(learnt, None, "{one}");

        let no_quantum = build(&|parameters| parameters.quantum = Nanos(0));
        let class = ClassId(0);
        let zero = one
            .preempts
            .then_some(ParameterError::ZeroQuantum { class });
        assert_eq!(no_quantum, zero, "{one}");
        let task = shinjuku_policy::Task {
            id: shinjuku_policy::TaskId(0),
            class,
            flow: Default::default(),
            arrival: Nanos(0),
            started: false,
        };
        let quantum = one.build(&good).unwrap().quantum(&task);
        assert_eq!(quantum, one.preempts.then_some(good.quantum), "{one}");
    }
}

#[test]
fn policies_are_found_by_name_in_either_case() {
    for one in registry::ALL {
        assert_eq!(registry::named(one.name), Ok(*one));
        assert_eq!(one.name.to_uppercase().parse(), Ok(*one));
        assert_eq!(PolicyName::from(*one).to_string(), one.to_string());
        // However it is written, it is one name, by which the policy is found.
        let written = PolicyName::from(one.name.to_uppercase());
        assert_eq!(written, one.name.into());
        assert_eq!(written.registered(), Some(*one));
        let same = registry::ALL
            .iter()
            .filter(|other| other.name == one.name || other.label == one.label);
        assert_eq!(same.count(), 1, "{one}");
    }
    let error = registry::named("sjf").unwrap_err();
    let list = "c-pre-sq, c-pre-mq, c-fcfs, d-fcfs, stealing, edf, priority, darc";
    assert_eq!(
        error.to_string(),
        format!("no policy is called \"sjf\": there are {list}")
    );
    assert_eq!(PolicyName::default().as_str(), "c-pre-sq");
    assert_eq!(PolicyName::from("Mine").as_str(), "Mine");
    assert_eq!(PolicyName::from("Mine").registered(), None);
}

/// In which order a policy answers when worker `worker` asks, for requests of classes and flows in
/// turn.
fn order(
    one: &Registered,
    worker: u16,
    class: impl Fn(u16) -> u16,
    flow: impl Fn(u16) -> u16,
) -> Vec<u32> {
    let mut parameters = Parameters::new(8, 2);
    let slos = [9, 5, 3, 1].map(|slo| ClassParameters::with_slo(Nanos(slo)));
    parameters.classes = slos.to_vec();
    let mut policy = one.build(&parameters).unwrap();
    for number in 0..8_u16 {
        let task = shinjuku_policy::Task {
            id: shinjuku_policy::TaskId(number.into()),
            class: ClassId(class(number)),
            flow: shinjuku_policy::FlowId(flow(number).into()),
            arrival: Nanos(0),
            started: false,
        };
        policy.arrive(task).unwrap();
    }
    let worker = shinjuku_policy::WorkerId(worker);
    let next = || policy.next(worker, Nanos(20), shinjuku_policy::Want::Any);
    std::iter::from_fn(next).map(|task| task.id.0).collect()
}

#[test]
fn what_the_registry_says_has_no_say_changes_no_order() {
    for one in registry::ALL {
        let usual = order(one, 0, |number| number % 4, |number| number);
        let other_class = order(one, 0, |number| 3 - number % 4, |number| number);
        let other_flow = order(one, 0, |number| number % 4, |number| 7 - number);
        let other_worker = order(one, 1, |number| number % 4, |number| number);
        assert!(one.by_class || usual == other_class, "{one}");
        assert!(one.by_flow || usual == other_flow, "{one}");
        assert!(one.by_worker || usual == other_worker, "{one}");
    }
}
