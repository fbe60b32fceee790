//! With a networker, neither its thread nor the dispatcher's calls the allocator after start, while
//! contexts are preempted within malloc and may hold its locks. Refusals go back and forth at the
//! same time, and requests are reassembled.

use std::mem::ManuallyDrop;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shinjuku::net::Classifier;
use shinjuku::net::udp::{Datagram, Udp, UdpConfig, UdpCounters};
use shinjuku::net::wire::{RackSchedKind, RackSchedMessage, ReassemblyConfig};
use shinjuku::{
    ClassConfig, MechanismKind, Networker, NetworkerConfig, Runtime, Server, handler_fn,
};
use shinjuku_preempt::stress::contexts_in_the_allocator;
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::watch::{Watched, WatchedThreads, churn, grown};
use shinjuku_tests_support::{PATIENCE, turn, wait_for};

const WORKERS: usize = 2;
const CONTEXTS: usize = 32;
const WINDOW: u64 = 48;

static THREADS: WatchedThreads = WatchedThreads::new();
/// While true, requests that start wait.
static HELD: AtomicBool = AtomicBool::new(false);

/// A classifier whose class is the time that the request asks for.
struct TimeAsked;

impl Classifier for TimeAsked {
    fn classify(&mut self, request: &[u8], _: SocketAddr) -> Option<u16> {
        Some(RackSchedMessage::parse(request).ok()?.0.run_nanos as u16)
    }
}

type Outer = Watched<Networker<Watched<Udp<TimeAsked>>>>;

/// A server behind a networker.
struct House {
    /// Not dropped when the test fails: a dispatcher that hangs in malloc does not end.
    server: ManuallyDrop<Server<Outer>>,
    address: SocketAddr,
    counters: UdpCounters,
    delivered: Arc<AtomicU64>,
}

fn start(sloppy: bool) -> House {
    let mut config = config(WORKERS, MechanismKind::Signal);
    config.contexts = CONTEXTS;
    config.policy.quantum_us = 50.0;
    config.class = vec![
        ClassConfig::new("served"),
        ClassConfig::new("hasty").deadline_us(0.001),
    ];
    let bounds = ReassemblyConfig::default().requests(4).max_request(64);
    let listen = UdpConfig::new("127.0.0.1:0".parse().unwrap())
        .max_datagram(64)
        .racksched(2, bounds);
    let udp = Udp::bind_classified(listen, TimeAsked).unwrap();
    let (address, counters) = (udp.local_addr(), udp.counters());
    let inner = Watched::new(udp, &THREADS, sloppy);
    let delivered = inner.delivered();
    let networker = NetworkerConfig::default().idle_backoff(Duration::from_micros(10));
    let outer = Watched::new(Networker::new(inner, networker).unwrap(), &THREADS, false);
    let handler = handler_fn(|request: Datagram| {
        while HELD.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let (message, payload) = RackSchedMessage::parse(&request).unwrap();
        assert_eq!(payload, [1, 2]);
        churn(u64::from(message.request));
        Some(request.echo())
    });
    let server = Runtime::builder(handler)
        .config(config)
        .allow_hard_preemption(token())
        .serve(outer)
        .unwrap();
    House {
        server: ManuallyDrop::new(server),
        address,
        counters,
        delivered,
    }
}

struct Client(UdpSocket);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn send_packet(&self, class: u64, number: u64, sequence: u8) {
        let message = RackSchedMessage {
            kind: if sequence == 0 {
                RackSchedKind::Request
            } else {
                RackSchedKind::Follow
            },
            sequence: sequence.into(),
            total_length: 2 * (RackSchedMessage::LENGTH as u32 + 1),
            ..RackSchedMessage::request(0, number as u32, class, 0)
        };
        let packet = [&message.to_bytes()[..], &[1 + sequence]].concat();
        self.0.send(&packet).unwrap();
    }

    /// Sends a request in two packets, the second one first.
    fn send(&self, class: u64, number: u64) {
        self.send_packet(class, number, 1);
        self.send_packet(class, number, 0);
    }

    fn receive(&self) {
        self.0.recv(&mut [0; 64]).expect("a reply in time");
    }
}

/// Serves until there was enough of everything; returns how often each thread called the allocator
/// meanwhile.
fn calls_in_steady_state(sloppy: bool) -> Vec<(String, u64)> {
    THREADS.clear();
    let House {
        server,
        address,
        counters,
        delivered,
    } = start(sloppy);
    let client = Client::connect(address);
    let start = Instant::now();
    let (mut sent, mut answered, mut most_in_the_allocator) = (0, 0, 0);
    let mut warm = None;
    let calls = loop {
        if sent <= answered {
            // Otherwise, with fewer free cores than threads, each request could be served before
            // the next one is sent.
            HELD.store(true, Ordering::Release);
            (0..WINDOW).for_each(|number| client.send(0, sent + number));
            sent += WINDOW;
            HELD.store(false, Ordering::Release);
        }
        client.receive();
        answered += 1;
        if answered % 8 == 0 {
            client.send(1, sent);
            client.send(2, sent);
            // The rest of this request never comes.
            client.send_packet(0, answered | 1 << 31, 0);
        }
        most_in_the_allocator = most_in_the_allocator.max(contexts_in_the_allocator());
        let Some((at, before)) = &warm else {
            if answered == 2 * CONTEXTS as u64 {
                // The calls are counted before the requests here, and after them at the end. So the
                // calls of all counted requests are counted.
                let before = THREADS.counts();
                warm = Some((delivered.load(Ordering::Acquire), before));
            }
            continue;
        };
        let statistics = server.statistics();
        if delivered.load(Ordering::Acquire) > at + 100
            && statistics.refused.total() > 10
            && counters.read().refused > 10
            && counters.read().reassembly.evicted > 10
            && statistics.preemptions.taken() > 200
            && most_in_the_allocator > WORKERS + 2
        {
            break grown(before, THREADS.counts());
        }
        assert!(
            start.elapsed() < PATIENCE,
            "not enough happened: {answered} answered, {most_in_the_allocator} contexts in the allocator, {statistics}"
        );
    };
    while answered < sent {
        client.receive();
        answered += 1;
    }
    wait_for("the last answer's count", || {
        server.statistics().started == 0
    });
    let (report, outer) = ManuallyDrop::into_inner(server).shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let inner = outer.unwrap().into_inner().into_inner();
    assert!(inner.is_some(), "the transport is given back");
    calls
}

#[test]
fn neither_networker_nor_dispatcher_allocates() {
    let _turn = turn();
    let mut grown = calls_in_steady_state(false);
    grown.sort();
    let none = ["shinjuku-dispatcher", "shinjuku-networker"].map(|name| (name.to_owned(), 0));
    assert_eq!(grown, none);
    // The opposite case shows that the test would notice a call.
    let sloppy = calls_in_steady_state(true);
    let networker = sloppy.iter().find(|(name, _)| name == "shinjuku-networker");
    assert!(networker.unwrap().1 > 100, "{sloppy:?}");
}
