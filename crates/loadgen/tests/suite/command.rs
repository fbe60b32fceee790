//! The command itself: its files, its exit status, and that it can be interrupted.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shinjuku_loadgen::Mark;
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
fn an_interrupt_ends_it_with_what_was_measured_until_then() {
    let seen = Arc::new(AtomicU64::new(0));
    let server = {
        let seen = Arc::clone(&seen);
        serve(move |_, _| {
            seen.fetch_add(1, Ordering::Relaxed);
            ok()
        })
    };
    let mut child = load()
        .args(["--target", &server.to_string(), "--request", "PING"])
        .args(["--rate", "1000,2000", "--seconds", "60", "--warm-up", "0"])
        .args(["--no-unloaded", "--json", "/dev/stdout"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let in_time = |child: &mut Child, what: &str| {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{what}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    while seen.load(Ordering::Relaxed) < 400 {
        in_time(&mut child, "it sends nothing");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    while child.try_wait().unwrap().is_none() {
        in_time(&mut child, "it does not end");
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let (table, json) = text.split_at(text.find('{').expect("the figures"));
    assert!(table.contains("P: partial"), "{table}");
    let report: Report = serde_json::from_str(json).unwrap();
    let [point] = &report.points[..] else {
        panic!("the second load was never offered: {table}");
    };
    assert_eq!(point.marks.last(), Some(&Mark::Partial));
    // The command may have been held up, and then not have read all that it was sent.
    assert!(point.all.answered >= 200 && point.seconds < 50.0, "{json}");
}

#[test]
fn a_load_of_which_nothing_was_answered_is_a_failure() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = silent.local_addr().unwrap().to_string();
    let output = load()
        .args([
            "--target",
            &target,
            "--protocol",
            "shinjuku",
            "--mix",
            "fixed",
        ])
        .args(["--rate", "200", "--seconds", "0.2", "--drain", "0.1"])
        .args(["--warm-up", "0", "--no-unloaded"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = errors.lines().last().unwrap_or_default();
    assert!(
        line.contains("at 200/s none of") && line.contains("unanswered at the end"),
        "{errors}"
    );
    // The figures are written anyway.
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("offered/s"), "{table}");
}
