//! A signal from the other core whose handler does nothing: the floor under preemption by signal.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::Part;
use super::cores::{beside, nanos};
use super::samples::{Rows, Samples};
use super::work::Work;
use crate::clock::Cycles;

pub(super) const ROWS: Rows = &["signal/send", "signal/until-handler", "signal/bare"];

/// Ignored by default: one that comes after the handler is gone does no harm.
const SIGNAL: libc::c_int = libc::SIGWINCH;
pub(super) const STEPS: u32 = 600_000;
/// Time that the interrupted thread works between signals.
pub(super) const PAUSE: Duration = Duration::from_micros(20);
/// A signal that is not seen for so long is blocked, or the other thread not running.
const PATIENCE: Duration = Duration::from_millis(20);

/// Where the interrupted thread is in its round. The sender may sleep through any of them.
const UNDISTURBED: u32 = 0;
const DISTURBED: u32 = 1;
const OVER: u32 = 2;

static HANDLED: Handled = Handled {
    at: AtomicU64::new(0),
    times: AtomicU64::new(0),
};

#[repr(align(128))]
struct Handled {
    at: AtomicU64,
    times: AtomicU64,
}

extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let now = Cycles::now().0;
    let times = HANDLED.times.load(Ordering::Relaxed) + 1;
    HANDLED.times.store(times, Ordering::Relaxed);
    HANDLED.at.store(now, Ordering::Release);
}

pub(super) struct Signals {
    worker_core: usize,
}

impl Signals {
    pub(super) fn new(worker_core: usize) -> Self {
        Self { worker_core }
    }
}

/// Sums over one round's signals.
#[derive(Default)]
struct Sent {
    signals: u32,
    sending: u64,
    until_handler: u64,
}

impl Part for Signals {
    fn round(&mut self, samples: &mut Samples) {
        let _handler = Handler::install();
        let phase = AtomicU32::new(UNDISTURBED);
        let stop = AtomicBool::new(false);
        let (send_thread, thread) = mpsc::channel();
        let work = Work {
            steps: STEPS,
            probes: false,
        };
        let (lost, sent) = beside(
            self.worker_core,
            || {
                unblock();
                // SAFETY: returns a number.
                let _ = send_thread.send(unsafe { libc::gettid() });
                timed(work);
                let earlier = timed(work);
                let before = HANDLED.times.load(Ordering::Relaxed);
                phase.store(DISTURBED, Ordering::Release);
                let disturbed = timed(work);
                let handled = HANDLED.times.load(Ordering::Relaxed) - before;
                phase.store(OVER, Ordering::Release);
                while !stop.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let undisturbed = Cycles((earlier.0 + timed(work).0) / 2);
                (handled > 0).then(|| (nanos(disturbed) - nanos(undisturbed)) / handled as f64)
            },
            || {
                let sent = thread
                    .recv()
                    .map_or_else(|_| Sent::default(), |thread| send(thread, &phase));
                stop.store(true, Ordering::Release);
                sent
            },
        );
        if let Some(lost) = lost {
            samples.add("signal/bare", lost);
        }
        if sent.signals > 0 {
            let each = |cycles| nanos(Cycles(cycles)) / f64::from(sent.signals);
            samples.add("signal/send", each(sent.sending));
            samples.add("signal/until-handler", each(sent.until_handler));
        }
    }
}

/// Sends signals while the phase is [`DISTURBED`].
fn send(thread: libc::pid_t, phase: &AtomicU32) -> Sent {
    // SAFETY: returns a number.
    let process = unsafe { libc::getpid() };
    let mut sent = Sent::default();
    while phase.load(Ordering::Acquire) == UNDISTURBED {
        std::hint::spin_loop();
    }
    while phase.load(Ordering::Acquire) == DISTURBED {
        let seen = HANDLED.at.load(Ordering::Relaxed);
        let start = Cycles::now();
        // SAFETY: a handler is installed, and the thread waits for `stop` before it ends.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
        let sending = Cycles::now().since(start);
        let Some(handled) = next_handled(seen) else {
            continue;
        };
        sent.signals += 1;
        sent.sending += sending.0;
        sent.until_handler += handled.since(start).0;
        let handled = Instant::now();
        while handled.elapsed() < PAUSE {}
    }
    sent
}

fn next_handled(seen: u64) -> Option<Cycles> {
    let start = Instant::now();
    loop {
        let at = HANDLED.at.load(Ordering::Acquire);
        if at != seen {
            return Some(Cycles(at));
        }
        if start.elapsed() > PATIENCE {
            return None;
        }
    }
}

fn timed(work: Work) -> Cycles {
    let start = Cycles::now();
    work.run();
    Cycles::now().since(start)
}

/// Lets the signal through on the calling thread. Its parent may be a worker, which holds off most
/// signals.
fn unblock() {
    // SAFETY: changes the calling thread's mask only.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, SIGNAL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// The handler, until it is dropped.
struct Handler {
    previous: libc::sigaction,
}

impl Handler {
    /// With the flags of preemption by signal.
    fn install() -> Self {
        // SAFETY: `sigaction` is plain data, and zeroes are a valid one. The handler touches two
        // atomics only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut previous = action;
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
            let answer = libc::sigaction(SIGNAL, &action, &mut previous);
            assert_eq!(answer, 0, "SIGWINCH can be handled");
            Self { previous }
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // SAFETY: puts back what was there.
        unsafe { libc::sigaction(SIGNAL, &self.previous, std::ptr::null_mut()) };
    }
}
