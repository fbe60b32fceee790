//! How interrupts come to a vCPU here: the kernel's modules promise, and only counting is believed.
//!
//! A module that can post interrupts may still not do it for this virtual machine (AVIC does not in
//! x2APIC mode on older CPUs). So a claim takes both: the module's parameter, and interrupts that
//! arrived without injection by KVM.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use kvm_bindings::{kvm_stats_desc, kvm_stats_header};

use super::system_call::ioctl;
use crate::backend::Delivery;

/// The kernel's counts for one vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KernelCounters {
    /// Exits from guest mode into the kernel.
    pub exits: u64,
    /// The part of these exits that host interrupts caused. Interrupting a CPU in guest mode takes
    /// one, unless the interrupt is posted.
    pub host_interrupts: u64,
    /// Interrupts that KVM injected.
    pub injected: u64,
}

impl std::ops::Add for KernelCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            exits: self.exits + other.exits,
            host_interrupts: self.host_interrupts + other.host_interrupts,
            injected: self.injected + other.injected,
        }
    }
}

/// Where the kernel shows its modules.
pub(super) const MODULES: &str = "/sys/module";

/// How interrupts would come here, according to KVM's modules: at best [`Delivery::Unproven`].
/// Makes no virtual machine.
#[must_use]
pub fn promised() -> Delivery {
    judge(posting_module(Path::new(MODULES)), 0, None)
}

/// Reads the modules under `modules` ([`MODULES`]): which one can post interrupts.
pub(super) fn posting_module(modules: &Path) -> Result<&'static str, Delivery> {
    let is_on = |parameter: &str| {
        std::fs::read_to_string(modules.join(parameter))
            .is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
    };
    if modules.join("kvm_pvm").exists() {
        Err(Delivery::Software)
    } else if is_on("kvm_intel/parameters/enable_apicv") {
        Ok("APICv")
    } else if is_on("kvm_amd/parameters/avic") {
        Ok("AVIC")
    } else {
        Err(Delivery::Injected)
    }
}

/// The verdict on the module's promise, given `arrived` interrupts and KVM's counts meanwhile.
pub(super) fn judge(
    module: Result<&'static str, Delivery>,
    arrived: u64,
    counted: Option<KernelCounters>,
) -> Delivery {
    match (module, counted) {
        (Err(delivery), _) => delivery,
        // Some may have found the vCPU outside of guest mode, where KVM has to inject them; and the
        // host has a timer.
        (Ok(by), Some(counted)) if arrived >= 10 => {
            if counted.injected >= arrived / 2 {
                Delivery::Injected
            } else if counted.host_interrupts < arrived / 2 {
                Delivery::Posted(by)
            } else {
                Delivery::Unproven(by)
            }
        }
        (Ok(by), _) => Delivery::Unproven(by),
    }
}

/// KVM's counters of one vCPU.
pub(super) struct Statistics {
    file: File,
    exits: u64,
    host_interrupts: u64,
    injected: u64,
}

impl Statistics {
    /// The statistics of the vCPU `file`; `None` if the kernel does not tell.
    pub(super) fn of(file: i32) -> Option<Self> {
        const GET_STATS_FD: u64 = 0xaece;
        // SAFETY: makes a new descriptor, owned below.
        let file = unsafe { ioctl(file, GET_STATS_FD, 0) };
        if file < 0 {
            return None;
        }
        // SAFETY: just made, and it has no other owner.
        let file = unsafe { File::from_raw_fd(file as i32) };
        // Older kernels leave the descriptor open for programs that are started.
        // SAFETY: changes a flag of our own descriptor.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        let word = |at: u64| {
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, at).ok()?;
            Some(u64::from(u32::from_ne_bytes(bytes)))
        };
        let header = |field: usize| word(field as u64);
        let name_size = header(std::mem::offset_of!(kvm_stats_header, name_size))?;
        let count = header(std::mem::offset_of!(kvm_stats_header, num_desc))?;
        let descriptions = header(std::mem::offset_of!(kvm_stats_header, desc_offset))?;
        let data = header(std::mem::offset_of!(kvm_stats_header, data_offset))?;
        let size = size_of::<kvm_stats_desc>() as u64 + name_size;
        let find = |wanted: &str| {
            (0..count.min(1024))
                .map(|n| descriptions + n * size)
                .find_map(|at| {
                    let mut name = [0; 64];
                    let name = &mut name[..name_size.min(64) as usize];
                    let name_at = at + size_of::<kvm_stats_desc>() as u64;
                    file.read_exact_at(name, name_at).ok()?;
                    let end = name.iter().position(|byte| *byte == 0)?;
                    (&name[..end] == wanted.as_bytes()).then_some(())?;
                    word(at + std::mem::offset_of!(kvm_stats_desc, offset) as u64)
                })
        };
        let at = |name| Some(data + find(name)?);
        let (exits, host_interrupts, injected) =
            (at("exits")?, at("irq_exits")?, at("irq_injections")?);
        Some(Self {
            file,
            exits,
            host_interrupts,
            injected,
        })
    }

    pub(super) fn read(&self) -> Option<KernelCounters> {
        let number = |at| {
            let mut bytes = [0; 8];
            self.file.read_exact_at(&mut bytes, at).ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        Some(KernelCounters {
            exits: number(self.exits)?,
            host_interrupts: number(self.host_interrupts)?,
            injected: number(self.injected)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posting_is_believed_only_when_it_was_counted() {
        let counts = |injected, host_interrupts| {
            Some(KernelCounters {
                exits: 2000,
                host_interrupts,
                injected,
            })
        };
        let counted = |injected| counts(injected, 20);
        assert_eq!(
            judge(Ok("APICv"), 500, counted(3)),
            Delivery::Posted("APICv")
        );
        assert_eq!(judge(Ok("AVIC"), 500, counted(499)), Delivery::Injected);
        // Each may have been an exit.
        assert_eq!(
            judge(Ok("APICv"), 500, counts(3, 510)),
            Delivery::Unproven("APICv")
        );
        assert_eq!(judge(Ok("APICv"), 500, None), Delivery::Unproven("APICv"));
        assert_eq!(
            judge(Ok("APICv"), 0, counted(0)),
            Delivery::Unproven("APICv")
        );
        let software = Err(Delivery::Software);
        assert_eq!(judge(software, 500, counted(0)), Delivery::Software);
    }

    #[test]
    fn modules_tell_what_they_can() {
        let modules = std::env::temp_dir().join(format!("shinjuku-modules-{}", std::process::id()));
        assert_eq!(posting_module(&modules), Err(Delivery::Injected));
        let write = |module: &str, parameter: &str, value: &str| {
            let parameters = modules.join(module).join("parameters");
            std::fs::create_dir_all(&parameters).unwrap();
            std::fs::write(parameters.join(parameter), value).unwrap();
        };
        write("kvm_amd", "avic", "N\n");
        assert_eq!(posting_module(&modules), Err(Delivery::Injected));
        write("kvm_amd", "avic", "1\n");
        assert_eq!(posting_module(&modules), Ok("AVIC"));
        write("kvm_intel", "enable_apicv", "Y\n");
        assert_eq!(posting_module(&modules), Ok("APICv"));
        write("kvm_pvm", "stats", "0\n");
        assert_eq!(posting_module(&modules), Err(Delivery::Software));
        std::fs::remove_dir_all(modules).unwrap();
    }
}
