//! What can be wrong with a request's form.

use std::fmt;
use std::io;

/// A request is malformed. Its client is told, and its connection closed: where the next request
/// begins is not known.
///
/// Displays as the text of Redis's error reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// An inline command without an end.
    TooBigInline,
    /// An inline command ends within quotes, or a closing quote does not end a word.
    UnbalancedQuotes,
    /// The line that shall tell the number of arguments has no end.
    TooBigCount,
    /// The number of arguments is not a number, or too large.
    InvalidCount,
    /// The line that shall tell an argument's length has no end.
    TooBigLength,
    /// An argument begins with this byte instead of a dollar sign.
    ExpectedBulk(u8),
    /// An argument's length is not a number, negative, or too large.
    InvalidLength,
}

impl ProtocolError {
    /// Writes the error reply, as Redis words it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(self, out: &mut impl io::Write) -> io::Result<()> {
        out.write_all(b"-ERR ")?;
        match self {
            // The byte goes out as it came, unless it would end the line.
            Self::ExpectedBulk(byte) => {
                let byte = if matches!(byte, b'\r' | b'\n') {
                    b' '
                } else {
                    byte
                };
                out.write_all(b"Protocol error: expected '$', got '")?;
                out.write_all(&[byte, b'\''])?;
            }
            error => out.write_all(error.text().as_bytes())?,
        }
        out.write_all(b"\r\n")
    }

    fn text(self) -> &'static str {
        match self {
            Self::TooBigInline => "Protocol error: too big inline request",
            Self::UnbalancedQuotes => "Protocol error: unbalanced quotes in request",
            Self::TooBigCount => "Protocol error: too big mbulk count string",
            Self::InvalidCount => "Protocol error: invalid multibulk length",
            Self::TooBigLength => "Protocol error: too big bulk count string",
            Self::ExpectedBulk(_) => "Protocol error: expected '$'",
            Self::InvalidLength => "Protocol error: invalid bulk length",
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())?;
        if let Self::ExpectedBulk(byte) = *self {
            write!(formatter, ", got '{}'", byte.escape_ascii())?;
        }
        Ok(())
    }
}

impl std::error::Error for ProtocolError {}
