//! However a client cuts what it sends, the server sees the same requests.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use shinjuku_net::Refusal;
use shinjuku_net::tcp::{Codec, Framing, Reply, Request, Tcp, TcpConfig};

use crate::house::{House, Lines, config, echo};

fn requests() -> impl Strategy<Value = Vec<String>> {
    let line = prop_oneof![
        4 => "[a-z]{0,12}\n",
        1 => "[a-z]{300,700}\n",
    ];
    prop::collection::vec(line, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// With buffers so small that some requests need large ones, and most bursts are more than a
    /// buffer.
    #[test]
    fn any_cut_gives_the_same_requests(lines in requests(), cuts in prop::collection::vec(0.0..1.0, 0..8), turns in 0..4_usize) {
        let mut house = House::new(config().buffer(256).large_buffers(1).max_request(1000));
        let mut client = house.client();
        let all = lines.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * all.len() as f64) as usize).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        for part in cuts.windows(2) {
            client.send(&all[part[0]..part[1]]);
            for _ in 0..turns {
                house.turn(echo);
            }
        }
        let expected: String = lines.iter().filter(|line| *line != "\n").cloned().collect();
        house.echo_until("all replies", |_| client.has(&expected));
        // There may be empty lines at the end.
        house.echo_until("all bytes", |house| house.counts().bytes_in == all.len() as u64);
        let requests = lines.iter().filter(|line| *line != "\n").count() as u64;
        let counts = house.counts();
        prop_assert_eq!((counts.received, counts.answered), (requests, requests));
    }
}

#[test]
fn a_request_that_comes_byte_by_byte_is_framed_in_linear_time() {
    /// Lines; counts the bytes that it looks at.
    #[derive(Clone, Default)]
    struct Watched(Arc<AtomicUsize>);

    impl Codec for Watched {
        type Progress = usize;
        type Session = u64;
        fn frame(&self, bytes: &[u8], seen: &mut usize, session: &u64) -> Framing {
            self.0.fetch_add(bytes.len() - *seen, Ordering::Relaxed);
            Lines.frame(bytes, seen, session)
        }
        fn refusal(&self, cause: Refusal) -> &'static [u8] {
            Lines.refusal(cause)
        }
        fn failure(&self) -> &'static [u8] {
            Lines.failure()
        }
    }

    let watched = Watched::default();
    // Through a small buffer, and a large one.
    let mut house = House::of(config().buffer(256), watched.clone());
    let mut client = house.client();
    let line = format!("{}\n", "x".repeat(1999));
    for (at, byte) in line.bytes().enumerate() {
        client.send([byte]);
        house.echo_until("the byte", |house| house.counts().bytes_in > at as u64);
    }
    house.echo_until("the reply", |_| client.has(&line));
    let looked_at = watched.0.load(Ordering::Relaxed);
    assert_eq!(looked_at, line.len(), "each byte once");
}

/// Requests of one byte, and more if the session says so.
#[derive(Clone)]
struct Widths;

impl Codec for Widths {
    type Progress = ();
    type Session = usize;
    fn frame(&self, bytes: &[u8], (): &mut (), more: &usize) -> Framing {
        let length = 1 + more;
        if bytes.len() < length {
            return Framing::Incomplete;
        }
        Framing::Complete { length, class: 0 }
    }
    fn refusal(&self, _: Refusal) -> &'static [u8] {
        b""
    }
    fn failure(&self) -> &'static [u8] {
        b""
    }
}

/// Echoes in brackets; `2` and what begins with `1` say how long the next request is.
fn bracket(mut request: Request<Widths>) -> Reply<Widths> {
    let (frame, output, more) = request.parts();
    match frame[0] {
        b'2' => *more = 1,
        b'1' => *more = 0,
        _ => {}
    }
    write!(output, "[{}]", String::from_utf8_lossy(frame)).unwrap();
    request.reply()
}

#[test]
fn a_changed_session_has_the_next_request_found_anew() {
    let mut house = House::of(config(), Widths);
    let mut client = house.client();
    client.send("a2bc1exyz");
    house.until_answered(7, bracket);
    house.poll_until("the replies", |_| client.has("[a][2][bc][1e][x][y][z]"));
}

#[test]
fn a_reply_is_not_held_for_a_request_that_the_changed_session_has_made_incomplete() {
    let mut house = House::of(config(), Widths);
    let mut client = house.client();
    client.send("2b");
    house.until_answered(1, bracket);
    house.poll_until("the reply", |_| client.has("[2]"));
    client.send("c");
    house.until_answered(2, bracket);
    house.poll_until("the next reply", |_| client.has("[2][bc]"));
}

#[test]
fn a_codec_that_claims_what_is_not_there_costs_its_connection_only() {
    #[derive(Clone)]
    struct Liar;

    impl Codec for Liar {
        type Progress = ();
        type Session = ();
        fn frame(&self, bytes: &[u8], (): &mut (), (): &()) -> Framing {
            let (length, class) = (bytes.len(), 0);
            match bytes[0] {
                b'0' => Framing::Complete { length: 0, class },
                b'9' => Framing::Last {
                    length: length + 1,
                    class,
                },
                b's' => Framing::Skip { length: 0 },
                b'S' => Framing::Skip { length: usize::MAX },
                _ => Framing::Complete { length: 1, class },
            }
        }
        fn refusal(&self, _: Refusal) -> &'static [u8] {
            b""
        }
        fn failure(&self) -> &'static [u8] {
            b""
        }
    }

    let mut house = House::of(config(), Liar);
    let mut liars: Vec<_> = ["0", "9", "s", "S", "a0"]
        .map(|bytes| (house.client(), bytes))
        .into();
    let mut honest = house.client();
    for (client, bytes) in &mut liars {
        client.send(bytes);
    }
    honest.send("a");
    house.echo_until("the reply", |_| honest.has("a"));
    house.echo_until("the liars' end", |_| {
        liars.iter_mut().all(|(client, _)| client.is_closed())
    });
    let counts = house.counts();
    assert_eq!((counts.closed_codec, counts.open), (5, 1), "{counts:?}");
    assert_eq!((counts.received, counts.answered), (2, 2));
}

#[test]
fn settings_out_of_range_are_told_with_their_bounds() {
    type Change = fn(TcpConfig) -> TcpConfig;
    const TOO_LONG: Duration = Duration::from_secs(100_000);
    let changes: [(Change, &str); 8] = [
        (|config| config.connections(0), "connections is 0"),
        (|config| config.buffer(16), "buffer is 16"),
        (|config| config.max_request(0), "max_request is 0"),
        (|config| config.large_buffers(0), "large_buffers is 0"),
        (|config| config.max_reply(1), "max_reply is 1,"),
        (|config| config.batch(2000), "batch is 2000"),
        (|config| config.backlog(0), "backlog is 0"),
        (
            |config| config.write_timeout(TOO_LONG),
            "must be between 1000 and 86400000000",
        ),
    ];
    for (change, says) in changes {
        let error = Tcp::bind(change(config()), Lines).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}
