//! Compiles the XDP program where clang and libbpf's headers are.
//!
//! Where they are missing the crate builds all the same, without a program, and says so at run
//! time: everyone can build the workspace. What does not compile although both are there fails the
//! build.
//!
//! The object is not kept in the repository: a review cannot read it, and each change would have to
//! compare it with its source.

use std::path::Path;
use std::process::Command;

const FLAGS: [&str; 8] = [
    "-target",
    "bpf",
    // Compare-and-swap; Linux 5.12.
    "-mcpu=v3",
    "-O2",
    // The tables' types are read from what a debugger would read.
    "-g",
    "-Wall",
    "-Werror",
    // This machine's kernel headers: clang does not look for them when it compiles for BPF.
    "-I/usr/include/x86_64-linux-gnu",
];

/// Needs the newest of libbpf's declarations that the program needs.
const PROBE: &str = "#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
long probe(void) { return bpf_loop(1, 0, 0, 0); }
";

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let directory = std::env::var("OUT_DIR").expect("cargo sets it");
    let object = Path::new(&directory).join("rack.o");
    let without = match compiler(Path::new(&directory)) {
        Ok(clang) => {
            compile(&clang, &object);
            String::new()
        }
        Err(missing) => {
            std::fs::write(&object, []).expect("cargo's directory can be written to");
            missing
        }
    };
    println!("cargo::rustc-env=RACK_PROGRAM_MISSING={without}");
}

/// A clang that finds libbpf's headers; or what is missing, in words.
fn compiler(directory: &Path) -> Result<String, String> {
    let asked = std::env::var("CLANG").ok();
    let mut candidates = asked.map_or_else(
        || vec!["clang".to_owned(), "clang-14".to_owned()],
        |clang| vec![clang],
    );
    candidates.retain(|clang| {
        let version = Command::new(clang).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    let clang = candidates.into_iter().next().ok_or("clang is missing")?;
    let probe = directory.join("probe.c");
    std::fs::write(&probe, PROBE).expect("cargo's directory can be written to");
    let headers = Command::new(&clang)
        .args(FLAGS)
        .arg("-fsyntax-only")
        .arg(&probe)
        .output();
    if headers.is_ok_and(|output| output.status.success()) {
        Ok(clang)
    } else {
        Err("libbpf's headers are missing, or older than 0.7 (Debian: libbpf-dev)".to_owned())
    }
}

fn compile(clang: &str, object: &Path) {
    let status = Command::new(clang)
        .args(FLAGS)
        .args(["-c", "bpf/rack.c", "-o"])
        .arg(object)
        .status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "bpf/rack.c does not compile: {status:?}"
    );
}
