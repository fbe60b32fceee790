//! A server without the kernel's stack: over DPDK or AF_XDP, as its configuration file says.
//!
//! Run over shared memory, which needs neither a network card nor root (`docs/serving.md` names the
//! packages):
//!
//! ```text
//! cargo run --release -p shinjuku-examples --features dpdk --example dataplane -- examples/memif.toml
//! cargo run --release -p shinjuku-loadgen --features dpdk -- --transport dpdk --address 10.0.0.2/24 \
//!     --device net_memif0,socket=target/memif/socket,socket-abstract=no --cores 1 \
//!     --target 10.0.0.1:9000 --protocol shinjuku --mix hi --rate 10k
//! ```
//!
//! Requests are those of the example `synthetic`: a time to work, at most 10 ms, and a stamp, both
//! of which come back. With several ports in the file, the number of the port is the request's
//! class, up to the last class. `format = "racksched"` speaks RackSched's format, whose replies
//! tell how many requests of the class the dispatcher has left. With `reply_ports`, replies leave
//! from other ports, as RackSched's servers do (requests to 1234 and up, replies from 11234 and
//! up). Such a server belongs behind `shinjuku-rack` (`docs/rack.md`).
//!
//! Expect: what the server serves on, where, and how each dispatcher preempts; after control-C (or
//! SIGTERM), the counts of each dispatcher, their sums, and the device's counts. The server itself
//! answers ARP and `ping`; the kernel does not know the address.
#![cfg_attr(
    not(any(feature = "dpdk", feature = "xdp")),
    allow(unused, reason = "then it only says what to build")
)]

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use serde::Deserialize;
use shinjuku::config::{Config, read_toml};
use shinjuku::net::wire::{RackSchedMessage, ReassemblyConfig, ShinjukuRequest};
use shinjuku::net::{ByPort, Classifier};
use shinjuku::{HardPreemption, Runtime, handler_fn};
use shinjuku_dataplane::{Datagram, Dataplane, DataplaneConfig, DataplaneCounts, Device, MacAddr};
use shinjuku_examples::stop::Stop;
use shinjuku_examples::work::{spin_with_probes, steps_per_nano};

const LONGEST_NANOS: u64 = 10_000_000;

/// The configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The format of requests.
    #[serde(default)]
    format: Format,
    /// A runtime for each dispatcher; one by default.
    #[serde(default)]
    dispatcher: Vec<Config>,
    /// Addresses and ports.
    dataplane: DataplaneConfig,
    #[cfg(feature = "dpdk")]
    dpdk: Option<shinjuku_dataplane::dpdk::DpdkConfig>,
    #[cfg(feature = "xdp")]
    xdp: Option<shinjuku_dataplane::xdp::XdpConfig>,
    #[cfg(not(feature = "dpdk"))]
    dpdk: Option<serde::de::IgnoredAny>,
    #[cfg(not(feature = "xdp"))]
    xdp: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// The 16 bytes of Shinjuku's client.
    #[default]
    Shinjuku,
    /// The 41 bytes of RackSched's, in one packet or several.
    RackSched,
}

impl Format {
    /// How long a request asks to work, in nanoseconds. `None`: it is no request.
    fn run_nanos(self, request: &[u8]) -> Option<u64> {
        Some(match self {
            Self::Shinjuku => ShinjukuRequest::parse(request).ok()?.run_nanos,
            Self::RackSched => RackSchedMessage::parse(request).ok()?.0.run_nanos,
        })
    }

    /// `dataplane` with this format, for a runtime with so many classes.
    fn of(self, dataplane: DataplaneConfig, classes: usize) -> DataplaneConfig {
        match self {
            Self::Shinjuku => dataplane,
            Self::RackSched => dataplane.racksched(classes, ReassemblyConfig::default()),
        }
    }
}

const USAGE: &str = "usage: dataplane FILE, such as examples/memif.toml";

fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).context(USAGE)?;
    if path == "-h" || path == "--help" {
        println!("{USAGE}");
        return Ok(());
    }
    // As text, which includes the cause; anyhow would print the cause again.
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

/// The class is the number of the port, up to the last class.
struct Types {
    classes: usize,
}

impl Classifier for Types {
    fn classify(&mut self, datagram: &[u8], peer: SocketAddr) -> Option<u16> {
        self.classify_at(0, datagram, peer)
    }

    fn classify_at(&mut self, port: usize, datagram: &[u8], peer: SocketAddr) -> Option<u16> {
        ByPort.classify_at(port.min(self.classes.saturating_sub(1)), datagram, peer)
    }
}

/// Serves on all devices, one for each dispatcher, until the process is asked to stop.
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
    let (format, steps_per_nano) = (settings.format, steps_per_nano());
    let mut servers = Vec::new();
    for (device, config) in devices.into_iter().zip(&settings.dispatcher) {
        let classes = config.class.len();
        let speaking = format.of(dataplane.clone(), classes);
        let transport = Dataplane::classified(device, speaking, Types { classes })?;
        let counters = transport.counters();
        let handler = handler_fn(move |request: Datagram<D::Buffer>| {
            let nanos = format.run_nanos(&request)?.min(LONGEST_NANOS) as f64;
            spin_with_probes((nanos * steps_per_nano) as u64);
            Some(request.echo())
        });
        // SAFETY: the handler's code (the spinning, and giving back the datagram's buffer) makes no
        // system call, takes no priority-inheriting lock and does not depend on the identity of its
        // kernel thread.
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
    // In reverse: if the device has fewer queues than there are dispatchers, the first dispatcher
    // sends for the others, so it ends last.
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
