//! Where a request ends.
//!
//! Nothing here allocates or panics, and no byte is looked at twice: what is known of a request
//! that is still coming in stays in its [`Progress`].
//!
//! ```text
//!              ┌── first byte '*' ──▶ count line ──▶ length line ──▶ bulk string ──┐
//!  Progress ───┤                                         ▲                         ├──▶ the last one: found
//!  (default)   │                                         └───── one more ──────────┘
//!              └── else ────────────▶ line of words ───────────────────────────────────▶ found
//! ```

use super::inline;
use super::integer::integer;
use super::protocol_error::ProtocolError;

/// The longest inline command, and the longest line with a number, in bytes.
pub const LONGEST_LINE: usize = 64 << 10;

/// The most arguments of a request, its command included.
pub const MOST_ARGUMENTS: i64 = i32::MAX as i64;

/// The longest argument by default, in bytes (Redis: `proto-max-bulk-len`).
pub const LONGEST_BULK: usize = 512 << 20;

/// What is known of a request that has not come in whole.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// The present line begins here,
    line: usize,
    /// and does not end before this place.
    looked: usize,
    /// The present bulk string ends here. 0: a line is being read.
    end: usize,
    /// Bulk strings that have not come in whole. 0: the first line is being read.
    bulks: u32,
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The beginning of a request; more bytes are needed.
    Incomplete,
    /// An empty request, which gets no reply: a line without words, an array without elements.
    Nothing {
        /// How many bytes it is.
        length: usize,
    },
    /// A request.
    Request {
        /// How many bytes it is.
        length: usize,
    },
    /// No request.
    Malformed {
        /// With how many bytes that was certain.
        length: usize,
        /// What is wrong.
        error: ProtocolError,
    },
}

/// Looks for a request at the start of `bytes`, whose arguments have at most `longest_bulk` bytes
/// each. `progress` is what earlier calls with the beginning of the same bytes have left; the
/// default for a new request.
#[inline]
pub fn find(bytes: &[u8], progress: &mut Progress, longest_bulk: usize) -> Found {
    match bytes.first() {
        None => Found::Incomplete,
        Some(b'*') => find_array(bytes, progress, longest_bulk),
        Some(_) => find_words(bytes, progress),
    }
}

fn find_array(bytes: &[u8], progress: &mut Progress, longest_bulk: usize) -> Found {
    if progress.bulks == 0 {
        let (line, next) = match next_line(bytes, progress) {
            Line::Whole { line, next } => (line, next),
            Line::Part => return Found::Incomplete,
            Line::TooLong { length } => return malformed(length, ProtocolError::TooBigCount),
        };
        match integer(&line[1..]) {
            Some(..=0) => return Found::Nothing { length: next },
            Some(count @ 1..=MOST_ARGUMENTS) => progress.bulks = count as u32,
            _ => return malformed(next, ProtocolError::InvalidCount),
        }
        progress.begin_line(next);
    }
    loop {
        if progress.end == 0 {
            let (line, next) = match next_line(bytes, progress) {
                Line::Whole { line, next } => (line, next),
                Line::Part => return Found::Incomplete,
                Line::TooLong { length } => return malformed(length, ProtocolError::TooBigLength),
            };
            let Some(digits) = line.strip_prefix(b"$") else {
                // A line that is empty begins with its own end.
                return malformed(next, ProtocolError::ExpectedBulk(bytes[progress.line]));
            };
            match integer(digits).map(usize::try_from) {
                Some(Ok(length)) if length <= longest_bulk => {
                    progress.end = next.saturating_add(length).saturating_add(2);
                }
                _ => return malformed(next, ProtocolError::InvalidLength),
            }
        }
        if bytes.len() < progress.end {
            return Found::Incomplete;
        }
        progress.bulks -= 1;
        progress.begin_line(progress.end);
        if progress.bulks == 0 {
            return Found::Request {
                length: progress.line,
            };
        }
    }
}

fn find_words(bytes: &[u8], progress: &mut Progress) -> Found {
    let within = &bytes[..bytes.len().min(LONGEST_LINE + 1)];
    let Some(end) = position(b'\n', within, progress) else {
        return if within.len() > LONGEST_LINE {
            malformed(within.len(), ProtocolError::TooBigInline)
        } else {
            Found::Incomplete
        };
    };
    let length = end + 1;
    match inline::count_words(&bytes[..length]) {
        Ok(0) => Found::Nothing { length },
        Ok(_) => Found::Request { length },
        Err(error) => malformed(length, error),
    }
}

fn malformed(length: usize, error: ProtocolError) -> Found {
    Found::Malformed { length, error }
}

impl Progress {
    fn begin_line(&mut self, at: usize) {
        (self.line, self.looked, self.end) = (at, at, 0);
    }
}

enum Line<'a> {
    /// What stands before its `\r`, and where the next one begins.
    Whole { line: &'a [u8], next: usize },
    /// Its end has not come in.
    Part,
    /// It is too long, as the first `length` bytes of the request show.
    TooLong { length: usize },
}

fn next_line<'a>(bytes: &'a [u8], progress: &mut Progress) -> Line<'a> {
    let start = progress.line;
    let within = &bytes[..bytes.len().min(start + LONGEST_LINE + 1)];
    match position(b'\r', within, progress) {
        Some(end) if end + 2 <= bytes.len() => Line::Whole {
            line: &bytes[start..end],
            next: end + 2,
        },
        None if within.len() - start > LONGEST_LINE => Line::TooLong {
            length: within.len(),
        },
        _ => Line::Part,
    }
}

/// Where `byte` comes first, looked for where no search has been before.
fn position(byte: u8, bytes: &[u8], progress: &mut Progress) -> Option<usize> {
    let offset = bytes[progress.looked..].iter().position(|&b| b == byte);
    progress.looked = offset.map_or(bytes.len(), |offset| progress.looked + offset);
    offset.map(|_| progress.looked)
}
