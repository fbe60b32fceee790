//! With any one defence removed, the stress test must fail; with all of them in place, it must
//! pass.
//!
//! Each run is a separate process: a failing run may crash or hang.
#![allow(missing_docs)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use shinjuku_preempt::fault::{Defence, take_out};
use shinjuku_preempt::stress::{Config, Quantum, run};
use shinjuku_tests_support::test_name;

/// Set in the child, whose test is then the stress itself.
const CHILD: &str = "SHINJUKU_STRESS_CHILD";
/// The exit status of a child whose stress found errors.
const FOUND: i32 = 42;
/// A busy machine may leave a child too little time to find errors.
const ATTEMPTS: usize = 4;

#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    Passed,
    /// The stress failed: by counted errors, a crash, or a hang.
    Failed(String),
}

fn stress_in_a_child(test: &str, without: Option<Defence>) -> Verdict {
    if std::env::var_os(CHILD).is_some() {
        stress(without);
    }
    // One at a time: they load every core, and must not affect each other's verdicts.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    verdict(child, limit(without))
}

/// More than a child needs when it does not hang. Only without a defence is a hang expected.
const fn limit(without: Option<Defence>) -> Duration {
    Duration::from_secs(if without.is_some() { 25 } else { 180 })
}

fn verdict(mut child: Child, limit: Duration) -> Verdict {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return match (status.code(), status.signal()) {
                (Some(0), _) => Verdict::Passed,
                (Some(FOUND), _) => Verdict::Failed("errors were counted".to_owned()),
                (_, Some(signal)) => Verdict::Failed(format!("died of signal {signal}")),
                _ => panic!("the child did not get to its stress: {status}"),
            };
        }
        if start.elapsed() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            return Verdict::Failed(format!("hung for {limit:?}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The child's part.
fn stress(without: Option<Defence>) -> ! {
    if let Some(defence) = without {
        take_out(defence);
    }
    let mut config = Config {
        duration: Duration::from_secs(8),
        write_stdout: true,
        stop_at_first_error: true,
        patience: Duration::from_secs(5),
        ..Config::default()
    };
    if without.is_none() {
        // It must also pass on a machine where a signal takes longer than the default quantum.
        config.duration = Duration::from_secs(3);
        config.quantum = Quantum::measured(config.interruption).unwrap().length;
        config.patience = Duration::from_secs(60);
    }
    let report = run(&config, |_| ()).unwrap();
    let failure = report.failure();
    eprintln!(
        "without {without:?}, after {:.2?}, {} preemptions, {} migrations: {}",
        report.elapsed,
        report.counters.taken(),
        report.counters.migrations,
        failure.as_deref().unwrap_or("passed")
    );
    std::process::exit(if failure.is_some() { FOUND } else { 0 });
}

fn is_noticed(test: &str, without: Defence) {
    for _ in 0..ATTEMPTS {
        if let Verdict::Failed(how) = stress_in_a_child(test, Some(without)) {
            return println!("noticed: {how}");
        }
    }
    panic!("the stress test passes without {without:?}");
}

macro_rules! it_fails_without {
    ($($test:ident: $defence:ident)*) => {
        const TESTED: &[Defence] = &[$(Defence::$defence),*];
        $(
        #[test]
        fn $test() {
            is_noticed(stringify!($test), Defence::$defence);
        }
        )*
    };
}

it_fails_without! {
    it_fails_without_the_fs_switch: FsSwitch
    it_fails_without_the_generation_check: GenerationCheck
    it_fails_without_care_for_the_alternate_stack: AlternateStackCare
    it_fails_without_late_publication: LatePublication
    it_fails_without_the_guard: Guard
    it_fails_without_vector_state: VectorState
}

#[test]
fn it_passes_with_every_defence_in_place() {
    let verdict = stress_in_a_child(test_name!(), None);
    assert_eq!(verdict, Verdict::Passed);
}

#[test]
fn every_defence_has_its_test() {
    for (name, defence) in Defence::ALL {
        assert!(TESTED.contains(&defence), "no test takes out {name}");
    }
}
