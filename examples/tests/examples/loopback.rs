//! The example servers as separate processes, with clients over loopback.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use shinjuku::net::wire::{PartHeader, PartKind, RackSchedKind, RackSchedMessage};
use shinjuku_examples::store::{checksum, value_of};
use shinjuku_tests_support::{assert_says, need, process, test_name};

use crate::process::{Server, ends_while_it_starts, executable, run_to_the_end};

fn ask(client: &UdpSocket, request: &[u8]) -> Vec<u8> {
    client.send(request).unwrap();
    let mut reply = [0; 2048];
    let length = client.recv(&mut reply).expect("a reply in time");
    reply[..length].to_vec()
}

fn ask_text(client: &UdpSocket, request: &str) -> String {
    String::from_utf8(ask(client, request.as_bytes())).unwrap()
}

fn work(micros: u64, number: u64) -> [u8; 16] {
    let mut request = [0; 16];
    request[..8].copy_from_slice(&(micros * 1000).to_le_bytes());
    request[8..].copy_from_slice(&number.to_le_bytes());
    request
}

/// How many requests of `class` finished, by the final table in `said`.
fn finished(said: &str, class: &str) -> Option<u64> {
    said.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == class).then(|| words.next()?.parse().ok())?
    })
}

#[test]
fn synthetic_sends_requests_back_and_drops_what_is_none() {
    let server = Server::start("synthetic", &["--max-us", "500"]);
    let client = server.client();
    for (number, micros) in [0, 1, 30, 500].into_iter().enumerate() {
        let request = work(micros, number as u64);
        assert_eq!(ask(&client, &request), request);
    }
    for wrong in [
        &work(501, 9)[..],
        &work(u64::MAX / 1000, 9),
        b"",
        b"x",
        &[0; 15],
        &[0; 17],
    ] {
        client.send(wrong).unwrap();
    }
    // Datagrams of one socket stay in order on loopback: this reply is the next one.
    let request = work(2, 77);
    assert_eq!(ask(&client, &request), request);
    let end = server.end(Signal::TERM);
    // Datagrams of 17 bytes are too long for the buffers, and the other five are no requests.
    assert_says(&end, ["malformed: 5", "truncated: 1"]);
    assert_says(&end, ["sent: 5", "everything finished"]);
    // The last reply is in the table, too.
    assert_eq!(
        (finished(&end, "brief"), finished(&end, "long")),
        (Some(3), Some(2)),
        "{end}"
    );
}

#[test]
fn synthetic_speaks_rackscheds_format_and_receives_on_a_thread_of_its_own() {
    let server = Server::start("synthetic", &["--format", "racksched", "--networker"]);
    let client = server.client();
    let request = |number: u32, micros: u64| {
        RackSchedMessage::request(7, number, micros * 1000, u64::from(number))
    };
    for (number, micros) in [(0, 0), (1, 30), (2, 500)] {
        let request = request(number, micros);
        let reply = ask(&client, &request.to_bytes());
        assert_eq!(reply, request.reply(0).to_bytes());
    }
    // A request in three packets, the last one first, and the middle one twice.
    let parts = request(3, 1);
    for (sequence, payload) in [(2_u16, "!"), (1, "world"), (1, "world"), (0, "hello, ")] {
        let packet = RackSchedMessage {
            kind: if sequence == 0 {
                RackSchedKind::Request
            } else {
                RackSchedKind::Follow
            },
            sequence,
            total_length: 3 * 41 + 13,
            ..parts
        };
        let bytes = [&packet.to_bytes()[..], payload.as_bytes()].concat();
        client.send(&bytes).unwrap();
    }
    let mut reply = [0; 2048];
    let length = client.recv(&mut reply).expect("a reply in time");
    let (reply, payload) = RackSchedMessage::parse(&reply[..length]).unwrap();
    assert_eq!((reply.kind, reply.request), (RackSchedKind::Reply, 3));
    assert_eq!(payload, b"hello, world!");
    client.send(&work(1, 1)).unwrap();
    // Ten requests at once: each reply tells how many are left, in whatever order the server took
    // them and sends the replies. In the end none is left, but for the one that asks.
    for number in 10..20 {
        client.send(&request(number, 20).to_bytes()).unwrap();
    }
    for _ in 10..20 {
        let mut reply = [0; 2048];
        let length = client.recv(&mut reply).expect("a reply in time");
        let (reply, _) = RackSchedMessage::parse(&reply[..length]).unwrap();
        assert!(reply.queue_lengths[0] < 10, "{reply:?}");
    }
    let last = request(20, 20);
    assert_eq!(ask(&client, &last.to_bytes()), last.reply(0).to_bytes());
    let end = server.end(Signal::TERM);
    assert_says(
        &end,
        [
            "whole: 14, assembled: 1, joined: 2, held: 0",
            "not_a_request: 1",
            "duplicate: 1",
            "sent: 15",
        ],
    );
    assert_eq!(
        (finished(&end, "brief"), finished(&end, "long")),
        (Some(2), Some(13)),
        "{end}"
    );
}

/// The line beyond the usual head that tells the ports.
fn ports(server: &mut Server) -> (Vec<u16>, Vec<u16>) {
    let line = server.line();
    let mut lists = line.split('[').skip(1).map(|list| {
        let list = list.split(']').next().unwrap();
        list.split(", ").map(|port| port.parse().unwrap()).collect()
    });
    (lists.next().unwrap(), lists.next().unwrap())
}

#[test]
fn synthetic_serves_a_port_for_each_type_and_replies_from_another() {
    let arguments = ["--format", "racksched", "--types", "2", "--reply-port", "0"];
    let mut server = Server::start("synthetic", &arguments);
    let (listen, replies) = ports(&mut server);
    assert_eq!((listen.len(), replies.len()), (2, 2));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    for (number, class) in [1, 0, 1].into_iter().enumerate() {
        // The request is long enough for class `long`, but the port decides.
        let request = RackSchedMessage::request(7, number as u32, 30_000, 5);
        let to = ("127.0.0.1", listen[class]);
        client.send_to(&request.to_bytes(), to).unwrap();
        let mut reply = [0; 64];
        let (length, from) = client.recv_from(&mut reply).expect("a reply in time");
        assert_eq!(reply[..length], request.reply(0).to_bytes());
        assert_eq!(from.port(), replies[class]);
    }
    let end = server.end(Signal::TERM);
    assert_eq!(
        (finished(&end, "brief"), finished(&end, "long")),
        (Some(1), Some(2)),
        "{end}"
    );
}

#[test]
fn synthetic_serves_parts_of_queries() {
    let server = Server::start("synthetic", &["--format", "part"]);
    let client = server.client();
    let header = PartHeader {
        class: 1,
        number: 77,
        kind: PartKind::Request {
            budget_nanos: 1_000_000,
        },
    };
    let part = [&header.to_bytes()[..], &work(3, 9)].concat();
    let reply = ask(&client, &part);
    let (answer, payload) = PartHeader::parse(&reply).unwrap();
    assert_eq!((answer.class, answer.number), (1, 77));
    assert!(matches!(answer.kind, PartKind::Reply { .. }));
    assert_eq!(payload, work(3, 9));
    client.send(&work(3, 9)).unwrap(); // no part
    ask(&client, &part);
    let end = server.end(Signal::TERM);
    assert!(end.contains("malformed: 1"), "{end}");
    assert_eq!(finished(&end, "long"), Some(2), "{end}");
}

/// Every query over two servers is answered.
#[test]
fn fanout_reports_every_type_of_query() {
    let servers = [(); 2].map(|()| Server::start("synthetic", &["--format", "part"]));
    let addresses = servers
        .each_ref()
        .map(|server| server.address().to_string());
    let (succeeded, said) = run_to_the_end(
        "fanout",
        &[
            "--servers",
            &addresses.join(","),
            "--fanouts",
            "1,2",
            "--slos-us",
            "20000000,30000000",
            "--rate",
            "500",
            "--queries",
            "200",
            "--warm-up",
            "5",
        ],
    );
    assert!(succeeded, "{said}");
    let kinds = said.lines().filter(|line| line.ends_with("yes"));
    assert_eq!(kinds.count(), 4, "{said}");
    assert_says(&said, ["queries: 210", "missing: 0"]);
    for server in servers {
        server.end(Signal::TERM);
    }
}

#[test]
fn synthetic_preempts_work_without_probes_by_signal() {
    let server = start_without_probes("signal");
    assert!(
        server.head().contains("preemption signal"),
        "{}",
        server.head()
    );
    short_and_long_requests_are_preempted(server);
}

#[test]
fn synthetic_preempts_work_without_probes_in_guest_mode() {
    let name = "synthetic_preempts_work_without_probes_in_guest_mode";
    let server = need!(start_in_guest_mode(name));
    let end = short_and_long_requests_are_preempted(server);
    assert!(end.contains("in guest mode, interrupts "), "{end}");
}

fn start_without_probes(mechanism: &str) -> Server {
    Server::start("synthetic", &without_probes(mechanism))
}

/// `None`: this machine has no guest mode, or not for this user; then says that the test is
/// skipped.
fn start_in_guest_mode(test: &str) -> Option<Server> {
    let server = start_without_probes("guest");
    match server.head().split_once(", because ") {
        Some((_, why)) if why.contains("/dev/kvm") => {
            println!("SKIPPED {test}: {why}");
            return None;
        }
        _ => assert!(
            server.head().contains("preemption guest ("),
            "{}",
            server.head()
        ),
    }
    Some(server)
}

/// Arguments that allow a minute's work without probes.
fn without_probes(mechanism: &str) -> [&str; 7] {
    [
        "--no-probes",
        "--mechanism",
        mechanism,
        "--quantum-us",
        "50",
        "--max-us",
        "60000000",
    ]
}

/// A server in guest mode ends by a signal in the middle of everything. Long requests run for a
/// minute, and others overtake them. The worker is in guest mode, in a call of the host side, or
/// between the two; contexts are suspended, and spares sleep.
#[test]
fn synthetic_in_guest_mode_ends_under_load_when_it_is_told_to() {
    // SIGTERM takes the same handler as SIGINT.
    for signal in [Signal::KILL, Signal::INT] {
        let server = need!(start_in_guest_mode(test_name!()));
        let client = server.client();
        for number in 0..3 {
            client.send(&work(60_000_000, number)).unwrap();
        }
        // The answers show that the long requests were stopped, again and again.
        for number in 3..23 {
            let request = work(1, number);
            assert_eq!(ask(&client, &request), request);
        }
        for number in 23..60 {
            client.send(&work(2_000, number)).unwrap();
        }
        let (status, said) = server.end_by(signal);
        if signal == Signal::KILL {
            assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{said}");
        } else {
            assert!(status.success(), "{signal:?}: {said}");
            assert!(said.contains("unfinished"), "{said}");
        }
    }
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        for millis in [1, 5, 10, 20, 40] {
            let after = Duration::from_millis(millis);
            let ended = ends_while_it_starts("synthetic", &without_probes("guest"), after, signal);
            assert!(ended, "survives {signal:?} {after:?} after its start");
        }
    }
}

/// Returns the server's last output.
fn short_and_long_requests_are_preempted(server: Server) -> String {
    let client = server.client();
    const REQUESTS: u64 = 40;
    for number in 0..REQUESTS {
        client
            .send(&work(if number % 2 == 0 { 4_000 } else { 1 }, number))
            .unwrap();
    }
    let mut numbers: Vec<u64> = (0..REQUESTS)
        .map(|_| {
            let mut reply = [0; 16];
            assert_eq!(client.recv(&mut reply).expect("a reply in time"), 16);
            u64::from_le_bytes(reply[8..].try_into().unwrap())
        })
        .collect();
    numbers.sort_unstable();
    assert!(
        numbers.into_iter().eq(0..REQUESTS),
        "every request is answered once"
    );
    let end = server.end(Signal::INT);
    assert!(
        !end.contains(" 0 by interrupt") && end.contains("by interrupt"),
        "{end}"
    );
    assert!(end.contains("everything finished"), "{end}");
    end
}

#[test]
fn store_serves_gets_and_ranges_and_keeps_its_file() {
    const KEYS: u64 = 3000;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    let keys = KEYS.to_string();
    let arguments = [
        "--data",
        data,
        "--keys",
        &keys,
        "--mechanism",
        "signal",
        "--quantum-us",
        "50",
    ];
    let server = Server::start("store", &arguments);
    let first = server.client();

    let value: String = value_of(42)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(ask_text(&first, "GET 42"), format!("GET 42 = {value}"));
    assert_eq!(
        ask_text(&first, "GET 42 #17"),
        format!("GET 42 #17 = {value}")
    );
    assert_eq!(ask_text(&first, "GET 3000"), "GET 3000 = none");
    let sum = (2990..KEYS)
        .chain(0..10)
        .fold(0, |sum, key| checksum(sum, key, &value_of(key)));
    assert_eq!(
        ask_text(&first, "RANGE 2990 20"),
        format!("RANGE 2990 20 = 20 {sum:016x}")
    );

    for (wrong, reply) in [
        ("GET", "GET ! the key is missing"),
        ("GET it", "GET it ! the key is not a number"),
        ("GOT 1", "GOT 1 ! the commands are GET and RANGE"),
        ("RANGE 1", "RANGE 1 ! the count is missing"),
        ("RANGE 0 3001", "RANGE 0 3001 ! there are 3000 keys"),
    ] {
        assert_eq!(ask_text(&first, wrong), reply);
    }
    let long = "G".repeat(400);
    assert!(ask_text(&first, &long).ends_with("! longer than 128 bytes"));
    first.send(b"what?").unwrap();

    // RANGEs that wait for each other are preempted, and their replies are correct.
    const RANGES: usize = 60;
    for number in 0..RANGES {
        first
            .send(format!("RANGE {number} 3000").as_bytes())
            .unwrap();
    }
    for _ in 0..RANGES {
        let mut reply = [0; 512];
        let length = first.recv(&mut reply).expect("a reply in time");
        let reply = std::str::from_utf8(&reply[..length]).unwrap();
        let from: u64 = reply.split(' ').nth(1).unwrap().parse().unwrap();
        let sum = (from..KEYS)
            .chain(0..from)
            .fold(0, |sum, key| checksum(sum, key, &value_of(key)));
        assert_eq!(reply, format!("RANGE {from} 3000 = 3000 {sum:016x}"));
    }
    let end = server.end(Signal::TERM);
    assert!(end.contains("malformed: 1"), "{end}");
    assert!(
        !end.contains(" 0 by interrupt") && end.contains("by interrupt"),
        "{end}"
    );

    let file = directory.path().join("store.redb");
    let built = std::fs::metadata(&file).unwrap().modified().unwrap();
    let server = Server::start("store", &arguments);
    assert_eq!(ask_text(&server.client(), "GET 3000"), "GET 3000 = none");
    assert!(server.end(Signal::INT).contains("everything finished"));
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), built);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (ended_well, said) = run_to_the_end("synthetic", &["--listen", &address]);
    assert!(!ended_well && said.contains("address is in use"), "{said}");
    let (ended_well, said) = run_to_the_end(
        "synthetic",
        &["--listen", "127.0.0.1:0", "--quantum-us", "0"],
    );
    assert!(!ended_well && said.contains("policy.quantum_us"), "{said}");
}

#[test]
fn the_custom_policy_is_simulated_and_run() {
    let (ended_well, said) = run_to_the_end("custom_policy", &[]);
    assert!(ended_well, "{said}");
    let p99 = |label: &str| -> f64 {
        let line = said.lines().find_map(|line| line.strip_prefix(label));
        let micros = line.and_then(|rest| rest.trim().strip_suffix(" us"));
        micros.and_then(|micros| micros.parse().ok()).expect(&said)
    };
    assert!(p99("own: short p99") < p99("c-FCFS: short p99"), "{said}");
    assert_says(&said, ["policy short first", "answered 42"]);
}

#[test]
fn metrics_are_on_a_page() {
    let (ended_well, page) = run_to_the_end("metrics", &[]);
    let answered = "shinjuku_latency_seconds_count{class=\"short\"}";
    assert!(ended_well && page.contains(answered), "{page}");
    let mut command = Command::new(executable("metrics"));
    let server = process::Server::start(command.arg("127.0.0.1:0"), "http://").unwrap();
    let address = server.head.strip_prefix("http://");
    let (address, _) = address.and_then(|rest| rest.split_once('/')).unwrap();
    let scrape = |address: &str| {
        let mut connection = TcpStream::connect(address)?;
        connection.set_read_timeout(Some(Duration::from_secs(20)))?;
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
        let mut text = String::new();
        connection.read_to_string(&mut text).map(|_| text)
    };
    for _ in 0..2 {
        let text = scrape(address).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains(answered),
            "{text}"
        );
    }
}

#[test]
fn a_timeline_is_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let (ended_well, said) = run_to_the_end("timeline", &[path.to_str().unwrap()]);
    assert!(ended_well && said.contains("slices on"), "{said}");
    assert!(!said.contains(", 0 of them preempted"), "{said}");
    let file = std::fs::read(&path).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X"), "{said}");
    let (ended_well, said) = run_to_the_end("timeline", &["/nowhere/trace.json"]);
    assert!(!ended_well, "{said}");
}

#[test]
fn hello_pool_ordinary_and_sqlite_end_well() {
    let (ended_well, said) = run_to_the_end("hello", &[]);
    assert!(ended_well && said.contains("1 + ... + 5 = 15"), "{said}");
    assert_eq!(finished(&said, "default"), Some(6), "{said}");
    let (ended_well, said) = run_to_the_end("pool", &[]);
    assert!(
        ended_well && said.contains("waited for it: 9592 primes"),
        "{said}"
    );
    assert!(said.contains("borrowed: [4, 25, 168]"), "{said}");
    assert_eq!(finished(&said, "short"), Some(1003), "{said}");
    assert!(said.contains("everything finished"), "{said}");
    let (ended_well, said) = run_to_the_end("ordinary", &[]);
    assert!(ended_well, "{said}");
    assert_eq!(finished(&said, "scan"), Some(400), "{said}");
    let (ended_well, said) = run_to_the_end("sqlite", &[]);
    assert!(ended_well, "{said}");
    assert_eq!(finished(&said, "sum"), Some(200), "{said}");
}
