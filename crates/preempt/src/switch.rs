//! The context switch, and the function in which a backing thread gives its stack away.
//!
//! A context that does not run is a stack pointer to this frame (addresses grow upwards):
//!
//! ```text
//!   sp + 56   return address into the code that called `switch` or `donate`
//!   sp + 48   rbp
//!   sp + 40   rbx
//!   sp + 32   r12
//!   sp + 24   r13
//!   sp + 16   r14
//!   sp +  8   r15
//!   sp +  0   mxcsr (4 bytes), x87 control word (2 bytes)
//! ```
//!
//! Both functions are ordinary calls for the compiler: every register the ABI calls volatile is
//! dead across them, so the callee-saved registers and the two control words are the whole state.
//! (A context preempted by a signal has all its registers, vector and mask registers included, in
//! the kernel's signal frame below. `x87` saves the x87 exceptions of a context preempted by a
//! probe.) The FS base, which is the thread control block, is written between the two stacks: a
//! signal within the switch sees one stack with the other's thread-locals. The handler then turns
//! back, because a context outside its own code always has its guard raised (see `current`).
//!
//! The frame is popped into `rcx` and jumped to rather than returned through: the return predictor
//! would always be wrong (7 against 10 ns where it was measured).

use std::arch::naked_asm;
use std::sync::atomic::AtomicU32;

/// Pushes the frame drawn above below the return address.
macro_rules! push_frame {
    () => {
        concat!(
            "push rbp\n",
            "push rbx\n",
            "push r12\n",
            "push r13\n",
            "push r14\n",
            "push r15\n",
            "sub rsp, 8\n",
            "stmxcsr [rsp]\n",
            "fnstcw [rsp + 4]\n",
        )
    };
}

/// Pops the frame, and continues at the return address.
macro_rules! pop_frame {
    () => {
        concat!(
            "ldmxcsr [rsp]\n",
            "fldcw [rsp + 4]\n",
            "add rsp, 8\n",
            "pop r15\n",
            "pop r14\n",
            "pop r13\n",
            "pop r12\n",
            "pop rbx\n",
            "pop rbp\n",
            "pop rcx\n",
            "jmp rcx\n",
        )
    };
}

/// Saves the caller on its stack, stores its stack pointer in `*save`, sets the FS base to `fs` and
/// continues with the frame at `to`. Returns when a thread switches back to the frame stored in
/// `*save`.
///
/// # Safety
/// `to` must be a stack pointer stored by [`switch`] or [`donate`] that no thread has switched to
/// since, `fs` the thread control block that belongs to that stack, and no other thread may run on
/// either stack.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(save: *mut usize, to: usize, fs: usize) {
    naked_asm!(
        push_frame!(),
        "mov [rdi], rsp",
        "wrfsbase rdx",
        "mov rsp, rsi",
        pop_frame!(),
    )
}

/// [`switch`] without the change of the FS base: a part of the cost table, and a fault to inject.
///
/// # Safety
/// As for [`switch`], and both sides must be meant to share one thread control block.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch_same_tls(save: *mut usize, to: usize) {
    naked_asm!(
        push_frame!(),
        "mov [rdi], rsp",
        "mov rsp, rsi",
        pop_frame!(),
    )
}

/// Saves the calling thread as [`switch`] does, stores its stack pointer in `*save`, moves the
/// thread to the private stack that ends at `private_top`, stores 1 to `*parked`, and sleeps until
/// `*wake` is not 0. Then it takes the frame at `*save`, which contexts may have replaced
/// meanwhile, and returns from it.
///
/// While other threads use the thread's own stack and thread control block, it touches nothing but
/// its private stack and the three words. So it calls nothing in libc.
///
/// # Safety
/// `private_top` must be the 16-byte aligned end of writable memory of at least a page that belongs
/// to the caller until the thread ends. The pointers must stay valid as long. All signals must be
/// blocked. `*wake` may become non-zero only when no thread runs on the stack any more and `*save`
/// is the frame to return from.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn donate(
    save: *mut usize,
    private_top: usize,
    wake: *const AtomicU32,
    parked: *const AtomicU32,
) {
    naked_asm!(
        push_frame!(),
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "mov rbx, rdi",
        "mov r12, rdx",
        "mov dword ptr [rcx], 1",
        // The kernel clobbers rcx, r11 and rax only.
        "2:",
        "mov eax, {futex}",
        "mov rdi, r12",
        "mov esi, {wait_private}",
        "xor edx, edx",
        "xor r10d, r10d",
        "syscall",
        "cmp dword ptr [r12], 0",
        "je 2b",
        "mov rsp, [rbx]",
        pop_frame!(),
        futex = const libc::SYS_futex,
        wait_private = const libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
    )
}

/// Calls a signal's `handler` with `fs` as the FS base, and puts the FS base back.
///
/// # Safety
/// `fs` must be the calling thread's FS base, or a thread control block that no other thread runs
/// with; `handler` must be a handler of three arguments that can be called with these; and all
/// signals must be blocked.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_under(
    fs: usize,
    handler: usize,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    frame: *mut libc::c_void,
) {
    naked_asm!(
        "push rbx",
        "rdfsbase rbx",
        "wrfsbase rdi",
        "mov rax, rsi",
        "mov edi, edx",
        "mov rsi, rcx",
        "mov rdx, r8",
        "call rax",
        "wrfsbase rbx",
        "pop rbx",
        "ret",
    )
}

/// The calling thread's FS base: the address of its thread control block.
pub(crate) fn fs_base() -> usize {
    let base: usize;
    // SAFETY: reads a register; `check_platform` has seen FSGSBASE before any context or worker
    // exists.
    unsafe {
        std::arch::asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags))
    };
    base
}
