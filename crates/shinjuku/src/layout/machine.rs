//! The cores that there are to choose from.

use super::core_list;
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
            isolated: core_list::parse(&isolated),
        })
    }

    /// How many workers: as said, as many as cores were given, or one per core but the
    /// dispatcher's.
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

    /// The cores that the process may use, if all of them are kept free for it.
    pub(super) fn own(&self) -> &[usize] {
        let is_isolated = |core| self.isolated.contains(core);
        match self.allowed.iter().all(is_isolated) {
            true => &self.allowed,
            false => &[],
        }
    }

    /// Whether these cores are hidden from the process's other threads, as isolated ones are that
    /// are given by number.
    pub(super) fn hides_all(&self, cores: &[usize]) -> bool {
        cores.iter().all(|core| !self.allowed.contains(core))
    }

    /// The cores that threads can be pinned to. Isolated ones are hidden from the affinity that a
    /// process starts with, and can be had all the same.
    pub(super) fn cores(&self) -> Vec<usize> {
        let mut cores = [self.allowed.as_slice(), &self.isolated].concat();
        cores.sort_unstable();
        cores.dedup();
        cores
    }
}
