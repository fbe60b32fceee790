//! Which flow a datagram belongs to.

use std::net::{IpAddr, SocketAddr};

/// The same for all requests of one address and port, spread evenly over 64 bits (the finalizer of
/// SplitMix64).
pub(crate) fn flow(peer: SocketAddr) -> u64 {
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
