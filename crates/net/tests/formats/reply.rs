//! Where replies end, however their bytes are split.

use proptest::prelude::*;
use shinjuku_net::resp::reply::{MalformedReply, ReplyKind, ReplyScanner};

/// A value of RESP2 or RESP3.
#[derive(Clone, Debug)]
enum Value {
    Line(u8, String),
    String(u8, Vec<u8>),
    Null(&'static str),
    Aggregate(u8, Vec<Value>),
    Pairs(u8, Vec<(Value, Value)>, Option<Box<Value>>),
}

impl Value {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Line(kind, text) => {
                out.push(*kind);
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Self::String(kind, bytes) => {
                out.push(*kind);
                out.extend_from_slice(format!("{}\r\n", bytes.len()).as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Null(text) => out.extend_from_slice(text.as_bytes()),
            Self::Aggregate(kind, values) => {
                out.push(*kind);
                out.extend_from_slice(format!("{}\r\n", values.len()).as_bytes());
                values.iter().for_each(|value| value.encode(out));
            }
            Self::Pairs(kind, pairs, described) => {
                out.push(*kind);
                out.extend_from_slice(format!("{}\r\n", pairs.len()).as_bytes());
                for (key, value) in pairs {
                    key.encode(out);
                    value.encode(out);
                }
                if let Some(value) = described {
                    value.encode(out);
                }
            }
        }
    }

    fn kind(&self) -> ReplyKind {
        match self {
            Self::Line(b'-', _) | Self::String(b'!', _) => ReplyKind::Error,
            Self::Aggregate(b'>', _) => ReplyKind::Push,
            _ => ReplyKind::Value,
        }
    }
}

fn values() -> impl Strategy<Value = Value> {
    let line = (prop::sample::select(b"+-:,#(".to_vec()), "[ -~]{0,40}");
    let string = (
        prop::sample::select(b"$!=".to_vec()),
        prop::collection::vec(any::<u8>(), 0..200),
    );
    let leaf = prop_oneof![
        line.prop_map(|(kind, text)| Value::Line(kind, text)),
        string.prop_map(|(kind, bytes)| Value::String(kind, bytes)),
        prop::sample::select(vec!["$-1\r\n", "*-1\r\n", "_\r\n"]).prop_map(Value::Null),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..5);
        let pairs = prop::collection::vec((inner.clone(), inner.clone()), 0..3);
        prop_oneof![
            (prop::sample::select(b"*~".to_vec()), list)
                .prop_map(|(kind, values)| Value::Aggregate(kind, values)),
            pairs
                .clone()
                .prop_map(|pairs| Value::Pairs(b'%', pairs, None)),
            (pairs, inner).prop_map(|(pairs, value)| Value::Pairs(
                b'|',
                pairs,
                Some(Box::new(value))
            )),
        ]
    })
}

/// What a scanner says of bytes that come in pieces: the ends with their kinds, and the error that
/// ended it.
fn scan(pieces: &[&[u8]]) -> (Vec<(usize, ReplyKind)>, Option<MalformedReply>, String) {
    let mut scanner = ReplyScanner::new();
    let (mut at, mut ends) = (0, Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            match scanner.advance(rest) {
                Ok((taken, end)) => {
                    assert!(taken > 0 && taken <= rest.len());
                    at += taken;
                    rest = &rest[taken..];
                    ends.extend(end.map(|kind| (at, kind)));
                }
                Err(malformed) => {
                    assert_eq!(
                        scanner.advance(b"+OK\r\n"),
                        Err(malformed),
                        "broken for good"
                    );
                    let text = String::from_utf8_lossy(scanner.error_text()).into_owned();
                    return (ends, Some(malformed), text);
                }
            }
        }
    }
    let text = String::from_utf8_lossy(scanner.error_text()).into_owned();
    (ends, None, text)
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

proptest! {
    #[test]
    fn replies_end_where_they_were_made_to(
        replies in prop::collection::vec(values(), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for reply in &replies {
            reply.encode(&mut bytes);
            expected.push((bytes.len(), reply.kind()));
        }
        let (ends, malformed, _) = scan(&pieces(&bytes, &cuts));
        prop_assert_eq!(malformed, None);
        prop_assert_eq!(ends, expected);
    }

    #[test]
    fn any_bytes_mean_the_same_in_any_pieces(
        bytes in prop::collection::vec(
            prop_oneof![prop::sample::select(b"*$+-:_%|>~!=\r\n0123".to_vec()), any::<u8>()], 0..300),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let whole = scan(&[&bytes]);
        let single: Vec<_> = bytes.chunks(1).collect();
        prop_assert_eq!(&scan(&pieces(&bytes, &cuts)), &whole);
        prop_assert_eq!(&scan(&single), &whole);
    }
}

#[test]
fn an_errors_text_is_kept_up_to_its_bound() {
    let (ends, _, text) = scan(&[b"-ERR unknown command\r\n"]);
    assert_eq!(ends, [(22, ReplyKind::Error)]);
    assert_eq!(text, "ERR unknown command");
    let long = format!("!500\r\n{}\r\n", "e".repeat(500));
    assert_eq!(scan(&[long.as_bytes()]).2.len(), ReplyScanner::ERROR_TEXT);
    let (_, _, text) = scan(&[b"-first\r\n-second\r\n"]);
    assert_eq!(text, "second");
}

#[test]
fn pushed_messages_are_told_from_replies() {
    let (ends, malformed, _) = scan(&[b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n:1\r\n"]);
    assert_eq!(ends, [(28, ReplyKind::Push), (32, ReplyKind::Value)]);
    assert_eq!(malformed, None);
}

#[test]
fn what_breaks_the_protocol_is_named() {
    let error = |bytes: &[u8]| scan(&[bytes]).1;
    assert_eq!(error(b"HTTP/1.1"), Some(MalformedReply::Type(b'H')));
    assert_eq!(error(b"$1x\r\n"), Some(MalformedReply::Length(b'x')));
    assert_eq!(error(b"$\r\n"), Some(MalformedReply::NoLength));
    assert_eq!(error(b"$-2\r\n"), Some(MalformedReply::NoLength));
    assert_eq!(
        error(b"*99999999999999999999\r\n"),
        Some(MalformedReply::TooLong)
    );
    assert_eq!(error(b"$1\r\nab"), Some(MalformedReply::End(b'b')));
    assert_eq!(error(b"+a\n"), Some(MalformedReply::End(b'\n')));
    assert_eq!(error(b"*1\r\n>0\r\n"), Some(MalformedReply::Type(b'>')));
}

#[test]
fn nested_announcements_add_up_and_are_bounded() {
    let mut bytes = format!("*{}\r\n", ReplyScanner::MOST - 1);
    assert_eq!(scan(&[bytes.as_bytes()]), (vec![], None, String::new()));
    bytes += &format!("*{}\r\n", ReplyScanner::MOST);
    assert_eq!(scan(&[bytes.as_bytes()]).1, Some(MalformedReply::TooLong));
}
