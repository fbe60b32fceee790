//! The steps of the test-suite, in the order they run: what builds first, then what is most likely
//! to fail.

use std::time::Duration;

use shinjuku_bench::paths;

use super::step::{Need, Step};

/// What serves and loads without the kernel's stack, with all that it can.
const PAST_THE_KERNEL: &str = "-p shinjuku-loadgen -p shinjuku-examples --features \
    shinjuku-loadgen/dpdk,shinjuku-loadgen/xdp,shinjuku-examples/dpdk,shinjuku-examples/xdp";

const DPDK: Need = Need {
    probe: "pkg-config --atleast-version=22.11 libdpdk",
    missing: "the transport over DPDK takes Debian's libdpdk-dev, 22.11 or later, and pkg-config",
};

const ROCKSDB: Need = Need {
    probe: "test -e /usr/include/rocksdb/c.h",
    missing: "the key-value server's engine over RocksDB takes Debian's librocksdb-dev and libclang-dev",
};

/// All steps.
pub(super) fn all() -> Vec<Step> {
    [workspace(), devices(), other_builds()].concat()
}

/// A step that only builds.
fn build(name: &'static str, minutes: u64, arguments: &str) -> Step {
    Step {
        name,
        program: std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()),
        arguments: arguments.split_whitespace().map(String::from).collect(),
        environment: Vec::new(),
        limit: Duration::from_secs(60 * minutes),
        has_tests: false,
        need: None,
    }
}

/// A step that runs tests. `--show-output`, because libtest hides what passing tests print, and a
/// skipped test passes.
fn tests(name: &'static str, minutes: u64, arguments: &str) -> Step {
    let (cargo, libtest) = arguments.split_once(" -- ").unwrap_or((arguments, ""));
    let arguments = format!("test {cargo} --no-fail-fast -- {libtest} --show-output");
    Step {
        has_tests: true,
        ..build(name, minutes, &arguments)
    }
}

/// The workspace as it stands, and its key-value server with the engine that takes a C++ library.
fn workspace() -> Vec<Step> {
    vec![
        build("build", 25, "test --workspace --no-run"),
        build("examples", 8, "build --workspace --examples --bins"),
        tests("tests", 20, "--workspace --tests"),
        Step {
            // A crate may be without examples in its documentation.
            has_tests: false,
            ..tests("doc", 12, "--workspace --doc")
        },
        Step {
            need: Some(ROCKSDB),
            ..tests("rocksdb", 8, "-p shinjuku-kv --features rocksdb")
        },
    ]
}

/// What serves without the kernel's stack.
fn devices() -> Vec<Step> {
    vec![
        Step {
            need: Some(DPDK),
            ..tests(
                "dpdk",
                10,
                "-p shinjuku-dpdk-sys -p shinjuku-dataplane -p shinjuku-tests -p shinjuku-bench-dataplane --features \
                 shinjuku-dpdk-sys/link,shinjuku-dataplane/dpdk,shinjuku-tests/dpdk,shinjuku-bench-dataplane/dpdk --lib \
                 --test failed_start --test dpdk --test dpdk_ring --test dpdk_allocation --test dpdk_packets --test contenders",
            )
        },
        tests(
            "xdp",
            5,
            "-p shinjuku-dataplane -p shinjuku-xdp-sys --features shinjuku-dataplane/xdp --lib --test xdp",
        ),
        Step {
            need: Some(DPDK),
            ..build(
                "dataplane-build",
                8,
                &format!("build {PAST_THE_KERNEL} --bins --examples"),
            )
        },
        // Servers and clients in processes of their own, with both transports built in.
        Step {
            need: Some(DPDK),
            ..tests(
                "dataplane",
                5,
                &format!("{PAST_THE_KERNEL} --test suite --test dataplane"),
            )
        },
    ]
}

/// The runtime built otherwise than in the workspace: as users get it, for other interrupts, with
/// faults, under loom.
fn other_builds() -> Vec<Step> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let loom_flags = format!("{flags} --cfg loom").trim().to_owned();
    // Its own directory: other flags would have cargo rebuild everything, each time, both ways.
    let loom_target = paths::target_dir().join("loom").display().to_string();
    vec![
        // As users get it who turn no feature on: no guest mode and no Dune.
        tests("plain", 5, "-p shinjuku --lib --test starting"),
        // Ten million random packets through the rack's XDP program: 82 s.
        tests(
            "rack-packets",
            8,
            "-p shinjuku-rack --test rack -- --ignored ten_million",
        ),
        // The callbacks of compiled probes: their names are those of fuzzers' callbacks, too.
        tests(
            "compiled-probes",
            5,
            "-p shinjuku-preempt --features compiled-probes --lib --test interrupts",
        ),
        // The stress test, with every defence in place and with each one out.
        tests(
            "faults",
            5,
            "-p shinjuku-preempt --release --features fault-injection --test faults",
        ),
        Step {
            environment: vec![
                ("RUSTFLAGS".to_owned(), loom_flags),
                ("CARGO_TARGET_DIR".to_owned(), loom_target),
            ],
            ..tests(
                "loom",
                8,
                "-p shinjuku-preempt -p dune-sys --features shinjuku-preempt/dune,shinjuku-preempt/kvm --release --lib -- loom",
            )
        },
    ]
}
