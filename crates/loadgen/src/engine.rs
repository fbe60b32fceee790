//! The loop of one thread: sends what is due, reads what has come, and never sleeps.
//!
//! ```text
//!   Load ──the end of the run, or every connection lost──▶ Drain ──all answered, or its time is up──▶ (done)
//! ```
//!
//! In an open loop each request has its moment, drawn ahead of it whatever the server does, and its latency counts from
//! that moment: a server that stalls meets all the requests it was to be sent meanwhile. While saturating, a request
//! is due when a connection has room for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_workload::Gaps;

use crate::client::{Client, Clock, Side};
use crate::record::{Record, Sent};
use crate::requests::Draws;

/// How often requests are looked at for the time-out, in ns.
const EXPIRE_EVERY_NS: u64 = 50_000_000;
/// How many requests that are due are sent before something is read again.
const BATCH: usize = 64;
/// How many connections are read in a turn, if nothing is due meanwhile.
const READS: usize = 16;

/// What one thread offers.
#[derive(Debug)]
pub(crate) struct Offer {
    /// An open loop's arrivals; `None` saturates.
    pub(crate) load: Option<Arrivals>,
    /// Arrivals for the connection that only measures.
    pub(crate) probe: Option<Arrivals>,
    pub(crate) draws: Draws,
    /// Number of classes: the probe's tallies come after the load's.
    pub(crate) classes: u16,
    /// No request is due after it; in ns from the start.
    pub(crate) end_ns: u64,
    /// Most requests in all; with them the run ends.
    pub(crate) most_requests: u64,
    /// Then answers are waited for no longer than this.
    pub(crate) drain_ns: u64,
    pub(crate) timeout_ns: u64,
    /// Most requests under way.
    pub(crate) most_outstanding: usize,
}

/// Arrivals of one side: a stream of moments.
#[derive(Debug)]
pub(crate) struct Arrivals {
    gaps: Gaps,
    rng: Xoshiro256PlusPlus,
    /// Kept as drawn, so that roundings do not add up.
    at_ns: f64,
}

impl Arrivals {
    pub(crate) fn new(gaps: Gaps, rng: Xoshiro256PlusPlus) -> Self {
        let mut arrivals = Self {
            gaps,
            rng,
            at_ns: 0.0,
        };
        arrivals.advance();
        arrivals
    }

    fn next_ns(&self) -> u64 {
        self.at_ns as u64
    }

    fn advance(&mut self) {
        self.at_ns += self.gaps.next_gap_ns(&mut self.rng);
    }
}

/// What the live line shows; written by the thread alone, now and then.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl Live {
    fn publish(&self, record: &Record) {
        self.sent.store(record.sent, Relaxed);
        self.received.store(record.received, Relaxed);
        self.failed.store(record.failed, Relaxed);
    }
}

/// Runs until the end, or until `stop`. When the last request was due, or the load ended early, in ns.
pub(crate) fn run<C: Client>(
    client: &mut C,
    mut offer: Offer,
    clock: &Clock,
    record: &mut Record,
    live: &Live,
    stop: &AtomicBool,
) -> u64 {
    let mut expire_at = EXPIRE_EVERY_NS;
    let ended_ns = loop {
        let now_ns = clock.now_ns();
        if now_ns >= expire_at {
            expire_at = now_ns + EXPIRE_EVERY_NS;
            client.expire(now_ns.saturating_sub(offer.timeout_ns), now_ns, record);
            live.publish(record);
        }
        let more = offer.send_due(client, now_ns, record);
        client.flush(record);
        if !more || client.is_dead() || stop.load(Relaxed) {
            break now_ns.min(offer.end_ns);
        }
        read_some(client, clock, record, offer.next_ns());
    };
    let drain_end = ended_ns.saturating_add(offer.drain_ns);
    loop {
        let now_ns = clock.now_ns();
        if client.outstanding() == 0 || now_ns >= drain_end || stop.load(Relaxed) {
            client.end(now_ns, record);
            break;
        }
        if now_ns >= expire_at {
            expire_at = now_ns + EXPIRE_EVERY_NS;
            client.expire(now_ns.saturating_sub(offer.timeout_ns), now_ns, record);
        }
        client.flush(record);
        read_some(client, clock, record, u64::MAX);
    }
    live.publish(record);
    ended_ns
}

/// Reads until there is nothing to read, or a request is due at `due_ns`.
fn read_some<C: Client>(client: &mut C, clock: &Clock, record: &mut Record, due_ns: u64) {
    for _ in 0..READS {
        if !client.receive(clock, record) || clock.now_ns() >= due_ns {
            break;
        }
    }
}

impl Offer {
    /// Sends what is due by now; whether more is to come.
    fn send_due<C: Client>(&mut self, client: &mut C, now_ns: u64, record: &mut Record) -> bool {
        for _ in 0..BATCH {
            if self.most_requests == 0 {
                return false;
            }
            let Some((side, due_ns)) = self.next_due(client, now_ns) else {
                return now_ns < self.end_ns;
            };
            if due_ns >= self.end_ns {
                return false;
            }
            let class = self.draws.class();
            let tally = match side {
                Side::Load => class,
                Side::Probe => self.classes + class,
            };
            let request = Sent { due_ns, tally };
            let room = client.outstanding() < self.most_outstanding;
            if room && client.submit(side, request, class, &mut self.draws) {
                record.sent(request, now_ns);
            } else {
                record.unsent(request);
            }
            self.most_requests -= 1;
        }
        true
    }

    /// When the next request of an open loop is due.
    fn next_ns(&self) -> u64 {
        let sides = [&self.load, &self.probe].into_iter().flatten();
        sides.map(Arrivals::next_ns).min().unwrap_or(u64::MAX)
    }

    /// Whose turn it is, and since when; `None` if nothing is due.
    fn next_due<C: Client>(&mut self, client: &mut C, now_ns: u64) -> Option<(Side, u64)> {
        let sides = [(Side::Load, &mut self.load), (Side::Probe, &mut self.probe)];
        let first = sides
            .into_iter()
            .filter_map(|(side, arrivals)| Some((side, arrivals.as_mut()?)))
            .min_by_key(|(_, arrivals)| arrivals.next_ns())
            .filter(|(_, arrivals)| arrivals.next_ns() <= now_ns);
        if let Some((side, arrivals)) = first {
            let due_ns = arrivals.next_ns();
            arrivals.advance();
            return Some((side, due_ns));
        }
        let saturates = self.load.is_none() && now_ns < self.end_ns;
        (saturates && client.has_vacancy(Side::Load)).then_some((Side::Load, now_ns))
    }
}
