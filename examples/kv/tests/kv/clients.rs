//! Redis's own clients against this server: they run without an error.

use std::process::Command;

use rustix::process::Signal;
use shinjuku_tests_support::assert_says;
use shinjuku_tests_support::process::{is_there, run_to_the_end};

use crate::servers::Server;

/// The whole output of `program`, which must succeed, in time.
fn run(program: &str, server: &Server, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &server.address.port().to_string()]);
    let (status, said) = run_to_the_end(command.args(arguments));
    assert!(status.success(), "{program} {arguments:?}: {said}");
    said
}

/// Whether `program` is installed; if not, says that the test is skipped.
fn has(program: &str, test: &str) -> bool {
    let found = is_there(program);
    if !found {
        println!("SKIPPED {test}: there is no {program} (Debian: redis-tools)");
    }
    found
}

#[test]
fn redis_cli_talks_to_it_in_both_versions() {
    if has("redis-cli", "redis_cli_talks_to_it_in_both_versions") {
        redis_cli_talks_to(Server::kv("", &["--load", "1000"]));
    }
}

#[test]
fn redis_cli_talks_to_it_in_guest_mode() {
    const NAME: &str = "redis_cli_talks_to_it_in_guest_mode";
    if has("redis-cli", NAME)
        && let Some(server) = Server::kv_in_guest_mode(NAME, &["--load", "1000"])
    {
        let said = redis_cli_talks_to(server);
        assert!(said.contains("in guest mode, interrupts "), "{said}");
    }
}

/// Returns the server's last output.
fn redis_cli_talks_to(server: Server) -> String {
    for version in ["-2", "-3"] {
        let cli = |arguments: &[&str]| run("redis-cli", &server, &[&[version], arguments].concat());
        assert_eq!(cli(&["PING"]), "PONG\n");
        assert_eq!(cli(&["SET", "k", "a b"]), "OK\n");
        assert_eq!(cli(&["GET", "k"]), "a b\n");
        assert_eq!(cli(&["GET", "nosuch"]), "\n");
        assert_eq!(cli(&["DEL", "k"]), "1\n");
        assert!(cli(&["NOSUCH"]).starts_with("ERR unknown command 'NOSUCH'"));
        // redis-cli follows all cursors.
        assert_eq!(cli(&["--scan", "--pattern", "key:*"]).lines().count(), 1000);
        let range = cli(&["RANGE", "key:000000000500", "+", "LIMIT", "2"]);
        let keys: Vec<_> = range
            .lines()
            .filter(|line| line.starts_with("key:"))
            .collect();
        assert_eq!(keys, ["key:000000000500", "key:000000000501"]);
        assert_eq!(
            cli(&["COUNT-RANGE", "key:000000000500", "key:000000000599"]),
            "100\n"
        );
        let info = cli(&["INFO"]);
        assert_says(&info, ["class_get:finished=", "db0:keys=1000"]);
    }
    let _ = Command::new("redis-cli")
        .args(["-p", &server.address.port().to_string(), "SHUTDOWN"])
        .output();
    let said = server.ended();
    assert!(said.contains("everything finished"), "{said}");
    said
}

#[test]
fn redis_benchmark_runs_without_an_error() {
    if has("redis-benchmark", "redis_benchmark_runs_without_an_error") {
        redis_benchmark_runs_against(Server::kv("", &[]));
    }
}

#[test]
fn redis_benchmark_runs_without_an_error_in_guest_mode() {
    const NAME: &str = "redis_benchmark_runs_without_an_error_in_guest_mode";
    if has("redis-benchmark", NAME)
        && let Some(server) = Server::kv_in_guest_mode(NAME, &[])
    {
        redis_benchmark_runs_against(server);
    }
}

fn redis_benchmark_runs_against(server: Server) {
    const TESTS: &str = "ping,set,get,incr,mset";
    for arguments in [
        &["-n", "500"][..],
        &["-n", "1600", "-P", "16"],
        &["-n", "1000", "-c", "500"],
        &["-n", "500", "-r", "1000", "-d", "3000"],
        &["-n", "500", "-3"],
    ] {
        // redis-benchmark fails at the first error reply.
        let said = run(
            "redis-benchmark",
            &server,
            &[&["-q", "-t", TESTS], arguments].concat(),
        );
        assert!(!said.to_lowercase().contains("error"), "{said}");
        for test in [
            "PING_INLINE",
            "PING_MBULK",
            "SET",
            "GET",
            "INCR",
            "MSET (10 keys)",
        ] {
            assert!(said.contains(&format!("{test}: ")), "{test}: {said}");
        }
    }
    let said = server.end(Signal::TERM);
    assert!(said.contains("everything finished"), "{said}");
    assert!(said.contains("refused: 0, failed: 0"), "{said}");
}
