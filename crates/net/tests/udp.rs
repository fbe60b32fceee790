//! The UDP transport over real sockets of the loopback interface, with a toy dispatcher: poll,
//! handle, conclude, send.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io::Write as _;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use shinjuku_net::udp::{
    ByPort, Classifier, Datagram, DatagramReply, LONGEST_DATAGRAM, OneClass, ReplyTooLong, Udp,
    UdpConfig, UdpCounts, UdpError, UdpReplier, UdpRoute,
};
use shinjuku_net::wire::{RackSchedKind, RackSchedMessage, ReassemblyConfig};
use shinjuku_net::{Arrival, Failure, ListenError, Refusal, Replier, Transport};
use shinjuku_tests_support::assert_says;

/// No wait in these tests lasts longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(30);

type Answer = Result<Option<DatagramReply>, Failure>;

fn on_loopback() -> UdpConfig {
    UdpConfig::new("127.0.0.1:0".parse().unwrap())
        .buffers(8)
        .max_datagram(100)
}

/// A transport and one worker's end of it.
struct Server<C: Classifier = OneClass> {
    udp: Udp<C>,
    replier: UdpReplier,
}

impl Server {
    fn start(config: UdpConfig) -> Self {
        Self::classified(config, OneClass)
    }
}

impl<C: Classifier> Server<C> {
    fn classified(config: UdpConfig, classifier: C) -> Self {
        let mut udp = Udp::bind_classified(config, classifier).unwrap();
        let replier = udp.replier().unwrap();
        Server { udp, replier }
    }

    fn poll(&mut self) -> Vec<Arrival<Datagram, UdpRoute>> {
        let mut arrivals = Vec::new();
        self.udp.poll(17, 1000, |arrival| arrivals.push(arrival));
        arrivals
    }

    /// What the first poll that is not in vain brings.
    fn next_batch(&mut self) -> Vec<Arrival<Datagram, UdpRoute>> {
        let mut arrivals = Vec::new();
        self.until(|server| {
            arrivals = server.poll();
            !arrivals.is_empty()
        });
        arrivals
    }

    /// Polls until `count` requests are there.
    fn collect(&mut self, count: usize) -> Vec<Arrival<Datagram, UdpRoute>> {
        let mut arrivals = Vec::new();
        while arrivals.len() < count {
            arrivals.extend(self.next_batch());
        }
        assert_eq!(arrivals.len(), count);
        arrivals
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "did not happen: {:?}",
                self.counts()
            );
            self.udp.wait(Duration::from_millis(5));
        }
    }

    fn conclude(&mut self, route: UdpRoute, answer: Answer) {
        self.replier.send(Udp::<C>::conclude(route, answer));
    }

    fn counts(&self) -> UdpCounts {
        self.udp.counters().read()
    }

    fn client(&self) -> UdpSocket {
        let client = UdpSocket::bind(SocketAddr::new(self.udp.local_addr().ip(), 0)).unwrap();
        client.connect(self.udp.local_addr()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }
}

fn received(client: &UdpSocket) -> Vec<u8> {
    let mut bytes = [0; 200];
    let length = client.recv(&mut bytes).expect("a reply in time");
    bytes[..length].to_vec()
}

/// Nothing is under way: every buffer is back, and every datagram has come to one end.
fn assert_balanced(counts: UdpCounts, buffers: usize) {
    assert_eq!(
        counts.free_buffers,
        buffers - 1,
        "one is kept ready: {counts:?}"
    );
    let ends =
        counts.truncated + counts.malformed + counts.refused + counts.sent + counts.unanswered;
    let ends = ends + counts.send_failed + counts.reassembly.absorbed();
    assert_eq!(counts.received, ends, "{counts:?}");
}

#[test]
fn a_request_is_echoed_to_its_sender() {
    let mut server = Server::start(on_loopback());
    let client = server.client();
    client.send(b"hello").unwrap();
    let arrival = server.collect(1).remove(0);
    assert_eq!(*arrival.request, *b"hello");
    assert_eq!(arrival.request.peer(), client.local_addr().unwrap());
    assert_eq!(arrival.route.peer(), client.local_addr().unwrap());
    assert_eq!(
        (arrival.class, arrival.arrived_nanos, arrival.deadline_nanos),
        (0, 17, None)
    );
    server.conclude(arrival.route, Ok(Some(arrival.request.echo())));
    assert_eq!(received(&client), b"hello");
    assert!(server.poll().is_empty());
    assert_eq!((server.counts().received, server.counts().sent), (1, 1));
    assert_balanced(server.counts(), 8);
}

#[test]
fn a_reply_goes_where_the_route_says() {
    let mut server = Server::start(on_loopback());
    let (one, other) = (server.client(), server.client());
    one.send(b"one").unwrap();
    let from_one = server.collect(1).remove(0);
    other.send(b"other").unwrap();
    let from_other = server.collect(1).remove(0);
    assert_ne!(from_one.flow, from_other.flow);
    server.conclude(from_one.route, Ok(Some(from_other.request.echo())));
    assert_eq!(received(&one), b"other");
    one.send(b"again").unwrap();
    assert_eq!(server.collect(1)[0].flow, from_one.flow);
}

#[test]
fn many_clients_get_their_own_replies_from_two_workers() {
    const CLIENTS: u8 = 4;
    const REQUESTS: u8 = 200;
    const BUFFERS: usize = 3;
    let mut server = Server::start(on_loopback().buffers(BUFFERS).batch(2));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|name| {
            let client = server.client();
            thread::spawn(move || {
                for number in 0..REQUESTS {
                    client.send(&[name, number]).unwrap();
                    assert_eq!(received(&client), [name, number, b'!']);
                }
            })
        })
        .collect();
    let (to_workers, workers): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| {
            let (sender, requests) = mpsc::channel::<Arrival<Datagram, UdpRoute>>();
            let mut replier = server.udp.replier().unwrap();
            let worker = thread::spawn(move || {
                for Arrival { request, route, .. } in requests {
                    let mut reply = request.echo();
                    reply.extend_from_slice(b"!").unwrap();
                    replier.send(<Udp>::conclude(route, Ok(Some(reply))));
                }
            });
            (sender, worker)
        })
        .unzip();
    let mut flows = HashSet::new();
    let mut handed = 0;
    server.until(|server| {
        for arrival in server.poll() {
            flows.insert(arrival.flow);
            to_workers[handed % 2].send(arrival).unwrap();
            handed += 1;
        }
        handed == usize::from(CLIENTS) * usize::from(REQUESTS)
    });
    drop(to_workers);
    workers
        .into_iter()
        .chain(clients)
        .for_each(|thread| thread.join().unwrap());
    assert!(server.poll().is_empty());
    assert_eq!(flows.len(), usize::from(CLIENTS));
    assert_eq!(
        server.counts().sent,
        u64::from(CLIENTS) * u64::from(REQUESTS)
    );
    assert_balanced(server.counts(), BUFFERS);
}

#[test]
fn buffers_run_out_and_come_back_whatever_became_of_the_request() {
    const BUFFERS: usize = 8;
    const SENT: u8 = 30;
    let mut server = Server::start(on_loopback().buffers(BUFFERS).batch(100));
    let client = server.client();
    (0..SENT).for_each(|number| assert_eq!(client.send(&[number]).unwrap(), 1));
    let mut held = server.collect(BUFFERS);
    let start = Instant::now();
    for _ in 0..3 {
        assert!(server.poll().is_empty());
        server.udp.wait(PATIENCE);
    }
    // The socket is readable, but that is no use: neither a busy loop nor a sleep that misses the
    // buffers' return.
    assert!((Duration::from_millis(3)..PATIENCE).contains(&start.elapsed()));
    let counts = server.counts();
    assert_eq!((counts.no_buffer, counts.free_buffers), (1, 0));

    let mut seen = Vec::new();
    while seen.len() < usize::from(SENT) {
        if held.is_empty() {
            held = server.next_batch();
        }
        for Arrival { request, route, .. } in held.drain(..) {
            seen.push(request[0]);
            match request[0] % 5 {
                0 => server.conclude(route, Ok(Some(request.echo()))),
                1 => {
                    drop(request);
                    server.conclude(route, Ok(None));
                }
                2 => {
                    let handler = AssertUnwindSafe(move || -> Option<DatagramReply> {
                        panic::resume_unwind(Box::new(request[0]))
                    });
                    assert!(panic::catch_unwind(handler).is_err());
                    server.conclude(route, Err(Failure::Panicked));
                }
                3 => server.udp.refuse(request, route, Refusal::QueueFull),
                _ => {
                    assert!(request.reply(&[0; 101]).is_err());
                    server.conclude(route, Ok(None));
                }
            }
        }
    }
    assert_eq!(seen, (0..SENT).collect::<Vec<_>>(), "in order, none lost");
    assert!(server.poll().is_empty());
    let (counts, fifth) = (server.counts(), u64::from(SENT) / 5);
    assert_eq!(
        (counts.sent, counts.unanswered, counts.refused),
        (fifth, 3 * fifth, fifth)
    );
    assert!(counts.no_buffer > 1, "ran out again: {counts:?}");
    assert_balanced(counts, BUFFERS);
}

#[test]
fn too_long_datagrams_are_dropped_whole() {
    let mut server = Server::start(on_loopback());
    let client = server.client();
    client.send(&[1; 101]).unwrap();
    client.send(&[2; 100]).unwrap();
    client.send(&[]).unwrap();
    let lengths: Vec<_> = server
        .collect(2)
        .iter()
        .map(|arrival| arrival.request.len())
        .collect();
    assert_eq!(lengths, [100, 0]);
    assert_eq!(
        (server.counts().truncated, server.counts().received),
        (1, 3)
    );
}

#[test]
fn the_longest_datagram_there_is_passes() {
    let mut server = Server::start(on_loopback().buffers(2).max_datagram(LONGEST_DATAGRAM));
    let client = server.client();
    client.send(&vec![7; LONGEST_DATAGRAM]).unwrap();
    let arrival = server.collect(1).remove(0);
    assert_eq!(*arrival.request, *vec![7; LONGEST_DATAGRAM]);
    server.conclude(arrival.route, Ok(Some(arrival.request.echo())));
    let mut reply = vec![0; LONGEST_DATAGRAM + 1];
    assert_eq!(client.recv(&mut reply).unwrap(), LONGEST_DATAGRAM);
}

#[test]
fn the_classifier_tells_classes_and_what_is_malformed() {
    let by_first_byte = |datagram: &[u8], peer: SocketAddr| {
        assert!(peer.ip().is_loopback());
        datagram
            .first()
            .and_then(|first| b"gs".iter().position(|byte| byte == first))
            .map(|class| class as u16)
    };
    let mut server = Server::classified(on_loopback(), by_first_byte);
    let client = server.client();
    for request in [b"get".as_slice(), b"bad", b"", b"scan"] {
        client.send(request).unwrap();
    }
    let classes: Vec<_> = server
        .collect(2)
        .into_iter()
        .map(|arrival| arrival.class)
        .collect();
    assert_eq!(classes, [0, 1]);
    assert_eq!(
        (server.counts().malformed, server.counts().received),
        (2, 4)
    );
}

#[test]
fn one_poll_takes_no_more_than_room_and_batch() {
    let mut server = Server::start(on_loopback().batch(3));
    let client = server.client();
    (0..7).for_each(|number| assert_eq!(client.send(&[number]).unwrap(), 1));
    let mut taken = 0;
    while taken < 7 {
        let batch = server.next_batch().len();
        assert!(batch <= 3, "{batch}");
        taken += batch;
    }

    (0..7).for_each(|number| assert_eq!(client.send(&[number]).unwrap(), 1));
    let mut taken = 0;
    server.until(|server| {
        server.udp.poll(0, 0, |_| panic!("no room"));
        let mut batch = 0;
        server.udp.poll(0, 2, |_| batch += 1);
        assert!(batch <= 2, "{batch}");
        taken += batch;
        taken == 7
    });
}

#[test]
fn replies_are_written_into_the_requests_buffer() {
    let mut server = Server::start(on_loopback().max_datagram(10));
    let client = server.client();
    client.send(b"request").unwrap();
    let arrival = server.collect(1).remove(0);
    let mut reply = arrival.request.into_reply();
    assert_eq!((reply.len(), reply.capacity()), (0, 10));
    write!(reply, "{}-{}", 12, 34).unwrap();
    let too_long = reply.extend_from_slice(b"123456").unwrap_err();
    assert_eq!(
        too_long,
        ReplyTooLong {
            needed: 11,
            capacity: 10
        }
    );
    assert_says(too_long, ["max_datagram is 10"]);
    reply.extend_from_slice(b"56789").unwrap();
    assert!(write!(reply, "0").is_err());
    reply.truncate(9);
    reply[0] = b'x';
    server.conclude(arrival.route, Ok(Some(reply)));
    assert_eq!(received(&client), b"x2-345678");
}

#[test]
fn a_reply_that_the_kernel_refuses_is_counted() {
    let there = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    if let Err(error) = UdpSocket::bind(there) {
        return eprintln!(
            "SKIPPED a_reply_that_the_kernel_refuses_is_counted: no IPv6 on the loopback interface: {error}"
        );
    }
    let mut server = Server::start(on_loopback());
    let client = server.client();
    client.send(b"request").unwrap();
    let arrival = server.collect(1).remove(0);
    // A socket of IPv4 cannot send to an address of IPv6.
    let mut other = Server::start(UdpConfig::new(there));
    other.client().send(b"request").unwrap();
    let foreign = other.collect(1).remove(0);
    server.conclude(foreign.route, Ok(Some(arrival.request.echo())));
    assert!(server.poll().is_empty());
    assert_eq!((server.counts().sent, server.counts().send_failed), (0, 1));
    assert_balanced(server.counts(), 8);
}

#[test]
fn a_closed_transport_turns_away_what_comes() {
    let mut server = Server::start(on_loopback());
    let client = server.client();
    client.send(b"before").unwrap();
    let before = server.collect(1).remove(0);
    server.udp.close();
    client.send(b"after").unwrap();
    server.until(|server| {
        assert!(server.poll().is_empty());
        server.counts().refused == 1
    });
    // What was under way is still answered.
    server.conclude(before.route, Ok(Some(before.request.echo())));
    assert_eq!(received(&client), b"before");
    assert_balanced(server.counts(), 8);
}

#[test]
fn waiting_ends_with_an_arrival_or_when_patience_does() {
    let mut server = Server::start(on_loopback());
    let start = Instant::now();
    server.udp.wait(Duration::from_millis(30));
    assert!((Duration::from_millis(30)..PATIENCE).contains(&start.elapsed()));

    let client = server.client();
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        client.send(b"wake up").unwrap();
    });
    let start = Instant::now();
    server.udp.wait(2 * PATIENCE);
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(server.collect(1).len(), 1);
    sender.join().unwrap();
}

#[test]
fn an_address_in_use_is_named_unless_shared() {
    let server = Server::start(on_loopback());
    let listen = server.udp.local_addr();
    let error = Udp::bind(UdpConfig::new(listen)).unwrap_err();
    assert!(
        matches!(error, UdpError::Listen(ListenError::AddressInUse { .. })),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains(&format!("{listen}: the address is in use")),
        "{error}"
    );

    let shared = Udp::bind(on_loopback().reuse_port(true)).unwrap();
    let listen = shared.local_addr();
    assert_eq!(
        Udp::bind(UdpConfig::new(listen).reuse_port(true))
            .unwrap()
            .local_addr(),
        listen
    );
}

/// An address that cannot be had; `possible` says on which machines it can.
fn is_refused(listen: &str, possible: &str, says: &str) -> Option<ListenError> {
    match Udp::bind(UdpConfig::new(listen.parse().unwrap())) {
        Ok(_) => {
            eprintln!("SKIPPED {listen}: {possible}");
            None
        }
        Err(error) => {
            assert!(error.to_string().contains(says), "{error}");
            let UdpError::Listen(cause) = error else {
                panic!("{error:?}");
            };
            Some(cause)
        }
    }
}

#[test]
fn an_address_of_another_machine_and_a_port_of_the_privileged_are_named() {
    // Set aside for documentation (RFC 5737).
    let there = "192.0.2.1:9000";
    let says = "192.0.2.1:9000: this machine has no such";
    let error = is_refused(there, "this machine can bind any address", says);
    assert!(error.is_none_or(|error| matches!(error, ListenError::AddressNotAvailable { .. })));
    let says = "127.0.0.1:1: permission denied";
    let error = is_refused("127.0.0.1:1", "this user may have any port", says);
    assert!(error.is_none_or(|error| matches!(error, ListenError::PermissionDenied { .. })));
}

#[test]
fn settings_out_of_range_are_named() {
    for (config, says) in [
        (
            on_loopback().buffers(0),
            "buffers is 0, but must be between 1 and 1048576",
        ),
        (
            on_loopback().max_datagram(65_508),
            "max_datagram is 65508, but must be between 1 and 65507",
        ),
        (
            on_loopback().batch(1025),
            "batch is 1025, but must be between 1 and 1024",
        ),
        (
            on_loopback().receive_buffer(0),
            "receive_buffer is 0, but must be between 1 and",
        ),
    ] {
        let error = Udp::bind(config).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn the_receive_buffer_in_force_is_told() {
    let small = Udp::bind(on_loopback().receive_buffer(10_000))
        .unwrap()
        .receive_buffer()
        .unwrap();
    let large = Udp::bind(on_loopback().receive_buffer(60_000))
        .unwrap()
        .receive_buffer()
        .unwrap();
    assert!(
        10_000 <= small && small < large && 60_000 <= large,
        "{small}, {large}"
    );
}

#[test]
fn ipv6_works_alike() {
    let listen = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    if let Err(error) = UdpSocket::bind(listen) {
        return eprintln!("SKIPPED ipv6_works_alike: no IPv6 on the loopback interface: {error}");
    }
    let mut server = Server::start(UdpConfig::new(listen).buffers(8));
    let (client, other) = (server.client(), server.client());
    client.send(b"hello").unwrap();
    let arrival = server.collect(1).remove(0);
    assert_eq!(arrival.request.peer(), client.local_addr().unwrap());
    let flow = arrival.flow;
    server.conclude(arrival.route, Ok(Some(arrival.request.echo())));
    assert_eq!(received(&client), b"hello");
    other.send(b"hello").unwrap();
    assert_ne!(server.collect(1)[0].flow, flow);
}

// --- several addresses -------------------------------------------------------------------------------------

fn on_two_ports() -> UdpConfig {
    on_loopback().and_listen("127.0.0.1:0".parse().unwrap())
}

fn client_of(address: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

#[test]
fn each_port_is_a_class_and_replies_come_from_the_port_that_was_asked() {
    let mut server = Server::classified(on_two_ports(), ByPort);
    let addresses = server.udp.local_addrs().to_vec();
    assert_eq!(addresses[0], server.udp.local_addr());
    // A connected client takes nothing from another port.
    let clients: Vec<_> = addresses.into_iter().map(client_of).collect();
    for class in [1, 0, 1] {
        clients[class].send(&[class as u8]).unwrap();
        let arrival = server.collect(1).remove(0);
        assert_eq!(
            (usize::from(arrival.class), &*arrival.request),
            (class, &[class as u8][..])
        );
        assert_eq!(arrival.route.peer(), clients[class].local_addr().unwrap());
        server.conclude(arrival.route, Ok(Some(arrival.request.echo())));
        assert_eq!(received(&clients[class]), [class as u8]);
    }
    assert_balanced(server.counts(), 8);
}

#[test]
fn a_port_that_always_has_something_does_not_keep_the_others_from_theirs() {
    const REQUESTS: usize = 6;
    let start = Instant::now();
    loop {
        let mut server = Server::classified(on_two_ports().batch(2).buffers(100), ByPort);
        for &address in server.udp.local_addrs() {
            let client = client_of(address);
            (0..REQUESTS).for_each(|_| assert_eq!(client.send(&[0]).unwrap(), 1));
        }
        let polls: Vec<Vec<u16>> = (0..REQUESTS)
            .map(|_| server.poll().iter().map(|arrival| arrival.class).collect())
            .collect();
        // Over loopback, what has been sent is there, unless the kernel is behind.
        if polls == [[0, 0], [1, 1]].repeat(REQUESTS / 2) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{polls:?}");
    }
}

#[test]
fn waiting_ends_with_an_arrival_at_any_port() {
    let mut server = Server::classified(on_two_ports(), ByPort);
    let client = client_of(server.udp.local_addrs()[1]);
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        client.send(b"wake up").unwrap();
    });
    let start = Instant::now();
    server.udp.wait(2 * PATIENCE);
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(server.collect(1)[0].class, 1);
    sender.join().unwrap();
}

#[test]
fn after_closing_every_port_turns_away() {
    let mut server = Server::classified(on_two_ports(), ByPort);
    server.udp.close();
    for &address in server.udp.local_addrs() {
        client_of(address).send(b"late").unwrap();
    }
    server.until(|server| {
        assert!(server.poll().is_empty());
        server.counts().refused == 2
    });
}

#[test]
fn replies_leave_from_the_address_that_belongs_to_the_one_asked() {
    let any = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::classified(on_two_ports().reply_from([any; 2]), ByPort);
    let client = UdpSocket::bind(any).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let replies = server.udp.reply_addrs().to_vec();
    for (number, address) in server.udp.local_addrs().to_vec().into_iter().enumerate() {
        client.send_to(b"?", address).unwrap();
        let arrival = server.collect(1).remove(0);
        server.conclude(arrival.route, Ok(Some(arrival.request.echo())));
        let (_, from) = client.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from, replies[number]);
        assert_ne!(from, address);
    }
    let error = Udp::bind(on_two_ports().reply_from([any])).unwrap_err();
    assert_says(&error, ["reply addresses is 1"]);
}

/// Says of each datagram that its first byte is the budget.
struct Budgets;

impl Classifier for Budgets {
    fn classify(&mut self, _: &[u8], _: SocketAddr) -> Option<u16> {
        Some(0)
    }

    fn budget_nanos(&mut self, datagram: &[u8]) -> Option<i64> {
        datagram.first().map(|&byte| i64::from(byte as i8))
    }
}

#[test]
fn a_budget_counts_from_the_arrival() {
    let mut server = Server::classified(on_loopback(), Budgets);
    let client = client_of(server.udp.local_addr());
    for (payload, after) in [(&[5_u8][..], Some(5)), (&[251], Some(-5)), (&[], None)] {
        client.send(payload).unwrap();
        let arrival = server.collect(1).remove(0);
        let due = after.map(|nanos| arrival.arrived_nanos.saturating_add_signed(nanos));
        assert_eq!(arrival.due_nanos, due);
    }
}

#[test]
fn more_addresses_than_allowed_are_named() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let many = (0..16).fold(on_loopback(), |config, _| config.and_listen(listen));
    let error = Udp::bind(many).unwrap_err().to_string();
    assert_says(
        &error,
        ["the number of addresses is 17, but must be between 1 and 16"],
    );
}

#[test]
fn busy_polling_is_had_or_its_refusal_says_what_to_do() {
    match Udp::bind(on_loopback().busy_poll(50)) {
        Ok(_) => {
            let mut server = Server::start(on_loopback().busy_poll(50));
            server.client().send(b"hello").unwrap();
            assert_eq!(server.collect(1).len(), 1);
        }
        Err(error) => {
            assert!(
                matches!(error, UdpError::Listen(ListenError::BusyPoll { .. })),
                "{error:?}"
            );
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        }
    }
}

// --- RackSched's format ------------------------------------------------------------------------------------

const HEADER: usize = RackSchedMessage::LENGTH;

fn racksched() -> ReassemblyConfig {
    ReassemblyConfig::default()
        .requests(2)
        .packets(4)
        .max_request(100)
        .timeout(PATIENCE)
}

/// The class is the number of nanoseconds that a request asks for.
fn rackscheds_server() -> Server<impl Classifier> {
    Server::classified(
        on_loopback().racksched(2, racksched()),
        |request: &[u8], _: SocketAddr| {
            let (message, _) = RackSchedMessage::parse(request).ok()?;
            Some(message.run_nanos as u16)
        },
    )
}

fn packet(message: RackSchedMessage, sequence: u16, total: usize, payload: &[u8]) -> Vec<u8> {
    let kind = if sequence == 0 {
        RackSchedKind::Request
    } else {
        RackSchedKind::Follow
    };
    let message = RackSchedMessage {
        kind,
        sequence,
        total_length: total as u32,
        ..message
    };
    [&message.to_bytes()[..], payload].concat()
}

#[test]
fn a_request_of_several_packets_arrives_as_one() {
    let mut server = rackscheds_server();
    let (client, other) = (server.client(), server.client());
    let message = RackSchedMessage::request(3, 4, 1, 77);
    let total = 3 * HEADER + 6;
    for (client, sequence, payload) in [
        (&client, 1, b"cd"),
        // The same client and number, but from elsewhere.
        (&other, 2, b"xx"),
        (&client, 2, b"ef"),
        (&client, 2, b"ef"),
        (&client, 0, b"ab"),
    ] {
        let packet = packet(message, sequence, total, payload);
        client.send(&packet).unwrap();
    }
    // A lie, and no request at all.
    other.send(&packet(message, 9, total, b"")).unwrap();
    other.send(b"hello").unwrap();
    let arrival = server.collect(1).remove(0);
    assert_eq!(arrival.class, 1);
    let (first, payload) = RackSchedMessage::parse(&arrival.request).unwrap();
    assert_eq!((first.generated_nanos, payload), (77, &b"abcdef"[..]));
    server.conclude(arrival.route, Ok(Some(arrival.request.echo())));
    let reply = received(&client);
    let (reply, payload) = RackSchedMessage::parse(&reply).unwrap();
    let expected = RackSchedMessage {
        total_length: (HEADER + 6) as u32,
        ..message.reply(0)
    };
    assert_eq!((reply, payload), (expected, &b"abcdef"[..]));

    server.until(|server| {
        assert!(server.poll().is_empty());
        server.counts().received == 7
    });
    let counts = server.counts();
    let reassembly = counts.reassembly;
    assert_eq!(
        (reassembly.assembled, reassembly.joined, reassembly.held),
        (1, 2, 1)
    );
    assert_eq!(
        (
            reassembly.duplicate,
            reassembly.sequence,
            reassembly.not_a_request
        ),
        (1, 1, 1)
    );
    assert_balanced(counts, 8);
}

#[test]
fn packets_to_different_ports_are_of_different_requests() {
    let mut server = Server::classified(on_two_ports().racksched(2, racksched()), ByPort);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let message = RackSchedMessage::request(1, 1, 0, 0);
    for (sequence, port) in [(0, 0), (1, 1), (1, 0)] {
        let packet = packet(message, sequence, 2 * HEADER, b"");
        let address = server.udp.local_addrs()[port];
        client.send_to(&packet, address).unwrap();
    }
    assert_eq!(server.collect(1)[0].class, 0);
    server.until(|server| {
        assert!(server.poll().is_empty());
        server.counts().received == 3
    });
    assert_eq!(server.counts().reassembly.held, 1);
}

#[test]
fn replies_tell_how_many_more_requests_of_the_class_there_are() {
    let mut server = rackscheds_server();
    let client = server.client();
    for (number, class) in [(0, 0), (1, 1), (2, 1), (3, 1), (4, 1), (5, 7)] {
        let request = RackSchedMessage::request(1, number, class, 0);
        client.send(&request.to_bytes()).unwrap();
    }
    let mut held = server.collect(6).into_iter();
    let mut next = || held.next().unwrap();
    let load = |client: &UdpSocket| {
        let reply = received(client);
        let (reply, _) = RackSchedMessage::parse(&reply).unwrap();
        assert_eq!(reply.kind, RackSchedKind::Reply);
        (reply.request, reply.queue_lengths)
    };

    let only_one = next();
    server.conclude(only_one.route, Ok(Some(only_one.request.echo())));
    assert_eq!(load(&client), (0, [0, 0, 0]));
    let one_of_four = next();
    server.conclude(one_of_four.route, Ok(Some(one_of_four.request.echo())));
    assert_eq!(load(&client), (1, [3, 0, 0]));
    // Without a reply, or turned away: they are no load any more.
    let (silent, refused) = (next(), next());
    drop(silent.request);
    server.conclude(silent.route, Ok(None));
    server
        .udp
        .refuse(refused.request, refused.route, Refusal::QueueFull);
    let last = next();
    // A handler may as well write the reply itself; what the server knows better is put in.
    let (message, _) = RackSchedMessage::parse(&last.request).unwrap();
    let reply = last.request.reply(&message.reply(99).to_bytes()).unwrap();
    server.conclude(last.route, Ok(Some(reply)));
    assert_eq!(load(&client), (4, [0, 0, 0]));
    // Of a class that was not announced there is no count; what is no message stays as it is.
    let foreign = next();
    let reply = foreign.request.reply(&[9; 50]).unwrap();
    server.conclude(foreign.route, Ok(Some(reply)));
    assert_eq!(received(&client), [9; 50]);
    drop(held);
    assert!(server.poll().is_empty());
    assert_balanced(server.counts(), 8);
}

#[test]
fn a_reassembly_that_cannot_be_is_named() {
    let too_long = racksched().max_request(101);
    let no_packets = racksched().packets(0);
    for (config, says) in [
        (
            on_loopback().racksched(2, too_long),
            "reassembly's max_request is 101, but must be between 41 and 100",
        ),
        (
            on_loopback().racksched(2, no_packets),
            "reassembly's packets is 0, but must be",
        ),
        (
            on_loopback().racksched(0, racksched()),
            "racksched's classes is 0, but must be",
        ),
    ] {
        let error = Udp::bind(config).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
