//! A server of the real switch that falls silent and comes back: which requests are answered.
//!
//! ```text
//!   all answer | silent, not noticed | silent, noticed | it answers again
//!              ^ SILENT              ^ by the switch   ^ tried again, after RETRY
//! ```
//!
//! Client, switch and three servers are in the network namespaces of [`hop`](super::hop). Requests
//! come at a fixed rate, few enough for any machine, so what is counted is the switch's doing: no
//! figure here is of speed but the time until it notices.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use shinjuku::net::wire::RackSchedMessage;
use shinjuku_plot::Table;
use shinjuku_rack::{Config, Mode, Rack, State};
use shinjuku_tests_support::namespace::Namespace;

use super::hop::{self, CLIENT, PORT, SWITCH};
use crate::harness::{Runs, Section};
use crate::report::figure;

/// The servers; the first is the one that fails.
const SERVERS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(10, 79, 0, 2),
    Ipv4Addr::new(10, 79, 0, 3),
    Ipv4Addr::new(10, 79, 0, 4),
];
/// Between two requests.
const GAP: Duration = Duration::from_micros(500);
/// Between two looks of the switch's control at its servers.
const TICK: Duration = Duration::from_millis(2);
/// When the server falls silent, after the first request.
const SILENT: Duration = Duration::from_millis(100);
/// For how long its first unanswered request must have waited for it to count as failed.
const SILENCE_MS: u64 = 50;
/// How long after that it is tried again.
const RETRY_MS: u64 = 150;
/// It answers again so long before it is tried.
const READY: Duration = Duration::from_millis(50);
/// How long it is measured after it was tried.
const AFTER: Duration = Duration::from_millis(100);
/// A request without an answer for so long has none.
const LOST: Duration = Duration::from_millis(50);
/// Whatever happens, a repetition ends.
const MOST: Duration = Duration::from_secs(3);

/// About how long a repetition takes.
pub const EACH: Duration = Duration::from_millis(600);

/// Shares of the requests that were answered, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phases {
    /// While all servers answer.
    pub before: f64,
    /// While one is silent, and the switch has not noticed.
    pub unnoticed: f64,
    /// While it is silent, and the switch sends it nothing.
    pub noticed: f64,
    /// When it answers again, and is tried again.
    pub back: f64,
    /// Share of the requests that it has got since.
    pub share_of_the_failed: f64,
    /// How long it was silent when the switch noticed, in milliseconds: the configured silence
    /// counts from the first request that it left unanswered.
    pub noticed_after_ms: f64,
}

/// The switch with its servers and a client.
#[derive(Debug)]
pub struct Failing {
    inside: Inside,
    /// The client's, the switch's and the servers'. They end after all that is in them.
    namespaces: [Namespace; 3],
}

/// What is in the namespaces.
#[derive(Debug)]
struct Inside {
    rack: Rack,
    client: UdpSocket,
    next: u32,
    silent: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    servers: Vec<JoinHandle<()>>,
}

/// When a request was sent, and whether its answer has come.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Duration,
    is_answered: bool,
}

/// What the phases are divided by.
#[derive(Debug, Clone, Copy)]
struct Moments {
    noticed: Duration,
    answers_again: Duration,
    tried: Duration,
}

impl Failing {
    /// Makes namespaces, and starts the servers and the switch.
    ///
    /// # Errors
    /// This machine or this user cannot.
    pub fn new() -> Result<Self> {
        let namespaces = hop::connect().map_err(|reason| anyhow!(reason))?;
        let [client, switch, server] = &namespaces;
        for address in &SERVERS[1..] {
            let more = format!("addr add {address}/24 dev veth0");
            server.ip(&more).map_err(|reason| anyhow!(reason))?;
        }
        let rack = switch.within(start)?;
        let asking = client.within(|| UdpSocket::bind((CLIENT, 0)))?;
        asking.set_nonblocking(true)?;
        let silent = Arc::new(AtomicBool::new(false));
        let stop = Arc::new(AtomicBool::new(false));
        let mut servers = Vec::new();
        for (number, address) in SERVERS.into_iter().enumerate() {
            let socket = server.within(|| UdpSocket::bind((address, PORT)))?;
            socket.set_read_timeout(Some(LOST))?;
            let (silent, stop) = (Arc::clone(&silent), Arc::clone(&stop));
            let is_silent = move || number == 0 && silent.load(Relaxed);
            servers.push(std::thread::spawn(move || {
                serve(&socket, &is_silent, &stop)
            }));
        }
        let inside = Inside {
            rack,
            client: asking,
            next: 0,
            silent,
            stop,
            servers,
        };
        Ok(Self { inside, namespaces })
    }

    /// One failure, from before it to after it.
    ///
    /// # Errors
    /// The switch does not notice, or does not try again; or the network fails.
    pub fn measure(&mut self) -> Result<Phases> {
        let Self { inside, namespaces } = self;
        // Where the control asks the kernel for its servers' places.
        let [_, switch, _] = namespaces;
        switch.within(|| inside.measure())
    }
}

impl Inside {
    fn measure(&mut self) -> Result<Phases> {
        let first = self.next.wrapping_add(1);
        let start = Instant::now();
        let mut sent: Vec<Sent> = Vec::new();
        let (mut noticed, mut answers_again, mut tried) = (None, None, None);
        let mut ticked = Duration::ZERO;
        let mut at_trial = (0, 0);
        loop {
            let now = start.elapsed();
            ensure!(
                now < MOST,
                "the switch did not notice, or did not try again"
            );
            if tried.is_some_and(|tried| now >= tried + AFTER + LOST) {
                break;
            }
            let over = tried.is_some_and(|tried| now >= tried + AFTER);
            if !over && now >= GAP * sent.len() as u32 {
                self.send()?;
                sent.push(Sent {
                    at: now,
                    is_answered: false,
                });
            }
            self.receive(first, &mut sent)?;
            self.silent
                .store(now >= SILENT && answers_again.is_none(), Relaxed);
            let ready = Duration::from_millis(RETRY_MS) - READY;
            if noticed.is_some_and(|noticed| now >= noticed + ready) {
                answers_again.get_or_insert(now);
            }
            if now >= ticked + TICK {
                ticked = now;
                for event in self.rack.tick()? {
                    match noticed {
                        None if event.contains("server 0 has failed") => noticed = Some(now),
                        Some(_) if event.contains("server 0 is tried again") => {
                            tried = Some(now);
                            at_trial = self.sent_so_far()?;
                        }
                        // On trial a few late answers are a failure, until they come.
                        Some(_) if tried.is_some() => {}
                        _ => return Err(anyhow!("the switch says that {event}")),
                    }
                }
            }
            std::thread::sleep(GAP / 10);
        }
        let moments = noticed.zip(answers_again).zip(tried);
        let ((noticed, answers_again), tried) = moments.context("a phase is missing")?;
        let (to_failed, to_all) = self.sent_so_far()?;
        let moments = Moments {
            noticed,
            answers_again,
            tried,
        };
        let mut phases = Phases::of(&sent, moments)?;
        phases.share_of_the_failed =
            (to_failed - at_trial.0) as f64 / (to_all - at_trial.1).max(1) as f64;
        Ok(phases)
    }

    /// Requests sent to the server that fails, and to all.
    fn sent_so_far(&self) -> Result<(u64, u64)> {
        let servers = self.rack.status()?.servers;
        let all = servers.iter().map(|server| server.sent).sum();
        ensure!(servers[0].state != State::Leaving, "the server is gone");
        Ok((servers[0].sent, all))
    }

    fn send(&mut self) -> Result<()> {
        self.next = self.next.wrapping_add(1);
        let request = RackSchedMessage::request(1, self.next, 0, 0);
        let switch: SocketAddr = (SWITCH, PORT).into();
        self.client.send_to(&request.to_bytes(), switch)?;
        Ok(())
    }

    /// Takes all answers that have come.
    fn receive(&self, first: u32, sent: &mut [Sent]) -> Result<()> {
        let mut bytes = [0; 64];
        while let Ok(length) = self.client.recv(&mut bytes) {
            let (reply, _) = RackSchedMessage::parse(&bytes[..length])?;
            // One of the repetition before is of no request here.
            if let Some(one) = sent.get_mut(reply.request.wrapping_sub(first) as usize) {
                one.is_answered = true;
            }
        }
        Ok(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for server in self.servers.drain(..) {
            let _ = server.join();
        }
    }
}

impl Phases {
    fn of(sent: &[Sent], moments: Moments) -> Result<Self> {
        let share = |from: Duration, to: Duration| {
            let within = |one: &&Sent| one.at >= from && one.at < to;
            let all = sent.iter().filter(within).count();
            ensure!(all > 0, "no request between {from:?} and {to:?}");
            let answered = sent.iter().filter(within).filter(|one| one.is_answered);
            Ok(answered.count() as f64 / all as f64)
        };
        // What was on its way when a phase began is of neither.
        const ON_ITS_WAY: Duration = Duration::from_millis(3);
        let Moments {
            noticed,
            answers_again,
            tried,
        } = moments;
        Ok(Self {
            before: share(Duration::ZERO, SILENT - ON_ITS_WAY)?,
            unnoticed: share(SILENT, noticed)?,
            noticed: share(noticed + ON_ITS_WAY, answers_again)?,
            back: share(tried, tried + AFTER)?,
            share_of_the_failed: 0.0,
            noticed_after_ms: (noticed - SILENT).as_secs_f64() * 1e3,
        })
    }
}

/// The rack, within its namespace.
fn start() -> Result<Rack> {
    let mut text = format!(
        "address = '{SWITCH}'
        interfaces = ['clients', 'servers']
        failure = {{ silence_ms = {SILENCE_MS}, requests = 3, retry_ms = {RETRY_MS} }}
        [[type]]
        name = 'all'
        port = {PORT}
        format = 'racksched'
        balancer = 'power-of-2'
        load_info = 'int1'\n"
    );
    for (number, address) in SERVERS.iter().enumerate() {
        text += &format!("[[server]]\nname = 'server {number}'\naddress = '{address}'\n");
    }
    let config = Config {
        mode: Mode::Generic,
        ..Config::from_toml(&text).context("the switch's configuration")?
    };
    let mut warning = None;
    let rack = Rack::start(config, |text| warning = Some(text.to_owned()))?;
    match warning {
        Some(warning) => Err(anyhow!(warning)),
        None => Ok(rack),
    }
}

/// Answers at once while not silent, until told to stop.
fn serve(socket: &UdpSocket, is_silent: &dyn Fn() -> bool, stop: &AtomicBool) {
    let mut bytes = [0; 64];
    while !stop.load(Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut bytes) else {
            continue;
        };
        if let Ok((request, _)) = RackSchedMessage::parse(&bytes[..length])
            && !is_silent()
        {
            // What is lost the client misses.
            let _ = socket.send_to(&request.reply(0).to_bytes(), from);
        }
    }
}

/// A phase's name, and its share.
type Phase = (&'static str, fn(&Phases) -> f64);

/// The phases, side by side.
pub fn section(runs: &Runs<Phases>) -> Section {
    let mut table = Table::new(
        "one of three servers falls silent; medians",
        ["", "answered, %", "spread"],
    );
    let phases: [Phase; 4] = [
        ("before", |one| one.before),
        ("silent, not noticed yet", |one| one.unnoticed),
        ("silent, noticed", |one| one.noticed),
        ("tried again, when it answers", |one| one.back),
    ];
    for (name, value) in phases {
        if let Some(share) = runs.spread(|one| Some(100.0 * value(one))) {
            let range = format!("({}..{})", figure(share.min), figure(share.max));
            table.push([name.to_owned(), figure(share.median), range]);
        }
    }
    if let Some(after) = runs.spread(|one| Some(one.noticed_after_ms)) {
        let after = figure(after.median);
        table.notes.push(format!(
            "The switch notices after {after} ms, of which {SILENCE_MS} are its configuration's, by a \
             clock that is up to a jiffy behind."
        ));
    }
    Section {
        heading: "A server of the switch fails".to_owned(),
        tables: vec![table],
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use shinjuku_tests_support::comes_true;
    use shinjuku_tests_support::namespace::must;

    use super::*;
    use crate::paper::List;

    /// The machine may be slow; what goes where is the switch's all the same.
    #[test]
    fn requests_leave_a_silent_server_and_come_back_to_it() {
        let mut failing = match Failing::new() {
            Ok(failing) => failing,
            Err(reason) => {
                println!("SKIPPED requests_leave_a_silent_server_and_come_back_to_it: {reason:#}");
                return;
            }
        };
        let is_as_it_should_be = |phases: &Phases| {
            phases.unnoticed < phases.before
                && phases.noticed_after_ms >= SILENCE_MS as f64 / 2.0
                && phases.noticed > 0.9
                && phases.back > 0.9
                && (0.1..0.6).contains(&phases.share_of_the_failed)
        };
        // A thread that waits too long for a core looks like a silent server, and hardly asks.
        let (mut tries, mut found) = (Vec::new(), Vec::new());
        let are_two = comes_true(|| {
            let one = failing.measure();
            let good = one.as_ref().ok().filter(|one| is_as_it_should_be(one));
            found.extend(good.copied().map(Some));
            tries.push(one);
            found.len() == 2
        });
        assert!(are_two, "{tries:?}");
        let runs = Runs {
            name: "failing".to_owned(),
            runs: found,
        };
        assert_eq!(section(&runs).tables[0].rows.len(), 4);
    }

    /// The control looks for its servers where the switch is, not where the bench is.
    #[test]
    fn a_server_that_has_moved_is_found() {
        let mut failing = match Failing::new() {
            Ok(failing) => failing,
            Err(reason) => {
                println!("SKIPPED a_server_that_has_moved_is_found: {reason:#}");
                return;
            }
        };
        let mac = "02:00:00:00:00:77";
        let [_, switch, server] = &failing.namespaces;
        must(server.ip(&format!("link set veth0 address {mac}")));
        must(switch.ip("neigh flush dev servers"));
        let is_found = comes_true(|| {
            // Meanwhile all servers are silent, which ends it early.
            let _ = failing.measure();
            let status = failing.inside.rack.status().unwrap();
            status.servers.iter().any(|one| one.mac.to_string() == mac)
        });
        assert!(is_found, "{}", failing.inside.rack.status().unwrap());
    }

    /// The list of claims says when the switch notices, and how long the server is silent.
    #[test]
    fn the_list_of_claims_has_these_times() {
        let list = List::read().unwrap();
        let name = "racksched-failure-measured";
        let item = list.items.iter().find(|item| item.name == name).unwrap();
        let silent_ms = SILENCE_MS + RETRY_MS - READY.as_millis() as u64;
        for said in [
            format!("silent for about {silent_ms} ms"),
            format!("waited for {SILENCE_MS} ms"),
            format!("tried again {RETRY_MS} ms later"),
        ] {
            assert!(item.ours.contains(&said), "{said}: {}", item.ours);
        }
        let mut checks = item.checks.iter();
        let noticed = checks
            .find(|check| check.what == "noticed after, ms")
            .unwrap();
        let bounds = noticed.at_least.zip(noticed.at_most).unwrap();
        // A request goes to each server every few gaps, and the control looks at each tick.
        let usual = SILENCE_MS as f64..SILENCE_MS as f64 + 2e3 * TICK.as_secs_f64();
        assert!(
            bounds.0 <= usual.start && usual.end <= bounds.1,
            "{bounds:?}"
        );
    }

    #[test]
    fn shares_are_of_the_requests_of_their_phase() {
        let millis = Duration::from_millis;
        // One each 10 ms; the server is silent from 100 to 250, noticed at 130, tried at 280.
        let sent: Vec<_> = (0..40)
            .map(|number| Sent {
                at: millis(10 * number),
                is_answered: !(100..130).contains(&(10 * number)),
            })
            .collect();
        let moments = Moments {
            noticed: millis(130),
            answers_again: millis(230),
            tried: millis(280),
        };
        let phases = Phases::of(&sent, moments).unwrap();
        let shares = [phases.before, phases.unnoticed, phases.noticed, phases.back];
        assert_eq!(shares, [1.0, 0.0, 1.0, 1.0]);
        assert_eq!(phases.noticed_after_ms, 30.0);
        assert!(Phases::of(&[], moments).is_err());
    }
}
