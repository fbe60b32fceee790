//! The resources that this process uses, as the kernel reports them.

use std::fs;

/// One reading of `/proc/self`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Memory in use, in KiB.
    pub resident_kib: u64,
    /// Private writable address space, in KiB: heaps and stacks, touched or not.
    pub data_kib: u64,
    /// Lines of the memory map.
    pub mappings: usize,
    /// Threads.
    pub threads: usize,
    /// Open files and sockets.
    pub descriptors: usize,
}

impl Usage {
    /// The present usage.
    ///
    /// # Panics
    /// If `/proc` is not mounted.
    #[must_use]
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next());
            number
                .and_then(|number| number.parse().ok())
                .unwrap_or_else(|| panic!("{key} is in /proc/self/status"))
        };
        let entries = |path: &str| fs::read_dir(path).expect("/proc is mounted").count();
        let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        Self {
            resident_kib: kib("VmRSS:"),
            data_kib: kib("VmData:"),
            mappings: maps.lines().count(),
            threads: entries("/proc/self/task"),
            // Minus the descriptor that is open for the counting.
            descriptors: entries("/proc/self/fd") - 1,
        }
    }
}
