//! Real servers, and a client whose queries go to several of them.
//!
//! A server is a runtime in this process: one worker in the layout `inline`, on a core of its own
//! as far as there are cores. Parts come over loopback's UDP. The client, which is one thread, has
//! no core of its own: it sleeps until a query is due or an answer is there.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use core_affinity::CoreId;
use rand::seq::index;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku::config::{LayoutKind, PolicyConfig};
use shinjuku::net::udp::{Datagram, DatagramReply, Udp, UdpConfig};
use shinjuku::net::wire::{ByPart, PartHeader, ShinjukuRequest};
use shinjuku::policy::{cfcfs, edf, priority};
use shinjuku::{ClassConfig, Config, CoresConfig, RequestContext, RequestHandler, Runtime, Server};
use shinjuku_examples::work::spin_with_probes;
use shinjuku_fanout::{Client, ClientConfig, Deadline, Ended, Part, Query, QueryId, SendError};
use shinjuku_sim::fanout::{Discipline, FanoutScenario};
use shinjuku_workload::Mix;

use super::{KindOutcome, Outcome};

/// Parts to each server, one at a time, from which the client learns its latency.
const WARM_UP: usize = 300;
/// Queries that may be under way.
const OPEN: usize = 1 << 12;
/// A query whose parts are not all answered after this long has lost one.
const LOST: Duration = Duration::from_secs(10);
/// A server must have ended by then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Works for as long as a part says, and sends it back.
struct Spin {
    steps_per_nano: f64,
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
        let waited_nanos = context.age().as_nanos() as u64;
        let (_, payload) = PartHeader::parse(&request).ok()?;
        let run_nanos = ShinjukuRequest::parse(payload).ok()?.run_nanos;
        spin_with_probes((run_nanos as f64 * self.steps_per_nano) as u64);
        let mut reply = request.echo();
        PartHeader::stamp(&mut reply, waited_nanos);
        Some(reply)
    }
}

fn serve(
    scenario: &FanoutScenario,
    core: CoreId,
    steps_per_nano: f64,
) -> Result<(Server<Udp<ByPart>>, SocketAddr)> {
    let listen = UdpConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))).buffers(2 * OPEN);
    let udp = Udp::bind_classified(listen, ByPart)?;
    let address = udp.local_addr();
    let policy = match scenario.discipline {
        Discipline::Fifo => cfcfs::REGISTERED,
        Discipline::Priority => priority::REGISTERED,
        Discipline::Edf | Discipline::TailGuard => edf::REGISTERED,
    };
    let class = |(slo_us, _): &(f64, f64)| ClassConfig::new(format!("{slo_us} us")).slo_us(*slo_us);
    let quantum_us = scenario.quantum.as_micros_f64();
    let config = Config::default()
        .layout(LayoutKind::Inline)
        .workers(1)
        .contexts(256)
        .spare_workers(1)
        .queue(OPEN)
        // The client may need the core.
        .idle_backoff_us(20.0)
        .cores(CoresConfig::default().dispatcher(core.id).share(true))
        .class(scenario.slos_us.iter().map(class))
        .policy(PolicyConfig::new(policy).quantum_us(quantum_us));
    let server = Runtime::builder(Spin { steps_per_nano })
        .config(config)
        .serve(udp)?;
    Ok((server, address))
}

/// Sends the scenario's queries to real servers for so long.
///
/// # Errors
/// Servers or client cannot start, or it was interrupted.
pub fn measure(
    scenario: &FanoutScenario,
    cores: &[CoreId],
    (length, seed): (Duration, u64),
    steps_per_nano: f64,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let servers: Vec<_> = (cores.iter().cycle().take(scenario.servers))
        .map(|core| serve(scenario, *core, steps_per_nano))
        .collect::<Result<_>>()?;
    let addresses = servers.iter().map(|(_, address)| *address).collect();
    let config = ClientConfig::new(addresses)
        .deadline(match scenario.discipline {
            Discipline::TailGuard => Deadline::SloAndFanout,
            _ => Deadline::Slo,
        })
        .percentile(scenario.percentile)
        .give_up_after(LOST)
        .open(OPEN);
    let mut asking = Asking {
        scenario,
        client: Client::new(config)?,
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        under_way: HashMap::new(),
        latencies_us: vec![Vec::new(); scenario.kinds()],
        missing: vec![0; scenario.kinds()],
    };
    let asked = asking.ask(length, stop);
    for (server, _) in servers {
        let (report, _) = server.shutdown(PATIENCE);
        ensure!(report.policy_error.is_none(), "{report}");
    }
    asked?;
    asking.outcome()
}

/// A client at work.
struct Asking<'a> {
    scenario: &'a FanoutScenario,
    client: Client,
    random: Xoshiro256PlusPlus,
    /// When queries should have been sent, and their types; `None`: it does not count.
    under_way: HashMap<QueryId, Option<(Instant, usize)>>,
    /// Latencies, by type of query.
    latencies_us: Vec<Vec<f64>>,
    /// Queries without all answers, by type.
    missing: Vec<u64>,
}

impl Asking<'_> {
    /// The first tenth does not count, as in the simulator. Latency counts from when a query should
    /// have been sent.
    fn ask(&mut self, length: Duration, stop: &AtomicBool) -> Result<()> {
        for _ in 0..WARM_UP {
            let payload = work(&self.scenario.mix, &mut self.random);
            self.client.warm_up(1, 0, &payload)?;
        }
        let mut gaps = self.scenario.arrivals.gaps(self.scenario.gap_ns())?;
        let (start, mut at_nanos) = (Instant::now(), 0.0);
        let length_nanos = length.as_nanos() as f64;
        while at_nanos < length_nanos && !stop.load(Ordering::Relaxed) {
            at_nanos += gaps.next_gap_ns(&mut self.random);
            let planned = start + Duration::from_nanos(at_nanos as u64);
            loop {
                self.take();
                let left = planned.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.client.wait(left);
            }
            self.send(planned, at_nanos >= length_nanos / 10.0)?;
        }
        while self.client.open() > 0 {
            self.client.wait(Duration::from_millis(10));
            self.take();
        }
        Ok(())
    }

    /// Sends a query as the scenario draws it.
    fn send(&mut self, planned: Instant, counts: bool) -> Result<()> {
        let Self {
            scenario, random, ..
        } = self;
        let kind = scenario.kind([random.random(), random.random()]);
        let fanout = scenario.fanout(kind);
        let payloads: Vec<_> = (0..fanout).map(|_| work(&scenario.mix, random)).collect();
        let servers = index::sample(random, scenario.servers, fanout);
        let parts: Vec<_> = servers
            .iter()
            .zip(&payloads)
            .map(|(server, payload)| Part { server, payload })
            .collect();
        let query = Query {
            class: (kind / scenario.fanouts.len()) as u16,
            slo: Duration::from_nanos(scenario.slo_ns(kind) as u64),
            parts: &parts,
        };
        let id = loop {
            match self.client.send(query) {
                // It waits here then, and its latency counts all the same.
                Err(SendError::Busy { .. }) => {
                    self.client.wait(Duration::from_millis(1));
                    self.take();
                }
                sent => break sent?,
            }
        };
        self.under_way.insert(id, counts.then_some((planned, kind)));
        Ok(())
    }

    /// Takes the answers that are there.
    fn take(&mut self) {
        while let Some(Ended { query, missing, .. }) = self.client.poll(|_| {}) {
            let Some(Some((planned, kind))) = self.under_way.remove(&query) else {
                continue;
            };
            if missing > 0 {
                self.missing[kind] += 1;
            } else {
                self.latencies_us[kind].push(planned.elapsed().as_secs_f64() * 1e6);
            }
        }
    }

    fn outcome(self) -> Result<Outcome> {
        let (mut kinds, mut met, mut all) = (Vec::new(), 0, 0);
        for (kind, mut latencies) in self.latencies_us.into_iter().enumerate() {
            latencies.sort_by(f64::total_cmp);
            let slo_us = self.scenario.slo_ns(kind) / 1e3;
            let within = latencies.partition_point(|latency| *latency <= slo_us);
            let queries = latencies.len() + self.missing[kind] as usize;
            if queries == 0 {
                bail!(
                    "it was too short: {} never came",
                    self.scenario.kind_name(kind)
                );
            }
            // What is missing is later than all others.
            let rank = (self.scenario.percentile * queries as f64).ceil() as usize;
            kinds.push(KindOutcome {
                within: within as f64 / queries as f64,
                p99_us: latencies.get(rank.max(1) - 1).copied(),
            });
            met += within;
            all += queries;
        }
        let within = met as f64 / all as f64;
        Ok(Outcome { within, kinds })
    }
}

/// What a part asks for.
fn work(mix: &Mix, random: &mut impl Rng) -> [u8; ShinjukuRequest::LENGTH] {
    let class = mix.sample_class(random);
    let service = &mix.classes()[usize::from(class)].service;
    let request = ShinjukuRequest {
        run_nanos: service.sample(random) as u64,
        generated_nanos: 0,
    };
    request.to_bytes()
}
