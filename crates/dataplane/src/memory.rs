//! A wire in memory with a device at either end, for tests and for trying things out.
//!
//! Frames are not copied: the sender puts its buffer on the wire and takes an empty one from it,
//! the receiver the other way round. So either end always has as many buffers as it began with.

use std::fmt;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::{Buffer, Device, Offload, Outbound, Received, VerifiedChecksums};

/// A frame in memory.
pub struct MemoryFrame {
    bytes: Box<[u8]>,
    length: usize,
}

impl Buffer for MemoryFrame {
    fn frame(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    fn capacity(&self) -> usize {
        self.bytes.len()
    }

    fn set_length(&mut self, length: usize) {
        self.length = length;
    }
}

impl fmt::Debug for MemoryFrame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MemoryFrame of {} bytes", self.length)
    }
}

/// One end of the wire.
#[derive(Debug)]
pub struct MemoryDevice {
    buffers: Vec<MemoryFrame>,
    outgoing: Lane<Producer<MemoryFrame>, Consumer<MemoryFrame>>,
    incoming: Lane<Consumer<MemoryFrame>, Producer<MemoryFrame>>,
}

/// One direction, seen from one end.
#[derive(Debug)]
struct Lane<Full, Empty> {
    full: Full,
    empty: Empty,
}

/// A wire that holds `queue` frames a direction, and its two ends, with `buffers` buffers of
/// `length` bytes each.
///
/// # Panics
/// If the memory is not there.
#[must_use]
pub fn wire(queue: usize, buffers: usize, length: usize) -> (MemoryDevice, MemoryDevice) {
    let frame = || MemoryFrame {
        bytes: vec![0; length].into_boxed_slice(),
        length: 0,
    };
    let direction = || {
        let (sent, received) = RingBuffer::new(queue);
        let (mut returned, taken) = RingBuffer::new(queue);
        while returned.push(frame()).is_ok() {}
        let sender = Lane {
            full: sent,
            empty: taken,
        };
        let receiver = Lane {
            full: received,
            empty: returned,
        };
        (sender, receiver)
    };
    let (there, at_second) = direction();
    let (back, at_first) = direction();
    let end = |outgoing, incoming| MemoryDevice {
        buffers: (0..buffers).map(|_| frame()).collect(),
        outgoing,
        incoming,
    };
    (end(there, at_first), end(back, at_second))
}

impl MemoryDevice {
    /// How many buffers are free.
    #[must_use]
    pub fn free_buffers(&self) -> usize {
        self.buffers.len()
    }
}

impl Device for MemoryDevice {
    type Buffer = MemoryFrame;

    fn offload(&self) -> Offload {
        Offload::default()
    }

    fn receive(&mut self, most: usize, frames: &mut Vec<Received<MemoryFrame>>) {
        let Self {
            buffers, incoming, ..
        } = self;
        for _ in 0..most {
            let Some(empty) = buffers.pop() else { return };
            match incoming.full.pop() {
                Ok(buffer) => {
                    frames.push(Received {
                        buffer,
                        verified: VerifiedChecksums::default(),
                    });
                    // There is room: a full one has just come out.
                    let _ = incoming.empty.push(empty);
                }
                Err(_) => return buffers.push(empty),
            }
        }
    }

    fn transmit(&mut self, frames: &mut Vec<Outbound<MemoryFrame>>) {
        let Self {
            buffers, outgoing, ..
        } = self;
        let room = outgoing.empty.slots().min(frames.len());
        for Outbound { buffer, .. } in frames.drain(..room) {
            // As many fulls and empties as there are places are on the wire, or on their way to it.
            if let (Ok(empty), Ok(())) = (outgoing.empty.pop(), outgoing.full.push(buffer)) {
                buffers.push(empty);
            }
        }
    }

    fn allocate(&mut self) -> Option<MemoryFrame> {
        self.buffers.pop()
    }

    fn free(&mut self, buffer: MemoryFrame) {
        self.buffers.push(buffer);
    }
}
