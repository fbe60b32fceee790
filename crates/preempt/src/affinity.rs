//! The cores that a thread may run on.

/// A set of cores, as the kernel stores it for each thread. New threads inherit their parent's.
#[derive(Clone, Copy, Debug)]
pub struct Affinity(libc::cpu_set_t);

impl Affinity {
    /// The calling thread's set.
    ///
    /// # Errors
    /// The kernel's error if the machine has more cores than the set (1024).
    pub fn of_current() -> std::io::Result<Self> {
        Self::of(0)
    }

    /// That of a thread, by the kernel's number.
    pub(crate) fn of(thread: libc::pid_t) -> std::io::Result<Self> {
        // SAFETY: plain data, for which zeroes are valid, and which the kernel fills in.
        let (set, answer) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let answer = libc::sched_getaffinity(thread, size_of_val(&set), &mut set);
            (set, answer)
        };
        match answer {
            0 => Ok(Self(set)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// One core. `None` if sets have no such number.
    pub(crate) fn of_core(core: usize) -> Option<Self> {
        (core < Self::CORES).then(|| {
            // SAFETY: zeroes are the empty set, and `core` is within the set.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(core, &mut set);
                Self(set)
            }
        })
    }

    const CORES: usize = 8 * size_of::<libc::cpu_set_t>();

    /// The kernel's numbers of the cores, in ascending order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        // SAFETY: the number is within the set.
        (0..Self::CORES).filter(|&core| unsafe { libc::CPU_ISSET(core, &self.0) })
    }

    /// The core, if there is just one.
    pub(crate) fn only_core(&self) -> Option<usize> {
        let mut numbers = self.numbers();
        numbers.next().filter(|_| numbers.next().is_none())
    }

    /// Gives the set to the calling thread.
    ///
    /// # Errors
    /// The kernel's error if the process has none of these cores any more.
    pub fn apply(&self) -> std::io::Result<()> {
        self.apply_to(0)
    }

    /// Gives the set to a thread of this process, by the kernel's number.
    pub(crate) fn apply_to(&self, thread: libc::pid_t) -> std::io::Result<()> {
        // SAFETY: changes where one of our threads may run, on which no code may rely.
        match unsafe { libc::sched_setaffinity(thread, size_of_val(&self.0), &self.0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// How many cores the set has.
    #[must_use]
    pub fn cores(&self) -> usize {
        // SAFETY: reads the set.
        unsafe { libc::CPU_COUNT(&self.0) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_given_back() {
        let before = Affinity::of_current().unwrap();
        assert!(before.cores() >= 1);
        before.apply().unwrap();
        assert_eq!(Affinity::of_current().unwrap().cores(), before.cores());
    }
}
