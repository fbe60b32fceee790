//! The TCP transport between real sockets.
#![allow(missing_docs)]

mod house;

use house::{House, config};

#[test]
fn what_is_sent_comes_back() {
    let mut house = House::new(config());
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

#[test]
fn a_request_can_wait_at_the_handler() {
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("one\ntwo\n");
    let first = house.next();
    assert_eq!(&*first.request, b"one\n");
    for _ in 0..100 {
        house.poll();
    }
    assert!(house.arrived.is_empty(), "one at a time");
    let reply = house::echo(first.request);
    house.answer(first.route, reply);
    let mut second = house.next();
    *second.request.session_mut() = 7;
    assert_eq!(&*second.request, b"two\n");
    assert!(!client.is_closed());
}
