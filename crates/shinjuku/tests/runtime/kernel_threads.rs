//! The runtime's tests with contexts that are kernel threads, and without the token.

#[path = "threads.rs"]
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use shinjuku::policy::ClassId;
use shinjuku::{
    Config, ContextKind, LayoutKind, MechanismKind, Pool, Runtime, StartError, handler_fn,
};
use shinjuku_tests_support::{PATIENCE, wait_for};

use self::threads::suite::{config, jobs};

/// Computes without probes until `preempted` is set.
fn compute_until(preempted: &AtomicBool) {
    let start = Instant::now();
    while !preempted.load(Ordering::Relaxed) {
        assert!(start.elapsed() < PATIENCE, "it was never preempted");
    }
}

fn is_preempted_by(mechanism: MechanismKind, said: &str) {
    let runtime = jobs(config(1, mechanism));
    let description = runtime.description();
    assert!(
        description.contains("16 contexts that are kernel threads"),
        "{description}"
    );
    assert!(description.contains(said), "{description}");
    let handle = runtime.handle();
    let preempted = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&preempted);
    let long = handle.submit(
        ClassId(0),
        Box::new(move || {
            let thread = rustix::thread::gettid;
            let me = thread();
            compute_until(&theirs);
            u64::from(thread() == me)
        }),
    );
    wait_for("the start", || runtime.statistics().running == 1);
    let mut other = handle.submit(ClassId(0), Box::new(|| 2)).unwrap();
    assert_eq!(other.wait_timeout(PATIENCE).expect("its turn comes"), Ok(2));
    preempted.store(true, Ordering::Relaxed);
    assert_eq!(long.unwrap().wait(), Ok(1));
    // A host that takes the core away may have a spare come first, which is counted once it is
    // sent the request.
    wait_for("the count", || {
        let statistics = runtime.statistics();
        statistics.preemptions.taken() + statistics.rescued > 0
    });
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn code_without_probes_gives_way_to_signals() {
    is_preempted_by(MechanismKind::Signal, "signal, as configured");
}

#[test]
fn code_without_probes_gives_way_to_escalation() {
    is_preempted_by(
        MechanismKind::Escalation,
        "escalation from probe to signal, as configured",
    );
}

#[test]
fn code_without_probes_gives_way_to_auto() {
    is_preempted_by(MechanismKind::Auto, "then signal (");
}

/// Far more requests than contexts, on two workers, all without probes.
#[test]
fn many_requests_without_probes_all_finish() {
    const REQUESTS: u64 = 300;
    let runtime = jobs(config(2, MechanismKind::Signal));
    let handle = runtime.handle();
    let sum = Arc::new(AtomicU64::new(0));
    let tickets: Vec<_> = (0..REQUESTS)
        .map(|n| {
            let sum = Arc::clone(&sum);
            let job = move || {
                let rounds = if n % 10 == 0 { 2_000_000 } else { 1000 };
                let text = n.to_string();
                for round in 0..rounds {
                    std::hint::black_box(round);
                }
                sum.fetch_add(text.parse().unwrap(), Ordering::Relaxed);
                n
            };
            handle.submit(ClassId(0), Box::new(job)).unwrap()
        })
        .collect();
    for (n, mut ticket) in tickets.into_iter().enumerate() {
        let answer = ticket.wait_timeout(PATIENCE).expect("each has its turn");
        assert_eq!(answer, Ok(n as u64));
    }
    assert_eq!(sum.load(Ordering::Relaxed), REQUESTS * (REQUESTS - 1) / 2);
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_pool_of_closures_has_a_dispatchers_thread() {
    let pool = Pool::builder(["only"])
        .config(config(1, MechanismKind::Escalation).layout(LayoutKind::Auto))
        .start()
        .unwrap();
    let description = pool.description();
    assert!(
        description.starts_with("1 workers (auto: ")
            && description.contains("), 16 contexts that are kernel threads"),
        "{description}"
    );
}

#[test]
fn layouts_and_modes_that_do_not_go_with_it_are_refused_in_words() {
    let start = |config| {
        Runtime::builder(handler_fn(|n: u64| n))
            .config(config)
            .start()
    };
    for (layout, name) in [
        (LayoutKind::Inline, "inline"),
        (LayoutKind::Symmetric, "symmetric"),
    ] {
        let error = start(
            Config::default()
                .context_kind(ContextKind::KernelThread)
                .layout(layout),
        )
        .unwrap_err()
        .to_string();
        let wanted = format!(
            "`layout` is \"{name}\", but must be \"threads\", since context_kind is \"kernel-thread\""
        );
        assert!(error.starts_with(&wanted), "{error}");
    }
    let guest = config(1, MechanismKind::Guest).strict(true);
    let error = start(guest.clone()).unwrap_err();
    assert!(matches!(error, StartError::KernelThreads { .. }), "{error}");
    assert!(error.to_string().contains("take \"signal\""), "{error}");
    let runtime = start(guest.strict(false)).unwrap();
    let description = runtime.description();
    assert!(
        description.contains("preemption signal, because"),
        "{description}"
    );
    assert_eq!(
        runtime.handle().submit(ClassId(0), 7).unwrap().wait(),
        Ok(7)
    );
    assert!(runtime.shutdown(PATIENCE).is_clean());
}

#[test]
fn a_file_names_the_kind() {
    let config = Config::from_toml("context_kind = \"kernel-thread\"").unwrap();
    assert_eq!(config.context_kind, ContextKind::KernelThread);
    config.validate().unwrap();
    assert_eq!(
        Config::from_toml("").unwrap().context_kind,
        ContextKind::Stack
    );
    let error = Config::from_toml("context_kind = \"fibre\"")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("context_kind") && error.contains("kernel-thread"),
        "{error}"
    );
}
