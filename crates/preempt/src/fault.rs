//! Removing one defence, to show that the stress test sees its absence.
//!
//! Without the feature `fault-injection` (off by default, never for production) every function here
//! answers "no" at compile time.

/// One of the defences that preemption stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Defence {
    /// The FS base moves with the context.
    FsSwitch = 1,
    /// A preemption meant for an earlier request is ignored.
    GenerationCheck = 2,
    /// `rt_sigreturn` may not install another worker's alternate signal stack.
    AlternateStackCare = 3,
    /// A context is handed on only when it is completely saved.
    LatePublication = 4,
    /// No preemption within `without_preemption`.
    Guard = 5,
    /// Vector and mask registers survive.
    VectorState = 6,
}

impl Defence {
    /// All defences, with their names on the command line.
    pub const ALL: [(&'static str, Self); 6] = [
        ("fs-switch", Self::FsSwitch),
        ("generation-check", Self::GenerationCheck),
        ("alternate-stack", Self::AlternateStackCare),
        ("late-publication", Self::LatePublication),
        ("guard", Self::Guard),
        ("vector-state", Self::VectorState),
    ];
}

#[cfg(feature = "fault-injection")]
mod armed {
    use std::sync::atomic::{AtomicU8, Ordering};

    static WITHOUT: AtomicU8 = AtomicU8::new(0);

    /// Removes `defence` for the rest of the process.
    pub fn take_out(defence: super::Defence) {
        WITHOUT.store(defence as u8, Ordering::SeqCst);
    }

    #[inline(always)]
    pub(crate) fn without(defence: super::Defence) -> bool {
        WITHOUT.load(Ordering::Relaxed) == defence as u8
    }
}

#[cfg(feature = "fault-injection")]
pub use armed::take_out;
#[cfg(feature = "fault-injection")]
pub(crate) use armed::without;

#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
pub(crate) const fn without(_: Defence) -> bool {
    false
}
