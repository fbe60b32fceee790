//! A contender of `cargo xtask bench dataplane`: measures one thing, prints what it found as a line
//! of JSON, and ends.

#![forbid(unsafe_code)]

mod bursts;
mod call;
#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(feature = "dpdk")]
mod flows;
mod frames;
#[cfg(feature = "dpdk")]
mod memif;
mod rates;
mod reflector;
mod serve;
mod stages;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use shinjuku_bench_dataplane::{Calls, Rates};
use shinjuku_dataplane::memory;

use rates::Wire;
use serve::Over;

#[derive(Parser)]
#[command(about = "A contender of `cargo xtask bench dataplane`")]
enum Command {
    /// Requests a second, client and server on one thread.
    Rates(rates::Options),
    /// A server; says `ready`, where and how it serves, and ends with its standard input.
    Serve(serve::Options),
    /// A client: replies a second, and with one request at a time what round trips take.
    Call(call::Options),
    /// How evenly the hash in software spreads flows over dispatchers.
    #[cfg(feature = "dpdk")]
    Flows(flows::Options),
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        // In one line: the program that started this shows the last line.
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<String> {
    Ok(match command {
        Command::Rates(options) => serde_json::to_string(&rates(&options)?)?,
        Command::Serve(options) => serve(&options).map(|()| "ended".to_owned())?,
        Command::Call(options) => serde_json::to_string(&call(&options)?)?,
        #[cfg(feature = "dpdk")]
        Command::Flows(options) => {
            let (wires, _ports) = dpdk::rings(options.dispatchers, true)?;
            serde_json::to_string(&flows::measure(wires, &options)?)?
        }
    })
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
        Wire::NetRing => anyhow::bail!(WITHOUT_DPDK),
    }
}

fn serve(options: &serve::Options) -> Result<()> {
    match options.over {
        Over::Udp => serve::over_udp(options),
        #[cfg(feature = "dpdk")]
        Over::Memif => memif::serve(options),
        #[cfg(not(feature = "dpdk"))]
        Over::Memif => anyhow::bail!(WITHOUT_DPDK),
    }
}

fn call(options: &call::Options) -> Result<Vec<Calls>> {
    match options.over {
        Over::Udp => call::measure(&mut call::Socket::connect(&options.at)?, options),
        #[cfg(feature = "dpdk")]
        Over::Memif => memif::call(options),
        #[cfg(not(feature = "dpdk"))]
        Over::Memif => anyhow::bail!(WITHOUT_DPDK),
    }
}

#[cfg(not(feature = "dpdk"))]
const WITHOUT_DPDK: &str = "this was built without DPDK, which takes --features dpdk";

fn seconds(text: &str) -> Result<f64, String> {
    let valid = |seconds: &f64| (0.01..=60.0).contains(seconds);
    let seconds = text.parse().ok().filter(valid);
    seconds.ok_or_else(|| "it must lie between 0.01 and 60".to_owned())
}

fn core(text: &str) -> Result<usize, String> {
    let core = text.parse().ok().filter(|core| *core < 1024);
    core.ok_or_else(|| "it must be a core's number, below 1024".to_owned())
}
