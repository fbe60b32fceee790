//! What `cargo xtask bench ordinary` runs, built once plainly and once by `cargo shinjuku`: work of
//! libraries that know nothing of preemption, how long it takes, and how soon it gives way. Each
//! figure is one process's.

#![deny(unsafe_code)]

use serde::{Deserialize, Serialize};

pub mod answer;
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
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// Requests that were not answered within 100 us: these take a signal.
    pub unanswered: u64,
}

/// What makes code give way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum By {
    /// Its own function entries.
    CompiledProbe,
    /// A signal, sent at once.
    Signal,
}
