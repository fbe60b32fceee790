//! Single instructions, and the empty system call.

use std::hint::black_box;

use super::Part;
use super::cores::per_call;
use super::samples::{Rows, Samples};
use crate::switch::fs_base;

pub(super) const ROWS: Rows = &["wrfsbase", "rdfsbase", "syscall/empty"];

pub(super) struct Instructions;

impl Part for Instructions {
    fn round(&mut self, samples: &mut Samples) {
        let own = fs_base();
        let write = per_call(50_000, || {
            // SAFETY: FS keeps the value that it has; `check_platform` has seen FSGSBASE.
            unsafe {
                std::arch::asm!("wrfsbase {}", in(reg) own, options(nostack, preserves_flags));
            }
        });
        samples.add("wrfsbase", write);
        let read = per_call(200_000, || {
            black_box(fs_base());
        });
        samples.add("rdfsbase", read);
        let enter = per_call(3_000, || {
            // SAFETY: returns a number.
            black_box(unsafe { libc::syscall(libc::SYS_getppid) });
        });
        samples.add("syscall/empty", enter);
    }
}
