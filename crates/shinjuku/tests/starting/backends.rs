//! What the runtime does when it is asked for a mechanism that this build does not have.

use shinjuku::policy::ClassId;
use shinjuku::{
    Config, HardPreemption, LayoutKind, MechanismKind, Runtime, StartError, handler_fn,
};
use shinjuku_preempt::BACKENDS;
use shinjuku_tests_support::PATIENCE;

fn start(mechanism: MechanismKind, strict: bool) -> Result<Runtime<u64, u64>, StartError> {
    let mut config = Config::default().workers(1).contexts(16);
    config.layout = LayoutKind::Threads;
    config.strict = strict;
    config.cores.share = true;
    config.preemption.mechanism = mechanism;
    Runtime::builder(handler_fn(|number: u64| number))
        .config(config)
        // SAFETY: the handler answers at once, and relies on nothing.
        .allow_hard_preemption(unsafe { HardPreemption::allow() })
        .start()
}

#[test]
fn what_is_not_built_names_its_feature_and_signals_take_its_place() {
    const NAME: &str = "what_is_not_built_names_its_feature_and_signals_take_its_place";
    for (mechanism, feature) in [(MechanismKind::Guest, "kvm"), (MechanismKind::Dune, "dune")] {
        let name = mechanism.to_string();
        if BACKENDS.iter().any(|kind| kind.name() == name) {
            eprintln!("SKIPPED {NAME}: {name} is built: the feature `{feature}` is on");
            continue;
        }
        let why = format!(
            "preemption.mechanism is \"{name}\", but this program was built without it: turn on the feature `{feature}` of the \
             crate shinjuku"
        );
        let error = start(mechanism, true).expect_err("strict");
        assert!(matches!(error, StartError::NotBuilt { .. }), "{error}");
        assert_eq!(error.to_string(), why);

        let runtime = start(mechanism, false).unwrap();
        let description = runtime.description();
        assert!(
            description.contains(&format!("preemption signal, because {why}")),
            "{description}"
        );
        let reply = runtime.handle().submit(ClassId(0), 7).unwrap().wait();
        assert_eq!(reply, Ok(7));
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

/// Tests are built by plain `cargo`, so nothing here is instrumented.
#[test]
fn without_compiled_probes_there_are_the_hand_written_ones() {
    let error = start(MechanismKind::CompiledProbe, true).expect_err("strict");
    assert!(matches!(error, StartError::CompiledProbes(_)), "{error}");
    let why = "preemption.mechanism is \"compiled-probe\", but this program has no compiled probes: build it by `cargo \
               shinjuku build`";
    assert_eq!(error.to_string(), why);
    for (mechanism, says) in [
        (
            MechanismKind::CompiledProbe,
            format!("probe, because {why}"),
        ),
        (
            MechanismKind::Escalation,
            "escalation from probe to signal, as configured".to_owned(),
        ),
    ] {
        let runtime = start(mechanism, false).unwrap();
        let description = runtime.description();
        assert!(description.contains(&says), "{description}");
        assert!(!description.contains("compiled probes left out"));
        assert!(runtime.shutdown(PATIENCE).is_clean());
    }
}

#[test]
fn auto_says_nothing_of_what_is_not_built() {
    let runtime = start(MechanismKind::Auto, false).unwrap();
    let description = runtime.description();
    for mechanism in [MechanismKind::Guest, MechanismKind::Dune] {
        let name = mechanism.to_string();
        if !BACKENDS.iter().any(|kind| kind.name() == name) {
            assert!(!description.contains(&name), "{description}");
        }
    }
    assert!(runtime.shutdown(PATIENCE).is_clean());
}
