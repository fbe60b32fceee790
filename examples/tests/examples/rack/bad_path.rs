//! A thread in the path between switch and server, or between client and switch: it loses
//! datagrams, doubles them, lets later ones overtake, and counts what it does. So the test does not
//! need the kernel's `netem`.
//!
//! ```text
//!   switch --- 10.79.N.2:1234 this thread 127.0.0.1 --- 127.0.0.1:1234 server N
//!   client --- 127.0.0.1:1234 this thread 10.78.0.2 --- switch
//! ```

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::network::{CLIENT, Network, RACK, address};

/// How long a datagram is held back, so that others overtake it.
const LATE: Duration = Duration::from_millis(5);
/// How long the thread waits for a datagram of one direction before it looks at the other.
const TURN: Duration = Duration::from_millis(1);

/// The fates of one direction's datagrams. Those that came and those that were doubled together are
/// as many as those that were lost and those that went.
#[derive(Default)]
pub struct Counts {
    pub came: AtomicU64,
    pub lost: AtomicU64,
    pub doubled: AtomicU64,
    pub late: AtomicU64,
    pub went: AtomicU64,
}

impl Counts {
    /// All counts, in the order of the fields.
    pub fn read(&self) -> [u64; 5] {
        let all = [
            &self.came,
            &self.lost,
            &self.doubled,
            &self.late,
            &self.went,
        ];
        all.map(|count| count.load(Ordering::SeqCst))
    }
}

pub struct BadPath {
    /// Towards the server.
    pub requests: Arc<Counts>,
    /// Towards the client.
    pub replies: Arc<Counts>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BadPath {
    /// Starts a bad path in the namespace of the server with this number, which listens at
    /// [`behind`].
    pub fn to(network: &Network, server: u8) -> Self {
        let (outside, inside) = network.namespace(&server.to_string()).within(|| {
            let outside = UdpSocket::bind((address(server), RACK.1)).unwrap();
            let inside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            inside.connect(behind()).unwrap();
            (outside, inside)
        });
        Self::between(outside, inside, u64::from(server))
    }

    /// In the client's namespace: who sends to [`behind`] there asks the rack.
    pub fn to_rack(network: &Network) -> Self {
        let (outside, inside) = network.namespace("client").within(|| {
            let outside = UdpSocket::bind(behind()).unwrap();
            let inside = UdpSocket::bind((CLIENT, 0)).unwrap();
            inside.connect(SocketAddr::from(RACK)).unwrap();
            (outside, inside)
        });
        Self::between(outside, inside, 200)
    }

    /// Requests come to `outside`, and leave by `inside`.
    fn between(outside: UdpSocket, inside: UdpSocket, seed: u64) -> Self {
        for socket in [&outside, &inside] {
            socket.set_read_timeout(Some(TURN)).unwrap();
        }
        let (requests, replies) = (Arc::<Counts>::default(), Arc::<Counts>::default());
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (requests, replies) = (Arc::clone(&requests), Arc::clone(&replies));
            let stop = Arc::clone(&stop);
            move || {
                let mut there = Direction::new(requests, seed);
                let mut back = Direction::new(replies, seed + 100);
                let mut client = None;
                while !stop.load(Ordering::Relaxed) {
                    if let Some(from) = there.receive(&outside) {
                        client = Some(from);
                    }
                    there.send(|datagram| inside.send(datagram).is_ok());
                    back.receive(&inside);
                    back.send(|datagram| {
                        client.is_some_and(|client| outside.send_to(datagram, client).is_ok())
                    });
                }
            }
        });
        Self {
            requests,
            replies,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for BadPath {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

/// Where a server listens that has a bad path before it, and where a client sends that has.
pub fn behind() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, RACK.1))
}

struct Direction {
    counts: Arc<Counts>,
    random: Xoshiro256PlusPlus,
    /// Datagrams to send now.
    due: VecDeque<Vec<u8>>,
    /// Datagrams to send later, by time.
    held: VecDeque<(Instant, Vec<u8>)>,
}

impl Direction {
    fn new(counts: Arc<Counts>, seed: u64) -> Self {
        Self {
            counts,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            due: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    /// Takes a datagram, if one comes in time, and decides on its fate. Returns its sender.
    fn receive(&mut self, socket: &UdpSocket) -> Option<SocketAddr> {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::SeqCst);
        let mut bytes = [0; 2048];
        let (length, from) = match socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return None;
            }
            // The server has not started, or has ended.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
            Err(error) => panic!("{error}"),
        };
        let datagram = bytes[..length].to_vec();
        count(&self.counts.came);
        match self.random.random_range(0..20) {
            0 => {
                count(&self.counts.lost);
            }
            1 | 2 => {
                count(&self.counts.doubled);
                self.due.extend([datagram.clone(), datagram]);
            }
            3 | 4 => {
                count(&self.counts.late);
                self.held.push_back((Instant::now() + LATE, datagram));
            }
            _ => self.due.push_back(datagram),
        }
        Some(from)
    }

    /// Sends the datagrams that are due. One that cannot be sent is lost.
    fn send(&mut self, send: impl Fn(&[u8]) -> bool) {
        let now = Instant::now();
        while self.held.front().is_some_and(|(at, _)| *at <= now) {
            self.due
                .extend(self.held.pop_front().map(|(_, datagram)| datagram));
        }
        for datagram in self.due.drain(..) {
            let counter = match send(&datagram) {
                true => &self.counts.went,
                false => &self.counts.lost,
            };
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }
}
