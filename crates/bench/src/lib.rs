//! What `cargo xtask bench` measures: policies and mechanisms in the runtime's own process
//! ([`policies`]), the key-value server beside redis-server ([`kv`]), the network path without the
//! kernel ([`dataplane`]), the rack's XDP program ([`rack`]), libraries with compiled probes
//! ([`ordinary`]), the layouts beside other pools ([`layouts`]), what `auto` chooses beside all
//! that could be chosen ([`auto`]), a web service beside the usual ways to compute in one
//! ([`service`]), servers of many TCP connections beside Linux's, IX's and ZygOS's
//! ([`connections`]), and orders of tasks with measured service times ([`tailguard`]).
//! [`mod@elevate`] is `cargo xtask elevate`, [`paper`] is `cargo xtask paper`, [`versions`] is
//! `cargo xtask compare`.
//!
//! All have one [`harness`]: options, contenders in turn over the same arrivals, ratios of pairs,
//! targets, the format of results.json; and one [`report`]. A new bench is a folder with a front
//! page, a type that is [`Measured`](harness::Measured), and a line in [`Of`].
//!
//! This package links the runtime as users get it, with the special modes that this machine may
//! have, and without the features of tests.

#![deny(unsafe_code)]
#![allow(missing_docs, reason = "only this project links it")]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use shinjuku_preempt::HardPreemption;

pub mod auto;
pub mod closures;
pub mod connections;
pub mod costs;
pub mod dataplane;
pub mod elevate;
pub mod harness;
pub mod kv;
pub mod layouts;
pub mod machine;
pub mod ordinary;
pub mod paper;
pub mod paths;
pub mod policies;
pub mod rack;
pub mod report;
pub mod service;
pub mod tailguard;
pub mod versions;

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// Something else than the runtime in its own process.
    #[command(subcommand)]
    of: Option<Of>,
    #[command(flatten)]
    policies: policies::Options,
}

/// What else there is to measure.
#[derive(Debug, Subcommand)]
pub enum Of {
    /// The key-value server beside redis-server, over TCP.
    Kv(kv::Options),
    /// The network path without the kernel: over DPDK's virtual devices, beside the bare device and
    /// the kernel's UDP.
    Dataplane(dataplane::Options),
    /// The rack's XDP program, packet by packet.
    Rack(rack::Options),
    /// Libraries that know nothing of preemption, with compiled probes and without.
    Ordinary(harness::Options),
    /// The layout `symmetric` beside `threads`, and pools beside rayon and tokio.
    Layouts(layouts::Options),
    /// What `auto` chooses, beside all that could be chosen.
    Auto(auto::Options),
    /// A web service that computes in a pool, and in the ways that a pool replaces, over HTTP.
    Service(service::Options),
    /// Many TCP connections: this project's server beside Linux's ways, IX's and ZygOS's.
    Connections(connections::Options),
    /// TailGuard's order of tasks beside three others, simulated with service times of programs
    /// that are measured here.
    Tailguard(harness::Options),
}

/// Runs a bench and publishes what it found.
///
/// # Errors
/// Where nothing can be measured, where it was interrupted, and where results cannot be written:
/// the latter before anything is measured, as far as it can be told.
pub fn run(options: &Options) -> Result<ExitCode> {
    match &options.of {
        None => policies::run(&options.policies),
        Some(Of::Kv(options)) => kv::run(options),
        Some(Of::Dataplane(options)) => dataplane::run(options),
        Some(Of::Rack(options)) => rack::run(options),
        Some(Of::Ordinary(options)) => ordinary::run(options),
        Some(Of::Layouts(options)) => layouts::run(options),
        Some(Of::Auto(options)) => auto::run(options),
        Some(Of::Service(options)) => service::run(options),
        Some(Of::Connections(options)) => connections::run(options),
        Some(Of::Tailguard(options)) => tailguard::run(options),
    }
}

/// The one place of this package that may promise what the compiler cannot check.
#[allow(unsafe_code)]
pub fn allow_signals() -> HardPreemption {
    // SAFETY: the bench's handlers multiply, or read a redb file through memory it owns; neither
    // relies on the OS thread's identity, on priority inheritance, or on system calls that never
    // answer EINTR. The doctor's does nothing.
    unsafe { HardPreemption::allow() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_takes_the_common_options() {
        for bench in [
            "",
            " kv",
            " dataplane",
            " rack",
            " ordinary",
            " layouts",
            " auto",
            " service",
            " connections",
            " tailguard",
        ] {
            let line = format!("bench{bench} --quick --seed 3 --repetitions 2 --check --json x");
            let parsed: Options = harness::parse(&line).unwrap_or_else(|error| panic!("{error}"));
            let common = match &parsed.of {
                None => &parsed.policies.common,
                Some(Of::Kv(options)) => &options.common,
                Some(Of::Dataplane(options)) => &options.common,
                Some(Of::Rack(options)) => &options.common,
                Some(Of::Ordinary(options)) => options,
                Some(Of::Layouts(options)) => &options.common,
                Some(Of::Auto(options)) => &options.common,
                Some(Of::Service(options)) => &options.common,
                Some(Of::Connections(options)) => &options.common,
                Some(Of::Tailguard(options)) => options,
            };
            assert!(common.quick && common.check && common.seed == 3, "{line}");
        }
    }
}
