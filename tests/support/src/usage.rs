//! The resources that a process uses, as the kernel reports them.

use std::fs;

/// One reading of a process's directory in `/proc`.
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
    /// What this process uses now.
    #[must_use]
    pub fn now() -> Self {
        let own = Self::of(std::process::id());
        // Without the descriptor that was open for the counting.
        Self {
            descriptors: own.descriptors - 1,
            ..own
        }
    }

    /// What the process of number `id` uses now.
    #[must_use]
    pub fn of(id: u32) -> Self {
        let path = |name| format!("/proc/{id}/{name}");
        let text = |name| fs::read_to_string(path(name)).expect("the process is in /proc");
        let entries = |name| {
            fs::read_dir(path(name))
                .expect("the process is in /proc")
                .count()
        };
        let status = text("status");
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.unwrap_or_else(|| panic!("{key} is in {status}"))
        };
        Self {
            resident_kib: number("VmRSS:"),
            data_kib: number("VmData:"),
            mappings: text("maps").lines().count(),
            threads: entries("task"),
            descriptors: entries("fd"),
        }
    }
}
