//! Every contender answers all that it gets, with what was asked for. (How fast, the bench tells.)
#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;
use serde::de::DeserializeOwned;
use shinjuku_bench_dataplane::{Calls, LONGEST_PAYLOAD, Rates};

/// One test at a time: what is measured spins, and would take the cores from the others.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_bench-dataplane"))
}

/// What a process finds. A machine that does something else meanwhile is given more time.
fn find<T: DeserializeOwned>(line: &str) -> T {
    let mut seconds = 0.1;
    loop {
        let words = line.split_whitespace().chain(["--seconds"]);
        let output = program()
            .args(words)
            .arg(seconds.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("nothing was answered while it was measured") && seconds < 10.0 {
            seconds *= 4.0;
            continue;
        }
        assert!(output.status.success(), "{line}: {}: {said}", output.status);
        return serde_json::from_slice(&output.stdout).unwrap();
    }
}

fn answers_all(line: &str, dispatchers: usize) {
    let rates: Rates = find(&format!("rates {line}"));
    assert_eq!(rates.dispatchers.len(), dispatchers, "{line}");
    assert_eq!(rates.faults(), [0, 0], "{line}: {rates:?}");
    assert!(rates.by_the_clock() > 0.0, "{line}: {rates:?}");
    for one in &rates.dispatchers {
        assert!(one.requests > 0, "{line}: {one:?}");
    }
}

#[test]
fn every_stage_answers_all_over_a_wire_in_memory() {
    let _alone = alone();
    for stage in ["raw", "stack", "transport", "runtime", "defaults"] {
        answers_all(&format!("--wire memory --stage {stage}"), 1);
    }
    answers_all(
        &format!("--wire memory --stage runtime --reply {LONGEST_PAYLOAD}"),
        1,
    );
    answers_all("--wire memory --stage runtime --dispatchers 2 --flows 7", 2);
}

/// A server, and what it says.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Where it is to be found.
    at: String,
}

impl Server {
    fn start(line: &str) -> Self {
        let mut child = program()
            .arg("serve")
            .args(line.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        output.read_line(&mut said).unwrap();
        let at = said.strip_prefix("ready at ");
        let at = at.and_then(|said| Some(said.split_once(": ")?.0.to_owned()));
        let at = at.unwrap_or_else(|| panic!("{line}: {said}"));
        Self { child, output, at }
    }

    /// Ends it as the bench does not: in order. Whether it was there to be ended: over a memif,
    /// DPDK's driver can take a server with it when a client goes (docs/unsafe.md, "The -sys
    /// crates").
    fn end(mut self, over: &str) -> bool {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        if over == "memif" && status.signal() == Some(Signal::SEGV.as_raw()) {
            println!("the server died in DPDK's driver: {status}");
            return false;
        }
        assert!(status.success() && said == "ended\n", "{status}: {said:?}");
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serves(over: &str, at: &str, servers: &[&str]) {
    const ATTEMPTS: usize = 3;
    for &server in servers {
        let lived = (0..ATTEMPTS).any(|_| serves_once(over, at, server));
        assert!(lived, "{server} died {ATTEMPTS} times");
    }
}

/// Tells whether the server lived to its end.
fn serves_once(over: &str, at: &str, server: &str) -> bool {
    let running = Server::start(&format!("--over {over} --at {at} --server {server}"));
    let at = &running.at;
    let raw = if (over, server) == ("memif", "raw") {
        "--raw"
    } else {
        ""
    };
    for (window, replies) in [(1, "18"), (64, "18,64,1472")] {
        let line =
            format!("call --over {over} --at {at} --window {window} --reply {replies} {raw}");
        let calls: Vec<Calls> = find(&line);
        assert_eq!(calls.len(), replies.split(',').count());
        for one in calls {
            assert!(one.rate.requests > 0, "{line}: {one:?}");
            assert_eq!(one.faults(), [0, 0], "{line}: {one:?}");
            assert_eq!(one.p50_us.is_some(), window == 1, "{line}: {one:?}");
        }
    }
    running.end(over)
}

#[test]
fn servers_answer_all_over_the_kernels_udp() {
    let _alone = alone();
    serves("udp", "127.0.0.1:0", &["raw", "runtime"]);
}

#[test]
fn what_is_asked_for_wrongly_is_an_error_in_a_line() {
    let _alone = alone();
    for (line, words) in [
        (
            "rates --wire memory --stage raw --seconds 0.1 --software",
            "does not spread",
        ),
        (
            "rates --wire memory --stage raw --seconds 0.1 --core 1023",
            "cannot keep to core",
        ),
        ("serve --over udp --at nowhere --server raw", "no address"),
    ] {
        let output = program().args(line.split(' ')).output().unwrap();
        assert!(!output.status.success(), "{line}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains(words) && said.lines().count() == 1,
            "{line}: {said}"
        );
    }
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use shinjuku_bench_dataplane::Imbalance;

    use super::*;

    #[test]
    fn every_stage_answers_all_over_net_ring() {
        let _alone = alone();
        for stage in ["raw", "stack", "transport", "runtime", "defaults"] {
            answers_all(&format!("--wire net_ring --stage {stage}"), 1);
        }
        answers_all(
            &format!("--wire net_ring --stage runtime --reply {LONGEST_PAYLOAD}"),
            1,
        );
        answers_all("--wire net_ring --stage runtime --dispatchers 2", 2);
        answers_all(
            "--wire net_ring --stage transport --dispatchers 2 --software --flows 64",
            2,
        );
    }

    #[test]
    fn servers_answer_all_over_memif() {
        let _alone = alone();
        for server in ["raw", "transport", "runtime"] {
            let directory = tempfile::tempdir().unwrap();
            let at = directory.path().join("memif");
            serves("memif", at.to_str().unwrap(), &[server]);
        }
    }

    #[test]
    fn all_requests_of_a_draw_are_counted() {
        let _alone = alone();
        let output = program()
            .args([
                "flows",
                "--flows",
                "1,3,200",
                "--draws",
                "20",
                "--dispatchers",
                "2",
            ])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let found: Vec<Imbalance> = serde_json::from_slice(&output.stdout).unwrap();
        let [one, three, many] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(
            one.max_over_mean.iter().all(|&ratio| ratio == 2.0),
            "{one:?}"
        );
        let possible = |ratio: &f64| {
            [2.0, 4.0 / 3.0]
                .iter()
                .any(|one| (one - ratio).abs() < 1e-9)
        };
        assert!(three.max_over_mean.iter().all(possible), "{three:?}");
        // Twenty draws of 200 flows that are all on one side: never.
        assert!(
            many.max_over_mean
                .iter()
                .all(|&ratio| (1.0..1.6).contains(&ratio)),
            "{many:?}"
        );
    }
}
