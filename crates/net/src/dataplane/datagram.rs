//! A request and its reply: one buffer of the device all the way.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use super::lending::Lent;
use super::{Buffer, Delivery, Headers, Peer, RequestId};

/// A datagram received; dereferences to its payload, which lies where the device put it.
///
/// It occupies a buffer of the device, and gives it back when it, or the reply made of it, is dropped.
#[derive(Debug)]
pub struct Datagram<B: Buffer> {
    lent: Lent<B>,
    id: RequestId,
    delivery: Delivery,
    capacity: usize,
}

impl<B: Buffer> Datagram<B> {
    /// The request `id`, `delivery` of the frame in `lent`. A packet takes `longest` bytes of a reply.
    pub(super) fn new(lent: Lent<B>, id: RequestId, delivery: Delivery, longest: usize) -> Self {
        let room = lent
            .buffer()
            .capacity()
            .saturating_sub(delivery.headers.length());
        Self {
            capacity: room.min(longest),
            lent,
            id,
            delivery,
        }
    }

    pub(super) fn id(&self) -> RequestId {
        self.id
    }

    pub(super) fn into_lent(self) -> Lent<B> {
        self.lent
    }

    /// Who sent it. Over UDP the sender's word for it.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.delivery.peer.address.into()
    }

    /// Who sent it, and by which station and VLANs.
    #[must_use]
    pub fn station(&self) -> &Peer {
        &self.delivery.peer
    }

    /// For which of the interface's ports it came.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.delivery.port
    }

    /// An empty reply to write into, in this datagram's buffer.
    #[must_use]
    pub fn into_reply(mut self) -> DatagramReply<B> {
        let headers = self.delivery.headers;
        self.lent
            .buffer_mut()
            .set_length(headers.length() + self.capacity);
        DatagramReply {
            lent: self.lent,
            id: self.id,
            headers,
            length: 0,
            capacity: self.capacity,
        }
    }

    /// A reply that starts as a copy of the request; free of cost, it is the same buffer. A request of several packets may
    /// be longer than one; then it is cut to what a reply can hold.
    #[must_use]
    pub fn echo(self) -> DatagramReply<B> {
        let length = self.delivery.payload.len().min(self.capacity);
        DatagramReply {
            length,
            ..self.into_reply()
        }
    }

    /// `bytes` as the reply.
    ///
    /// # Errors
    /// If they do not fit a packet, or the buffer. The request is lost with that, so that its client learns by time-out
    /// only: where replies may be too long, check or use [`into_reply`](Self::into_reply).
    pub fn reply(self, bytes: &[u8]) -> Result<DatagramReply<B>, ReplyTooLong> {
        let mut reply = self.into_reply();
        reply.extend_from_slice(bytes)?;
        Ok(reply)
    }
}

impl<B: Buffer> Deref for Datagram<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.lent.buffer().frame()[self.delivery.payload.clone()]
    }
}

/// What a handler answers to a [`Datagram`]; dereferences to what has been written so far. It goes to whoever sent that
/// datagram, and is an answer to no other.
#[derive(Debug)]
pub struct DatagramReply<B: Buffer> {
    pub(super) lent: Lent<B>,
    pub(super) id: RequestId,
    pub(super) headers: Headers,
    pub(super) length: usize,
    capacity: usize,
}

impl<B: Buffer> DatagramReply<B> {
    /// The most bytes it can hold: what the interface's MTU and the buffer have room for behind the headers.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If they do not fit; then nothing is appended.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), ReplyTooLong> {
        let (start, capacity) = (self.length, self.capacity);
        let needed = start.saturating_add(bytes.len());
        let room = self
            .payload_mut()
            .get_mut(start..needed)
            .ok_or(ReplyTooLong { needed, capacity })?;
        room.copy_from_slice(bytes);
        self.length = needed;
        Ok(())
    }

    /// Forgets all but the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Where the payload can be: as many bytes as there is capacity.
    fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.headers.length();
        &mut self.lent.buffer_mut().frame_mut()[start..start + self.capacity]
    }
}

impl<B: Buffer> Deref for DatagramReply<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.headers.length();
        &self.lent.buffer().frame()[start..start + self.length]
    }
}

impl<B: Buffer> DerefMut for DatagramReply<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        &mut self.payload_mut()[..length]
    }
}

/// For `write!`. Takes what fits; a full reply takes nothing, which `write!` reports as an error.
impl<B: Buffer> io::Write for DatagramReply<B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fitting = bytes.len().min(self.capacity - self.length);
        self.extend_from_slice(&bytes[..fitting])
            .expect("cut to what fits");
        Ok(fitting)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reply does not fit a packet or the request's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the reply has {needed} bytes or more, but there is room for {capacity}: shorten it, or raise the interface's \
     mtu, if the wire has it, and the device's buffers"
)]
pub struct ReplyTooLong {
    /// Its length with what should have been appended, in bytes.
    pub needed: usize,
    /// The most that fits, in bytes.
    pub capacity: usize,
}
