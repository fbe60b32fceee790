//! The command: what it refuses, and in which words.

use shinjuku_tests_support::{need, test_name};
use std::process::{Command, Output};

use super::Core;

const PROGRAM: &str = env!("CARGO_BIN_EXE_shinjuku-elevate");

fn words(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    let words = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(words.lines().count(), 1, "one line: {words}");
    words
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--core", "0"]).args(arguments);
    command.output().unwrap()
}

#[test]
fn bad_orders_and_targets_are_refused_in_words() {
    let own = std::process::id();
    let [a, b] = ["A", "B"].map(|name| format!("{name}=process:{own}"));
    for (arguments, expected) in [
        (vec!["--order", "A-C", &a, &b], "names \"C\""),
        (vec!["--order", "A-A", &a, &b], "never lets B run"),
        (vec![&*a, &*a], "names differ"),
        (vec!["process:1"], "NAME=process:PID"),
        (vec!["A=pid:1"], "process:PID, thread:TID or vcpus:PID"),
        (vec!["--slice-us", "0", &a], "1 us to 100 ms"),
        (vec!["--scheduler-core", "0", &a], "name two cores"),
    ] {
        let words = words(&run(&arguments));
        assert!(words.contains(expected), "{arguments:?}: {words}");
    }
}

#[test]
fn what_it_started_is_scheduled_and_ended() {
    let core = need!(Core::take(test_name!()));
    let core = core.number.to_string();
    let output = Command::new(PROGRAM)
        .args([
            "run",
            "--core",
            &core,
            "--seconds",
            "1",
            "--slice-us",
            "500",
        ])
        .args([
            "A=command:sh -c 'while :; do :; done'",
            "B=command:sleep 600",
        ])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(told.contains("scheduling A, B"), "{told}");
    assert!(told.contains("slots ended by sleep"), "{told}");
}

#[test]
fn without_permission_it_says_what_to_do() {
    const TEST: &str = "without_permission_it_says_what_to_do";
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED {TEST}: only root can take another user's place");
        return;
    }
    // As a user without privileges, who has no way into root's directories.
    let directory = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let program = directory.path().join("shinjuku-elevate");
    std::fs::copy(PROGRAM, &program).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg("--")
        .arg(&program)
        .args(["run", "--core", "0", "A=command:sleep 600"])
        .current_dir("/")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED {TEST}: setpriv: {error}");
            return;
        }
    };
    let words = words(&output);
    assert!(words.contains("CAP_SYS_NICE"), "{words}");
}
