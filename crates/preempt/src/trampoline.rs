//! The save trampoline: code that was interrupted in a context enters it, for every mechanism whose
//! interrupts have a handler in ring 0.
//!
//! The handler knows only a [`Window`], the context's stack. If the interrupted stack pointer lies
//! in it, the handler stores the interrupted RIP below the red zone, and returns to [`save`]
//! instead. All decisions are made there, on the context's stack, with all registers saved:
//!
//! ```text
//!   interrupted RSP ──▶ frames of the request
//!                       128 bytes red zone
//!                       rip, put there by the handler
//!                       rflags, rax ... r15       Saved, at rbp
//!                       xsave area                aligned to 64 bytes
//!                       `interrupted`, `give_way`, `switch`
//! ```
//!
//! None of it belongs to a mechanism: any worker may resume the context.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use crate::context::Head;
use crate::counters::count;
use crate::current::{self, CURRENT};
use crate::extended_state::{PROTECTION_KEYS, standard_bytes, xcr0};
use crate::worker::SCHEDULING;

/// Bytes below the stack pointer that leaf functions may use.
pub(crate) const RED_ZONE: usize = 128;

/// Where a worker's interrupts divert code. Handlers that do so run on the worker's own CPU.
#[repr(C)]
#[derive(Default, Debug)]
pub(crate) struct Window {
    /// The stack pointers from `low` to `high`: on the stack of the context that the worker runs,
    /// with room left below.
    pub(crate) low: AtomicUsize,
    pub(crate) high: AtomicUsize,
    /// Interrupts that found the stack pointer elsewhere.
    pub(crate) elsewhere: AtomicU64,
}

impl Window {
    /// From now on, an interrupt that comes while the stack pointer is within this range diverts
    /// the code.
    #[inline]
    pub(crate) fn set(&self, low: usize, high: usize) {
        // A handler that runs in between sees an empty window.
        self.low.store(usize::MAX, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.high.store(high, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.low.store(low, Ordering::Relaxed);
    }

    /// From now on, no interrupt diverts any code.
    pub(crate) fn close(&self) {
        self.set(usize::MAX, 0);
    }

    /// Interrupts, since the last call, that found the stack pointer elsewhere.
    #[inline]
    pub(crate) fn take_elsewhere(&self) -> u64 {
        if self.elsewhere.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.elsewhere.swap(0, Ordering::Relaxed)
    }
}

/// The components that `xsave` saves and `xrstor` restores, and the bytes they take.
static VECTOR_STATE: AtomicU64 = AtomicU64::new(u64::MAX);
static VECTOR_BYTES: AtomicUsize = AtomicUsize::new(0);
/// MXCSR as the ABI requires it at a function's start.
static ORDINARY_MXCSR: AtomicU32 = AtomicU32::new(0x1f80);

/// Called before the first interrupt, with the vector registers that a mechanism has, as bits of
/// XCR0. With several mechanisms the registers that all have count. Returns them, and the bytes
/// they take.
pub(crate) fn prepare(components: u64) -> (u64, usize) {
    let components = components & xcr0() & !PROTECTION_KEYS;
    let state = VECTOR_STATE.fetch_and(components, Ordering::Relaxed) & components;
    let bytes = standard_bytes(state);
    VECTOR_BYTES.store(bytes, Ordering::Relaxed);
    (state, bytes)
}

/// The general registers as [`save`] leaves them on the stack.
#[repr(C)]
pub(crate) struct Saved {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    pub(crate) r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rbp: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    pub(crate) rcx: u64,
    rbx: u64,
    rax: u64,
    pub(crate) rflags: u64,
    pub(crate) rip: u64,
}

/// The target of interrupted code: saves all registers, lets the context give way, and returns to
/// where the code was interrupted, by then maybe on another worker. The stack is drawn above.
///
/// # Safety
/// Never called: an interrupt's handler returns to it, with the stack pointer at the interrupted
/// RIP, and room below for a signal frame and its handler.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn save() {
    naked_asm!(
        "pushfq",
        "push rax",
        "push rbx",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "push rbp",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "cld",
        "mov rbp, rsp",
        "sub rsp, [rip + {bytes}]",
        "and rsp, -64",
        // The area's header, which `xsave` does not write completely, and which `xrstor` requires
        // to be zero except for the first word.
        "xor eax, eax",
        "mov [rsp + 512], rax",
        "mov [rsp + 520], rax",
        "mov [rsp + 528], rax",
        "mov [rsp + 536], rax",
        "mov [rsp + 544], rax",
        "mov [rsp + 552], rax",
        "mov [rsp + 560], rax",
        "mov [rsp + 568], rax",
        "mov eax, [rip + {state}]",
        "mov edx, [rip + {state} + 4]",
        "xsave64 [rsp]",
        // As the ABI requires for calls; a kernel does the same for signal handlers.
        "fninit",
        "ldmxcsr [rip + {mxcsr}]",
        "test al, 4",
        "jz 2f",
        "vzeroupper",
        "2:",
        "mov rdi, rbp",
        "call {interrupted}",
        "mov eax, [rip + {state}]",
        "mov edx, [rip + {state} + 4]",
        "xrstor64 [rsp]",
        "mov rsp, rbp",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rbp",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop rbx",
        "pop rax",
        "popfq",
        "ret {red_zone}",
        bytes = sym VECTOR_BYTES,
        state = sym VECTOR_STATE,
        mxcsr = sym ORDINARY_MXCSR,
        interrupted = sym interrupted,
        red_zone = const RED_ZONE,
    )
}

/// The counterpart of the signal handler, with the same rules. Called on the interrupted stack,
/// which has room; the owner of the FS base is not yet known.
extern "C" fn interrupted(saved: &mut Saved) {
    for backend in crate::BACKENDS {
        (backend.before_the_call)(saved);
    }
    let head = CURRENT.get();
    if head.is_null() {
        // SAFETY: the worker bound to this thread clears the pointer before it drops the counters.
        if let Some(counters) = unsafe { SCHEDULING.get().as_ref() } {
            count(&counters.late);
        }
        return;
    }
    // SAFETY: a context's head outlives the thread control block it was read from.
    let head = unsafe { &*head };
    let here = std::ptr::from_ref(saved) as usize;
    if !(head.stack_low.get()..head.stack_high.get()).contains(&here) {
        return;
    }
    if head.running.guard.load(Ordering::Relaxed) != 0 {
        // Within the switch, or the job holds preemption off: the context looks at the request when
        // that ends.
        // SAFETY: on the context's own stack with the guard up: its worker runs it.
        count(unsafe { &current::worker_counters(head).deferred });
        return;
    }
    if !worker_has_its_mask(head) {
        return current::interrupted_in_vain(head);
    }
    current::interrupted(head);
}

/// Whether the worker's thread, as far as its mode knows, has the mask that it had as a worker.
/// Called at guard 0.
fn worker_has_its_mask(head: &Head) -> bool {
    head.running.guard.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the guard is up, and the worker is in `Worker::run`, which borrows its head.
    let worker = unsafe { &*head.running.worker.get() };
    let other = (worker.mode.as_ref()).is_some_and(|mode| mode.has_other_mask(worker.signal_mask));
    compiler_fence(Ordering::SeqCst);
    // The caller looks next at requests that arrive in between.
    head.running.guard.store(0, Ordering::Relaxed);
    !other
}

#[cfg(test)]
mod tests {
    use std::arch::x86_64::__cpuid_count;

    use super::*;

    #[test]
    fn a_window_opens_and_closes_and_counts() {
        let window = Window::default();
        window.set(0x1000, 0x2000);
        assert_eq!(window.low.load(Ordering::Relaxed), 0x1000);
        assert_eq!(window.high.load(Ordering::Relaxed), 0x2000);
        window.close();
        assert!(window.low.load(Ordering::Relaxed) > window.high.load(Ordering::Relaxed));
        window.elsewhere.store(3, Ordering::Relaxed);
        assert_eq!((window.take_elsewhere(), window.take_elsewhere()), (3, 0));
    }

    #[test]
    fn the_bytes_are_those_that_the_cpu_takes() {
        assert_eq!(standard_bytes(0b11), 576);
        // Leaf 0Dh, EBX: the size of all enabled components.
        assert_eq!(standard_bytes(xcr0()), __cpuid_count(0xd, 0).ebx as usize);
    }
}
