//! What the switch adds to a round trip: one client asks one server, over veth pairs between
//! network namespaces.
//!
//! ```text
//!   client 10.78.0.2 --- 10.78.0.1 switch 10.79.0.1 --- 10.79.0.2 server
//! ```
//!
//! One request is out at a time. Client and server poll, on a core each, so that no thread is
//! woken; the sender runs the kernel's whole way to the other end. That is what two cores can show:
//! how long the way is, not how much it carries.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use core_affinity::CoreId;
use shinjuku::net::wire::RackSchedMessage;
use shinjuku_rack::{Config, Mode, Rack};
use shinjuku_tests_support::namespace::Namespace;

/// The switch's address, where clients send requests.
pub(super) const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The client's.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
/// Where requests go, at the switch and at servers.
pub(super) const PORT: u16 = 1234;
/// A round trip that takes longer has been lost.
const LOST: Duration = Duration::from_millis(500);
/// Round trips before the clock is looked at.
const BATCH: usize = 64;

/// What lies between client and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    /// Nothing: the server is where the switch would be.
    OneVeth,
    /// The kernel of the switch's host forwards.
    Kernel,
    /// The switch.
    Switch(Mode),
}

impl Between {
    /// All, the one first that the others are compared with.
    pub const ALL: [Self; 4] = [
        Self::OneVeth,
        Self::Kernel,
        Self::Switch(Mode::Generic),
        Self::Switch(Mode::Driver),
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneVeth => "one veth",
            Self::Kernel => "forwarded by the kernel",
            Self::Switch(Mode::Generic) => "the switch, generic mode",
            Self::Switch(_) => "the switch, driver mode",
        }
    }

    /// What it is.
    pub const fn note(self) -> &'static str {
        match self {
            Self::OneVeth => "a plain hop, without a switch",
            Self::Kernel => "two hops; the host between them routes",
            Self::Switch(Mode::Generic) => "two hops; the program runs on the kernel's packets",
            Self::Switch(_) => "two hops; the program runs in the veths' driver",
        }
    }
}

/// Percentiles of the round trips of a repetition.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrips {
    pub median_us: f64,
    pub p99_us: f64,
}

/// A client, a server, and what is between them.
#[derive(Debug)]
pub struct Hop {
    pub between: Between,
    client: UdpSocket,
    asked: SocketAddr,
    next: u32,
    core: CoreId,
    orders: Arc<Orders>,
    server: Option<JoinHandle<()>>,
    // These end after all that is in them.
    rack: Option<Rack>,
    _namespaces: [Namespace; 3],
}

/// What the server is told. All hops' servers are on one core, where only that of the hop that is
/// measured polls.
#[derive(Debug, Default)]
struct Orders {
    serve: AtomicBool,
    stop: AtomicBool,
}

impl Hop {
    /// Makes namespaces, and starts the server and what is between.
    ///
    /// # Errors
    /// This machine or this user cannot.
    pub fn new(between: Between, cores: [CoreId; 2]) -> Result<Self> {
        let namespaces = connect().map_err(|reason| anyhow!(reason))?;
        let [client, switch, server] = &namespaces;
        let (home, asked, rack) = match between {
            Between::OneVeth => (switch, SWITCH, None),
            Between::Kernel => {
                let on = "sysctl -qw net.ipv4.ip_forward=1";
                switch.run(on).map_err(|reason| anyhow!(reason))?;
                (server, SERVER, None)
            }
            Between::Switch(mode) => (server, SWITCH, Some(switch.within(|| start(mode))?)),
        };
        let orders = Arc::<Orders>::default();
        let (told, core) = (Arc::clone(&orders), cores[1]);
        let socket = home.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
        let asking = client.within(|| UdpSocket::bind((CLIENT, 0)))?;
        for socket in [&socket, &asking] {
            socket.set_nonblocking(true)?;
        }
        let server = std::thread::spawn(move || {
            core_affinity::set_for_current(core);
            serve(&socket, &told);
        });
        Ok(Self {
            between,
            client: asking,
            asked: (asked, PORT).into(),
            next: 0,
            core: cores[0],
            orders,
            server: Some(server),
            rack,
            _namespaces: namespaces,
        })
    }

    /// Asks for about so long.
    ///
    /// # Errors
    /// A request is not answered in time, or went another way.
    pub fn measure(&mut self, length: Duration) -> Result<RoundTrips> {
        self.order(|orders| &orders.serve, true);
        let measured = std::thread::scope(|scope| {
            // A thread of its own: the bench's is not to be pinned.
            let asking = scope.spawn(|| {
                core_affinity::set_for_current(self.core);
                self.ask_for(length)
            });
            asking.join().expect("it returns errors")
        });
        self.order(|orders| &orders.serve, false);
        measured
    }

    fn order(&self, which: fn(&Orders) -> &AtomicBool, is_on: bool) {
        which(&self.orders).store(is_on, Ordering::Relaxed);
        if let Some(server) = &self.server {
            server.thread().unpark();
        }
    }

    fn ask_for(&mut self, length: Duration) -> Result<RoundTrips> {
        // ARP, and what a first packet has the kernel look up.
        self.ask(Instant::now() + 4 * LOST)?;
        let (start, mut micros) = (Instant::now(), Vec::new());
        while micros.is_empty() || start.elapsed() < length {
            for _ in 0..BATCH {
                let sent = Instant::now();
                self.ask(sent + LOST)?;
                micros.push(sent.elapsed().as_secs_f64() * 1e6);
            }
        }
        if let Some(rack) = &self.rack {
            let sent = rack.status()?.servers[0].sent;
            ensure!(sent >= micros.len() as u64, "the switch has sent {sent}");
        }
        micros.sort_by(f64::total_cmp);
        Ok(RoundTrips {
            median_us: micros[micros.len() / 2],
            p99_us: micros[micros.len() * 99 / 100],
        })
    }

    /// A request, and its reply.
    fn ask(&mut self, until: Instant) -> Result<()> {
        self.next = self.next.wrapping_add(1);
        let request = RackSchedMessage::request(1, self.next, 0, 0);
        self.client.send_to(&request.to_bytes(), self.asked)?;
        let mut bytes = [0; 64];
        loop {
            match self.client.recv(&mut bytes) {
                Ok(length) => {
                    let (reply, _) = RackSchedMessage::parse(&bytes[..length])?;
                    if reply.request == self.next {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_late = Instant::now() >= until;
                    ensure!(!is_late, "{}: a request was lost", self.between.name());
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        self.order(|orders| &orders.stop, true);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Client, switch and server, in this order.
pub(super) fn connect() -> Result<[Namespace; 3], String> {
    let namespaces = [
        Namespace::new("h")?,
        Namespace::new("h")?,
        Namespace::new("h")?,
    ];
    let [client, switch, server] = &namespaces;
    for (host, address, interface, gateway) in [
        (client, CLIENT, "clients", SWITCH),
        (server, SERVER, "servers", GATEWAY),
    ] {
        switch.ip(&format!(
            "link add {interface} type veth peer name veth0 netns {host}"
        ))?;
        // No device completes checksums here, and the driver's mode takes a peer that polls.
        host.run("ethtool -K veth0 tx off gro on")?;
        switch.ip(&format!("addr add {gateway}/24 dev {interface}"))?;
        host.ip(&format!("addr add {address}/24 dev veth0"))?;
        switch.ip(&format!("link set {interface} up"))?;
        host.ip("link set veth0 up")?;
        host.ip(&format!("route add default via {gateway}"))?;
    }
    Ok(namespaces)
}

/// The rack, within its namespace.
fn start(mode: Mode) -> Result<Rack> {
    let config = Config::from_toml(&format!(
        "address = '{SWITCH}'
        interfaces = ['clients', 'servers']
        [[type]]
        name = 'all'
        port = {PORT}
        format = 'racksched'
        balancer = 'power-of-2'
        load_info = 'int1'
        [[server]]
        name = 'only'
        address = '{SERVER}'"
    ));
    let config = Config {
        mode,
        ..config.context("the switch's configuration")?
    };
    let mut warning = None;
    let rack = Rack::start(config, |text| warning = Some(text.to_owned()))?;
    match warning {
        Some(warning) => Err(anyhow!(warning)),
        None => Ok(rack),
    }
}

/// Answers at once while told to serve, until told to stop.
fn serve(socket: &UdpSocket, orders: &Orders) {
    let mut bytes = [0; 64];
    while !orders.stop.load(Ordering::Relaxed) {
        if !orders.serve.load(Ordering::Relaxed) {
            std::thread::park_timeout(LOST);
            continue;
        }
        let Ok((length, from)) = socket.recv_from(&mut bytes) else {
            std::hint::spin_loop();
            continue;
        };
        if let Ok((request, _)) = RackSchedMessage::parse(&bytes[..length]) {
            // What is lost the client misses.
            let _ = socket.send_to(&request.reply(0).to_bytes(), from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_there_answers() {
        for between in Between::ALL {
            let cores = [0, 1].map(|id| CoreId { id });
            let mut hop = match Hop::new(between, cores) {
                Ok(hop) => hop,
                Err(reason) => {
                    println!("SKIPPED each_way_there_answers: {reason:#}");
                    return;
                }
            };
            let round_trips = hop.measure(Duration::ZERO).unwrap();
            assert!(round_trips.median_us <= round_trips.p99_us);
            let requests = hop.next;
            assert_eq!(requests as usize, BATCH + 1, "{between:?}");
        }
    }
}
