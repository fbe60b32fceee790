//! A UDP server whose requests say how long to work, as in the evaluations of Shinjuku and others.
//!
//! Run: `cargo run --release --example synthetic -- --listen 127.0.0.1:9000`, and the client of
//! <https://github.com/stanford-mast/shinjuku> against it, or any other that speaks its format: 16
//! bytes, two little-endian `u64`, how many nanoseconds to work and when the request was made. The
//! same bytes come back. `--format racksched` selects the format of
//! <https://github.com/netx-repo/RackSched>: 41 bytes, in one packet or several, and replies that
//! tell how many requests of the class are left. `--format part` is a part of a query that fans
//! out: its header, which has class and deadline, then the 16 bytes. See `shinjuku::net::wire`.
//!
//! As RackSched's servers do, it serves several request types, each a class, by the port they come
//! to, and replies from other ports: `--types 3 --listen 127.0.0.1:1234 --reply-port 11234`.
//!
//! Expect: a line with the address where it listens and a line that says how it preempts; after
//! control-C (or SIGTERM), the statistics by class: requests that ask for `--long-us` or more are
//! `long`, unless the port or the header tells the class.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use shinjuku::net::udp::{Datagram, DatagramReply, MOST_ADDRESSES, Udp, UdpConfig};
use shinjuku::net::wire::{
    ByPart, PartHeader, RackSchedMessage, ReassemblyConfig, ShinjukuRequest,
};
use shinjuku::net::{Classifier, Transport};
use shinjuku::{
    Builder, HardPreemption, Networker, NetworkerConfig, RequestContext, RequestHandler, Runtime,
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
    /// Serve so many request types, each on a port of its own, from that of `--listen` on; the type
    /// is the class. With port 0, every type gets a port that the kernel picks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_ADDRESSES as i64))]
    types: Option<u16>,
    /// Reply from another port than the one that was asked: this one and the following, one for
    /// each type; 0: some that the kernel picks.
    #[arg(long, value_name = "PORT")]
    reply_port: Option<u16>,
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
    /// A part of a query that fans out: its header, then the 16 bytes.
    Part,
}

impl Format {
    /// How long a request asks to work, in nanoseconds. `None`: it is no request.
    fn run_nanos(self, request: &[u8]) -> Option<u64> {
        match self {
            Self::Shinjuku => Some(ShinjukuRequest::parse(request).ok()?.run_nanos),
            Self::Racksched => Some(RackSchedMessage::parse(request).ok()?.0.run_nanos),
            Self::Part => Self::Shinjuku.run_nanos(PartHeader::parse(request).ok()?.1),
        }
    }

    fn listen(self, config: UdpConfig, classes: usize) -> UdpConfig {
        match self {
            Self::Shinjuku => config.max_datagram(ShinjukuRequest::LENGTH),
            Self::Part => config.max_datagram(PartHeader::LENGTH + ShinjukuRequest::LENGTH),
            Self::Racksched => {
                let bounds = ReassemblyConfig::default();
                config
                    .max_datagram(bounds.max_request)
                    .racksched(classes, bounds)
            }
        }
    }
}

/// Tells a request's class, and the deadline of a part.
struct Requests {
    format: Format,
    /// The lengths that a request may ask for, in nanoseconds.
    allowed: Range<u64>,
    /// From this length on a request is of class `long`, if there is one.
    long: u64,
    /// Whether the class is the number of the port.
    by_port: bool,
}

impl Classifier for Requests {
    fn classify(&mut self, request: &[u8], peer: SocketAddr) -> Option<u16> {
        self.classify_at(0, request, peer)
    }

    fn classify_at(&mut self, port: usize, request: &[u8], peer: SocketAddr) -> Option<u16> {
        let run_nanos = self.format.run_nanos(request)?;
        if !self.allowed.contains(&run_nanos) {
            return None;
        }
        match self.format {
            _ if self.by_port => u16::try_from(port).ok(),
            Format::Part => ByPart.classify(request, peer),
            Format::Shinjuku | Format::Racksched => Some(u16::from(run_nanos >= self.long)),
        }
    }

    fn budget_nanos(&mut self, request: &[u8]) -> Option<i64> {
        match self.format {
            Format::Part => ByPart.budget_nanos(request),
            Format::Shinjuku | Format::Racksched => None,
        }
    }
}

/// Works for as long as a request says, and sends it back.
struct Spin {
    format: Format,
    steps_per_nano: f64,
    work: fn(u64),
}

impl RequestHandler for Spin {
    type Request = Datagram;
    type Reply = Option<DatagramReply>;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(
        &self,
        request: Datagram,
        context: &RequestContext<'_, ()>,
    ) -> Option<DatagramReply> {
        let waited = context.age();
        // The classifier has already checked the request.
        let run_nanos = self.format.run_nanos(&request)?;
        (self.work)((run_nanos as f64 * self.steps_per_nano) as u64);
        let mut reply = request.echo();
        if matches!(self.format, Format::Part) {
            PartHeader::stamp(&mut reply, waited.as_nanos() as u64);
        }
        Some(reply)
    }
}

impl Options {
    /// Where to listen, and where replies leave from.
    fn addresses(&self) -> anyhow::Result<UdpConfig> {
        let types = self.types.unwrap_or(1);
        let ports = |base: u16| {
            let last = base.checked_add(types - 1);
            ensure!(
                last.is_some(),
                "{types} ports from {base} on: there are none above 65535"
            );
            // Port 0 stands for any port, for every type.
            let port = move |number| if base == 0 { 0 } else { base + number };
            let ip = self.listen.ip();
            Ok((0..types).map(move |number| SocketAddr::new(ip, port(number))))
        };
        let mut listen = ports(self.listen.port())?;
        let first = UdpConfig::new(listen.next().unwrap_or(self.listen));
        let config = listen.fold(first, UdpConfig::and_listen);
        Ok(match self.reply_port {
            Some(base) => config.reply_from(ports(base)?),
            None => config,
        })
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let stop = Stop::listen()?;
    let names: Vec<_> = match options.types {
        Some(types) => (0..types).map(|number| format!("type-{number}")).collect(),
        None => vec!["short".to_owned(), "long".to_owned()],
    };
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let config = options.runtime.config(&names)?;

    let classes = config.class.len();
    let requests = Requests {
        format: options.format,
        allowed: 0..options.max_us.saturating_mul(1000).saturating_add(1),
        long: match classes {
            1 => u64::MAX,
            _ => options.long_us.saturating_mul(1000),
        },
        by_port: options.types.is_some(),
    };
    let buffers = (config.queue + config.contexts + 64).min(1 << 20);
    let addresses = options.addresses()?.buffers(buffers);
    let udp = Udp::bind_classified(options.format.listen(addresses, classes), requests)?;
    let counters = udp.counters();
    let listening = Listening {
        first: udp.local_addr(),
        ports: udp.local_addrs().iter().map(SocketAddr::port).collect(),
        replies: udp.reply_addrs().iter().map(SocketAddr::port).collect(),
    };

    let handler = Spin {
        format: options.format,
        steps_per_nano: steps_per_nano(),
        work: if options.no_probes {
            spin
        } else {
            spin_with_probes
        },
    };
    // SAFETY: the handler's code (the spinning, and giving back the datagram's buffer) makes no
    // system call, takes no priority-inheriting lock and does not depend on the identity of its
    // kernel thread.
    let token = unsafe { HardPreemption::allow() };
    let builder = Runtime::builder(handler)
        .config(config)
        .allow_hard_preemption(token);
    if options.networker {
        let networker = Networker::new(udp, NetworkerConfig::default())?;
        serve(builder, networker, &listening, stop)?;
    } else {
        serve(builder, udp, &listening, stop)?;
    }
    println!("{:?}", counters.read());
    Ok(())
}

/// The server's first address, the ports where it listens, and those from which it replies.
struct Listening {
    first: SocketAddr,
    ports: Vec<u16>,
    replies: Vec<u16>,
}

fn serve<H, Tr>(
    builder: Builder<H>,
    transport: Tr,
    listening: &Listening,
    stop: Stop,
) -> anyhow::Result<()>
where
    H: RequestHandler<Request = Datagram, Reply = Option<DatagramReply>>,
    Tr: Transport<Request = Datagram, Reply = Option<DatagramReply>>,
{
    let server = builder.serve(transport)?;
    println!("listening on {}", listening.first);
    println!("{}", server.description());
    if listening.ports != listening.replies || listening.ports.len() > 1 {
        let Listening { ports, replies, .. } = listening;
        println!("ports by type {ports:?}, replies from {replies:?}");
    }

    stop.wait();
    let (report, _) = server.shutdown(Duration::from_secs(2));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{report}");
    Ok(())
}
