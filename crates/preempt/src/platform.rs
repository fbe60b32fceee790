//! Requirements on machine and kernel, checked before the first context exists.

use std::arch::x86_64::__cpuid;
use std::sync::OnceLock;

/// Why contexts cannot run on this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// User code may not write the FS base.
    #[error(
        "the kernel does not let user code write the FS base (FSGSBASE): contexts need it to carry their \
         thread-locals. It takes an Intel Ivy Bridge, AMD Zen 2 or later CPU, Linux 5.9 or later, and no `nofsgsbase` on \
         the kernel's command line; in a virtual machine the hypervisor must pass the CPU flag on"
    )]
    NoFsGsBase,
    /// The process runs with CET shadow stacks.
    #[error(
        "this process runs with hardware shadow stacks (CET), which a stack switch would violate: start it with \
         GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"
    )]
    ShadowStack,
    /// The TSC cannot serve as a clock.
    #[error(
        "the CPU does not promise an invariant TSC, which the runtime uses as its clock: on a virtual machine pass the \
         host's CPU model (flags `constant_tsc` and `nonstop_tsc`)"
    )]
    NoInvariantTsc,
    /// Another library than glibc has registered restartable sequences on the threads.
    #[error(
        "another library than glibc has registered restartable sequences (rseq) on a new thread, and would take the CPU of \
         a sleeping thread for that of a request: start the process without glibc.pthread.rseq=0 in GLIBC_TUNABLES, or \
         without that library (per-CPU caches of tcmalloc: TCMALLOC_PER_CPU_CACHES=0)"
    )]
    RestartableSequences,
}

const HWCAP2_FSGSBASE: u64 = 1 << 1;
const ARCH_SHSTK_STATUS: i32 = 0x5005;
const ARCH_SHSTK_SHSTK: u64 = 1;

/// Checks that contexts can run here.
///
/// # Errors
/// [`Unsupported`] says what is missing and how to get it.
pub fn check_platform() -> Result<(), Unsupported> {
    // SAFETY: getauxval only reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err(Unsupported::NoFsGsBase);
    }
    let mut features: u64 = 0;
    // SAFETY: writes one u64 through the pointer, or fails with EINVAL on kernels that do not know
    // the request.
    let status =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &raw mut features) };
    if status == 0 && features & ARCH_SHSTK_SHSTK != 0 {
        return Err(Unsupported::ShadowStack);
    }
    if !has_invariant_tsc() {
        return Err(Unsupported::NoInvariantTsc);
    }
    Ok(())
}

/// CPUID leaf 8000_0007h, EDX bit 8; hypervisors often hide it and promise the same by
/// `tsc_known_freq`.
fn has_invariant_tsc() -> bool {
    let invariant =
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0;
    invariant || kernel_trusts_tsc()
}

/// Read only once: a process without free descriptors cannot read it.
fn kernel_trusts_tsc() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    static TRUSTED: OnceLock<bool> = OnceLock::new();
    *TRUSTED.get_or_init(|| {
        std::fs::read_to_string(SOURCE)
            .is_ok_and(|source| matches!(source.trim(), "tsc" | "kvm-clock"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_to_do() {
        assert!(Unsupported::NoFsGsBase.to_string().contains("Linux 5.9"));
        assert!(
            Unsupported::ShadowStack
                .to_string()
                .contains("GLIBC_TUNABLES")
        );
    }

    #[test]
    fn this_machine_can_run_the_tests() {
        check_platform().unwrap();
    }
}
