//! A client and a server over a wire in memory, from the first ARP request on.

use std::net::{Ipv4Addr, SocketAddrV4};

use shinjuku_dataplane::memory::{MemoryDevice, wire};
use shinjuku_dataplane::packet::MacAddr;
use shinjuku_dataplane::{
    Client, Dataplane, DataplaneConfig, DataplaneReplier, InterfaceConfig, SendError,
};
use shinjuku_net::{Arrival, Replier, Transport};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 9000);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 1234);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const BUFFERS: usize = 100;
const SECOND: u64 = 1_000_000_000;

type Server = (
    Dataplane<MemoryDevice>,
    DataplaneReplier<<MemoryDevice as shinjuku_dataplane::Device>::Buffer>,
);

fn pair() -> (Client<MemoryDevice>, Server) {
    let (theirs, ours) = wire(64, BUFFERS, 2048);
    let client = InterfaceConfig::new(CLIENT_MAC, *CLIENT.ip(), &[CLIENT.port()]);
    let server = InterfaceConfig::new(SERVER_MAC, *SERVER.ip(), &[SERVER.port()]);
    let mut dataplane = Dataplane::new(ours, DataplaneConfig::new(server)).unwrap();
    let replier = dataplane.replier().unwrap();
    (Client::new(theirs, client).unwrap(), (dataplane, replier))
}

/// One turn of a server that sends everything back.
fn turn((dataplane, replier): &mut Server) {
    let mut arrivals = Vec::new();
    dataplane.poll(0, 64, |arrival| arrivals.push(arrival));
    for Arrival { request, route, .. } in arrivals {
        let reply = Ok(Some(request.echo()));
        replier.send(Dataplane::<MemoryDevice>::conclude(route, reply));
    }
    dataplane.poll(0, 0, |_| unreachable!("there is no room"));
}

fn received(client: &mut Client<MemoryDevice>, now: u64) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    client.receive(now, |payload, peer, port| {
        assert_eq!((peer.address, peer.mac), (SERVER, SERVER_MAC));
        assert_eq!(port, CLIENT.port());
        payloads.push(payload.to_vec());
    });
    payloads
}

#[test]
fn the_first_datagrams_wait_for_the_answer_and_go_in_order() {
    let (mut client, mut server) = pair();
    for payload in [b"one", b"two"] {
        client.send(CLIENT.port(), SERVER, payload, 0).unwrap();
    }
    client.flush();
    turn(&mut server);
    assert!(received(&mut client, 1).is_empty(), "that was the answer");
    turn(&mut server);
    assert_eq!(received(&mut client, 2), [b"one", b"two"]);
    client.send(CLIENT.port(), SERVER, b"three", 3).unwrap();
    client.flush();
    turn(&mut server);
    assert_eq!(received(&mut client, 4), [b"three"]);
    assert_eq!(client.device().free_buffers(), BUFFERS);
    assert_eq!(server.0.counters().read().interface.arp_answered, 1);
    assert_eq!(client.counters().read().arp_learnt, 1);
}

#[test]
fn what_nobody_answers_for_waits_in_bounds_and_is_dropped() {
    let (mut client, _server) = pair();
    let nobody = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), 1);
    let mut sent = 0;
    let error = loop {
        match client.send(CLIENT.port(), nobody, b"?", 0) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error, sent), (SendError::TooManyWait, 64));
    for second in 0..3 {
        client.receive(second * SECOND, |_, _, _| unreachable!("nobody is there"));
        assert_eq!(client.unreachable(), 0);
    }
    client.receive(3 * SECOND, |_, _, _| unreachable!("nobody is there"));
    assert_eq!(client.unreachable(), 64);
    assert_eq!(client.device().free_buffers(), BUFFERS);
}

#[test]
fn those_who_wait_for_nobody_keep_none_from_who_is_known() {
    let (mut client, mut server) = pair();
    let mut exchange = |client: &mut Client<MemoryDevice>, payload: &[u8], now: u64| {
        client.send(CLIENT.port(), SERVER, payload, now).unwrap();
        client.flush();
        turn(&mut server);
        let mut replies = received(client, now);
        turn(&mut server);
        replies.extend(received(client, now));
        replies
    };
    assert_eq!(exchange(&mut client, b"before", 0), [b"before"]);
    let nobody = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), 1);
    while client.send(CLIENT.port(), nobody, b"?", 0).is_ok() {}
    assert_eq!(exchange(&mut client, b"meanwhile", 1), [b"meanwhile"]);
    let error = client.send(CLIENT.port(), nobody, b"?", 1).unwrap_err();
    assert_eq!(error, SendError::TooManyWait);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let (mut client, mut server) = pair();
    let long = [0; 1473];
    let error = client.send(CLIENT.port(), SERVER, &long, 0).unwrap_err();
    let (length, longest) = (1473, 1472);
    assert_eq!(error, SendError::TooLong { length, longest });
    client.send(CLIENT.port(), SERVER, b"", 0).unwrap();
    client.flush();
    turn(&mut server);
    received(&mut client, 0);
    // The wire holds 64, and then as many wait as a batch has.
    let mut sent = 1;
    let error = loop {
        match client.send(CLIENT.port(), SERVER, b"", 0) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, SendError::QueueFull | SendError::NoBuffer),
        "{error}"
    );
    let mut replies = 0;
    for _ in 0..10 {
        turn(&mut server);
        replies += received(&mut client, 0).len();
    }
    assert_eq!(replies, sent);
    assert_eq!(client.device().free_buffers(), BUFFERS);
}

/// The server's address is asked for again in the meantime, without anything waiting for the
/// answer.
#[test]
fn whoever_is_spoken_to_stays_known() {
    let (mut client, mut server) = pair();
    client.send(CLIENT.port(), SERVER, b"first", 0).unwrap();
    client.flush();
    turn(&mut server);
    assert!(received(&mut client, 0).is_empty(), "the answer to ARP");
    turn(&mut server);
    assert_eq!(received(&mut client, 0), [b"first"]);
    for second in 1..200 {
        let now = second * SECOND;
        client.send(CLIENT.port(), SERVER, b"next", now).unwrap();
        client.flush();
        turn(&mut server);
        assert_eq!(received(&mut client, now), [b"next"], "second {second}");
    }
    let asked = server.0.counters().read().interface.arp_answered;
    assert_eq!(asked, 4, "at the start and once a minute");
}
