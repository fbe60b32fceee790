//! The server's end of a wire, with the client behind it on the same thread: whenever the server
//! asks for frames, the client takes its replies first, counts them, and makes a request of each.

use anyhow::{Context, Result};
use shinjuku_bench_dataplane::Rate;
use shinjuku_dataplane::{Buffer, Device, Offload, Outbound, Received};

use crate::bursts::{Bursts, Phase};
use crate::frames::{Check, FRAME, outbound, ports, requests};

/// Requests under way at once.
pub const WINDOW: usize = 256;
/// Requests in a burst: some tenths of a millisecond.
const BURST: u64 = 2000;
/// Frames taken at once, by client and server.
pub const BATCH: usize = 64;

pub struct Reflector<D: Device> {
    server: D,
    client: D,
    /// A frame for each flow, and whose turn it is.
    requests: Vec<[u8; FRAME]>,
    turn: usize,
    at_client: Vec<Received<D::Buffer>>,
    to_server: Vec<Outbound<D::Buffer>>,
    check: Check,
    bursts: Bursts,
    phase: Phase,
}

impl<D: Device> Reflector<D> {
    /// Puts a window's requests onto the wire. A window's replies are checked to the last byte;
    /// those of a `raw` server come with the request's headers.
    pub fn new(
        [server, mut client]: [D; 2],
        flows: u16,
        reply: u16,
        raw: bool,
        phase: Phase,
    ) -> Result<Self> {
        let ports = ports(flows);
        let requests = requests(&ports, reply)?;
        let mut to_server = Vec::with_capacity(WINDOW);
        for turn in 0..WINDOW {
            let buffer = client.allocate().context("the client lacks buffers")?;
            to_server.push(outbound(buffer, &requests[turn % requests.len()]));
        }
        client.transmit(&mut to_server);
        Ok(Self {
            server,
            client,
            requests,
            turn: 0,
            at_client: Vec::with_capacity(BATCH),
            to_server,
            check: Check::new(&ports, reply, WINDOW as u32, raw)?,
            bursts: Bursts::new(phase.clone(), BURST),
            phase,
        })
    }

    /// Whether the server may stop.
    pub fn is_done(&self) -> bool {
        self.phase.is_done()
    }

    /// What the client counted; `None` if it got nothing.
    pub fn rate(&self) -> Option<Rate> {
        self.bursts.rate(self.check.wrong)
    }

    fn reflect(&mut self) {
        self.client.receive(BATCH, &mut self.at_client);
        if self.phase.is_over() {
            self.take_back();
        } else {
            self.bursts.count(self.at_client.len() as u64);
        }
        for Received { mut buffer, .. } in self.at_client.drain(..) {
            self.check.look(buffer.frame_mut());
            self.to_server
                .push(outbound(buffer, &self.requests[self.turn]));
            self.turn += 1;
            if self.turn == self.requests.len() {
                self.turn = 0;
            }
        }
        self.client.transmit(&mut self.to_server);
    }

    /// After the end: no request follows a reply.
    #[cold]
    fn take_back(&mut self) {
        self.phase.came_late(self.at_client.len() as u64);
        for Received { mut buffer, .. } in self.at_client.drain(..) {
            self.check.look(buffer.frame_mut());
            self.client.free(buffer);
        }
    }
}

impl<D: Device> Device for Reflector<D> {
    type Buffer = D::Buffer;

    fn offload(&self) -> Offload {
        self.server.offload()
    }

    fn receive(&mut self, most: usize, frames: &mut Vec<Received<D::Buffer>>) {
        self.reflect();
        self.server.receive(most, frames);
    }

    fn transmit(&mut self, frames: &mut Vec<Outbound<D::Buffer>>) {
        self.server.transmit(frames);
    }

    fn allocate(&mut self) -> Option<D::Buffer> {
        self.server.allocate()
    }

    fn free(&mut self, buffer: D::Buffer) {
        self.server.free(buffer);
    }
}
