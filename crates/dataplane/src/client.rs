//! A client's end over any device: sends datagrams without having been asked, and hands on what
//! comes back.
//!
//! ```text
//!     send ──▶ the station is known? ──yes──▶ outbound ──▶ device
//!                        │ no                    ▲
//!                        ▼                       │ it answers ARP
//!                     waiting (bounded) ─────────┤
//!                                                └ no answer: dropped, counted
//! ```

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use crate::packet::MacAddr;
use crate::{
    Buffer, Checksums, Device, Interface, InterfaceConfig, InterfaceCounters, InterfaceError,
    Offload, Outbound, Peer, Received, Resolution, Verdict,
};

/// Frames received, or offered to the device, at once.
const BATCH: usize = 64;
/// Datagrams that wait for an ARP answer.
const WAITING: usize = 64;

/// A client: one thread sends and receives by turns.
pub struct Client<D: Device> {
    device: D,
    offload: Offload,
    interface: Interface,
    /// Empty between turns.
    received: Vec<Received<D::Buffer>>,
    outbound: Vec<Outbound<D::Buffer>>,
    waiting: Vec<Unrouted<D::Buffer>>,
    unreachable: u64,
}

/// A datagram that lacks nothing but its station; its payload is in place.
struct Unrouted<B> {
    buffer: B,
    port: u16,
    to: SocketAddrV4,
}

impl<D: Device> Client<D> {
    /// Takes all memory. The interface's ports are those that it sends from.
    ///
    /// # Errors
    /// A setting out of its range, or an address that no host can have.
    pub fn new(device: D, config: InterfaceConfig) -> Result<Self, InterfaceError> {
        Ok(Self {
            offload: device.offload(),
            device,
            interface: Interface::new(config)?,
            received: Vec::with_capacity(BATCH),
            outbound: Vec::with_capacity(BATCH),
            waiting: Vec::with_capacity(WAITING),
            unreachable: 0,
        })
    }

    /// The device, to ask it what it has counted.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What the interface counts.
    #[must_use]
    pub fn counters(&self) -> InterfaceCounters {
        self.interface.counters()
    }

    /// Datagrams dropped after [`send`](Self::send) took them, since no station answered for their
    /// address.
    #[must_use]
    pub fn unreachable(&self) -> u64 {
        self.unreachable
    }

    /// Where packets for `ip` go. If that is not known, asks for it with the next
    /// [`flush`](Self::flush) or [`receive`](Self::receive). A client that resolves an address
    /// early keeps no datagram waiting for it.
    pub fn resolve(&mut self, ip: Ipv4Addr, now_nanos: u64) -> Resolution {
        let resolution = self.interface.resolve(ip, now_nanos);
        if let Resolution::Ask(ip) | Resolution::Renew(_, ip) = resolution {
            self.ask(ip);
        }
        resolution
    }

    /// Sends `payload` from `port` to `to`, with the next [`flush`](Self::flush) or
    /// [`receive`](Self::receive). If the station is not known, it is asked for first, and the
    /// datagram waits.
    ///
    /// # Errors
    /// If it cannot; then nothing is sent.
    pub fn send(
        &mut self,
        port: u16,
        to: SocketAddrV4,
        payload: &[u8],
        now_nanos: u64,
    ) -> Result<(), SendError> {
        let longest = self.interface.longest_payload();
        let length = Interface::PAYLOAD + payload.len();
        if self.outbound.len() == BATCH {
            self.flush();
        }
        if self.outbound.len() == BATCH {
            return Err(SendError::QueueFull);
        }
        if self.waiting.len() == WAITING {
            // A datagram to a known station does not queue behind those that wait for an answer.
            match self.resolve(*to.ip(), now_nanos) {
                Resolution::Known(_) | Resolution::Renew(..) => {}
                _ => return Err(SendError::TooManyWait),
            }
        }
        let mut buffer = self.device.allocate().ok_or(SendError::NoBuffer)?;
        if payload.len() > longest || length > buffer.capacity() {
            self.device.free(buffer);
            return Err(SendError::TooLong {
                length: payload.len(),
                longest,
            });
        }
        buffer.set_length(length);
        if let Some(place) = buffer.frame_mut().get_mut(Interface::PAYLOAD..) {
            place.copy_from_slice(payload);
        }
        self.route(Unrouted { buffer, port, to }, now_nanos);
        Ok(())
    }

    /// Offers what is to be sent to the device; what it has no room for is offered again next time.
    pub fn flush(&mut self) {
        if !self.outbound.is_empty() {
            self.device.transmit(&mut self.outbound);
        }
    }

    /// Hands the payloads that have come to `deliver`, with the sender of each and the port that it
    /// is for. Routes or drops the datagrams that wait for an address, and flushes.
    pub fn receive(&mut self, now_nanos: u64, mut deliver: impl FnMut(&[u8], &Peer, u16)) {
        let mut received = std::mem::take(&mut self.received);
        self.device.receive(BATCH, &mut received);
        for Received {
            mut buffer,
            verified,
        } in received.drain(..)
        {
            match self
                .interface
                .receive(buffer.frame_mut(), verified, now_nanos)
            {
                Verdict::Deliver(delivery) => {
                    let payload = buffer.frame().get(delivery.payload).unwrap_or_default();
                    deliver(payload, &delivery.peer, delivery.port);
                }
                Verdict::Answer { length } if self.outbound.len() < BATCH => {
                    buffer.finish(length);
                    let checksums = Checksums::default();
                    self.outbound.push(Outbound { buffer, checksums });
                    continue;
                }
                Verdict::Answer { .. } | Verdict::Learnt | Verdict::Drop(_) => {}
            }
            self.device.free(buffer);
        }
        self.received = received;
        // Each of those that wait is looked at once; those that go on waiting queue up again.
        for _ in 0..self.waiting.len() {
            if self.outbound.len() == BATCH {
                break;
            }
            let datagram = self.waiting.remove(0);
            self.route(datagram, now_nanos);
        }
        self.flush();
    }

    /// Sleeps until something may have come, `patience` at most.
    pub fn wait(&mut self, patience: Duration) {
        if self.outbound.is_empty() && self.waiting.is_empty() {
            self.device.wait(patience);
        } else {
            std::thread::sleep(patience.min(Duration::from_millis(1)));
        }
    }

    /// Sends a datagram on its way, there being room in `outbound` and, for as many as come here,
    /// in `waiting`.
    fn route(&mut self, datagram: Unrouted<D::Buffer>, now_nanos: u64) {
        match self.interface.resolve(*datagram.to.ip(), now_nanos) {
            Resolution::Known(mac) => self.put(datagram, mac),
            Resolution::Renew(mac, ip) => {
                self.put(datagram, mac);
                self.ask(ip);
            }
            Resolution::Ask(ip) => {
                self.ask(ip);
                self.waiting.push(datagram);
            }
            Resolution::Wait => self.waiting.push(datagram),
            Resolution::Unreachable => {
                self.unreachable += 1;
                self.device.free(datagram.buffer);
            }
        }
    }

    fn put(&mut self, datagram: Unrouted<D::Buffer>, mac: MacAddr) {
        let Unrouted {
            mut buffer,
            port,
            to,
        } = datagram;
        let length = buffer.frame().len();
        let written =
            self.interface
                .write_datagram(buffer.frame_mut(), port, mac, to, self.offload);
        match written {
            Some(checksums) => {
                buffer.finish(length);
                self.outbound.push(Outbound { buffer, checksums });
            }
            // Cannot be: the length was checked.
            None => self.device.free(buffer),
        }
    }

    /// Asks who has `ip`. Where there is no buffer or room for that, the next try asks.
    fn ask(&mut self, ip: Ipv4Addr) {
        let Some(mut buffer) = self.device.allocate() else {
            return;
        };
        buffer.set_length(Interface::ARP_FRAME);
        let written = self.interface.write_arp_request(buffer.frame_mut(), ip);
        if written.is_none() || self.outbound.len() == BATCH {
            return self.device.free(buffer);
        }
        buffer.finish(Interface::ARP_FRAME);
        let checksums = Checksums::default();
        self.outbound.push(Outbound { buffer, checksums });
    }
}

/// Gives the device its buffers back.
impl<D: Device> Drop for Client<D> {
    fn drop(&mut self) {
        for Outbound { buffer, .. } in self.outbound.drain(..) {
            self.device.free(buffer);
        }
        for Unrouted { buffer, .. } in self.waiting.drain(..) {
            self.device.free(buffer);
        }
    }
}

impl<D: Device> fmt::Debug for Client<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("interface", &self.interface)
            .field("outbound", &self.outbound.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

/// Why a client did not send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The payload is too long for a packet or the device's buffers.
    #[error(
        "the payload has {length} bytes, but a packet, or the device's buffer, holds {longest} at most"
    )]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// What the MTU allows, in bytes.
        longest: usize,
    },
    /// The device has no buffer left.
    #[error("the device has no free buffer: receive, or wait until it has sent some")]
    NoBuffer,
    /// The device has no room for more frames.
    #[error("the device's queue is full: send again later")]
    QueueFull,
    /// As many datagrams wait for an ARP answer as may.
    #[error("{WAITING} datagrams wait for their station to answer: receive, and send again later")]
    TooManyWait,
}
