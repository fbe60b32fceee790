//! The program of `cargo xtask stress entries`, with operations of a dependency that have no probes
//! of their own: built by `cargo-shinjuku`, preempted at function entries, with the results that
//! they have undisturbed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shinjuku_tests_support::process::run_to_the_end;
use shinjuku_tests_support::test_name;

use crate::workspace::Workspace;

/// The program, built once. Beside it is `edges`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // With LTO, and line tables, the linker's LLVM checks the instrumented modules.
        let workspace = Workspace::new(
            "stress",
            "shinjuku-stress-entries = { path = \"entries\" }",
            "debug = \"line-tables-only\"\nopt-level = 1\nlto = \"thin\"\n\n[features]\n\
             default = [\"fault-injection\"]\nfault-injection = [\"shinjuku-preempt/fault-injection\"]",
        );
        workspace.write("src/main.rs", include_str!("../../../stress/entries/src/main.rs"));
        workspace.write(
            "src/bin/edges.rs",
            include_str!("../../../stress/entries/src/bin/edges.rs"),
        );
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
    let counts = counts(&printed);
    (printed, counts)
}

fn counts(printed: &str) -> BTreeMap<String, u64> {
    let counts: Vec<_> = printed.lines().last().unwrap().split(' ').collect();
    let counts = counts
        .chunks(2)
        .map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap()));
    counts.collect()
}

/// Preemptions at entries that a run ends with; it takes some seconds.
const WANTED: u64 = 1_000;
/// The same where each takes more: a timer's signal, or a switch between kernel threads, or two
/// runtimes share the cores.
const FEWER: u64 = 200;

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
        eprintln!(
            "SKIPPED {}: the dispatcher takes a core beside the worker's",
            test_name!()
        );
        return;
    }
    let (printed, counts) = run("threads", "escalation", SOME);
    assert!(printed.contains(" compiled probes"), "{printed}");
    assert!(counts["compiled"] >= SOME, "{printed}");
    is_right(&printed, &counts);
}

/// What the other tests find to be right is wrong without the guard: the stress can fail.
#[test]
fn without_the_guard_what_must_not_be_preempted_is() {
    let wanted = WANTED.to_string();
    let mut command = Command::new(program());
    let (status, said) =
        run_to_the_end(command.args(["threads", "compiled-probe", &wanted, "30", "guard"]));
    assert!(!status.success(), "{said}");
    let counts = counts(&said);
    assert!(counts["wrong"] > 0 && counts["compiled"] > 0, "{said}");
}

/// Inline, in loops, and in a pool's loops.
fn entries_follow_the_timer(layout: &str) {
    let (printed, counts) = run(layout, "compiled-probe", FEWER);
    assert!(
        printed.contains("a timer of each thread raises their gate"),
        "{printed}"
    );
    assert!(counts["compiled"] >= FEWER, "{printed}");
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
fn two_runtimes_that_raise_one_gate_preempt_their_own_each() {
    let (printed, counts) = run("two-runtimes", "compiled-probe", FEWER);
    assert_eq!(printed.matches("compiled probes (").count(), 2, "{printed}");
    // The program has looked whether each had as many.
    assert!(counts["compiled"] >= 2 * FEWER, "{printed}");
    assert_eq!(counts["interrupt"], 0, "{printed}");
    is_right(&printed, &counts);
}

#[test]
fn contexts_that_are_kernel_threads_are_preempted_at_entries() {
    let (printed, counts) = run("kernel-threads", "compiled-probe", FEWER);
    assert!(
        printed.contains("contexts that are kernel threads"),
        "{printed}"
    );
    assert!(counts["compiled"] >= FEWER, "{printed}");
    assert_eq!(counts["interrupt"], 0, "{printed}");
    is_right(&printed, &counts);
}

/// With the gate up all the while, and another runtime's code preempted beside.
#[test]
fn at_the_edges_of_a_program_nothing_is_preempted_and_nothing_breaks() {
    let edges = program().with_file_name("edges");
    let output = Command::new(edges).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    let (edges, others): (Vec<_>, Vec<_>) =
        printed.lines().partition(|line| line.contains(": up "));
    assert!(
        edges
            .iter()
            .all(|line| line.ends_with(": up true right true")),
        "{printed}"
    );
    let at = |place: &str| edges.iter().filter(|line| line.starts_with(place)).count();
    assert_eq!((at("before main"), at("after main")), (1, 1), "{printed}");
    // The program's own thread, and at least two contexts.
    assert!(at("a thread-local's destructor") >= 3, "{printed}");
    let expected = [
        "a thread of the program's: right true",
        "a second pool: enough true right true clean true",
        "the first pool: preempted 0",
    ];
    assert_eq!(others, expected);
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
