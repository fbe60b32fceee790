//! A dispatcher in guest mode, which posts interrupts by itself: a write to its APIC, no system
//! call. On CPUs with IPI virtualisation, or AVIC, neither side should leave guest mode for that.
//! (This project has had no such CPU; on others the write exits, and costs more than the system
//! call.)
//!
//! Ring 3 may not write to the APIC. An undefined instruction enters ring 0, whose code does.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::machine::{Machine, VECTOR};
use super::vcpu_mode::VcpuMode;
use super::{Guest, GuestCounters, GuestError, Vcpu, VcpuLease, ring0, run};
use crate::backend::Mode as _;
use crate::worker::SCHEDULING;

thread_local! {
    /// The vCPU of this thread, if it posts by itself. Constant initialiser and no destructor.
    static POSTER: Cell<*const Vcpu> = const { Cell::new(std::ptr::null()) };
}

/// The calling thread's vCPU, on which it runs in guest mode and posts interrupts by itself. It
/// leaves guest mode on drop.
#[derive(Debug)]
pub struct Poster {
    lease: Box<VcpuLease>,
    not_send: PhantomData<*mut ()>,
}

impl Guest {
    /// From its next [`interrupt`](crate::Mechanism::interrupt) on, the calling thread runs in
    /// guest mode and posts interrupts by itself. All its system calls are then forwarded, which
    /// costs more than it gains if they are many.
    ///
    /// # Errors
    /// [`GuestError`] if there can be no vCPU for it.
    ///
    /// # Panics
    /// If the thread is a worker, runs a context, or has such a place already.
    pub fn post_from_this_thread(&self) -> Result<Poster, GuestError> {
        assert!(
            SCHEDULING.get().is_null() && !crate::in_context() && POSTER.get().is_null(),
            "a dispatcher's thread is wanted"
        );
        let lease = Box::new(self.lease()?);
        POSTER.set(&raw const **lease);
        Ok(Poster {
            lease,
            not_send: PhantomData,
        })
    }
}

impl Poster {
    /// This thread's events in guest mode.
    #[must_use]
    pub fn counters(&self) -> GuestCounters {
        self.lease.link.counters()
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        POSTER.set(std::ptr::null());
        // SAFETY: a poster stays on its thread, and this is the thread's own code.
        unsafe { self.lease.leave() };
    }
}

/// Posts the interrupt to `machine`'s CPU with this APIC number, if the calling thread can. Returns
/// whether it could.
pub(super) fn post(machine: &Arc<Machine>, apic: u32) -> bool {
    // SAFETY: the poster of this thread clears the pointer before its vCPU goes.
    let Some(vcpu) = (unsafe { POSTER.get().as_ref() }) else {
        return false;
    };
    if vcpu.broken.get() || !Arc::ptr_eq(&vcpu.machine, machine) {
        return false;
    }
    if run::is_native(vcpu) {
        // SAFETY: the thread is the vCPU's, in its own code, and not in guest mode.
        unsafe { run::enter(vcpu) };
    }
    post_in_guest_mode(&vcpu.link.mode, apic)
}

/// Posts the interrupt if `mode`, the calling thread's own mode, says guest mode at that moment.
/// Returns whether it did.
fn post_in_guest_mode(mode: &VcpuMode, apic: u32) -> bool {
    /// Asserted: all but one kind of interrupt require it.
    const ASSERT: u32 = 1 << 14;
    let posted: u32;
    // SAFETY: the vCPU with this number has a handler for the vector. `post` clobbers only the
    // registers named here.
    unsafe {
        std::arch::asm!(
            "call {post}",
            post = sym ring0::post,
            in("rdi") mode.addresses().0,
            inlateout("eax") ASSERT | u32::from(VECTOR) => posted,
            in("edx") apic,
            out("rcx") _,
        );
    }
    posted != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_guest_mode_nothing_is_posted() {
        assert!(!post_in_guest_mode(&VcpuMode::new(), 0));
    }

    #[test]
    fn posting_begins_again_where_guest_mode_was_left_in_its_midst() {
        let start = ring0::post as *const () as u64;
        for at in 0..=ring0::POST_LENGTH {
            assert_eq!(ring0::natively(start + at), start);
        }
        assert_eq!(ring0::natively(start - 1), start - 1);
        let behind = start + ring0::POST_LENGTH + 1;
        assert_eq!(ring0::natively(behind), behind);
    }
}
