//! A contender of `cargo xtask bench dataplane`: measures one thing, prints what it found as a line of JSON, and ends.

#![forbid(unsafe_code)]

mod bursts;
#[cfg(feature = "dpdk")]
mod dpdk;
mod frames;
mod rates;
mod reflector;
mod stages;

use anyhow::{Result, ensure};
use clap::Parser;
use shinjuku::net::dataplane::memory;
use shinjuku_bench_dataplane::Rates;

use rates::Wire;

#[derive(Parser)]
#[command(about = "A contender of `cargo xtask bench dataplane`")]
enum Command {
    /// Requests a second, client and server on one thread.
    Rates(rates::Options),
}

fn main() -> Result<()> {
    let found = match Command::parse() {
        Command::Rates(options) => serde_json::to_string(&rates(&options)?)?,
    };
    println!("{found}");
    Ok(())
}

fn rates(options: &rates::Options) -> Result<Rates> {
    match options.wire {
        Wire::Memory => {
            ensure!(!options.software, "a wire in memory does not spread flows");
            let wire = |_| memory::wire(1024, 1024, frames::ROOM).into();
            rates::measure((0..options.dispatchers).map(wire).collect(), options)
        }
        #[cfg(feature = "dpdk")]
        Wire::NetRing => {
            let (wires, _ports) = dpdk::rings(options.dispatchers, options.software)?;
            rates::measure(wires, options)
        }
        #[cfg(not(feature = "dpdk"))]
        Wire::NetRing => anyhow::bail!("built without DPDK: it takes --features dpdk"),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let valid = |seconds: &f64| (0.01..=60.0).contains(seconds);
    let seconds = text.parse().ok().filter(valid);
    seconds.ok_or_else(|| "it must lie between 0.01 and 60".to_owned())
}
