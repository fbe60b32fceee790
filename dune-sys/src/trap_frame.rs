//! The stack frame of libdune's interrupt stubs, `struct dune_tf`, and their segments.

use std::mem::offset_of;

use x86_64::PrivilegeLevel;
use x86_64::structures::gdt::SegmentSelector;

/// Code of ring 0, where a program in Dune mode runs.
pub const KERNEL_CODE: SegmentSelector = SegmentSelector(0x10);
/// Data of ring 0.
pub const KERNEL_DATA: SegmentSelector = SegmentSelector(0x18);
/// Data of ring 3.
pub const USER_DATA: SegmentSelector = SegmentSelector(0x28 | PrivilegeLevel::Ring3 as u16);
/// Code of ring 3.
pub const USER_CODE: SegmentSelector = SegmentSelector(0x30 | PrivilegeLevel::Ring3 as u16);
/// The thread's task state.
pub const TASK_STATE: SegmentSelector = SegmentSelector(0x38);

/// The general registers of interrupted code; vector registers stay in place. An interrupt handler
/// gets a pointer to the frame, and the code resumes with the handler's changes.
///
/// libdune's gates keep the stack, so the frame lies right below the interrupted code's stack
/// pointer: code that uses the red zone loses its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the registers have the CPU's names")]
pub struct TrapFrame {
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub rbx: u64,
    pub rbp: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rax: u64,
    /// The exception's error code.
    pub err: u32,
    pub rip: u64,
    pub cs: u16,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u16,
}

const _: () = {
    assert!(size_of::<TrapFrame>() == 168);
    assert!(offset_of!(TrapFrame, r11) == 56);
    assert!(offset_of!(TrapFrame, r15) == 104);
    assert!(offset_of!(TrapFrame, rax) == 112);
    assert!(offset_of!(TrapFrame, err) == 120);
    assert!(offset_of!(TrapFrame, rip) == 128);
    assert!(offset_of!(TrapFrame, cs) == 136);
    assert!(offset_of!(TrapFrame, rflags) == 144);
    assert!(offset_of!(TrapFrame, rsp) == 152);
    assert!(offset_of!(TrapFrame, ss) == 160);
};
