//! A UDP server whose requests say how long to work, as in the evaluations of Shinjuku and others.
//!
//! Run: `cargo run --release --example synthetic -- --listen 127.0.0.1:9000`, and the client of
//! <https://github.com/stanford-mast/shinjuku> against it, or any other that speaks its format: 16
//! bytes, two little-endian `u64`, how many nanoseconds to work and when the request was made. The
//! same bytes come back. `--format racksched` selects the format of
//! <https://github.com/netx-repo/RackSched>: 41 bytes, in one packet or several, and replies that
//! tell how many requests of the class are left. See `shinjuku::net::wire`.
//!
//! Expect: a line with the address where it listens and a line that says how it preempts; after
//! control-C (or SIGTERM), the fates of the requests, by class: those that ask for `--long-us` or
//! more are `long`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use shinjuku::net::Transport;
use shinjuku::net::udp::{Datagram, DatagramReply, Udp, UdpConfig};
use shinjuku::net::wire::{RackSchedMessage, ReassemblyConfig, ShinjukuRequest};
use shinjuku::{
    Builder, HardPreemption, Networker, NetworkerConfig, RequestHandler, Runtime, handler_fn,
};
use shinjuku_examples::options::RuntimeOptions;
use shinjuku_examples::stop::Stop;
use shinjuku_examples::work::{spin, spin_with_probes, steps_per_nano};

/// Serves requests that say how long to work.
#[derive(Parser)]
struct Options {
    /// Where to listen; port 0: one that the kernel picks.
    #[arg(long, default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// The format of requests.
    #[arg(long, value_enum, default_value_t = Format::Shinjuku)]
    format: Format,
    /// Receive on a thread of its own instead of the dispatcher's.
    #[arg(long)]
    networker: bool,
    /// The longest work that a request may ask for, in microseconds; others are dropped as
    /// malformed.
    #[arg(long, default_value_t = 10_000, value_name = "US")]
    max_us: u64,
    /// Requests from this length on are of class `long`, in microseconds.
    #[arg(long, default_value_t = 20, value_name = "US")]
    long_us: u64,
    /// Work without probes, so that only a signal can preempt it.
    #[arg(long)]
    no_probes: bool,
    #[command(flatten)]
    runtime: RuntimeOptions,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The 16 bytes of Shinjuku's client.
    Shinjuku,
    /// The 41 bytes of RackSched's, in one packet or several.
    Racksched,
}

impl Format {
    /// How long a request asks to work, in nanoseconds. `None`: it is no request.
    fn run_nanos(self, request: &[u8]) -> Option<u64> {
        match self {
            Self::Shinjuku => Some(ShinjukuRequest::parse(request).ok()?.run_nanos),
            Self::Racksched => Some(RackSchedMessage::parse(request).ok()?.0.run_nanos),
        }
    }

    fn listen(self, config: UdpConfig, classes: usize) -> UdpConfig {
        match self {
            Self::Shinjuku => config.max_datagram(ShinjukuRequest::LENGTH),
            Self::Racksched => {
                let bounds = ReassemblyConfig::default();
                config
                    .max_datagram(bounds.max_request)
                    .racksched(classes, bounds)
            }
        }
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let stop = Stop::listen()?;
    let config = options.runtime.config(&["short", "long"])?;

    let (max, long) = (
        options.max_us.saturating_mul(1000),
        options.long_us.saturating_mul(1000),
    );
    let (format, classes) = (options.format, config.class.len());
    let class_of = move |request: &[u8], _: SocketAddr| {
        let run_nanos = format.run_nanos(request)?;
        let is_long = run_nanos >= long && classes > 1;
        (run_nanos <= max).then_some(u16::from(is_long))
    };
    let buffers = (config.queue + config.contexts + 64).min(1 << 20);
    let udp = format.listen(UdpConfig::new(options.listen).buffers(buffers), classes);
    let udp = Udp::bind_classified(udp, class_of)?;
    let (address, counters) = (udp.local_addr(), udp.counters());

    let steps_per_nano = steps_per_nano();
    let work = if options.no_probes {
        spin
    } else {
        spin_with_probes
    };
    let handler = handler_fn(move |request: Datagram| {
        // The classifier has already checked the request.
        let run_nanos = format.run_nanos(&request)?;
        work((run_nanos as f64 * steps_per_nano) as u64);
        Some(request.echo())
    });
    // SAFETY: the handler's code (the spinning, and giving back the datagram's buffer) makes no
    // system call, takes no priority-inheriting lock and does not depend on the identity of its
    // kernel thread.
    let token = unsafe { HardPreemption::allow() };
    let builder = Runtime::builder(handler)
        .config(config)
        .allow_hard_preemption(token);
    if options.networker {
        let networker = Networker::new(udp, NetworkerConfig::default())?;
        serve(builder, networker, address, stop)?;
    } else {
        serve(builder, udp, address, stop)?;
    }
    println!("{:?}", counters.read());
    Ok(())
}

fn serve<H, Tr>(
    builder: Builder<H>,
    transport: Tr,
    address: SocketAddr,
    stop: Stop,
) -> anyhow::Result<()>
where
    H: RequestHandler<Request = Datagram, Reply = Option<DatagramReply>>,
    Tr: Transport<Request = Datagram, Reply = Option<DatagramReply>>,
{
    let server = builder.serve(transport)?;
    println!("listening on {address}");
    println!("{}", server.description());

    stop.wait();
    let (report, _) = server.shutdown(Duration::from_secs(2));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{report}");
    Ok(())
}
