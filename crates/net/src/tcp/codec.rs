//! Where one request ends and the next begins.

use crate::Refusal;

/// Finds requests in a connection's bytes, and has the words for clients that get no reply.
///
/// [`frame`](Self::frame) runs on the networker's thread: it must not allocate, free, lock, wait or
/// panic, and every request waits while it runs.
pub trait Codec: Clone + Send + Sync + 'static {
    /// What framing has learnt of a request of which only a part is there, so that a client that
    /// sends byte by byte does not have it looked at from the start each time. Default at the start
    /// of each frame.
    type Progress: Copy + Default + Send + 'static;

    /// State of a connection that handlers read and change: protocol version, name of the client.
    /// Default on accept. Compared after each request: frames found ahead with another session are
    /// looked for again.
    type Session: Copy + Default + PartialEq + Send + 'static;

    /// What `bytes`, never empty, begin with. After [`Framing::Incomplete`] the networker asks
    /// again, with the same bytes, more behind them, and the `progress` that the codec left.
    fn frame(
        &self,
        bytes: &[u8],
        progress: &mut Self::Progress,
        session: &Self::Session,
    ) -> Framing;

    /// What the client is told when its request is refused. Shorter than half of the transport's
    /// `buffer`.
    fn refusal(&self, cause: Refusal) -> &'static [u8];

    /// What the client is told when the handler panicked or dropped the request. Then the
    /// connection closes.
    fn failure(&self) -> &'static [u8];

    /// What a client is told for which there is no connection left.
    fn too_many_connections(&self) -> &'static [u8] {
        b""
    }

    /// What a client is told whose request is longer than `max_request`. Then the connection
    /// closes.
    fn too_long(&self) -> &'static [u8] {
        b""
    }
}

/// What a connection's bytes begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Framing {
    /// A part of a request: more bytes are needed.
    Incomplete,
    /// `length` bytes that are no request (an empty line). At least one.
    Skip {
        /// How many.
        length: usize,
    },
    /// The first `length` bytes, at least one, are a request.
    Complete {
        /// How many.
        length: usize,
        /// The request's class.
        class: u16,
    },
    /// As [`Complete`](Self::Complete), and after its reply the connection closes: for malformed
    /// input, where the handler says what is wrong.
    Last {
        /// How many.
        length: usize,
        /// The request's class.
        class: u16,
    },
}
