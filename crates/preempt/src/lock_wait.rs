//! What a job slept for in the kernel when a signal stopped it.
//!
//! Every lock of user space sleeps by `futex`: the caller names a word of memory and the value that
//! the word has while the lock is taken, and the kernel lets the caller sleep only if the word has
//! that value. The signal's handler finds both in the registers. So the holder of the suspended job
//! can ask at any time whether the job would sleep again: the kernel makes the same comparison.
//!
//! The kernel compares, and not this code, since the word may be anywhere, and be unmapped by a
//! program that is wrong.

use std::ptr;
use std::sync::atomic::AtomicU32;

/// A suspended job sleeps until another thread of the process wakes it, without a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// The address of the lock's word.
    word: usize,
    /// The value that the job sleeps at. `None`: the kernel keeps the lock's owner in the word
    /// (priority inheritance), and there is nothing to compare with.
    value: Option<u32>,
}

impl LockWait {
    /// What a signal with this frame stopped: code within a call of `futex`, or right before the
    /// call. The kernel has put the registers back to begin the call again (`SA_RESTART`); a call
    /// with a time limit answers `EINTR`, and is not found. Code that has these numbers in its
    /// registers by chance is taken for one that waits: no harm but to the order.
    pub(crate) fn of(frame: &libc::ucontext_t) -> Option<Self> {
        const LOCK_PI2: libc::c_int = 13;
        let register = |number: libc::c_int| frame.uc_mcontext.gregs[number as usize];
        if register(libc::REG_RAX) != libc::SYS_futex {
            return None;
        }
        let options = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
        let value = match register(libc::REG_RSI) as libc::c_int & !options {
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => Some(register(libc::REG_RDX) as u32),
            libc::FUTEX_LOCK_PI | LOCK_PI2 => None,
            _ => return None,
        };
        let word = register(libc::REG_RDI) as usize;
        Some(Self { word, value })
    }

    /// Such a wait at `word` while it has that value, as [`would_sleep`](Self::would_sleep) tells.
    #[must_use]
    pub fn at(word: &AtomicU32, value: u32) -> Self {
        Self {
            word: ptr::from_ref(word).addr(),
            value: Some(value),
        }
    }

    /// Whether the job would sleep again if it went on now. A lock with priority inheritance says
    /// yes. One system call, which does not sleep; some hundred nanoseconds.
    #[must_use]
    pub fn would_sleep(self) -> bool {
        let Some(value) = self.value else {
            return true;
        };
        let word = ptr::without_provenance::<u32>(self.word);
        let none = 0usize;
        // SAFETY: the kernel reads the word if the process can, and compares it with the value. It
        // wakes none and moves none from the word to the word.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word,
                libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG,
                none,
                none,
                word,
                value,
            )
        };
        answer == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_would_sleep_while_the_word_has_its_value() {
        let word = AtomicU32::new(7);
        assert!(LockWait::at(&word, 7).would_sleep());
        assert!(!LockWait::at(&word, 8).would_sleep());
        let inherits = LockWait {
            value: None,
            ..LockWait::at(&word, 8)
        };
        assert!(inherits.would_sleep());
        let nowhere = LockWait {
            word: 0,
            value: Some(7),
        };
        assert!(!nowhere.would_sleep(), "it goes on, and gets the error");
    }
}
