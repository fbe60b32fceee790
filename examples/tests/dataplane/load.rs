//! The command `shinjuku-load`, and its results: the second process of the tests, beside that of
//! `server.rs`.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use shinjuku_tests_support::process::built;

/// The command's path, beside the tests' directory.
pub fn load() -> PathBuf {
    let remedy = "cargo build -p shinjuku-loadgen --features dpdk,xdp";
    built("shinjuku-load", remedy)
}

/// Measures two loads, and each class alone before; returns the report.
pub fn measure(command: &mut Command) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = command
        .args(["--target", "10.79.0.1:9000", "--protocol", "shinjuku"])
        .args(["--mix", "hi", "--rate", "200,400", "--seconds", "0.3"])
        .args(["--warm-up", "0", "--drain", "10", "--connections", "16"])
        .arg("--json")
        .arg(file.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{errors}");
    serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
}

/// How many requests were answered, which must be as many as were due.
pub fn all_answered(report: &Value) -> u64 {
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    points
        .iter()
        .map(|point| {
            let all = &point["all"];
            assert_eq!(all["answered"], all["due"], "{point}");
            assert_eq!(point["client"]["stray_replies"], 0, "{point}");
            let latency = all["p50_us"].as_f64().unwrap();
            assert!(latency > 0.0, "{point}");
            all["answered"].as_u64().unwrap()
        })
        .sum()
}
