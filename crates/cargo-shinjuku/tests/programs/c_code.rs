//! C code of packages: instrumented as Rust code is, and left alone where that is.
//!
//! The workspace has a package `cc` of its own, which finds the compiler as the real one does.

use shinjuku_tests_support::process::is_there;
use shinjuku_tests_support::test_name;

use crate::builds::{Fixture, printed};

const CC: &str = r#"use std::{env, process::Command};

/// Makes a static library of `deep.c`, and a shared one, as some `configure` does to see if it can.
pub fn build() {
    let variables = ["TARGET", "HOST", "OUT_DIR", "CARGO_PKG_NAME"];
    let [target, host, out, package] = variables.map(|name| env::var(name).unwrap());
    assert_eq!(target, host);
    let named = [format!("CC_{target}"), "CC".into()].into_iter().find_map(|name| env::var(name).ok());
    let compiler = named.unwrap_or("cc".into());
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}");
    };
    let object = format!("{out}/deep.o");
    let name = format!("-DNAME={package}_deep");
    run(&compiler, &["-O1", "-fPIC", &name, "-c", "../cc/deep.c", "-o", &object]);
    run(&compiler, &["-shared", "-Wl,-z,defs", "-o", &format!("{out}/deep.so"), &object]);
    run("ar", &["crs", &format!("{out}/lib{package}_deep.a"), &object]);
    println!("cargo::rustc-link-search=native={out}");
    println!("cargo::rustc-link-lib=static={package}_deep");
}
"#;

const DEEP: &str = "__attribute__((noinline)) unsigned long NAME(unsigned long depth) {
    volatile unsigned long left = depth;
    return left == 0 ? 0 : NAME(left - 1) + 1;
}
";

const APP: &str = r#"use shinjuku_preempt::entries;

fn main() { println!("c {} skipped {}", entries(with_c::deep), entries(skipped_c::deep)); }
"#;

/// Of 21 entries in C and one in Rust.
const ALL: &str = "c 22 skipped 0\n";
const RUST_ALONE: &str = "c 1 skipped 0\n";

/// The workspace, with C code in a package that is instrumented, in one that is skipped, and in one
/// that runs in the build.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    let manifest = |name: &str, more: &str| {
        let text = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{more}"
        );
        fixture.write(&format!("{name}/Cargo.toml"), &text);
    };
    fixture.write(
        "Cargo.toml",
        "[workspace]\nmembers = [\"app\"]\nresolver = \"3\"\n\n[profile.dev]\nopt-level = 1\n",
    );
    manifest("cc", "");
    fixture.write("cc/src/lib.rs", CC);
    fixture.write("cc/deep.c", DEEP);
    for name in ["with_c", "skipped_c", "c_in_build"] {
        manifest(name, "\n[build-dependencies]\ncc = { path = \"../cc\" }\n");
        fixture.write(&format!("{name}/build.rs"), "fn main() { cc::build() }\n");
        let library = format!(
            "unsafe extern \"C\" {{ safe fn {name}_deep(depth: u64) -> u64; }}\n\n\
             #[inline(never)]\npub fn deep(depth: u64) -> u64 {{ {name}_deep(depth) }}\n"
        );
        fixture.write(&format!("{name}/src/lib.rs"), &library);
    }
    manifest(
        "app",
        "\n[dependencies]\nshinjuku-preempt = { path = \"../counter\" }\nwith_c = { path = \"../with_c\" }\n\
         skipped_c = { path = \"../skipped_c\" }\n\n[build-dependencies]\nc_in_build = { path = \"../c_in_build\" }\n\n\
         [package.metadata.shinjuku]\nskip = [\"skipped_c\"]\n",
    );
    fixture.write(
        "app/build.rs",
        "fn main() { assert_eq!(c_in_build::deep(5), 5); }\n",
    );
    fixture.write("app/src/main.rs", APP);
    fixture
}

/// Whether this machine has a clang; without, `test` has nothing to look at and says so.
pub fn has_clang(test: &str) -> bool {
    let has = is_there("clang");
    if !has {
        eprintln!("SKIPPED {test}: there is no clang");
    }
    has
}

#[test]
fn c_code_is_instrumented_where_rust_code_is() {
    if !has_clang(test_name!()) {
        return;
    }
    let fixture = fixture();
    assert_eq!(fixture.run(""), ALL);
    let shown = printed(fixture.shinjuku("show --offline"));
    let c_code = shown
        .split_once("C and C++ code of these, by clang")
        .unwrap()
        .1;
    assert!(c_code.contains("\n  with_c"), "{shown}");
    assert!(!c_code.contains("skipped_c"), "{shown}");
}

#[test]
fn a_compiler_that_the_environment_names_and_that_is_no_clang_stays() {
    let fixture = fixture();
    let mut command = fixture.shinjuku("run --offline -p app");
    command.env("CC", "/usr/bin/cc").env("CXX", "/usr/bin/c++");
    // The lock file, by which the first build learns of C code.
    printed(fixture.shinjuku("show --offline"));
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        RUST_ALONE,
        "{errors}"
    );
    let why = "cargo shinjuku: C code has no probes: CC names /usr/bin/cc, which is no clang\n";
    assert!(errors.contains(why), "{errors}");
}
