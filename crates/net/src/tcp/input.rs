//! What a connection has sent and no handler has seen yet.
//!
//! ```text
//!   0        frame          cursor          end            bytes.len()
//!   │ old     │ the request  │ ahead │ part  │ room         │
//! ```
//! `frame` is at the handler, `ahead` is the next complete one, if there is one. Framing goes on at
//! `cursor`.

use std::ops::Range;

use bytes::BytesMut;

use super::codec::{Codec, Framing};

/// Empty lines and the like passed over at once; then others have their turn.
const SKIPS: usize = 64;

/// A complete request within [`Input`].
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    pub(super) range: Range<usize>,
    pub(super) class: u16,
    /// After its reply the connection closes.
    pub(super) last: bool,
}

/// What [`Input::find`] came to.
#[derive(Debug)]
pub(super) enum Found {
    Frame(Frame),
    /// More bytes are needed.
    Incomplete,
    /// Nothing but skipped bytes so far.
    Skipping,
    /// Longer than allowed.
    TooLong,
    /// The codec gave an impossible answer.
    Wrong,
}

pub(super) struct Input<C: Codec> {
    /// Empty while the connection has no bytes here.
    pub(super) bytes: BytesMut,
    pub(super) end: usize,
    cursor: usize,
    progress: C::Progress,
    frame: Frame,
    ahead: Option<Frame>,
    /// As it was when `ahead` was looked for.
    session: C::Session,
}

impl<C: Codec> Input<C> {
    pub(super) fn new() -> Self {
        Self {
            bytes: BytesMut::new(),
            end: 0,
            cursor: 0,
            progress: C::Progress::default(),
            frame: Frame::default(),
            ahead: None,
            session: C::Session::default(),
        }
    }

    /// The bytes of the request that is at the handler.
    pub(super) fn frame(&self) -> &[u8] {
        &self.bytes[self.frame.range.clone()]
    }

    /// The next request: the one found ahead, or what framing finds now.
    pub(super) fn next(&mut self, codec: &C, session: &C::Session, longest: usize) -> Found {
        match self.ahead.take() {
            Some(frame) => Found::Frame(frame),
            None => self.find(codec, session, longest),
        }
    }

    /// `frame` goes to a handler. Tells whether another one is there behind it.
    pub(super) fn deliver(
        &mut self,
        frame: Frame,
        codec: &C,
        session: &C::Session,
        longest: usize,
    ) -> bool {
        let last = frame.last;
        self.frame = frame;
        self.session = *session;
        if !last && let Found::Frame(ahead) = self.find(codec, session, longest) {
            self.ahead = Some(ahead);
        }
        self.ahead.is_some()
    }

    /// The handler is done with its request. If it has changed the session, what was found ahead is
    /// void.
    pub(super) fn done(&mut self, session: &C::Session) {
        if self.session != *session {
            self.cursor = self.frame.range.end;
            self.progress = C::Progress::default();
            self.ahead = None;
        }
        self.frame = Frame::default();
    }

    /// Bytes are here that no handler has got.
    pub(super) fn has_more(&self) -> bool {
        self.ahead.is_some() || self.cursor < self.end
    }

    fn find(&mut self, codec: &C, session: &C::Session, longest: usize) -> Found {
        for _ in 0..SKIPS {
            let rest = &self.bytes[self.cursor..self.end];
            if rest.is_empty() {
                return Found::Incomplete;
            }
            let (length, class, last) = match codec.frame(rest, &mut self.progress, session) {
                Framing::Incomplete if rest.len() >= longest => return Found::TooLong,
                Framing::Incomplete => return Found::Incomplete,
                Framing::Skip { length } if (1..=rest.len()).contains(&length) => {
                    self.cursor += length;
                    self.progress = C::Progress::default();
                    continue;
                }
                Framing::Skip { .. } => return Found::Wrong,
                Framing::Complete { length, class } => (length, class, false),
                Framing::Last { length, class } => (length, class, true),
            };
            if length == 0 || length > rest.len() {
                return Found::Wrong;
            }
            if length > longest {
                return Found::TooLong;
            }
            let range = self.cursor..self.cursor + length;
            self.cursor = range.end;
            self.progress = C::Progress::default();
            return Found::Frame(Frame { range, class, last });
        }
        Found::Skipping
    }

    /// How many bytes wait to be framed. Only without a frame ahead.
    pub(super) fn pending(&self) -> usize {
        self.end - self.cursor
    }

    /// Moves what is pending to the start. Only between requests.
    pub(super) fn compact(&mut self) {
        debug_assert!(self.ahead.is_none());
        self.bytes.copy_within(self.cursor..self.end, 0);
        self.end -= self.cursor;
        self.cursor = 0;
    }

    /// Moves what is pending to `bytes`, which it must fit; the answer is the old buffer.
    pub(super) fn move_to(&mut self, mut bytes: BytesMut) -> BytesMut {
        let pending = self.pending();
        bytes[..pending].copy_from_slice(&self.bytes[self.cursor..self.end]);
        self.cursor = 0;
        self.end = pending;
        std::mem::replace(&mut self.bytes, bytes)
    }

    /// Forgets everything; the answer is the buffer, empty if there was none.
    pub(super) fn clear(&mut self) -> BytesMut {
        let bytes = std::mem::take(&mut self.bytes);
        *self = Self::new();
        bytes
    }
}
