//! Backing threads: each gives its stack and thread control block to one context and sleeps.
//!
//! Taking both from a real `std` thread costs a sleeping kernel thread per context. In return
//! everything that a thread has is there and right (static TLS, the allocator's caches,
//! `thread::current`, guard page, destructors at the end) with no knowledge of glibc's private
//! layout.
//!
//! That of a context that is a [kernel thread](crate::kernel_thread) gives nothing away: it runs
//! the context itself.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::context::{Head, Panicked, Slot};
use crate::current::{self, CURRENT};
use crate::kernel_thread::Place;
use crate::switch::{donate, fs_base};
use crate::{overflow, restartable, signal};

/// Size of the stack that a backing thread sleeps on: it holds a few words of a futex loop.
const PRIVATE_STACK: usize = 16 * 1024;

/// `Head::parked` of a backing thread that ends because it has [restartable sequences](restartable)
/// of another library. (The assembly stores 1 when it parks.)
pub(crate) const REFUSED: u32 = 2;

/// The stack a backing thread sleeps on while workers use its own.
pub(crate) struct PrivateStack {
    base: *mut libc::c_void,
}

// SAFETY: plain memory, owned.
unsafe impl Send for PrivateStack {}

// SAFETY: a shared reference gives no more than the memory's address.
unsafe impl Sync for PrivateStack {}

impl PrivateStack {
    pub(crate) fn new() -> std::io::Result<Self> {
        // SAFETY: a fresh anonymous mapping touches no other memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PRIVATE_STACK,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            Err(std::io::Error::last_os_error())
        } else {
            Ok(Self { base })
        }
    }

    pub(crate) fn top(&self) -> usize {
        self.base as usize + PRIVATE_STACK
    }
}

impl Drop for PrivateStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; the backing thread that slept on it has ended, or never
        // began.
        unsafe { libc::munmap(self.base, PRIVATE_STACK) };
    }
}

/// The backing thread's whole life. `private_top` is the end of the stack to sleep on while workers
/// use the thread's own; without one the context is the thread itself.
///
/// # Safety
/// `head` must come from `Head::obtain` with these types, be served by no other backing thread and
/// not be released before this thread ends; `private_top` must be the end of a [`PrivateStack`]
/// that outlives this thread, or `None` just for a context that is a kernel thread. `is_warm`: its
/// stack is there before its first job.
pub(crate) unsafe fn backing_thread_main<T, R>(
    head: &'static Head,
    private_top: Option<usize>,
    is_warm: bool,
    entry: Arc<dyn Fn(T) -> R + Send + Sync>,
) {
    match private_top {
        Some(_) => {
            block_all_signals();
            if restartable::leave_none().is_err() {
                return head.parked.store(REFUSED, Ordering::Release);
            }
        }
        None => {
            overflow::ensure_alternate_stack();
            signal::unblock();
            head.place.set(Place::of_current());
        }
    }
    let (low, high) = stack_bounds();
    if is_warm {
        warm_up(low);
    }
    head.stack_low.set(low);
    head.stack_high.set(high);
    head.fs.set(fs_base());
    // SAFETY: only returns a number.
    head.backing_thread.set(unsafe { libc::gettid() });
    CURRENT.set(head);
    // A panic of our own would unwind into code of another thread.
    let abort = AbortOnUnwind;
    match private_top {
        // SAFETY: signals are blocked; the words live in the head; `hand_back` sets `wake` only
        // once the context is idle, that is, with a frame in `stack_pointer` that no other thread
        // will enter.
        Some(private_top) => unsafe {
            donate(
                head.running.stack_pointer.as_ptr(),
                private_top,
                &raw const head.wake,
                &raw const head.parked,
            )
        },
        None => {
            head.parked.store(1, Ordering::Release);
            head.turn.wait();
        }
    }
    // SAFETY: the context was entered, on its own stack, with the pool's types.
    unsafe { serve(head, &*entry) };
    // Thread-local destructors run next, on an ordinary thread again.
    CURRENT.set(std::ptr::null());
    std::mem::forget(abort);
}

/// The context's loop, until it is handed back: job after job. It runs on whichever worker entered
/// the context, or, at the end, on the backing thread itself. (That of a kernel thread always
/// does.)
///
/// # Safety
/// Must be called by the head's backing thread, with its pool's types, when the context was first
/// entered.
unsafe fn serve<T, R>(head: &Head, entry: &(dyn Fn(T) -> R + Send + Sync)) {
    while !head.hand_back.load(Ordering::Relaxed) {
        // SAFETY: the types are the pool's. The context runs, so no handle exists and the slot is
        // ours.
        let job = match unsafe { std::mem::replace(&mut *head.slot::<T, R>(), Slot::Empty) } {
            Slot::Job(job) => job,
            Slot::Empty | Slot::Result(_) => {
                unreachable!("a context is entered for a job, or handed back")
            }
        };
        current::start(head);
        let succession = catch_unwind(AssertUnwindSafe(|| {
            let mut next = Some(job);
            while let Some(job) = next {
                let result = catch_unwind(AssertUnwindSafe(|| entry(job))).map_err(|payload| {
                    // A payload's own destructor may panic as well; that second payload is
                    // forgotten.
                    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                        std::mem::forget(second);
                    }
                    Panicked
                });
                // SAFETY: on the context's stack, with every guard of the job gone; the types are
                // the pool's.
                next = unsafe { current::finish::<T, R>(head, result) };
            }
        }));
        if let Err(payload) = succession {
            // SAFETY: on the context's stack; only `finish` can have panicked, after it had raised
            // the guard.
            unsafe { current::fail(head, payload) };
        }
    }
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!("fatal: a context's own loop panicked, which is a bug in shinjuku-preempt");
        std::process::abort();
    }
}

fn block_all_signals() {
    // SAFETY: changes the calling thread's mask only. A signal must never find the backing thread
    // on its private stack with the thread control block in use elsewhere.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// The part of a warm context's stack that is there before its first job: what most jobs use, and a
/// signal's frame.
const WARM_STACK: usize = 32 * 1024;

/// Takes the pages of the stack, which ends at `low`, that a context's first job would else wait
/// for. That job would last several microseconds longer, more than a quantum; and while it waits,
/// preempted, the next one takes another cold context. (The allocator's cache is left to the first
/// allocation: contexts that all take one at start share arenas, and their locks, from then on.)
fn warm_up(low: usize) {
    const PAGE: usize = 4096;
    let here = 0u8;
    let high = std::ptr::from_ref(black_box(&here)).addr() & !(PAGE - 1);
    let from = high
        .saturating_sub(WARM_STACK)
        .max(low.next_multiple_of(PAGE));
    // SAFETY: the pages are those of this thread's stack below what is in use; they are filled with
    // zeroes unless they are there, and keep what they hold. Linux before 5.14 answers with an
    // error, and the pages come when they are used.
    unsafe {
        libc::madvise(
            std::ptr::without_provenance_mut(from),
            high.saturating_sub(from),
            libc::MADV_POPULATE_WRITE,
        )
    };
}

fn stack_bounds() -> (usize, usize) {
    // SAFETY: reads the calling thread's attributes into locals.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        assert_eq!(
            libc::pthread_getattr_np(libc::pthread_self(), &mut attributes),
            0,
            "pthread_getattr_np"
        );
        let (mut low, mut size) = (std::ptr::null_mut(), 0);
        assert_eq!(
            libc::pthread_attr_getstack(&attributes, &mut low, &mut size),
            0,
            "pthread_attr_getstack"
        );
        libc::pthread_attr_destroy(&mut attributes);
        (low as usize, low as usize + size)
    }
}
