//! What `bench-dataplane` measures, as it prints it: a line of JSON on standard output.
//!
//! The program is a contender of `cargo xtask bench dataplane`, which starts it once for each figure, so that none meets
//! what another has left behind. It is apart from `xtask` because it may be linked with DPDK.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// The shortest UDP payload that fills Ethernet's shortest frame of 64 bytes (with its check sequence), in bytes.
pub const SHORTEST_PAYLOAD: u16 = 18;
/// The longest UDP payload in one packet, in bytes.
pub const LONGEST_PAYLOAD: u16 = 1472;

/// Of `bench-dataplane rates`: requests a second, client and server on one thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// What the runtime said of itself, where there is one.
    pub description: Option<String>,
    /// Of each dispatcher's client.
    pub dispatchers: Vec<Rate>,
}

/// What a client got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Nanoseconds a request, over bursts: the tenth, the half and nine tenths of them took no longer.
    pub nanos: [f64; 3],
    /// Requests a second over all bursts, in the time that the thread had its core; by the clock where that cannot be told.
    pub sustained: f64,
    /// The cores that the thread was seen on.
    pub cores: Vec<usize>,
    /// Replies.
    pub requests: u64,
    /// Replies that were not what was asked for.
    pub wrong: u64,
    /// Requests that were neither answered nor under way at the end.
    pub unanswered: u64,
}

impl Rate {
    /// Requests a second in the median burst.
    #[must_use]
    pub fn median(&self) -> f64 {
        1e9 / self.nanos[1]
    }
}

/// Of `bench-dataplane call`: what a client in a process of its own got, for one length of replies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// Bytes of a reply's UDP payload.
    pub reply: u16,
    /// What the client got.
    pub rate: Rate,
    /// Of round trips, in microseconds, where one request at a time is under way.
    pub p50_us: Option<f64>,
    /// As `p50_us`.
    pub p99_us: Option<f64>,
    /// As `p50_us`.
    pub p999_us: Option<f64>,
}

/// Of `bench-dataplane flows`: how unevenly flows were spread over dispatchers, for one number of flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imbalance {
    /// Flows, each with as many requests.
    pub flows: u32,
    /// For each draw, requests of the dispatcher with the most over the mean of all.
    pub max_over_mean: Vec<f64>,
}
