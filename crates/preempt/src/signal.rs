//! Preemption by signal: `tgkill` to the worker's thread, and a switch away inside the signal
//! frame.
//!
//! The kernel saves every register, vector and mask registers included, in a frame on the context's
//! own stack. The handler then leaves to the worker like a probe does, so the frame moves with the
//! context; the worker that resumes it returns from the handler, and `rt_sigreturn` restores all
//! registers.
//!
//! ```text
//!   context's stack         ┌───────────────────────┐ stack_high
//!                           │ frames of the request │
//!   interrupted RSP ───────▶├───────────────────────┤
//!                           │ 128 bytes red zone    │
//!                           │ signal frame: 3-4 KiB │ all registers, signal mask, alternate stack
//!                           │ handler, give_way     │
//!   saved stack pointer ───▶│ switch                │
//!                           ├───────────────────────┤
//!                           │ room for the next one │ `frame_room`
//!                           └───────────────────────┘ stack_low, guard page below
//! ```
//!
//! Flags: `SA_NODEFER`, since the worker must be interruptible again after the handler left without
//! returning; `SA_RESTART`, so that interrupted system calls resume; no `SA_ONSTACK`, since the
//! frame must be on the context's stack.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::{Clock, Cycles};
use crate::compiled;
use crate::context::Head;
use crate::counters::count;
use crate::current::{self, CURRENT};
use crate::extended_state;
use crate::fault::{self, Defence};
use crate::library_code;
use crate::mechanism::{InterruptError, Mechanism, WorkerLink};
use crate::timer;
use crate::token::HardPreemption;
use crate::worker::SCHEDULING;

/// SIGURG is ignored by default and rarely used: a SIGURG from elsewhere goes to the handler that
/// was there before.
pub(crate) const SIGNAL: libc::c_int = libc::SIGURG;

/// Stack that the handler needs below the kernel's frame to leave safely, with room for another
/// signal's frame.
pub(crate) fn handler_room() -> usize {
    (largest_frame() + 4 * 1024).max(8 * 1024)
}

/// The kernel's frame at its largest; it grows with the vector registers.
pub(crate) fn largest_frame() -> usize {
    // SAFETY: getauxval only reads.
    (unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize).max(4 * 1024)
}

/// Not a valid value of `ss_flags`, so `rt_sigreturn` leaves the thread's alternate stack as it is.
pub(crate) const LEAVE_ALTERNATE_STACK: libc::c_int = 0x7777;

/// After an interrupt in vain, a worker's own timer fires again after this time, in nanoseconds.
const IN_VAIN_AGAIN: u64 = 500_000;

/// Preemption by signal. Works on any Linux.
#[derive(Clone, Copy, Debug)]
pub struct Signal(());

/// Why signals cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// The handler could not be installed.
    #[error("the handler for signal {signal} could not be installed: {cause}")]
    Install {
        /// The signal's number.
        signal: i32,
        /// The kernel's answer.
        cause: std::io::Error,
    },
}

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether contexts on stacks may be stopped: the token was given.
static STACKS_ALLOWED: AtomicBool = AtomicBool::new(false);

impl Signal {
    /// Installs the handler for SIGURG in this process, once; an earlier handler still gets signals
    /// that are not meant for a worker.
    ///
    /// # Errors
    /// [`SignalError`] if the kernel refuses.
    pub fn install(_: HardPreemption) -> Result<Self, SignalError> {
        let signal = Self::for_kernel_threads()?;
        STACKS_ALLOWED.store(true, Ordering::Relaxed);
        Ok(signal)
    }

    /// As [`install`](Self::install), without the permission: it stops contexts that are kernel
    /// threads ([`ContextKind::KernelThread`](crate::ContextKind)), and no others unless the
    /// permission is given elsewhere. Stopping a thread where it stands, and letting it go on, is
    /// what the kernel does all the time.
    ///
    /// # Errors
    /// [`SignalError`] if the kernel refuses.
    pub fn for_kernel_threads() -> Result<Self, SignalError> {
        static INSTALLED: std::sync::Mutex<bool> = std::sync::Mutex::new(false);
        let mut installed = INSTALLED
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !*installed {
            library_code::find();
            // SAFETY: `sigaction` is plain data, and zeroes are a valid one.
            let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: only reads the action in force; stored before ours can run.
            unsafe { libc::sigaction(SIGNAL, std::ptr::null(), &mut previous) };
            let _ = PREVIOUS.set(previous);
            // SAFETY: as above.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
            // SAFETY: the handler is async-signal-safe: it touches thread-locals with constant
            // initialisers and the context's own words only.
            if unsafe { libc::sigaction(SIGNAL, &action, std::ptr::null_mut()) } != 0 {
                return Err(SignalError::Install {
                    signal: SIGNAL,
                    cause: std::io::Error::last_os_error(),
                });
            }
            *installed = true;
        }
        Ok(Self(()))
    }
}

impl Mechanism for Signal {
    fn name(&self) -> &'static str {
        "signal"
    }

    fn interrupt(&self, worker: &WorkerLink) -> Result<(), InterruptError> {
        let thread = worker.seat.running();
        // SAFETY: sends a signal for which a handler was put in; a thread that ended gives ESRCH.
        match unsafe { libc::syscall(libc::SYS_tgkill, worker.process, thread, SIGNAL) } {
            0 => Ok(()),
            _ => Err(InterruptError::Refused {
                thread,
                cause: std::io::Error::last_os_error(),
            }),
        }
    }
}

/// Bytes that a context's stack needs beyond what its job may use: the kernel's frame, and the
/// handler's room.
pub(crate) fn frame_room() -> usize {
    (largest_frame() + handler_room() + 4 * 1024).next_multiple_of(4096)
}

/// Unblocks the signal on the calling thread. Returns the thread's mask after that.
pub(crate) fn unblock() -> u64 {
    // SAFETY: changes and reads the calling thread's mask only.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, SIGNAL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    mask_of_this_thread()
}

/// The calling thread's mask (the first 64 signals, as the kernel has it). A system call.
pub(crate) fn mask_of_this_thread() -> u64 {
    // SAFETY: only reads the calling thread's mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        first_64(&set)
    }
}

/// The kernel knows 64 signals; glibc's set has room for more, which a frame does not fill.
fn first_64(set: &libc::sigset_t) -> u64 {
    const { assert!(size_of::<libc::sigset_t>() >= size_of::<u64>()) };
    // SAFETY: the set is at least that large, aligned like an unsigned long, and plain bits.
    unsafe { *std::ptr::from_ref(set).cast::<u64>() }
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    let head = CURRENT.get();
    if head.is_null() {
        return on_no_context(signal, info, frame);
    }
    // SAFETY: a context's head outlives the thread control block it was read from.
    let head = unsafe { &*head };
    if head.is_kernel_thread() {
        // SAFETY: the kernel passes a ucontext to handlers installed with SA_SIGINFO.
        return on_kernel_thread(head, unsafe { &*frame.cast::<libc::ucontext_t>() });
    }
    if !STACKS_ALLOWED.load(Ordering::Relaxed) {
        return call_previous(signal, info, frame);
    }
    // SAFETY: the handler is installed with SA_SIGINFO.
    let timer = unsafe { timer::sender(info) };
    if let (Some(timer), Some(left)) = (timer, head.not_due_for()) {
        // The timer was set for an earlier request, which has ended.
        return timer::again(timer, left);
    }
    // SAFETY: the kernel passes a ucontext to handlers installed with SA_SIGINFO, and we may change
    // it.
    let frame = unsafe { &mut *frame.cast::<libc::ucontext_t>() };
    let stack_pointer = frame.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let guarded = head.running.guard.load(Ordering::Relaxed) != 0;
    let on_its_stack = is_on_stack(head, stack_pointer);
    if guarded || !on_its_stack {
        // Within the switch, or the job holds preemption off: the context looks at the request when
        // that ends. Counting is right only in the latter case; in the former the worker may be
        // another one.
        if on_its_stack {
            // With the guard up: its worker runs it.
            current::deferred(head);
        }
        // No code looks at the request when another stack is left. When a guard ends, the request
        // can be put off, since the thread was away from its CPU. And between two jobs the next
        // one's moment is not known yet.
        if let Some(timer) = timer {
            timer::again(timer, Clock::get().to_cycles(IN_VAIN_AGAIN));
        }
        return;
    }
    if timer.is_some() && head.is_left_to_entries() {
        compiled::raise_for(head);
        return;
    }
    if is_left_to_next_entry(head, frame) {
        return current::interrupted_in_vain(head);
    }
    stop(head, frame, timer);
}

/// Whether the context is left to the next compiled probe, which may come at once: the signal found
/// the context where it may have the allocator's lock, and for the first time in this dispatch.
fn is_left_to_next_entry(head: &Head, frame: &libc::ucontext_t) -> bool {
    head.is_requested_at_entries()
        && head.is_asked()
        && library_code::runs_there(&frame.uc_mcontext.gregs)
        && compiled::raise_for(head)
}

/// The signal found a thread that is no context.
fn on_no_context(signal: libc::c_int, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    // SAFETY: the worker bound to this thread clears the pointer before it drops the counters.
    let Some(counters) = (unsafe { SCHEDULING.get().as_ref() }) else {
        return call_previous(signal, info, frame);
    };
    // The worker's own code: the dispatch has ended, or its request is checked on the way in. Or
    // the outer side of the worker's mode, which makes a system call for a context.
    if !gives_up_a_call(frame) {
        count(&counters.late);
    }
    // SAFETY: the handler is installed with SA_SIGINFO.
    if let Some(timer) = unsafe { timer::sender(info) } {
        timer::fired_outside(timer);
    }
}

/// Stops the context, which the signal found in its own code at guard 0, if it can leave there.
fn stop(head: &Head, frame: &mut libc::ucontext_t, timer: Option<libc::c_int>) {
    let has_room = has_room(head, frame);
    // A mask other than the worker's own: the code is within another signal's handler, or blocks
    // signals for a while. On another worker its frame, or its end, would install this worker's
    // mask there, and a handler's frame also this worker's alternate stack. The dispatcher asks
    // again later.
    if !has_room || !current::has_workers_mask(head, || first_64(&frame.uc_sigmask)) {
        current::interrupted_in_vain(head);
        if let Some(timer) = timer {
            timer::again(timer, Clock::get().to_cycles(IN_VAIN_AGAIN));
        }
        return;
    }
    if !fault::without(Defence::AlternateStackCare) {
        frame.uc_stack.ss_flags = LEAVE_ALTERNATE_STACK;
    }
    // Another interrupt may come before and after, and leaves this as it finds it.
    let outer = head
        .running
        .frame
        .replace(extended_state::components(frame));
    let left = interrupted(head, frame);
    head.running.frame.set(outer);
    if let (Some(timer), Some(left)) = (timer, left) {
        // It has not left, so this is the thread whose timer it is.
        timer::again(timer, left);
    }
    if fault::without(Defence::VectorState) {
        forget_vectors(frame);
    }
}

/// The signal found a context that is a kernel thread. That stops wherever it has room: it is not
/// moved, so mask, alternate stack and vector state stay where they are. In a guard, and while it
/// is parked, or plays a worker's part, it goes on.
fn on_kernel_thread(head: &Head, frame: &libc::ucontext_t) {
    let stack_pointer = frame.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    if head.running.guard.load(Ordering::Relaxed) != 0 {
        return current::deferred(head);
    }
    if !is_on_stack(head, stack_pointer) || !has_room(head, frame) {
        return current::interrupted_in_vain(head);
    }
    let _ = interrupted(head, frame);
}

/// Leaves to the worker if that is asked for. Gives what is left of the quantum if the context goes
/// on.
fn interrupted(head: &Head, frame: &libc::ucontext_t) -> Option<Cycles> {
    let outer = (head.running.waits_for_a_lock).replace(waits_for_a_lock(frame));
    let left = current::interrupted(head);
    head.running.waits_for_a_lock.set(outer);
    left
}

/// Whether the signal found the code within a call of `futex` that sleeps until another thread
/// wakes it, or right before the call. The kernel has put the registers back to begin that call
/// again (`SA_RESTART`); a call with a time limit answers `EINTR`, and is not found. Code that has
/// these numbers in its registers by chance is taken for one that waits: no harm but to the order.
fn waits_for_a_lock(frame: &libc::ucontext_t) -> bool {
    const LOCK_PI2: libc::c_int = 13;
    let registers = &frame.uc_mcontext.gregs;
    let options = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    let operation = registers[libc::REG_RSI as usize] as libc::c_int & !options;
    registers[libc::REG_RAX as usize] == libc::SYS_futex
        && matches!(
            operation,
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_LOCK_PI | LOCK_PI2
        )
}

/// Whether the interrupted code ran on the context's own stack.
fn is_on_stack(head: &Head, stack_pointer: usize) -> bool {
    (head.stack_low.get()..head.stack_high.get()).contains(&stack_pointer)
}

/// Whether the handler has room to leave. The frame itself is some way below the interrupted code.
fn has_room(head: &Head, frame: &libc::ucontext_t) -> bool {
    std::ptr::from_ref(frame).addr() >= head.stack_low.get() + handler_room()
}

/// Abandons a system call that has not begun, or that would be restarted, if the signal interrupted
/// one.
fn gives_up_a_call(frame: *mut libc::c_void) -> bool {
    // SAFETY: the kernel passes a ucontext to handlers installed with SA_SIGINFO, and we may change
    // it.
    let frame = unsafe { &mut *frame.cast::<libc::ucontext_t>() };
    let instruction = &mut frame.uc_mcontext.gregs[libc::REG_RIP as usize];
    let elsewhere =
        (crate::BACKENDS.iter()).find_map(|backend| (backend.give_up_call)(*instruction as usize));
    if let Some(elsewhere) = elsewhere {
        *instruction = elsewhere as i64;
    }
    elsewhere.is_some()
}

/// Fault injection: the effect of a switch that saves only the x87 state and MXCSR.
#[cold]
fn forget_vectors(frame: &mut libc::ucontext_t) {
    if !frame.uc_mcontext.fpregs.is_null() {
        // SAFETY: the kernel's frame has the legacy area there.
        unsafe { (*frame.uc_mcontext.fpregs)._xmm = std::mem::zeroed() };
    }
}

fn call_previous(signal: libc::c_int, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    let Some(previous) = PREVIOUS.get() else {
        return;
    };
    call_handler(previous, signal, info, frame);
}

/// Calls the handler of `action`, the one that the program (or the Rust runtime) had installed for
/// this signal. Returns whether there is one.
pub(crate) fn call_handler(
    action: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    frame: *mut libc::c_void,
) -> bool {
    let handler = action.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return false;
    }
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: it was installed as a three-argument handler.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, frame);
    } else {
        // SAFETY: it was installed as a one-argument handler.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
    true
}
