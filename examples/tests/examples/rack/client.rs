//! A client of the rack: requests of two packets each, a few at a time.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use shinjuku::net::wire::{RackSchedKind, RackSchedMessage};
use shinjuku_tests_support::namespace::Namespace;

use super::bad_path::behind;
use super::network::{CLIENT, Network, RACK};

/// The longest time of a batch, on any slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this long without any answer, the requests that are out count as lost.
const LOST: Duration = Duration::from_millis(500);
/// How many requests are out at a time by default.
const WINDOW: usize = 8;
/// The work that each request asks for, in nanoseconds.
const WORK: u64 = 20_000;

pub struct Client {
    socket: UdpSocket,
    /// How many requests are out at a time.
    window: usize,
    next: u32,
    /// Packets sent, and received.
    sent: Cell<u64>,
    received: Cell<u64>,
}

impl Client {
    pub fn new(network: &Network) -> Self {
        Self::with_window(network, WINDOW)
    }

    /// A client with so many requests out at a time.
    pub fn with_window(network: &Network, window: usize) -> Self {
        Self::at(network.namespace("client"), window)
    }

    /// As [`with_window`](Self::with_window), in any namespace that has the client's address.
    pub fn at(here: &Namespace, window: usize) -> Self {
        let socket = here.within(|| UdpSocket::bind((CLIENT, 0)).unwrap());
        Self::over(socket, SocketAddr::from(RACK), window)
    }

    /// Behind a bad path to the rack.
    pub fn behind_a_bad_path(network: &Network) -> Self {
        let here = network.namespace("client");
        let socket = here.within(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        Self::over(socket, behind(), WINDOW)
    }

    fn over(socket: UdpSocket, to: SocketAddr, window: usize) -> Self {
        // The socket receives only replies from the address that requests go to.
        socket.connect(to).unwrap();
        Self {
            socket,
            window,
            next: 0,
            sent: Cell::new(0),
            received: Cell::new(0),
        }
    }

    /// The port that it sends from.
    pub fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// Sends so many requests, and checks that all are answered.
    pub fn ask_all(&mut self, requests: u32) {
        self.ask_all_while(requests, |_| {});
    }

    /// As [`ask_all`](Self::ask_all), and calls `also` after each answer with the number of answers
    /// so far.
    ///
    /// A server drops a request whose packets come 100 ms apart, as they may on a slow machine. So
    /// a few requests may be repeated, but not as many as one server of several would lose. The
    /// servers count them: [`assert_accounted`](super::accounts::assert_accounted).
    pub fn ask_all_while(&mut self, requests: u32, also: impl FnMut(u32)) {
        let lost = self.ask(requests, true, also);
        let few = requests / 20 + self.window as u32;
        assert!(lost <= few, "{lost} lost of {requests} requests");
    }

    /// Sends so many requests, and repeats those that are not answered, until all are. Then takes
    /// the replies that are left. Returns how many packets it has sent in all, and received.
    pub fn ask_in_spite_of_all(&mut self, requests: u32) -> (u64, u64) {
        self.ask(requests, true, |_| {});
        self.settle()
    }

    /// Takes the replies that are left. Returns how many packets it has sent in all, and received.
    pub fn settle(&self) -> (u64, u64) {
        while self.reply().is_some() {}
        self.packets()
    }

    /// How many packets it has sent in all, and received.
    pub fn packets(&self) -> (u64, u64) {
        (self.sent.get(), self.received.get())
    }

    /// Sends so many requests, and calls `also` after each that is answered or lost; returns how
    /// many were lost.
    pub fn ask_some(&mut self, requests: u32, also: impl FnMut(u32)) -> u32 {
        self.ask(requests, false, also)
    }

    fn ask(&mut self, requests: u32, again: bool, mut also: impl FnMut(u32)) -> u32 {
        let mut out: BTreeSet<u32> = BTreeSet::new();
        let (mut asked, mut over, mut lost) = (0, 0, 0);
        let start = Instant::now();
        while over < requests {
            assert!(start.elapsed() < PATIENCE, "{over} of {requests} are over");
            while asked < requests && out.len() < self.window {
                self.send(self.next);
                out.insert(self.next);
                self.next += 1;
                asked += 1;
            }
            if let Some(number) = self.reply() {
                if out.remove(&number) {
                    over += 1;
                    also(over);
                }
                continue;
            }
            // No answer has come for [`LOST`].
            lost += out.len() as u32;
            if again {
                out.iter().for_each(|number| self.send(*number));
                continue;
            }
            for _ in std::mem::take(&mut out) {
                over += 1;
                also(over);
            }
        }
        lost
    }

    /// Sends both packets; every third time the second one first.
    fn send(&self, number: u32) {
        let mut packets = packets(number);
        if number.is_multiple_of(3) {
            packets.reverse();
        }
        for packet in packets {
            // The kernel of a killed server refuses the packet, and the request is lost.
            let sent = self.socket.send(&packet.to_bytes());
            self.sent.set(self.sent.get() + u64::from(sent.is_ok()));
        }
    }

    /// The number of the next request that is answered; `None`: no answer comes for [`LOST`].
    fn reply(&self) -> Option<u32> {
        let deadline = Instant::now() + LOST;
        let mut bytes = [0; 2048];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.socket.set_read_timeout(Some(left)).unwrap();
            match self.socket.recv(&mut bytes) {
                Ok(length) => {
                    let (message, _) = RackSchedMessage::parse(&bytes[..length]).unwrap();
                    assert_eq!(message.kind, RackSchedKind::Reply);
                    self.received.set(self.received.get() + 1);
                    return Some(message.request);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionRefused | ErrorKind::Interrupted
                    ) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// The two packets of the request with this number.
pub fn packets(number: u32) -> [RackSchedMessage; 2] {
    let total_length = 2 * RackSchedMessage::LENGTH as u32;
    let first = RackSchedMessage {
        total_length,
        ..RackSchedMessage::request(7, number, WORK, 0)
    };
    let second = RackSchedMessage {
        kind: RackSchedKind::Follow,
        sequence: 1,
        ..first
    };
    [first, second]
}
