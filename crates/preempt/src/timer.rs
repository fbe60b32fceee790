//! Preemption by a timer of the worker's own: for a dispatcher that shares the worker's thread and
//! does not run while a request does.
//!
//! A POSIX timer sends the preemption signal to the thread it was made on (`SIGEV_THREAD_ID`). What
//! is asked of the context is a request with a moment
//! ([`Dispatched::request_at`](crate::Dispatched::request_at)); the signal only makes the context
//! look. Setting a timer is a system call, so it is not set anew for every request:
//!
//! ```text
//!            arm(moment), none pending before that          fires
//!   (quiet) ──────────────────────────────────▶ (pending) ────────▶ moment has come: preempted        ─▶ (quiet)
//!      ▲                                            ▲       │
//!      │                                            └───────┤ a later request runs: set for its moment
//!      └────────────────────────────────────────────────────┘ no request runs
//! ```
//!
//! So under short requests it costs a signal a quantum, whatever their number. Where nobody waits,
//! the worker [stands by](DeadlineTimer::stand_by) instead: then no signal comes until another
//! thread, which has something for the worker to do, sets the timer by its [`RemoteTimer`]. Neither
//! arming nor standing by allocates or locks.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::clock::{Clock, Cycles};
use crate::signal::{SIGNAL, Signal};

thread_local! {
    /// A request that this thread is about to run, or runs, relies on the timer. For the handler,
    /// where it finds the worker's own code: constant initialiser, no destructor.
    static RELIED_ON: Cell<bool> = const { Cell::new(false) };
}

/// When the timer finds the worker's own code on its way into a request, it fires again after this,
/// nanoseconds. Many times what a signal takes: within the handler the next one is not held off.
const SOON: u64 = 200_000;

/// Marks our own timers among whatever else may use the signal.
static MARK: u8 = 0;

/// A timer that preempts the thread it was made on. Stays there.
#[derive(Debug)]
pub struct DeadlineTimer {
    own: KernelTimer,
    /// When it fires, as far as the thread's own code knows; in the past: it has fired.
    pending: Cycles,
    /// What setting it took last.
    setting: Cycles,
    clock: Clock,
    not_send: PhantomData<*mut ()>,
}

/// A timer of a thread's that other threads set, beside the [`DeadlineTimer`] that the thread sets
/// itself.
#[derive(Debug)]
pub struct RemoteTimer(KernelTimer);

/// The kernel's number of a timer that sends the signal to the thread it was made on. It is deleted
/// with its owner.
#[derive(Debug)]
struct KernelTimer(libc::c_int);

/// Why there is no timer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// The kernel refused.
    #[error(
        "no timer for this thread: {cause}; each takes one of the user's pending signals (`ulimit -i`)"
    )]
    Refused {
        /// The kernel's answer.
        cause: std::io::Error,
    },
}

impl DeadlineTimer {
    /// A timer for the calling thread, quiet at first. The [`Signal`] is the evidence that its
    /// handler is installed.
    ///
    /// # Errors
    /// [`TimerError`] if the kernel refuses.
    pub fn new(_: Signal) -> Result<Self, TimerError> {
        Ok(Self {
            own: KernelTimer::new()?,
            pending: Cycles(0),
            setting: Cycles(0),
            clock: Clock::get(),
            not_send: PhantomData,
        })
    }

    /// Has the thread interrupted `after` so long, or at the moment of whatever is asked of the
    /// context that runs then, if that is later. A system call only if nothing is pending at that
    /// moment or before. Tells when the time began: where interrupts are virtual the system call
    /// takes microseconds, which are not the request's.
    ///
    /// To be followed by a run of a context and [`disarm`](Self::disarm): what fires in between
    /// finds either the context or code that is on its way into it, and then fires again soon.
    #[inline]
    pub fn arm(&mut self, after: Cycles) -> Cycles {
        RELIED_ON.set(true);
        let now = Cycles::now();
        let moment = Cycles(now.0.saturating_add(after.0));
        if self.pending > now && self.pending <= moment {
            return now;
        }
        // The kernel's time begins within the call, and it shall not fire before the request's is
        // over.
        let after = Cycles(after.0.saturating_add(self.setting.0));
        self.pending = Cycles(now.0.saturating_add(after.0));
        set(self.own.0, self.clock.to_nanos(after));
        let start = Cycles::now();
        self.setting = start.since(now);
        start
    }

    /// As [`arm`](Self::arm), but leaves it to others to set the timer, once the thread is wanted.
    #[inline]
    pub fn stand_by(&mut self) -> Cycles {
        RELIED_ON.set(true);
        Cycles::now()
    }

    /// Another timer of this thread, for others that want it to look at what is asked of its
    /// context.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn remote(&self) -> Result<RemoteTimer, TimerError> {
        KernelTimer::new().map(RemoteTimer)
    }

    /// The context that [`arm`](Self::arm) or [`stand_by`](Self::stand_by) was for has come back.
    /// What is pending stays so.
    #[inline]
    pub fn disarm(&mut self) {
        RELIED_ON.set(false);
    }
}

impl RemoteTimer {
    /// Has the timer's thread interrupted `after` so long. What the thread runs then is preempted
    /// if its moment has come, and otherwise once it has. If the thread is gone, nothing happens. A
    /// system call, which may be made within a context.
    pub fn set(&self, after: Cycles) {
        set(self.0.0, Clock::get().to_nanos(after));
    }
}

impl KernelTimer {
    /// A timer for the calling thread.
    fn new() -> Result<Self, TimerError> {
        // SAFETY: `sigevent` is plain data, and zeroes are a valid one.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_signo = SIGNAL;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        // SAFETY: only returns a number.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        event.sigev_value.sival_ptr = (&raw const MARK).cast_mut().cast();
        let mut id: libc::c_int = 0;
        // SAFETY: the kernel reads the event and writes the id. The system call itself, since the C
        // library's wrapper hides the kernel's id, which the handler is told.
        let made = unsafe {
            libc::syscall(
                libc::SYS_timer_create,
                libc::CLOCK_MONOTONIC,
                &raw const event,
                &raw mut id,
            )
        };
        if made != 0 {
            return Err(TimerError::Refused {
                cause: std::io::Error::last_os_error(),
            });
        }
        Ok(Self(id))
    }
}

impl Drop for KernelTimer {
    fn drop(&mut self) {
        // SAFETY: nobody uses the timer any more. A signal under way finds nothing to preempt.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}

/// The kernel's number of the timer that sent the signal, if it was one of ours. For the signal's
/// handler.
///
/// # Safety
/// `info` must be what the kernel gave a handler installed with `SA_SIGINFO`.
pub(crate) unsafe fn sender(info: *const libc::siginfo_t) -> Option<libc::c_int> {
    // SAFETY: for `SI_TIMER` the kernel fills the timer's id (where others have the process's) and
    // the event's value.
    unsafe {
        let ours = (*info).si_code == libc::SI_TIMER
            && (*info).si_value().sival_ptr.cast_const() == (&raw const MARK).cast();
        ours.then(|| (*info).si_pid())
    }
}

/// The timer fired in a worker's own code: again soon, if anything there relies on it. For the
/// signal's handler.
pub(crate) fn fired_outside(id: libc::c_int) {
    if RELIED_ON.get() {
        set(id, SOON);
    }
}

/// Has the timer fire again after `left`. For the signal's handler.
pub(crate) fn again(id: libc::c_int, left: Cycles) {
    set(id, Clock::get().to_nanos(left));
}

fn set(id: libc::c_int, nanos: u64) {
    let value = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: libc::timespec {
            tv_sec: (nanos / 1_000_000_000) as libc::time_t,
            // 0 would switch it off.
            tv_nsec: (nanos % 1_000_000_000).max(1) as libc::c_long,
        },
    };
    // SAFETY: reads the value. With the id of a timer that is gone it fails, which does no harm.
    unsafe {
        libc::syscall(
            libc::SYS_timer_settime,
            id,
            0,
            &raw const value,
            std::ptr::null_mut::<libc::itimerspec>(),
        );
    }
}
