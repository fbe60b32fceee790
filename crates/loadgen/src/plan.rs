//! A checked measurement plan, made by [`Settings::check`](crate::Settings::check).

use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shinjuku_dataplane::{Device, HostAddress, MacAddr};
use shinjuku_workload::Arrivals;

use crate::dataplane::{self, Line, MOST_FLOWS, Place};
use crate::error::LoadError;
use crate::requests::Requests;

/// A complete description of a measurement.
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
    /// Replaces sockets.
    pub(crate) line: Option<Line>,
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

    /// The classes' names; a class is identified by its index.
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

    /// The same plan over a network device instead of sockets, from a host of this address on it.
    /// Waits until the server answers ARP.
    ///
    /// # Errors
    /// The plan's requests are no datagrams, it has more threads than one or more flows than 64,
    /// the address cannot be the client's, or the server does not answer.
    pub fn over<D: Device>(
        mut self,
        device: D,
        mac: MacAddr,
        address: HostAddress,
    ) -> Result<Self, LoadError> {
        let place = Place {
            address,
            mac: None,
            gateway: None,
            server: self.server_past_the_kernel()?,
        };
        self.line = Some(dataplane::device(device, mac, place)?);
        Ok(self)
    }

    /// The server, if this plan can be measured without sockets.
    pub(crate) fn server_past_the_kernel(&self) -> Result<SocketAddrV4, LoadError> {
        let refuse = |key, what: &str| {
            Err(LoadError::Setting {
                key,
                what: what.to_owned(),
            })
        };
        if self.requests.format().is_none() {
            return refuse(
                "protocol",
                "without sockets it must be shinjuku or racksched",
            );
        }
        if self.threads > 1 {
            return refuse(
                "threads",
                "without sockets there is one: a device has one user",
            );
        }
        if self.connections + usize::from(self.probe.is_some()) > MOST_FLOWS {
            let what =
                format!("without sockets there are {MOST_FLOWS} flows, the probe's included");
            return refuse("connections", &what);
        }
        match self.target {
            SocketAddr::V4(server) => Ok(server),
            SocketAddr::V6(_) => refuse("target", "without sockets it must be an IPv4 address"),
        }
    }

    /// How requests travel.
    #[must_use]
    pub fn transport(&self) -> String {
        let sockets = if self.requests.format().is_none() {
            "TCP"
        } else {
            "UDP"
        };
        let line = self.line.as_ref();
        line.and_then(Line::describe)
            .unwrap_or_else(|| sockets.to_owned())
    }

    /// About how long the whole plan takes.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.length * self.repetitions * self.loads.len() as u32
    }
}

/// The load that is offered.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// An open loop: this many requests per second, whatever the server does.
    Rate(f64),
    /// This many requests under way on each connection, all the time.
    Saturate(usize),
}

/// Which connection takes a request of an open loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pick {
    /// A connection without a request under way, as a connection pool chooses; any if there is
    /// none.
    Idle,
    /// Any connection, all equally likely: requests queue behind others of their connection.
    Random,
}
