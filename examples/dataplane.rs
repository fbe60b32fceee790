//! A server past the kernel: over DPDK or AF_XDP, as its configuration file says.
//!
//! Run over shared memory, which takes neither a network card nor root (the packages are named in
//! the README):
//!
//! ```text
//! cargo run --release -p shinjuku-examples --features dpdk --example dataplane -- examples/memif.toml
//! cargo run --release -p shinjuku-loadgen --features dpdk -- --transport dpdk --address 10.0.0.2/24 \
//!     --device net_memif0,socket=target/memif/socket,socket-abstract=no --cores 1 \
//!     --target 10.0.0.1:9000 --protocol shinjuku --mix hi --rate 10k
//! ```
//!
//! Requests are those of the example `synthetic`: how long to work, at most 10 ms, and a stamp,
//! which come back.
//!
//! Expect: what it serves on, where, and how each dispatcher preempts; after control-C (or
//! SIGTERM), what each dispatcher has counted, all together, and the device. The kernel does not
//! see the address: `ping` from another machine is answered all the same.
#![cfg_attr(
    not(any(feature = "dpdk", feature = "xdp")),
    allow(unused, reason = "then it only says what to build")
)]

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use serde::Deserialize;
use shinjuku::config::{Config, read_toml};
use shinjuku::net::dataplane::{
    Datagram, Dataplane, DataplaneConfig, DataplaneCounts, Device, MacAddr,
};
use shinjuku::net::wire::ShinjukuRequest;
use shinjuku::{HardPreemption, Runtime, handler_fn};
use shinjuku_examples::stop::Stop;
use shinjuku_examples::work::{spin_with_probes, steps_per_nano};

const LONGEST_NANOS: u64 = 10_000_000;

/// The configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// A runtime for each dispatcher; one if there is nothing said.
    #[serde(default)]
    dispatcher: Vec<Config>,
    /// Addresses and ports.
    dataplane: DataplaneConfig,
    #[cfg(feature = "dpdk")]
    dpdk: Option<shinjuku::net::dpdk::DpdkConfig>,
    #[cfg(feature = "xdp")]
    xdp: Option<shinjuku::net::xdp::XdpConfig>,
    #[cfg(not(feature = "dpdk"))]
    dpdk: Option<serde::de::IgnoredAny>,
    #[cfg(not(feature = "xdp"))]
    xdp: Option<serde::de::IgnoredAny>,
}

const USAGE: &str = "usage: dataplane FILE, such as examples/memif.toml";

fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).context(USAGE)?;
    if path == "-h" || path == "--help" {
        println!("{USAGE}");
        return Ok(());
    }
    // As text, which has the cause: anyhow would tell it again.
    let mut settings: Settings = read_toml(&path).map_err(|error| anyhow!("{error}"))?;
    if settings.dispatcher.is_empty() {
        settings.dispatcher.push(Config::default());
    }
    let stop = Stop::listen()?;
    match (settings.dpdk.take(), settings.xdp.take()) {
        #[cfg(feature = "dpdk")]
        (Some(mut dpdk), None) => {
            dpdk.dispatchers.get_or_insert(settings.dispatcher.len());
            let (nic, devices) = dpdk.open(settings.dataplane.interface().longest_packet())?;
            let spread = if nic.spread_by_device() {
                "the device"
            } else {
                "software"
            };
            println!(
                "{} by DPDK, driver {}, spread by {spread}",
                nic.name(),
                nic.driver()
            );
            serve(&settings, nic.mac(), devices, stop)?;
            println!("{}", nic.counts());
        }
        #[cfg(feature = "xdp")]
        (None, Some(mut xdp)) => {
            xdp.queues.get_or_insert(settings.dispatcher.len() as u32);
            let (mac, devices) = xdp.open()?;
            println!("{} by {}", xdp.interface, devices[0]);
            let counters: Vec<_> = devices.iter().map(|device| device.counters()).collect();
            serve(&settings, mac, devices, stop)?;
            for (queue, counters) in counters.iter().enumerate() {
                println!("queue {queue}: {}", counters.read());
            }
        }
        #[cfg(not(feature = "dpdk"))]
        (Some(_), None) => bail!("{path}: `dpdk` takes the feature: build with --features dpdk"),
        #[cfg(not(feature = "xdp"))]
        (None, Some(_)) => bail!("{path}: `xdp` takes the feature: build with --features xdp"),
        _ => bail!("{path}: it must have exactly one of the tables `dpdk` and `xdp`"),
    }
    Ok(())
}

/// Serves on all devices, one for each dispatcher, until it is asked to stop.
fn serve<D: Device>(
    settings: &Settings,
    mac: MacAddr,
    devices: Vec<D>,
    stop: Stop,
) -> anyhow::Result<()> {
    let dispatchers = settings.dispatcher.len();
    ensure!(
        devices.len() == dispatchers,
        "queues: {}, tables `dispatcher`: {dispatchers}; there must be as many",
        devices.len()
    );
    let dataplane = settings.dataplane.clone().mac_or(mac);
    let steps_per_nano = steps_per_nano();
    let mut servers = Vec::new();
    for (device, config) in devices.into_iter().zip(&settings.dispatcher) {
        let transport = Dataplane::new(device, dataplane.clone())?;
        let counters = transport.counters();
        let handler = handler_fn(move |request: Datagram<D::Buffer>| {
            let run_nanos = ShinjukuRequest::parse(&request).ok()?.run_nanos;
            let nanos = run_nanos.min(LONGEST_NANOS) as f64;
            spin_with_probes((nanos * steps_per_nano) as u64);
            Some(request.echo())
        });
        // SAFETY: what the handler reaches (the spinning, and giving back the datagram's buffer)
        // makes no system call, takes no priority-inheriting lock and does not care for the
        // identity of its kernel thread.
        let token = unsafe { HardPreemption::allow() };
        let server = Runtime::builder(handler)
            .config(config.clone())
            .allow_hard_preemption(token)
            .serve(transport)?;
        println!("{}", server.description());
        servers.push((server, counters));
    }
    println!("listening on {}", dataplane.interface());

    stop.wait();
    let mut total: Option<(_, DataplaneCounts)> = None;
    // The first last: where the device has fewer queues than there are dispatchers, it sends for
    // the others.
    for (number, (server, counters)) in servers.into_iter().enumerate().rev() {
        let (report, _) = server.shutdown(Duration::from_secs(2));
        let counts = counters.read();
        println!("dispatcher {number}: {report}");
        let Some(statistics) = report.statistics else {
            continue;
        };
        println!("{statistics}\n{counts}");
        total = Some(match total {
            None => (statistics, counts),
            Some((mut sum, network)) => {
                sum += &statistics;
                (sum, network + counts)
            }
        });
    }
    if let Some((statistics, counts)) = total.filter(|_| dispatchers > 1) {
        println!("all dispatchers:\n{statistics}\n{counts}");
    }
    Ok(())
}
