//! The command itself: its files, its exit status, and that it can be interrupted.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shinjuku_loadgen::report::Report;

use crate::fake::{ok, serve};

fn load() -> Command {
    Command::new(env!("CARGO_BIN_EXE_shinjuku-load"))
}

#[test]
fn every_output_is_written() {
    let server = serve(|_, _| ok());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let output = load()
        .args([
            "--target",
            &server.to_string(),
            "--request",
            "get:3:GET key:{zipf}",
        ])
        .args([
            "--request",
            "PING",
            "--rate",
            "200,400",
            "--seconds",
            "0.2",
            "--repetitions",
            "2",
        ])
        .arg("--json")
        .arg(path("all.json"))
        .arg("--csv")
        .arg(path("all.csv"))
        .arg("--hdr")
        .arg(path("all.hdr"))
        .arg("--plot")
        .arg(path("plots"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        table.contains("offered/s") && table.contains("ping"),
        "{table}"
    );

    let report: Report = serde_json::from_slice(&std::fs::read(path("all.json")).unwrap()).unwrap();
    assert_eq!(report.points.len(), 4);
    assert!(
        report
            .points
            .iter()
            .all(|point| point.all.answered == point.all.due)
    );
    assert!(report.points[0].all.p99_slowdown.is_some());
    let csv = std::fs::read_to_string(path("all.csv")).unwrap();
    let columns = |line: &str| line.split(',').count();
    assert_eq!(csv.lines().count(), 1 + 4 * 3);
    assert!(
        csv.lines()
            .all(|line| columns(line) == columns(csv.lines().next().unwrap()))
    );
    let hdr = std::fs::read_to_string(path("all.hdr")).unwrap();
    assert_eq!(
        hdr.lines().filter(|line| line.starts_with("Tag=")).count(),
        8
    );
    for plot in ["latency-get.svg", "latency-ping.png", "slowdown.svg"] {
        assert!(path("plots").join(plot).exists(), "{plot}");
    }
}

#[test]
fn what_is_wrong_is_said_and_the_status_is_not_zero() {
    let output = load().args(["--rate", "10"]).output().unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("request: give at least one"), "{errors}");
}

#[test]
fn an_interrupt_ends_it_with_what_was_measured_before() {
    let server = serve(|_, _| ok());
    let mut child = load()
        .args([
            "--target",
            &server.to_string(),
            "--request",
            "PING",
            "--rate",
            "100",
        ])
        .args(["--seconds", "60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Time to get going; if it were not enough, the signal would simply kill it, which the status tells.
    std::thread::sleep(Duration::from_millis(700));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}
