//! Builds small workspaces, offline: what is instrumented, what is not, and that nothing is mixed.
//!
//! The workspace has a package `shinjuku-preempt` of its own that counts entries. Like the real one
//! it must not be instrumented, or it would call itself without end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A file's path and text.
const FILES: [(&str, &str); 18] = [
    (
        "Cargo.toml",
        r#"[workspace]
members = ["app", "counter", "library", "slow", "skipped", "maker", "in_build"]
resolver = "3"

[profile.dev]
debug = false
opt-level = 1
"#,
    ),
    (
        "counter/Cargo.toml",
        r#"[package]
name = "shinjuku-preempt"
version = "0.1.0"
edition = "2024"

[features]
compiled-probes = []
"#,
    ),
    (
        "counter/src/lib.rs",
        r#"use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(feature = "compiled-probes")]
#[unsafe(export_name = "__sancov_should_track")]
static GATE: AtomicU64 = AtomicU64::new(0);
#[cfg(not(feature = "compiled-probes"))]
static GATE: AtomicU64 = AtomicU64::new(0);
static ENTRIES: AtomicU64 = AtomicU64::new(0);

#[cfg(feature = "compiled-probes")]
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_pc_guard(_: *mut u32) { count() }

#[cfg(feature = "compiled-probes")]
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_trace_pc_guard_init(_: *mut u32, _: *mut u32) {}

#[inline(never)]
fn count() { ENTRIES.fetch_add(1, Relaxed); }

/// Entries within `body`, without its own.
pub fn entries(body: fn(u64) -> u64) -> u64 {
    let before = ENTRIES.load(Relaxed);
    GATE.store(1, Relaxed);
    std::hint::black_box(body(std::hint::black_box(20)));
    GATE.store(0, Relaxed);
    ENTRIES.load(Relaxed) - before
}
"#,
    ),
    (
        "library/Cargo.toml",
        r#"[package]
name = "library"
version = "0.1.0"
edition = "2024"

[dependencies]
maker = { path = "../maker" }

[build-dependencies]
in_build = { path = "../in_build" }
"#,
    ),
    (
        "library/build.rs",
        r#"fn main() { println!("cargo::rustc-env=BUILT={}", in_build::name()); }"#,
    ),
    (
        "library/src/lib.rs",
        r#"/// Enters itself `depth` times.
/// ```
/// assert_eq!(library::deep(3), 3);
/// ```
#[inline(never)]
pub fn deep(depth: u64) -> u64 {
    if depth == 0 { 0 } else { std::hint::black_box(deep(std::hint::black_box(depth - 1)) + 1) }
}

pub const BUILT: &str = env!("BUILT");

maker::function!();

#[test]
fn it_is_as_deep_as_that() { assert_eq!((deep(4), made()), (4, 42)); }
"#,
    ),
    (
        "slow/Cargo.toml",
        "[package]\nname = \"slow\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    ),
    (
        "slow/src/lib.rs",
        r#"#[inline(never)]
pub fn deep(depth: u64) -> u64 {
    if depth == 0 { 0 } else { std::hint::black_box(deep(std::hint::black_box(depth - 1)) + 1) }
}
"#,
    ),
    (
        "skipped/Cargo.toml",
        "[package]\nname = \"skipped\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    ),
    (
        "skipped/src/lib.rs",
        r#"#[inline(never)]
pub fn deep(depth: u64) -> u64 {
    if depth == 0 { 0 } else { std::hint::black_box(deep(std::hint::black_box(depth - 1)) + 1) }
}
"#,
    ),
    (
        "maker/Cargo.toml",
        r#"[package]
name = "maker"
version = "0.1.0"
edition = "2024"

[lib]
proc-macro = true

[dependencies]
in_build = { path = "../in_build" }
"#,
    ),
    (
        "maker/src/lib.rs",
        r#"#[proc_macro]
pub fn function(_: proc_macro::TokenStream) -> proc_macro::TokenStream {
    assert_eq!(in_build::name(), "in the build");
    "pub fn made() -> u64 { 42 }".parse().unwrap()
}
"#,
    ),
    (
        "in_build/Cargo.toml",
        "[package]\nname = \"in_build\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    ),
    (
        "in_build/src/lib.rs",
        r#"#[inline(never)]
pub fn name() -> &'static str { "in the build" }
"#,
    ),
    (
        "app/Cargo.toml",
        r#"[package]
name = "app"
version = "0.1.0"
edition = "2024"

[dependencies]
shinjuku-preempt = { path = "../counter" }
library = { path = "../library" }
slow = { path = "../slow" }
skipped = { path = "../skipped" }

[[bench]]
name = "same"
harness = false

[package.metadata.shinjuku]
skip = ["skipped"]
"#,
    ),
    ("app/benches/same.rs", "include!(\"../src/main.rs\");\n"),
    (
        "app/src/main.rs",
        r#"use shinjuku_preempt::entries;

fn main() {
    assert_eq!(library::BUILT, "in the build");
    println!("library {} slow {} skipped {}", entries(library::deep), entries(slow::deep), entries(skipped::deep));
}
"#,
    ),
    (
        // A program without the runtime, of instrumented crates.
        "library/src/bin/without_runtime.rs",
        r#"fn main() { println!("{}", library::deep(5)); }"#,
    ),
];

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

pub struct Fixture {
    directory: TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Self { directory };
        for (path, text) in FILES {
            fixture.write(path, text);
        }
        fixture
    }

    /// Writes a file, in place of what was there.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Without what the environment of this test says to cargo.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory.path());
        for variable in [
            "CC",
            "CXX",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_TARGET",
            "CARGO_BUILD_BUILD_DIR",
            "CARGO_BUILD_RUSTC_WRAPPER",
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTFLAGS",
            "RUSTDOCFLAGS",
        ] {
            command.env_remove(variable);
        }
        command
    }

    pub fn shinjuku(&self, arguments: &str) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_cargo-shinjuku"));
        command.arg("shinjuku").args(arguments.split_whitespace());
        command
    }

    /// Runs the program, built as `arguments` say, and gives what it prints.
    pub fn run(&self, arguments: &str) -> String {
        printed(self.shinjuku(&format!("run --offline -q -p app {arguments}")))
    }
}

/// What a command prints that must succeed.
pub fn printed(mut command: Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {errors}");
    String::from_utf8(stdout).unwrap()
}

/// What a command says that must fail.
fn refused(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Each `deep(20)` is 21 entries, wherever it is instrumented.
const WITH_SKIP: &str = "library 21 slow 21 skipped 0\n";

#[test]
fn instrumented_crates_have_a_probe_at_each_entry_in_every_profile() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(""), WITH_SKIP);
    assert_eq!(fixture.run("--release"), WITH_SKIP);
    let mut unoptimised = fixture.shinjuku("run --offline -q -p app");
    unoptimised.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    // `black_box` is a function there, instrumented in the crate that uses it.
    assert_eq!(printed(unoptimised), "library 61 slow 61 skipped 0\n");
    for lto in ["thin", "fat"] {
        let mut command = fixture.shinjuku("run --offline -q -p app --release");
        command.env("CARGO_PROFILE_RELEASE_LTO", lto);
        assert_eq!(printed(command), WITH_SKIP, "{lto}");
    }
}

/// What another crate's functions are in a loop: their calls and what is left of them.
#[test]
fn functions_of_another_crate_have_probes_in_a_loop_unless_inlined_before_link_time() {
    let fixture = Fixture::new();
    fixture.write(
        "slow/src/lib.rs",
        r#"#[inline]
pub fn inlined(value: u64) -> u64 { value.rotate_left(7) ^ 5 }

#[inline]
pub fn copied(value: u64) -> u64 { value.rotate_left(9) ^ 7 }

#[inline(never)]
fn apart(value: u64) -> u64 { value.rotate_left(11) ^ 9 }

/// Rustc leaves what calls others to the linker.
pub fn merged(value: u64) -> u64 { apart(apart(value)) }
"#,
    );
    fixture.write(
        "app/src/main.rs",
        r#"use std::hint::black_box;

use shinjuku_preempt::entries;

fn inlined(mut turns: u64) -> u64 {
    let mut value = turns;
    while turns > 0 { value = slow::inlined(value); turns -= 1; }
    value
}

/// By a pointer, so that it is called.
fn copied(mut turns: u64) -> u64 {
    let (mut value, step) = (turns, black_box(slow::copied as fn(u64) -> u64));
    while turns > 0 { value = step(value); turns -= 1; }
    value
}

fn merged(mut turns: u64) -> u64 {
    let mut value = turns;
    while turns > 0 { value = slow::merged(value); turns -= 1; }
    value
}

fn main() {
    println!("inlined {} copied {} merged {}", entries(inlined), entries(copied), entries(merged));
}
"#,
    );
    for lto in ["off", "thin", "fat"] {
        let mut command = fixture.shinjuku("run --offline -q -p app --release");
        command.env("CARGO_PROFILE_RELEASE_LTO", lto);
        // Besides their own entry, the loops of 20 turns have none, one a turn, and three.
        assert_eq!(printed(command), "inlined 1 copied 21 merged 61\n", "{lto}");
    }
}

#[test]
fn benches_are_instrumented_and_run() {
    let fixture = Fixture::new();
    let bench = fixture.shinjuku("bench --offline -q -p app --bench same");
    assert_eq!(printed(bench), WITH_SKIP);
}

#[test]
fn what_cargos_configuration_names_is_built_for() {
    // No standard library is distributed for it.
    const OTHER: &str = "mips-unknown-linux-gnu";
    let fixture = Fixture::new();
    let configure = |targets: &str| {
        let text = format!("[build]\ntarget = {targets}\n");
        fixture.write(".cargo/config.toml", &text);
    };
    configure(&format!("\"{OTHER}\""));
    let error = refused(fixture.shinjuku("build --offline -p slow"));
    assert!(error.contains(OTHER), "{error}");
    // Arguments and the environment come first.
    let named = format!("build --offline -p slow --target {TRIPLE}");
    printed(fixture.shinjuku(&named));
    let mut by_environment = fixture.shinjuku("build --offline -p slow");
    by_environment.env("CARGO_BUILD_TARGET", TRIPLE);
    printed(by_environment);
    configure(&format!("[\"{TRIPLE}\"]"));
    assert_eq!(fixture.run(""), WITH_SKIP);
}

#[test]
fn plain_builds_and_instrumented_ones_are_not_mixed() {
    let fixture = Fixture::new();
    let plain = || {
        let mut command = fixture.command("cargo");
        command.args(["run", "--offline", "-q", "-p", "app"]);
        printed(command)
    };
    let without = "library 0 slow 0 skipped 0\n";
    assert_eq!(plain(), without);
    assert_eq!(fixture.run(""), WITH_SKIP);
    assert_eq!(plain(), without);
    assert_eq!(fixture.run(""), WITH_SKIP);
    let program = |directory: &str| fixture.path(directory).join("debug/app").exists();
    assert!(program("target") && program(&format!("target/shinjuku/{TRIPLE}")));
    // And below the directory that the user names.
    assert_eq!(fixture.run("--target-dir elsewhere"), WITH_SKIP);
    assert!(program(&format!("elsewhere/shinjuku/{TRIPLE}")));
}

#[test]
fn another_list_of_skipped_packages_builds_anew() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(""), WITH_SKIP);
    let manifest = fixture.path("app/Cargo.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("[\"skipped\"]", "[\"slow\"]")).unwrap();
    assert_eq!(fixture.run(""), "library 21 slow 0 skipped 21\n");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("skip =", "skipp =")).unwrap();
    let error = refused(fixture.shinjuku("build --offline"));
    assert!(error.contains("one key, `skip`"), "{error}");
}

#[test]
fn programs_and_tests_without_the_runtime_are_linked_as_well() {
    let fixture = Fixture::new();
    let program = fixture.shinjuku("run --offline -q --bin without_runtime");
    assert_eq!(printed(program), "5\n");
    // Unit tests, and the example in the documentation.
    let tests = printed(fixture.shinjuku("test --offline -p library"));
    assert_eq!(tests.matches("1 passed").count(), 2, "{tests}");
}

#[test]
fn what_runs_in_the_build_has_no_probes() {
    let fixture = Fixture::new();
    printed(fixture.shinjuku("build --offline --workspace"));
    let symbol = b"__sanitizer_cov_trace_pc_guard";
    let has_probes = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(symbol.len()).any(|window| window == symbol)
    };
    let libraries = |directory: &str, name: &str| {
        let found = fs::read_dir(
            fixture
                .path("target/shinjuku")
                .join(directory)
                .join("debug/deps"),
        );
        let mut found = found.unwrap().map(|entry| entry.unwrap().path());
        let is_it = |path: &PathBuf| {
            let file = path.file_name().unwrap().to_str().unwrap();
            file.starts_with(name) && (file.ends_with(".rlib") || file.ends_with(".so"))
        };
        found
            .find(is_it)
            .unwrap_or_else(|| panic!("no {name} in {directory}"))
    };
    assert!(!has_probes(&libraries("", "libin_build")), "for the build");
    assert!(!has_probes(&libraries("", "libmaker")), "a proc macro");
    assert!(!has_probes(&libraries(TRIPLE, "libskipped")));
    assert!(has_probes(&libraries(TRIPLE, "liblibrary")));
    assert!(has_probes(&libraries(TRIPLE, "libslow")));
}

#[test]
fn the_list_says_what_is_instrumented_and_why_the_rest_is_not() {
    let fixture = Fixture::new();
    let manifest = fixture.path("Cargo.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    // Of a member, everything may be linked: only for the build is what is none.
    let text = text.replace(", \"in_build\"]", "]\nexclude = [\"in_build\"]");
    let unknown = "\n[workspace.metadata.shinjuku]\nskip = [\"nosuch\"]\n";
    fs::write(&manifest, text + unknown).unwrap();
    let list = printed(fixture.shinjuku("show --offline"));
    let (with, without) = list.split_once("Left out:").unwrap();
    for name in ["app 0.1.0", "library 0.1.0", "slow 0.1.0"] {
        assert!(with.contains(name), "{name}: {list}");
    }
    let line = |name: &str| without.lines().find(|line| line.contains(name)).unwrap();
    assert!(line("skipped 0.1.0").ends_with("skipped by metadata.shinjuku of app"));
    assert!(line("shinjuku-preempt 0.1.0").ends_with("the runtime's own"));
    assert!(line("maker 0.1.0").ends_with("a proc macro"));
    assert!(line("in_build 0.1.0").ends_with("for build scripts and proc macros only"));
    assert!(line("nosuch").contains("no package here"), "{list}");
    assert!(!fixture.path("target").exists(), "nothing is built to tell");
}

/// A script of `text` in the fixture's directory.
fn script(fixture: &Fixture, name: &str, text: &str) -> PathBuf {
    let path = fixture.path(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Unoptimised, a crate takes what it uses of `core` from its dependencies, where that is
/// instrumented.
#[test]
fn what_entries_call_does_not_call_itself_in_a_build_that_is_not_optimised() {
    let fixture = Fixture::new();
    let workspace = fs::read_to_string(fixture.path("Cargo.toml")).unwrap();
    fixture.write(
        "Cargo.toml",
        &workspace.replace("opt-level = 1", "opt-level = 0"),
    );
    let counter = fs::read_to_string(fixture.path("counter/Cargo.toml")).unwrap();
    let counter = format!("{counter}\n[dependencies]\nslow = {{ path = \"../slow\" }}\n");
    fixture.write("counter/Cargo.toml", &counter);
    let slow = fs::read_to_string(fixture.path("slow/src/lib.rs")).unwrap();
    // Loads are calls there, and the copy is the first crate's.
    let loads = "\n#[inline(never)]\npub fn look(number: &std::sync::atomic::AtomicU64) -> u64 {\n\
                 \tnumber.load(std::sync::atomic::Ordering::Relaxed)\n}\n";
    fixture.write("slow/src/lib.rs", &format!("{slow}{loads}"));
    let source = fs::read_to_string(fixture.path("counter/src/lib.rs")).unwrap();
    let source = source.replace("fn count() {", "fn count() { ENTRIES.load(Relaxed);");
    fixture.write(
        "counter/src/lib.rs",
        &format!("extern crate slow as _;\n{source}"),
    );
    assert!(fixture.run("").starts_with("library "));
}

#[test]
fn a_wrapper_that_is_there_already_runs_rustc() {
    let fixture = Fixture::new();
    let log = fixture.path("log");
    let text = format!("echo \"$@\" >> {}\nexec \"$@\"", log.display());
    let wrapper = script(&fixture, "wrap", &text);
    for by_file in [false, true] {
        let mut command = fixture.shinjuku("run --offline -q -p app");
        if by_file {
            fs::create_dir(fixture.path(".cargo")).unwrap();
            let configuration = "[build]\nrustc-wrapper = \"./wrap\"\n";
            fs::write(fixture.path(".cargo/config.toml"), configuration).unwrap();
            fs::remove_dir_all(fixture.path("target")).unwrap();
            fs::remove_file(&log).unwrap();
        } else {
            command.env("RUSTC_WRAPPER", &wrapper);
        }
        assert_eq!(printed(command), WITH_SKIP);
        let said = fs::read_to_string(&log).unwrap();
        let has_flags = |name: &str| {
            let name = format!("--crate-name {name} ");
            let line = said.lines().find(|line| line.contains(&name)).unwrap();
            line.contains("sancov-module")
        };
        assert!(has_flags("library") && !has_flags("in_build") && !has_flags("skipped"));
    }
}

#[test]
fn a_compiler_that_has_no_gate_is_refused_before_anything_is_built() {
    let fixture = Fixture::new();
    let text = "echo 'rustc 1.86.0 (of the test)'; echo 'host: x'; echo 'LLVM version: 19.1.7'";
    let old = script(&fixture, "rustc", text);
    for subcommand in ["build", "run", "test", "bench", "show"] {
        let mut command = fixture.shinjuku(subcommand);
        command.env("RUSTC", &old);
        let error = refused(command);
        assert!(
            error.contains("rustc 1.86.0 (of the test) has LLVM 19.1.7"),
            "{error}"
        );
        assert!(error.contains("no gate"), "{error}");
    }
    assert!(!fixture.path("target").exists());
}
