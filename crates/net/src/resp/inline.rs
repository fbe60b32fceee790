//! Inline commands: words, some of them in quotes, as Redis splits them (`sdssplitargs`).
//!
//! | in | is read as |
//! |---|---|
//! | no quotes | all up to the next blank; a quote begins a quoted part, with which the word ends |
//! | `"..."` | `\n` `\r` `\t` `\b` `\a`, `\x` and two hexadecimal digits; a backslash before any other byte is dropped |
//! | `'...'` | all as it is, but `\'` is a quote |

use std::borrow::Cow;

use super::protocol_error::ProtocolError;

/// The words of a line, in order. Nothing comes after an error.
#[derive(Clone, Debug)]
pub(super) struct Words<'a> {
    rest: &'a [u8],
}

/// How many words `line` has.
///
/// # Errors
/// [`ProtocolError::UnbalancedQuotes`].
pub(super) fn count_words(line: &[u8]) -> Result<usize, ProtocolError> {
    let mut words = Words::new(line);
    let mut count = 0;
    while let Some(word) = words.next_with(&mut Nowhere) {
        word?;
        count += 1;
    }
    Ok(count)
}

/// The first word of `line` as it stands there.
pub(super) fn first_word(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|&byte| !is_blank(byte));
    let word = &line[start.unwrap_or(line.len())..];
    let end = word.iter().position(|&byte| ends_word(byte));
    &word[..end.unwrap_or(word.len())]
}

impl<'a> Words<'a> {
    /// The words of `line`, with or without its end.
    pub(super) fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    /// The next word: as it stands there, or, if there are quotes in it, as they are meant.
    pub(super) fn next(&mut self) -> Option<Result<Cow<'a, [u8]>, ProtocolError>> {
        let mut bytes = Vec::new();
        Some(match self.next_with(&mut bytes)? {
            Ok(Some(plain)) => Ok(Cow::Borrowed(plain)),
            Ok(None) => Ok(Cow::Owned(bytes)),
            Err(error) => Err(error),
        })
    }

    /// The next word, if there are no quotes in it; otherwise its bytes have gone to `sink`.
    fn next_with(
        &mut self,
        sink: &mut impl Sink,
    ) -> Option<Result<Option<&'a [u8]>, ProtocolError>> {
        let start = self.rest.iter().position(|&byte| !is_blank(byte))?;
        let word = &self.rest[start..];
        let plain = word
            .iter()
            .position(|&byte| ends_word(byte) || is_quote(byte))
            .unwrap_or(word.len());
        if !word.get(plain).is_some_and(|&byte| is_quote(byte)) {
            self.rest = &word[plain..];
            return Some(Ok(Some(&word[..plain])));
        }
        word[..plain].iter().for_each(|&byte| sink.push(byte));
        match quoted(&word[plain..], sink) {
            Some(rest) => {
                self.rest = rest;
                Some(Ok(None))
            }
            None => {
                self.rest = &[];
                Some(Err(ProtocolError::UnbalancedQuotes))
            }
        }
    }
}

/// Reads the quoted part that `text` begins with; what comes after it, unless the quotes are
/// unbalanced.
fn quoted<'a>(text: &'a [u8], sink: &mut impl Sink) -> Option<&'a [u8]> {
    let (&quote, mut text) = text.split_first()?;
    loop {
        text = match (quote, text) {
            (b'"', [b'\\', b'x', high, low, rest @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                sink.push(hexadecimal(*high) << 4 | hexadecimal(*low));
                rest
            }
            // The line's end is not escaped but ends the line.
            (_, [] | [b'\n', ..]) => return None,
            (b'"', [b'\\', escaped, rest @ ..]) if *escaped != b'\n' => {
                sink.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest
            }
            (b'\'', [b'\\', b'\'', rest @ ..]) => {
                sink.push(b'\'');
                rest
            }
            (_, [end, rest @ ..]) if *end == quote => {
                return rest
                    .first()
                    .is_none_or(|&byte| is_blank(byte))
                    .then_some(rest);
            }
            (_, [byte, rest @ ..]) => {
                sink.push(*byte);
                rest
            }
        }
    }
}

/// Where the bytes of a word with quotes go.
trait Sink {
    fn push(&mut self, byte: u8);
}

struct Nowhere;

impl Sink for Nowhere {
    fn push(&mut self, _: u8) {}
}

impl Sink for Vec<u8> {
    fn push(&mut self, byte: u8) {
        Vec::push(self, byte);
    }
}

fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'')
}

/// What may stand between words, and must after a closing quote.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Redis ends words at fewer bytes than it skips between them.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// The value of a digit.
fn hexadecimal(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
