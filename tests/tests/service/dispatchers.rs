//! Several dispatchers on one address: a server each, with its own socket (`SO_REUSEPORT`) and
//! workers. The kernel spreads clients over them, and their statistics can be summed.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};

use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
use shinjuku::{MechanismKind, Runtime, Server, handler_fn};
use shinjuku_tests_support::runtime::config;
use shinjuku_tests_support::{PATIENCE, wait_for};

const CLIENTS: usize = 64;

/// Two servers, numbered from 1, and their address.
fn servers() -> ([Server<Udp>; 2], SocketAddr) {
    let anywhere = UdpConfig::new("127.0.0.1:0".parse().unwrap()).reuse_port(true);
    let first = Udp::bind(anywhere).unwrap();
    let address = first.local_addr();
    let second = Udp::bind(UdpConfig::new(address).reuse_port(true)).unwrap();
    let mut number = 0_u8;
    let servers = [first, second].map(|transport| {
        number += 1;
        let answer = move |request: Datagram| request.reply(&[number]).ok();
        Runtime::builder(handler_fn(answer))
            .config(config(1, MechanismKind::Probe))
            .serve(transport)
            .unwrap()
    });
    (servers, address)
}

fn client(address: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// The number of the server that answers.
fn ask(client: &UdpSocket) -> u8 {
    client.send(b"who?").unwrap();
    let mut reply = [0];
    client.recv(&mut reply).expect("a reply");
    reply[0]
}

#[test]
fn clients_are_spread_over_two_dispatchers_and_stay_with_one() {
    const REQUESTS: usize = 4;
    let (servers, address) = servers();
    let mut clients_of = HashMap::new();
    for _ in 0..CLIENTS {
        let client = client(address);
        let mut home = None;
        for _ in 0..REQUESTS {
            let number = ask(&client);
            assert_eq!(*home.get_or_insert(number), number, "the client was moved");
        }
        *clients_of.entry(home.unwrap()).or_insert(0) += 1;
    }
    // One server would get all clients by chance once in 2^63 runs.
    assert_eq!(clients_of.len(), 2, "{clients_of:?}");

    let total = (CLIENTS * REQUESTS) as u64;
    wait_for("every count", || {
        let [mut sum, second] = servers.each_ref().map(|server| server.statistics());
        sum += &second;
        sum.finished() == total && sum.received == total
    });
    for (server, number) in servers.into_iter().zip(1..) {
        let statistics = server.statistics();
        assert_eq!(statistics.finished(), clients_of[&number] * REQUESTS as u64);
        assert!(server.shutdown(PATIENCE).0.is_clean());
    }
}

#[test]
fn when_one_has_ended_the_other_has_its_clients() {
    let ([first, second], address) = servers();
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(address)).collect();
    let moved = clients.iter().filter(|client| ask(client) == 1).count();
    assert!(moved > 0);
    let (report, transport) = first.shutdown(PATIENCE);
    assert!(report.is_clean());
    // Its socket is still open; requests that arrive there are lost.
    drop(transport);
    for client in &clients {
        assert_eq!(ask(client), 2);
    }
    let served = || second.statistics().finished();
    wait_for("every count", || served() == (2 * CLIENTS - moved) as u64);
    assert!(second.shutdown(PATIENCE).0.is_clean());
}
