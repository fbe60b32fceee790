//! A request and its reply: one buffer all the way.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use super::pool::Buffer;

/// A datagram received; dereferences to its payload.
///
/// It occupies one of the transport's buffers, and gives it back when it, or the reply made of it,
/// is dropped.
#[derive(Debug)]
pub struct Datagram {
    buffer: Buffer,
    length: usize,
    peer: SocketAddr,
}

impl Datagram {
    /// `length` bytes of `buffer` came from `peer`.
    pub(super) fn new(buffer: Buffer, length: usize, peer: SocketAddr) -> Self {
        Self {
            buffer,
            length,
            peer,
        }
    }

    /// The sender's address. Over UDP nothing proves it.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// An empty reply to write into, in this datagram's buffer.
    #[must_use]
    pub fn into_reply(self) -> DatagramReply {
        DatagramReply {
            buffer: self.buffer,
            length: 0,
        }
    }

    /// A reply that starts as a copy of the request; free of cost, it is the same buffer.
    #[must_use]
    pub fn echo(self) -> DatagramReply {
        DatagramReply {
            buffer: self.buffer,
            length: self.length,
        }
    }

    /// `bytes` as the reply.
    ///
    /// # Errors
    /// If they are longer than the transport's `max_datagram`. The request is lost with that, so
    /// that its client learns by time-out only: where replies may be too long, check or use
    /// [`into_reply`](Self::into_reply).
    pub fn reply(self, bytes: &[u8]) -> Result<DatagramReply, ReplyTooLong> {
        let mut reply = self.into_reply();
        reply.extend_from_slice(bytes)?;
        Ok(reply)
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.bytes[..self.length]
    }
}

/// What a handler answers to a [`Datagram`]; dereferences to what has been written so far.
#[derive(Debug)]
pub struct DatagramReply {
    buffer: Buffer,
    length: usize,
}

impl DatagramReply {
    /// The most bytes it can hold: the transport's `max_datagram`.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If they do not fit; then nothing is appended.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), ReplyTooLong> {
        let capacity = self.capacity();
        let needed = self.length.saturating_add(bytes.len());
        let room = self
            .buffer
            .bytes
            .get_mut(self.length..needed)
            .ok_or(ReplyTooLong { needed, capacity })?;
        room.copy_from_slice(bytes);
        self.length = needed;
        Ok(())
    }

    /// Forgets all but the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Deref for DatagramReply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.bytes[..self.length]
    }
}

impl DerefMut for DatagramReply {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes[..self.length]
    }
}

/// For `write!`. Takes what fits; a full reply takes nothing, which `write!` reports as an error.
impl io::Write for DatagramReply {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fitting = bytes.len().min(self.capacity() - self.length);
        self.extend_from_slice(&bytes[..fitting])
            .expect("cut to what fits");
        Ok(fitting)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reply does not fit the transport's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the reply has {needed} bytes or more, but max_datagram is {capacity}: shorten it, or raise max_datagram"
)]
pub struct ReplyTooLong {
    /// Its length with what should have been appended, in bytes.
    pub needed: usize,
    /// The most that fits, in bytes.
    pub capacity: usize,
}
