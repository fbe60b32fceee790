//! The message of a fault in a context, before the process dies.
//!
//! Below each context's stack lies the guard page of the backing thread. A fault there, or a signal
//! frame that did not fit above it, ends the process as any stack overflow does, but with a message
//! that names the context. All other faults go to the handler that was there before (usually the
//! Rust runtime's). If that handler lets the process die, a line names the context first.

use std::fmt::Write as _;
use std::sync::OnceLock;

use crate::current::CURRENT;
use crate::signal::{call_handler, frame_room};

const ALTERNATE_STACK: usize = 64 * 1024;
const GUARD: usize = 64 * 1024;

static PREVIOUS: OnceLock<[libc::sigaction; 2]> = OnceLock::new();
const FAULTS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Installs the handler, once a process.
pub(crate) fn install() {
    PREVIOUS.get_or_init(|| {
        FAULTS.map(|fault| {
            // SAFETY: `sigaction` is plain data, for which zeroes are valid; the handler is
            // async-signal-safe.
            unsafe {
                let mut previous: libc::sigaction = std::mem::zeroed();
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(fault, &action, &mut previous);
                previous
            }
        })
    });
}

/// The handler needs a stack other than the one that overflowed. `std` threads of a Rust program
/// have one; other threads get one here, for good.
pub(crate) fn ensure_alternate_stack() {
    // SAFETY: reads, and maybe sets, the calling thread's alternate stack; the mapping is leaked on
    // purpose.
    unsafe {
        let mut now: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut now);
        if now.ss_flags & libc::SS_DISABLE == 0 {
            return;
        }
        let base = libc::mmap(
            std::ptr::null_mut(),
            ALTERNATE_STACK,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if base != libc::MAP_FAILED {
            let stack = libc::stack_t {
                ss_sp: base,
                ss_flags: 0,
                ss_size: ALTERNATE_STACK,
            };
            libc::sigaltstack(&stack, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    let head = CURRENT.get();
    if head.is_null() {
        call_previous(signal, info, frame);
    } else {
        // SAFETY: a context's head outlives the thread control block; the kernel passes valid info
        // and frame.
        let (head, code, address, stack_pointer) = unsafe {
            let registers = &(*frame.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            (
                &*head,
                (*info).si_code,
                (*info).si_addr() as usize,
                registers[libc::REG_RSP as usize] as usize,
            )
        };
        let (low, high) = (head.stack_low.get(), head.stack_high.get());
        let in_guard = (low.saturating_sub(GUARD)..low + 4096).contains(&address);
        // A signal frame that did not fit raises a fault without an address.
        let no_room = code == libc::SI_KERNEL
            && (low.saturating_sub(GUARD)..low + frame_room()).contains(&stack_pointer);
        if in_guard || no_room {
            die(head.id.get().0, high - low - frame_room().min(high - low));
        }
        call_previous(signal, info, frame);
        if is_default(signal) {
            say(format_args!(
                "\nfatal: the request in context {} dies of signal {signal} (address {address:#x})",
                head.id.get().0
            ));
        }
    }
}

/// Whether the signal ends the process, once it is sent again.
fn is_default(signal: libc::c_int) -> bool {
    // SAFETY: only asks; zeroes are a valid `sigaction`.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now);
        now.sa_sigaction == libc::SIG_DFL
    }
}

fn die(context: u16, usable: usize) -> ! {
    say(format_args!(
        "\nfatal: the request in context {context} has overflowed its stack of {} KiB; raise `stack_size`",
        usable / 1024
    ));
    // SAFETY: does not return.
    unsafe { libc::abort() }
}

/// Writes a line to standard error. Async-signal-safe.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let mut message = Message {
        text: [0; 256],
        length: 0,
    };
    // Text that does not fit is cut off.
    let _ = writeln!(message, "{line}");
    // SAFETY: writes initialised bytes.
    unsafe { libc::write(2, message.text.as_ptr().cast(), message.length) };
}

/// Formats without allocating.
struct Message {
    text: [u8; 256],
    length: usize,
}

impl std::fmt::Write for Message {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let room = &mut self.text[self.length..];
        let taken = part.len().min(room.len());
        room[..taken].copy_from_slice(&part.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

fn call_previous(signal: libc::c_int, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    let previous = PREVIOUS.get().and_then(|all| {
        FAULTS
            .iter()
            .position(|&fault| fault == signal)
            .map(|i| &all[i])
    });
    let called = previous.is_some_and(|action| call_handler(action, signal, info, frame));
    if !called {
        // SAFETY: back to the default; the instruction faults again on return and the process dies
        // of it.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &default, std::ptr::null_mut());
        }
    }
}
