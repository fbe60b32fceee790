//! A command being executed: its arguments, its reply, how it can fail, and the session of its
//! connection.

use std::borrow::Cow;
use std::io;

use shinjuku::net::resp::{Arguments, Protocol, ProtocolError, Writer, integer};
use shinjuku::net::tcp::Output;
use shinjuku::preempt_point;

use crate::engine::EngineError;

/// A command being executed.
#[derive(Debug)]
pub struct Call<'a> {
    /// The arguments after the command that have not been taken yet.
    pub arguments: Arguments<'a>,
    /// Where the reply goes.
    pub reply: Writer<'a, Output>,
    /// The client's session.
    pub session: &'a mut Session,
    /// The client's connection.
    pub connection: u64,
    /// Whether the connection closes after the reply.
    pub close: bool,
}

/// Why a command has no proper reply. An error replaces what the command has written.
#[derive(Debug)]
pub enum Fault {
    /// The client made a mistake; the text is Redis's.
    Said(Cow<'static, [u8]>),
    /// The request is malformed.
    Protocol(ProtocolError),
    /// The engine failed.
    Engine(EngineError),
    /// The reply is longer than a reply may be.
    Reply(io::Error),
}

/// The result of a command.
pub type Outcome = Result<(), Fault>;

/// An option is unknown, or an argument is missing.
pub const SYNTAX: Fault = Fault::Said(Cow::Borrowed(b"ERR syntax error"));
/// An argument should be a number and is not.
pub const NOT_AN_INTEGER: Fault = Fault::Said(Cow::Borrowed(
    b"ERR value is not an integer or out of range",
));

impl Fault {
    /// The mistake in this text: the error's kind, and what is wrong.
    pub fn said(text: impl Into<Vec<u8>>) -> Self {
        Self::Said(Cow::Owned(text.into()))
    }

    /// `command` got too few or too many arguments.
    #[must_use]
    pub fn wrong_number(command: &str) -> Self {
        Self::said(format!(
            "ERR wrong number of arguments for '{command}' command"
        ))
    }

    /// Writes the error that the client gets.
    ///
    /// # Errors
    /// The errors of `output`.
    pub fn write_to(self, output: &mut Output) -> io::Result<()> {
        let text = match self {
            Self::Protocol(error) => return error.write_to(output),
            Self::Said(text) => text,
            Self::Engine(error) => format!("ERR {error}").into_bytes().into(),
            Self::Reply(error) => format!("ERR {error}").into_bytes().into(),
        };
        // Errors are the same in both versions of the protocol.
        Writer::new(output, Protocol::default()).error(&text)
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Reply(error)
    }
}

impl<'a> Call<'a> {
    /// The next argument, if there is one. There may be a million, so this has a probe now and
    /// then.
    pub fn take(&mut self) -> Option<Cow<'a, [u8]>> {
        if self.arguments.len() % 16 == 15 {
            preempt_point();
        }
        self.arguments.next()
    }

    /// How many arguments are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.arguments.len()
    }

    /// The next argument; without one, the syntax is wrong.
    ///
    /// # Errors
    /// [`SYNTAX`].
    pub fn argument(&mut self) -> Result<Cow<'a, [u8]>, Fault> {
        self.take().ok_or(SYNTAX)
    }

    /// The next argument, for keeping: it is copied here, where preemption is not yet held off.
    ///
    /// # Errors
    /// [`SYNTAX`].
    pub fn value(&mut self) -> Result<Cow<'a, [u8]>, Fault> {
        Ok(Cow::Owned(self.argument()?.into_owned()))
    }

    /// The next argument, a number.
    ///
    /// # Errors
    /// [`SYNTAX`], [`NOT_AN_INTEGER`].
    pub fn integer_argument(&mut self) -> Result<i64, Fault> {
        integer(&self.argument()?).ok_or(NOT_AN_INTEGER)
    }
}

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Session {
    /// The version of the protocol that the client has asked for.
    pub protocol: Protocol,
    /// The client's name.
    pub name: Name,
}

/// A client's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    length: u8,
    bytes: [u8; Name::LONGEST],
}

impl Name {
    /// The longest name, in bytes: a session is copied with each request.
    pub const LONGEST: usize = 63;

    /// `None` if the name is longer than [`LONGEST`](Self::LONGEST).
    #[must_use]
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::LONGEST];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self {
            length: name.len() as u8,
            bytes,
        })
    }

    /// The name as the client gave it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Default for Name {
    fn default() -> Self {
        Self {
            length: 0,
            bytes: [0; Self::LONGEST],
        }
    }
}
