//! Every way to start, failures to start, and which mechanism preempts.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use shinjuku_tests_support::{assert_says, comes_true, test_name};

use crate::client::array;
use crate::servers::Server;

/// The message of a `kv` that does not start.
fn refused(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kv"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{arguments:?} was taken: {said}");
    said
}

#[test]
fn what_cannot_be_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for (arguments, says) in [
        (&["--core", "1023"][..], "core 1023"),
        (&["--core", "99999999"], "core 99999999"),
        (
            &["--policy", "lifo"],
            "there are c-pre-sq, c-pre-mq, c-fcfs",
        ),
        (&["--quantum", "5"], "such as 50us"),
        (&["--config", "/no/such/file"], "/no/such/file"),
        (&["--data", "/tmp"], "--engine rocksdb"),
    ] {
        let said = refused(&[&["--listen", "127.0.0.1:0"], arguments].concat());
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    let said = refused(&["--listen", &taken.local_addr().unwrap().to_string()]);
    assert!(said.contains("address is in use"), "{said}");
    let rocksdb = refused(&["--listen", "127.0.0.1:0", "--engine", "rocksdb"]);
    let expected = if cfg!(feature = "rocksdb") {
        "needs --data"
    } else {
        "--features rocksdb"
    };
    assert!(rocksdb.contains(expected), "{rocksdb}");
}

/// Counts of all keys run beside GETs until one count has been preempted, which `how` counts.
fn ranges_give_way(arguments: &[&str], how: &str) {
    let arguments = [&["--load", "20000", "--quantum", "20us"], arguments].concat();
    ranges_give_way_at(Server::kv("", &arguments), how);
}

fn ranges_give_way_at(server: Server, how: &str) {
    let mut ranges = server.connect();
    let mut gets = server.connect();
    let mut witness = server.connect();
    let preempted = comes_true(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let counts = ranges.ask(&array(&["COUNT-RANGE", "-", "+"]).repeat(5));
                assert_eq!(counts.bytes, b":20000\r\n".repeat(5));
            });
            for _ in 0..20 {
                assert!(
                    gets.text(&["GET", "key:000000000007"])
                        .starts_with("$100\r\nxxx")
                );
            }
        });
        witness.info(how) > 0
    });
    assert!(preempted, "{how}: {}", witness.text(&["INFO"]));
    assert_eq!(witness.info("requests_failed"), 0);
    drop((ranges, gets, witness));
    let said = server.end(Signal::INT);
    assert!(said.contains("everything finished"), "{said}");
}

#[test]
fn ranges_give_way_at_probes() {
    ranges_give_way(&["--preemption", "probe"], "preemptions_by_probe");
}

#[test]
fn ranges_give_way_inline() {
    let arguments = [
        "--layout",
        "inline",
        "--preemption",
        "probe",
        "--policy",
        "c-pre-mq",
        "--slo",
        "get=20us,scan=1ms",
    ];
    ranges_give_way(&arguments, "preemptions_by_probe");
}

#[test]
fn ranges_give_way_in_symmetric_loops() {
    let arguments = ["--layout", "symmetric", "--workers", "2"];
    ranges_give_way(
        &[&arguments[..], &["--preemption", "probe"]].concat(),
        "preemptions_by_probe",
    );
}

#[test]
fn ranges_give_way_to_signals() {
    ranges_give_way(&["--preemption", "signal"], "preemptions_by_interrupt");
}

#[test]
fn ranges_give_way_in_guest_mode() {
    let arguments = ["--load", "20000"];
    if let Some(server) = Server::kv_in_guest_mode(test_name!(), &arguments) {
        ranges_give_way_at(server, "preemptions_by_interrupt");
    }
}

/// In the inline layout no other thread can interrupt a worker in guest mode: the worker's timer
/// does it by signal, and the server says why.
#[test]
fn inline_signals_take_the_place_of_guest_mode() {
    let server = Server::kv("", &["--layout", "inline", "--preemption", "guest"]);
    let said = &server.description;
    assert_says(said, ["preemption signal, because", "in the inline layout"]);
    assert_eq!(server.connect().text(&["PING"]), "+PONG\r\n");
    assert!(server.end(Signal::INT).contains("everything finished"));
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_gives_way_to_signals_and_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let arguments = ["--engine", "rocksdb", "--data", data];
    for layout in ["threads", "inline"] {
        let arguments = [
            &arguments[..],
            &["--preemption", "signal", "--layout", layout],
        ]
        .concat();
        ranges_give_way(&arguments, "preemptions_by_interrupt");
    }
    let server = Server::kv("", &arguments);
    assert_eq!(server.connect().text(&["DBSIZE"]), ":20000\r\n");
    let said = refused(&[
        "--listen",
        "127.0.0.1:0",
        "--engine",
        "rocksdb",
        "--data",
        data,
    ]);
    assert!(said.contains("cannot open its files"), "{said}");
}

/// What a server is loaded with it reads from tables, not from memory that is still to be written.
#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_has_tables_after_loading() {
    for engine in ["rocksdb", "rocksdb-plain"] {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().to_str().unwrap();
        let server = Server::kv("", &["--load", "20000", "--engine", engine, "--data", data]);
        let files = std::fs::read_dir(directory.path()).unwrap();
        let mut names = files.map(|file| file.unwrap().path());
        let is_table = |path: std::path::PathBuf| path.extension().is_some_and(|end| end == "sst");
        assert!(names.any(is_table), "{engine}");
        let mut client = server.connect();
        assert_eq!(client.text(&["DBSIZE"]), ":20000\r\n");
        let range = client.text(&["SCAN", "0", "COUNT", "1000"]);
        assert_eq!(range.matches("key:").count(), 1_000, "{engine}");
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_gives_way_in_guest_mode() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let arguments = ["--load", "20000", "--engine", "rocksdb", "--data", data];
    if let Some(server) = Server::kv_in_guest_mode(test_name!(), &arguments) {
        ranges_give_way_at(server, "preemptions_by_interrupt");
    }
}
