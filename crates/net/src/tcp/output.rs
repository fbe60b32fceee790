//! Replies on their way to the client.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;

use super::memory::Memory;

/// Where a handler writes its reply.
///
/// Grows as it is written to, up to the transport's `max_reply`. What came before this reply and is
/// not sent yet is out of reach.
pub struct Output {
    memory: Arc<Memory>,
    /// From the networker's pool; without capacity while the connection has nothing to send.
    pub(super) standard: BytesMut,
    /// If it has capacity: in use instead of `standard`.
    large: BytesMut,
    /// Where this reply begins.
    start: usize,
    /// So much of it the kernel has.
    sent: usize,
}

impl Output {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Self {
            memory,
            standard: BytesMut::new(),
            large: BytesMut::new(),
            start: 0,
            sent: 0,
        }
    }

    /// How many bytes this reply has so far.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a reply's length, not a collection's"
    )]
    pub fn len(&self) -> usize {
        self.bytes().len() - self.start
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If the reply gets too long; then nothing is appended.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), OutputFull> {
        self.reserve(bytes.len())?;
        self.bytes_mut().extend_from_slice(bytes);
        Ok(())
    }

    /// Forgets all but the first `length` bytes of this reply.
    pub fn truncate(&mut self, length: usize) {
        let length = self.start.saturating_add(length);
        self.bytes_mut().truncate(length);
    }

    fn reserve(&mut self, more: usize) -> Result<(), OutputFull> {
        let before = self.bytes();
        let (used, capacity) = (before.len(), before.capacity());
        self.memory
            .check((used - self.start).saturating_add(more))?;
        if more <= capacity - used {
            return Ok(());
        }
        let mut larger = self.memory.take(used + more, capacity.saturating_mul(2))?;
        larger.extend_from_slice(self.bytes());
        self.memory.free(std::mem::replace(&mut self.large, larger));
        self.standard.clear();
        Ok(())
    }

    fn bytes(&self) -> &BytesMut {
        if self.large.capacity() > 0 {
            &self.large
        } else {
            &self.standard
        }
    }

    fn bytes_mut(&mut self) -> &mut BytesMut {
        if self.large.capacity() > 0 {
            &mut self.large
        } else {
            &mut self.standard
        }
    }

    /// The next reply begins.
    pub(super) fn begin(&mut self) {
        self.start = self.bytes().len();
    }

    /// What the kernel does not have yet.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes()[self.sent..]
    }

    /// The kernel took `length` more bytes. Tells whether that was all.
    pub(super) fn sent(&mut self, length: usize) -> bool {
        self.sent += length;
        if self.sent < self.bytes().len() {
            return false;
        }
        self.clear();
        true
    }

    /// Appends `bytes` if that takes no allocation. For the networker.
    pub(super) fn append_within(&mut self, bytes: &[u8]) -> bool {
        let output = self.bytes_mut();
        let fits = bytes.len() <= output.capacity() - output.len();
        if fits {
            output.extend_from_slice(bytes);
        }
        fits
    }

    pub(super) fn clear(&mut self) {
        self.bytes_mut().clear();
        self.start = 0;
        self.sent = 0;
    }

    /// Parts with the long buffer, if there is one and a place for it. Only when nothing is
    /// unsent.
    pub(super) fn leave_large(&mut self) {
        if self.large.capacity() > 0 {
            self.memory.leave(&mut self.large);
        }
    }
}

/// For `write!` and serialisers.
impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.extend_from_slice(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::StorageFull, error))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Output")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A reply cannot take what should have been appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputFull {
    /// It would be longer than a reply may be.
    #[error(
        "the reply has {length} bytes or more, but max_reply is {max_reply}: shorten it, or raise max_reply"
    )]
    Reply {
        /// Its length with what should have been appended, in bytes.
        length: usize,
        /// The most that is allowed.
        max_reply: usize,
    },
    /// With it, all unsent replies together would be longer than they may be.
    #[error(
        "the reply needs {length} bytes, but all long replies together have used up reply_memory, {reply_memory} \
         bytes: try again later, or raise reply_memory"
    )]
    Together {
        /// What it needs, in bytes.
        length: usize,
        /// The most that is allowed.
        reply_memory: usize,
    },
}
