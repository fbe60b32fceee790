//! What requests and replies say, and the frames that they travel in.
//!
//! A request begins with the length of the reply that it wants. If that is its own, it is the reply
//! itself, as it came; else as many bytes of a constant are.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};
use shinjuku_bench_dataplane::{LONGEST_PAYLOAD, SHORTEST_PAYLOAD};
use shinjuku_dataplane::{
    Buffer, Checksums, Interface, InterfaceConfig, MacAddr, Offload, Outbound, Verdict,
    VerifiedChecksums,
};

pub const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 9000);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Bytes of a request's payload: with headers and check sequence, 64.
pub const REQUEST: usize = SHORTEST_PAYLOAD as usize;
/// Its frame, without the check sequence.
pub const FRAME: usize = Interface::PAYLOAD + REQUEST;
/// Room for the longest frame.
pub const ROOM: usize = Interface::PAYLOAD + LONGEST_PAYLOAD as usize;

const FILLING: [u8; LONGEST_PAYLOAD as usize] = [0x5a; LONGEST_PAYLOAD as usize];

/// A request for a reply of so many bytes.
pub fn request(reply: u16) -> [u8; REQUEST] {
    let mut request = [7; REQUEST];
    request[..2].copy_from_slice(&reply.to_be_bytes());
    request
}

/// The reply to `request`; `None`: it is the request.
pub fn reply_to(request: &[u8]) -> Option<&'static [u8]> {
    let length = usize::from(u16::from_be_bytes(*request.first_chunk()?));
    (length != request.len()).then(|| &FILLING[..length.min(FILLING.len())])
}

/// The server's interface, as it is configured.
pub fn server_interface() -> InterfaceConfig {
    InterfaceConfig::new(SERVER_MAC, *SERVER.ip(), &[SERVER.port()]).neighbour(CLIENT, CLIENT_MAC)
}

/// The ports of a client with so many flows.
pub fn ports(flows: u16) -> Vec<u16> {
    (10_000..10_000 + flows).collect()
}

/// A client's requests, a frame from each of its ports.
pub fn requests(ports: &[u16], reply: u16) -> Result<Vec<[u8; FRAME]>> {
    // Which ports it listens on makes no difference to what it sends.
    let interface = client_interface(&ports[..1])?;
    let frame = |port: &u16| {
        let mut frame = [0; FRAME];
        frame[Interface::PAYLOAD..].copy_from_slice(&request(reply));
        let offload = Offload::default();
        interface
            .write_datagram(&mut frame, *port, SERVER_MAC, SERVER, offload)
            .context("a request does not fit its frame")?;
        Ok(frame)
    };
    ports.iter().map(frame).collect()
}

fn client_interface(ports: &[u16]) -> Result<Interface> {
    let config = InterfaceConfig::new(CLIENT_MAC, CLIENT, ports);
    Ok(Interface::new(config.neighbour(*SERVER.ip(), SERVER_MAC))?)
}

/// A request's frame in `buffer`, ready to be sent.
pub fn outbound<B: Buffer>(mut buffer: B, request: &[u8; FRAME]) -> Outbound<B> {
    buffer.set_length(FRAME);
    buffer.frame_mut().copy_from_slice(request);
    let checksums = Checksums::default();
    Outbound { buffer, checksums }
}

/// The barest server: has the frame be as long as the reply wanted, with its bytes, and sends it
/// back as it is.
pub fn answer_raw<B: Buffer>(mut buffer: B) -> Outbound<B> {
    let request = buffer.frame().get(Interface::PAYLOAD..FRAME);
    if let Some(reply) = request.and_then(reply_to) {
        buffer.set_length(Interface::PAYLOAD + reply.len());
        buffer.frame_mut()[Interface::PAYLOAD..].copy_from_slice(reply);
    }
    let checksums = Checksums::default();
    Outbound { buffer, checksums }
}

/// Looks at replies, as a client with at most 64 ports.
pub struct Check {
    interface: Interface,
    /// Of a server that sends frames back without turning them round: the requests, which come back
    /// as they were.
    unturned: Option<Vec<[u8; FRAME]>>,
    request: [u8; REQUEST],
    /// A reply's frame.
    length: usize,
    /// Replies that are still to be looked at wholly.
    wholly: u32,
    /// Replies that were not what was asked for.
    pub wrong: u64,
}

impl Check {
    /// The first `wholly` replies are checked to their last byte, checksums and addresses included,
    /// all others by their length. Those of a `raw` server begin as the request did.
    pub fn new(ports: &[u16], reply: u16, wholly: u32, raw: bool) -> Result<Self> {
        Ok(Self {
            interface: client_interface(ports)?,
            unturned: raw.then(|| requests(ports, reply)).transpose()?,
            request: request(reply),
            length: Interface::PAYLOAD + usize::from(reply),
            wholly,
            wrong: 0,
        })
    }

    pub fn look(&mut self, frame: &mut [u8]) {
        let mut right = frame.len() == self.length;
        if self.wholly > 0 {
            self.wholly -= 1;
            right &= self.is_right(frame);
        }
        self.wrong += u64::from(!right);
    }

    #[cold]
    fn is_right(&mut self, frame: &mut [u8]) -> bool {
        let expected = reply_to(&self.request).unwrap_or(&self.request);
        if let Some(requests) = &self.unturned {
            let parts = frame.split_at_checked(Interface::PAYLOAD);
            return parts.is_some_and(|(headers, payload)| {
                payload == expected && requests.iter().any(|one| one.starts_with(headers))
            });
        }
        match self
            .interface
            .receive(frame, VerifiedChecksums::default(), 0)
        {
            Verdict::Deliver(delivery) => {
                delivery.peer.address == SERVER && frame.get(delivery.payload) == Some(expected)
            }
            _ => false,
        }
    }
}
