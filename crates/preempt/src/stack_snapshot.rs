//! What a worker's thread is doing in a context, as another thread sees it: registers, and the part
//! of the context's stack that is in use. Other code turns the addresses into names later, on its
//! own thread.
//!
//! ```text
//!   the asking thread                      the worker's thread
//!   IDLE ──▶ ASKED ──signal──▶ handler: the request and the stack meant? ── no: returns
//!                                 │ yes: TAKEN, copies registers and stack
//!   reads ◀── DONE ◀──────────────┘
//!   not in time: ASKED ──▶ IDLE, and the handler comes in vain
//! ```
//!
//! A thread that is blocked in the kernel gets no signal, which would end its system call with
//! EINTR. The kernel tells where such a thread is, and its stack does not change meanwhile.
//!
//! The handler touches the context's own words and one static buffer. It makes no system call and
//! neither allocates nor locks, all other signals wait for it, and it returns on the thread on
//! which it began. So it needs no token: to the code that it interrupts it is any other signal's
//! handler.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::context::ContextId;
use crate::current::CURRENT;
use crate::mechanism::WorkerLink;
use crate::signal::SignalError;

/// Words of the stack that are kept: 64 KiB.
const WORDS: usize = 8 * 1024;
/// What a thread that computes may take to be interrupted.
const PATIENCE: Duration = Duration::from_millis(50);
/// What the handler may take once it has begun: its thread may lose its core.
const LONGEST_COPY: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_micros(100);

const IDLE: u64 = 0;
const ASKED: u64 = 1;
const TAKEN: u64 = 2;
const DONE: u64 = 3;
/// The bits of a slot's state that tell one of these.
const PHASE: u64 = 3;

/// What a thread was doing at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackSnapshot {
    /// The instruction that is next.
    pub instruction: u64,
    /// The stack pointer.
    pub stack_pointer: u64,
    /// RBP; 0 if it is not known.
    pub frame_pointer: u64,
    /// The number of the system call in which the thread is blocked.
    pub system_call: Option<i64>,
    /// The stack from the stack pointer, rounded down to words, upwards.
    stack: Vec<u64>,
}

impl StackSnapshot {
    /// The word of the stack at this address, if it was kept.
    #[must_use]
    pub fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.stack_pointer & !7)?;
        let is_word = offset.is_multiple_of(8);
        let place = usize::try_from(offset / 8).ok()?;
        self.stack.get(place).copied().filter(|_| is_word)
    }
}

/// Takes snapshots of the stacks of workers' contexts.
#[derive(Clone, Copy, Debug)]
pub struct StackSnapshots {
    signal: libc::c_int,
}

/// Where the handler leaves what it finds. One snapshot is taken at a time.
struct Slot {
    /// The phase, and above it which request it is: its signal brings the same number. One that
    /// comes late, on a thread of another pool perhaps whose contexts have the same numbers, brings
    /// another, whenever its handler goes on.
    state: AtomicU64,
    context: AtomicU32,
    registers: [AtomicU64; 3],
    length: AtomicUsize,
    words: [AtomicU64; WORDS],
}

static SLOT: Slot = Slot {
    state: AtomicU64::new(IDLE),
    context: AtomicU32::new(0),
    registers: [const { AtomicU64::new(0) }; 3],
    length: AtomicUsize::new(0),
    words: [const { AtomicU64::new(0) }; WORDS],
};
/// A `siginfo_t` with a value, as the kernel lays it out (`__sifields._rt`).
#[repr(C, align(8))]
struct Queued {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    padding: libc::c_int,
    sender: [u32; 2],
    number: u64,
    rest: [u64; 12],
}
const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl StackSnapshots {
    /// Installs a handler for a real-time signal that nothing uses, once a process.
    ///
    /// # Errors
    /// [`SignalError`] if there is none.
    pub fn install() -> Result<Self, SignalError> {
        static SIGNAL: OnceLock<libc::c_int> = OnceLock::new();
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&signal) = SIGNAL.get() {
            return Ok(Self { signal });
        }
        let (first, last) = (libc::SIGRTMIN(), libc::SIGRTMAX());
        let mut cause = std::io::Error::other("every real-time signal has a handler already");
        for signal in (first..=last).rev().filter(|&signal| is_unused(signal)) {
            // SAFETY: `sigaction` is plain data, and zeroes are a valid one.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            // SAFETY: the handler is async-signal-safe: it touches a thread-local with a constant
            // initialiser, the context's own words and a static; all other signals wait, so that
            // no preemption takes it elsewhere.
            let answer = unsafe {
                libc::sigfillset(&mut action.sa_mask);
                libc::sigaction(signal, &action, ptr::null_mut())
            };
            if answer == 0 {
                let _ = SIGNAL.set(signal);
                return Ok(Self { signal });
            }
            cause = std::io::Error::last_os_error();
        }
        Err(SignalError::Install {
            signal: last,
            cause,
        })
    }

    /// What `worker` is doing in `context`. `None`: it does not run that any more, it is in a
    /// special mode, it has the signal masked, or the kernel does not tell.
    ///
    /// Blocks for some microseconds, 50 ms at most unless the machine is busy.
    #[must_use]
    pub fn take(&self, worker: &WorkerLink, context: ContextId) -> Option<StackSnapshot> {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // Where contexts are kernel threads that is not the worker's own.
        let thread = worker.seat.running();
        let told = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).ok()?;
        match told.starts_with("running") {
            true => self.interrupted(worker.process, thread, context),
            false => blocked(&told),
        }
    }

    fn interrupted(
        &self,
        process: libc::pid_t,
        thread: libc::pid_t,
        context: ContextId,
    ) -> Option<StackSnapshot> {
        let before = SLOT.state.load(Ordering::Acquire);
        if before & PHASE == TAKEN {
            // A handler that was begun long ago.
            return None;
        }
        SLOT.context.store(context.0.into(), Ordering::Relaxed);
        let number = before / (PHASE + 1) + 1;
        SLOT.state.store(state(number, ASKED), Ordering::Release);
        let information = Queued {
            signal: self.signal,
            error: 0,
            code: libc::SI_QUEUE,
            padding: 0,
            sender: [0; 2],
            number,
            rest: [0; 12],
        };
        // SAFETY: sends a signal that has our handler, with a whole `siginfo_t`; a thread that
        // ended gives ESRCH.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                process,
                thread,
                self.signal,
                &information,
            )
        };
        let is_done = || SLOT.state.load(Ordering::Acquire) == state(number, DONE);
        if sent != 0 || !wait(PATIENCE, is_done) {
            let is_back = change(&SLOT.state, number, ASKED, IDLE);
            if is_back || !wait(LONGEST_COPY, is_done) {
                return None;
            }
        }
        let [instruction, stack_pointer, frame_pointer] = SLOT
            .registers
            .each_ref()
            .map(|one| one.load(Ordering::Relaxed));
        let words = &SLOT.words[..SLOT.length.load(Ordering::Relaxed)];
        let stack = words.iter().map(|word| word.load(Ordering::Relaxed));
        let snapshot = StackSnapshot {
            instruction,
            stack_pointer,
            frame_pointer,
            system_call: None,
            stack: stack.collect(),
        };
        SLOT.state.store(state(number, IDLE), Ordering::Relaxed);
        Some(snapshot)
    }
}

fn state(number: u64, phase: u64) -> u64 {
    number * (PHASE + 1) + phase
}

/// Changes the phase if it is that of this request.
fn change(slot: &AtomicU64, number: u64, from: u64, to: u64) -> bool {
    let (from, to) = (state(number, from), state(number, to));
    slot.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

fn wait(patience: Duration, is_over: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_over() {
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

fn is_unused(signal: libc::c_int) -> bool {
    // SAFETY: only asks; zeroes are a valid `sigaction`.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_DFL
    }
}

extern "C" fn on_signal(
    _: libc::c_int,
    information: *mut libc::siginfo_t,
    frame: *mut libc::c_void,
) {
    let head = CURRENT.get();
    if head.is_null() {
        return;
    }
    // SAFETY: a context's head outlives the thread control block it was read from; the kernel
    // passes a siginfo and a ucontext to handlers installed with SA_SIGINFO.
    let (head, number, registers) = unsafe {
        let frame = &*frame.cast::<libc::ucontext_t>();
        let number = (*information).si_value().sival_ptr as u64;
        (&*head, number, &frame.uc_mcontext.gregs)
    };
    let register = |which: libc::c_int| registers[which as usize] as u64;
    let from = register(libc::REG_RSP) as usize & !7;
    let (low, high) = (head.stack_low.get(), head.stack_high.get());
    let is_meant = u32::from(head.id.get().0) == SLOT.context.load(Ordering::Relaxed)
        && (low..high).contains(&from)
        && change(&SLOT.state, number, ASKED, TAKEN);
    if !is_meant {
        return;
    }
    let which = [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP];
    for (kept, which) in SLOT.registers.iter().zip(which) {
        kept.store(register(which), Ordering::Relaxed);
    }
    let length = ((high - from) / 8).min(WORDS);
    for (place, kept) in SLOT.words[..length].iter().enumerate() {
        // SAFETY: aligned, and between the interrupted stack pointer and the end of the stack on
        // which this thread is: mapped for as long as it is there. What other threads write into
        // borrowed parts of it is read as it comes; a word is plain bits.
        let word = unsafe { ptr::read_volatile((from as *const u64).wrapping_add(place)) };
        kept.store(word, Ordering::Relaxed);
    }
    SLOT.length.store(length, Ordering::Relaxed);
    SLOT.state.store(state(number, DONE), Ordering::Release);
}

/// Where a thread is that is blocked in the kernel, of which `/proc` has told this.
fn blocked(told: &str) -> Option<StackSnapshot> {
    let (system_call, instruction, stack_pointer) = blocked_at(told)?;
    Some(StackSnapshot {
        instruction,
        stack_pointer,
        frame_pointer: 0,
        system_call: Some(system_call),
        stack: own_memory(stack_pointer & !7),
    })
}

/// Number, instruction and stack pointer of a `/proc/PID/syscall`.
fn blocked_at(told: &str) -> Option<(i64, u64, u64)> {
    let mut words = told.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let hexadecimal = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut last = words.rev();
    let instruction = hexadecimal(last.next()?)?;
    let stack_pointer = hexadecimal(last.next()?)?;
    Some((number, instruction, stack_pointer))
}

/// What of this process's memory from `address` on is mapped, [`WORDS`] at most.
fn own_memory(address: u64) -> Vec<u64> {
    const PAGE: usize = 4096;
    let mut words = vec![0_u64; WORDS];
    let bytes = WORDS * 8;
    let to = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: bytes,
    };
    // A page for each, since a part is read as a whole or not at all.
    let mut parts = Vec::new();
    let (mut at, end) = (address as usize, address as usize + bytes);
    while at < end {
        let next = (at + 1).next_multiple_of(PAGE).min(end);
        parts.push(libc::iovec {
            iov_base: at as *mut libc::c_void,
            iov_len: next - at,
        });
        at = next;
    }
    // SAFETY: the kernel writes into `words`, which has room for `bytes`; it reads wherever there
    // is memory and says how much that was.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &to, 1, parts.as_ptr(), parts.len() as _, 0)
    };
    words.truncate(usize::try_from(read).unwrap_or(0) / 8);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux may stop a handler after it has looked, until another snapshot is asked for.
    #[test]
    fn a_handler_that_goes_on_late_answers_for_no_other_request() {
        let slot = AtomicU64::new(state(1, ASKED));
        assert!(change(&slot, 1, ASKED, IDLE), "not in time");
        slot.store(state(2, ASKED), Ordering::Relaxed);
        assert!(!change(&slot, 1, ASKED, TAKEN));
        assert!(change(&slot, 2, ASKED, TAKEN));
    }

    #[test]
    fn the_kernel_tells_where_a_blocked_thread_is() {
        let told = "202 0x1 0x80 0x0 0x0 0x0 0x0 0x7ffc10 0x7f8a20\n";
        assert_eq!(blocked_at(told), Some((202, 0x7f_8a20, 0x7f_fc10)));
        assert_eq!(
            blocked_at("-1 0x7ffc10 0x7f8a20\n"),
            Some((-1, 0x7f_8a20, 0x7f_fc10))
        );
        assert_eq!((blocked_at("running\n"), blocked_at("")), (None, None));
    }

    #[test]
    fn memory_is_read_as_far_as_it_is_mapped() {
        let known: Vec<u64> = (0..2 * WORDS as u64).collect();
        assert_eq!(own_memory(known.as_ptr() as u64)[..], known[..WORDS]);
        assert_eq!(own_memory(8), []);
    }

    #[test]
    fn words_are_found_by_their_address() {
        let snapshot = StackSnapshot {
            instruction: 1,
            stack_pointer: 0x1004,
            frame_pointer: 0,
            system_call: None,
            stack: vec![7, 8],
        };
        let word = |address| snapshot.word(address);
        assert_eq!([word(0x1000), word(0x1008)], [Some(7), Some(8)]);
        assert_eq!([word(0xff8), word(0x1010), word(0x1001)], [None; 3]);
    }
}
