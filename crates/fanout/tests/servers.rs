//! Queries to real servers over loopback, under each of the four disciplines; servers that are
//! silent, late, or answer twice; and servers that queue by the deadlines that parts bring.
#![forbid(unsafe_code)]

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shinjuku::config::{LayoutKind, PolicyConfig};
use shinjuku::net::udp::{Datagram, DatagramReply, Udp, UdpConfig};
use shinjuku::net::wire::{ByPart, PartHeader, PartKind};
use shinjuku::{ClassConfig, Config, RequestContext, RequestHandler, Runtime, Server};
use shinjuku_fanout::{Client, ClientConfig, Deadline, Ended, Part, Query, SendError};

/// A test fails rather than hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Classes are SLOs, the tightest first.
const SLOS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];

/// Waits while the gate is shut, notes the payload's first byte, and echoes.
struct Echo {
    open: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl RequestHandler for Echo {
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
        let start = Instant::now();
        while !self.open.load(Ordering::Acquire) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let first = request.get(PartHeader::LENGTH).copied();
        self.seen.lock().unwrap().extend(first);
        let mut reply = request.echo();
        PartHeader::stamp(&mut reply, waited_nanos);
        Some(reply)
    }
}

struct Served {
    address: SocketAddr,
    open: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<u8>>>,
    server: Server<Udp<ByPart>>,
}

fn serve(policy: &'static str, open: bool) -> Served {
    let udp = UdpConfig::new("127.0.0.1:0".parse().unwrap()).buffers(512);
    let udp = Udp::bind_classified(udp, ByPart).unwrap();
    let address = udp.local_addr();
    let class = |(number, slo): (usize, &Duration)| {
        ClassConfig::new(format!("slo-{number}")).slo_us(slo.as_secs_f64() * 1e6)
    };
    let mut config = Config::default()
        .workers(1)
        .layout(LayoutKind::Threads)
        .contexts(16)
        // A spare would go on beside one that waits for the gate.
        .spare_workers(0)
        .queue(256)
        .class(SLOS.iter().enumerate().map(class))
        .policy(PolicyConfig::new(policy));
    config.cores.share = true;
    let open = Arc::new(AtomicBool::new(open));
    let seen = Arc::default();
    let handler = Echo {
        open: Arc::clone(&open),
        seen: Arc::clone(&seen),
    };
    let server = Runtime::builder(handler).config(config).serve(udp).unwrap();
    Served {
        address,
        open,
        seen,
        server,
    }
}

fn next_end(client: &mut Client) -> Ended {
    let start = Instant::now();
    loop {
        if let Some(ended) = client.poll(|_| {}) {
            return ended;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "no query ends: {:?}",
            client.counts()
        );
        client.wait(Duration::from_millis(5));
    }
}

#[test]
fn all_is_answered_or_counted_under_each_discipline() {
    for (policy, deadline) in [
        ("c-fcfs", Deadline::Slo),
        ("priority", Deadline::Slo),
        ("edf", Deadline::Slo),
        ("edf", Deadline::SloAndFanout),
    ] {
        let servers = [(); 3].map(|()| serve(policy, true));
        let addresses = servers.iter().map(|server| server.address).collect();
        let config = ClientConfig::new(addresses)
            .deadline(deadline)
            .give_up_after(PATIENCE);
        let mut client = Client::new(config).unwrap();
        client.warm_up(20, 0, b"w").unwrap();
        let (mut ended, mut replies) = (0, 0);
        for number in 0..300_usize {
            let fanout = 1 + number % 3;
            let class = number % SLOS.len();
            let payload = [number as u8];
            let parts: Vec<_> = (0..fanout)
                .map(|part| Part {
                    server: (number + part) % 3,
                    payload: &payload,
                })
                .collect();
            let query = Query {
                class: class as u16,
                slo: SLOS[class],
                parts: &parts,
            };
            client.send(query).unwrap();
            // Some are under way at once; a socket's buffer holds them.
            while client.open() > 8 {
                ended += usize::from(client.poll(|_| replies += 1).is_some());
                client.wait(Duration::from_millis(1));
            }
        }
        while client.open() > 0 {
            let one = next_end(&mut client);
            assert_eq!(one.missing, 0, "{policy}: {one:?}");
            ended += 1;
        }
        assert_eq!(ended, 300);
        let counts = client.counts();
        assert_eq!((counts.queries, counts.parts), (360, 660), "{policy}");
        assert_eq!(counts.answered, counts.parts, "{policy}: {counts:?}");
        let rest = [
            counts.missing,
            counts.stray,
            counts.malformed,
            counts.duplicate,
        ];
        assert_eq!(rest, [0; 4], "{policy}");
        assert!(replies > 0);
        for served in servers {
            let (report, _) = served.server.shutdown(Duration::from_secs(5));
            assert_eq!(report.policy_error, None, "{policy}");
        }
    }
}

/// The parts wait behind one that occupies the only worker.
fn order_of_service(policy: &'static str) -> Vec<u8> {
    let served = serve(policy, false);
    let config = ClientConfig::new(vec![served.address])
        .deadline(Deadline::Slo)
        .give_up_after(PATIENCE);
    let mut client = Client::new(config).unwrap();
    let mut send = |tag: u8, class: u16, slo_ms: u64| {
        let parts = [Part {
            server: 0,
            payload: &[tag],
        }];
        let slo = Duration::from_millis(slo_ms);
        client
            .send(Query {
                class,
                slo,
                parts: &parts,
            })
            .unwrap();
    };
    send(0, 0, 1);
    // Far apart, so that the times of sending do not matter. Class 1 has the longer SLO.
    send(1, 1, 5_000_000);
    send(2, 0, 4_000_000);
    send(3, 1, 1_000_000);
    send(4, 0, 3_000_000);
    // They have arrived when the server says so.
    let start = Instant::now();
    while served.server.statistics().received < 5 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    served.open.store(true, Ordering::Release);
    for _ in 0..5 {
        assert_eq!(next_end(&mut client).missing, 0);
    }
    let _ = served.server.shutdown(Duration::from_secs(5));
    let seen = served.seen.lock().unwrap();
    seen.clone()
}

#[test]
fn servers_take_the_deadline_that_came_with_the_part() {
    assert_eq!(order_of_service("edf"), [0, 3, 4, 2, 1]);
    assert_eq!(order_of_service("priority"), [0, 2, 4, 1, 3]);
    assert_eq!(order_of_service("c-fcfs"), [0, 1, 2, 3, 4]);
}

#[test]
fn wider_queries_are_due_earlier_once_latencies_are_known() {
    // Servers by hand: one answers after 2 ms, the other at once.
    let [slow, quick] = [2, 0].map(|millis| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        (socket, Duration::from_millis(millis))
    });
    let addresses = vec![slow.0.local_addr().unwrap(), quick.0.local_addr().unwrap()];
    let config = ClientConfig::new(addresses).give_up_after(PATIENCE);
    let mut client = Client::new(config).unwrap();
    let mut ask = |servers: &[usize]| {
        let part = |&server: &usize| Part {
            server,
            payload: b"?",
        };
        let parts: Vec<_> = servers.iter().map(part).collect();
        let slo = Duration::from_secs(1);
        client
            .send(Query {
                class: 0,
                slo,
                parts: &parts,
            })
            .unwrap();
        let mut budgets = Vec::new();
        for &server in servers {
            let (socket, delay) = [&slow, &quick][server];
            let mut datagram = [0; 64];
            let (length, from) = socket.recv_from(&mut datagram).unwrap();
            let (part, _) = PartHeader::parse(&datagram[..length]).unwrap();
            let PartKind::Request { budget_nanos } = part.kind else {
                panic!("a request")
            };
            budgets.push(budget_nanos);
            std::thread::sleep(*delay);
            PartHeader::stamp(&mut datagram[..length], 0);
            socket.send_to(&datagram[..length], from).unwrap();
        }
        assert_eq!(next_end(&mut client).missing, 0);
        budgets
    };
    let second = 1_000_000_000;
    // Nothing is known: the SLO, less what sending took.
    let first = ask(&[1])[0];
    assert!(first > second / 2 && first <= second, "{first}");
    for _ in 0..20 {
        ask(&[0]);
    }
    // The slow server's latency is in the deadline of both parts.
    for budget in ask(&[0, 1]) {
        assert!(budget <= second - 2_000_000, "{budget}");
    }
}

#[test]
fn silence_strangers_and_echoes_are_counted() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = ClientConfig::new(vec![server.local_addr().unwrap()])
        .open(1)
        .give_up_after(Duration::from_secs(2));
    let mut client = Client::new(config).unwrap();
    let parts = [Part {
        server: 0,
        payload: b"a",
    }; 2];
    let slo = Duration::from_millis(1);
    let query = Query {
        class: 3,
        slo,
        parts: &parts,
    };
    client.send(query).unwrap();
    assert_eq!(client.send(query), Err(SendError::Busy { open: 1 }));
    let mut datagrams = Vec::new();
    let mut peer = None;
    for _ in 0..2 {
        let mut datagram = [0; 64];
        let (length, from) = server.recv_from(&mut datagram).unwrap();
        peer = Some(from);
        datagrams.push(datagram[..length].to_vec());
    }
    let peer = peer.unwrap();
    let request = datagrams[0].clone();
    let mut reply = request.clone();
    PartHeader::stamp(&mut reply, 0);
    server.send_to(b"nonsense", peer).unwrap();
    server.send_to(&request, peer).unwrap(); // not a reply
    stranger.send_to(&reply, peer).unwrap();
    server.send_to(&reply, peer).unwrap();
    server.send_to(&reply, peer).unwrap();
    // The other part has no reply.
    let ended = next_end(&mut client);
    assert_eq!((ended.missing, ended.fanout, ended.class), (1, 2, 3));
    assert!(!ended.met());
    server.send_to(&reply, peer).unwrap(); // too late
    let start = Instant::now();
    while client.counts().stray < 2 && start.elapsed() < PATIENCE {
        client.wait(Duration::from_millis(5));
        assert_eq!(client.poll(|_| {}), None);
    }
    let counts = client.counts();
    assert_eq!(
        (counts.malformed, counts.stray, counts.duplicate),
        (2, 2, 1)
    );
    assert_eq!(
        (counts.answered, counts.missing, counts.given_up),
        (1, 1, 1)
    );
    assert_eq!(client.open(), 0);
    assert_eq!(
        client.send(Query {
            parts: &[],
            ..query
        }),
        Err(SendError::Parts { given: 0 })
    );
    let nowhere = [Part {
        server: 1,
        payload: b"",
    }];
    let refused = client.send(Query {
        parts: &nowhere,
        ..query
    });
    assert_eq!(
        refused,
        Err(SendError::Server {
            given: 1,
            servers: 1
        })
    );
}
