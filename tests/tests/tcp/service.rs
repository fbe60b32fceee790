//! The tests' service: lines, whose first byte is an order.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shinjuku::net::Refusal;
use shinjuku::net::tcp::{Codec, Framing, Reply, Request, Tcp, TcpConfig, TcpCounters, TcpCounts};
use shinjuku::{
    ClassConfig, Config, MechanismKind, RequestContext, RequestHandler, Runtime, Server,
    preempt_point,
};
use shinjuku_tests_support::runtime::{config, token};
use shinjuku_tests_support::watch::churn;
use shinjuku_tests_support::{PATIENCE, wait_for};

/// `e`: echo. `w`: work for longer than a quantum, then echo. `g`: work until the gate opens, then
/// echo. `l`: the line ten thousand times. `p`: panic. `s`: swap requests with another one, if
/// there is one. `h`: refused, too late. `u`: refused, of an unknown class. `a`: echo after
/// allocating and freeing memory of all sizes.
#[derive(Clone, Default, Debug)]
pub struct Lines;

impl Codec for Lines {
    type Progress = usize;
    type Session = ();

    fn frame(&self, bytes: &[u8], seen: &mut usize, (): &()) -> Framing {
        let Some(at) = bytes[*seen..].iter().position(|&byte| byte == b'\n') else {
            *seen = bytes.len();
            return Framing::Incomplete;
        };
        let class = match bytes[0] {
            b'w' | b'g' | b's' => 1,
            b'h' => 2,
            b'u' => 99,
            _ => 0,
        };
        Framing::Complete {
            length: *seen + at + 1,
            class,
        }
    }
    fn refusal(&self, _: Refusal) -> &'static [u8] {
        b"refused\n"
    }
    fn failure(&self) -> &'static [u8] {
        b"failed\n"
    }
    fn too_many_connections(&self) -> &'static [u8] {
        b"full\n"
    }
}

/// How often a long reply repeats its line.
pub const REPEATED: usize = 10_000;

/// The state that a test and the handler share.
#[derive(Default)]
pub struct Gate {
    pub entered: AtomicUsize,
    pub open: AtomicBool,
}

pub struct Service {
    pub gate: Arc<Gate>,
    probes: bool,
    shelf: Mutex<Option<Request<Lines>>>,
    /// Called on each worker's thread before its first request.
    on_worker: fn(),
}

impl Service {
    fn work(&self, done: impl Fn() -> bool) {
        while !done() {
            if self.probes {
                preempt_point();
            }
        }
    }

    /// The first caller leaves its request on the shelf, and later takes the request that lies
    /// there then. A caller in between takes the one that lies there, and leaves its own.
    fn swap(&self, own: Request<Lines>) -> Request<Lines> {
        let shelf = || self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = shelf().replace(own) {
            return other;
        }
        let start = Instant::now();
        self.work(|| start.elapsed() > Duration::from_micros(300));
        shelf().take().expect("left there")
    }
}

impl RequestHandler for Service {
    type Request = Request<Lines>;
    type Reply = Reply<Lines>;
    type PerCore = ();

    fn init_per_core(&self, _: usize) {
        (self.on_worker)();
    }

    fn handle_request(
        &self,
        mut request: Request<Lines>,
        _: &RequestContext<'_, ()>,
    ) -> Reply<Lines> {
        let start = Instant::now();
        let mut times = 1;
        match request[0] {
            b'w' => self.work(|| start.elapsed() > Duration::from_micros(300)),
            b'g' => {
                self.gate.entered.fetch_add(1, Ordering::Relaxed);
                let open = || self.gate.open.load(Ordering::Relaxed);
                self.work(|| open() || start.elapsed() > PATIENCE);
            }
            b'l' => times = REPEATED,
            b'p' => panic!("on purpose"),
            b's' => request = self.swap(request),
            b'a' => churn(request.len() as u64 + request.connection().get()),
            _ => {}
        }
        let (line, output, ()) = request.parts();
        for _ in 0..times {
            output.extend_from_slice(line).expect("below max_reply");
        }
        request.reply()
    }
}

pub type TcpServer = Server<Tcp<Lines>>;

pub struct House {
    pub server: TcpServer,
    pub address: SocketAddr,
    pub counters: TcpCounters,
    pub gate: Arc<Gate>,
}

pub fn listen() -> TcpConfig {
    TcpConfig::new("127.0.0.1:0".parse().unwrap()).connections(64)
}

/// A runtime's configuration with the classes of [`Lines`].
pub fn runtime(workers: usize, mechanism: MechanismKind) -> Config {
    let mut config = config(workers, mechanism);
    let class = |name: &str, slo_us| ClassConfig::new(name).slo_us(slo_us);
    config.class = vec![
        class("short", 1.0),
        // However long it waits, it is no more urgent than a short request that has just come.
        class("long", 3.6e9),
        class("hasty", 1.0).deadline_us(0.001),
    ];
    config
}

pub fn service(config: &Config, on_worker: fn()) -> Service {
    Service {
        gate: Arc::default(),
        probes: config.preemption.mechanism == MechanismKind::Probe,
        shelf: Mutex::new(None),
        on_worker,
    }
}

impl House {
    pub fn start(config: Config, listen: TcpConfig) -> Self {
        let tcp = Tcp::bind(listen, Lines).unwrap();
        let (address, counters) = (tcp.local_addr(), tcp.counters());
        let service = service(&config, || {});
        let gate = Arc::clone(&service.gate);
        let server = Runtime::builder(service)
            .config(config)
            .allow_hard_preemption(token())
            .serve(tcp)
            .unwrap();
        Self {
            server,
            address,
            counters,
            gate,
        }
    }

    pub fn client(&self) -> TcpStream {
        connect(self.address)
    }

    /// Shuts down, after all requests are done and every client has left.
    pub fn end(self) -> TcpCounts {
        wait_for("the end of all connections", || {
            self.counters.read().open == 0
        });
        let (report, _) = self.server.shutdown(PATIENCE);
        assert!(report.is_clean(), "{report}");
        let counts = self.counters.read();
        assert_sums(&counts);
        counts
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// No request is lost or counted twice.
pub fn assert_sums(counts: &TcpCounts) {
    let resolved = counts.answered
        + counts.refused
        + counts.failed
        + counts.misdirected
        + counts.kept
        + counts.cut_off;
    assert_eq!(counts.received, resolved, "{counts:?}");
    let closed = counts.closed_by_peer
        + counts.closed_by_server
        + counts.closed_broken
        + counts.closed_idle
        + counts.closed_half_request
        + counts.closed_slow_reader
        + counts.closed_too_long
        + counts.closed_failed
        + counts.closed_misdirected
        + counts.closed_codec
        + counts.closed_shutdown;
    assert_eq!(counts.accepted, closed + counts.open, "{counts:?}");
}
