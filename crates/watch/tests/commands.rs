//! The command against a running runtime.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use shinjuku::policy::ClassId;
use shinjuku::{ClassConfig, CoresConfig, Runtime, handler_fn, preempt_point};

const PATIENCE: Duration = Duration::from_secs(30);

fn shinjuku(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shinjuku"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_server_is_watched() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (socket, trace) = (at("watch"), at("trace.json"));
    let spin = |micros: u64| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(micros) {
            preempt_point();
        }
    };
    let runtime = Runtime::builder(handler_fn(spin))
        .class([ClassConfig::new("get")])
        .workers(1)
        .cores(CoresConfig::default().share(true))
        .watch(socket.clone())
        .start()
        .unwrap();
    let (socket, trace) = (socket.to_str().unwrap(), trace.to_str().unwrap());
    let handle = runtime.handle();
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| shinjuku(&["trace", socket, "--for", "300", "-o", trace]));
        while !recording.is_finished() {
            handle.submit(ClassId(0), 100).unwrap().wait().unwrap();
        }
        let output = recording.join().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains(" slices; open it"));
    });
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == "get"));
    let output = shinjuku(&["statistics", socket]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(told["classes"][0]["finished"].as_u64() > Some(0), "{told}");
    let output = shinjuku(&["top", socket]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("top takes a terminal"));
    assert!(runtime.shutdown(PATIENCE).is_clean());
    let output = shinjuku(&["statistics", socket]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(
        said.contains("no server can be reached") && said.contains(socket),
        "{said}"
    );
}
