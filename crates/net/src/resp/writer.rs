//! Replies, as the client's version of the protocol has them.

use std::io;

/// The version of the protocol that a client speaks; it chooses with `HELLO`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Protocol {
    /// RESP2.
    #[default]
    Resp2,
    /// RESP3: has types that RESP2 makes do without.
    Resp3,
}

impl Protocol {
    /// The version's number, as in `HELLO`.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Writes a reply. What consists of several values (arrays, sets, maps) is announced with their
/// number, and the values are written after it.
///
/// All methods fail as what they write to does: a reply may be longer than the transport holds.
#[derive(Debug)]
pub struct Writer<'a, W> {
    out: &'a mut W,
    protocol: Protocol,
}

impl<'a, W: io::Write> Writer<'a, W> {
    /// Writes to `out`.
    pub fn new(out: &'a mut W, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// The version that it writes.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// From now on it writes this version.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// What it writes to.
    pub fn get_mut(&mut self) -> &mut W {
        self.out
    }

    /// A line, such as `OK`. Line ends in it become spaces.
    ///
    /// # Errors
    /// Those of the output.
    pub fn simple(&mut self, text: &[u8]) -> io::Result<()> {
        self.line(b'+', text)
    }

    /// An error: its kind and what is wrong, such as `ERR syntax error`. Line ends in it become
    /// spaces.
    ///
    /// # Errors
    /// Those of the output.
    pub fn error(&mut self, text: &[u8]) -> io::Result<()> {
        self.line(b'-', text)
    }

    /// A number.
    ///
    /// # Errors
    /// Those of the output.
    pub fn integer(&mut self, number: i64) -> io::Result<()> {
        self.number(b':', number)
    }

    /// Bytes.
    ///
    /// # Errors
    /// Those of the output.
    pub fn bulk(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.number(b'$', bytes.len() as i64)?;
        self.out.write_all(bytes)?;
        self.out.write_all(b"\r\n")
    }

    /// `length` bytes, which are written in parts: a long loop may want to do something else in
    /// between.
    ///
    /// # Errors
    /// Those of the output.
    pub fn long_bulk(&mut self, length: usize) -> io::Result<LongBulk<'_, W>> {
        self.number(b'$', length as i64)?;
        Ok(LongBulk(self.out))
    }

    /// No value, where there could be bytes.
    ///
    /// # Errors
    /// Those of the output.
    pub fn null(&mut self) -> io::Result<()> {
        self.either(b"$-1\r\n", b"_\r\n")
    }

    /// No value, where there could be an array.
    ///
    /// # Errors
    /// Those of the output.
    pub fn null_array(&mut self) -> io::Result<()> {
        self.either(b"*-1\r\n", b"_\r\n")
    }

    /// An array; `length` values follow.
    ///
    /// # Errors
    /// Those of the output.
    pub fn array(&mut self, length: usize) -> io::Result<()> {
        self.number(b'*', length as i64)
    }

    /// A map; `length` times a key and its value follow.
    ///
    /// # Errors
    /// Those of the output.
    pub fn map(&mut self, length: usize) -> io::Result<()> {
        match self.protocol {
            Protocol::Resp2 => self.array(length * 2),
            Protocol::Resp3 => self.number(b'%', length as i64),
        }
    }

    /// A set; `length` values follow.
    ///
    /// # Errors
    /// Those of the output.
    pub fn set(&mut self, length: usize) -> io::Result<()> {
        match self.protocol {
            Protocol::Resp2 => self.array(length),
            Protocol::Resp3 => self.number(b'~', length as i64),
        }
    }

    /// A number with a fraction; the shortest digits that are read back as the same number.
    ///
    /// # Errors
    /// Those of the output.
    pub fn double(&mut self, number: f64) -> io::Result<()> {
        // 4 bytes more than any finite number takes.
        let mut text = [0; 332];
        let mut rest = &mut text[..];
        // RESP has these in lower case.
        if number.is_nan() {
            io::Write::write_all(&mut rest, b"nan")?;
        } else {
            io::Write::write_fmt(&mut rest, format_args!("{number}"))?;
        }
        let left = rest.len();
        let text = &text[..text.len() - left];
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => self.line(b',', text),
        }
    }

    /// Yes or no.
    ///
    /// # Errors
    /// Those of the output.
    pub fn boolean(&mut self, value: bool) -> io::Result<()> {
        if value {
            self.either(b":1\r\n", b"#t\r\n")
        } else {
            self.either(b":0\r\n", b"#f\r\n")
        }
    }

    /// A text for people: RESP3's verbatim string, of the kind `txt`.
    ///
    /// # Errors
    /// Those of the output.
    pub fn text(&mut self, text: &[u8]) -> io::Result<()> {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.number(b'=', text.len() as i64 + 4)?;
                self.out.write_all(b"txt:")?;
                self.out.write_all(text)?;
                self.out.write_all(b"\r\n")
            }
        }
    }

    fn either(&mut self, resp2: &[u8], resp3: &[u8]) -> io::Result<()> {
        self.out.write_all(match self.protocol {
            Protocol::Resp2 => resp2,
            Protocol::Resp3 => resp3,
        })
    }

    fn line(&mut self, kind: u8, text: &[u8]) -> io::Result<()> {
        self.out.write_all(&[kind])?;
        let mut parts = text.split(|byte| matches!(byte, b'\r' | b'\n'));
        self.out.write_all(parts.next().unwrap_or_default())?;
        for part in parts {
            self.out.write_all(b" ")?;
            self.out.write_all(part)?;
        }
        self.out.write_all(b"\r\n")
    }

    /// In one piece: the output may check its bounds at each.
    fn number(&mut self, kind: u8, number: i64) -> io::Result<()> {
        // A kind, 19 digits and a sign, a line's end.
        let mut line = [0; 23];
        let mut at = line.len() - 2;
        line[at..].copy_from_slice(b"\r\n");
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            line[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            line[at] = b'-';
        }
        at -= 1;
        line[at] = kind;
        self.out.write_all(&line[at..])
    }
}

/// Bytes of which all parts are to be written; see [`Writer::long_bulk`].
#[derive(Debug)]
#[must_use = "the reply is complete only at the end"]
pub struct LongBulk<'a, W>(&'a mut W);

impl<W: io::Write> LongBulk<'_, W> {
    /// The next ones.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&mut self, part: &[u8]) -> io::Result<()> {
        self.0.write_all(part)
    }

    /// All have been written.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(self) -> io::Result<()> {
        self.0.write_all(b"\r\n")
    }
}
