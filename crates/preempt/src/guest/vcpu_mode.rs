//! How an interrupt reaches a worker with a vCPU, for sender and worker.
//!
//! ```text
//!    place       the worker's thread is                      an interrupt goes by
//!    GUEST       in guest mode, or on its way                vector
//!    FORWARDING  making a system call for the guest's code   vector and signal: the call is given up or answers,
//!                                                            and the vector waits for the way back
//!    NATIVE      not in guest mode                           signal, as everywhere
//! ```
//!
//! A sender posts the vector, sets `pending` and then reads `place`. The worker sets `place` to
//! `FORWARDING`, or `NATIVE`, and then reads `pending`. So one of them sees the other's store, and
//! no vector waits behind a call that blocks. (If KVM ever posts an eventfd's vector later, from a
//! work queue, the vector may wait until the dispatcher asks again.)

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// The table is above.
pub(super) const GUEST: u32 = 0;
const FORWARDING: u32 = 1;
const NATIVE: u32 = 2;

/// The two words.
pub(super) struct VcpuMode {
    place: AtomicU32,
    pending: AtomicBool,
}

impl VcpuMode {
    /// The mode of a native worker.
    pub(super) fn new() -> Self {
        Self {
            place: AtomicU32::new(NATIVE),
            pending: AtomicBool::new(false),
        }
    }

    /// Sender, after the request was stored: whether to post the vector. If not, a signal is right:
    /// the worker is native, and if it is in no context now, it looks at the request when it enters
    /// one.
    pub(super) fn takes_a_vector(&self) -> bool {
        fence(Ordering::SeqCst);
        self.place.load(Ordering::Relaxed) != NATIVE
    }

    /// Sender, after the vector was posted: whether to send a signal, too.
    pub(super) fn takes_a_signal_too(&self) -> bool {
        self.pending.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.place.load(Ordering::Relaxed) != GUEST
    }

    /// Worker: whether it is native.
    pub(super) fn is_native(&self) -> bool {
        self.place.load(Ordering::Relaxed) == NATIVE
    }

    /// Worker: goes into guest mode, or back to it.
    pub(super) fn to_guest(&self) {
        self.place.store(GUEST, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker: makes a system call, which it abandons if [`pending`](Self::pending) is set.
    pub(super) fn to_forwarding(&self) {
        self.place.store(FORWARDING, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Worker: leaves guest mode. Returns whether a vector was posted that guest mode no longer
    /// takes: then the worker shall send itself a signal.
    pub(super) fn to_native(&self) -> bool {
        self.place.store(NATIVE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.pending.swap(false, Ordering::Relaxed)
    }

    /// Worker, back in guest mode after a call that it abandoned: the vector waits there.
    pub(super) fn nothing_is_pending(&self) {
        self.pending.store(false, Ordering::Relaxed);
    }

    /// Worker, before it enters a context, which then looks at its request: no call has to be
    /// abandoned for the vectors posted so far.
    #[inline]
    pub(super) fn enters_a_context(&self) {
        if self.pending.load(Ordering::Relaxed) {
            // Read together with the request, which was stored before it.
            self.pending.swap(false, Ordering::AcqRel);
        }
    }
}

/// The words' addresses, for assembly, which loom does not run.
impl VcpuMode {
    #[cfg(not(loom))]
    pub(super) fn addresses(&self) -> (*const u32, *const bool) {
        (self.place.as_ptr(), self.pending.as_ptr())
    }

    #[cfg(loom)]
    pub(super) fn addresses(&self) -> (*const u32, *const bool) {
        unreachable!("loom's words have none")
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// One interrupt for a worker in guest mode, or on its way there.
    struct World {
        mode: VcpuMode,
        requested: AtomicBool,
        /// The vector, in the vCPU's APIC.
        posted: AtomicBool,
        signalled: AtomicBool,
    }

    impl World {
        fn new() -> Self {
            Self {
                mode: VcpuMode::new(),
                requested: AtomicBool::new(false),
                posted: AtomicBool::new(false),
                signalled: AtomicBool::new(false),
            }
        }

        fn send(&self) {
            self.requested.store(true, Ordering::Relaxed);
            let vector = self.mode.takes_a_vector();
            if vector {
                self.posted.store(true, Ordering::Release);
            }
            if !vector || self.mode.takes_a_signal_too() {
                self.signalled.store(true, Ordering::Relaxed);
            }
        }

        /// Whether guest mode has taken the vector, or the context has seen its request on the way
        /// in.
        fn is_taken(&self) -> bool {
            self.posted.load(Ordering::Acquire) || self.requested.load(Ordering::Relaxed)
        }
    }

    fn model(worker: impl Fn(&World) -> bool + Sync + Send + 'static) {
        let worker = std::sync::Arc::new(worker);
        loom::model(move || {
            let world = Arc::new(World::new());
            let sender = {
                let world = Arc::clone(&world);
                thread::spawn(move || world.send())
            };
            let taken = worker(&world);
            sender.join().unwrap();
            // Where the worker ends, only a signal reaches it.
            let signalled = world.signalled.load(Ordering::Relaxed);
            assert!(taken || signalled, "no code looks at the request");
        });
    }

    /// Into guest mode, into a context, and into a call that blocks: in every order, the context
    /// has seen its request, or has taken the vector, or the call is abandoned, or a signal comes.
    #[test]
    fn loom_no_vector_waits_behind_a_call() {
        model(|world| {
            world.mode.enters_a_context();
            world.mode.to_guest();
            // The context looks on its way in, and takes posted vectors.
            if world.is_taken() {
                return true;
            }
            for _ in 0..2 {
                world.mode.to_forwarding();
                if !world.mode.pending.load(Ordering::Relaxed) {
                    // It blocks.
                    return false;
                }
                world.mode.to_guest();
                world.mode.nothing_is_pending();
                if world.posted.load(Ordering::Acquire) {
                    return true;
                }
            }
            false
        });
    }

    /// The same with a context that leaves guest mode.
    #[test]
    fn loom_no_vector_is_left_behind_in_guest_mode() {
        model(|world| {
            world.mode.enters_a_context();
            world.mode.to_guest();
            world.is_taken() || world.mode.to_native()
        });
    }

    /// A worker that is already in guest mode enters the next context while the interrupt for that
    /// context is sent.
    #[test]
    fn loom_what_was_posted_is_forgotten_only_by_who_sees_the_request() {
        model(|world| {
            world.mode.to_guest();
            world.mode.enters_a_context();
            if world.requested.load(Ordering::Relaxed) || world.posted.load(Ordering::Acquire) {
                return true;
            }
            world.mode.to_forwarding();
            world.mode.pending.load(Ordering::Relaxed)
        });
    }
}
