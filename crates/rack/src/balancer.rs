//! How a server is chosen and what of its load is known, by the simulator's names
//! (`shinjuku_sim::rack`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The most servers that are drawn for a request.
pub const MOST_DRAWS: u8 = 4;

/// Which of the open servers gets a request. Each counts by its workers: one with twice as many is
/// drawn twice as often, and its load counts half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Balancer {
    /// `random`: any.
    Random,
    /// `round-robin`: one after the other.
    RoundRobin,
    /// `by-flow`: by a hash of the client's address and port, whatever the load.
    ByFlow,
    /// `shortest`: the one with the least known load, by chance among several. By
    /// [`LoadInfo::Int2`] the one that is known, and for one request in four any.
    Shortest,
    /// `power-of-K`: the one with the least known load of K that are drawn, 1 to 4; RackSched's
    /// choice is `power-of-2`.
    PowerOf(u8),
}

impl Balancer {
    /// The program's number for it, and how many are drawn.
    pub(crate) const fn number(self) -> (u8, u8) {
        match self {
            Self::Random => (0, 1),
            Self::RoundRobin => (1, 1),
            Self::ByFlow => (2, 1),
            Self::Shortest => (3, 1),
            Self::PowerOf(k) => (4, k),
        }
    }

    /// Whether the choice depends on the load.
    #[must_use]
    pub const fn needs_load(self) -> bool {
        matches!(self, Self::Shortest | Self::PowerOf(_))
    }
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::RoundRobin => f.write_str("round-robin"),
            Self::ByFlow => f.write_str("by-flow"),
            Self::Shortest => f.write_str("shortest"),
            Self::PowerOf(k) => write!(f, "power-of-{k}"),
        }
    }
}

impl FromStr for Balancer {
    type Err = UnknownBalancer;

    fn from_str(text: &str) -> Result<Self, UnknownBalancer> {
        let unknown = || UnknownBalancer(text.to_owned());
        Ok(match text {
            "random" => Self::Random,
            "round-robin" => Self::RoundRobin,
            "by-flow" => Self::ByFlow,
            "shortest" => Self::Shortest,
            _ => {
                let k = text.strip_prefix("power-of-").ok_or_else(unknown)?;
                let k = k.parse().map_err(|_| unknown())?;
                if !(1..=MOST_DRAWS).contains(&k) {
                    return Err(unknown());
                }
                Self::PowerOf(k)
            }
        })
    }
}

/// There is no such way to choose.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no balancer: it must be random, round-robin, by-flow, shortest or power-of-K, with K from 1 to 4"
)]
pub struct UnknownBalancer(String);

impl<'de> Deserialize<'de> for Balancer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Balancer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What the switch knows of the load, and how it learns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadInfo {
    /// Each reply carries how many requests of its type its server has; the last one counts.
    Int1,
    /// The same, but of the least loaded server alone; of equal ones, the last that replied.
    Int2,
    /// As `Int1`, with servers that report their outstanding work in another unit. This project's
    /// transports report requests.
    Int3,
    /// The switch counts: up when it sends a request, down at the reply, or when the request's
    /// entry in the table has aged. Needs nothing of the replies.
    Counters,
}

impl LoadInfo {
    /// The program's number for it.
    pub(crate) const fn number(self) -> u8 {
        self as u8
    }
}

/// What a type's packets look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Shinjuku's 16 bytes: one packet a request, and nothing of the load in replies.
    Shinjuku,
    /// RackSched's 41 bytes, and a payload: several packets a request, and the load in replies.
    Racksched,
}

impl Format {
    /// The program's number for it.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Shinjuku => 1,
            Self::Racksched => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_simulators() {
        let names = [
            "random",
            "round-robin",
            "by-flow",
            "shortest",
            "power-of-1",
            "power-of-2",
            "power-of-4",
        ];
        for name in names {
            let balancer: Balancer = name.parse().unwrap();
            assert_eq!(balancer.to_string(), name);
            name.parse::<shinjuku_sim::rack::BalancerSpec>().unwrap();
        }
        for name in ["power-of-0", "power-of-5", "power-of-", "jbsq-3", ""] {
            let refused = name.parse::<Balancer>().unwrap_err().to_string();
            assert!(refused.contains(&format!("{name:?}")), "{refused}");
        }
    }
}
