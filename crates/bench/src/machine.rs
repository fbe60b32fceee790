//! What a report says about the machine it was measured on.
//!
//! Everything is read from `/proc`; what cannot be read is left out rather than guessed.

use std::fs;

use serde::{Deserialize, Serialize};

/// The machine of a measurement. Field by field in `docs/results.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model as the kernel names it.
    pub cpu: String,
    pub cores: usize,
    pub memory_mib: Option<u64>,
    /// Kernel release, for example `6.1.0-18-amd64`.
    pub kernel: String,
    /// Whether the CPU reports a hypervisor: interrupts between processors are then much more
    /// expensive.
    pub hypervisor: bool,
    /// Whether the kernel lets programs write FS base directly (`wrfsbase`).
    pub fsgsbase: bool,
    /// Whether the measured threads could run under SCHED_FIFO. If not, expect noise.
    pub sched_fifo: bool,
    /// CPUs the kernel keeps free of other work (`isolcpus`), as a list such as `2-3`; absent where
    /// there are none.
    pub isolated: Option<String>,
}

impl Machine {
    /// Describes this machine.
    ///
    /// Whether SCHED_FIFO is permitted can only be found by entering it, which changes a thread's
    /// scheduling: the caller tries that on a thread of its choice, and passes the answer.
    pub fn detect(sched_fifo: bool) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let auxv = fs::read("/proc/self/auxv").unwrap_or_default();
        let line = |path| {
            fs::read_to_string(path)
                .ok()
                .map(|s| s.trim().to_owned())
                .filter(|s| !s.is_empty())
        };
        Self {
            cpu: cpuinfo_field(&cpuinfo, "model name")
                .unwrap_or("unknown")
                .to_owned(),
            cores: cpuinfo
                .lines()
                .filter(|l| l.starts_with("processor"))
                .count(),
            memory_mib: fs::read_to_string("/proc/meminfo")
                .ok()
                .as_deref()
                .and_then(memory_mib),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            hypervisor: cpuinfo_field(&cpuinfo, "flags")
                .is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            fsgsbase: fsgsbase_enabled(&auxv),
            sched_fifo,
            isolated: line("/sys/devices/system/cpu/isolated"),
        }
    }

    /// The machine in one line, for terminals and captions.
    pub fn summary(&self) -> String {
        let mut text = format!("{}, {} cores", self.cpu, self.cores);
        if let Some(mib) = self.memory_mib {
            text += &format!(", {:.0} GiB", mib as f64 / 1024.0);
        }
        text += &format!(", Linux {}", self.kernel);
        if self.hypervisor {
            text += ", virtual machine";
        }
        text += if self.sched_fifo {
            ", SCHED_FIFO"
        } else {
            ", no SCHED_FIFO (expect noise)"
        };
        text
    }
}

/// The first value of `key` in the text of `/proc/cpuinfo`.
fn cpuinfo_field<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// `MemTotal` of `/proc/meminfo`, in MiB.
fn memory_mib(meminfo: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

/// Whether the auxiliary vector says that the kernel switched FSGSBASE on.
///
/// The flag in `/proc/cpuinfo` tells what the CPU can do; only bit 1 of `AT_HWCAP2` tells that
/// programs may use it.
pub fn fsgsbase_enabled(auxv: &[u8]) -> bool {
    const AT_HWCAP2: u64 = 26;
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
    auxv.chunks_exact(16).any(|entry| {
        let (key, value) = entry.split_at(8);
        word(key) == AT_HWCAP2 && word(value) & HWCAP2_FSGSBASE != 0
    })
}

/// Time that the hypervisor took from all cores so far, in milliseconds; `None` where the kernel
/// does not tell.
pub fn stolen_ms() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    // "cpu  user nice system idle iowait irq softirq steal ...", in hundredths of a second.
    let ticks = stat.lines().next()?.split_whitespace().nth(8)?;
    Some(ticks.parse::<u64>().ok()? * 10)
}

/// The load average of the last minute, if it says that the machine is not quiet.
pub fn busy() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    (load > 0.7).then_some(load)
}

/// The commit checked out, with `-dirty` behind it if files have changed; `None` without git.
pub fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git")
            .args(arguments)
            .current_dir(crate::paths::workspace_root())
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let dirty = git(&["status", "--porcelain"]).is_some_and(|changes| !changes.is_empty());
    Some(commit + if dirty { "-dirty" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpuinfo_fields_are_found_by_exact_name() {
        let text =
            "processor\t: 0\nmodel\t\t: 2\nmodel name\t: A CPU: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpuinfo_field(text, "model name"), Some("A CPU: fast"));
        assert_eq!(cpuinfo_field(text, "flags"), Some("fpu hypervisor"));
        assert_eq!(cpuinfo_field(text, "cache"), None);
    }

    #[test]
    fn memory_is_in_mebibytes() {
        assert_eq!(
            memory_mib("MemTotal:        2097152 kB\nMemFree: 1 kB\n"),
            Some(2048)
        );
        assert_eq!(memory_mib("MemTotal: many\n"), None);
    }

    #[test]
    fn fsgsbase_needs_the_kernels_word_for_it() {
        let entry = |key: u64, value: u64| [key.to_ne_bytes(), value.to_ne_bytes()].concat();
        assert!(fsgsbase_enabled(
            &[entry(6, 4096), entry(26, 0b10)].concat()
        ));
        assert!(!fsgsbase_enabled(
            &[entry(6, 0b10), entry(26, 0b01)].concat()
        ));
        assert!(!fsgsbase_enabled(&[]));
    }

    #[test]
    fn this_machine_can_be_described() {
        let machine = Machine::detect(true);
        assert!(machine.cores >= 1);
        assert_ne!(machine.kernel, "unknown");
        assert!(machine.summary().contains("SCHED_FIFO"));
    }
}
