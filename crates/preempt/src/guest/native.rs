//! The way out of guest mode with all registers: the thread resumes natively where the guest's code
//! was.
//!
//! The registers are put into a signal frame on memory of ours. `rt_sigreturn` takes them from
//! there, vectors, flags and signal mask included, all at once and without touching the code's
//! stack, which may be overflowing. The frame has the layout that the kernel uses for its own:
//!
//! ```text
//!   way_out + 4096 ...  vector state, as KVM hands it out: the standard format of xsave, with the kernel's marks
//!   way_out +    8      ucontext: general registers, signal mask, pointer to the above
//!   way_out +    0      the return address, which is not used
//! ```
//!
//! The faulting instruction, or the system call, is then executed again. The kernel reacts (a
//! signal with the right address, a thread with the right stack) as for any code.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::atomic::Ordering;

use super::machine::Machine;
use super::system_call::{ioctl, system_call};
use super::vcpu::{RING_3_CODE, RING_3_DATA, Vcpu};
use crate::extended_state::{PROTECTION_KEYS, xcr0};
use crate::signal::{LEAVE_ALTERNATE_STACK, SIGNAL};

/// Bytes of vector state that fit: the size for KVM_GET_XSAVE. Only AMX needs more, which guest
/// mode lacks.
pub(super) const MOST_VECTOR_BYTES: usize = 4096;
const VECTORS_AT: usize = 4096;
/// Bytes of the memory for the frame.
pub(super) const WAY_OUT: usize = VECTORS_AT + MOST_VECTOR_BYTES + 4096;

/// The components that guest mode can have: x87, SSE, AVX, AVX-512. (Protection keys belong to the
/// worker. Code that uses AMX is stopped by an exception and resumes natively.)
pub(super) const VECTORS: u64 = 0b1110_0111;

/// The registers of the guest's code.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) general: kvm_bindings::kvm_regs,
    pub(super) fs: u64,
    pub(super) gs: u64,
}

/// Resumes `state` natively.
///
/// # Safety
/// `state` must be that of the code that ran in guest mode on `vcpu`, which no thread runs any
/// more; the caller is the host side, on the vCPU's host stack, which it gives up.
pub(super) unsafe fn leave(vcpu: &Vcpu, state: &State) -> ! {
    let all = u64::MAX;
    let mut mask = 0u64;
    // SAFETY: no signal comes from here to the end, and then the mask is as before.
    unsafe {
        system_call(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                (&raw const all) as usize,
                (&raw mut mask) as usize,
                8,
            ],
        );
    }
    let link = &vcpu.link;
    link.left.fetch_add(1, Ordering::Relaxed);
    if link.mode.to_native() {
        // SAFETY: two numbers, and a signal to this thread, taken when the mask is back.
        unsafe {
            let (process, thread) = (libc::getpid(), libc::gettid());
            let arguments = [process as usize, thread as usize, SIGNAL as usize, 0];
            system_call(libc::SYS_tgkill, arguments);
        }
    }
    let way_out = vcpu.way_out.start();
    let vectors = way_out + VECTORS_AT;
    const GET_XSAVE: u64 = 0x9000_aea4;
    // SAFETY: writes 4 KiB, for which there is room.
    if unsafe { ioctl(vcpu.file(), GET_XSAVE, vectors) } < 0 {
        super::fatal("KVM does not hand out the vector registers", state);
    }
    let (restored, bytes) = with_keys(vectors, &vcpu.machine);
    // SAFETY: within the pages of the frame, which no other code uses.
    unsafe {
        describe_vectors(vectors, restored, bytes);
        write_context(way_out + 8, vectors, mask, &state.general);
        asm!(
            "wrfsbase {fs}",
            "wrgsbase {gs}",
            "mov rsp, {frame}",
            "syscall",
            "ud2",
            fs = in(reg) state.fs,
            gs = in(reg) state.gs,
            frame = in(reg) way_out + 8,
            in("rax") libc::SYS_rt_sigreturn,
            options(noreturn),
        );
    }
}

/// Adds the thread's protection keys to the vector state that KVM wrote at `vectors`. Returns the
/// components that are to be restored, and the bytes that they take.
fn with_keys(vectors: usize, machine: &Machine) -> (u64, usize) {
    let (restored, bytes) = (machine.vector_state, machine.vector_bytes);
    let Some((at, rights)) = protection_keys() else {
        return (restored, bytes);
    };
    // SAFETY: within the memory for vectors, as all of the host's components below AMX are; the
    // header's first word says which are present.
    unsafe {
        ((vectors + at) as *mut u64).write(u64::from(rights));
        *((vectors + 512) as *mut u64) |= PROTECTION_KEYS;
    }
    (restored | PROTECTION_KEYS, bytes.max(at + 8))
}

/// Writes the kernel's description of the frame's contents (`struct _fpx_sw_bytes`), and the mark
/// behind it.
///
/// # Safety
/// `vectors` must be the address of [`MOST_VECTOR_BYTES`] bytes and a page, for the caller alone.
unsafe fn describe_vectors(vectors: usize, restored: u64, bytes: usize) {
    const FIRST_MARK: u32 = 0x4650_5853;
    const SECOND_MARK: u32 = 0x4650_5845;
    let marks = (vectors + 464) as *mut u32;
    // SAFETY: within that memory, as the caller promises.
    unsafe {
        marks.cast::<[u32; 12]>().write([0; 12]);
        marks.write(FIRST_MARK);
        marks.add(1).write(bytes as u32 + 4);
        marks.add(2).cast::<u64>().write(restored);
        marks.add(4).write(bytes as u32);
        ((vectors + bytes) as *mut u32).write_unaligned(SECOND_MARK);
    }
}

/// Writes the registers, the signal mask and the way to `vectors`, as a signal's frame has them.
///
/// # Safety
/// `at` must be the address of room for a `ucontext_t`, for the caller alone.
unsafe fn write_context(at: usize, vectors: usize, mask: u64, r: &kvm_bindings::kvm_regs) {
    let context = at as *mut libc::ucontext_t;
    // SAFETY: the caller promises the room. Zeroes are a valid `ucontext_t`.
    let context = unsafe {
        context.write(std::mem::zeroed());
        &mut *context
    };
    // Vector state, and stack segments, are present.
    context.uc_flags = 0b111;
    context.uc_stack.ss_flags = LEAVE_ALTERNATE_STACK;
    // SAFETY: the kernel's mask is the first word of glibc's.
    unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write(mask) };
    context.uc_mcontext.fpregs = vectors as *mut _;
    let segments = u64::from(RING_3_CODE) | u64::from(RING_3_DATA) << 48;
    let all = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.rflags, segments,
    ];
    for (register, value) in context.uc_mcontext.gregs.iter_mut().zip(all) {
        *register = value as i64;
    }
}

/// The thread's rights by protection keys, and their place among the vectors, if the CPU has keys.
fn protection_keys() -> Option<(usize, u32)> {
    if xcr0() & PROTECTION_KEYS == 0 {
        return None;
    }
    let rights: u32;
    // SAFETY: reads a register that exists.
    unsafe {
        asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    Some((__cpuid_count(0xd, 9).ebx as usize, rights))
}
