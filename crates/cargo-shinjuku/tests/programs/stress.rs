//! A program with the real runtime whose dependency has no probes of its own: built by
//! `cargo-shinjuku`, preempted at function entries, with the results that it has undisturbed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program, built once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build(Path::new(env!("CARGO_TARGET_TMPDIR"))))
}

/// Makes the program's workspace below `directory` and builds it. Artifacts stay for the next time.
fn build(directory: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = directory.join("stress");
    let write = |path: &str, text: &str| {
        let path = workspace.join(path);
        // What stays the same keeps its time, so that cargo builds nothing anew.
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            return;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let crates = here.parent().unwrap().display();
    // With LTO, and line tables, the linker's LLVM checks the instrumented modules.
    write(
        "Cargo.toml",
        &format!(
            "[package]\nname = \"stress\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
             ordinary = {{ path = \"ordinary\" }}\nshinjuku = {{ path = \"{crates}/shinjuku\" }}\n\
             shinjuku-preempt = {{ path = \"{crates}/preempt\" }}\n\n[profile.dev]\ndebug = \"line-tables-only\"\nopt-level = 1\nlto = \"thin\"\n"
        ),
    );
    write("src/main.rs", include_str!("preempted/program.rs"));
    write(
        "ordinary/Cargo.toml",
        "[package]\nname = \"ordinary\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    );
    write("ordinary/src/lib.rs", include_str!("preempted/ordinary.rs"));
    let lock = here.join("../../Cargo.lock");
    if !workspace.join("Cargo.lock").exists() {
        fs::copy(lock, workspace.join("Cargo.lock")).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_cargo-shinjuku"));
    command
        .args(["shinjuku", "build", "--offline", "--target-dir"])
        .arg(workspace.join("target"))
        .current_dir(&workspace);
    for variable in ["CARGO_BUILD_TARGET", "RUSTC_WRAPPER", "RUSTFLAGS"] {
        command.env_remove(variable);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    workspace.join("target/shinjuku/x86_64-unknown-linux-gnu/debug/stress")
}

/// Runs the program: its description, and the counts of its last line.
fn run(arguments: [&str; 3]) -> (String, BTreeMap<String, u64>) {
    let output = Command::new(program()).args(arguments).output().unwrap();
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

#[test]
fn ordinary_code_is_preempted_at_entries_with_the_right_results() {
    let (printed, counts) = run(["compiled-probe", &WANTED.to_string(), "90"]);
    assert!(printed.contains("compiled probes ("), "{printed}");
    assert!(counts["compiled"] >= WANTED, "{printed}");
    assert!(counts["migrated"] > 0, "{printed}");
    assert_eq!((counts["wrong"], counts["interrupt"]), (0, 0), "{printed}");
    assert_eq!(
        (counts["clean"], counts["outstanding"]),
        (1, 0),
        "{printed}"
    );
}

#[test]
fn under_escalation_entries_come_before_signals() {
    // On a busy machine the grace is mostly over before the worker has its core again, and the
    // signal comes first.
    const SOME: u64 = 20;
    let (printed, counts) = run(["escalation", &SOME.to_string(), "90"]);
    assert!(printed.contains(" compiled probes"), "{printed}");
    assert!(counts["compiled"] >= SOME, "{printed}");
    assert_eq!((counts["wrong"], counts["clean"]), (0, 1), "{printed}");
    assert_eq!(counts["outstanding"], 0, "{printed}");
}

#[test]
fn without_a_dispatchers_thread_they_are_left_out_and_that_is_said() {
    let (printed, counts) = run(["inline", "0", "90"]);
    assert!(printed.contains("compiled probes left out"), "{printed}");
    assert_eq!((counts["compiled"], counts["wrong"]), (0, 0), "{printed}");
}

/// Who was stopped there held a lock that the others waited for.
#[test]
fn an_entry_within_a_lock_is_passed_by_once_others_have_waited_for_it() {
    let (printed, counts) = run(["lock", "1", "90"]);
    assert!(counts["passed_by"] >= 1, "{printed}");
    assert_eq!((counts["wrong"], counts["clean"]), (0, 1), "{printed}");
}
