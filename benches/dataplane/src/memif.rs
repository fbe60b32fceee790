//! The two ends of a memif: a server, and a client's line to it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shinjuku::Runtime;
use shinjuku_bench_dataplane::{Calls, SHORTEST_PAYLOAD};
use shinjuku_dataplane::dpdk::{DpdkDevice, Mbuf};
use shinjuku_dataplane::{Buffer, Device, Outbound, Received};

use crate::call::{self, Line, WHOLLY};
use crate::dpdk;
use crate::frames::{CLIENT_MAC, Check, FRAME, SERVER_MAC, answer_raw, outbound, ports, requests};
use crate::reflector::BATCH;
use crate::serve::{self, Server, serve_bare, wait_for_the_end};
use crate::stages::{Bare, dataplane, handler, inline};

/// What the link may take to come up.
const LINK: Duration = Duration::from_secs(10);

/// Serves at a memif.
pub fn serve(options: &serve::Options) -> Result<()> {
    let (_nic, mut device) = dpdk::memif(&options.at, "server", SERVER_MAC)?;
    match options.server {
        Server::Raw => {
            let mut received = Vec::with_capacity(BATCH);
            let mut outbound = Vec::with_capacity(2 * BATCH);
            serve_bare(options.core, &options.at, move || {
                // What the device has no room for waits here.
                let most = BATCH.min(outbound.capacity() - outbound.len());
                device.receive(most, &mut received);
                let anything = !received.is_empty();
                outbound.extend(
                    received
                        .drain(..)
                        .map(|one: Received<Mbuf>| answer_raw(one.buffer)),
                );
                device.transmit(&mut outbound);
                Ok(anything)
            })
        }
        Server::Transport => {
            let mut bare = Bare::new(device)?;
            serve_bare(options.core, &options.at, move || Ok(bare.turn()))
        }
        Server::Runtime => {
            let server = Runtime::builder(handler())
                .config(inline(options.core))
                .serve(dataplane(device, BATCH)?)?;
            wait_for_the_end(&options.at, &server.description())
        }
    }
}

/// Calls the server at a memif.
pub fn call(options: &call::Options) -> Result<Vec<Calls>> {
    let (nic, device) = dpdk::memif(&options.at, "client", CLIENT_MAC)?;
    let start = Instant::now();
    while !nic.link_up() {
        ensure!(start.elapsed() < LINK, "no link within {LINK:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut line = Memif {
        device,
        raw: options.raw,
        request: [0; FRAME],
        check: Check::new(&ports(1), SHORTEST_PAYLOAD, 0, options.raw)?,
        received: Vec::with_capacity(BATCH),
        outbound: Vec::with_capacity(BATCH),
    };
    call::measure(&mut line, options)
}

struct Memif {
    device: DpdkDevice,
    raw: bool,
    request: [u8; FRAME],
    check: Check,
    /// Empty between turns.
    received: Vec<Received<Mbuf>>,
    /// What the device had no room for.
    outbound: Vec<Outbound<Mbuf>>,
}

impl Line for Memif {
    fn begin(&mut self, reply: u16) -> Result<()> {
        self.request = requests(&ports(1), reply)?[0];
        self.check = Check::new(&ports(1), reply, WHOLLY, self.raw)?;
        Ok(())
    }

    fn send(&mut self) -> Result<bool> {
        if self.outbound.len() == self.outbound.capacity() {
            return Ok(false);
        }
        let Some(buffer) = self.device.allocate() else {
            return Ok(false);
        };
        self.outbound.push(outbound(buffer, &self.request));
        Ok(true)
    }

    fn receive(&mut self) -> Result<u64> {
        self.device.transmit(&mut self.outbound);
        self.device.receive(BATCH, &mut self.received);
        let arrived = self.received.len() as u64;
        for Received { mut buffer, .. } in self.received.drain(..) {
            self.check.look(buffer.frame_mut());
            self.device.free(buffer);
        }
        Ok(arrived)
    }

    fn wrong(&self) -> u64 {
        self.check.wrong
    }
}
