//! Where replies end: the client's side of RESP2 and RESP3.
//!
//! A [`ReplyScanner`] reads a connection's bytes in whatever pieces they come, and says where each
//! reply ends and whether it is an error. It keeps nothing of a reply but the beginning of an
//! error's text: a reply of any length costs the same memory, and nothing is allocated.
//!
//! ```text
//!            + - : _ # , (                                     any byte
//!   Type ──────────────────▶ Line ──\r──▶ LineEnd ──\n──▶ (an element ends)
//!    │  $ ! = * ~ % > |
//!    └─────────────────────▶ Length ──\r──▶ LengthEnd ──\n──┬──▶ Body ──▶ BodyEnd ──\r\n──▶ (an element ends)
//!                              ▲ digits │                   └──▶ (an aggregate: so many more elements)
//!                              └────────┘
//! ```
//!
//! Nesting needs no stack: an aggregate of n elements adds n to the number of elements still to
//! come, and the reply ends where that number is zero. Source: the protocol's specification
//! (redis.io, "Redis serialization protocol").

/// What a reply is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReplyKind {
    /// A value of any type, null included; and whatever has attributes (RESP3 `|`).
    Value,
    /// An error (`-` or `!`); its text is [`ReplyScanner::error_text`]. Errors inside an array do
    /// not make it one.
    Error,
    /// A message the server pushed (RESP3 `>`): it answers no request.
    Push,
}

/// A reply that breaks the protocol. Where the next would begin cannot be told: close the
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedReply {
    /// A byte that begins no type.
    #[error("byte {0:#04x} begins no reply: the server does not speak RESP")]
    Type(u8),
    /// A length that is no number.
    #[error("byte {0:#04x} in a reply's length")]
    Length(u8),
    /// A length without digits, or a negative one other than -1.
    #[error("a reply's length is missing or negative")]
    NoLength,
    /// More than [`ReplyScanner::MOST`] bytes or elements.
    #[error("a reply announces more than {} bytes or elements", ReplyScanner::MOST)]
    TooLong,
    /// Something else where a line or a string had to end with CR LF.
    #[error("byte {0:#04x} where a reply's line or string must end")]
    End(u8),
}

/// Finds the ends of replies. See the [module](self).
#[derive(Clone, Debug)]
pub struct ReplyScanner {
    state: State,
    /// Elements of the present reply still to come, the present one included; 0 between replies.
    open: u64,
    /// What the present reply is, by its first element.
    kind: ReplyKind,
    error: [u8; Self::ERROR_TEXT],
    error_length: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Type,
    Line,
    LineEnd,
    Length {
        of: Counted,
        value: u64,
        digits: bool,
        negative: bool,
    },
    LengthEnd {
        of: Counted,
        value: u64,
        null: bool,
    },
    Body {
        left: u64,
    },
    BodyReturn,
    BodyEnd,
    Broken(MalformedReply),
}

/// What a length counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counted {
    Bytes,
    Elements,
    /// Of keys and values: two elements each.
    Pairs,
    /// Pairs that describe the element after them.
    Attributes,
}

impl ReplyScanner {
    /// The longest string and the most elements of an aggregate that are believed: 2^40.
    pub const MOST: u64 = 1 << 40;

    /// How much of an error's text is kept, in bytes.
    pub const ERROR_TEXT: usize = 120;

    /// A scanner at the beginning of a connection.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Type,
            open: 0,
            kind: ReplyKind::Value,
            error: [0; Self::ERROR_TEXT],
            error_length: 0,
        }
    }

    /// Reads `bytes`, the next of the connection, up to the end of a reply: how many were read, and
    /// what the reply is if one ended there. Without an end all bytes are read.
    ///
    /// # Errors
    /// The bytes break the protocol. So do all that follow.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<(usize, Option<ReplyKind>), MalformedReply> {
        let mut at = 0;
        while at < bytes.len() {
            if let State::Body { left } = &mut self.state {
                // The one state that takes many bytes at once: replies are mostly strings.
                let rest = &bytes[at..];
                let taken = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                let ended = *left == 0;
                self.keep_error_text(&rest[..taken]);
                if ended {
                    self.state = State::BodyReturn;
                }
                at += taken;
                continue;
            }
            let byte = bytes[at];
            at += 1;
            match self.step(byte) {
                Ok(false) => {}
                Ok(true) => return Ok((at, Some(self.kind))),
                Err(malformed) => {
                    self.state = State::Broken(malformed);
                    return Err(malformed);
                }
            }
        }
        Ok((at, None))
    }

    /// The beginning of the last error's text, without its type byte.
    #[must_use]
    pub fn error_text(&self) -> &[u8] {
        &self.error[..self.error_length]
    }

    /// Takes one byte; whether a reply ended with it.
    fn step(&mut self, byte: u8) -> Result<bool, MalformedReply> {
        match self.state {
            State::Type => self.begin(byte)?,
            State::Line => match byte {
                b'\r' => self.state = State::LineEnd,
                b'\n' => return Err(MalformedReply::End(byte)),
                _ => self.keep_error_text(&[byte]),
            },
            State::LineEnd | State::BodyEnd => {
                expect(b'\n', byte)?;
                return Ok(self.element_ended());
            }
            State::BodyReturn => {
                expect(b'\r', byte)?;
                self.state = State::BodyEnd;
            }
            State::Length {
                of,
                value,
                digits,
                negative,
            } => self.state = length(of, value, digits, negative, byte)?,
            State::LengthEnd { of, value, null } => {
                expect(b'\n', byte)?;
                return self.counted(of, value, null);
            }
            // Its bytes are taken in `advance`.
            State::Body { .. } => {}
            State::Broken(malformed) => return Err(malformed),
        }
        Ok(false)
    }

    /// The first byte of an element.
    fn begin(&mut self, byte: u8) -> Result<(), MalformedReply> {
        let first = self.open == 0;
        let (of, kind) = match byte {
            b'+' | b':' | b'_' | b'#' | b',' | b'(' => (None, ReplyKind::Value),
            b'-' => (None, ReplyKind::Error),
            b'$' | b'=' => (Some(Counted::Bytes), ReplyKind::Value),
            b'!' => (Some(Counted::Bytes), ReplyKind::Error),
            b'*' | b'~' => (Some(Counted::Elements), ReplyKind::Value),
            b'>' if first => (Some(Counted::Elements), ReplyKind::Push),
            b'%' => (Some(Counted::Pairs), ReplyKind::Value),
            b'|' => (Some(Counted::Attributes), ReplyKind::Value),
            _ => return Err(MalformedReply::Type(byte)),
        };
        if first {
            self.open = 1;
            self.kind = kind;
            if kind == ReplyKind::Error {
                self.error_length = 0;
            }
        }
        self.state = match of {
            None => State::Line,
            Some(of) => State::Length {
                of,
                value: 0,
                digits: false,
                negative: false,
            },
        };
        Ok(())
    }

    /// A length has been read.
    fn counted(&mut self, of: Counted, value: u64, null: bool) -> Result<bool, MalformedReply> {
        let more = match of {
            Counted::Bytes if null => return Ok(self.element_ended()),
            Counted::Bytes => {
                self.state = if value == 0 {
                    State::BodyReturn
                } else {
                    State::Body { left: value }
                };
                return Ok(false);
            }
            Counted::Elements => value,
            Counted::Pairs => 2 * value,
            // The element that they describe is still to come.
            Counted::Attributes => 2 * value + 1,
        };
        // Neither sum nor product overflows: a reply has fewer than 2^40 aggregates of 2^41
        // elements before MOST stops it.
        self.open += more;
        if self.open > Self::MOST {
            return Err(MalformedReply::TooLong);
        }
        Ok(self.element_ended())
    }

    fn element_ended(&mut self) -> bool {
        self.state = State::Type;
        self.open -= 1;
        self.open == 0
    }

    fn keep_error_text(&mut self, text: &[u8]) {
        if self.kind == ReplyKind::Error {
            let room = &mut self.error[self.error_length..];
            let kept = text.len().min(room.len());
            room[..kept].copy_from_slice(&text[..kept]);
            self.error_length += kept;
        }
    }
}

impl Default for ReplyScanner {
    fn default() -> Self {
        Self::new()
    }
}

/// The state after one byte of a length.
fn length(
    of: Counted,
    value: u64,
    digits: bool,
    negative: bool,
    byte: u8,
) -> Result<State, MalformedReply> {
    match byte {
        b'0'..=b'9' => {
            let value = value * 10 + u64::from(byte - b'0');
            if value > ReplyScanner::MOST {
                return Err(MalformedReply::TooLong);
            }
            Ok(State::Length {
                of,
                value,
                digits: true,
                negative,
            })
        }
        b'-' if !digits && !negative => Ok(State::Length {
            of,
            value,
            digits,
            negative: true,
        }),
        // RESP2's nulls are strings and arrays of length -1.
        b'\r' if digits && (!negative || value == 1) => Ok(State::LengthEnd {
            of,
            value: if negative { 0 } else { value },
            null: negative,
        }),
        b'\r' => Err(MalformedReply::NoLength),
        _ => Err(MalformedReply::Length(byte)),
    }
}

fn expect(wanted: u8, byte: u8) -> Result<(), MalformedReply> {
    if byte == wanted {
        Ok(())
    } else {
        Err(MalformedReply::End(byte))
    }
}
