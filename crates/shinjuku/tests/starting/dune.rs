//! What the runtime does when it is asked for Dune where Dune cannot be.

use shinjuku::error::BackendError;
use shinjuku::policy::ClassId;
use shinjuku::{
    Config, HardPreemption, LayoutKind, MechanismKind, Runtime, StartError, handler_fn,
};
use shinjuku_tests_support::PATIENCE;

fn config() -> Config {
    let mut config = Config::default().workers(1).contexts(16);
    config.cores.share = true;
    config.preemption.mechanism = MechanismKind::Dune;
    config
}

fn start(config: Config, allowed: bool) -> Result<Runtime<u64, u64>, StartError> {
    let mut builder = Runtime::builder(handler_fn(|number: u64| number)).config(config);
    if allowed {
        // SAFETY: the handler answers at once, and relies on nothing.
        builder = builder.allow_hard_preemption(unsafe { HardPreemption::allow() });
    }
    builder.start()
}

fn assert_serves(config: Config, allowed: bool, description: &str) {
    let runtime = start(config, allowed).unwrap();
    let said = runtime.description();
    assert!(said.contains(description), "{said}");
    let reply = runtime.handle().submit(ClassId(0), 7).unwrap().wait();
    assert_eq!(reply, Ok(7));
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn without_the_module_signals_take_its_place_or_strict_mode_refuses() {
    const NAME: &str = "without_the_module_signals_take_its_place_or_strict_mode_refuses";
    if std::path::Path::new("/dev/dune").exists() {
        println!("SKIPPED {NAME}: there is a /dev/dune");
        return;
    }
    assert_serves(
        config(),
        true,
        "signal, because preemption.mechanism is \"dune\", but there is no /dev/dune",
    );
    let strict = config().strict(true);
    let error = start(strict, true).expect_err("strict");
    let StartError::Backend { mechanism, cause } = error else {
        panic!("{error}");
    };
    assert_eq!(mechanism, MechanismKind::Dune);
    assert!(matches!(cause, BackendError::Unavailable(_)), "{cause}");
}

#[test]
fn in_the_inline_layout_signals_take_its_place() {
    let inline = config().layout(LayoutKind::Inline).workers(None);
    assert_serves(inline, true, "in the inline layout");
}

#[test]
fn without_the_token_probes_take_its_place() {
    assert_serves(
        config(),
        false,
        "probe, because preemption.mechanism is \"dune\"",
    );
}
