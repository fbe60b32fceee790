//! `bench-dataplane flows`: how evenly the hash in software spreads flows over dispatchers. Each
//! flow sends a request, through the devices; the dispatcher that gets it counts it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_bench_dataplane::{Imbalance, SHORTEST_PAYLOAD};
use shinjuku_dataplane::{Device, Outbound, Received};

use crate::frames::{FRAME, outbound, requests};
use crate::reflector::BATCH;

/// What a draw's requests may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct Options {
    /// Dispatchers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub dispatchers: u16,
    /// Flows, that is, ports of one client drawn at random; one after the other if there are
    /// several numbers.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    flows: Vec<u32>,
    /// Draws for each number of flows.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    draws: u32,
    /// Of the draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Draws over these wires, a server's and a client's device for each dispatcher.
pub fn measure<D: Device>(wires: Vec<[D; 2]>, options: &Options) -> Result<Vec<Imbalance>> {
    let (servers, clients) = wires
        .into_iter()
        .map(|[server, client]| (server, client))
        .unzip();
    let mut dispatchers = Dispatchers {
        servers,
        clients,
        received: Vec::with_capacity(BATCH),
        outbound: Vec::with_capacity(BATCH),
    };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(options.seed);
    // Those that clients take.
    let mut ports: Vec<u16> = (1024..=u16::MAX).collect();
    let mut measured = Vec::new();
    for &flows in &options.flows {
        let draw = |_| {
            for at in 0..flows as usize {
                let other = random.random_range(at..ports.len());
                ports.swap(at, other);
            }
            let requests = requests(&ports[..flows as usize], SHORTEST_PAYLOAD)?;
            let got = dispatchers.count(&requests)?;
            let most = got.iter().max().copied().unwrap_or_default();
            Ok(most as f64 * got.len() as f64 / f64::from(flows))
        };
        measured.push(Imbalance {
            flows,
            max_over_mean: (0..options.draws).map(draw).collect::<Result<_>>()?,
        });
    }
    Ok(measured)
}

struct Dispatchers<D: Device> {
    servers: Vec<D>,
    clients: Vec<D>,
    received: Vec<Received<D::Buffer>>,
    outbound: Vec<Outbound<D::Buffer>>,
}

impl<D: Device> Dispatchers<D> {
    /// How many of `requests` each dispatcher gets. The clients send in turns, so that the hash
    /// alone decides.
    fn count(&mut self, requests: &[[u8; FRAME]]) -> Result<Vec<u64>> {
        let mut got = vec![0; self.servers.len()];
        let start = Instant::now();
        let mut sent = 0;
        for (turn, batch) in requests.chunks(BATCH).enumerate() {
            let at = turn % self.clients.len();
            let client = &mut self.clients[at];
            for request in batch {
                let buffer = client.allocate().context("the client lacks buffers")?;
                self.outbound.push(outbound(buffer, request));
            }
            client.transmit(&mut self.outbound);
            sent += batch.len() as u64;
            while got.iter().sum::<u64>() < sent {
                ensure!(
                    start.elapsed() < PATIENCE,
                    "requests were lost: {got:?} came of {sent}"
                );
                for (server, got) in self.servers.iter_mut().zip(&mut got) {
                    server.receive(BATCH, &mut self.received);
                    *got += self.received.len() as u64;
                    self.received
                        .drain(..)
                        .for_each(|one| server.free(one.buffer));
                }
                // It takes back what the server has freed.
                for client in &mut self.clients {
                    client.receive(BATCH, &mut self.received);
                }
            }
        }
        Ok(got)
    }
}
