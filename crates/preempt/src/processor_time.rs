//! Time that a worker's thread was away from its CPU, for quanta and service times that count time
//! on the CPU.
//!
//! Deadlines and run times are read from the TSC, which goes on while Linux runs another thread, or
//! while the thread sleeps in the kernel. Only the kernel knows how long that was, and asking it is
//! a system call. So code asks only after a gap in the TSC's readings, such as a dispatch far
//! beyond its deadline. Time away in shorter gaps counts as time on the CPU.

use std::cell::Cell;
use std::rc::Rc;

use crate::clock::{Clock, Cycles};

/// How long the thread it was made on was away from its CPU. Stays there, as do its clones.
#[derive(Clone, Debug)]
pub struct ProcessorTime(Rc<State>);

#[derive(Debug)]
struct State {
    /// The thread was asked about at this moment,
    asked_at: Cell<Cycles>,
    /// and had spent so many nanoseconds on the CPU.
    spent: Cell<u64>,
    /// How long it has been away in all, as far as was asked,
    away: Cell<Cycles>,
    /// how often it had left its CPU by itself,
    waits: Cell<libc::c_long>,
    /// and whether that was so in the time that was asked about last.
    has_waited: Cell<bool>,
}

/// A thread that was away for less, some microseconds, is not asked whether it waited.
const SHORT: Cycles = Cycles(1 << 14);

impl ProcessorTime {
    /// Of the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        Self(Rc::new(State {
            asked_at: Cell::new(Cycles::now()),
            spent: Cell::new(spent()),
            away: Cell::default(),
            waits: Cell::new(waits()),
            has_waited: Cell::default(),
        }))
    }

    /// How long the thread was away, up to the last [`ask`](Self::ask).
    #[inline]
    #[must_use]
    pub fn away(&self) -> Cycles {
        self.0.away.get()
    }

    /// When the kernel was asked last.
    #[inline]
    #[must_use]
    pub fn asked_at(&self) -> Cycles {
        self.0.asked_at.get()
    }

    /// Whether the thread has waited in the kernel, and not only for its CPU, between the last two
    /// times of asking, or before in a gap too short to be looked at.
    pub(crate) fn has_waited(&self) -> bool {
        self.0.has_waited.get()
    }

    /// Asks the kernel: a system call or two, of some tenths of a microsecond each. Gives what
    /// [`away`](Self::away) is then. To be called on the thread, in a context or not.
    pub fn ask(&self) -> Cycles {
        let State {
            asked_at,
            spent: spent_before,
            away,
            waits: waits_before,
            has_waited,
        } = &*self.0;
        let now = Cycles::now();
        let spent = spent();
        let on_cpu = spent.saturating_sub(spent_before.replace(spent));
        let passed = now.since(asked_at.replace(now));
        let gone = passed.since(Clock::get().to_cycles(on_cpu));
        has_waited.set(false);
        if gone > SHORT {
            let waits = waits();
            has_waited.set(waits != waits_before.replace(waits));
        }
        away.set(Cycles(away.get().0 + gone.0));
        away.get()
    }
}

/// What the calling thread has spent on the CPU, nanoseconds.
fn spent() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes the time; every thread has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How often the calling thread has left its CPU by itself.
fn waits() -> libc::c_long {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes the whole of it, and zeroes are a valid one.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn sleeping_is_away_and_computing_is_not() {
        let time = ProcessorTime::of_this_thread();
        let clock = Clock::get();
        std::thread::sleep(Duration::from_millis(20));
        // Before the first question, and until after the last.
        let start = Instant::now();
        let asleep = clock.to_nanos(time.ask());
        assert!(asleep >= 19_000_000, "{asleep} ns of 20 ms");
        assert!(time.has_waited());
        let before = spent();
        while spent() - before < 20_000_000 {}
        let away = Duration::from_nanos(clock.to_nanos(time.ask()) - asleep);
        let longest = start.elapsed().saturating_sub(Duration::from_millis(20));
        // What it was away, it was on a busy machine; and the two clocks differ by some.
        assert!(away <= longest + Duration::from_millis(1), "{away:?}");
    }
}
