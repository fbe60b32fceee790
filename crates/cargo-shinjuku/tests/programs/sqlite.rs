//! The example `sqlite`, built by `cargo-shinjuku`: its queries are one call of C code each, which
//! is preempted at its function entries.

use std::path::Path;
use std::process::Command;

use shinjuku_tests_support::test_name;

use crate::c_code::has_clang;
use crate::workspace::Workspace;

const EXAMPLE: &str = include_str!("../../../../examples/sqlite.rs");

/// By compiled probes alone: on a busy machine a signal would mostly come first.
fn without_signals(example: &str) -> String {
    const LAYOUT: &str = ".layout(LayoutKind::Threads)";
    assert_eq!(example.matches(LAYOUT).count(), 1);
    let mechanism = "shinjuku::PreemptionConfig::new(shinjuku::MechanismKind::CompiledProbe)";
    example.replace(LAYOUT, &format!("{LAYOUT}.preemption({mechanism})"))
}

/// Whether the program's object code of SQLite calls what function entries call.
fn calls_probes(directory: &Path) -> bool {
    let is_instrumented = |object: &Path| {
        let bytes = std::fs::read(object).unwrap();
        let name = b"__sanitizer_cov_trace_pc_guard\0";
        bytes.windows(name.len()).any(|window| window == name)
    };
    let build = directory.join("build");
    let outputs = std::fs::read_dir(&build).unwrap();
    let archives: Vec<_> = outputs
        .map(|output| output.unwrap().path().join("out/libsqlite3.a"))
        .filter(|archive| archive.exists())
        .collect();
    assert!(
        !archives.is_empty(),
        "no library of SQLite's in {}",
        build.display()
    );
    archives.iter().all(|archive| is_instrumented(archive))
}

#[test]
fn range_queries_within_c_are_preempted_at_entries_with_the_right_results() {
    if !has_clang(test_name!()) {
        return;
    }
    let workspace = Workspace::new(
        "sqlite",
        "rusqlite = { version = \"0.41\", default-features = false, features = [\"bundled\"] }\ntempfile = \"3\"",
        "debug = false\nopt-level = 1\n\n[profile.dev.package.libsqlite3-sys]\nopt-level = 0",
    );
    workspace.write("src/main.rs", &without_signals(EXAMPLE));
    let program = workspace.build();
    assert!(calls_probes(program.parent().unwrap()));

    let output = Command::new(program).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // It compares all results itself.
    assert!(output.status.success(), "{printed}{errors}");
    assert!(printed.contains(" compiled probes"), "{printed}");
    let (before, _) = printed
        .split_once(" by compiled probe")
        .expect("the statistics");
    let taken = before.rsplit(' ').next().unwrap();
    let taken: u64 = taken.trim_start_matches('(').parse().unwrap();
    // On a busy machine there are few in all. What a request does in Rust, before and after its
    // query, is a thousandth of it.
    assert!(taken >= 20, "{printed}");
}
