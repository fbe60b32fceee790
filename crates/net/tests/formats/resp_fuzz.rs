//! RESP's parser against any bytes: the corpus beside it, and some random input each time.
//!
//! For millions of inputs:
//! `BOLERO_RANDOM_ITERATIONS=10000000 cargo test --release -p shinjuku-net --test formats fuzz`,
//! or `cargo bolero test` with a fuzzer.

use bolero::check;
use shinjuku_net::resp::{Found, Progress, Protocol, Resp, Writer, arguments, find};
use shinjuku_net::tcp::{Codec, Framing};

/// Small, so that inputs go beyond it.
const LONGEST_BULK: usize = 300;

/// What requests are made of.
const PIECES: [&[u8]; 32] = [
    b"*",
    b"$",
    b"\r\n",
    b"\r",
    b"\n",
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"$0\r\n",
    b"$1\r\n",
    b"$2\r\n",
    b"$3\r\n",
    b"a\r\n",
    b"ab\r\n",
    b"GET\r\n",
    b"0",
    b"1",
    b"9",
    b"-",
    b"$300\r\n",
    b"$301\r\n",
    b" ",
    b"\t",
    b"\"",
    b"'",
    b"\\",
    b"\\x",
    b"\\x0a",
    b"\x0b",
    b"\0",
    b"GET",
    b"2147483647",
];

#[test]
fn any_bytes_are_framed_alike_in_any_pieces() {
    check!().for_each(|input: &[u8]| {
        // The first byte says how the rest is cut.
        if let Some((&step, bytes)) = input.split_first() {
            is_framed_alike(bytes, usize::from(step % 16) + 1);
        }
    });
}

#[test]
fn likely_requests_are_framed_alike_in_any_pieces() {
    check!().for_each(|input: &[u8]| {
        if let Some((&step, choices)) = input.split_first() {
            let bytes: Vec<u8> = choices
                .iter()
                .flat_map(|choice| PIECES[usize::from(*choice) % PIECES.len()])
                .copied()
                .collect();
            is_framed_alike(&bytes, usize::from(step % 16) + 1);
        }
    });
}

fn is_framed_alike(bytes: &[u8], step: usize) {
    let whole = find(bytes, &mut Progress::default(), LONGEST_BULK);
    let mut progress = Progress::default();
    let pieces = (0..bytes.len()).step_by(step).chain([bytes.len()]);
    let in_pieces = pieces
        .map(|length| find(&bytes[..length], &mut progress, LONGEST_BULK))
        .find(|found| *found != Found::Incomplete)
        .unwrap_or(Found::Incomplete);
    assert_eq!(in_pieces, whole);
    match whole {
        Found::Incomplete => {}
        Found::Nothing { length } => assert!((1..=bytes.len()).contains(&length)),
        Found::Request { length } => {
            request(&bytes[..length]);
            class(&bytes[..length]);
        }
        Found::Malformed { length, error } => {
            assert!((1..=bytes.len()).contains(&length));
            assert_eq!(arguments(&bytes[..length]).unwrap_err(), error);
        }
    }
}

/// The class is told from the first argument.
fn class(frame: &[u8]) {
    let resp = Resp::<_, ()>::new(|command: &[u8]| command.len() as u16);
    let framing = resp.frame(frame, &mut Progress::default(), &());
    let length = frame.len();
    let Framing::Complete { class, .. } = framing else {
        panic!("{framing:?}");
    };
    assert_eq!(framing, Framing::Complete { length, class });
    let is_quoted = frame[0] != b'*' && frame.iter().any(|byte| b"\"'".contains(byte));
    let command = arguments(frame).unwrap().next().unwrap();
    assert!(is_quoted || usize::from(class) == command.len());
}

/// Sent as an array, the arguments are the same again.
fn request(frame: &[u8]) {
    let words: Vec<Vec<u8>> = arguments(frame)
        .expect("a request has arguments")
        .map(|word| word.into_owned())
        .collect();
    assert!(!words.is_empty());
    let mut array = Vec::new();
    let mut writer = Writer::new(&mut array, Protocol::Resp3);
    writer.array(words.len()).unwrap();
    for word in &words {
        writer.bulk(word).unwrap();
    }
    let length = array.len();
    let found = find(&array, &mut Progress::default(), usize::MAX);
    assert_eq!(found, Found::Request { length });
    assert!(
        arguments(&array)
            .unwrap()
            .eq(words.iter().map(|word| &word[..]))
    );
}
