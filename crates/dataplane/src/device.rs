//! What a dataplane wants of a network device: frames in, frames out, buffers that are moved.

use std::time::Duration;

use crate::packet::ethernet::SHORTEST_FRAME;

/// The memory of one frame, wherever it is: a DPDK mbuf, a piece of an AF_XDP area, a `Vec`.
///
/// It has one owner at a time, and stays valid for as long as it exists, even after its device has
/// gone. The [`Dataplane`](crate::Dataplane) hands every buffer back to its device, on the device's
/// thread. Only a buffer that outlives the dataplane is dropped, on whatever thread has it.
pub trait Buffer: Send + 'static {
    /// The frame, without its check sequence.
    fn frame(&self) -> &[u8];

    /// The frame, to be written.
    fn frame_mut(&mut self) -> &mut [u8];

    /// The longest frame that it can hold, in bytes.
    fn capacity(&self) -> usize;

    /// Makes the frame `length` bytes long, which is not above [`capacity`](Self::capacity). What
    /// it had it keeps; what it gains may be anything.
    fn set_length(&mut self, length: usize);

    /// Makes the frame `length` bytes long and pads it with zeros to the shortest that Ethernet
    /// has, if there is room. (Zeros, lest old bytes leak.)
    fn finish(&mut self, length: usize) {
        let padded = length.max(SHORTEST_FRAME);
        if padded > self.capacity() {
            return self.set_length(length);
        }
        self.set_length(padded);
        if let Some(padding) = self.frame_mut().get_mut(length..) {
            padding.fill(0);
        }
    }
}

/// A frame that came in.
#[derive(Debug)]
pub struct Received<B> {
    /// Where it is.
    pub buffer: B,
    /// The checksums that the stack need not check.
    pub verified: VerifiedChecksums,
}

/// Which of a frame's checksums the device found right. What it found wrong, or did not look at, is
/// checked, and counted, by the stack.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VerifiedChecksums {
    /// The IPv4 header's.
    pub ipv4: bool,
    /// The UDP datagram's.
    pub udp: bool,
}

/// A frame on its way out.
#[derive(Debug)]
pub struct Outbound<B> {
    /// Where it is; what it says up to its length is what is sent.
    pub buffer: B,
    /// The checksums that the device has to compute: none if [`Offload`] said that it cannot.
    pub checksums: Checksums,
}

/// What a device must still compute for a frame that goes out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Checksums {
    /// The IPv4 header's, whose field is zero.
    pub ipv4: bool,
    /// The UDP datagram's, whose field holds the sum over the pseudo-header, not complemented.
    pub udp: bool,
    /// How many bytes lie before the IPv4 header (DPDK's `l2_len`). Zero where nothing is to be
    /// computed.
    pub ethernet_length: u8,
    /// How long the IPv4 header is (DPDK's `l3_len`). Zero where nothing is to be computed.
    pub ipv4_length: u8,
}

/// Which checksums a device computes for frames that go out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Offload {
    /// The IPv4 header's.
    pub ipv4: bool,
    /// The UDP datagram's.
    pub udp: bool,
}

/// What a device has room for, as far as it tells; by default it sets no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The longest frame, in bytes.
    pub frame: usize,
    /// How many buffers there are.
    pub buffers: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            frame: usize::MAX,
            buffers: usize::MAX,
        }
    }
}

/// One queue of a network device. Everything here is called by one thread, the one that polls the
/// transport, after the device was moved there; none of it may allocate, free, take a lock that a
/// handler could hold, or wait (but [`wait`](Self::wait)), or panic.
pub trait Device: Send + 'static {
    /// Its packet memory.
    type Buffer: Buffer;

    /// What it computes for frames that go out. Asked once, at start.
    fn offload(&self) -> Offload;

    /// What it has room for. Asked once, at start.
    fn room(&self) -> Room {
        Room::default()
    }

    /// Appends frames that are there to `frames`, at most `most`, for which it has room. Looks
    /// after the device even if that is 0.
    fn receive(&mut self, most: usize, frames: &mut Vec<Received<Self::Buffer>>);

    /// Sends frames from the front of `frames`, in their order, and removes them. What the queue
    /// has no room for stays, and is offered again.
    fn transmit(&mut self, frames: &mut Vec<Outbound<Self::Buffer>>);

    /// A buffer to write a frame into that is no reply (an ARP request, a client's request), of any
    /// length. `None`: there is none left.
    fn allocate(&mut self) -> Option<Self::Buffer>;

    /// Takes a buffer back that was received or allocated, and not transmitted.
    fn free(&mut self, buffer: Self::Buffer);

    /// Sleeps until frames may be there, `patience` at most; may return early for no reason. A
    /// device without a way to be woken sleeps in small pieces.
    fn wait(&mut self, patience: Duration) {
        std::thread::sleep(patience.min(Duration::from_micros(100)));
    }
}
