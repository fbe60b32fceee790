//! First come, first served, without any overhead: the reference for a measured or simulated FCFS
//! baseline.
//!
//! All functions take arrivals in the order of their times, as [`Schedule`](crate::Schedule) has
//! them, and are exact.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::{Arrival, Record};

/// The waiting time of each arrival at one server, in ns: the wait of the one before, plus its
/// service, less the gap between the two, and never below zero (Lindley, 1952).
///
/// # Panics
/// If the arrivals are not in the order of their times.
#[must_use]
pub fn waits_one_server(arrivals: &[Arrival]) -> Vec<u64> {
    let mut waits = Vec::with_capacity(arrivals.len());
    let mut previous: Option<(&Arrival, u64)> = None;
    for arrival in arrivals {
        let wait = previous.map_or(0, |(before, wait)| {
            (wait + before.service_ns).saturating_sub(gap_ns(before, arrival))
        });
        waits.push(wait);
        previous = Some((arrival, wait));
    }
    waits
}

/// The waiting time of each arrival at `servers` servers with one queue, in ns: each request goes
/// to the server that is free first (Kiefer and Wolfowitz, 1955; the servers' work is stored as the
/// instants at which they will be free).
///
/// # Panics
/// If there are no servers or the arrivals are not in the order of their times.
#[must_use]
pub fn waits(arrivals: &[Arrival], servers: usize) -> Vec<u64> {
    assert!(servers > 0, "at least one server is needed");
    let mut free_at: BinaryHeap<_> = (0..servers).map(|_| Reverse(0_u64)).collect();
    let mut waits = Vec::with_capacity(arrivals.len());
    for (index, arrival) in arrivals.iter().enumerate() {
        if let Some(before) = index.checked_sub(1) {
            gap_ns(&arrivals[before], arrival);
        }
        let mut first = free_at.peek_mut().expect("there is a server");
        let start = first.0.max(arrival.at_ns);
        *first = Reverse(start + arrival.service_ns);
        waits.push(start - arrival.at_ns);
    }
    waits
}

/// The result of [`waits`] as records to sum up.
///
/// # Panics
/// As [`waits`].
#[must_use]
pub fn records(arrivals: &[Arrival], servers: usize) -> Vec<Record> {
    let finished = |(arrival, wait): (&Arrival, u64)| Record {
        arrival_ns: arrival.at_ns,
        service_ns: arrival.service_ns,
        finish_ns: arrival.at_ns + wait + arrival.service_ns,
        class: arrival.class,
    };
    arrivals
        .iter()
        .zip(waits(arrivals, servers))
        .map(finished)
        .collect()
}

/// The mean waiting time in ns of M/G/1, in the long run: Poisson arrivals at `load` of one server
/// whose service times have this mean (ns) and second moment (ns²) (Pollaczek and Khinchine).
/// Infinite from a load of 1.
#[must_use]
pub fn mean_wait_ns(load: f64, mean_ns: f64, second_moment: f64) -> f64 {
    if load >= 1.0 {
        return f64::INFINITY;
    }
    load / (1.0 - load) * second_moment / (2.0 * mean_ns)
}

/// The time between two arrivals.
fn gap_ns(before: &Arrival, after: &Arrival) -> u64 {
    after
        .at_ns
        .checked_sub(before.at_ns)
        .expect("arrivals are in the order of their times")
}
