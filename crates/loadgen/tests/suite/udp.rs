//! Datagrams: replies in any order, lost, doubled, or no replies at all.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use shinjuku_net::wire::{RackSchedMessage, ShinjukuRequest};

use crate::fake::measure;

/// Starts a server: `answer` gets a datagram's number and content, and returns all that the server
/// sends back.
fn serve<F>(answer: F) -> SocketAddr
where
    F: Fn(u64, &[u8]) -> Vec<Vec<u8>> + Send + 'static,
{
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    // A time-out, so that the server ends some time after its clients.
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        let mut number = 0;
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            for reply in answer(number, &buffer[..length]) {
                let _ = socket.send_to(&reply, from);
            }
            number += 1;
        }
    });
    address
}

#[test]
fn shinjukus_format_carries_the_mixs_service_times() {
    let server = serve(|_, datagram| {
        let request = ShinjukuRequest::parse(datagram).unwrap();
        assert!([500, 500_000].contains(&request.run_nanos), "{request:?}");
        vec![datagram.to_vec()]
    });
    let measured = measure(
        server,
        "protocol = \"shinjuku\"\nmix = \"hi\"\nrate = 2000\nconnections = 8\nseconds = 0.3\nwarm_up = 0.0\ndrain = 5.0",
    );
    let all = &measured.point.all;
    assert!(all.due > 0);
    assert_eq!(
        (all.answered, measured.point.client.stray_replies),
        (all.due, 0)
    );
}

#[test]
fn racksched_replies_are_told_from_requests_sent_back() {
    let server = serve(|number, datagram| {
        let (request, _) = RackSchedMessage::parse(datagram).unwrap();
        match number % 4 {
            // A mirror, not a server.
            0 => vec![datagram.to_vec()],
            _ => vec![request.reply(3).to_bytes().to_vec()],
        }
    });
    let measured = measure(
        server,
        "protocol = \"racksched\"\nmix = \"tpcc\"\nsaturate = 1\nrequests = 40\nconnections = 40\nseconds = 60.0\n\
         warm_up = 0.0\ndrain = 1.5",
    );
    let point = &measured.point;
    assert_eq!((point.all.answered, point.all.unanswered), (30, 10));
    assert_eq!(point.client.malformed_replies, 10);
}

#[test]
fn what_is_lost_times_out_and_what_comes_twice_is_a_stray() {
    let server = serve(|number, datagram| match number % 10 {
        0 => vec![],
        1 => vec![datagram.to_vec(), datagram.to_vec()],
        2 => vec![[0xff; 16].to_vec(), datagram.to_vec()],
        _ => vec![datagram.to_vec()],
    });
    let measured = measure(
        server,
        "protocol = \"shinjuku\"\nmix = \"fixed\"\nsaturate = 1\nrequests = 100\nconnections = 4\nseconds = 60.0\n\
         warm_up = 0.0\ntimeout = 1.0",
    );
    let point = &measured.point;
    assert_eq!((point.all.answered, point.all.timed_out), (90, 10));
    assert_eq!(point.all.due, 100);
    // The last replies' duplicates may come after the client has ended.
    assert!(
        (19..=20).contains(&point.client.stray_replies),
        "{:?}",
        point.client
    );
}

#[test]
fn a_port_without_a_listener_ends_in_time_outs() {
    // The socket is held, so that no other process has the port, and connected to itself, so that
    // the kernel finds no listener for the client's datagrams.
    let held = UdpSocket::bind("127.0.0.1:0").unwrap();
    held.connect(held.local_addr().unwrap()).unwrap();
    let measured = measure(
        held.local_addr().unwrap(),
        "protocol = \"shinjuku\"\nmix = \"fixed\"\nrate = 200\nconnections = 2\nseconds = 0.2\nwarm_up = 0.0\ndrain = 0.1",
    );
    let point = &measured.point;
    assert_eq!(point.all.answered, 0);
    assert!(!point.client.first_errors.is_empty(), "{:?}", point.client);
}
