//! `bench-dataplane rates`: requests a second, client and server on one thread; or on several, a pair each.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use shinjuku::net::dataplane::Device;
use shinjuku_bench_dataplane::{LONGEST_PAYLOAD, Rates, SHORTEST_PAYLOAD};

use crate::bursts::Phase;
use crate::reflector::{Reflector, WINDOW};
use crate::stages::{Running, Stage};

/// Before anything is measured.
const WARM_UP: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub struct Options {
    /// The wire between client and server.
    #[arg(long)]
    pub wire: Wire,
    /// How much of a server there is.
    #[arg(long)]
    stage: Stage,
    /// Bytes of a reply's UDP payload; a request has 18.
    #[arg(long, default_value_t = SHORTEST_PAYLOAD, value_parser = clap::value_parser!(u16)
        .range(i64::from(SHORTEST_PAYLOAD)..=i64::from(LONGEST_PAYLOAD)))]
    reply: u16,
    /// For how long.
    #[arg(long, value_parser = crate::seconds)]
    seconds: f64,
    /// Dispatchers, a thread each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub dispatchers: u16,
    /// A core for each dispatcher; any by default.
    #[arg(long, value_parser = crate::core)]
    core: Vec<usize>,
    /// Flows of each dispatcher's client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    flows: u16,
    /// Whether a hash in software spreads the flows over the dispatchers, and not the client.
    #[arg(long)]
    pub software: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Wire {
    /// In this process's memory, without DPDK.
    Memory,
    /// DPDK's net_ring.
    #[value(name = "net_ring")]
    NetRing,
}

/// Measures over these wires: a server's and a client's device for each dispatcher.
pub fn measure<D: Device>(wires: Vec<[D; 2]>, options: &Options) -> Result<Rates> {
    let phase = Phase::default();
    let wholly = match options.stage {
        Stage::Raw => 0,
        _ => WINDOW as u32,
    };
    let mut running = Vec::new();
    for (number, wire) in wires.into_iter().enumerate() {
        let device = Reflector::new(wire, options.flows, options.reply, wholly, phase.clone())?;
        let core = options.core.get(number).copied();
        running.push(Running::start(options.stage, device, core)?);
    }
    let description = running.first().and_then(Running::description);
    std::thread::sleep(WARM_UP);
    phase.measure();
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    phase.end();
    let dispatchers: Result<_> = running.into_iter().map(Running::finish).collect();
    Ok(Rates {
        description,
        dispatchers: dispatchers?,
    })
}
