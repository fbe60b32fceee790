//! Ten thousand connections, half of them idle, some malicious: the server serves the others and
//! outlives them all.
//!
//! The clients' ends are in another process, which is killed at the end: each process needs its
//! descriptors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shinjuku::MechanismKind;
use shinjuku_tests_support::{turn, wait_for};

use crate::service::{House, connect, listen, runtime};

const CONNECTIONS: usize = 10_000;
/// Tells the process that it is the crowd: the address to connect to, and the number of
/// connections.
const CROWD: &str = "SHINJUKU_TEST_CROWD";
const NAME: &str = "crowd::ten_thousand_connections_half_of_them_idle";

#[test]
fn ten_thousand_connections_half_of_them_idle() {
    if let Ok(order) = std::env::var(CROWD) {
        return crowd(&order);
    }
    let _turn = turn();
    let limit = raise_descriptor_limit();
    let connections = CONNECTIONS.min(limit.saturating_sub(512));
    if connections < CONNECTIONS {
        eprintln!("only {connections} connections: the limit of descriptors is {limit}");
    }
    let listen = listen()
        .connections(connections + 10)
        .backlog(4096)
        .write_timeout(Duration::from_secs(3600));
    let house = House::start(runtime(2, MechanismKind::Probe), listen);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CROWD, format!("{} {connections}", house.address))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = move |what: &str| {
        let found = lines.any(|line| line.unwrap().contains(what));
        assert!(found, "the crowd ended before it said {what:?}");
    };
    said("connected");
    wait_for("all connections", || {
        house.counters.read().open == connections as u64
    });
    // A client outside the crowd is served.
    let mut stream = house.client();
    for _ in 0..100 {
        stream.write_all(b"e one\nw two\n").unwrap();
        stream.read_exact(&mut [0; 12]).unwrap();
    }
    // So are the crowd's honest clients: the crowd says so.
    said("answered");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of the crowd", || house.counters.read().open == 1);
    stream.write_all(b"e one\n").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
    drop(stream);
    let counts = house.end();
    assert_eq!(counts.accepted, connections as u64 + 1);
    assert!(
        counts.answered >= 100 + connections as u64 / 4,
        "{counts:?}"
    );
}

/// Raises the limit as far as possible; returns the new limit.
fn raise_descriptor_limit() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    maximum.map_or(usize::MAX, |limit| limit as usize)
}

/// The other process.
fn crowd(order: &str) {
    let (address, connections) = order.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let connections: usize = connections.parse().unwrap();
    raise_descriptor_limit();
    let mut streams: Vec<TcpStream> = (0..connections).map(|_| connect(address)).collect();
    println!("connected");
    // Every second client is idle. Of the others, every eighth sends half a request, and every
    // eighth never reads its replies.
    let mut honest = Vec::new();
    for (number, stream) in streams
        .iter_mut()
        .enumerate()
        .filter(|(number, _)| number % 2 == 1)
    {
        match number % 16 {
            1 => stream.write_all(b"e half a requ").unwrap(),
            3 => stream.write_all(&b"l line\n".repeat(2)).unwrap(),
            _ => {
                writeln!(stream, "e {number}").unwrap();
                honest.push(number);
            }
        }
    }
    for number in honest {
        let expected = format!("e {number}\n");
        let mut reply = vec![0; expected.len()];
        streams[number].read_exact(&mut reply).unwrap();
        assert_eq!(reply, expected.as_bytes());
    }
    println!("answered");
    // The process ends when it is killed, or at the latest after the other process's patience.
    std::thread::sleep(shinjuku_tests_support::PATIENCE);
}
