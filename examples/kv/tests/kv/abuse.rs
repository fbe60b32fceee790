//! Clients that misbehave: the server stays up, its memory stays bounded, and it answers the
//! others.

use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use shinjuku_tests_support::{
    comes_true,
    process::{Process, this_test},
};

use crate::client::{Client, array};
use crate::servers::Server;

/// How much more memory may be in use after an abuse than before, in KiB: far less than what the
/// clients announced or asked for.
const TOLERATED_KIB: u64 = 48 << 10;

/// A well-behaved client that watches the server.
struct Witness<'a> {
    server: &'a Server,
    client: Client,
    resident_kib: u64,
    asked: u64,
}

impl<'a> Witness<'a> {
    fn new(server: &'a Server) -> Self {
        let mut witness = Self {
            server,
            client: server.connect(),
            resident_kib: 0,
            asked: 0,
        };
        witness.is_answered();
        witness.resident_kib = server.usage().resident_kib;
        witness
    }

    fn is_answered(&mut self) {
        self.asked += 1;
        let value = format!("value {}", self.asked);
        assert_eq!(self.client.text(&["SET", "witness", &value]), "+OK\r\n");
        let expected = format!("${}\r\n{value}\r\n", value.len());
        assert_eq!(self.client.text(&["GET", "witness"]), expected);
    }

    /// Checks that all other clients have left, and that memory is as before.
    fn is_alone(&mut self) {
        let client = &mut self.client;
        assert!(comes_true(|| client.info("connections_open") == 1));
        self.is_answered();
        let grown = self
            .server
            .usage()
            .resident_kib
            .saturating_sub(self.resident_kib);
        assert!(grown < TOLERATED_KIB, "{grown} KiB more than before");
    }
}

fn ended(server: Server) {
    let said = server.end(Signal::TERM);
    assert!(said.contains("everything finished"), "{said}");
    assert!(said.contains("misdirected: 0, kept: 0"), "{said}");
}

#[test]
fn announced_lengths_are_not_believed() {
    let server = Server::kv("", &[]);
    let mut witness = Witness::new(&server);
    for _ in 0..50 {
        // 512 MiB, more than this server takes: the client is refused at once.
        let mut client = server.connect();
        let replies = client.ask(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc");
        assert_eq!(
            replies.bytes,
            b"-ERR Protocol error: invalid bulk length\r\n"
        );
        assert!(replies.closed);
    }
    // The longest allowed values, and arrays of two thousand million: the server waits, and so do
    // the clients.
    let mut waiting = Vec::new();
    for head in [
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000000\r\nabc",
        "*2147483647\r\n$3\r\nDEL\r\n$1\r\na\r\n",
    ] {
        for _ in 0..50 {
            let mut client = server.connect();
            client.stream.write_all(head.as_bytes()).unwrap();
            waiting.push(client);
        }
    }
    witness.is_answered();
    drop(waiting);
    witness.is_alone();
    drop(witness);
    ended(server);
}

#[test]
fn long_requests_share_a_bounded_number_of_buffers() {
    let server = Server::kv(
        "max_request = 1048576\nlarge_buffers = 3\nrequest_timeout_s = 2",
        &[],
    );
    let mut witness = Witness::new(&server);
    // Six requests of 500 KB each, none of them complete.
    let half = [
        &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$900000\r\n"[..],
        &vec![b'x'; 500_000],
    ]
    .concat();
    let clients: Vec<Client> = (0..6)
        .map(|_| {
            let mut client = server.connect();
            client
                .stream
                .set_write_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            // From most clients the server does not read all of it.
            let _ = client.stream.write_all(&half);
            client
        })
        .collect();
    witness.is_answered();
    // The requests time out before the clients give up.
    let client = &mut witness.client;
    assert!(comes_true(|| client
        .info("connections_closed_half_request")
        == 6));
    drop(clients);
    // After that there are buffers again.
    let value = vec![b'y'; 900_000];
    assert_eq!(
        witness
            .client
            .command(&[&b"SET"[..], b"long", &value])
            .bytes,
        b"+OK\r\n"
    );
    assert_eq!(witness.client.text(&["STRLEN", "long"]), ":900000\r\n");
    witness.is_alone();
    drop(witness);
    ended(server);
}

#[test]
fn malformed_requests_end_their_connection_only() {
    let server = Server::kv("", &[]);
    let mut witness = Witness::new(&server);
    let mut state = 1_u64;
    let mut random = |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % bound
    };
    const PIECES: [&[u8]; 16] = [
        b"*",
        b"$",
        b"\r\n",
        b"*1\r\n",
        b"*3\r\n",
        b"$4\r\n",
        b"PING\r\n",
        b"GET",
        b" ",
        b"-1",
        b"99999999999",
        b"\"",
        b"'",
        b"\0",
        b"\xff",
        b"*1\r\n$-1\r\n",
    ];
    for round in 0..300 {
        let bytes: Vec<u8> = (0..random(40))
            .flat_map(|_| PIECES[random(PIECES.len())])
            .copied()
            .collect();
        let replies = server.connect().last(&bytes);
        assert!(replies.closed);
        if round % 30 == 0 {
            witness.is_answered();
        }
    }
    witness.is_alone();
    assert_eq!(witness.client.info("requests_failed"), 0);
    drop(witness);
    ended(server);
}

#[test]
fn unread_replies_are_bounded() {
    let server = Server::kv(
        "max_reply = 4194304\nreply_memory = 16777216\nwrite_timeout_s = 1",
        &[],
    );
    let mut witness = Witness::new(&server);
    let value = vec![b'z'; 1 << 20];
    assert_eq!(
        witness.client.command(&[&b"SET"[..], b"big", &value]).bytes,
        b"+OK\r\n"
    );
    // Twenty clients ask for 100 MiB each.
    let asking = array(&["GET", "big"]).repeat(100);
    let clients: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = server.connect();
            client.stream.write_all(&asking).unwrap();
            client
        })
        .collect();
    witness.is_answered();
    let client = &mut witness.client;
    // Not all replies are long: once the others have taken the memory for replies, a client gets a
    // short error.
    assert!(comes_true(
        || client.info("connections_closed_slow_reader") > 3
    ));
    drop(clients);
    witness.is_alone();
    // Makes the value longer than any reply may be.
    for _ in 0..5 {
        assert!(
            witness
                .client
                .text(&["APPEND", "big", &"z".repeat(1 << 20)])
                .starts_with(':')
        );
    }
    let replies = witness.client.text(&["GET", "big"]);
    assert!(
        replies.starts_with("-ERR the reply"),
        "{}",
        &replies[..replies.len().min(200)]
    );
    let replies = witness.client.text(&["RANGE", "-", "+"]);
    assert!(
        replies.starts_with("-ERR the reply"),
        "{}",
        &replies[..replies.len().min(200)]
    );
    drop(witness);
    ended(server);
}

/// Not a test but the process to be killed: sends requests, most of them whole, and reads nothing.
#[test]
fn client_to_be_killed() {
    let Ok(address) = std::env::var("KV_ABUSED_SERVER") else {
        return;
    };
    let mut streams: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let requests = [
        array(&["SET", "killed", &"k".repeat(3000)]),
        array(&["SCAN", "0", "COUNT", "1000"]),
        array(&["GET", "killed"]),
        array(&["RANGE", "-", "+", "LIMIT", "100"]),
    ]
    .concat();
    // The parent kills this process; if the parent is gone, the server is, too.
    loop {
        for stream in &mut streams {
            stream
                .set_write_timeout(Some(Duration::from_millis(5)))
                .unwrap();
            if let Err(error) = stream.write(&requests[..requests.len() - 7])
                && error.kind() != std::io::ErrorKind::WouldBlock
            {
                return;
            }
        }
    }
}

#[test]
fn clients_killed_in_the_middle_leave_nothing_behind() {
    let server = Server::kv("", &["--load", "2000"]);
    let mut witness = Witness::new(&server);
    for round in 0..8 {
        let mut command = this_test("abuse::client_to_be_killed");
        let command = command.env("KV_ABUSED_SERVER", server.address.to_string());
        let child = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let client = &mut witness.client;
        assert!(comes_true(|| client.info("connections_open") > 1));
        std::thread::sleep(Duration::from_millis(20 * round));
        // By SIGKILL.
        drop(child);
        witness.is_answered();
    }
    witness.is_alone();
    drop(witness);
    ended(server);
}
