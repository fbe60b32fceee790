//! The exceptions that x87 code has raised: a part of the status word, which the switch leaves
//! alone.
//!
//! A thread reads its own exceptions (`fetestexcept`), and an unmasked pending one faults at the
//! next x87 instruction. Another request's exceptions would do so in this one. Reading the status
//! word takes 4 ns, half of a switch, so only a preemption does that: the exceptions of a request
//! that has *ended* stay for the next, as on the threads of any pool. (MXCSR holds the same for SSE
//! and AVX, and goes with every switch.)

use std::arch::asm;

/// The exceptions that a context had raised when it gave way.
#[must_use = "the context has lost them otherwise"]
pub(crate) struct Exceptions(u8);

impl Exceptions {
    /// Reads and clears them.
    #[inline]
    pub(crate) fn take() -> Self {
        let met = met();
        if met != 0 {
            clear();
        }
        Self(met)
    }

    /// Restores these exceptions, and no others.
    #[inline]
    pub(crate) fn put_back(self) {
        if self.0 != 0 {
            load(self.0);
        } else if met() != 0 {
            clear();
        }
    }
}

/// The status word's low byte: a flag for each kind of exception, and whether one is pending.
#[inline]
fn met() -> u8 {
    let status: u16;
    // SAFETY: only reads the status word, and waits for no exception.
    unsafe { asm!("fnstsw ax", out("ax") status, options(nomem, nostack, preserves_flags)) };
    status as u8
}

#[cold]
fn clear() {
    // SAFETY: clears the flags of the status word, which code between two calls may not rely on.
    unsafe { asm!("fnclex", options(nomem, nostack)) };
}

/// Stores the environment, of 28 bytes, replaces the flags in it and loads it.
#[cold]
fn load(exceptions: u8) {
    let mut environment = [0u32; 7];
    // SAFETY: the environment is written and read in full. `fnstenv` masks all exceptions, so
    // `fldenv` faults on none; it brings the masks back.
    unsafe {
        asm!(
            "fnstenv [{environment}]",
            "mov byte ptr [{environment} + 4], {exceptions}",
            "fldenv [{environment}]",
            environment = in(reg) environment.as_mut_ptr(),
            exceptions = in(reg_byte) exceptions,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_put_back_and_nothing_else() {
        const INVALID: u8 = 1;
        const DIVIDED_BY_ZERO: u8 = 4;
        clear();
        load(DIVIDED_BY_ZERO);
        let taken = Exceptions::take();
        assert_eq!(met(), 0);
        let none = Exceptions::take();
        load(INVALID);
        none.put_back();
        assert_eq!(met(), 0);
        load(INVALID);
        taken.put_back();
        assert_eq!(met(), DIVIDED_BY_ZERO);
        clear();
    }
}
