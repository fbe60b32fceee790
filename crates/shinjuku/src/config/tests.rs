//! What a configuration means: times in nanoseconds, and policies from names and parameters.

use shinjuku_policy::{ClassId, FlowId, Full, Requeue, Task, TaskId, registry};

use super::*;
use crate::builder::build_policy;

#[test]
fn times_are_converted_and_rounded() {
    let mut config = Config::default()
        .rescue_after_ms(7.5)
        .idle_backoff_us(50.0)
        .stack_kib(64);
    config.policy.quantum_us = 2.5;
    config.policy.requeue = Some(Requeue::Head);
    config.preemption.grace_us = 10.0;
    config.class = vec![
        ClassConfig::new("get")
            .slo_us(50.0)
            .quantum_us(0.001)
            .requeue(Requeue::Tail)
            .deadline_us(1000.0),
        ClassConfig::new("range").slo_us(500.0),
    ];
    assert_eq!(config.rescue_after(), Nanos(7_500_000));
    assert_eq!(config.idle_backoff(), Some(Nanos(50_000)));
    assert_eq!(config.preemption.grace(), Nanos(10_000));
    assert_eq!(config.stack_bytes(), 65_536);
    let deadlines: Vec<_> = config.class.iter().map(ClassConfig::deadline).collect();
    assert_eq!(deadlines, [Some(Nanos(1_000_000)), None]);

    let parameters = config.parameters(config.task_capacity(3), 3);
    assert_eq!(
        (parameters.workers, parameters.quantum, parameters.requeue),
        (3, Nanos(2_500), Some(Requeue::Head))
    );
    let [get, range] = parameters.classes.as_slice() else {
        panic!("two classes")
    };
    assert_eq!(
        (get.slo, get.quantum, get.requeue),
        (Some(Nanos(50_000)), Some(Nanos(1)), Some(Requeue::Tail))
    );
    assert_eq!(
        (range.slo, range.quantum, range.requeue),
        (Some(Nanos(500_000)), None, None)
    );

    config.idle_backoff_us = 0.0;
    assert_eq!(config.idle_backoff(), None, "never sleeps");
}

#[test]
fn each_policy_is_built_with_its_parameters() {
    let classes = "
        policy = { kind = 'c-pre-mq', quantum_us = 2.5, requeue = 'head' }
        class = [{ name = 'get', slo_us = 50, quantum_us = 4, requeue = 'tail' }, { name = 'range', slo_us = 500 }]
    ";
    let best_effort = "
        policy = { kind = 'c-pre-mq', best_effort = ['batch'] }
        class = [{ name = 'get', slo_us = 50 }, { name = 'batch' }]
    ";
    let cases = [
        ("policy.kind = 'c-fcfs'", "c-FCFS"),
        ("", "c-PRE-SQ(5us)"),
        (
            "policy = { quantum_us = 2.5, requeue = 'head' }",
            "c-PRE-SQ(2500ns, head)",
        ),
        (classes, "c-PRE-MQ(50us/4us, 500us/2500ns head)"),
        ("policy.kind = 'd-fcfs'", "d-FCFS(3 workers)"),
        ("policy.kind = 'stealing'", "stealing(3 workers)"),
        ("policy.kind = 'priority'", "priority(1 classes)"),
        (
            best_effort,
            "c-PRE-MQ(50us/5us, never/5us) before best effort",
        ),
    ];
    for (toml, name) in cases {
        let config = Config::from_toml(toml).unwrap();
        let policy = build_policy(
            &config,
            &mut [],
            &config.parameters(config.task_capacity(3), 3),
        )
        .unwrap();
        assert_eq!(policy.name(), name);
    }
}

#[test]
fn policies_have_a_slot_for_every_request_that_can_be_in_the_system() {
    for registered in registry::ALL {
        let class = "class = [{ name = 'only', slo_us = 9 }]";
        let toml =
            format!("queue = 5\ncontexts = 3\ndepth = 2\npolicy.kind = '{registered}'\n{class}");
        let config = Config::from_toml(&toml).unwrap();
        assert_eq!(config.task_capacity(2), 5 + 3 + 2 * 2);
        let mut policy = build_policy(
            &config,
            &mut [],
            &config.parameters(config.task_capacity(2), 2),
        )
        .unwrap();
        let task = |slot| Task {
            id: TaskId(slot),
            class: ClassId(0),
            flow: FlowId(7),
            arrival: Nanos(0),
            started: false,
        };
        for slot in 0..12 {
            assert_eq!(policy.arrive(task(slot)), Ok(()), "{registered}");
        }
        assert_eq!(policy.arrive(task(12)), Err(Full), "{registered}");
    }
}

#[test]
fn what_is_left_out_is_learnt_except_the_place_under_a_mechanism_by_name() {
    let parameters = |toml: &str| Config::from_toml(toml).unwrap().parameters(9, 1);
    let auto = parameters("");
    assert!(auto.learns && auto.requeue.is_none());
    let by_name = parameters("preemption.mechanism = 'probe'");
    assert!(by_name.learns && by_name.requeue == Some(Requeue::Tail));
    let given = parameters("policy.requeue = 'head'");
    assert_eq!(given.requeue, Some(Requeue::Head));
}

#[test]
fn building_without_checking_first_fails_all_the_same() {
    let mut config = Config::default();
    config.policy.quantum_us = f64::NAN;
    let build = |config: &Config| {
        let error = build_policy(
            config,
            &mut [],
            &config.parameters(config.task_capacity(1), 1),
        )
        .err();
        error.unwrap().to_string()
    };
    assert_eq!(
        build(&config),
        "`policy`: quantum of class 0 is zero: choose at least 1 ns, or Nanos::MAX to run to completion"
    );
}

#[test]
fn a_single_worker_has_one_request_staged_where_classes_do_not_matter() {
    let depth = |toml: &str, workers| Config::from_toml(toml).unwrap().depth_at(workers);
    assert_eq!([1, 2, 8].map(|workers| depth("", workers)), [2, 1, 1]);
    for (policy, expected) in [
        ("c-fcfs", 2),
        ("c-PRE-SQ", 2),
        ("c-pre-mq", 1),
        ("edf", 1),
        ("own", 1),
    ] {
        let toml = format!("policy.kind = '{policy}'");
        assert_eq!(depth(&toml, 1), expected, "{policy}");
    }
    assert_eq!([1, 2].map(|workers| depth("depth = 3", workers)), [3, 3]);
}

#[test]
fn best_effort_has_half_of_the_room_and_is_not_staged() {
    let config = Config::from_toml(
        "
        queue = 7
        contexts = 9
        policy.best_effort = ['batch']
        class = [{ name = 'get' }, { name = 'batch' }]
        ",
    )
    .unwrap();
    let parameters = config.parameters(config.task_capacity(1), 1);
    let best_effort = &parameters.best_effort;
    assert_eq!(best_effort.classes, [ClassId(1)]);
    assert_eq!((best_effort.queue, best_effort.started), (4, 4));
    assert_eq!(config.depth_at(1), 1);
}
