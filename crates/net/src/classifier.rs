//! How a transport learns a request's class, flow and deadline from its datagram.

use std::net::{IpAddr, SocketAddr};

/// Tells a request's class by looking at it. Closures of the same shape as
/// [`classify`](Self::classify) are classifiers.
pub trait Classifier: Send + 'static {
    /// The class of `datagram`, sent by `peer`. `None`: malformed; it is dropped and counted.
    ///
    /// Runs on the dispatcher's thread (or the networker's), for every request: it must not
    /// allocate, free, lock, wait or panic, and every request waits while it runs.
    fn classify(&mut self, datagram: &[u8], peer: SocketAddr) -> Option<u16>;

    /// As [`classify`](Self::classify), for a transport that listens on several addresses: `port`
    /// is the number of the one that the datagram was sent to, in the order of the configuration.
    /// A classifier that does not look at the port leaves this out.
    fn classify_at(&mut self, port: usize, datagram: &[u8], peer: SocketAddr) -> Option<u16> {
        let _ = port;
        self.classify(datagram, peer)
    }

    /// What the sender of `datagram`, which has a class, says of its deadline: nanoseconds from its
    /// arrival, less than zero where it is late already. `None`, the default: nothing, and its
    /// class's budget holds. Runs where [`classify`](Self::classify) runs, by the same rules.
    fn budget_nanos(&mut self, datagram: &[u8]) -> Option<i64> {
        let _ = datagram;
        None
    }
}

impl<F: FnMut(&[u8], SocketAddr) -> Option<u16> + Send + 'static> Classifier for F {
    fn classify(&mut self, datagram: &[u8], peer: SocketAddr) -> Option<u16> {
        self(datagram, peer)
    }
}

/// The default: every datagram is a request of class 0.
#[derive(Clone, Copy, Default, Debug)]
pub struct OneClass;

impl Classifier for OneClass {
    fn classify(&mut self, _datagram: &[u8], _peer: SocketAddr) -> Option<u16> {
        Some(0)
    }
}

/// Each address that the transport listens on is a class, in the order of the configuration, as the
/// original has a queue for each port.
#[derive(Clone, Copy, Default, Debug)]
pub struct ByPort;

impl Classifier for ByPort {
    fn classify(&mut self, datagram: &[u8], peer: SocketAddr) -> Option<u16> {
        self.classify_at(0, datagram, peer)
    }

    fn classify_at(&mut self, port: usize, _datagram: &[u8], _peer: SocketAddr) -> Option<u16> {
        u16::try_from(port).ok()
    }
}

/// [`Arrival::due_nanos`](crate::Arrival::due_nanos) of a datagram that arrives now, for
/// transports.
#[must_use]
pub fn due_nanos<C: Classifier>(
    classifier: &mut C,
    datagram: &[u8],
    now_nanos: u64,
) -> Option<u64> {
    let budget_nanos = classifier.budget_nanos(datagram)?;
    Some(now_nanos.saturating_add_signed(budget_nanos))
}

/// The flow of requests from `peer`, for [`Arrival::flow`](crate::Arrival::flow): the same for all
/// of one address and port, and spread evenly over 64 bits (the finalizer of SplitMix64).
#[must_use]
pub fn flow_of(peer: SocketAddr) -> u64 {
    let host = match peer.ip() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => mix(ip.to_bits() as u64) ^ (ip.to_bits() >> 64) as u64,
    };
    mix(mix(host) ^ u64::from(peer.port()))
}

fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
