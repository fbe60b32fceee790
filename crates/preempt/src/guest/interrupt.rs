//! What an interrupt does in ring 3: the counterpart of the signal handler, with the same rules.

use std::sync::atomic::Ordering;

use super::ring0::{Saved, system_call_stub};
use crate::counters::count;
use crate::current::{self, CURRENT};
use crate::worker::SCHEDULING;

/// Called by the save trampoline on the interrupted stack, which has room; whose FS base it is remains to be seen.
pub(super) extern "C" fn interrupted(saved: &mut Saved) {
    if saved.rip == system_call_stub as *const () as u64 {
        // Software virtualisation runs the stub in ring 3. The call has not begun: back to where it is made, which every
        // worker understands.
        saved.rip = saved.rcx - SYSCALL_LENGTH;
        saved.rflags = saved.r11;
    }
    let head = CURRENT.get();
    if head.is_null() {
        // SAFETY: the worker bound to this thread clears the pointer before it drops the counters.
        if let Some(counters) = unsafe { SCHEDULING.get().as_ref() } {
            count(&counters.late);
        }
        return;
    }
    // SAFETY: a context's head outlives the thread control block it was read from.
    let head = unsafe { &*head };
    let here = std::ptr::from_ref(saved) as usize;
    let on_its_stack = (head.stack_low.get()..head.stack_high.get()).contains(&here);
    if head.running.guard.load(Ordering::Relaxed) != 0 || !on_its_stack {
        // Within the switch, or the job holds preemption off: as in `signal`.
        if on_its_stack {
            // SAFETY: on the context's own stack with the guard up: its worker runs it.
            count(unsafe { &current::worker_counters(head).deferred });
        }
        return;
    }
    if current::worker_has_its_mask(head) {
        current::interrupted(head);
    } else {
        current::interrupted_in_vain(head);
    }
}

/// Bytes of a `syscall` instruction.
pub(super) const SYSCALL_LENGTH: u64 = 2;
