//! RESP: requests whole, in pieces and malformed, and replies in both versions.

use proptest::prelude::*;
use shinjuku_net::resp::{
    Found, LONGEST_BULK, LONGEST_LINE, Progress, Protocol, ProtocolError, Writer, arguments,
    arguments_in_parts, find,
};

fn whole(bytes: &[u8]) -> Found {
    find(bytes, &mut Progress::default(), LONGEST_BULK)
}

/// What is found when the bytes come in one by one, and after how many of them.
fn byte_by_byte(bytes: &[u8]) -> Found {
    let mut progress = Progress::default();
    (0..=bytes.len())
        .map(|length| find(&bytes[..length], &mut progress, LONGEST_BULK))
        .find(|found| *found != Found::Incomplete)
        .unwrap_or(Found::Incomplete)
}

fn words(frame: &[u8]) -> Vec<Vec<u8>> {
    let arguments = arguments(frame).unwrap();
    let expected = arguments.len();
    let words: Vec<_> = arguments.map(|word| word.into_owned()).collect();
    assert_eq!(words.len(), expected);
    words
}

fn array(words: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, Protocol::Resp2);
    writer.array(words.len()).unwrap();
    for word in words {
        writer.bulk(word).unwrap();
    }
    out
}

#[test]
fn requests_end_where_they_should() {
    for (request, expected) in [
        (&b"*1\r\n$4\r\nPING\r\n"[..], &["PING"][..]),
        (b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n", &["GET", ""]),
        (b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n", &["GET", "a\r\nb"]),
        // As in Redis, no one looks at what ends a line or a bulk string.
        (b"*1\rx$4\ryPING??", &["PING"]),
        (b"PING\r\n", &["PING"]),
        (b"PING\n", &["PING"]),
        (b"  set\tkey   value \r\n", &["set", "key", "value"]),
        (br#"set "a b" 'c d'"#, &["set", "a b", "c d"]),
        (br#"set "\x41\n\q\"" '\n\''"#, &["set", "A\nq\"", "\\n'"]),
        (br#"a"b c" ''"#, &["ab c", ""]),
    ] {
        let line_end: &[u8] = if request[0] == b'*' || request.ends_with(b"\n") {
            b""
        } else {
            b"\r\n"
        };
        let request = [request, line_end].concat();
        let length = request.len();
        assert_eq!(whole(&request), Found::Request { length });
        assert_eq!(byte_by_byte(&request), Found::Request { length });
        assert_eq!(
            whole(&[&request[..], b"*1\r"].concat()),
            Found::Request { length }
        );
        assert!(
            words(&request)
                .iter()
                .eq(expected.iter().map(|word| word.as_bytes()))
        );
    }
}

#[test]
fn empty_requests_are_skipped() {
    for (request, length) in [
        (&b"\r\nPING\r\n"[..], 2),
        (b"\n", 1),
        (b" \t\r\n", 4),
        (b"*0\r\n*1", 4),
        (b"*-1\r\n", 5),
        (b"*-9\r\n", 5),
    ] {
        assert_eq!(whole(request), Found::Nothing { length });
        assert_eq!(byte_by_byte(request), Found::Nothing { length });
    }
}

#[test]
fn malformed_requests_are_told_apart() {
    use ProtocolError::*;
    let long = |head: &str| [head.as_bytes(), &[b'1'; LONGEST_LINE + 1]].concat();
    for (request, expected, text) in [
        (b"*x\r\n".to_vec(), InvalidCount, "invalid multibulk length"),
        (b"*\r\n".to_vec(), InvalidCount, "invalid multibulk length"),
        (
            b"*2147483648\r\n".to_vec(),
            InvalidCount,
            "invalid multibulk length",
        ),
        (
            b"*99999999999999999999\r\n".to_vec(),
            InvalidCount,
            "invalid multibulk length",
        ),
        (
            b"*1\r\nGET\r\n".to_vec(),
            ExpectedBulk(b'G'),
            "expected '$', got 'G'",
        ),
        (
            b"*1\r\n\r\n".to_vec(),
            ExpectedBulk(b'\r'),
            "expected '$', got '\\r'",
        ),
        (
            b"*1\r\n$-1\r\n".to_vec(),
            InvalidLength,
            "invalid bulk length",
        ),
        (
            b"*1\r\n$536870913\r\n".to_vec(),
            InvalidLength,
            "invalid bulk length",
        ),
        (
            b"*2\r\n$1\r\na\r\n$01\r\n".to_vec(),
            InvalidLength,
            "invalid bulk length",
        ),
        (
            b"get \"a\r\n".to_vec(),
            UnbalancedQuotes,
            "unbalanced quotes in request",
        ),
        (
            b"get 'a'b\r\n".to_vec(),
            UnbalancedQuotes,
            "unbalanced quotes in request",
        ),
        (
            b"get \"a\\\r\n".to_vec(),
            UnbalancedQuotes,
            "unbalanced quotes in request",
        ),
        (long(""), TooBigInline, "too big inline request"),
        (long("*"), TooBigCount, "too big mbulk count string"),
        (long("*1\r\n$"), TooBigLength, "too big bulk count string"),
    ] {
        let Found::Malformed { length, error } = whole(&request) else {
            panic!("{}: {:?}", request.escape_ascii(), whole(&request));
        };
        assert_eq!(error, expected);
        assert_eq!(error.to_string(), format!("Protocol error: {text}"));
        assert_eq!(byte_by_byte(&request), whole(&request));
        // The handler, which knows no limits, finds the same.
        assert_eq!(arguments(&request[..length]).unwrap_err(), expected);
    }
}

#[test]
fn what_is_announced_is_only_waited_for() {
    let request = b"*2147483647\r\n$536870912\r\nabc";
    assert_eq!(whole(request), Found::Incomplete);
    assert_eq!(byte_by_byte(request), Found::Incomplete);
    let mut progress = Progress::default();
    assert_eq!(
        find(b"*2\r\n$1\r\na\r\n$11\r\n", &mut progress, 10),
        Found::Malformed {
            length: 16,
            error: ProtocolError::InvalidLength
        }
    );
}

#[test]
fn long_requests_are_read_in_parts() {
    let sent: Vec<Vec<u8>> = (0..20_000)
        .map(|number: u32| number.to_le_bytes().into())
        .collect();
    let request = array(&sent);
    let mut parts = 0;
    let read = arguments_in_parts(&request, || parts += 1).unwrap();
    assert!(read.eq(sent.iter().map(|word| &word[..])));
    assert_eq!(parts, request.len() / (32 << 10));
    // What follows is not of this request.
    let twice = request.repeat(2);
    assert!(
        arguments_in_parts(&twice, || ())
            .unwrap()
            .eq(sent.iter().map(|word| &word[..]))
    );
    let cut = arguments_in_parts(&request[..request.len() - 1], || ());
    assert_eq!(cut.unwrap_err(), ProtocolError::InvalidLength);
}

#[test]
fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
    let line = |length: usize| [&vec![b'a'; length][..], b"\n"].concat();
    let length = LONGEST_LINE + 1;
    assert_eq!(whole(&line(LONGEST_LINE)), Found::Request { length });
    let error = ProtocolError::TooBigInline;
    assert_eq!(
        whole(&line(LONGEST_LINE + 1)),
        Found::Malformed { length, error }
    );
    assert_eq!(
        byte_by_byte(&line(LONGEST_LINE + 1)),
        Found::Malformed { length, error }
    );
}

/// What `write` writes, in both versions.
fn written(write: impl Fn(&mut Writer<'_, Vec<u8>>) -> std::io::Result<()>) -> [String; 2] {
    [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, protocol)).unwrap();
        String::from_utf8(out).unwrap()
    })
}

#[test]
fn replies_are_written_in_the_version_asked_for() {
    let same = |text: &str| [text.to_owned(), text.to_owned()];
    let differ = |resp2: &str, resp3: &str| [resp2.to_owned(), resp3.to_owned()];
    assert_eq!(written(|out| out.simple(b"OK")), same("+OK\r\n"));
    assert_eq!(
        written(|out| out.error(b"ERR a\r\nb")),
        same("-ERR a  b\r\n")
    );
    for number in [0, 7, -7, 10, i64::MAX, i64::MIN] {
        assert_eq!(
            written(|out| out.integer(number)),
            same(&format!(":{number}\r\n"))
        );
    }
    assert_eq!(written(|out| out.bulk(b"")), same("$0\r\n\r\n"));
    assert_eq!(written(|out| out.bulk(b"a\r\nb")), same("$4\r\na\r\nb\r\n"));
    assert_eq!(written(|out| out.array(12)), same("*12\r\n"));
    assert_eq!(written(|out| out.null()), differ("$-1\r\n", "_\r\n"));
    assert_eq!(written(|out| out.null_array()), differ("*-1\r\n", "_\r\n"));
    assert_eq!(written(|out| out.map(3)), differ("*6\r\n", "%3\r\n"));
    assert_eq!(written(|out| out.set(3)), differ("*3\r\n", "~3\r\n"));
    assert_eq!(written(|out| out.boolean(true)), differ(":1\r\n", "#t\r\n"));
    assert_eq!(
        written(|out| out.boolean(false)),
        differ(":0\r\n", "#f\r\n")
    );
    assert_eq!(
        written(|out| out.text(b"hi")),
        differ("$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n")
    );
    assert_eq!(
        written(|out| out.double(-0.5)),
        differ("$4\r\n-0.5\r\n", ",-0.5\r\n")
    );
    assert_eq!(
        written(|out| out.double(f64::INFINITY)),
        differ("$3\r\ninf\r\n", ",inf\r\n")
    );
    assert_eq!(
        written(|out| out.double(f64::NAN)),
        differ("$3\r\nnan\r\n", ",nan\r\n")
    );
    for number in [f64::MAX, f64::MIN, -f64::MIN_POSITIVE, -5e-324] {
        let text = format!("{number}");
        let resp2 = format!("${}\r\n{text}\r\n", text.len());
        assert_eq!(
            written(|out| out.double(number)),
            [resp2, format!(",{text}\r\n")]
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arguments_come_back_as_they_were(
        sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..8)
    ) {
        let request = array(&sent);
        prop_assert_eq!(byte_by_byte(&request), Found::Request { length: request.len() });
        prop_assert_eq!(words(&request), sent);
    }

    #[test]
    fn words_in_double_quotes_come_back_as_they_were(
        sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..8)
    ) {
        let quote = |word: &Vec<u8>| {
            let escaped: String = word.iter().map(|byte| format!("\\x{byte:02X}")).collect();
            format!("\"{escaped}\"")
        };
        let line = sent.iter().map(quote).collect::<Vec<_>>().join(" ") + "\r\n";
        prop_assert_eq!(byte_by_byte(line.as_bytes()), Found::Request { length: line.len() });
        prop_assert_eq!(words(line.as_bytes()), sent);
    }
}
