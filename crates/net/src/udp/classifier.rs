//! Which class a datagram's request is of.

use std::net::SocketAddr;

/// Tells a request's class by looking at it. Closures of the same shape are classifiers.
pub trait Classifier: Send + 'static {
    /// The class of `datagram`, sent by `peer`. `None`: malformed; it is dropped and counted.
    ///
    /// Runs on the dispatcher's thread, for every datagram: it must not allocate, free, lock, wait or panic, and what
    /// it takes, every request waits for.
    fn classify(&mut self, datagram: &[u8], peer: SocketAddr) -> Option<u16>;
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
