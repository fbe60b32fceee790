//! The scheduling class of any thread of the machine: reading it, and giving a thread another. And
//! the time slice that Linux gives a thread where it shares its core with others.

use std::io;
use std::time::Duration;

/// How Linux schedules a thread: its class with all parameters, as `sched_getattr` tells and
/// `sched_setattr` takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulingClass(Attributes);

/// The kernel's `struct sched_attr` in its first version.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;
/// The flag by which a thread's children have ordinary scheduling.
const RESET_ON_FORK: u64 = 1;

impl SchedulingClass {
    /// SCHED_FIFO with this priority (1 to 99). Threads and processes that the thread then starts
    /// have ordinary scheduling.
    #[must_use]
    pub fn fifo(priority: u32) -> Self {
        Self(Attributes {
            size: SIZE,
            policy: libc::SCHED_FIFO as u32,
            flags: RESET_ON_FORK,
            priority,
            ..Attributes::default()
        })
    }

    /// The class of thread `tid`; of the calling thread, if that is 0.
    ///
    /// # Errors
    /// The kernel's: ESRCH if there is no such thread, EPERM without the permission to look.
    pub fn of(tid: u32) -> io::Result<Self> {
        Attributes::of(tid).map(Self)
    }

    /// Gives thread `tid` this class; the calling thread, if that is 0. One system call, no
    /// allocation.
    ///
    /// # Errors
    /// The kernel's: ESRCH if there is no such thread, EPERM without the permission
    /// ([`RealtimeError::Refused`](crate::RealtimeError::Refused) says how to get it), EINVAL for a
    /// priority out of range.
    pub fn give_to(&self, tid: u32) -> io::Result<()> {
        self.0.give_to(tid)
    }

    /// Gives thread `tid` the class that it had before another was given to it. Without privileges
    /// the kernel does not take back that the thread's children have ordinary scheduling; all else
    /// it does.
    ///
    /// # Errors
    /// As [`give_to`](Self::give_to).
    pub fn give_back_to(&self, tid: u32) -> io::Result<()> {
        match self.give_to(tid) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                let flags = self.0.flags | RESET_ON_FORK;
                Attributes { flags, ..self.0 }.give_to(tid)
            }
            answer => answer,
        }
    }

    /// The priority, if the class is SCHED_FIFO.
    #[must_use]
    pub fn fifo_priority(&self) -> Option<u32> {
        (self.0.policy == libc::SCHED_FIFO as u32).then_some(self.0.priority)
    }

    /// The class as numbers, for another process.
    #[must_use]
    pub fn to_words(self) -> [u64; 7] {
        let Attributes {
            size: _,
            policy,
            flags,
            nice,
            priority,
            runtime,
            deadline,
            period,
        } = self.0;
        let nice = u64::from(nice.cast_unsigned());
        let [policy, priority] = [policy, priority].map(u64::from);
        [policy, flags, nice, priority, runtime, deadline, period]
    }

    /// What [`to_words`](Self::to_words) made of it. The kernel refuses numbers without a meaning
    /// when the class is given to a thread.
    #[must_use]
    pub fn from_words(words: [u64; 7]) -> Self {
        let [policy, flags, nice, priority, runtime, deadline, period] = words;
        let [policy, nice, priority] = [policy, nice, priority].map(|word| word as u32);
        Self(Attributes {
            size: SIZE,
            policy,
            flags,
            nice: nice.cast_signed(),
            priority,
            runtime,
            deadline,
            period,
        })
    }
}

impl Attributes {
    fn of(tid: u32) -> io::Result<Self> {
        let mut attributes = Self::default();
        // SAFETY: reads a thread's scheduling; the kernel writes at most `SIZE` bytes to
        // `attributes`, which is as large.
        let answer =
            unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attributes, SIZE, 0) };
        match answer {
            0 => Ok(attributes),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn give_to(&self, tid: u32) -> io::Result<()> {
        // SAFETY: changes when a thread runs, on which no memory depends; the kernel reads `size`
        // bytes of `self`, which is as large.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, tid, std::ptr::from_ref(self), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Asks Linux to let the calling thread run for `slice` at a time (0.1 to 100 ms), under ordinary
/// scheduling. Its share of the core stays the same; the shorter the slice, the sooner it runs
/// after it was woken, and the sooner others do. From Linux 6.12 on; before that nothing changes.
///
/// # Errors
/// The kernel's, if it does not grant it.
pub fn request_slice(slice: Duration) -> io::Result<()> {
    let mut attributes = Attributes::of(0)?;
    attributes.runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    attributes.give_to(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_class_back() {
        // On a thread of its own, whose class matters to no other test.
        std::thread::spawn(|| {
            let before = SchedulingClass::of(0).unwrap();
            assert_eq!(before.fifo_priority(), None);
            let fifo = SchedulingClass::fifo(3);
            if let Err(error) = fifo.give_to(0) {
                println!("SKIPPED a_thread_gets_its_class_back: SCHED_FIFO: {error}");
                return;
            }
            assert_eq!(SchedulingClass::of(0).unwrap().fifo_priority(), Some(3));
            before.give_back_to(0).unwrap();
            assert_eq!(SchedulingClass::of(0).unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_class_survives_as_numbers() {
        for class in [
            SchedulingClass::of(0).unwrap(),
            SchedulingClass::fifo(7),
            SchedulingClass(Attributes {
                nice: -5,
                size: SIZE,
                ..Attributes::default()
            }),
        ] {
            assert_eq!(SchedulingClass::from_words(class.to_words()), class);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(SchedulingClass::fifo(100).give_to(0).is_err());
        assert!(SchedulingClass::fifo(0).give_to(0).is_err());
        // Beyond the largest number that Linux gives to a thread.
        let nobody = SchedulingClass::of(1 << 23).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn the_slice_changes_and_nothing_else() {
        let slice = Duration::from_micros(200);
        // On a thread of its own, whose slice matters to no other test.
        let (before, after) = std::thread::spawn(move || {
            let before = Attributes::of(0).unwrap();
            request_slice(slice).unwrap();
            (before, Attributes::of(0).unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((after.policy, after.nice), (before.policy, before.nice));
        if u128::from(after.runtime) != slice.as_nanos() {
            eprintln!("SKIPPED the_slice_changes_and_nothing_else: this kernel has one slice");
        }
    }
}
