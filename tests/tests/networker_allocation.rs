//! With a networker, neither its thread nor the dispatcher's calls the allocator after start, while
//! contexts are preempted within malloc and may hold its locks; refusals go back and forth besides,
//! and requests are put together.
#![allow(missing_docs)]

use std::mem::ManuallyDrop;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::net::udp::{Datagram, Udp, UdpConfig};
use shinjuku::net::wire::{RackSchedKind, RackSchedMessage, ReassemblyConfig};
use shinjuku::net::{Arrival, Failure, Refusal, Transport};
use shinjuku::{ClassConfig, MechanismKind, Networker, NetworkerConfig, Runtime, handler_fn};
use shinjuku_preempt::stress::{
    Allocations, CountingAllocator, allocations_of_this_thread, contexts_in_the_allocator,
};
use shinjuku_tests::{PATIENCE, config, token, wait_for};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const WORKERS: usize = 2;
const CONTEXTS: usize = 32;
const WINDOW: u64 = 48;

/// A transport whose poll makes its thread known. It may allocate for that once.
struct Watched<Tr> {
    transport: Tr,
    threads: Arc<Mutex<Vec<(String, Allocations)>>>,
    known: bool,
    /// Allocates where it must not.
    sloppy: bool,
}

impl<Tr: Transport> Transport for Watched<Tr> {
    type Request = Tr::Request;
    type Reply = Tr::Reply;
    type Route = Tr::Route;
    type Outgoing = Tr::Outgoing;
    type Replier = Tr::Replier;

    fn poll(
        &mut self,
        now_nanos: u64,
        room: usize,
        mut deliver: impl FnMut(Arrival<Tr::Request, Tr::Route>),
    ) {
        if !std::mem::replace(&mut self.known, true) {
            let name = std::thread::current().name().unwrap_or("?").to_owned();
            let mut threads = self.threads.lock().unwrap();
            threads.push((name, allocations_of_this_thread()));
        }
        let sloppy = self.sloppy;
        self.transport.poll(now_nanos, room, |arrival| {
            if sloppy {
                drop(std::hint::black_box(Box::new(arrival.class)));
            }
            deliver(arrival);
        });
    }

    fn refuse(&mut self, request: Tr::Request, route: Tr::Route, cause: Refusal) {
        self.transport.refuse(request, route, cause);
    }

    fn conclude(route: Tr::Route, result: Result<Tr::Reply, Failure>) -> Tr::Outgoing {
        Tr::conclude(route, result)
    }

    fn replier(&mut self) -> std::io::Result<Tr::Replier> {
        self.transport.replier()
    }

    fn wait(&mut self, patience: Duration) {
        self.transport.wait(patience);
    }

    fn close(&mut self) {
        self.transport.close();
    }
}

/// Takes and gives back memory of all sizes.
fn churn(seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut held: Vec<Vec<u8>> = Vec::new();
    for _ in 0..200 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let size = (random >> 20) as usize % (1 << (4 + (random >> 8) % 15));
        match random % 3 {
            0 => held.push(Vec::with_capacity(size)),
            1 => held.iter_mut().for_each(|block| block.reserve_exact(size)),
            _ if !held.is_empty() => drop(held.swap_remove(size % held.len())),
            _ => {}
        }
    }
}

/// Serves until there was enough of everything; how often each thread called the allocator
/// meanwhile.
fn calls_in_steady_state(sloppy: bool) -> Vec<(String, u64)> {
    let threads = Arc::new(Mutex::new(Vec::new()));
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
    let udp = Udp::bind_classified(listen, |request: &[u8], _| {
        // The class is the time that it asks for.
        Some(RackSchedMessage::parse(request).ok()?.0.run_nanos as u16)
    })
    .unwrap();
    let (address, counters) = (udp.local_addr(), udp.counters());
    let inner = Watched {
        transport: udp,
        threads: Arc::clone(&threads),
        known: false,
        sloppy,
    };
    let networker = NetworkerConfig::default().idle_backoff(Duration::from_micros(10));
    let outer = Watched {
        transport: Networker::new(inner, networker).unwrap(),
        threads: Arc::clone(&threads),
        known: false,
        sloppy: false,
    };
    let handler = handler_fn(|request: Datagram| {
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
    // Not dropped when the test fails: a dispatcher that hangs in malloc does not end.
    let server = ManuallyDrop::new(server);

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let send_packet = |class: u64, number: u64, sequence: u8| {
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
        socket.send(&packet).unwrap();
    };
    // In two packets, the second one first.
    let send = |class: u64, number: u64| {
        send_packet(class, number, 1);
        send_packet(class, number, 0);
    };
    let counts = || -> Vec<(String, u64)> {
        let threads = threads.lock().unwrap();
        threads
            .iter()
            .map(|(name, allocations)| (name.clone(), allocations.count()))
            .collect()
    };
    let start = Instant::now();
    let (mut sent, mut answered, mut most_in_the_allocator) = (0, 0, 0);
    let mut warm = None;
    let grown = loop {
        while sent < answered + WINDOW {
            send(0, sent);
            sent += 1;
        }
        socket.recv(&mut [0; 64]).expect("a reply in time");
        answered += 1;
        if answered % 8 == 0 {
            send(1, sent);
            send(2, sent);
            // The rest of it does not come.
            send_packet(0, answered | 1 << 31, 0);
        }
        most_in_the_allocator = most_in_the_allocator.max(contexts_in_the_allocator());
        let Some((at, before)) = &warm else {
            if answered == 2 * CONTEXTS as u64 {
                warm = Some((answered, counts()));
            }
            continue;
        };
        let statistics = server.statistics();
        if answered > at + 100
            && statistics.refused.total() > 10
            && counters.read().refused > 10
            && counters.read().reassembly.evicted > 10
            && statistics.preemptions.taken() > 200
            && most_in_the_allocator > WORKERS + 2
        {
            let grown = before.iter().zip(counts());
            break grown
                .map(|((name, before), (_, after))| (name.clone(), after - before))
                .collect();
        }
        assert!(
            start.elapsed() < PATIENCE,
            "not enough happened: {answered} answered, {most_in_the_allocator} contexts in the allocator, {statistics}"
        );
    };
    while answered < sent {
        socket.recv(&mut [0; 64]).expect("a reply in time");
        answered += 1;
    }
    wait_for("the last answer's count", || {
        server.statistics().started == 0
    });
    let (report, outer) = ManuallyDrop::into_inner(server).shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let inner = outer.unwrap().transport.into_inner();
    assert!(inner.is_some(), "the transport is given back");
    grown
}

#[test]
fn neither_networker_nor_dispatcher_allocates() {
    let mut grown = calls_in_steady_state(false);
    grown.sort();
    let none = ["shinjuku-dispatcher", "shinjuku-networker"].map(|name| (name.to_owned(), 0));
    assert_eq!(grown, none);
    // The other way round, to show that it would be noticed.
    let sloppy = calls_in_steady_state(true);
    let networker = sloppy.iter().find(|(name, _)| name == "shinjuku-networker");
    assert!(networker.unwrap().1 > 100, "{sloppy:?}");
}
