//! The program of `cargo xtask stress entries`, with operations of a dependency that have no probes
//! of their own: built by `cargo-shinjuku`, preempted at function entries, with the results that
//! they have undisturbed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::workspace::Workspace;

/// The program, built once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // With LTO, and line tables, the linker's LLVM checks the instrumented modules.
        let workspace = Workspace::new(
            "stress",
            "shinjuku-stress-entries = { path = \"entries\" }",
            "debug = \"line-tables-only\"\nopt-level = 1\nlto = \"thin\"",
        );
        workspace.write("src/main.rs", include_str!("../../../stress/entries/src/main.rs"));
        workspace.write(
            "entries/Cargo.toml",
            "[package]\nname = \"shinjuku-stress-entries\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
        );
        workspace.write("entries/src/lib.rs", include_str!("../../../stress/entries/src/lib.rs"));
        workspace.build()
    })
}

/// Runs the program for 90 seconds at most: its description, and the counts of its last line.
fn run(layout: &str, mechanism: &str, wanted: u64) -> (String, BTreeMap<String, u64>) {
    let wanted = wanted.to_string();
    let output = Command::new(program())
        .args([layout, mechanism, &wanted, "90"])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    let counts: Vec<_> = printed.lines().last().unwrap().split(' ').collect();
    let counts = counts
        .chunks(2)
        .map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap()));
    let counts = counts.collect();
    (printed, counts)
}

/// Preemptions at entries that a run ends with; it takes some seconds.
const WANTED: u64 = 1_000;
/// The same where a timer's signal comes before each.
const WANTED_BY_TIMER: u64 = 200;

fn is_right(printed: &str, counts: &BTreeMap<String, u64>) {
    let of = |name: &str| counts[name];
    assert_eq!(
        (of("wrong"), of("clean"), of("outstanding")),
        (0, 1, 0),
        "{printed}"
    );
}

#[test]
fn ordinary_code_is_preempted_at_entries_with_the_right_results() {
    let (printed, counts) = run("threads", "compiled-probe", WANTED);
    assert!(printed.contains("compiled probes ("), "{printed}");
    assert!(counts["compiled"] >= WANTED, "{printed}");
    assert!(counts["migrated"] > 0, "{printed}");
    assert_eq!(counts["interrupt"], 0, "{printed}");
    is_right(&printed, &counts);
}

#[test]
fn under_escalation_entries_come_before_signals() {
    // On a busy machine the grace is mostly over before the worker has its core again, and the
    // signal comes first.
    const SOME: u64 = 20;
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        // The dispatcher has the core again long after quantum and grace, and sends the signal at
        // once.
        eprintln!("skipped: the dispatcher takes a core beside the worker's");
        return;
    }
    let (printed, counts) = run("threads", "escalation", SOME);
    assert!(printed.contains(" compiled probes"), "{printed}");
    assert!(counts["compiled"] >= SOME, "{printed}");
    is_right(&printed, &counts);
}

/// Inline, in loops, and in a pool's loops.
fn entries_follow_the_timer(layout: &str) {
    let (printed, counts) = run(layout, "compiled-probe", WANTED_BY_TIMER);
    assert!(
        printed.contains("a timer of each thread raises their gate"),
        "{printed}"
    );
    assert!(counts["compiled"] >= WANTED_BY_TIMER, "{printed}");
    assert_eq!(
        counts["interrupt"], 0,
        "the timer stops nothing itself: {printed}"
    );
    is_right(&printed, &counts);
}

#[test]
fn inline_a_timer_raises_the_gate() {
    entries_follow_the_timer("inline");
}

#[test]
fn each_symmetric_loop_has_a_timer_that_raises_the_gate() {
    entries_follow_the_timer("symmetric");
}

#[test]
fn closures_in_a_pool_are_preempted_at_entries() {
    entries_follow_the_timer("pool");
}

#[test]
fn under_escalation_a_thread_that_stops_itself_leaves_them_out_and_says_so() {
    for layout in ["inline", "symmetric"] {
        let (printed, counts) = run(layout, "escalation", 0);
        assert!(printed.contains("compiled probes left out"), "{printed}");
        assert_eq!(counts["compiled"], 0, "{printed}");
        is_right(&printed, &counts);
    }
}
