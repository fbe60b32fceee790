//! One request of a connection at a time, replies in order, and as few system calls as that takes.

use shinjuku_net::Refusal;
use shinjuku_net::tcp::ReplyBy;

use crate::house::{House, config, echo};

#[test]
fn what_is_sent_comes_back_by_either_side() {
    for reply_by in [ReplyBy::Worker, ReplyBy::Networker] {
        let mut house = House::new(config().reply_by(reply_by));
        let mut client = house.client();
        client.send("one\n");
        house.echo_until("the reply", |_| client.has("one\n"));
        client.send("two\nthree\n\n\nfour\n");
        house.echo_until("the replies", |_| client.has("one\ntwo\nthree\nfour\n"));
        let counts = house.counts();
        assert_eq!((counts.received, counts.answered, counts.open), (4, 4, 1));
        drop(client);
        house.echo_until("the end", |house| house.counts().closed_by_peer == 1);
        assert_eq!(house.counts().open, 0);
    }
}

#[test]
fn over_ipv6_too() {
    let listen = "[::1]:0".parse().unwrap();
    let mut house = House::new(shinjuku_net::tcp::TcpConfig::new(listen).connections(4));
    assert!(house.tcp.local_addr().is_ipv6());
    let mut client = house.client();
    client.send("one\n");
    let arrival = house.next();
    assert_eq!(arrival.request.peer(), client.stream.local_addr().unwrap());
    house.answer(arrival.route, echo(arrival.request));
    house.echo_until("the reply", |_| client.has("one\n"));
}

#[test]
fn one_request_of_a_connection_at_a_time() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\ntwo\n");
    let first = house.next();
    assert_eq!(&*first.request, b"one\n");
    for _ in 0..100 {
        house.poll();
    }
    assert!(house.arrived.is_empty(), "one at a time");
    house.answer(first.route, echo(first.request));
    let second = house.next();
    assert_eq!(&*second.request, b"two\n");
    assert_eq!(second.request.session(), &0);
    house.answer(second.route, echo(second.request));
    house.echo_until("both", |_| client.has("one\ntwo\n"));
}

#[test]
fn connections_are_independent_and_keep_their_sessions() {
    let mut house = House::new(config());
    let mut clients: Vec<_> = (0..5).map(|_| house.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("{number}\n"));
    }
    let mut held: Vec<_> = (0..5).map(|_| house.next()).collect();
    let mut flows: Vec<_> = held.iter().map(|arrival| arrival.flow).collect();
    flows.sort_unstable();
    flows.dedup();
    assert_eq!(flows.len(), 5, "a flow for each connection");
    // In the opposite order.
    while let Some(mut arrival) = held.pop() {
        assert_eq!(arrival.flow, arrival.request.connection().get());
        let number = u64::from(arrival.request[0]);
        *arrival.request.session_mut() = number;
        house.answer(arrival.route, echo(arrival.request));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let expected = format!("{number}\n");
        house.poll_until("the reply", |_| client.has(&expected));
        client.send(&expected);
        let arrival = house.next();
        assert_eq!(*arrival.request.session(), u64::from(arrival.request[0]));
        house.answer(arrival.route, echo(arrival.request));
        house.poll_until("the reply", |_| client.has(expected.repeat(2)));
    }
}

#[test]
fn a_connection_begins_with_nothing_of_the_one_before_it() {
    let mut house = House::new(config().connections(1));
    let mut first = house.client();
    first.send("one\nhalf of anoth");
    let mut arrival = house.next();
    let its = arrival.request.connection();
    *arrival.request.session_mut() = 7;
    house.answer(arrival.route, echo(arrival.request));
    house.poll_until("the reply", |_| first.has("one\n"));
    drop(first);
    house.poll_until("the end", |house| house.counts().open == 0);
    let mut second = house.client();
    second.send("two\n");
    let arrival = house.next();
    assert_eq!(&*arrival.request, b"two\n");
    assert_eq!(*arrival.request.session(), 0);
    assert_ne!(arrival.request.connection(), its);
    house.answer(arrival.route, echo(arrival.request));
    house.poll_until("the reply", |_| second.has("two\n"));
}

#[test]
fn sixteen_requests_in_a_packet_take_one_read_and_one_write() {
    for reply_by in [ReplyBy::Worker, ReplyBy::Networker] {
        let mut house = House::new(config().reply_by(reply_by));
        let mut client = house.client();
        client.send("one\n".repeat(16));
        house.echo_until("all replies", |_| client.has("one\n".repeat(16)));
        let counts = house.counts();
        assert_eq!(
            (
                counts.received,
                counts.answered,
                counts.receives,
                counts.sends
            ),
            (16, 16, 1, 1),
            "{reply_by:?}"
        );
    }
}

#[test]
fn replies_do_not_wait_for_more_than_half_a_buffer() {
    let mut house = House::new(config().buffer(1024));
    let mut client = house.client();
    // Ten requests in one packet, each reply a quarter of the buffer.
    let line = format!("{}\n", "x".repeat(255));
    client.send("a\n".repeat(10));
    house.until_answered(10, |mut request| {
        let output = request.parts().1;
        output.extend_from_slice(line.as_bytes()).unwrap();
        request.reply()
    });
    house.poll_until("all replies", |_| client.has(line.repeat(10)));
    assert_eq!(house.counts().sends, 5);
}

#[test]
fn a_reply_is_not_held_back_for_a_request_that_is_not_complete() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\ntw");
    house.echo_until("the first reply", |_| client.has("one\n"));
    client.send("o\n");
    house.echo_until("the second reply", |_| client.has("one\ntwo\n"));
}

#[test]
fn nothing_is_served_behind_the_last_request() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\n\n\n\ntwo\n!three\nfour\n");
    house.echo_until("the end", |_| client.is_closed());
    assert!(client.has("one\ntwo\n!three\n"));
    assert_eq!(house.counts().received, 3);
}

#[test]
fn refusals_keep_their_place() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\ntwo\nthree\n");
    let first = house.next();
    house.answer(first.route, echo(first.request));
    let second = house.next();
    house.refuse(second, Refusal::QueueFull);
    house.echo_until("all three", |_| client.has("one\nrefused\nthree\n"));
    let counts = house.counts();
    assert_eq!(
        (counts.received, counts.answered, counts.refused),
        (3, 2, 1)
    );
    assert_eq!(counts.open, 1);
}

#[test]
fn an_empty_reply_is_an_answer() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\ntwo\n");
    let first = house.next();
    house.answer(first.route, first.request.reply());
    house.echo_until("the second", |_| client.has("two\n"));
    assert_eq!(house.counts().answered, 2);
    client.send("three\n");
    let third = house.next();
    house.answer(third.route, third.request.reply());
    house.poll_until("the count", |house| house.counts().answered == 3);
}

#[test]
fn a_busy_connection_does_not_keep_others_waiting() {
    let mut house = House::new(config().batch(2));
    let mut busy = house.client();
    busy.send("b\n".repeat(2000));
    house.echo_until("the busy one's first reply", |house| {
        house.counts().received > 0
    });
    let mut other = house.client();
    other.send("o\n");
    house.echo_until("the other's reply", |_| other.has("o\n"));
    assert!(house.counts().answered < 1000, "it came in between");
    house.echo_until("all the busy one's", |_| busy.has("b\n".repeat(2000)));
}
