//! `setuid` and its family, which change the credentials of each thread of the process.
//!
//! The kernel keeps credentials per thread, POSIX per process. So glibc marks every other thread in
//! its thread control block, and sends a signal of its own to all. Its handler makes the system
//! call and clears the mark in the block *that the FS base names*; glibc sends again until no mark
//! is left. On a worker that runs a context that block is the context's: the worker's mark stays,
//! and glibc repeats forever, holding a lock that new threads take. Our handler, put before
//! glibc's, runs it with the worker's own FS base.
//!
//! Within a request, glibc takes the calling thread for the context's backing thread. So the
//! backing thread is not signalled; it would keep the old credentials, and run destructors with
//! them at its end. That cannot be mended outside glibc, so such a call ends the process, with a
//! message.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::current::current;
use crate::overflow::say;
use crate::switch::call_under;
use crate::worker::SCHEDULING;

/// glibc's SIGSETXID. glibc lets no program handle or block it; the kernel does.
const SIGNAL: libc::c_int = 33;

/// The kernel's `struct sigaction`.
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// glibc's handler.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

/// Puts our handler before glibc's, which installs its own with the process's first thread, and
/// with the first of a forked child. So call this after a thread was made, whenever contexts are
/// made.
pub(crate) fn install() {
    let ours = on_signal as *const () as usize;
    let mut action = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    // SAFETY: only reads the action in force, whose layout is the kernel's.
    unsafe { action_call(std::ptr::null(), &raw mut action) };
    if matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN) || action.handler == ours {
        return;
    }
    ORIGINAL.store(action.handler, Ordering::Release);
    action.handler = ours;
    // A preemption signal that comes meanwhile waits: with the worker's FS base it would find
    // nothing to preempt.
    action.mask = u64::MAX;
    // SAFETY: flags and restorer are glibc's own; the handler touches words of the context's and
    // the worker's heads only.
    unsafe { action_call(&raw const action, std::ptr::null_mut()) };
}

/// # Safety
/// As for `rt_sigaction`.
unsafe fn action_call(new: *const Action, old: *mut Action) {
    // SAFETY: the caller promises it.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGNAL, new, old, size_of::<u64>()) };
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    // SAFETY: only returns a number.
    let thread = unsafe { libc::gettid() };
    // The owner of this FS base: a worker that runs a context, a backing thread itself, or a thread
    // without contexts.
    let running = current().filter(|head| head.backing_thread.get() != thread);
    let on_a_worker = running.is_some() || !SCHEDULING.get().is_null();
    if on_a_worker && is_sent_by(thread, frame) {
        say(format_args!(
            "\nfatal: a request calls setuid or one of its family, which cannot reach all threads from there; call it \
             on a thread of the program's own"
        ));
        // SAFETY: does not return.
        unsafe { libc::abort() }
    }
    let own_fs = match running {
        // SAFETY: the FS base is the context's, and the thread is not its backing thread: a worker
        // is in `Worker::run`, which borrows its head, and set the pointer before the FS base.
        Some(head) => unsafe { (*head.running.worker.get()).fs },
        None => crate::switch::fs_base(),
    };
    // SAFETY: glibc's handler, with the kernel's arguments, and the thread's own thread control
    // block. On a worker no other thread runs with that block. On a backing thread the worker that
    // runs the backing thread's context may; then FS stays as it is, and glibc's handler touches of
    // the block only the mark, which it changes by an atomic instruction. All signals are blocked,
    // so none sees another FS base together with this stack.
    unsafe {
        call_under(
            own_fs,
            ORIGINAL.load(Ordering::Acquire),
            signal,
            info,
            frame,
        )
    };
}

/// Whether the signal interrupted the `tgkill` by which `thread` sent it to itself. glibc signals
/// the calling thread only if it takes the caller for another thread, the backing thread.
fn is_sent_by(thread: libc::pid_t, frame: *mut libc::c_void) -> bool {
    // SAFETY: the kernel passes a ucontext to handlers installed with SA_SIGINFO.
    let registers = unsafe { &(*frame.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = |register: libc::c_int| registers[register as usize];
    // SAFETY: only returns a number.
    let process = unsafe { libc::getpid() };
    at(libc::REG_RAX) == 0
        && at(libc::REG_RDI) == i64::from(process)
        && at(libc::REG_RSI) == i64::from(thread)
        && at(libc::REG_RDX) == i64::from(SIGNAL)
}
