//! Handlers that do with requests what they should not: nothing of one connection reaches another.

use std::time::Duration;

use shinjuku_net::tcp::Request;

use crate::house::{Delivered, House, Lines, config, echo};

#[test]
fn a_request_dropped_in_a_panic_fails_and_closes() {
    let mut house = House::new(config().connections(1));
    let mut client = house.client();
    client.send("one\ntwo\nthree\n");
    let first = house.next();
    house.answer(first.route, echo(first.request));
    let mut second = house.next();
    second
        .request
        .parts()
        .1
        .extend_from_slice(b"half of a rep")
        .unwrap();
    drop(second.request);
    house.fail(second.route);
    house.poll_until("the end", |_| client.is_closed());
    assert!(client.has("one\nfailed\n"));
    drop(client);
    house.poll_until("the slot", |house| house.counts().open == 0);
    let counts = house.counts();
    assert_eq!((counts.received, counts.answered, counts.failed), (2, 1, 1));
    assert_eq!(counts.closed_failed, 1);
    let mut next = house.client();
    next.send("next\n");
    house.echo_until("its reply", |_| next.has("next\n"));
}

#[test]
fn swapped_replies_reach_no_client() {
    let mut house = House::new(config().connections(2));
    let (mut one, mut two) = (house.client(), house.client());
    one.send("secret of one\n");
    let first = house.next();
    two.send("secret of two\n");
    let second = house.next();
    house.answer(first.route, echo(second.request));
    for _ in 0..10 {
        house.poll();
    }
    assert_eq!(
        house.counts().open,
        2,
        "nothing is closed while anything of it is away"
    );
    house.answer(second.route, echo(first.request));
    house.poll_until("both ends", |_| one.is_closed() && two.is_closed());
    assert!(one.has("") && two.has(""));
    let counts = house.counts();
    assert_eq!(
        (counts.misdirected, counts.closed_misdirected, counts.open),
        (2, 2, 0)
    );
    for _ in 0..4 {
        let mut next = house.client();
        next.send("next\n");
        house.echo_until("a reply", |_| next.has("next\n"));
    }
}

#[test]
fn a_reply_in_anothers_place_closes_both_also_when_the_own_request_was_dropped() {
    let mut house = House::new(config().connections(2));
    let (mut one, mut two) = (house.client(), house.client());
    one.send("one\n");
    let first = house.next();
    two.send("two\n");
    let second = house.next();
    drop(first.request);
    house.answer(first.route, echo(second.request));
    house.poll_until("the first's end", |_| one.is_closed());
    house.fail(second.route);
    house.poll_until("the second's end", |_| two.is_closed());
    assert!(one.has("") && two.has(""));
    assert_eq!(house.counts().open, 0);
}

#[test]
fn a_request_kept_beyond_its_end_keeps_its_connection_until_it_is_dropped() {
    let mut house = House::with_stopped_clock(config().connections(2));
    let (mut one, mut two) = (house.client(), house.client());
    one.send("one\n");
    let first = house.next();
    house.fail(first.route);
    house.poll_until("the count", |house| house.counts().kept == 1);
    two.send("two\n");
    house.echo_until("the other's reply", |_| two.has("two\n"));
    assert!(!one.is_closed());
    drop(first.request);
    house.advance(Duration::from_secs(1));
    house.poll_until("its end", |_| one.is_closed());
    assert!(one.has(""));
    let counts = house.counts();
    assert_eq!((counts.open, counts.kept, counts.closed_failed), (1, 1, 1));
}

#[test]
fn a_kept_request_given_back_as_anothers_reply_is_not_sent() {
    let mut house = House::with_stopped_clock(config().connections(2));
    let (mut one, mut two) = (house.client(), house.client());
    one.send("secret\n");
    let first = house.next();
    house.fail(first.route);
    two.send("two\n");
    let second = house.next();
    house.answer(second.route, echo(first.request));
    house.poll_until("the first's end", |_| one.is_closed());
    assert_eq!(house.counts().open, 1);
    drop(second.request);
    house.advance(Duration::from_secs(1));
    house.poll_until("the second's end", |_| two.is_closed());
    assert!(one.has("") && two.has(""));
    let counts = house.counts();
    assert_eq!(
        (counts.kept, counts.misdirected, counts.received),
        (1, 1, 2)
    );
}

/// One of the ways in which a handler may treat a request; `false` where it comes later.
fn treat(
    house: &mut House,
    arrival: Delivered,
    way: usize,
    kept: &mut Vec<Request<Lines>>,
) -> bool {
    match way {
        0 => {
            drop(arrival.request);
            house.fail(arrival.route);
        }
        1 => {
            kept.push(arrival.request);
            house.fail(arrival.route);
        }
        2 => house.answer(arrival.route, echo(arrival.request).close_after()),
        3 => {
            house.arrived.push_front(arrival);
            return false;
        }
        4 => house.refuse(arrival, shinjuku_net::Refusal::QueueFull),
        _ => house.answer(arrival.route, echo(arrival.request)),
    }
    true
}

#[test]
fn whatever_handlers_do_the_sums_add_up_and_tags_stay_apart() {
    // A pseudo-random life: requests are answered, failed, swapped, kept, in any order, by ever new
    // connections.
    let mut house = House::with_stopped_clock(config().connections(8));
    let mut random = 1_u64;
    let mut draw = |bound: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    let mut clients = Vec::new();
    let mut kept = Vec::new();
    for round in 0..600 {
        if clients.len() < 8 && draw(2) == 0 {
            clients.push((round, house.client()));
        }
        if !clients.is_empty() {
            let at = draw(clients.len());
            let (tag, client) = &mut clients[at];
            // It may have been closed.
            let line = format!("{tag}\n").repeat(1 + draw(3));
            let _ = std::io::Write::write_all(&mut client.stream, line.as_bytes());
        }
        for _ in 0..2 {
            house.poll();
        }
        if house.arrived.len() >= 2 && draw(8) == 0 {
            let (one, two) = (
                house.arrived.pop_front().unwrap(),
                house.arrived.pop_back().unwrap(),
            );
            house.answer(one.route, echo(two.request));
            house.answer(two.route, echo(one.request));
        }
        while let Some(arrival) = house.arrived.pop_front() {
            if !treat(&mut house, arrival, draw(20), &mut kept) {
                break;
            }
        }
        if draw(5) == 0 {
            kept.clear();
            house.advance(Duration::from_millis(600));
        }
        clients.retain_mut(|(tag, client)| {
            client.receive();
            let text = std::str::from_utf8(&client.received).unwrap();
            let own = format!("{tag}");
            let is_its = |line| [&own, "failed", "refused", "full"].contains(&line);
            assert!(text.lines().all(is_its), "{text:?} reached {tag}");
            !client.ended && draw(30) > 0
        });
    }
    drop((clients, kept));
    house.advance(Duration::from_secs(2));
    house.echo_until("the end of all", |house| {
        house.advance(Duration::from_millis(100));
        house.counts().open == 0
    });
    let counts = house.counts();
    assert!(counts.accepted > 100 && counts.received > 300, "{counts:?}");
    let ends = [
        counts.answered,
        counts.refused,
        counts.failed,
        counts.misdirected,
        counts.kept,
    ];
    assert!(ends.iter().all(|&number| number > 0), "{counts:?}");
    let resolved = ends.iter().sum::<u64>() + counts.cut_off;
    assert_eq!(counts.received, resolved, "{counts:?}");
}
