//! A UDP server whose requests say how long to work: what Shinjuku's and others' evaluations drive.
//!
//! Run: `cargo run --release --example synthetic -- --listen 127.0.0.1:9000`, and the client of
//! <https://github.com/stanford-mast/shinjuku> against it, or anything else that speaks its format: 16 bytes, two
//! little-endian `u64`, how many nanoseconds to work and when the request was made. The same bytes come back. See
//! `shinjuku::net::wire`.
//!
//! Expect: a line that says where it listens and one that says how it preempts; after control-C (or SIGTERM), what
//! came of the requests, by class: those that ask for `--long-us` or more are `long`.
//!
//! The work is counted in steps, not in time: a preempted request does not work while others run.

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Parser;
use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
use shinjuku::net::wire::ShinjukuRequest;
use shinjuku::{HardPreemption, Runtime, handler_fn, preemptible};
use shinjuku_examples::{options::RuntimeOptions, stop::Stop};

/// Serves requests that say how long to work.
#[derive(Parser)]
struct Options {
    /// Where to listen; port 0: one that the kernel picks.
    #[arg(long, default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// The longest work that a request may ask for, in microseconds; others are dropped as malformed.
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

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let stop = Stop::listen()?;
    let config = options.runtime.config(&["short", "long"])?;

    let (max, long) = (
        options.max_us.saturating_mul(1000),
        options.long_us.saturating_mul(1000),
    );
    let classes = config.class.len();
    let class_of = move |datagram: &[u8], _: SocketAddr| {
        let request = ShinjukuRequest::parse(datagram).ok()?;
        let is_long = request.run_nanos >= long && classes > 1;
        (request.run_nanos <= max).then_some(u16::from(is_long))
    };
    let udp = UdpConfig::new(options.listen)
        .buffers((config.queue + config.contexts + 64).min(1 << 20))
        .max_datagram(ShinjukuRequest::LENGTH);
    let udp = Udp::bind_classified(udp, class_of)?;
    let (address, counters) = (udp.local_addr(), udp.counters());

    let steps_per_nano = 1.0 / nanos_per_step();
    let work = if options.no_probes {
        spin
    } else {
        spin_with_probes
    };
    let handler = handler_fn(move |datagram: Datagram| {
        // The classifier has parsed it once already.
        let request = ShinjukuRequest::parse(&datagram).ok()?;
        work((request.run_nanos as f64 * steps_per_nano) as u64);
        Some(datagram.echo())
    });
    // SAFETY: what the handler reaches (the spinning, and giving back the datagram's buffer) makes no system call,
    // takes no priority-inheriting lock and does not care for the identity of its kernel thread.
    let token = unsafe { HardPreemption::allow() };
    let server = Runtime::builder(handler)
        .config(config)
        .allow_hard_preemption(token)
        .serve(udp)?;
    println!("listening on {address}");
    println!("{}", server.description());

    stop.wait();
    let (report, _) = server.shutdown(Duration::from_secs(2));
    if let Some(statistics) = &report.statistics {
        println!("{statistics}");
    }
    println!("{:?}\n{report}", counters.read());
    Ok(())
}

#[inline(always)]
fn step(value: u64) -> u64 {
    black_box(
        value
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1),
    )
}

#[inline(never)]
fn spin(steps: u64) {
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
    }
}

#[preemptible(every = 16)]
#[inline(never)]
fn spin_with_probes(steps: u64) {
    let mut value = 1;
    for _ in 0..steps {
        value = step(value);
    }
}

/// What a step takes here: the quickest of many runs, the others were disturbed.
fn nanos_per_step() -> f64 {
    const STEPS: u64 = 20_000;
    let run = || {
        let start = Instant::now();
        spin(STEPS);
        start.elapsed()
    };
    let quickest = (0..200)
        .map(|_| run())
        .min()
        .unwrap_or(Duration::from_nanos(STEPS));
    quickest.as_nanos() as f64 / STEPS as f64
}
