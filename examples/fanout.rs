//! A client whose queries go to several servers, with deadlines for their parts.
//!
//! Run two servers or more, each with a file that names the policy and a class for each SLO, and
//! this client. `docs/fanout.md` has the file, and the four disciplines side by side.
//!
//! ```text
//! cargo run --release -p shinjuku-examples --example synthetic -- --format part \
//!     --listen 127.0.0.1:9000 --config edf.toml
//! cargo run --release -p shinjuku-examples --example fanout -- \
//!     --servers 127.0.0.1:9000,127.0.0.1:9001 --fanouts 1,2 --slos-us 500,1000 --rate 2000
//! ```
//!
//! Expect: a line for each type of query, with its latencies beside its SLO, and what became of all
//! parts. Queries are sent at the times of a Poisson process, whatever the replies (open loop), and
//! latency counts from those times. A part works for an exponentially distributed time.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use rand::seq::index;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku::net::wire::ShinjukuRequest;
use shinjuku_fanout::{Client, ClientConfig, Deadline, Ended, Part, Query, QueryId, SendError};

/// Sends queries that fan out.
#[derive(Parser)]
struct Options {
    /// The servers, separated by commas.
    #[arg(long, value_delimiter = ',', required = true)]
    servers: Vec<SocketAddr>,
    /// How many servers a query goes to; each of these equally often.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    fanouts: Vec<usize>,
    /// SLOs on latency in microseconds, each equally often; the number of an SLO, from 0, is the
    /// class at the servers.
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    slos_us: Vec<u64>,
    /// From what a part's deadline follows.
    #[arg(long, value_enum, default_value_t = DeadlineFrom::SloAndFanout)]
    deadline: DeadlineFrom,
    /// Queries a second.
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Queries in all.
    #[arg(long, default_value_t = 10_000)]
    queries: u64,
    /// How long a part works on average, in microseconds.
    #[arg(long, default_value_t = 50.0)]
    work_us: f64,
    /// Requests to each server, one at a time, before the queries: to know its latency.
    #[arg(long, default_value_t = 1000)]
    warm_up: usize,
    /// The seed of all randomness: the same queries for every discipline.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum DeadlineFrom {
    /// The SLO alone (T-EDFQ).
    Slo,
    /// SLO and fan-out (TF-EDFQ).
    SloAndFanout,
}

/// Queries whose latencies are reported together: SLO in microseconds, fan-out.
type Kind = (u64, usize);

#[derive(Default)]
struct Results {
    /// When queries under way should have been sent.
    planned: HashMap<QueryId, Instant>,
    micros: BTreeMap<Kind, Vec<f64>>,
    unfinished: BTreeMap<Kind, u64>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let widest = options.fanouts.iter().max();
    ensure!(
        options.fanouts.iter().all(|&fanout| fanout > 0)
            && widest.is_some_and(|&fanout| fanout <= options.servers.len()),
        "fan-outs must lie between 1 and the number of servers"
    );
    ensure!(
        options.rate > 0.0 && options.work_us >= 0.0,
        "the rate must be above zero, and work not below"
    );
    let deadline = match options.deadline {
        DeadlineFrom::Slo => Deadline::Slo,
        DeadlineFrom::SloAndFanout => Deadline::SloAndFanout,
    };
    let config = ClientConfig::new(options.servers.clone())
        .deadline(deadline)
        .open(1 << 14);
    let mut client = Client::new(config)?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(options.seed);
    for _ in 0..options.warm_up {
        client.warm_up(1, 0, &work(&mut random, options.work_us))?;
    }
    let before = client.counts();
    let results = run(&options, &mut client, &mut random)?;
    report(&options, &results);
    let counts = client.counts();
    println!("after {} parts to warm up: {counts:?}", before.parts);
    Ok(())
}

fn run(options: &Options, client: &mut Client, random: &mut impl Rng) -> anyhow::Result<Results> {
    let mut results = Results::default();
    let mut at = Instant::now();
    let take = |client: &mut Client, results: &mut Results| {
        while let Some(ended) = client.poll(|_| {}) {
            results.note(&ended);
        }
    };
    for _ in 0..options.queries {
        at += exponential(random, 1.0 / options.rate);
        while Instant::now() < at {
            take(client, &mut results);
        }
        let class = random.random_range(0..options.slos_us.len());
        let fanout = options.fanouts[random.random_range(0..options.fanouts.len())];
        let payloads: Vec<_> = (0..fanout).map(|_| work(random, options.work_us)).collect();
        let servers = index::sample(random, options.servers.len(), fanout);
        let parts: Vec<_> = servers
            .iter()
            .zip(&payloads)
            .map(|(server, payload)| Part { server, payload })
            .collect();
        let query = Query {
            class: class as u16,
            slo: Duration::from_micros(options.slos_us[class]),
            parts: &parts,
        };
        let id = loop {
            match client.send(query) {
                // The query waits here, and its latency counts from when it was due.
                Err(SendError::Busy { .. }) => take(client, &mut results),
                sent => break sent?,
            }
        };
        results.planned.insert(id, at);
    }
    while client.open() > 0 {
        client.wait(Duration::from_millis(10));
        take(client, &mut results);
    }
    Ok(results)
}

impl Results {
    fn note(&mut self, ended: &Ended) {
        let kind = (ended.slo.as_micros() as u64, ended.fanout);
        let Some(planned) = self.planned.remove(&ended.query) else {
            return;
        };
        if ended.missing > 0 {
            *self.unfinished.entry(kind).or_default() += 1;
            return;
        }
        let micros = planned.elapsed().as_secs_f64() * 1e6;
        self.micros.entry(kind).or_default().push(micros);
    }
}

fn report(options: &Options, results: &Results) {
    println!(
        "{:>9} {:>8} {:>9} {:>11} {:>9} {:>9}  p99 <= SLO",
        "SLO us", "fan-out", "finished", "unfinished", "p50 us", "p99 us"
    );
    for &slo_us in &options.slos_us {
        for &fanout in &options.fanouts {
            let kind = (slo_us, fanout);
            let mut micros = results.micros.get(&kind).cloned().unwrap_or_default();
            micros.sort_by(f64::total_cmp);
            let quantile = |share: f64| {
                let rank = (share * micros.len() as f64).ceil() as usize;
                micros.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
            };
            let unfinished = results.unfinished.get(&kind).copied().unwrap_or_default();
            let met = unfinished == 0 && quantile(0.99) <= slo_us as f64;
            println!(
                "{slo_us:>9} {fanout:>8} {:>9} {unfinished:>11} {:>9.1} {:>9.1}  {}",
                micros.len(),
                quantile(0.5),
                quantile(0.99),
                if met { "yes" } else { "NO" }
            );
        }
    }
}

/// A part's request, in the format of the example `synthetic`.
fn work(random: &mut impl Rng, mean_us: f64) -> [u8; ShinjukuRequest::LENGTH] {
    let request = ShinjukuRequest {
        run_nanos: exponential(random, mean_us / 1e6).as_nanos() as u64,
        generated_nanos: 0,
    };
    request.to_bytes()
}

/// An exponentially distributed time.
fn exponential(random: &mut impl Rng, mean_seconds: f64) -> Duration {
    let share: f64 = random.random();
    Duration::from_secs_f64(-(1.0 - share).ln() * mean_seconds)
}
