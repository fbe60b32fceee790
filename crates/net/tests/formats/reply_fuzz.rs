//! The scanner of replies against any bytes: the corpus beside it, and some random input each time.
//! It must say the same however the bytes are cut, and the same as a parser that has all of them
//! and recurses.
//!
//! For millions of inputs:
//! `BOLERO_RANDOM_ITERATIONS=10000000 cargo test --release -p shinjuku-net --test formats fuzz`,
//! or `cargo bolero test` with a fuzzer.

use bolero::check;
use shinjuku_net::resp::reply::ReplyScanner;

/// What replies are made of.
const PIECES: [&[u8]; 32] = [
    b"\r\n",
    b"\r",
    b"\n",
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(12\r\n",
    b"$0\r\n\r\n",
    b"$3\r\nabc\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"!2\r\nno\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"*0\r\n",
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"%1\r\n",
    b"%2\r\n",
    b"~2\r\n",
    b">1\r\n",
    b"|1\r\n",
    b"$",
    b"*",
    b"-",
    b"0",
    b"12",
    b"1099511627776",
    b"a",
];

#[test]
fn any_replies_end_alike_in_any_pieces() {
    check!().for_each(|input: &[u8]| {
        // The first byte says how the rest is cut.
        if let Some((&step, bytes)) = input.split_first() {
            end_alike(bytes, usize::from(step % 16) + 1);
        }
    });
}

#[test]
fn likely_replies_end_alike_in_any_pieces() {
    check!().for_each(|input: &[u8]| {
        let Some((&step, choices)) = input.split_first() else {
            return;
        };
        let pieces = choices
            .iter()
            .map(|&choice| PIECES[usize::from(choice) % PIECES.len()]);
        end_alike(
            &pieces.collect::<Vec<_>>().concat(),
            usize::from(step % 16) + 1,
        );
    });
}

fn end_alike(bytes: &[u8], step: usize) {
    let whole = scan(bytes.chunks(bytes.len().max(1)));
    assert_eq!(scan(bytes.chunks(step)), whole);
    let mut ends = Vec::new();
    let mut at = 0;
    let outcome = loop {
        match element(bytes, at, 0) {
            Parsed::End(end) => {
                ends.push(end);
                at = end;
            }
            other => break other,
        }
    };
    // Neither stack nor memory of the parser is unbounded: where it gives up, it has nothing to
    // say.
    if outcome != Parsed::TooDeep {
        assert_eq!(whole.0, ends);
        assert_eq!(whole.1, outcome == Parsed::Malformed);
    }
}

/// Where replies end, and whether the protocol is broken then.
fn scan<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<usize>, bool) {
    let mut scanner = ReplyScanner::new();
    let (mut at, mut ends) = (0, Vec::new());
    for mut piece in pieces {
        while !piece.is_empty() {
            let Ok((taken, reply)) = scanner.advance(piece) else {
                return (ends, true);
            };
            assert!((1..=piece.len()).contains(&taken));
            at += taken;
            piece = &piece[taken..];
            if reply.is_some() {
                ends.push(at);
            }
        }
    }
    (ends, false)
}

#[derive(Debug, PartialEq)]
enum Parsed {
    End(usize),
    Incomplete,
    Malformed,
    TooDeep,
}

/// The element that begins at `at`.
fn element(bytes: &[u8], at: usize, depth: usize) -> Parsed {
    if depth > 100 {
        return Parsed::TooDeep;
    }
    let Some(&kind) = bytes.get(at) else {
        return Parsed::Incomplete;
    };
    match kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => line(bytes, at + 1),
        b'$' | b'=' | b'!' => match length(bytes, at + 1) {
            Ok((None, body)) => Parsed::End(body),
            Ok((Some(length), body)) => string(bytes, body, length),
            Err(other) => other,
        },
        b'*' | b'~' | b'%' | b'|' => elements(bytes, at, depth),
        b'>' if depth == 0 => elements(bytes, at, depth),
        _ => Parsed::Malformed,
    }
}

fn elements(bytes: &[u8], at: usize, depth: usize) -> Parsed {
    let (count, mut at_element) = match length(bytes, at + 1) {
        Ok((count, body)) => (count.unwrap_or(0), body),
        Err(other) => return other,
    };
    let count = match bytes[at] {
        b'%' => 2 * count,
        b'|' => 2 * count + 1,
        _ => count,
    };
    if count > 1_000_000 {
        return Parsed::TooDeep;
    }
    for _ in 0..count {
        match element(bytes, at_element, depth + 1) {
            Parsed::End(end) => at_element = end,
            other => return other,
        }
    }
    Parsed::End(at_element)
}

/// The end of a line that begins at `at`.
fn line(bytes: &[u8], at: usize) -> Parsed {
    let rest = &bytes[at.min(bytes.len())..];
    match rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        None => Parsed::Incomplete,
        Some(end) if rest[end] == b'\n' => Parsed::Malformed,
        Some(end) => match rest.get(end + 1) {
            None => Parsed::Incomplete,
            Some(b'\n') => Parsed::End(at + end + 2),
            Some(_) => Parsed::Malformed,
        },
    }
}

/// A length and where its line ends; no length for -1.
fn length(bytes: &[u8], at: usize) -> Result<(Option<u64>, usize), Parsed> {
    let rest = &bytes[at..];
    let digits = rest
        .iter()
        .position(|byte| *byte == b'\r')
        .unwrap_or(rest.len());
    let text = &rest[..digits];
    let number = text.strip_prefix(b"-").unwrap_or(text);
    if !number.iter().all(u8::is_ascii_digit) {
        return Err(Parsed::Malformed);
    }
    let value = number.iter().fold(0u128, |value, digit| {
        (value * 10 + u128::from(digit - b'0')).min(1 << 100)
    });
    if value > u128::from(ReplyScanner::MOST) {
        return Err(Parsed::Malformed);
    }
    match line(bytes, at) {
        Parsed::End(_) | Parsed::Malformed if number.is_empty() => Err(Parsed::Malformed),
        Parsed::End(end) if text.len() > number.len() => match value {
            1 => Ok((None, end)),
            _ => Err(Parsed::Malformed),
        },
        Parsed::End(end) => Ok((Some(value as u64), end)),
        // The byte after the number says that it is none before the byte after that is there.
        Parsed::Incomplete
            if digits < rest.len()
                && (number.is_empty() || text.len() > number.len() && value != 1) =>
        {
            Err(Parsed::Malformed)
        }
        other => Err(other),
    }
}

fn string(bytes: &[u8], at: usize, length: u64) -> Parsed {
    let rest = &bytes[at..];
    let Some(end) = usize::try_from(length)
        .ok()
        .filter(|end| *end <= rest.len())
    else {
        return Parsed::Incomplete;
    };
    match (rest.get(end), rest.get(end + 1)) {
        (None, _) => Parsed::Incomplete,
        (Some(b'\r'), None) => Parsed::Incomplete,
        (Some(b'\r'), Some(b'\n')) => Parsed::End(at + end + 2),
        _ => Parsed::Malformed,
    }
}
