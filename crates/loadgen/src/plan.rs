//! What is to be measured, checked: made by [`Settings::check`](crate::Settings::check).

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shinjuku_workload::Arrivals;

use crate::requests::Requests;

/// A measurement, complete.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) requests: Requests,
    pub(crate) loads: Vec<Load>,
    pub(crate) probe: Option<f64>,
    pub(crate) arrivals: Arrivals,
    pub(crate) pick: Pick,
    pub(crate) length: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) most_requests: u64,
    pub(crate) repetitions: u32,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) cores: Vec<usize>,
    pub(crate) timeout: Duration,
    pub(crate) drain: Duration,
    pub(crate) late_ns: u64,
    pub(crate) most_outstanding: usize,
    pub(crate) unloaded: bool,
}

impl Plan {
    /// The server.
    #[must_use]
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// The loads, in the order in which they are offered.
    #[must_use]
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// The classes' names; a class is known by its index.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        self.requests.names()
    }

    /// The seeds of the repetitions.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.seed;
        (0..self.repetitions).map(move |one| first.wrapping_add(one.into()))
    }

    /// Whether each class is to be measured alone first.
    #[must_use]
    pub fn wants_unloaded(&self) -> bool {
        self.unloaded
    }

    /// About how long all of it takes.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.length * self.repetitions * self.loads.len() as u32
    }
}

/// What is offered.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// An open loop: so many requests per second, whatever the server does.
    Rate(f64),
    /// So many requests under way on each connection, all the time.
    Saturate(usize),
}

/// Which connection takes a request of an open loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pick {
    /// One without a request under way, as a connection pool does; without one, any.
    Idle,
    /// Any, each as likely: requests queue behind others of their connection.
    Random,
}
