//! What `cargo xtask bench ordinary` runs, built once plainly and once by `cargo shinjuku`: work of
//! libraries that know nothing of preemption, how long it takes, and how soon it gives way. Each
//! figure is one process's.

#![deny(unsafe_code)]
#![allow(missing_docs, reason = "only this project links it")]

use serde::{Deserialize, Serialize};

pub mod answer;
pub mod mixes;
pub mod serving;
mod sqlite;
pub mod works;

/// How long a job takes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Duration {
    /// The fastest of many, microseconds: what else the machine does only adds.
    pub least_us: f64,
}

/// How soon jobs give way.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// How often the code was asked.
    pub requests: u64,
    /// The median time until it had given way and the asking side knew, of what was answered,
    /// microseconds.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Requests that were not answered within 100 us: these take a signal.
    pub unanswered: u64,
}

/// What a mix's requests take on a core of their own, microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    pub short_us: f64,
    pub long_us: f64,
}

/// What came of a burst.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// The median latency of short requests, microseconds.
    pub short_p50_us: f64,
    /// The 99th percentile; none where requests did not finish, or of fewer than 100.
    pub short_p99_us: Option<f64>,
    /// How many short requests these are of.
    pub short_requests: u64,
    pub requests: u64,
    /// What became of the short ones, and of the long ones.
    pub counts: [Counted; 2],
    /// How often requests were preempted.
    pub preemptions: u64,
    /// How often short ones were: within a lock, that makes others wait.
    pub short_preemptions: u64,
    /// What the runtime said of itself.
    pub description: String,
}

impl Served {
    /// How many requests did not finish.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.counts.iter().map(|one| one.unfinished).sum()
    }
}

/// A burst's requests of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Arrived after the burst's first fifth.
    pub offered: u64,
    /// Finished between that fifth and the last arrival, whenever they arrived.
    pub finished: u64,
    /// Did not finish at all.
    pub unfinished: u64,
}

/// How a burst is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Way {
    /// c-FCFS, to completion.
    ToCompletion,
    /// c-PRE-SQ, 5 us, by probes that were written by hand.
    Probes,
    /// c-PRE-SQ, 5 us, by compiled probes, and by a signal where none answers.
    CompiledProbes,
    /// c-PRE-SQ, 100 us, by signals.
    Signals,
}

/// What makes code give way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum By {
    /// Its own function entries.
    CompiledProbe,
    /// A signal, sent at once.
    Signal,
}
