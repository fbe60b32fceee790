//! All the code that runs in ring 0 of the virtual machine.
//!
//! It is short, because each of its instructions costs a microsecond under software virtualisation.
//! It runs on stacks of its own (the interrupt stack table), so that the red zone of the
//! interrupted code stays intact. The decisions are made in ring 3, by the [save
//! trampoline](crate::trampoline).
//!
//! The interrupt stack ends where the vCPU's [`Block`] begins, so the handler finds it from its
//! stack pointer:
//!
//! ```text
//!   rsp + 64 ...  Block                       ◀── end of the interrupt stack
//!   rsp + 56      ss                          ┐
//!   rsp + 48      rsp of the interrupted code │
//!   rsp + 40      rflags                      │ pushed by the CPU
//!   rsp + 32      cs                          │
//!   rsp + 24      rip of the interrupted code ┘
//!   rsp + 16      rax
//!   rsp +  8      rcx
//!   rsp +  0      rdx
//! ```

use std::arch::naked_asm;
use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use super::vcpu_mode::GUEST;
use crate::trampoline::{RED_ZONE, Saved, Window, save};

/// The words that the interrupt handler and the host side share for one vCPU.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct Block {
    pub(super) window: Window,
    /// Interrupts that the handler took.
    pub(super) taken: AtomicU64,
    /// The signal mask of the worker's thread, as last read.
    pub(super) mask: AtomicU64,
    /// Written to on entry, so that the page is there.
    pub(super) touched: AtomicU64,
}

/// The port of the exits made by the stubs.
pub(super) const SYSTEM_CALL_PORT: u16 = 0x55;
pub(super) const EXCEPTION_PORT: u16 = 0x56;
/// Bytes of an `out` to either.
pub(super) const OUT_LENGTH: u64 = 2;
/// The x2APIC's end-of-interrupt register.
const EOI: u32 = 0x80b;

/// LSTAR: the target of `syscall`, with the interrupts masked, the caller's RIP in rcx and flags in
/// r11, and the caller's stack. The exit passes all registers to the host side, which puts the
/// answer into rax.
///
/// Under software virtualisation the stub may run in ring 3. The host side then returns to the
/// caller itself.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn system_call_stub() {
    naked_asm!("out {port}, al", "sysretq", port = const SYSTEM_CALL_PORT as u8)
}

/// Bytes of a `syscall` instruction.
pub(super) const SYSCALL_LENGTH: u64 = 2;

/// Called in ring 3 with the registers that an interrupt saved. If it interrupted the stub, in ring
/// 3 under software virtualisation, then the call has not begun: this sets the code back to where
/// it makes the call, from which every worker can resume it.
pub(super) fn before_the_call(saved: &mut Saved) {
    if saved.rip == system_call_stub as *const () as u64 {
        saved.rip = saved.rcx - SYSCALL_LENGTH;
        saved.rflags = saved.r11;
    }
}

/// Enters ring 3 through the frame at the stack pointer.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn enter_ring_3() {
    naked_asm!("iretq")
}

/// For vectors without a sender: a spurious interrupt of the APIC's.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn ignore() {
    naked_asm!("iretq")
}

/// The exception's vector.
pub(super) const UNDEFINED_INSTRUCTION: usize = 6;
/// The x2APIC's interrupt command register.
const COMMAND: u32 = 0x830;

/// In ring 3: has edx:eax written to the interrupt command register if the word at rdi is
/// [`GUEST`], and returns in eax whether it did. Clobbers rcx.
///
/// ```text
///   post + 0   cmp, jne   ┐ a thread that leaves guest mode here goes on natively at post + 0,
///   post + 5   ud2        ┘ and finds another word there
///   post + 7   the answer
/// ```
///
/// The undefined instruction is the only way into ring 0 that exists everywhere: software
/// virtualisation has no `int`.
///
/// # Safety
/// The word tells whether the calling thread is in guest mode, and the command posts an interrupt
/// that has a handler.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn post() {
    naked_asm!(
        "cmp dword ptr [rdi], {guest}",
        "jne 2f",
        "ud2",
        "2:",
        "sete al",
        "movzx eax, al",
        "ret",
        guest = const GUEST,
    )
}

/// Bytes from the start of [`post`] to its undefined instruction.
pub(super) const POST_LENGTH: u64 = 5;

/// Where code that was left at `rip` in guest mode resumes natively.
pub(super) fn natively(rip: u64) -> u64 {
    let post = post as *const () as u64;
    if (post..=post + POST_LENGTH).contains(&rip) {
        post
    } else {
        rip
    }
}

/// Whether `post` was assembled as drawn.
pub(super) fn post_is_as_drawn() -> bool {
    let code = post as *const () as *const [u8; POST_LENGTH as usize + 2];
    // SAFETY: the function is longer than that, and code can be read.
    let code = unsafe { code.read() };
    code[POST_LENGTH as usize..] == [0x0f, 0x0b]
}

/// The stub of undefined instructions: it executes [`post`]'s itself, which it recognises by the
/// frame's RIP; others go to the host side.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn undefined_instruction_stub() {
    naked_asm!(
        "push rax",
        "lea rax, [rip + {post} + {post_length}]",
        "cmp [rsp + 8], rax",
        "pop rax",
        "je 2f",
        "push 0",
        "push {vector}",
        "out {port}, al",
        "add rsp, 16",
        "iretq",
        "2:",
        "add qword ptr [rsp], {length}",
        "mov ecx, {command}",
        "wrmsr",
        "iretq",
        post = sym post,
        post_length = const POST_LENGTH,
        vector = const UNDEFINED_INSTRUCTION,
        port = const EXCEPTION_PORT as u8,
        length = const 2,
        command = const COMMAND,
    )
}

/// Bytes from one exception's stub to the next, from the first 16-byte boundary on.
pub(super) const EXCEPTION_STUB: usize = 16;

/// One stub for each of the 32 exceptions. The host side finds the vector, the error code and the
/// CPU's frame in memory.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn exception_stubs() {
    naked_asm!(
        ".altmacro",
        ".macro shinjuku_exception_stub vector",
        ".balign 16",
        // The others have an error code already.
        ".if (\\vector != 8) && (\\vector != 10) && (\\vector != 11) && (\\vector != 12) && (\\vector != 13) && (\\vector != 14) && (\\vector != 17) && (\\vector != 21) && (\\vector != 29) && (\\vector != 30)",
        "push 0",
        ".endif",
        "push \\vector",
        "jmp 2f",
        ".endm",
        ".set shinjuku_vector, 0",
        ".rept 32",
        "shinjuku_exception_stub %shinjuku_vector",
        ".set shinjuku_vector, shinjuku_vector + 1",
        ".endr",
        ".noaltmacro",
        ".purgem shinjuku_exception_stub",
        ".balign 16",
        "2:",
        "out {port}, al",
        "add rsp, 16",
        "iretq",
        port = const EXCEPTION_PORT as u8,
    )
}

/// The addresses of the code that the CPU fetches in ring 0.
pub(super) fn code() -> [usize; 7] {
    let exceptions = exception_stubs as *const () as usize;
    [
        system_call_stub as *const () as usize,
        enter_ring_3 as *const () as usize,
        ignore as *const () as usize,
        undefined_instruction_stub as *const () as usize,
        exceptions,
        exceptions + 33 * EXCEPTION_STUB,
        interrupt_handler as *const () as usize,
    ]
}

/// The interrupt handler. The stack is drawn above.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn interrupt_handler() {
    naked_asm!(
        "push rax",
        "push rcx",
        "push rdx",
        "inc qword ptr [rsp + 64 + {taken}]",
        "mov rax, [rsp + 48]",
        "cmp rax, [rsp + 64 + {low}]",
        "jb 2f",
        "cmp rax, [rsp + 64 + {high}]",
        "ja 2f",
        // The address to which `save` returns goes below the red zone.
        "sub rax, {red_zone} + 8",
        "mov rcx, [rsp + 24]",
        "mov [rax], rcx",
        "mov [rsp + 48], rax",
        "lea rax, [rip + {save}]",
        "mov [rsp + 24], rax",
        "jmp 3f",
        "2:",
        "inc qword ptr [rsp + 64 + {elsewhere}]",
        "3:",
        "mov ecx, {eoi}",
        "xor eax, eax",
        "xor edx, edx",
        "wrmsr",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "iretq",
        taken = const offset_of!(Block, taken),
        elsewhere = const offset_of!(Block, window.elsewhere),
        low = const offset_of!(Block, window.low),
        high = const offset_of!(Block, window.high),
        red_zone = const RED_ZONE,
        save = sym save,
        eoi = const EOI,
    )
}
