//! The cores that a layout can use, and lists of cores in the kernel's notation: `1-3,6`.

use std::fmt;

use super::CORES;
use crate::config::{Config, ConfigError, LayoutKind};

/// What this machine grants the process.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// The cores that the calling thread may use, ascending.
    pub(super) allowed: Vec<usize>,
    /// The cores that the kernel was told to keep free, allowed or not.
    pub(super) isolated: Vec<usize>,
    /// How many cores' worth of time there is: a cgroup may grant less than the cores it shows.
    pub(super) parallelism: usize,
}

impl Machine {
    pub(super) fn detect() -> Result<Self, ConfigError> {
        let allowed = core_affinity::get_core_ids().ok_or_else(|| ConfigError::Cores {
            cause: std::io::Error::last_os_error(),
        })?;
        // A kernel without the file isolates nothing.
        let isolated =
            std::fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
        Ok(Self {
            parallelism: std::thread::available_parallelism()
                .map_or(allowed.len(), std::num::NonZero::get),
            allowed: allowed.into_iter().map(|core| core.id).collect(),
            isolated: parse_cores(&isolated),
        })
    }

    /// How many workers: as `config` says, or as many as it lists cores for, or one per core but
    /// the dispatcher's.
    pub(super) fn workers(&self, config: &Config) -> usize {
        let automatic = || {
            let cores = self.allowed.len().min(self.parallelism);
            let dispatchers = usize::from(config.layout != LayoutKind::Symmetric);
            (cores.saturating_sub(dispatchers))
                .min(config.contexts)
                .max(1)
        };
        match (config.workers, config.cores.workers.len()) {
            (Some(workers), _) => workers,
            (None, 0) if config.layout == LayoutKind::Inline => 1,
            (None, 0) => automatic(),
            (None, given) => given,
        }
    }

    /// The cores that the process may use, if all of them are isolated; otherwise none.
    pub(super) fn own(&self) -> &[usize] {
        let is_isolated = |core| self.isolated.contains(core);
        match self.allowed.iter().all(is_isolated) {
            true => &self.allowed,
            false => &[],
        }
    }

    /// Whether the process's other threads cannot run on these cores, as on isolated ones that are
    /// given by number.
    pub(super) fn hides_all(&self, cores: &[usize]) -> bool {
        cores.iter().all(|core| !self.allowed.contains(core))
    }

    /// The cores that threads can be pinned to: those of the process's affinity, and isolated ones,
    /// which are not in the affinity that a process starts with.
    pub(super) fn cores(&self) -> Vec<usize> {
        let mut cores = [self.allowed.as_slice(), &self.isolated].concat();
        cores.sort_unstable();
        cores.dedup();
        cores
    }
}

/// Reads a list of cores; leaves out what is neither a number nor a range.
pub(super) fn parse_cores(text: &str) -> Vec<usize> {
    let cores = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last: usize = last.parse().ok()?;
        Some(first.parse().ok()?..last.min(CORES - 1) + 1)
    };
    text.trim().split(',').filter_map(cores).flatten().collect()
}

/// Writes a list of cores, in the list's order.
pub(super) struct CoreList<'a>(pub(super) &'a [usize]);

impl fmt::Display for CoreList<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|core, next| *next == core + 1);
        for (at, run) in runs.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(formatter, "{comma}{first}-{last}")?,
                [core] => write!(formatter, "{comma}{core}")?,
                [] => {}
            }
        }
        Ok(())
    }
}
