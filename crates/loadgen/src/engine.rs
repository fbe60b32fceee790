//! The loop of one thread: it sends what is due, reads what has come, and never sleeps.
//!
//! ```text
//!   Load ──the end of the run, or every connection lost──▶ Drain ──all answered, or its time is up──▶ (done)
//! ```
//!
//! In an open loop each request has its moment, drawn in advance whatever the server does, and its
//! latency counts from that moment: a server that stalls gets all the requests that fall due
//! meanwhile. While saturating, a request is due when a connection has room for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rand_xoshiro::Xoshiro256PlusPlus;
use shinjuku_workload::Gaps;

use crate::client::{Client, Clock, Side};
use crate::record::{Record, Sent};
use crate::requests::Draws;

/// How often requests are checked for the time-out, in ns.
const EXPIRE_EVERY_NS: u64 = 50_000_000;
/// How many due requests are sent before something is read again.
const BATCH: usize = 64;
/// How many connections are read in a turn, unless something falls due.
const READS: usize = 16;
/// How long to wait for answers at most once the run was stopped, in ns.
const STOPPED_DRAIN_NS: u64 = 500_000_000;

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
    /// No request is due after this time, in ns from the start.
    pub(crate) end_ns: u64,
    /// Most requests in all; the run ends with the last of them.
    pub(crate) most_requests: u64,
    /// How long to wait for answers after that, in ns.
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
    /// The unrounded time, so that roundings do not add up.
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

/// What the live line shows; only the thread itself writes it, now and then.
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

/// Runs until the end, or until `stop`; requests under way then still have a moment to be answered.
/// Returns when the last request was due, or when the load ended early, in ns.
pub(crate) fn run<C: Client>(
    client: &mut C,
    mut offer: Offer,
    clock: &Clock,
    record: &mut Record,
    live: &Live,
    stop: &AtomicBool,
) -> u64 {
    let mut expire_at = EXPIRE_EVERY_NS;
    let mut submitted = Vec::with_capacity(BATCH);
    let ended_ns = loop {
        let now_ns = clock.now_ns();
        if now_ns >= expire_at {
            expire_at = now_ns + EXPIRE_EVERY_NS;
            client.expire(now_ns.saturating_sub(offer.timeout_ns), now_ns, record);
            live.publish(record);
        }
        let more = offer.send_due(client, now_ns, record, &mut submitted);
        client.flush(record);
        if !submitted.is_empty() {
            // The time after all have been written, not when the turn began or each was made.
            let written_ns = clock.now_ns();
            for request in submitted.drain(..) {
                record.sent(request, written_ns);
            }
        }
        if !more || client.is_dead() || stop.load(Relaxed) {
            break now_ns.min(offer.end_ns);
        }
        read_some(client, clock, record, offer.next_ns());
    };
    let mut drain_end = ended_ns.saturating_add(offer.drain_ns);
    let mut stopped = false;
    loop {
        let now_ns = clock.now_ns();
        if !stopped && stop.load(Relaxed) {
            stopped = true;
            drain_end = drain_end.min(now_ns.saturating_add(STOPPED_DRAIN_NS));
        }
        if client.outstanding() == 0 || now_ns >= drain_end {
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

/// Reads until there is nothing to read, or until a request is due at `due_ns`.
fn read_some<C: Client>(client: &mut C, clock: &Clock, record: &mut Record, due_ns: u64) {
    for _ in 0..READS {
        if !client.receive(clock, record) || clock.now_ns() >= due_ns {
            break;
        }
    }
}

impl Offer {
    /// Submits what is due by now; returns whether more is to come.
    fn send_due<C: Client>(
        &mut self,
        client: &mut C,
        now_ns: u64,
        record: &mut Record,
        submitted: &mut Vec<Sent>,
    ) -> bool {
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
                submitted.push(request);
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

    /// The side whose turn it is, and since when; `None` if nothing is due.
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use shinjuku_workload::Mix;

    use super::*;
    use crate::requests::{Format, Requests};

    /// A client that is slow to write and gets its answers at once.
    struct Slow {
        takes: Duration,
        submitted: Vec<Sent>,
        written: Vec<Sent>,
    }

    impl Client for Slow {
        fn submit(&mut self, _: Side, request: Sent, _: u16, _: &mut Draws) -> bool {
            self.submitted.push(request);
            true
        }

        fn flush(&mut self, _: &mut Record) {
            if !self.submitted.is_empty() {
                std::thread::sleep(self.takes);
                self.written.append(&mut self.submitted);
            }
        }

        fn receive(&mut self, clock: &Clock, record: &mut Record) -> bool {
            let request = self.written.pop();
            request.is_some_and(|request| {
                record.answered(request, clock.now_ns(), None);
                true
            })
        }

        fn expire(&mut self, _: u64, _: u64, _: &mut Record) {}

        fn end(&mut self, _: u64, _: &mut Record) {}

        fn outstanding(&self) -> usize {
            self.submitted.len() + self.written.len()
        }

        fn has_vacancy(&mut self, _: Side) -> bool {
            true
        }

        fn is_dead(&self) -> bool {
            false
        }

        fn lost(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_request_is_late_until_it_is_written() {
        const TAKES: Duration = Duration::from_millis(3);
        let mix = Mix::named("fixed").unwrap();
        let offer = Offer {
            load: None,
            probe: None,
            draws: Requests::synthetic(&mix, Format::Shinjuku).draws(1, 0, 1, None),
            classes: 1,
            end_ns: u64::MAX,
            most_requests: 3,
            drain_ns: u64::MAX,
            timeout_ns: u64::MAX,
            most_outstanding: 1,
        };
        let mut record = Record::new(2, 0..u64::MAX, 0);
        let mut client = Slow {
            takes: TAKES,
            submitted: Vec::new(),
            written: Vec::new(),
        };
        let clock = Clock::starting(Instant::now());
        let (live, stop) = (Live::default(), AtomicBool::new(false));
        run(&mut client, offer, &clock, &mut record, &live, &stop);
        assert_eq!((record.sent, record.received), (1, 1));
        // The histogram keeps three digits.
        let least = TAKES.as_nanos() as u64 / 1000 * 999;
        assert!(record.lateness.min() >= least, "{}", record.lateness.min());
    }
}
