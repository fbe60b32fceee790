//! Switches from one stack to another and back, by several means; from one kernel thread to
//! another, which is the part of a preemption that only contexts have that are kernel threads; and
//! the single instructions, and the system call, of which these consist.

use std::arch::naked_asm;
use std::cell::{Cell, UnsafeCell};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use corosensei::{Coroutine, Yielder};

use super::Part;
use super::cores::{beside, per_call};
use super::samples::{Rows, Samples};
use crate::backing_thread::PrivateStack;
use crate::kernel_thread::{Home, Turn};
use crate::switch::{fs_base, switch, switch_same_tls};

pub(super) const ROWS: Rows = &[
    "switch/shared-tls",
    "switch/own-tls",
    "switch/signal-mask",
    "switch/fp-saved",
    "switch/fp-restored",
    "switch/corosensei",
    "switch/swapcontext",
    "switch/kernel-thread",
    "wrfsbase",
    "rdfsbase",
    "syscall/empty",
];

const SWITCHES: u32 = 20_000;
const ROUND_TRIPS: u32 = 500;
/// What of its [`PrivateStack`] the other side of `swapcontext` gets.
const SWAP_STACK: usize = 8 * 1024;

pub(super) struct Switches {
    shared: Box<Bounce>,
    own: Box<Bounce>,
    corosensei: Coroutine<(), (), ()>,
    swapcontext: Box<Swap>,
}

impl Switches {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            shared: Bounce::new(bounce_shared)?,
            own: Bounce::new(bounce_own)?,
            corosensei: Coroutine::new(|yielder: &Yielder<(), ()>, ()| {
                loop {
                    yielder.suspend(());
                }
            }),
            swapcontext: Swap::new()?,
        })
    }
}

impl Part for Switches {
    fn round(&mut self, samples: &mut Samples) {
        let Self {
            shared,
            own,
            corosensei,
            swapcontext,
        } = self;
        let both_ways = per_call(SWITCHES, || {
            // SAFETY: only this thread knows the other stack, which waits in its frame, and it
            // shares our thread control block.
            unsafe { switch_same_tls(shared.here.as_ptr(), shared.there.get()) }
        });
        samples.add("switch/shared-tls", both_ways / 2.0);
        with_more(shared, samples);
        let fs = fs_base();
        let both_ways = per_call(SWITCHES, || {
            // SAFETY: as above; the block is the one that both stacks use.
            unsafe { switch(own.here.as_ptr(), own.there.get(), fs) }
        });
        samples.add("switch/own-tls", both_ways / 2.0);
        let both_ways = per_call(SWITCHES, || {
            corosensei.resume(());
        });
        samples.add("switch/corosensei", both_ways / 2.0);
        let both_ways = per_call(SWITCHES / 20, || {
            // SAFETY: both were set up by `Swap::new`, and only this thread knows them.
            unsafe { libc::swapcontext(swapcontext.here.get(), swapcontext.there.get()) };
        });
        samples.add("switch/swapcontext", both_ways / 2.0);
    }
}

/// What the paper's switches do besides (Shinjuku, NSDI'19, table 2). This side does it twice for
/// the two switches of a round trip, so that each has it once.
fn with_more(bounce: &Bounce, samples: &mut Samples) {
    let mut area = FpArea([0; 512]);
    let area = &raw mut area;
    save(area);
    let mut measure = |row, switches, more: fn(*mut FpArea)| {
        let both_ways = per_call(switches, || {
            more(area);
            more(area);
            // SAFETY: as for the switch without more.
            unsafe { switch_same_tls(bounce.here.as_ptr(), bounce.there.get()) }
        });
        samples.add(row, both_ways / 2.0);
    };
    measure("switch/signal-mask", SWITCHES / 20, set_mask);
    measure("switch/fp-saved", SWITCHES, save);
    measure("switch/fp-restored", SWITCHES, restore);
}

/// Where `fxsave64` puts the x87's and the SSE's registers.
#[repr(align(16))]
#[expect(dead_code, reason = "only the processor reads it")]
struct FpArea([u8; 512]);

/// Reads the signal mask and sets none, in the one system call that `swapcontext` makes.
fn set_mask(_: *mut FpArea) {
    // SAFETY: plain data, and zeroes are a valid value of it; blocking an empty set blocks nothing.
    unsafe {
        let (none, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const none, &raw mut before);
    }
}

#[inline(always)]
fn save(area: *mut FpArea) {
    // SAFETY: stores 512 bytes into an aligned area that is only this measurement's.
    unsafe { std::arch::asm!("fxsave64 [{}]", in(reg) area, options(nostack, preserves_flags)) };
}

#[inline(always)]
fn restore(area: *mut FpArea) {
    // SAFETY: loads what `save` stored on this thread: control words as they are now, and registers
    // that the compiler is told to take for lost.
    unsafe { std::arch::asm!("fxrstor64 [{}]", in(reg) area, clobber_abi("sysv64")) };
}

/// A stack without a context: a thread that switches to it is switched back from it.
struct Bounce {
    here: Cell<usize>,
    there: Cell<usize>,
    fs: usize,
    stack: PrivateStack,
}

impl Bounce {
    fn new(body: unsafe extern "C" fn(*const Self) -> !) -> std::io::Result<Box<Self>> {
        let stack = PrivateStack::new()?;
        let bounce = Box::new(Self {
            here: Cell::new(0),
            there: Cell::new(0),
            fs: fs_base(),
            stack,
        });
        let control = default_control_words();
        // The frame that `switch` takes, from the lowest word: control words, r15 to r12, rbx, rbp,
        // return address; above it an empty word, so that the stack is aligned as after a call.
        let itself: *const Self = &raw const *bounce;
        let frame = [
            control,
            0,
            0,
            0,
            body as usize,
            itself.expose_provenance(),
            0,
            enter as *const () as usize,
            0,
            0,
        ];
        let frame_address = bounce.stack.top() - size_of_val(&frame);
        // SAFETY: the upper end of our own fresh mapping, which is page-aligned.
        unsafe { *std::ptr::with_exposed_provenance_mut(frame_address) = frame };
        bounce.there.set(frame_address);
        Ok(bounce)
    }
}

fn default_control_words() -> usize {
    let mut words: usize = 0;
    // SAFETY: stores the two control words of this thread into a word of ours.
    unsafe {
        std::arch::asm!(
            "stmxcsr [{0}]",
            "fnstcw [{0} + 4]",
            in(reg) &raw mut words,
            options(nostack, preserves_flags)
        );
    }
    words
}

/// The first code on a [`Bounce`]'s stack: its body in r12, itself in rbx.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!("mov rdi, rbx", "call r12", "ud2")
}

unsafe extern "C" fn bounce_shared(bounce: *const Bounce) -> ! {
    loop {
        // SAFETY: the code that entered waits in `here`, and the box lives as long as a thread can
        // enter.
        unsafe { switch_same_tls((*bounce).there.as_ptr(), (*bounce).here.get()) };
    }
}

unsafe extern "C" fn bounce_own(bounce: *const Bounce) -> ! {
    loop {
        // SAFETY: as above; `fs` is the block of the thread that made it, which is the one that
        // enters.
        unsafe { switch((*bounce).there.as_ptr(), (*bounce).here.get(), (*bounce).fs) };
    }
}

/// The same by `swapcontext`.
struct Swap {
    here: UnsafeCell<libc::ucontext_t>,
    there: UnsafeCell<libc::ucontext_t>,
    stack: PrivateStack,
}

impl Swap {
    fn new() -> std::io::Result<Box<Self>> {
        let stack = PrivateStack::new()?;
        // SAFETY: plain data, and zeroes are a valid value of it.
        let (here, there) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let swap = Box::new(Self {
            here: UnsafeCell::new(here),
            there: UnsafeCell::new(there),
            stack,
        });
        let address = (&raw const *swap).expose_provenance();
        // SAFETY: `there` is ours and stays where it is; the stack belongs to it alone. makecontext
        // passes ints only, so the address goes in halves to a function that takes two.
        unsafe {
            if libc::getcontext(swap.there.get()) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let there = &mut *swap.there.get();
            there.uc_stack.ss_size = SWAP_STACK;
            there.uc_stack.ss_sp =
                std::ptr::with_exposed_provenance_mut(swap.stack.top() - SWAP_STACK);
            let body = std::mem::transmute::<extern "C" fn(u32, u32), extern "C" fn()>(swap_back);
            libc::makecontext(there, body, 2, address as u32, (address >> 32) as u32);
        }
        Ok(swap)
    }
}

extern "C" fn swap_back(low: u32, high: u32) {
    let address = low as usize | (high as usize) << 32;
    let swap: *const Swap = std::ptr::with_exposed_provenance(address);
    loop {
        // SAFETY: the box lives as long as a thread can enter, and one that did waits in `here`.
        unsafe { libc::swapcontext((*swap).there.get(), (*swap).here.get()) };
    }
}

/// Between two kernel threads on one core, by futex.
pub(super) struct KernelSwitch {
    core: usize,
}

impl KernelSwitch {
    /// Between threads on `core`, which is the calling thread's.
    pub(super) fn new(core: usize) -> Self {
        Self { core }
    }
}

impl Part for KernelSwitch {
    fn round(&mut self, samples: &mut Samples) {
        let (turn, home, stop) = (Turn::new(), Home::default(), AtomicBool::new(false));
        let there = || {
            loop {
                turn.wait();
                turn.rest();
                let is_over = stop.load(Ordering::Relaxed);
                // SAFETY: the other side lives until this one has ended, and it is its turn.
                unsafe { Home::give_back(&raw const home) };
                if is_over {
                    return;
                }
            }
        };
        let round_trip = || {
            home.leave();
            turn.give();
            home.wait();
        };
        let here = || {
            round_trip();
            let both_ways = per_call(ROUND_TRIPS, round_trip);
            stop.store(true, Ordering::Relaxed);
            round_trip();
            both_ways
        };
        let ((), both_ways) = beside(self.core, there, here);
        samples.add("switch/kernel-thread", both_ways / 2.0);
    }
}

/// Single instructions, and the empty system call.
pub(super) struct Instructions;

impl Part for Instructions {
    fn round(&mut self, samples: &mut Samples) {
        let own = fs_base();
        let write = per_call(50_000, || {
            // SAFETY: FS keeps the value that it has; `check_platform` has seen FSGSBASE.
            unsafe {
                std::arch::asm!("wrfsbase {}", in(reg) own, options(nostack, preserves_flags));
            }
        });
        samples.add("wrfsbase", write);
        let read = per_call(200_000, || {
            black_box(fs_base());
        });
        samples.add("rdfsbase", read);
        let enter = per_call(3_000, || {
            // SAFETY: returns a number.
            black_box(unsafe { libc::syscall(libc::SYS_getppid) });
        });
        samples.add("syscall/empty", enter);
    }
}
