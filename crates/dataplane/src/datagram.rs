//! A request and its reply: one buffer of the device all the way.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use crate::in_flight::Lent;
use crate::{Buffer, Checksums, Incoming, Peer, RequestId};

/// What is known of a buffer that is out.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) id: RequestId,
    pub(crate) delivery: Incoming,
    /// The longest reply, in bytes.
    pub(crate) capacity: usize,
    /// How much of the reply has been written, in bytes.
    pub(crate) length: usize,
    /// What is left to the device when the reply is sent.
    pub(crate) checksums: Checksums,
}

/// A datagram received; dereferences to its payload, which lies where the device put it.
///
/// It occupies a buffer of the device, and gives it back when it, or the reply made of it, is
/// dropped. Moving it moves a pointer.
#[derive(Debug)]
pub struct Datagram<B: Buffer>(pub(crate) Lent<B, Notes>);

impl<B: Buffer> Datagram<B> {
    fn delivery(&self) -> &Incoming {
        &self.0.notes().delivery
    }

    /// The sender's address. Over UDP nothing proves it.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.delivery().peer.address.into()
    }

    /// The sender, with the station and the VLANs that it came by.
    #[must_use]
    pub fn station(&self) -> &Peer {
        &self.delivery().peer
    }

    /// For which of the interface's ports it came.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.delivery().port
    }

    /// An empty reply to write into, in this datagram's buffer.
    #[must_use]
    pub fn into_reply(mut self) -> DatagramReply<B> {
        let (buffer, notes) = self.0.parts_mut();
        buffer.set_length(notes.delivery.headers.length() + notes.capacity);
        DatagramReply(self.0)
    }

    /// A reply that starts as a copy of the request; free of cost, it is the same buffer. A request
    /// of several packets may be longer than one; then it is cut to what a reply can hold.
    #[must_use]
    pub fn echo(self) -> DatagramReply<B> {
        let mut reply = self.into_reply();
        let (_, notes) = reply.0.parts_mut();
        notes.length = notes.delivery.payload.len().min(notes.capacity);
        reply
    }

    /// `bytes` as the reply.
    ///
    /// # Errors
    /// If they do not fit a packet, or the buffer. The request is lost with that, so that its
    /// client learns by time-out only: where replies may be too long, check or use
    /// [`into_reply`](Self::into_reply).
    pub fn reply(self, bytes: &[u8]) -> Result<DatagramReply<B>, ReplyExceedsPacket> {
        let mut reply = self.into_reply();
        reply.extend_from_slice(bytes)?;
        Ok(reply)
    }
}

impl<B: Buffer> Deref for Datagram<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.buffer().frame()[self.delivery().payload.clone()]
    }
}

/// What a handler answers to a [`Datagram`]; dereferences to what has been written so far. It goes
/// to the sender of that datagram, and answers no other.
#[derive(Debug)]
pub struct DatagramReply<B: Buffer>(pub(crate) Lent<B, Notes>);

impl<B: Buffer> DatagramReply<B> {
    /// The most bytes it can hold: what the interface's MTU and the buffer have room for behind the
    /// headers.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.notes().capacity
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If they do not fit; then nothing is appended.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), ReplyExceedsPacket> {
        let (payload, notes) = self.parts_mut();
        let (start, capacity) = (notes.length, notes.capacity);
        let needed = start.saturating_add(bytes.len());
        let room = payload
            .get_mut(start..needed)
            .ok_or(ReplyExceedsPacket { needed, capacity })?;
        room.copy_from_slice(bytes);
        notes.length = needed;
        Ok(())
    }

    /// Forgets all but the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        let (_, notes) = self.0.parts_mut();
        notes.length = notes.length.min(length);
    }

    /// Where the payload can be: as many bytes as there is capacity.
    fn parts_mut(&mut self) -> (&mut [u8], &mut Notes) {
        let (buffer, notes) = self.0.parts_mut();
        let start = notes.delivery.headers.length();
        let payload = &mut buffer.frame_mut()[start..start + notes.capacity];
        (payload, notes)
    }
}

impl<B: Buffer> Deref for DatagramReply<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let notes = self.0.notes();
        let start = notes.delivery.headers.length();
        &self.0.buffer().frame()[start..start + notes.length]
    }
}

impl<B: Buffer> DerefMut for DatagramReply<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (payload, notes) = self.parts_mut();
        &mut payload[..notes.length]
    }
}

/// For `write!`. Takes what fits; a full reply takes nothing, which `write!` reports as an error.
impl<B: Buffer> io::Write for DatagramReply<B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fitting = bytes.len().min(self.capacity() - self.len());
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
pub struct ReplyExceedsPacket {
    /// Its length with what should have been appended, in bytes.
    pub needed: usize,
    /// The most that fits, in bytes.
    pub capacity: usize,
}
