//! A networker on its own thread: UDP and TCP work as without it, and a special transport shows the
//! promises of its rings.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use shinjuku::net::tcp::{Codec, Framing, Reply, Request, Tcp, TcpConfig};
use shinjuku::net::udp::{Datagram, Udp, UdpConfig, UdpCounters};
use shinjuku::net::{Arrival, Failure, Refusal, Replier, Transport};
use shinjuku::{
    MechanismKind, Networker, NetworkerConfig, Runtime, Server, handler_fn, preempt_point,
};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::{PATIENCE, assert_says, wait_for};

/// A configuration for cores that are shared with other tests.
fn shared(ring: usize) -> NetworkerConfig {
    NetworkerConfig::default()
        .idle_backoff(Duration::from_micros(10))
        .ring(ring)
}

// --- over UDP ------------------------------------------------------------------------------------

const SHORT: u8 = 0;
/// Works until the gate opens.
const GATED: u8 = 1;

fn serve(
    mechanism: MechanismKind,
    gate: &Arc<AtomicBool>,
    ring: usize,
) -> (Server<Networker<Udp>>, SocketAddr, UdpCounters) {
    let probes = mechanism == MechanismKind::Probe;
    let gate = Arc::clone(gate);
    let handle = move |request: Datagram| {
        let start = Instant::now();
        while request.first() == Some(&GATED)
            && !gate.load(Ordering::Relaxed)
            && start.elapsed() < PATIENCE
        {
            if probes {
                preempt_point();
            }
        }
        Some(request.echo())
    };
    let listen = UdpConfig::new("127.0.0.1:0".parse().unwrap()).max_datagram(16);
    let udp = Udp::bind(listen).unwrap();
    let (address, counters) = (udp.local_addr(), udp.counters());
    let server = Runtime::builder(handler_fn(handle))
        .config(config(1, mechanism))
        .allow_hard_preemption(token())
        .serve(Networker::new(udp, shared(ring)).unwrap())
        .unwrap();
    (server, address, counters)
}

fn client(server: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn reply(client: &UdpSocket) -> Vec<u8> {
    let mut reply = [0; 16];
    let length = client.recv(&mut reply).expect("a reply in time");
    reply[..length].to_vec()
}

#[test]
fn short_requests_are_answered_while_a_long_one_runs_on_the_only_worker() {
    for mechanism in [MechanismKind::Probe, MechanismKind::Signal] {
        let gate = Arc::default();
        let (server, address, _) = serve(mechanism, &gate, 64);
        let (patient, hasty) = (client(address), client(address));
        patient.send(&[GATED]).unwrap();
        wait_for("the start of the long one", || {
            server.statistics().started == 1
        });
        let taken = || server.statistics().preemptions.taken();
        let start = Instant::now();
        let mut number = 0;
        while number < 10 || taken() == 0 {
            hasty.send(&[SHORT, number]).unwrap();
            assert_eq!(reply(&hasty), [SHORT, number], "{mechanism}");
            assert!(start.elapsed() < PATIENCE / 2, "{mechanism}");
            number = number.wrapping_add(1);
        }
        gate.store(true, Ordering::Relaxed);
        assert_eq!(reply(&patient), [GATED]);
        let (report, networker) = server.shutdown(PATIENCE);
        assert!(report.is_clean(), "{mechanism}: {report}");
        let udp = networker.unwrap().into_inner().expect("the transport");
        assert_eq!(udp.local_addr(), address);
    }
}

#[test]
fn a_shutdown_in_the_midst_of_traffic_loses_nothing_that_was_received() {
    let (server, address, counters) = serve(MechanismKind::Probe, &Arc::default(), 64);
    let stop = AtomicBool::new(false);
    let (report, networker) = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let socket = client(address);
                socket.set_nonblocking(true).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for number in 0..20 {
                        // The kernel reports an error once the server is gone; a full queue is also
                        // possible.
                        let _ = socket.send(&[SHORT, number]);
                        let _ = socket.recv(&mut [0; 16]);
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        wait_for("traffic", || server.statistics().finished() > 500);
        let ended = server.shutdown(PATIENCE);
        stop.store(true, Ordering::Relaxed);
        ended
    });
    assert!(report.is_clean(), "{report}");
    let statistics = report.statistics.unwrap();
    let udp = networker.unwrap().into_inner().expect("the transport");
    drop(udp);
    let counts = counters.read();
    assert_eq!(
        counts.received,
        counts.refused + counts.sent + counts.send_failed,
        "{counts:?}"
    );
    assert_eq!(counts.sent + counts.send_failed, statistics.finished());
    assert_eq!(counts.free_buffers, 1024, "{counts:?}");
}

// --- over TCP ------------------------------------------------------------------------------------

/// A request is a line; one that begins with `?` is of an unknown class.
#[derive(Clone)]
struct Lines;

impl Codec for Lines {
    type Progress = ();
    type Session = ();

    fn frame(&self, bytes: &[u8], (): &mut (), (): &()) -> Framing {
        match bytes.iter().position(|&byte| byte == b'\n') {
            Some(at) => Framing::Complete {
                length: at + 1,
                class: if bytes[0] == b'?' { 9 } else { 0 },
            },
            None => Framing::Incomplete,
        }
    }
    fn refusal(&self, _: Refusal) -> &'static [u8] {
        b"refused\n"
    }
    fn failure(&self) -> &'static [u8] {
        b"failed\n"
    }
}

#[test]
fn connections_get_their_replies_in_order_and_refusals_among_them() {
    const CLIENTS: usize = 3;
    const LINES: usize = 100;
    let handle = |mut request: Request<Lines>| -> Reply<Lines> {
        let (line, output, ()) = request.parts();
        output.extend_from_slice(line).expect("lines are short");
        preempt_point();
        request.reply()
    };
    let listen = TcpConfig::new("127.0.0.1:0".parse().unwrap()).connections(CLIENTS);
    let tcp = Tcp::bind(listen, Lines).unwrap();
    let (address, counters) = (tcp.local_addr(), tcp.counters());
    let server = Runtime::builder(handler_fn(handle))
        .config(config(2, MechanismKind::Signal))
        .allow_hard_preemption(token())
        .serve(Networker::new(tcp, shared(64)).unwrap())
        .unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
                // One at a time, then all at once.
                for window in [1, LINES] {
                    for first in (0..LINES).step_by(window) {
                        let numbers = first..first + window;
                        let is_refused = |number: usize| number % 7 == 3;
                        let lines: String = numbers
                            .clone()
                            .map(|number| {
                                let mark = if is_refused(number) { "?" } else { "" };
                                format!("{mark}{client}-{number}\n")
                            })
                            .collect();
                        stream.write_all(lines.as_bytes()).unwrap();
                        for number in numbers {
                            let reply = replies.next().unwrap().unwrap();
                            if is_refused(number) {
                                assert_eq!(reply, "refused");
                            } else {
                                assert_eq!(reply, format!("{client}-{number}"));
                            }
                        }
                    }
                }
            });
        }
    });
    let (report, networker) = server.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report}");
    let statistics = report.statistics.unwrap();
    let refused = statistics.refused.total();
    let total = 2 * (CLIENTS * LINES) as u64;
    assert_eq!(statistics.finished() + refused, total);
    assert!(refused >= total / 8, "{statistics}");
    let tcp = networker.unwrap().into_inner().expect("the transport");
    assert_eq!(tcp.local_addr(), address);
    let counts = counters.read();
    assert_eq!(counts.received, total, "{counts:?}");
}

// --- with a transport made for the test ----------------------------------------------------------

/// What the test sees of the transport on the networker's thread.
#[derive(Default)]
struct Seen {
    /// The test's numbers, to be delivered.
    source: Mutex<VecDeque<u32>>,
    delivered: AtomicUsize,
    refused: Mutex<Vec<(u32, Refusal)>>,
    most_room: AtomicUsize,
    polls: AtomicUsize,
    waits: AtomicUsize,
    closed: AtomicBool,
    /// While true, polls wait.
    held: AtomicBool,
    /// Whether a poll waits.
    stuck: AtomicBool,
    broken: AtomicBool,
    threads: Mutex<Vec<ThreadId>>,
}

struct Toy(Arc<Seen>);

struct NoReplier;

impl Replier for NoReplier {
    type Outgoing = ();
    fn send(&mut self, (): ()) {}
}

impl Toy {
    fn called(&self) {
        let mut threads = self.0.threads.lock().unwrap();
        let this = std::thread::current().id();
        if !threads.contains(&this) {
            threads.push(this);
        }
    }
}

impl Transport for Toy {
    type Request = u32;
    type Reply = ();
    type Route = ();
    type Outgoing = ();
    type Replier = NoReplier;

    fn poll(&mut self, now_nanos: u64, room: usize, mut deliver: impl FnMut(Arrival<u32, ()>)) {
        self.called();
        let seen = &*self.0;
        seen.polls.fetch_add(1, Ordering::SeqCst);
        while seen.held.load(Ordering::SeqCst) {
            seen.stuck.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(
            !seen.broken.load(Ordering::SeqCst),
            "broken, as the test wants it"
        );
        seen.most_room.fetch_max(room, Ordering::SeqCst);
        let mut source = seen.source.lock().unwrap();
        for _ in 0..room {
            let Some(request) = source.pop_front() else {
                break;
            };
            seen.delivered.fetch_add(1, Ordering::SeqCst);
            deliver(Arrival::new(request, (), now_nanos));
        }
    }

    fn refuse(&mut self, request: u32, (): (), cause: Refusal) {
        self.called();
        self.0.refused.lock().unwrap().push((request, cause));
    }

    fn conclude((): (), _: Result<(), Failure>) {}

    fn replier(&mut self) -> std::io::Result<NoReplier> {
        Ok(NoReplier)
    }

    fn wait(&mut self, patience: Duration) {
        self.0.waits.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(patience);
    }

    fn close(&mut self) {
        self.called();
        self.0.closed.store(true, Ordering::SeqCst);
    }
}

fn toy(ring: usize) -> (Networker<Toy>, Arc<Seen>) {
    let seen = Arc::default();
    let toy = Toy(Arc::clone(&seen));
    (Networker::new(toy, shared(ring)).unwrap(), seen)
}

impl Seen {
    fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        wait_for("the thread in its poll", || {
            self.stuck.load(Ordering::SeqCst)
        });
    }
}

fn take(networker: &mut Networker<Toy>, room: usize) -> Vec<u32> {
    let mut requests = Vec::new();
    networker.poll(0, room, |arrival| requests.push(arrival.request));
    assert!(requests.len() <= room);
    requests
}

#[test]
fn a_full_ring_holds_the_transport_back_and_loses_nothing() {
    const RING: usize = 64;
    const REQUESTS: u32 = 1000;
    let (mut networker, seen) = toy(RING);
    seen.source.lock().unwrap().extend(0..REQUESTS);
    assert_eq!(take(&mut networker, 0), [0; 0]);
    let full = || seen.delivered.load(Ordering::SeqCst) == RING;
    wait_for("a full ring", full);
    // The networker sleeps, and not in the transport, which has more to deliver. Now and then it
    // polls the transport for replies to send.
    let (polls, waits) = (&seen.polls, &seen.waits);
    let before = (polls.load(Ordering::SeqCst), waits.load(Ordering::SeqCst));
    wait_for("a poll without room", || {
        polls.load(Ordering::SeqCst) > before.0
    });
    assert!(full());
    assert_eq!(waits.load(Ordering::SeqCst), before.1);

    let mut taken = Vec::new();
    wait_for("all requests", || {
        taken.extend(take(&mut networker, 7));
        taken.len() == REQUESTS as usize
    });
    assert_eq!(taken, (0..REQUESTS).collect::<Vec<_>>(), "in order");
    assert!(seen.most_room.load(Ordering::SeqCst) <= RING);
    let threads = seen.threads.lock().unwrap().clone();
    assert_eq!(threads.len(), 1);
    assert_ne!(threads[0], std::thread::current().id());
}

#[test]
fn what_is_refused_is_refused_on_the_networkers_thread_however_much_it_is() {
    const RING: u32 = 64;
    let (mut networker, seen) = toy(RING as usize);
    seen.source.lock().unwrap().extend(0..3 * RING);
    let mut taken = Vec::new();
    wait_for("all requests", || {
        taken.extend(take(&mut networker, 64));
        taken.len() == 3 * RING as usize
    });
    // The thread is held, so that more is refused than the ring has room for.
    seen.hold();
    let release = Arc::clone(&seen);
    let releaser = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        release.held.store(false, Ordering::SeqCst);
    });
    for request in &taken {
        networker.refuse(*request, (), Refusal::QueueFull);
    }
    releaser.join().unwrap();
    wait_for("all refusals", || {
        seen.refused.lock().unwrap().len() == taken.len()
    });
    let expected: Vec<_> = taken
        .iter()
        .map(|&number| (number, Refusal::QueueFull))
        .collect();
    assert_eq!(*seen.refused.lock().unwrap(), expected);
    assert_eq!(seen.threads.lock().unwrap().len(), 1);
}

#[test]
fn while_refusals_do_not_fit_nothing_more_is_delivered() {
    const RING: u32 = 64;
    let (mut networker, seen) = toy(RING as usize);
    seen.source.lock().unwrap().extend(0..RING + 10);
    let mut taken = Vec::new();
    wait_for("the first requests", || {
        taken.extend(take(&mut networker, RING as usize - taken.len()));
        taken.len() == RING as usize
    });
    wait_for("the others in the ring", || {
        seen.delivered.load(Ordering::SeqCst) == RING as usize + 10
    });
    seen.hold();
    for request in &taken {
        networker.refuse(*request, (), Refusal::QueueFull);
    }
    assert_eq!(take(&mut networker, 64), [0; 0]);
    seen.held.store(false, Ordering::SeqCst);
    wait_for("the others", || {
        taken.extend(take(&mut networker, 64));
        taken.len() == RING as usize + 10
    });
}

#[test]
fn after_close_what_was_under_way_is_turned_away() {
    let (mut networker, seen) = toy(64);
    seen.source.lock().unwrap().extend(0..10);
    take(&mut networker, 0);
    wait_for("the requests in the ring", || {
        seen.delivered.load(Ordering::SeqCst) == 10
    });
    networker.close();
    wait_for("the close", || seen.closed.load(Ordering::SeqCst));
    // Five requests are taken by a poll, the rest meet the end.
    assert_eq!(take(&mut networker, 5), [0; 0]);
    let toy = networker.into_inner().expect("the transport");
    let expected: Vec<_> = (0..10)
        .map(|number| (number, Refusal::ShuttingDown))
        .collect();
    let mut refused = toy.0.refused.lock().unwrap().clone();
    refused.sort_by_key(|(number, _)| *number);
    assert_eq!(refused, expected);
}

#[test]
fn an_idle_networker_sleeps_and_so_does_who_waits_for_it() {
    let (mut networker, seen) = toy(64);
    take(&mut networker, 1);
    wait_for("its first sleep", || seen.waits.load(Ordering::SeqCst) > 0);
    // The thread goes on between two readings: here the polls are read later than the waits, and
    // below sooner, so that those in between are not taken for polls without a wait.
    let waits_before = seen.waits.load(Ordering::SeqCst);
    let polls_before = seen.polls.load(Ordering::SeqCst);
    wait_for("some sleeps", || {
        seen.waits.load(Ordering::SeqCst) > waits_before + 10
    });
    let polls = seen
        .polls
        .load(Ordering::SeqCst)
        .saturating_sub(polls_before);
    let waits = seen.waits.load(Ordering::SeqCst) - waits_before;
    assert!(polls <= waits + 2, "{polls} polls, {waits} waits");

    let start = Instant::now();
    networker.wait(Duration::from_millis(5));
    assert!(start.elapsed() >= Duration::from_millis(4));
    let source = Arc::clone(&seen);
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        source.source.lock().unwrap().push_back(1);
    });
    let start = Instant::now();
    networker.wait(2 * PATIENCE);
    assert!(
        start.elapsed() < PATIENCE,
        "the arrival wakes the dispatcher"
    );
    sender.join().unwrap();
    wait_for("the request", || take(&mut networker, 1) == [1]);
}

#[test]
fn a_transport_that_was_never_polled_comes_back_as_it_was() {
    let (mut networker, seen) = toy(64);
    let _replier = networker.replier().unwrap();
    assert!(networker.into_inner().is_some());
    assert_eq!(seen.polls.load(Ordering::SeqCst), 0);

    let (mut networker, seen) = toy(64);
    take(&mut networker, 1);
    assert!(networker.replier().is_err(), "too late");
    drop(networker);
    assert_eq!(Arc::strong_count(&seen), 1, "the thread has ended");
}

#[test]
fn a_transport_that_panics_holds_no_thread_up() {
    let (mut networker, seen) = toy(64);
    seen.source.lock().unwrap().extend(0..64);
    let mut taken = Vec::new();
    wait_for("the requests", || {
        taken.extend(take(&mut networker, 64));
        taken.len() == 64
    });
    seen.broken.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        for request in &taken {
            networker.refuse(*request, (), Refusal::QueueFull);
        }
    }
    networker.close();
    assert!(networker.into_inner().is_none());
}

#[test]
fn a_core_and_a_ring_that_cannot_be_are_named() {
    let seen = Arc::<Seen>::default();
    let no_core = NetworkerConfig::default().core(1023);
    let error = Networker::new(Toy(Arc::clone(&seen)), no_core).unwrap_err();
    assert!(error.to_string().contains("core 1023"), "{error}");
    let error = Networker::new(Toy(seen), shared(63)).unwrap_err();
    assert_says(&error, ["`networker.ring` is 63"]);
}
