//! No mbuf is lost, whatever happens to requests. Runtimes run over DPDK's rings; their handlers
//! answer, panic, send no reply, are preempted, keep packets and drop them elsewhere, while more
//! requests come than are admitted. With two dispatchers, each has its own runtime, queue, workers
//! and pool.
//!
//! `cargo test -p shinjuku-tests --features dpdk --release --test dpdk_packets -- --ignored` sends
//! ten million packets.
#![allow(missing_docs)]

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use shinjuku::{
    LayoutKind, MechanismKind, RequestContext, RequestHandler, Runtime, Server, preempt_point,
};
use shinjuku_dataplane::dpdk::{DpdkDevice, Eal, Mbuf, Nic, NicConfig, PortConfig, Spread};
use shinjuku_dataplane::{
    Datagram, DatagramReply, Dataplane, DataplaneConfig, DataplaneCounters, InterfaceConfig,
    MacAddr,
};
use shinjuku_tests_support::dpdk::{Host, PORT, PORTS, start_dpdk};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, wait_for};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), PORT);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Mbufs of the client, and of each dispatcher.
const MBUFS: u32 = 2047;

fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    *EAL.get_or_init(|| start_dpdk(&[]))
}

/// What a request orders, by its first byte.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Kind {
    Echo,
    Silence,
    Panic,
    Long,
    /// The request is kept, and one kept earlier is dropped.
    Keep,
    /// The class does not exist.
    Unknown,
}

impl Kind {
    /// Most are echoes; the others come in all orders.
    fn of(number: u64) -> Self {
        match number {
            _ if number.is_multiple_of(4001) => Self::Panic,
            _ if number.is_multiple_of(1009) => Self::Long,
            _ if number.is_multiple_of(101) => Self::Silence,
            _ if number.is_multiple_of(53) => Self::Keep,
            _ if number.is_multiple_of(31) => Self::Unknown,
            _ => Self::Echo,
        }
    }
}

#[derive(Default)]
struct Service {
    kept: Mutex<VecDeque<Datagram<Mbuf>>>,
    long: AtomicU64,
}

impl RequestHandler for Service {
    type Request = Datagram<Mbuf>;
    type Reply = Option<DatagramReply<Mbuf>>;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(
        &self,
        request: Datagram<Mbuf>,
        _: &RequestContext<'_, ()>,
    ) -> Option<DatagramReply<Mbuf>> {
        let kind = request[0];
        if kind == Kind::Silence as u8 {
            return None;
        }
        if kind == Kind::Panic as u8 {
            std::panic::panic_any(request);
        }
        if kind == Kind::Long as u8 {
            self.long.fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(300) {
                preempt_point();
            }
        }
        if kind == Kind::Keep as u8 {
            let mut kept = self.kept.lock().unwrap();
            kept.push_back(request);
            let dropped = (kept.len() > 32).then(|| kept.pop_front());
            drop(kept);
            drop(dropped);
            return None;
        }
        let length = request.len();
        let mut reply = request.echo();
        // Replies differ in length from the request.
        reply.truncate(length - usize::from(length > 20));
        Some(reply)
    }
}

type Dispatcher = (
    Server<Dataplane<DpdkDevice, fn(&[u8], std::net::SocketAddr) -> Option<u16>>>,
    DataplaneCounters,
);

fn serve(device: DpdkDevice, mechanism: MechanismKind) -> Dispatcher {
    let interface = InterfaceConfig::new(SERVER_MAC, *SERVER.ip(), &[PORT]);
    let classify: fn(&[u8], std::net::SocketAddr) -> Option<u16> = |payload, _| {
        let kind = *payload.first()?;
        Some(u16::from(kind == Kind::Unknown as u8))
    };
    let transport =
        Dataplane::classified(device, DataplaneConfig::new(interface), classify).unwrap();
    let counters = transport.counters();
    let mut config = config(1, mechanism);
    // Fewer than the client has on the way at a time.
    config.queue = 64;
    // With probes, all on one thread, which is much faster on few cores.
    if mechanism == MechanismKind::Probe {
        config.layout = LayoutKind::Inline;
    }
    let server = Runtime::builder(Service::default())
        .config(config)
        .allow_hard_preemption(token())
        .serve(transport)
        .unwrap();
    (server, counters)
}

/// Runtimes on one end of a ring, clients on the other.
struct Experiment {
    server_nic: Nic,
    servers: Vec<Dispatcher>,
    client_nic: Nic,
    /// One for each queue; the first one sends.
    clients: Vec<Host<DpdkDevice>>,
    sent: u64,
    back: u64,
}

impl Experiment {
    fn new(name: &str, dispatchers: u16, mechanism: MechanismKind) -> Self {
        let [server, client] = eal().ring_pair(name, dispatchers, 512).unwrap();
        let open = |port, spread| {
            let config = NicConfig::new()
                .dispatchers(dispatchers.into())
                .mbufs(MBUFS)
                .spread(spread)
                .port(PortConfig {
                    rx_descriptors: 256,
                    tx_descriptors: 256,
                    ..PortConfig::default()
                });
            Nic::open(port, config).unwrap()
        };
        let (server_nic, devices) = open(server, Spread::Software);
        let servers = devices.into_iter().map(|device| serve(device, mechanism));
        let servers = servers.collect();
        let (client_nic, devices) = open(client, Spread::Device);
        let client =
            |device| Host::knowing((CLIENT_MAC, CLIENT), (SERVER_MAC, *SERVER.ip()), device);
        Self {
            server_nic,
            servers,
            client_nic,
            clients: devices.into_iter().map(client).collect(),
            sent: 0,
            back: 0,
        }
    }

    /// Requests that have ended in any way.
    fn ended(&self) -> u64 {
        let of = |server: &Dispatcher| {
            let counts = server.1.read();
            counts.refused + counts.malformed + counts.replies + counts.unanswered
        };
        let shared = self.server_nic.counts().sum();
        let lost = shared.handing_on_failed + shared.overrun;
        lost + self.servers.iter().map(of).sum::<u64>()
    }

    fn receive(&mut self) {
        for client in &mut self.clients {
            client.turn(|_, _| {
                self.back += 1;
                false
            });
        }
    }

    fn send(&mut self, packets: u64) {
        let (mut at, mut ended) = (Instant::now(), 0);
        while self.sent < packets {
            // Sometimes more than are admitted.
            let window = if self.sent % 10_000 < 500 { 500 } else { 32 };
            let room = window.min(packets - self.sent);
            for _ in 0..room.saturating_sub(self.sent - ended) {
                let length = 1 + self.sent as usize % 21;
                let mut payload = [7; 21];
                payload[0] = Kind::of(self.sent) as u8;
                let port = PORT + (self.sent % u64::from(PORTS)) as u16;
                if !self.clients[0].send(port, SERVER, &payload[..length]) {
                    break;
                }
                self.sent += 1;
            }
            self.receive();
            let now = self.ended();
            if now > ended {
                (at, ended) = (Instant::now(), now);
            } else {
                std::thread::yield_now();
                assert!(at.elapsed() < PATIENCE, "{now} of {} ended", self.sent);
            }
        }
    }

    /// Shuts down, and accounts for every mbuf.
    fn end(mut self, name: &str) {
        wait_for("an end for each request", || {
            self.receive();
            self.ended() == self.sent
        });
        let (mut refused, mut replies, mut panicked, mut preempted) = (0, 0, 0, 0);
        for (server, counters) in std::mem::take(&mut self.servers) {
            let (report, transport) = server.shutdown(PATIENCE);
            assert!(report.is_clean(), "{report}");
            // Its end puts the last replies on the wire. The packets that the handler kept went
            // with the handler.
            drop(transport);
            let statistics = report.statistics.expect("it has ended");
            refused += counters.read().refused;
            replies += counters.read().replies;
            panicked += statistics.failed();
            preempted += statistics.preemptions.taken();
        }
        wait_for("every reply", || {
            self.receive();
            self.back == replies
        });
        println!(
            "{name}: {} sent, {replies} replies, {refused} refused, {panicked} panicked, {preempted} preemptions",
            self.sent
        );
        assert!(replies > self.sent / 2);
        assert!(refused > 0, "nothing was refused");
        assert!(panicked > 0, "nothing panicked");
        assert!(preempted > 0, "nothing was preempted");
        drop(self.clients);
        for pool in [self.server_nic.pools(), self.client_nic.pools()].concat() {
            assert_eq!(pool.available(), MBUFS, "mbufs were lost");
        }
    }
}

fn no_mbuf_is_lost(name: &str, dispatchers: u16, mechanism: MechanismKind, packets: u64) {
    quiet_panics();
    let mut experiment = Experiment::new(name, dispatchers, mechanism);
    experiment.send(packets);
    experiment.end(name);
}

/// Silences the panics made on purpose; unwinding drops what their payload holds.
fn quiet_panics() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.payload().is::<Datagram<Mbuf>>() {
                usual(panic);
            }
        }));
    });
}

const PACKETS: u64 = 500_000;

#[test]
fn one_dispatcher_loses_no_mbuf() {
    no_mbuf_is_lost("one", 1, MechanismKind::Probe, PACKETS);
}

#[test]
fn two_dispatchers_lose_no_mbuf() {
    no_mbuf_is_lost("two", 2, MechanismKind::Signal, PACKETS / 20);
}

#[test]
#[ignore = "takes half a minute; in release builds"]
fn ten_million_packets_lose_no_mbuf() {
    no_mbuf_is_lost("many", 1, MechanismKind::Probe, 10_000_000);
}
