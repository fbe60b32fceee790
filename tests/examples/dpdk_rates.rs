//! What the dataplane costs: requests of 64 bytes over rings in memory on one thread, from the bare device to the whole
//! runtime; the same for larger ones, and for two dispatchers; and round trips between two processes over memif, beside the
//! kernel's UDP on loopback.
//!
//! `cargo run --release -p shinjuku-tests --features dpdk --example dpdk_rates`
//!
//! Each figure is the median over bursts, so that what else runs on the machine counts little.
#![allow(missing_docs)]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use shinjuku::{Config, LayoutKind, RequestContext, RequestHandler, Runtime};
use shinjuku_net::dataplane::{
    Buffer, Checksums, Datagram, DatagramReply, Dataplane, DataplaneConfig, Device, Interface,
    InterfaceConfig, Offload, Outbound, Received, Verdict,
};
use shinjuku_net::dpdk::{DpdkDevice, Eal, EalConfig, Mbuf, Nic, NicConfig, Spread};
use shinjuku_net::packet::MacAddr;
use shinjuku_net::udp::{self, Udp, UdpConfig};
use shinjuku_net::{Replier, Transport};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 9000);
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 9001);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// With the check sequence that devices append: 64 bytes.
const FRAME: usize = 60;
/// Frames of more and more payload, up to 1472 bytes, as the sizes of figure 7c of the paper.
const FRAMES: [usize; 6] = [FRAME, 128, 256, 512, 1024, 1514];
/// Requests on the way at once.
const WINDOW: usize = 256;
const BATCH: usize = 64;
/// Short, so that most are over before another program gets the core.
const BURST: u64 = 2000;
const BURSTS: usize = 1000;
const ROUND_TRIPS: usize = 20_000;
const PART: &str = "SHINJUKU_DPDK_RATES_PART";

fn main() {
    match std::env::var(PART) {
        Ok(part) => serve_elsewhere(&part),
        Err(_) => {
            let eal = Eal::init(&EalConfig::without_hardware(512).argument("--log-level=error"))
                .expect("DPDK starts");
            rates(eal);
            sizes(eal);
            two_dispatchers(eal);
            round_trips();
        }
    }
}

fn interface(mac: MacAddr, own: SocketAddrV4) -> InterfaceConfig {
    InterfaceConfig::new(mac, *own.ip(), &[own.port()])
        .neighbour(*SERVER.ip(), SERVER_MAC)
        .neighbour(*CLIENT.ip(), CLIENT_MAC)
}

// --- on one thread ---------------------------------------------------------------------------------------------

/// The server's end of a ring, with the client behind it on the same thread: it makes requests of all replies.
struct Reflector {
    server: DpdkDevice,
    client: DpdkDevice,
    at_client: Vec<Received<Mbuf>>,
    to_server: Vec<Outbound<Mbuf>>,
    replies: u64,
    since: Instant,
    /// Nanoseconds a request, burst by burst.
    bursts: Vec<f64>,
    done: Arc<AtomicBool>,
}

impl Reflector {
    fn new(eal: Eal, frame: usize) -> (Self, [Nic; 2]) {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("rate{}", MADE.fetch_add(1, Ordering::Relaxed));
        let [server, client] = eal.ring_pair(&name, 1, 1024).expect("a ring");
        let config = NicConfig::new().mbufs(1535).spread(Spread::Device);
        let (server_nic, mut servers) = Nic::open(server, config).expect("a server");
        let (client_nic, mut clients) = Nic::open(client, config).expect("a client");
        let mut reflector = Self {
            server: servers.remove(0),
            client: clients.remove(0),
            at_client: Vec::with_capacity(BATCH),
            to_server: Vec::with_capacity(WINDOW),
            replies: 0,
            since: Instant::now(),
            bursts: Vec::with_capacity(BURSTS),
            done: Arc::default(),
        };
        let stack = Interface::new(interface(CLIENT_MAC, CLIENT)).expect("a client's stack");
        for _ in 0..WINDOW {
            let mut buffer = reflector.client.allocate().expect("a buffer");
            buffer.set_length(frame);
            buffer.frame_mut().fill(7);
            let checksums = stack
                .write_datagram(
                    buffer.frame_mut(),
                    CLIENT.port(),
                    SERVER_MAC,
                    SERVER,
                    Offload::default(),
                )
                .expect("it fits");
            reflector.to_server.push(Outbound { buffer, checksums });
        }
        reflector.client.transmit(&mut reflector.to_server);
        (reflector, [server_nic, client_nic])
    }

    /// The client's turn. Swapping addresses and ports leaves all checksums right.
    fn reflect(&mut self, swap: bool) {
        self.client.receive(BATCH, &mut self.at_client);
        self.count(self.at_client.len() as u64);
        for Received { mut buffer, .. } in self.at_client.drain(..) {
            if swap {
                let frame = buffer.frame_mut();
                for (here, there, length) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
                    for at in 0..length {
                        frame.swap(here + at, there + at);
                    }
                }
            }
            let checksums = Checksums::default();
            self.to_server.push(Outbound { buffer, checksums });
        }
        self.client.transmit(&mut self.to_server);
    }

    fn count(&mut self, replies: u64) {
        self.replies += replies;
        if self.replies < BURST {
            return;
        }
        let now = Instant::now();
        let nanos = (now - self.since).as_nanos() as f64;
        if self.bursts.len() < BURSTS {
            self.bursts.push(nanos / self.replies as f64);
        } else {
            self.done.store(true, Ordering::Release);
        }
        (self.replies, self.since) = (0, now);
    }

    fn done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

impl Device for Reflector {
    type Buffer = Mbuf;

    fn offload(&self) -> Offload {
        self.server.offload()
    }

    fn receive(&mut self, most: usize, frames: &mut Vec<Received<Mbuf>>) {
        self.reflect(true);
        self.server.receive(most, frames);
    }

    fn transmit(&mut self, frames: &mut Vec<Outbound<Mbuf>>) {
        self.server.transmit(frames);
    }

    fn allocate(&mut self) -> Option<Mbuf> {
        self.server.allocate()
    }

    fn free(&mut self, buffer: Mbuf) {
        self.server.free(buffer);
    }
}

fn rates(eal: Eal) {
    println!("requests of 64 bytes over net_ring, client and server on one thread:");
    let bare = report("raw ring, nothing looked at", raw(eal, FRAME), None);
    report("stack: parse, reply", stack(eal, FRAME), Some(bare));
    let what = "transport: parse, lend, hand over, reply";
    report(what, transport(eal, FRAME), Some(bare));
    let what = "runtime: parse, dispatch, empty handler, reply";
    report(what, runtime(eal), Some(bare));
}

/// Prints what bursts took, in nanoseconds a request; the median.
fn report(what: &str, bursts: Vec<f64>, raw: Option<f64>) -> f64 {
    let [fast, median, slow] = [10, 50, 90].map(|percent| percentile(&bursts, percent));
    let beside = raw.map(|raw| format!(", {:.1} ns over the raw ring", median - raw));
    println!(
        "  {what}: {:.2} M/s, {median:.1} ns each ({fast:.1} to {slow:.1}){}",
        1e3 / median,
        beside.unwrap_or_default()
    );
    median
}

fn percentile(bursts: &[f64], percent: usize) -> f64 {
    let mut sorted = bursts.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() * percent / 100]
}

fn sizes(eal: Eal) {
    println!("requests and replies of more bytes, through the transport:");
    for frame in FRAMES {
        let [bare, through] = [raw(eal, frame), transport(eal, frame)];
        let [bare, through] = [bare, through].map(|bursts| frame as f64 / percentile(&bursts, 50));
        println!("  {frame} bytes: {through:.2} GB/s, of the raw ring's {bare:.2} GB/s");
    }
}

fn two_dispatchers(eal: Eal) {
    let one = percentile(&transport(eal, FRAME), 50);
    let both = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(move || percentile(&transport(eal, FRAME), 50)));
        threads.map(|thread| thread.join().expect("it counts"))
    });
    let rate: f64 = both.iter().map(|nanos| 1e3 / nanos).sum();
    println!(
        "two dispatchers, a queue and a thread each, with workers that run nothing: {rate:.2} M/s, {:.2} times one",
        rate * one / 1e3
    );
}

fn raw(eal: Eal, frame: usize) -> Vec<f64> {
    let (mut device, _nics) = Reflector::new(eal, frame);
    let mut received = Vec::with_capacity(BATCH);
    let mut outbound = Vec::with_capacity(WINDOW);
    while !device.done() {
        device.reflect(false);
        device.server.receive(BATCH, &mut received);
        outbound.extend(received.drain(..).map(|received: Received<Mbuf>| Outbound {
            buffer: received.buffer,
            checksums: Checksums::default(),
        }));
        device.server.transmit(&mut outbound);
    }
    device.bursts
}

fn stack(eal: Eal, frame: usize) -> Vec<f64> {
    let (mut device, _nics) = Reflector::new(eal, frame);
    let mut stack = Interface::new(interface(SERVER_MAC, SERVER)).expect("a stack");
    let mut received = Vec::with_capacity(BATCH);
    let mut outbound = Vec::with_capacity(WINDOW);
    while !device.done() {
        device.receive(BATCH, &mut received);
        for Received {
            mut buffer,
            verified,
        } in received.drain(..)
        {
            let Verdict::Deliver(request) = stack.receive(buffer.frame_mut(), verified, 0) else {
                panic!("not a request");
            };
            let length = request.payload.end;
            buffer.set_length(length);
            let checksums = request
                .headers
                .reply(buffer.frame_mut(), Offload::default());
            buffer.finish(length);
            let checksums = checksums.expect("it fits");
            outbound.push(Outbound { buffer, checksums });
        }
        device.transmit(&mut outbound);
    }
    device.bursts
}

fn transport(eal: Eal, frame: usize) -> Vec<f64> {
    let (device, _nics) = Reflector::new(eal, frame);
    let config = DataplaneConfig::new(interface(SERVER_MAC, SERVER)).batch(BATCH);
    let mut transport = Dataplane::new(device, config).expect("a transport");
    let mut replier = transport.replier().expect("a worker's side");
    let mut arrivals = Vec::with_capacity(BATCH);
    while !transport.device().done() {
        transport.poll(0, BATCH, |arrival| arrivals.push(arrival));
        for arrival in arrivals.drain(..) {
            let reply = Some(arrival.request.echo());
            replier.send(Dataplane::<Reflector>::conclude(arrival.route, Ok(reply)));
        }
    }
    transport.device().bursts.clone()
}

struct Echo;

impl RequestHandler for Echo {
    type Request = Datagram<Mbuf>;
    type Reply = Option<DatagramReply<Mbuf>>;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(
        &self,
        request: Datagram<Mbuf>,
        _: &RequestContext<'_, ()>,
    ) -> Option<DatagramReply<Mbuf>> {
        Some(request.echo())
    }
}

fn inline() -> Config {
    Config {
        layout: LayoutKind::Inline,
        workers: Some(1),
        contexts: 64,
        // What waits is looked at again at once.
        idle_backoff_us: 1e3,
        ..Config::default()
    }
}

fn runtime(eal: Eal) -> Vec<f64> {
    let (device, _nics) = Reflector::new(eal, FRAME);
    let done = Arc::clone(&device.done);
    let config = DataplaneConfig::new(interface(SERVER_MAC, SERVER)).batch(BATCH);
    let transport = Dataplane::new(device, config).expect("a transport");
    let server = Runtime::builder(Echo)
        .config(inline())
        .serve(transport)
        .expect("a server");
    while !done.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (report, transport) = server.shutdown(Duration::from_secs(5));
    assert!(report.is_clean(), "{report}");
    transport.expect("given back").device().bursts.clone()
}

// --- between two processes -------------------------------------------------------------------------------------

/// Runs as another process: "raw SOCKET", "runtime SOCKET" or "udp ADDRESS".
fn serve_elsewhere(part: &str) {
    let (kind, at) = part.split_once(' ').expect("a kind and a place");
    if kind == "udp" {
        let udp = Udp::bind(UdpConfig::new(at.parse().expect("an address"))).expect("a socket");
        let _server = Runtime::builder(KernelEcho)
            .config(inline())
            .serve(udp)
            .expect("a server");
        return wait_for_the_end();
    }
    let (_nic, mut device) = memif(Path::new(at), "server", SERVER_MAC);
    if kind == "runtime" {
        let transport = Dataplane::new(device, DataplaneConfig::new(interface(SERVER_MAC, SERVER)))
            .expect("a transport");
        let _server = Runtime::builder(Echo)
            .config(inline())
            .serve(transport)
            .expect("a server");
        return wait_for_the_end();
    }
    std::thread::spawn(move || {
        let mut received = Vec::with_capacity(BATCH);
        let mut outbound = Vec::with_capacity(BATCH);
        loop {
            device.receive(BATCH, &mut received);
            outbound.extend(received.drain(..).map(|received: Received<Mbuf>| Outbound {
                buffer: received.buffer,
                checksums: Checksums::default(),
            }));
            device.transmit(&mut outbound);
        }
    });
    wait_for_the_end();
}

struct KernelEcho;

impl RequestHandler for KernelEcho {
    type Request = udp::Datagram;
    type Reply = Option<udp::DatagramReply>;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {}

    fn handle_request(
        &self,
        request: udp::Datagram,
        _: &RequestContext<'_, ()>,
    ) -> Option<udp::DatagramReply> {
        Some(request.echo())
    }
}

/// Says that it serves. The input ends when whoever started this is gone.
fn wait_for_the_end() {
    println!("ready");
    let _ = std::io::stdin().lines().count();
    std::process::exit(0);
}

fn memif(socket: &Path, role: &str, mac: MacAddr) -> (Nic, DpdkDevice) {
    let device = format!(
        "net_memif0,role={role},id=0,socket={},socket-abstract=no,mac={mac}",
        socket.display()
    );
    let eal = Eal::current().unwrap_or_else(|| {
        Eal::init(&EalConfig::without_hardware(512).argument("--log-level=error"))
            .expect("DPDK starts")
    });
    let port = eal.attach(&device).expect("memif");
    let (nic, mut devices) = Nic::open(port, NicConfig::new()).expect("memif");
    (nic, devices.remove(0))
}

struct Elsewhere(Child);

impl Elsewhere {
    /// Starts it, and waits until it serves.
    fn start(part: &str) -> Self {
        let this = std::env::current_exe().expect("this program");
        let mut child = Command::new(this)
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        let read = BufReader::new(output).read_line(&mut line);
        assert!(read.is_ok() && line == "ready\n", "{part:?} did not start");
        Self(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn round_trips() {
    println!("round trips between two processes, one request at a time:");
    for kind in ["raw", "runtime"] {
        over_memif(kind);
    }
    over_kernel();
}

fn print_round_trips(what: &str, mut nanos: Vec<u64>) {
    nanos.sort_unstable();
    let [median, tail] =
        [500, 990].map(|permille| nanos[nanos.len() * permille / 1000] as f64 / 1e3);
    println!("  {what}: p50 {median:.2} us, p99 {tail:.2} us");
}

fn over_memif(kind: &str) {
    let socket: PathBuf =
        std::env::temp_dir().join(format!("shinjuku-rates-{}-{kind}", std::process::id()));
    let _elsewhere = Elsewhere::start(&format!("{kind} {}", socket.display()));
    let (nic, mut device) = memif(&socket, "client", CLIENT_MAC);
    let start = Instant::now();
    while !nic.link_up() {
        assert!(start.elapsed() < Duration::from_secs(10), "no link");
        std::thread::sleep(Duration::from_millis(10));
    }
    let stack = Interface::new(interface(CLIENT_MAC, CLIENT)).expect("a stack");
    let mut received = Vec::with_capacity(BATCH);
    let mut outbound = Vec::with_capacity(BATCH);
    let round_trip = |at: usize| {
        let start = Instant::now();
        let mut buffer = device.allocate().expect("a buffer");
        buffer.set_length(FRAME);
        buffer.frame_mut().fill(at as u8);
        let checksums = stack
            .write_datagram(
                buffer.frame_mut(),
                CLIENT.port(),
                SERVER_MAC,
                SERVER,
                device.offload(),
            )
            .expect("it fits");
        outbound.push(Outbound { buffer, checksums });
        device.transmit(&mut outbound);
        while received.is_empty() {
            device.receive(BATCH, &mut received);
            if start.elapsed() > Duration::from_secs(1) {
                break;
            }
        }
        received
            .drain(..)
            .for_each(|received| device.free(received.buffer));
        start.elapsed().as_nanos() as u64
    };
    let nanos = (0..ROUND_TRIPS).map(round_trip).collect();
    print_round_trips(&format!("memif, {kind}"), nanos);
    drop(nic);
    let _ = std::fs::remove_file(&socket);
}

fn over_kernel() {
    let free = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let server: SocketAddr = free.local_addr().expect("its address");
    drop(free);
    let _elsewhere = Elsewhere::start(&format!("udp {server}"));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(server).expect("a route");
    socket.set_nonblocking(true).expect("a socket");
    let round_trip = |_| {
        let start = Instant::now();
        let _ = socket.send(&[7; 18]);
        while socket.recv(&mut [0; 64]).is_err() {
            if start.elapsed() > Duration::from_millis(100) {
                break;
            }
        }
        start.elapsed().as_nanos() as u64
    };
    let nanos = (0..ROUND_TRIPS).map(round_trip).collect();
    print_round_trips("kernel UDP on loopback, runtime", nanos);
}
