//! Requests and replies that are longer than buffers, the kernel's included.

use std::io::Write;

use shinjuku_net::tcp::OutputFull;

use crate::house::{House, config, echo};

#[test]
fn a_request_of_the_longest_length_is_served_and_a_longer_one_refused() {
    let mut house = House::new(config().buffer(512).max_request(5000));
    let longest = format!("{}\n", "x".repeat(4999));
    let mut client = house.client();
    client.send(&longest);
    client.send("short\n");
    house.echo_until("both", |_| client.has(longest.clone() + "short\n"));
    let mut other = house.client();
    other.send("short\n");
    other.send(format!("x{longest}"));
    house.echo_until("the end", |_| other.is_closed());
    assert!(other.has("short\ntoo long\n"));
    drop(other);
    house.poll_until("its slot", |house| house.counts().open == 1);
    let counts = house.counts();
    assert_eq!((counts.closed_too_long, counts.received), (1, 3));
}

#[test]
fn a_request_longer_than_allowed_is_refused_even_if_it_fits_a_buffer() {
    let mut house = House::new(config().buffer(512).max_request(10));
    let mut client = house.client();
    client.send("0123456789\n");
    house.echo_until("the end", |_| client.is_closed());
    assert!(client.has("too long\n"));
}

#[test]
fn long_requests_wait_for_a_large_buffer() {
    let mut house = House::new(config().buffer(256).max_request(2000).large_buffers(1));
    let mut clients: Vec<_> = (0..4).map(|_| house.client()).collect();
    let line = format!("{}\n", "x".repeat(1500));
    for client in &mut clients {
        client.send(&line[..1000]);
    }
    house.echo_until("all first parts that fit", |house| {
        house.counts().bytes_in >= 1000 + 3 * 256
    });
    // The one that has the buffer leaves without a word; the connection that waits gets it.
    let mut served = 0;
    for client in &mut clients {
        client.send(&line[1000..]);
    }
    house.echo_until("all replies", |_| {
        served = clients
            .iter_mut()
            .filter_map(|client| client.has(&line).then_some(()))
            .count();
        served == 4
    });
    // Once more, and the holder vanishes.
    let mut gone = house.client();
    gone.send(&line[..1000]);
    house.echo_until("its first part", |house| {
        house.counts().bytes_in == 4 * 1501 + 1000
    });
    clients[0].send(&line);
    for _ in 0..100 {
        house.turn(echo);
    }
    assert!(clients[0].has(&line), "the second line waits");
    drop(gone);
    house.echo_until("the second line", |_| clients[0].has(line.repeat(2)));
}

#[test]
fn replies_longer_than_the_kernels_buffers_arrive_whole_and_in_order() {
    const LENGTH: usize = 20 << 20;
    let mut house = House::new(config());
    let mut client = house.client();
    client.send("first\nsecond\n");
    let long: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    let mut first = house.next();
    first.request.parts().1.extend_from_slice(&long).unwrap();
    house.answer(first.route, first.request.reply());
    for _ in 0..100 {
        house.turn(echo);
    }
    assert_eq!(
        house.counts().received,
        1,
        "a client that does not read is not served further"
    );
    let expected = [&long, &b"second\n"[..]].concat();
    house.echo_until("all of it", |_| {
        client.receive();
        client.received.len() == expected.len()
    });
    assert!(client.received == expected);
    let counts = house.counts();
    assert_eq!((counts.received, counts.answered), (2, 2));
    assert_eq!(counts.bytes_out, expected.len() as u64);
}

#[test]
fn replies_have_their_bounds_one_by_one_and_together() {
    let mut house = House::new(config().buffer(1024).max_reply(4000).reply_memory(10_000));
    let mut clients: Vec<_> = (0..4).map(|_| house.client()).collect();
    clients[0].send("one\n");
    let mut arrival = house.next();
    let (_, output, _) = arrival.request.parts();
    output.extend_from_slice(&[b'x'; 3000]).unwrap();
    let error = output.extend_from_slice(&[b'y'; 1001]).unwrap_err();
    assert!(
        matches!(
            error,
            OutputFull::Reply {
                length: 4001,
                max_reply: 4000
            }
        ),
        "{error}"
    );
    assert_eq!(output.len(), 3000, "nothing was appended");
    output.extend_from_slice(&[b'y'; 1000]).unwrap();
    let error = output.write_all(b"z").unwrap_err();
    assert!(error.to_string().contains("max_reply is 4000"), "{error}");
    // As much for the next one, and then it is enough.
    let mut held = vec![arrival];
    for client in &mut clients[1..] {
        client.send("one\n");
        held.push(house.next());
    }
    held[1]
        .request
        .parts()
        .1
        .extend_from_slice(&[b'x'; 4000])
        .unwrap();
    let third = held[2].request.parts().1;
    let error = third.extend_from_slice(&[b'x'; 4000]).unwrap_err();
    assert!(matches!(error, OutputFull::Together { .. }), "{error}");
    third.extend_from_slice(b"sorry\n").unwrap();
    for arrival in held.drain(..3) {
        house.answer(arrival.route, arrival.request.reply());
    }
    house.poll_until("the third's", |_| clients[2].has("sorry\n"));
    house.poll_until("the first's", |_| {
        clients[0].has([[b'x'; 3000].as_slice(), &[b'y'; 1000]].concat())
    });
    // What they had is there for others.
    let mut fourth = held.pop().unwrap();
    fourth
        .request
        .parts()
        .1
        .extend_from_slice(&[b'z'; 4000])
        .unwrap();
    house.answer(fourth.route, fourth.request.reply());
    house.poll_until("the fourth's", |_| clients[3].has([b'z'; 4000]));
    assert!(house.counts().reply_memory <= 10_000);
}

#[test]
fn memory_of_long_replies_is_given_back() {
    let mut house = House::new(config());
    let mut client = house.client();
    let long = vec![b'x'; 8 << 20];
    for _ in 0..3 {
        client.received.clear();
        client.send("long\n");
        house.until_answered_by(
            &mut client,
            |mut request| {
                request.parts().1.extend_from_slice(&long).unwrap();
                request.reply()
            },
            long.len(),
        );
    }
    assert!(
        house.counts().reply_memory < 40 << 20,
        "used again: {:?}",
        house.counts()
    );
    client.received.clear();
    client.send("short\n");
    house.echo_until("a short one", |_| client.has("short\n"));
    assert_eq!(house.counts().reply_memory, 0, "the next handler frees it");
}

#[test]
fn a_reply_can_be_taken_back_while_it_is_written() {
    let mut house = House::new(config().buffer(256));
    let mut client = house.client();
    client.send("one\ntwo\n");
    let first = house.next();
    house.answer(first.route, echo(first.request));
    let mut second = house.next();
    let (_, output, _) = second.request.parts();
    assert_eq!(output.len(), 0, "the first reply is not this one's");
    output.extend_from_slice(&[b'x'; 1000]).unwrap();
    output.truncate(2000);
    assert_eq!(output.len(), 1000);
    output.truncate(0);
    writeln!(output, "{}", 2).unwrap();
    house.answer(second.route, second.request.reply());
    house.poll_until("both", |_| client.has("one\n2\n"));
}
