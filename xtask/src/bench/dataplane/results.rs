//! What was measured, as it stands in results.json.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::stages::Stages;
use crate::machine::Machine;

/// Version of the format.
pub const SCHEMA: u32 = 1;

/// A whole run. A part that was not measured is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When, UTC.
    pub stamp: String,
    /// The commit.
    pub commit: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// The server's core and the client's; what takes one thread is on the second.
    pub cores: [usize; 2],
    /// Repetitions of each figure.
    pub repetitions: u32,
    /// Seconds of one repetition.
    pub seconds: f64,
    /// libdpdk's version, where it is there.
    pub dpdk: Option<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// One thread, from the bare device to the runtime.
    pub stages: Option<Stages>,
}

impl Results {
    /// Writes them as JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_string_pretty(self).context("results cannot be written as JSON")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}
