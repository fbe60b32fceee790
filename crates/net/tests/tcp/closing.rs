//! Every way in which a connection ends.

use std::net::Shutdown;
use std::time::Duration;

use shinjuku_net::tcp::{Tcp, TcpError};
use shinjuku_net::{ListenError, Refusal, Transport};

use crate::house::{House, Lines, config, echo};

#[test]
fn a_client_that_has_said_everything_is_answered_first() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\ntwo\nhalf");
    client.stream.shutdown(Shutdown::Write).unwrap();
    house.echo_until("the end", |_| client.is_closed());
    assert!(client.has("one\ntwo\n"));
    let counts = house.counts();
    assert_eq!((counts.closed_by_peer, counts.answered), (1, 2));
}

#[test]
fn a_client_that_says_it_while_its_request_runs_is_answered_too() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\n");
    let arrival = house.next();
    client.send("two\n");
    client.stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..10 {
        house.poll();
    }
    house.answer(arrival.route, echo(arrival.request));
    house.echo_until("the end", |_| client.is_closed());
    assert!(client.has("one\ntwo\n"));
}

#[test]
fn a_client_that_vanishes_while_its_request_runs_costs_nothing_else() {
    let mut house = House::new(config().connections(1));
    let mut client = house.client();
    client.send("one\ntwo\n");
    let arrival = house.next();
    // With bytes unread, closing resets the connection.
    client.send("three\n");
    rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
    drop(client);
    for _ in 0..10 {
        house.poll();
    }
    assert_eq!(
        house.counts().open,
        1,
        "nothing is closed while a request is in flight"
    );
    house.answer(arrival.route, echo(arrival.request));
    house.echo_until("its end", |house| house.counts().open == 0);
    let counts = house.counts();
    let resolved = counts.answered + counts.cut_off;
    assert_eq!(counts.received, resolved, "{counts:?}");
    // The slot serves the next one, which sees nothing of it.
    let mut next = house.client();
    next.send("mine\n");
    house.echo_until("the reply", |_| next.has("mine\n"));
}

#[test]
fn the_handler_and_the_codec_can_close_after_a_reply() {
    let mut house = House::new(config());
    let (mut by_handler, mut by_codec) = (house.client(), house.client());
    by_handler.send("quit\nmore\n");
    let arrival = house.next();
    house.answer(arrival.route, echo(arrival.request).close_after());
    house.poll_until("the end", |_| by_handler.is_closed());
    assert!(by_handler.has("quit\n"), "and nothing more");
    by_codec.send("!malformed\nmore\n");
    house.echo_until("the end", |_| by_codec.is_closed());
    assert!(by_codec.has("!malformed\n"));
    drop((by_handler, by_codec));
    house.poll_until("the slots", |house| house.counts().open == 0);
    assert_eq!(house.counts().closed_by_server, 2);
}

#[test]
fn a_client_that_does_not_close_its_side_is_waited_for_a_second() {
    let mut house = House::with_stopped_clock(config());
    let mut client = house.client();
    client.send("!last\n");
    house.echo_until("the end", |_| client.is_closed());
    assert_eq!(house.counts().open, 1);
    for _ in 0..10 {
        client.send("I go on\n");
        house.poll();
    }
    house.advance(Duration::from_millis(1100));
    house.poll_until("the slot", |house| house.counts().open == 0);
    assert!(client.has("!last\n"));
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let mut house = House::with_stopped_clock(config().write_timeout(Duration::from_secs(2)));
    let mut client = house.client();
    let mut other = house.client();
    client.send("long\n");
    let mut arrival = house.next();
    let long = vec![b'x'; 20 << 20];
    arrival.request.parts().1.extend_from_slice(&long).unwrap();
    house.answer(arrival.route, arrival.request.reply());
    for _ in 0..100 {
        house.poll();
    }
    house.advance(Duration::from_millis(1500));
    client.receive();
    assert!(!client.ended);
    // It has taken something: its time begins anew.
    let before = house.counts().bytes_out;
    house.poll_until("more", |house| house.counts().bytes_out > before);
    for _ in 0..100 {
        house.poll();
    }
    house.advance(Duration::from_millis(1500));
    house.poll();
    assert_eq!(house.counts().closed_slow_reader, 0);
    house.advance(Duration::from_millis(1000));
    house.poll_until("its end", |house| house.counts().closed_slow_reader == 1);
    assert_eq!(house.counts().cut_off, 1);
    other.send("other\n");
    house.echo_until("the other's reply", |_| other.has("other\n"));
}

#[test]
fn half_a_request_has_its_time() {
    let mut house = House::with_stopped_clock(config().request_timeout(Duration::from_secs(1)));
    let (mut slow, mut idle) = (house.client(), house.client());
    idle.send("idle\n");
    house.echo_until("a reply", |_| idle.has("idle\n"));
    slow.send("ha");
    house.poll_until("its bytes", |house| house.counts().bytes_in == 7);
    for _ in 0..3 {
        // Byte by byte does not prolong it.
        house.advance(Duration::from_millis(400));
        let before = house.counts().bytes_in;
        slow.send("l");
        house.poll_until("its byte", |house| {
            house.counts().bytes_in > before || house.counts().closed_half_request == 1
        });
    }
    // It has a second to close its side.
    house.advance(Duration::from_millis(1100));
    house.poll_until("its end", |house| house.counts().closed_half_request == 1);
    assert_eq!(house.counts().open, 1, "the idle one stays");
    assert!(!idle.is_closed());
}

#[test]
fn idle_connections_are_closed_if_that_is_wanted() {
    let timeout = Some(Duration::from_secs(5));
    let mut house = House::with_stopped_clock(config().idle_timeout(timeout));
    let (mut idle, mut busy) = (house.client(), house.client());
    for _ in 0..4 {
        busy.received.clear();
        busy.send("busy\n");
        house.echo_until("a reply", |_| busy.has("busy\n"));
        house.advance(Duration::from_secs(2));
    }
    house.poll_until("its end", |_| idle.is_closed());
    assert_eq!(house.counts().closed_idle, 1);
    assert!(!busy.is_closed());
}

#[test]
fn a_request_that_runs_for_long_times_nothing_out() {
    let short = Duration::from_secs(1);
    let mut house = House::with_stopped_clock(
        config()
            .idle_timeout(Some(short))
            .request_timeout(short)
            .write_timeout(short),
    );
    let mut client = house.client();
    client.send("one\ntw");
    let arrival = house.next();
    for _ in 0..5 {
        house.advance(Duration::from_secs(5));
    }
    house.answer(arrival.route, echo(arrival.request));
    house.poll_until("the reply", |_| client.has("one\n"));
    client.send("o\n");
    house.echo_until("the second", |_| client.has("one\ntwo\n"));
}

#[test]
fn more_connections_than_allowed_are_told_so() {
    let mut house = House::new(config().connections(3));
    let mut clients: Vec<_> = (0..3).map(|_| house.client()).collect();
    house.poll_until("all three", |house| house.counts().open == 3);
    for _ in 0..10 {
        let mut fourth = house.client();
        house.poll_until("the rejection", |_| fourth.is_closed());
        assert!(fourth.has("full\n"));
    }
    assert_eq!(house.counts().rejected, 10);
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("{number}\n"));
        let expected = format!("{number}\n");
        house.echo_until("a reply", |_| client.has(&expected));
    }
    drop(clients.pop());
    house.poll_until("the free place", |house| house.counts().open == 2);
    let mut next = house.client();
    next.send("next\n");
    house.echo_until("its reply", |_| next.has("next\n"));
    let counts = house.counts();
    assert_eq!((counts.accepted, counts.closed_by_peer), (4, 1));
}

#[test]
fn with_the_transport_connections_end_in_order() {
    let mut house = House::new(config());
    let (mut idle, mut half, mut running, mut behind) = (
        house.client(),
        house.client(),
        house.client(),
        house.client(),
    );
    idle.send("idle\n");
    house.echo_until("a reply", |_| idle.has("idle\n"));
    half.send("hal");
    house.poll_until("its bytes", |house| house.counts().bytes_in == 8);
    running.send("running\n");
    let first = house.next();
    behind.send("one\ntwo\nthree\n");
    let second = house.next();
    house.tcp.close();
    let mut late = None;
    house.poll_until("the end of those that wait", |house| {
        late.get_or_insert_with(|| std::net::TcpStream::connect(house.tcp.local_addr()).is_err());
        idle.is_closed() && half.is_closed()
    });
    assert_eq!(late, Some(true), "no socket listens any more");
    assert!(half.has(""));
    house.answer(first.route, echo(first.request));
    house.answer(second.route, echo(second.request));
    house.poll_until("the end of all", |_| {
        running.is_closed() && behind.is_closed()
    });
    assert!(running.has("running\n"));
    assert!(behind.has("one\nclosing\nclosing\n"));
    drop((idle, half, running, behind));
    house.poll_until("no connection", |house| house.counts().open == 0);
    let counts = house.counts();
    assert_eq!(
        (counts.received, counts.answered, counts.refused),
        (5, 3, 2)
    );
    assert_eq!(
        counts.closed_shutdown + counts.closed_by_peer,
        4,
        "{counts:?}"
    );
    assert!(house.arrived.is_empty());
}

#[test]
fn a_transport_that_is_dropped_sends_what_it_can() {
    const LENGTH: usize = 8 << 20;
    let mut house = House::new(config());
    let (mut client, mut stubborn, mut queued) = (house.client(), house.client(), house.client());
    for client in [&mut client, &mut stubborn] {
        client.send("long\n");
        let mut arrival = house.next();
        let output = arrival.request.parts().1;
        output.extend_from_slice(&vec![b'x'; LENGTH]).unwrap();
        house.answer(arrival.route, arrival.request.reply());
    }
    queued.send("one\ntwo\n");
    let arrival = house.next();
    house.answer(arrival.route, echo(arrival.request));
    let counters = house.tcp.counters();
    let reader = std::thread::spawn(move || {
        client.stream.set_nonblocking(false).unwrap();
        while !client.ended {
            client.receive_blocking();
        }
        client.received.len()
    });
    drop(house);
    assert_eq!(reader.join().unwrap(), LENGTH);
    assert!(queued.is_closed());
    assert!(
        queued.has("one\nclosing\n"),
        "what the runtime did not take"
    );
    let counts = counters.read();
    assert_eq!((counts.open, counts.cut_off), (0, 1), "{counts:?}");
}

#[test]
fn a_request_that_outlives_the_transport_is_dropped_in_peace() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\n");
    let arrival = house.next();
    drop(house);
    assert!(!client.is_closed());
    assert_eq!(&*arrival.request, b"one\n");
    drop(arrival);
    let start = std::time::Instant::now();
    while !client.is_closed() {
        assert!(start.elapsed() < crate::house::PATIENCE);
    }
}

#[test]
fn refusals_reach_a_client_whose_request_never_ran() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\n");
    let arrival = house.next();
    house.refuse(arrival, Refusal::ShuttingDown);
    house.poll_until("the refusal", |_| client.has("closing\n"));
}

#[test]
fn an_address_in_use_is_told() {
    let house = House::new(config());
    let taken = shinjuku_net::tcp::TcpConfig::new(house.tcp.local_addr());
    let error = Tcp::bind(taken.clone().connections(1), Lines).unwrap_err();
    assert!(
        matches!(error, TcpError::Listen(ListenError::AddressInUse { .. })),
        "{error}"
    );
    let shared = config().reuse_port(true);
    let first = Tcp::bind(shared, Lines).unwrap();
    let second = shinjuku_net::tcp::TcpConfig::new(first.local_addr()).connections(1);
    Tcp::bind(second.reuse_port(true), Lines).unwrap();
}
