//! What `bench-dataplane` measures, as it prints it: a line of JSON on standard output.
//!
//! The program is a contender of `cargo xtask bench dataplane`, which starts it once for each
//! figure, so that none meets what another has left behind. It is apart from `xtask` because it may
//! be linked with DPDK.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// The shortest UDP payload that fills Ethernet's shortest frame of 64 bytes (with its check
/// sequence), in bytes.
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
    /// How long was measured, by the clock: one interval for all.
    pub seconds: f64,
    /// Requests that no client has got a reply to, long after the last was sent.
    pub unanswered: u64,
}

impl Rates {
    /// Requests a second of all dispatchers together, by the clock. Whatever held one up is in it,
    /// the others included.
    #[must_use]
    pub fn by_the_clock(&self) -> f64 {
        let within: u64 = self.dispatchers.iter().map(|one| one.within).sum();
        within as f64 / self.seconds
    }

    /// Whether each dispatcher had a core of its own, and stayed there. If not, they waited for
    /// each other, and what each did in the time that it had a core says nothing of what they did
    /// together.
    #[must_use]
    pub fn on_cores_of_their_own(&self) -> bool {
        let cores = || self.dispatchers.iter().map(|one| &one.cores[..]);
        cores().enumerate().all(|(number, own)| {
            matches!(own, [_]) && cores().take(number).all(|other| other != own)
        })
    }

    /// Replies that were not what was asked for, and requests without a reply.
    #[must_use]
    pub fn faults(&self) -> [u64; 2] {
        let wrong = self.dispatchers.iter().map(|one| one.wrong).sum();
        [wrong, self.unanswered]
    }
}

/// What a client got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Nanoseconds a request, over bursts: the tenth, the half and nine tenths of them took no
    /// longer.
    pub nanos: [f64; 3],
    /// Requests a second over all bursts, in the time that the thread had its core; by the clock
    /// where that cannot be told.
    pub sustained: f64,
    /// The share of all bursts' time that others had the thread's core while it was ready to run;
    /// `None`: cannot be told.
    pub waited: Option<f64>,
    /// The cores that the thread was seen on.
    pub cores: Vec<usize>,
    /// Replies in bursts that began and ended while it was measured.
    pub requests: u64,
    /// Replies in bursts that ended while it was measured: to a burst, all that came meanwhile.
    pub within: u64,
    /// Replies that were not what was asked for.
    pub wrong: u64,
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
    /// Requests without a reply.
    pub unanswered: u64,
    /// Of round trips, in microseconds, where one request at a time is under way.
    pub p50_us: Option<f64>,
    /// As `p50_us`.
    pub p99_us: Option<f64>,
    /// As `p50_us`.
    pub p999_us: Option<f64>,
}

impl Calls {
    /// As [`Rates::faults`].
    #[must_use]
    pub fn faults(&self) -> [u64; 2] {
        [self.rate.wrong, self.unanswered]
    }
}

/// Of `bench-dataplane flows`: how unevenly flows were spread over dispatchers, for one number of
/// flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imbalance {
    /// Flows, each with as many requests.
    pub flows: u32,
    /// For each draw, requests of the dispatcher with the most over the mean of all.
    pub max_over_mean: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(cores: &[&[usize]]) -> Rates {
        let rate = |cores: &&[usize]| Rate {
            nanos: [200.0; 3],
            sustained: 5e6,
            waited: Some(0.5),
            cores: cores.to_vec(),
            requests: 1_200_000,
            within: 1_250_000,
            wrong: 1,
        };
        Rates {
            description: None,
            dispatchers: cores.iter().map(rate).collect(),
            seconds: 0.5,
            unanswered: 3,
        }
    }

    #[test]
    fn a_core_of_its_own_is_one_that_no_other_has_and_that_is_never_left() {
        for cores in [&[&[1][..]][..], &[&[1], &[0]]] {
            assert!(rates(cores).on_cores_of_their_own(), "{cores:?}");
        }
        for cores in [&[&[1][..], &[1]][..], &[&[0], &[0, 1]], &[&[0, 1]], &[&[]]] {
            assert!(!rates(cores).on_cores_of_their_own(), "{cores:?}");
        }
    }

    #[test]
    fn by_the_clock_counts_what_came_and_not_what_each_did_while_it_ran() {
        let rates = rates(&[&[1], &[1]]);
        assert_eq!(rates.by_the_clock(), 5e6);
        assert_eq!(rates.faults(), [2, 3]);
    }
}
