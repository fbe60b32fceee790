//! RESP over [`tcp`](crate::tcp).

use std::fmt;
use std::marker::PhantomData;

use super::arguments::command;
use super::framing::{Found, LONGEST_BULK, Progress, find};
use crate::Refusal;
use crate::tcp::{Codec, Framing};

/// The [`Codec`] of servers that speak RESP. `Classify`, a closure, tells a request's class from
/// its command, the first argument as the client wrote it; `Session` is what the server keeps of a
/// connection.
///
/// The closure runs on the networker's thread: it must not allocate, wait or panic. It is not asked
/// about malformed requests, which are of class 0.
///
/// ```
/// use shinjuku_net::resp::Resp;
///
/// let class = |command: &[u8]| u16::from(command.eq_ignore_ascii_case(b"KEYS"));
/// let resp = Resp::<_, ()>::new(class).longest_bulk(1 << 20);
/// ```
pub struct Resp<Classify, Session> {
    classify: Classify,
    longest_bulk: usize,
    session: PhantomData<fn() -> Session>,
}

impl<Classify, Session> Resp<Classify, Session> {
    /// Requests have the class that `classify` says.
    pub fn new(classify: Classify) -> Self {
        Self {
            classify,
            longest_bulk: LONGEST_BULK,
            session: PhantomData,
        }
    }

    /// The most bytes that an argument may have, by default [`LONGEST_BULK`]. A client that
    /// announces a longer one is told so at once: set it to the transport's `max_request`, or less.
    #[must_use]
    pub fn longest_bulk(self, bytes: usize) -> Self {
        Self {
            longest_bulk: bytes,
            ..self
        }
    }
}

impl<Classify, Session> Codec for Resp<Classify, Session>
where
    Classify: Fn(&[u8]) -> u16 + Clone + Send + Sync + 'static,
    Session: Copy + Default + PartialEq + Send + 'static,
{
    type Progress = Progress;
    type Session = Session;

    fn frame(&self, bytes: &[u8], progress: &mut Progress, _: &Session) -> Framing {
        match find(bytes, progress, self.longest_bulk) {
            Found::Incomplete => Framing::Incomplete,
            Found::Nothing { length } => Framing::Skip { length },
            Found::Request { length } => {
                let class = (self.classify)(command(&bytes[..length]));
                Framing::Complete { length, class }
            }
            Found::Malformed { length, .. } => Framing::Last { length, class: 0 },
        }
    }

    fn refusal(&self, cause: Refusal) -> &'static [u8] {
        match cause {
            Refusal::QueueFull => b"-BUSY refused: the queue is full\r\n",
            Refusal::DeadlinePassed => b"-BUSY refused: not started by its deadline\r\n",
            Refusal::UnknownClass => b"-ERR refused: no such request class\r\n",
            Refusal::ShuttingDown => b"-ERR refused: the server is shutting down\r\n",
            Refusal::Cancelled => b"-ERR refused: cancelled before it started\r\n",
        }
    }

    fn failure(&self) -> &'static [u8] {
        b"-ERR the request handler panicked\r\n"
    }

    fn too_many_connections(&self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }

    fn too_long(&self) -> &'static [u8] {
        b"-ERR Protocol error: too big request\r\n"
    }
}

impl<Classify: Clone, Session> Clone for Resp<Classify, Session> {
    fn clone(&self) -> Self {
        Self {
            classify: self.classify.clone(),
            ..*self
        }
    }
}

impl<Classify, Session> fmt::Debug for Resp<Classify, Session> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Resp")
            .field("longest_bulk", &self.longest_bulk)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_first_argument() {
        for (frame, expected) in [
            (&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"[..], "GET"),
            (b"*1\r\n$0\r\n\r\n", ""),
            (b"*1\rx$4\ryPI\rGxx", "PI\rG"),
            (b"*1\r\r$4\r\rPING\r\n", "PING"),
            (b"  set a b\r\n", "set"),
            (b"\"get\" a\r\n", "\"get\""),
            (b"get\n", "get"),
        ] {
            assert_eq!(command(frame), expected.as_bytes());
        }
    }

    #[test]
    fn what_is_found_becomes_a_frame() {
        let resp = Resp::<_, ()>::new(|command: &[u8]| command.len() as u16).longest_bulk(5);
        let frame = |bytes: &[u8]| resp.frame(bytes, &mut Progress::default(), &());
        let complete = |length, class| Framing::Complete { length, class };
        assert_eq!(frame(b"*1\r\n$4\r\nPI"), Framing::Incomplete);
        assert_eq!(frame(b"*1\r\n$4\r\nPING\r\n*"), complete(14, 4));
        assert_eq!(frame(b"get k\r\n"), complete(7, 3));
        assert_eq!(frame(b"\r\nget k\r\n"), Framing::Skip { length: 2 });
        let last = |length| Framing::Last { length, class: 0 };
        assert_eq!(frame(b"*1\r\n$6\r\nabc"), last(8));
        assert_eq!(frame(b"get '\r\n"), last(7));
    }
}
