//! The structures that the ioctls pass: `kern/dune.h`.

use std::ffi::c_void;
use std::mem::offset_of;

/// Registers to enter Dune mode with; on return, the reason why it was left. The argument of
/// [`ENTER`](crate::ioctl::ENTER).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the registers have the CPU's names")]
pub struct Config {
    /// Why Dune mode was left, as [`Exit::from_code`] reads it.
    pub ret: i64,
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
    /// Guest-physical address of the page-table root.
    pub cr3: u64,
    /// The exit status, signal, vector or error that belongs to `ret`.
    pub status: i64,
    /// The module's own field; 0 at first.
    pub vcpu: u64,
}

const _: () = {
    assert!(size_of::<Config>() == 176);
    assert!(offset_of!(Config, rax) == 0x08);
    assert!(offset_of!(Config, rbx) == 0x10);
    assert!(offset_of!(Config, rcx) == 0x18);
    assert!(offset_of!(Config, rdx) == 0x20);
    assert!(offset_of!(Config, rsi) == 0x28);
    assert!(offset_of!(Config, rdi) == 0x30);
    assert!(offset_of!(Config, rsp) == 0x38);
    assert!(offset_of!(Config, rbp) == 0x40);
    assert!(offset_of!(Config, r8) == 0x48);
    assert!(offset_of!(Config, r15) == 0x80);
    assert!(offset_of!(Config, rip) == 0x88);
    assert!(offset_of!(Config, rflags) == 0x90);
    assert!(offset_of!(Config, cr3) == 0x98);
    assert!(offset_of!(Config, status) == 0xa0);
    assert!(offset_of!(Config, vcpu) == 0xa8);
};

/// Why Dune mode was left: `DUNE_RET_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// The thread asked to end; `status` is its exit status.
    Exit,
    /// The thread touched guest-physical memory that the module could not back.
    EptViolation,
    /// An exception that the module does not handle; `status` is its vector.
    Interrupt,
    /// A signal is pending; `status` is its number.
    Signal,
    /// The CPU left guest mode for a reason that the module does not know.
    UnhandledVmExit,
    /// The way back into Dune mode failed. Written by libdune, not by the module.
    NoEntry,
}

impl Exit {
    /// Reads [`Config::ret`]; `None` for codes that no known module answers.
    #[must_use]
    pub const fn from_code(code: i64) -> Option<Self> {
        Some(match code {
            1 => Self::Exit,
            2 => Self::EptViolation,
            3 => Self::Interrupt,
            4 => Self::Signal,
            5 => Self::UnhandledVmExit,
            6 => Self::NoEntry,
            _ => return None,
        })
    }
}

/// Where guest-physical memory lies. Answered by [`GET_LAYOUT`](crate::ioctl::GET_LAYOUT).
///
/// ```text
///   guest-physical     0 ... phys_limit - 64 GiB       as in virtual memory: program and heap
///                      ... 63 GiB                      virtual base_map ...: what was mapped
///                      ... 1 GiB, ends at phys_limit   virtual base_stack ...: the main thread's stack
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Layout {
    /// End of guest-physical memory.
    pub phys_limit: u64,
    /// First virtual address of the mapped area.
    pub base_map: u64,
    /// First virtual address of the stack's area.
    pub base_stack: u64,
}

const _: () = assert!(size_of::<Layout>() == 24);

/// Bytes of the stack in guest-physical memory.
pub const GPA_STACK_SIZE: u64 = 1 << 30;
/// Bytes of mappings in guest-physical memory.
pub const GPA_MAP_SIZE: u64 = (1 << 36) - GPA_STACK_SIZE;

/// The argument of [`TRAP_ENABLE`](crate::ioctl::TRAP_ENABLE). Packed: 41 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct TrapConfig {
    /// The address to wait for.
    pub trigger_rip: u64,
    /// Called at that address with `regs` and `priv_`.
    pub notify_func: Option<unsafe extern "C" fn(*mut TrapRegisters, *mut c_void)>,
    /// Where the module writes the registers.
    pub regs: *mut TrapRegisters,
    /// The size of `regs` in bytes.
    pub regs_size: u64,
    /// For `notify_func`.
    pub priv_: *mut c_void,
    /// Whether to wait for one more step.
    pub delay: u8,
}

const _: () = {
    assert!(size_of::<TrapConfig>() == 41);
    assert!(offset_of!(TrapConfig, notify_func) == 8);
    assert!(offset_of!(TrapConfig, regs) == 16);
    assert!(offset_of!(TrapConfig, regs_size) == 24);
    assert!(offset_of!(TrapConfig, priv_) == 32);
    assert!(offset_of!(TrapConfig, delay) == 40);
};

/// The registers at a trap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the registers have the CPU's names")]
pub struct TrapRegisters {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

const _: () = assert!(size_of::<TrapRegisters>() == 144);
