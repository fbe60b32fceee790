//! The configuration: TOML and code say the same, and what is wrong is named.

use shinjuku::{
    ClassConfig, Config, ConfigError, ContextKind, CoresConfig, DispatcherConfig, Help, LayoutKind,
    MechanismKind, PolicyConfig, PreemptionConfig, QuantaKind, StallsConfig,
};
use shinjuku_policy::Requeue;

/// Every key, each with another value than its default.
const ALL_KEYS: &str = r#"
workers = 3
contexts = 512
context_kind = "kernel-thread"
stack_kib = 64
queue = 100
depth = 2
spare_workers = 4
rescue_after_ms = 7.5
idle_backoff_us = 50.0
realtime_priority = 42
strict = true
layout = "threads"
help = "polled"

[cores]
dispatcher = 0
workers = [1, 2, 3]
share = true

[dispatcher]
works = true

[policy]
kind = "c-pre-mq"
quantum_us = 2.5
requeue = "head"
progress_limit = 8
best_effort = ["range"]

[[class]]
name = "get"
slo_us = 50.0
quantum_us = 4.0
requeue = "tail"
priority = 3
deadline_us = 1000.0

[[class]]
name = "range"
slo_us = 500.0

[preemption]
mechanism = "escalation"
quanta = "raised"
grace_us = 10.0

[stalls]
report_after_ms = 20.0
"#;

fn all_keys() -> Config {
    Config::default()
        .layout(LayoutKind::Threads)
        .workers(3)
        .contexts(512)
        .context_kind(ContextKind::KernelThread)
        .stack_kib(64)
        .queue(100)
        .depth(2)
        .spare_workers(4)
        .rescue_after_ms(7.5)
        .idle_backoff_us(50.0)
        .realtime_priority(42)
        .strict(true)
        .help(Help::Polled)
        .cores(
            CoresConfig::default()
                .dispatcher(0)
                .workers([1, 2, 3])
                .share(true),
        )
        .dispatcher(DispatcherConfig::default().works(true))
        .policy(
            PolicyConfig::new("c-pre-mq")
                .quantum_us(2.5)
                .requeue(Requeue::Head)
                .progress_limit(8)
                .best_effort(["range"]),
        )
        .class([
            ClassConfig::new("get")
                .slo_us(50.0)
                .quantum_us(4.0)
                .requeue(Requeue::Tail)
                .priority(3)
                .deadline_us(1000.0),
            ClassConfig::new("range").slo_us(500.0),
        ])
        .preemption(
            PreemptionConfig::new(MechanismKind::Escalation)
                .quanta(QuantaKind::Raised)
                .grace_us(10.0),
        )
        .stalls(StallsConfig::default().report_after_ms(20.0))
}

#[test]
fn toml_and_code_say_the_same() {
    assert_eq!(Config::from_toml(ALL_KEYS).unwrap(), all_keys());
    assert_eq!(
        toml::to_string(&all_keys()).unwrap().trim(),
        ALL_KEYS.trim()
    );
}

#[test]
fn what_is_left_out_takes_its_default() {
    let default = Config::default();
    assert_eq!(Config::from_toml("").unwrap(), default);
    let empty_tables = Config::from_toml("[cores]\n[policy]\n[preemption]").unwrap();
    assert_eq!(empty_tables, default);
    let written = toml::to_string(&default).unwrap();
    assert_eq!(Config::from_toml(&written).unwrap(), default);

    let documented = r#"
        contexts = 256
        stack_kib = 256
        queue = 16384
        rescue_after_ms = 5
        idle_backoff_us = 100
        strict = false
        [cores]
        workers = []
        share = false
        [dispatcher]
        works = false
        [policy]
        kind = "c-pre-sq"
        quantum_us = 5
        progress_limit = 16
        [[class]]
        name = "default"
        [preemption]
        mechanism = "auto"
        quanta = "auto"
        grace_us = 15
    "#;
    assert_eq!(Config::from_toml(documented).unwrap(), default);
}

#[test]
fn the_default_fits_this_machine() {
    Config::default().validate().unwrap();
}

#[test]
fn every_name_is_read() {
    for registered in shinjuku::policy::registry::ALL {
        let config = Config::from_toml(&format!("policy.kind = '{registered}'")).unwrap();
        assert_eq!(config.policy.kind, (*registered).into());
    }
    let mechanisms = [
        ("auto", MechanismKind::Auto),
        ("none", MechanismKind::None),
        ("probe", MechanismKind::Probe),
        ("signal", MechanismKind::Signal),
        ("compiled-probe", MechanismKind::CompiledProbe),
        ("escalation", MechanismKind::Escalation),
        ("guest", MechanismKind::Guest),
        ("dune", MechanismKind::Dune),
    ];
    for (name, mechanism) in mechanisms {
        let config = Config::from_toml(&format!("preemption.mechanism = '{name}'")).unwrap();
        assert_eq!(config.preemption.mechanism, mechanism);
    }
}

#[test]
fn values_out_of_range_are_named_with_what_is_allowed() {
    let cases = [
        (
            "workers = 0",
            "`workers` is 0, but must be 1 to 1024: leave it out to have as many as the cores suit",
        ),
        (
            "contexts = 65537",
            "`contexts` is 65537, but must be 1 to 65536: choose how many requests may have started and not finished",
        ),
        (
            "stack_kib = 8",
            "`stack_kib` is 8, but must be 16 to 1048576: choose what a handler's deepest call needs; 256 suits most",
        ),
        (
            "queue = 0",
            "`queue` is 0, but must be 1 to 16777216: choose how many requests may wait before more are refused",
        ),
        (
            "depth = 5",
            "`depth` is 5, but must be 1 to 4: 1 suits most, 2 handlers so short that the dispatcher is waited for",
        ),
        (
            "spare_workers = 65536",
            "`spare_workers` is 65536, but must be 0 to 65535: choose how many handlers may block in the kernel at a \
             time",
        ),
        (
            "rescue_after_ms = 0",
            "`rescue_after_ms` is 0, but must be 0.1 to 60000: 5 suits most; the less, the more often a worker that \
             is only slow is taken for blocked",
        ),
        (
            "idle_backoff_us = -1",
            "`idle_backoff_us` is -1, but must be 0 to 3600000000: 100 suits most; 0 never sleeps",
        ),
        (
            "realtime_priority = 100",
            "`realtime_priority` is 100, but must be 1 to 99: leave it out to have ordinary scheduling",
        ),
        (
            "preemption.grace_us = inf",
            "`preemption.grace_us` is inf, but must be 0 to 3600000000: 15 suits most; 0 does not wait for the probe",
        ),
        (
            "stalls.report_after_ms = 0.5",
            "`stalls.report_after_ms` is 0.5, but must be 1 to 60000: 10 suits services; leave it out to look for none",
        ),
        (
            "policy.quantum_us = 0",
            "`policy.quantum_us` is 0, but must be 0.001 to 3600000000: 5 suits probes; to run to completion choose \
             policy.kind = \"c-fcfs\"",
        ),
        (
            "policy.quantum_us = nan",
            "`policy.quantum_us` is NaN, but must be 0.001 to 3600000000: 5 suits probes; to run to completion choose \
             policy.kind = \"c-fcfs\"",
        ),
        (
            "policy.progress_limit = 0",
            "`policy.progress_limit` is 0, but must be 1 to 1000000: 16 suits most",
        ),
        (
            "class = []",
            "`class` is a list of 0, but must be a list of 1 to 65535: leave it out to have one class named `default`",
        ),
        (
            "[[class]]\nname = ''",
            "`class[0].name` is \"\", but must be not empty: name the class as statistics shall show it",
        ),
        (
            "[[class]]\nname = 'get'\n[[class]]\nname = 'put'\n[[class]]\nname = 'get'",
            "`class[2].name (class \"get\")` is \"get\", but must be unlike every other class's: class[0] has that \
             name: rename one of them",
        ),
        (
            "[[class]]\nname = 'get'\nslo_us = 0.0001",
            "`class[0].slo_us (class \"get\")` is 0.0001, but must be 0.001 to 3600000000: choose the latency that 99 \
             % of the class should keep",
        ),
        (
            "[[class]]\nname = 'get'\nquantum_us = 0",
            "`class[0].quantum_us (class \"get\")` is 0, but must be 0.001 to 3600000000: leave it out to have \
             `policy.quantum_us`",
        ),
        (
            "[[class]]\nname = 'get'\ndeadline_us = 4e9",
            "`class[0].deadline_us (class \"get\")` is 4000000000, but must be 0.001 to 3600000000: leave it out to \
             have none",
        ),
        (
            "[policy]\nkind = 'fifo'",
            "`policy.kind` is \"fifo\", but must be one of c-pre-sq, c-pre-mq, c-fcfs, d-fcfs, stealing, edf, \
             priority, darc: a policy of your own is named by `Builder::policy_with`",
        ),
        (
            "preemption = { mechanism = 'guest', quanta = 'raised' }",
            "`preemption.quanta` is \"raised\", but must be \"configured\", since preemption.mechanism is \"guest\": \
             leave it out, or choose preemption.mechanism = \"auto\"",
        ),
        (
            "policy.best_effort = ['put']\nclass = [{ name = 'get' }, { name = 'scan' }]",
            "`policy.best_effort` is [\"put\"], but must be some of the classes, each once: get, scan: mend or leave \
             out \"put\"",
        ),
        (
            "policy.best_effort = ['default']",
            "`policy.best_effort` is [\"default\"], but must be not all of the classes: leave out the class that the \
             others are to give way to",
        ),
        (
            "depth = 2\npolicy.best_effort = ['scan']\nclass = [{ name = 'get' }, { name = 'scan' }]",
            "`depth` is 2, but must be 1, since policy.best_effort names classes: a best-effort request that is staged \
             would be ahead of what comes later; leave it out",
        ),
        (
            "workers = 3\ncontexts = 5\ncores.share = true\npolicy.best_effort = ['scan']\n\
             class = [{ name = 'get' }, { name = 'scan' }]",
            "`contexts` is 5, but must be at least 6, two per worker, since best effort may hold half of them: raise \
             it, or lower `workers`",
        ),
        (
            "workers = 3\ncontexts = 2\ncores.share = true",
            "`contexts` is 2, but must be at least 3, one per worker: raise it, or lower `workers`",
        ),
    ];
    for (toml, message) in cases {
        let error = Config::from_toml(toml).unwrap().validate().unwrap_err();
        assert!(
            matches!(error, ConfigError::Invalid { .. }),
            "{toml}: {error:?}"
        );
        assert_eq!(error.to_string(), message, "{toml}");
    }
}

#[test]
fn the_ends_of_every_range_are_allowed() {
    let share = "cores.share = true\n";
    let cases = [
        "workers = 1\ncontexts = 1\nstack_kib = 16\nqueue = 1\nspare_workers = 0\nrescue_after_ms = 0.1",
        "workers = 1024\ncontexts = 65536\nstack_kib = 1048576\nqueue = 16777216\ndepth = 4\nspare_workers = 65535",
        "workers = 1\nidle_backoff_us = 0\npolicy.quantum_us = 0.001\npreemption.grace_us = 0",
        "workers = 1\npolicy = { quantum_us = 3.6e9, progress_limit = 1000000 }\nrescue_after_ms = 60000",
    ];
    for toml in cases {
        let config = Config::from_toml(&format!("{share}{toml}")).unwrap();
        assert_eq!(
            config.validate().map_err(|error| error.to_string()),
            Ok(()),
            "{toml}"
        );
    }
}

#[test]
fn classes_are_no_more_than_can_be_numbered() {
    let classes = |count: usize| {
        Config::default().class((0..count).map(|number| ClassConfig::new(number.to_string())))
    };
    classes(65_535).validate().unwrap();
    assert_eq!(
        classes(65_536).validate().unwrap_err().to_string(),
        "`class` is a list of 65536, but must be a list of 1 to 65535: leave it out to have one class named `default`"
    );
}

#[test]
fn more_workers_than_can_be_numbered_are_refused_by_list_too() {
    let mut config = Config::default();
    config.cores.share = true;
    config.cores.workers = vec![0; 1025];
    let message = config.validate().unwrap_err().to_string();
    assert!(
        message.starts_with("`workers` is 1025, but must be 1 to 1024: "),
        "{message}"
    );
}

#[test]
fn text_that_cannot_be_read_is_located() {
    let cases = [
        (
            "worker = 3",
            "line 1, column 1: unknown field `worker`, expected one of `workers`, `contexts`, `context_kind`, `stack_kib`, `queue`, \
             `depth`, `spare_workers`, `rescue_after_ms`, `idle_backoff_us`, `realtime_priority`, `strict`, `watch`, \
             `layout`, `help`, `cores`, `dispatcher`, `policy`, `class`, `preemption`, `stalls`",
        ),
        (
            "queue = 5\n[policy]\nquantum = 5",
            "line 3, column 1, in `policy`: unknown field `quantum`, expected one of `kind`, `quantum_us`, `requeue`, \
             `progress_limit`, `best_effort`",
        ),
        (
            "[cores]\nnetworker = 1",
            "line 2, column 1, in `cores`: unknown field `networker`, expected one of `dispatcher`, `workers`, `share`",
        ),
        (
            "[preemption]\ngrace = 1",
            "line 2, column 1, in `preemption`: unknown field `grace`, expected one of `mechanism`, `quanta`, `grace_us`",
        ),
        (
            "[[class]]\nname = 'get'\nslo = 5",
            "line 3, column 1, in `class`: unknown field `slo`, expected one of `name`, `slo_us`, `quantum_us`, \
             `requeue`, `priority`, `deadline_us`",
        ),
        (
            "[[class]]\nslo_us = 5",
            "line 1, column 1, in `class`: missing field `name`",
        ),
        (
            "\n  queue = -1",
            "line 2, column 11, in `queue`: invalid value: integer `-1`, expected a whole number, 0 or more",
        ),
        (
            "realtime_priority = 'high'",
            "line 1, column 21, in `realtime_priority`: invalid type: string \"high\", expected a whole number",
        ),
        (
            "policy.progress_limit = 5000000000",
            "line 1, column 25, in `policy.progress_limit`: invalid value: integer `5000000000`, expected a whole \
             number, 0 to 4294967295",
        ),
        (
            "policy.quantum_us = 'é'",
            "line 1, column 21, in `policy.quantum_us`: invalid type: string \"é\", expected a number",
        ),
        (
            "strict = 1",
            "line 1, column 10, in `strict`: invalid type: integer `1`, expected true or false",
        ),
        (
            "cores.workers = 3",
            "line 1, column 17, in `cores.workers`: invalid type: integer `3`, expected a list",
        ),
        (
            "[policy]\nrequeue = 'middle'",
            "line 2, column 11, in `policy.requeue`: unknown variant `middle`, expected `tail` or `head`",
        ),
        (
            "[[class]]\nname = 'get'\nrequeue = 'middle'",
            "line 3, column 11, in `class.requeue`: unknown variant `middle`, expected `tail` or `head`",
        ),
        (
            "[preemption]\nmechanism = 'uintr'",
            "line 2, column 13, in `preemption.mechanism`: unknown variant `uintr`, expected one of `auto`, `none`, \
             `probe`, `compiled-probe`, `signal`, `escalation`, `guest`, `dune`",
        ),
        ("queue = 5\nqueue = 6", "line 2, column 1: duplicate key"),
    ];
    for (toml, message) in cases {
        let error = Config::from_toml(toml).unwrap_err();
        assert!(
            matches!(error, ConfigError::Syntax { .. }),
            "{toml}: {error:?}"
        );
        assert_eq!(
            error.to_string(),
            format!("configuration, {message}"),
            "{toml}"
        );
    }
    let not_toml = Config::from_toml("queue = 5\ndepth 1")
        .unwrap_err()
        .to_string();
    assert!(
        not_toml.starts_with("configuration, line 2, column "),
        "{not_toml}"
    );
}

#[test]
fn a_file_is_named_when_it_fails() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = directory.join("shinjuku-config.toml");
    std::fs::write(&path, ALL_KEYS).unwrap();
    assert_eq!(Config::from_file(&path).unwrap(), all_keys());

    std::fs::write(&path, "\ndepth = 'deep'").unwrap();
    assert_eq!(
        Config::from_file(&path).unwrap_err().to_string(),
        format!(
            "{}, line 2, column 9, in `depth`: invalid type: string \"deep\", expected a whole number, 0 or more",
            path.display()
        )
    );
    std::fs::remove_file(&path).unwrap();

    let error = Config::from_file(&path).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }), "{error:?}");
    let start = format!("configuration file {} cannot be read: ", path.display());
    assert!(error.to_string().starts_with(&start), "{error}");
    // Programs print an error's sources after the error.
    assert!(std::error::Error::source(&error).is_none(), "{error}");
    let started = shinjuku::StartError::from(error);
    assert!(std::error::Error::source(&started).is_none(), "{started}");
}

#[test]
fn a_setter_takes_a_value_or_leaves_the_key_out() {
    let set = Config::default().workers(3).realtime_priority(Some(7));
    assert_eq!((set.workers, set.realtime_priority), (Some(3), Some(7)));
    assert_eq!(set.workers(None).realtime_priority(None), Config::default());
    let class = ClassConfig::new("get").slo_us(50.0).priority(1);
    assert_eq!((class.slo_us, class.priority), (Some(50.0), Some(1)));
    assert_eq!(class.slo_us(None).priority(None), ClassConfig::new("get"));
}
