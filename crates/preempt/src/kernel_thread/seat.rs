//! Where the threads that play a worker's part run: on the worker's core, at its priority.
//!
//! The thread that gives a context's thread its turn moves it there, when it comes from elsewhere.
//! While it sleeps, that takes a system call and no move.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::affinity::Affinity;

/// A worker as the kernel sees it from outside.
#[derive(Debug)]
pub(crate) struct Seat {
    /// The thread that plays the worker's part now.
    running: AtomicI32,
    /// A [`Place`].
    place: AtomicU64,
}

/// Where a thread may run: the core that it is pinned to, plus one, and above that its real-time
/// priority. 0: several cores, ordinary scheduling.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Place(u64);

impl Place {
    const PRIORITY: u32 = 32;

    /// That of the calling thread.
    pub(crate) fn of_current() -> Self {
        let cores = Affinity::of_current().ok();
        let core = cores.and_then(|cores| cores.only_core());
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: reads the calling thread's scheduling into a local. If it fails, zero stays.
        unsafe { libc::sched_getparam(0, &mut parameters) };
        Self((parameters.sched_priority as u64) << Self::PRIORITY).on(core)
    }

    fn on(self, core: Option<usize>) -> Self {
        let core = core.map_or(0, |core| core as u64 + 1);
        Self(self.0 >> Self::PRIORITY << Self::PRIORITY | core)
    }

    fn core(self) -> Option<usize> {
        (self.0 as u32 as usize).checked_sub(1)
    }

    fn priority(self) -> i32 {
        (self.0 >> Self::PRIORITY) as i32
    }

    /// Moves `thread` here from the place `from`. Where the place is no one core, the thread may
    /// run where `example` may. What the kernel refuses stays as it is: the thread then runs from
    /// where it is.
    #[cold]
    pub(crate) fn take(self, from: Self, thread: libc::pid_t, example: libc::pid_t) {
        if self.core() != from.core() {
            let cores = match self.core() {
                Some(core) => Affinity::of_core(core),
                None => Affinity::of(example).ok(),
            };
            let _ = cores.map(|cores| cores.apply_to(thread));
        }
        if self.priority() != from.priority() {
            let parameters = libc::sched_param {
                sched_priority: self.priority(),
            };
            let policy = match self.priority() {
                0 => libc::SCHED_OTHER,
                _ => libc::SCHED_FIFO,
            };
            // As `Realtime` does: threads that a handler starts have ordinary scheduling. The flag
            // cannot be taken back without the permission, so it stays.
            let policy = policy | libc::SCHED_RESET_ON_FORK;
            // SAFETY: changes the scheduling of one of our threads.
            unsafe { libc::sched_setscheduler(thread, policy, &parameters) };
        }
    }
}

impl Seat {
    /// A worker on the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        Self {
            // SAFETY: only returns a number.
            running: AtomicI32::new(unsafe { libc::gettid() }),
            place: AtomicU64::new(Place::of_current().0),
        }
    }

    /// The kernel's number of the thread that plays the worker's part, or did until a moment ago.
    pub(crate) fn running(&self) -> libc::pid_t {
        self.running.load(Ordering::Relaxed)
    }

    pub(crate) fn taken_by(&self, thread: libc::pid_t) {
        self.running.store(thread, Ordering::Relaxed);
    }

    pub(crate) fn place(&self) -> Place {
        Place(self.place.load(Ordering::Relaxed))
    }

    /// The worker's own thread was pinned to `core`.
    pub(crate) fn is_pinned_to(&self, core: usize) {
        let place = self.place().on(Some(core));
        self.place.store(place.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_core_and_priority_apart() {
        let place = Place(7 << Place::PRIORITY);
        assert_eq!((place.core(), place.priority()), (None, 7));
        let there = place.on(Some(1023));
        assert_eq!((there.core(), there.priority()), (Some(1023), 7));
        assert_eq!(there.on(None), place);
        assert_eq!(place.on(Some(0)).core(), Some(0));
    }

    #[test]
    fn a_thread_goes_to_a_core_and_back() {
        std::thread::spawn(|| {
            // SAFETY: only returns a number.
            let me = unsafe { libc::gettid() };
            let all = Affinity::of_current().unwrap();
            let somewhere = Place::of_current().on(None);
            // SAFETY: only returns a number.
            let (process, core) = unsafe { (libc::getpid(), libc::sched_getcpu()) };
            let core = somewhere.on(usize::try_from(core).ok());
            core.take(somewhere, me, process);
            assert_eq!(Place::of_current(), core);
            somewhere.take(core, me, process);
            assert_eq!(Affinity::of_current().unwrap().cores(), all.cores());
        })
        .join()
        .unwrap();
    }
}
