//! Clients over UDP, and a handler with all three callbacks: short requests are answered while a
//! long one runs on the only worker, every reply goes to its client, and a shutdown lets admitted
//! requests finish.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shinjuku::net::udp::{Classifier, Datagram, DatagramReply, Udp, UdpConfig, UdpCounters};
use shinjuku::{
    ClassConfig, MechanismKind, RequestContext, RequestHandler, Runtime, Server, preempt_point,
};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, wait_for};

const SHORT: u8 = 0;
const LONG: u8 = 1;
/// A long request that runs until the gate opens.
const GATED: u8 = 2;

/// A request: its kind, its client, its number. The reply is the request and the number of the
/// handling worker's state.
fn request(kind: u8, client: u8, number: u16) -> [u8; 4] {
    let [low, high] = number.to_le_bytes();
    [kind, client, low, high]
}

/// The state that the test and the handler share.
#[derive(Default)]
struct Gate {
    entered: AtomicUsize,
    left: AtomicUsize,
    open: AtomicBool,
}

struct Service {
    gate: Arc<Gate>,
    probes: bool,
    initialised: AtomicBool,
}

impl Service {
    /// Works until `done` returns true.
    fn work(&self, done: impl Fn() -> bool) {
        while !done() {
            if self.probes {
                preempt_point();
            }
        }
    }
}

impl RequestHandler for Service {
    type Request = Datagram;
    type Reply = Option<DatagramReply>;
    /// Requests that ended on this worker.
    type PerCore = u64;

    fn init(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.initialised.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn init_per_core(&self, _: usize) -> u64 {
        assert!(self.initialised.load(Ordering::Relaxed), "init comes first");
        0
    }

    fn handle_request(
        &self,
        request: Datagram,
        context: &RequestContext<'_, u64>,
    ) -> Option<DatagramReply> {
        let start = Instant::now();
        match request[0] {
            SHORT => {}
            LONG => self.work(|| start.elapsed() > Duration::from_micros(800)),
            _ => {
                self.gate.entered.fetch_add(1, Ordering::Relaxed);
                let open = || self.gate.open.load(Ordering::Relaxed);
                self.work(|| open() || start.elapsed() > PATIENCE);
                self.gate.left.fetch_add(1, Ordering::Relaxed);
            }
        }
        context.per_core(|ended| *ended += 1);
        Some(request.echo())
    }
}

type OverUdp<C> = Server<Udp<C>>;

fn serve(
    mechanism: MechanismKind,
    kind: &'static str,
    gate: &Arc<Gate>,
) -> (OverUdp<impl Classifier>, SocketAddr, UdpCounters) {
    let mut config = config(1, mechanism);
    config.policy.kind = kind.into();
    // Under c-pre-mq a long request that waits for minutes is no more urgent than a short one that
    // has just come.
    config.class = [("short", 1.0), ("long", 3.6e9)]
        .map(|(name, slo_us)| ClassConfig::new(name).slo_us(slo_us))
        .to_vec();
    let classify = |datagram: &[u8], _: SocketAddr| match *datagram {
        [SHORT, _, _, _] => Some(0),
        [LONG | GATED, _, _, _] => Some(1),
        _ => None,
    };
    let listen = UdpConfig::new("127.0.0.1:0".parse().unwrap()).max_datagram(16);
    let udp = Udp::bind_classified(listen, classify).unwrap();
    let (address, counters) = (udp.local_addr(), udp.counters());
    let service = Service {
        gate: Arc::clone(gate),
        probes: mechanism == MechanismKind::Probe,
        initialised: AtomicBool::new(false),
    };
    let server = Runtime::builder(service)
        .config(config)
        .allow_hard_preemption(token())
        .serve(udp)
        .unwrap();
    (server, address, counters)
}

fn client(server: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn reply(client: &UdpSocket) -> [u8; 4] {
    let mut reply = [0; 16];
    let length = client.recv(&mut reply).expect("a reply in time");
    reply[..length].try_into().expect("as long as the request")
}

#[test]
fn short_requests_are_answered_while_long_ones_run_on_the_only_worker() {
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        for kind in ["c-pre-sq", "c-pre-mq"] {
            let gate = Arc::new(Gate::default());
            let (server, address, _) = serve(mechanism, kind, &gate);
            let (patient, hasty) = (client(address), client(address));
            for number in 0..3 {
                patient.send(&request(GATED, 0, number)).unwrap();
            }
            wait_for("the start of the long ones", || {
                gate.entered.load(Ordering::Relaxed) == 3
            });
            // Each takes a preemption; some preemptions come at the end of a guard, or before the
            // first instruction.
            let seen = || {
                let preemptions = server.statistics().preemptions;
                match mechanism {
                    MechanismKind::Probe => preemptions.by_probe > 0,
                    _ => preemptions.by_interrupt > 0,
                }
            };
            let start = Instant::now();
            let mut number = 0;
            while number < 10 || !seen() {
                let short = request(SHORT, 1, number);
                hasty.send(&short).unwrap();
                assert_eq!(reply(&hasty), short, "{mechanism} {kind:?}");
                assert!(start.elapsed() < PATIENCE / 2, "{mechanism} {kind:?}");
                number += 1;
            }
            assert_eq!(
                gate.left.load(Ordering::Relaxed),
                0,
                "{mechanism} {kind:?}: the long ones are still there"
            );
            gate.open.store(true, Ordering::Relaxed);
            let numbers: HashSet<_> = (0..3).map(|_| reply(&patient)).collect();
            let expected = (0..3).map(|number| request(GATED, 0, number)).collect();
            assert_eq!(numbers, expected, "{mechanism} {kind:?}");
            let preemptions = server.statistics().preemptions;
            match mechanism {
                MechanismKind::Probe => assert_eq!(preemptions.by_interrupt, 0),
                _ => assert_eq!(preemptions.by_probe, 0, "there are no probes"),
            }
            assert!(server.shutdown(PATIENCE).0.is_clean());
        }
    }
}

#[test]
fn every_client_gets_its_own_replies_each_once() {
    const CLIENTS: u8 = 3;
    const REQUESTS: u16 = 60;
    const WINDOW: u16 = 16;
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        let (server, address, counters) = serve(mechanism, "c-pre-sq", &Arc::default());
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                scope.spawn(move || {
                    let socket = client(address);
                    let kind = |at: u16| if at.is_multiple_of(10) { LONG } else { SHORT };
                    let mut open = HashSet::new();
                    for at in 0..REQUESTS + WINDOW {
                        if at < REQUESTS {
                            let request = request(kind(at), number, at);
                            socket.send(&request).unwrap();
                            open.insert(request);
                        }
                        if at >= WINDOW {
                            let reply = reply(&socket);
                            assert!(open.remove(&reply), "{reply:?} was not asked for, or twice");
                        }
                    }
                    assert!(open.is_empty());
                    socket.set_nonblocking(true).unwrap();
                    assert!(socket.recv(&mut [0]).is_err(), "nothing else came");
                });
            }
        });
        let total = u64::from(CLIENTS) * u64::from(REQUESTS);
        wait_for("every count", || {
            let counts = counters.read();
            (counts.received, counts.sent) == (total, total)
                && server.statistics().finished() == total
        });
        let (report, _) = server.shutdown(PATIENCE);
        assert!(report.is_clean(), "{mechanism}: {report}");
    }
}

#[test]
fn a_shutdown_lets_what_was_admitted_finish_and_turns_the_rest_away() {
    let gate = Arc::new(Gate::default());
    let (server, address, counters) = serve(MechanismKind::Probe, "c-pre-sq", &gate);
    let socket = client(address);
    const ADMITTED: u16 = 20;
    for number in 0..ADMITTED {
        let kind = if number < 4 { GATED } else { SHORT };
        socket.send(&request(kind, 0, number)).unwrap();
    }
    wait_for("the intake", || {
        server.statistics().received == u64::from(ADMITTED)
    });
    let end = std::thread::spawn(move || server.shutdown(PATIENCE));
    // The server goes on until the long requests are released: requests sent meanwhile are refused
    // as soon as intake has stopped.
    let late = client(address);
    wait_for("a late request that is turned away", || {
        late.send(&request(SHORT, 1, 0)).unwrap();
        counters.read().refused > 0
    });
    assert!(!end.is_finished(), "the long ones are still there");
    gate.open.store(true, Ordering::Relaxed);
    let numbers: HashSet<_> = (0..ADMITTED).map(|_| reply(&socket)).collect();
    assert_eq!(
        numbers.len(),
        usize::from(ADMITTED),
        "each is answered once"
    );
    let (report, _) = end.join().unwrap();
    assert!(report.is_clean(), "{report}");
}
