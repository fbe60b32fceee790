//! Sending: a worker's CPU as the dispatcher sees it.
//!
//! ```text
//!            post: both bits were clear ─▶ notify
//!   quiet ──────────────────────────────────────────▶ notified ──taken by the CPU──▶ quiet
//!                                                       │    ▲
//!                              post: a bit was set ─────┘    │
//!                              nothing to do, but every 8th time notify again
//! ```
//!
//! The requests themselves are not here: the context's `requested` word has the request, and the
//! descriptor makes sure that the interrupt's handler sees what was stored before.

use std::sync::atomic::{AtomicU32, Ordering};

use dune_sys::apic::{ApicError, ApicId, LocalApic, NOTIFICATION_VECTOR, Registers};
use dune_sys::{Posted, PostedInterruptDescriptor};

use crate::backend::ModeLink;

/// The interrupt's vector. Shinjuku uses the notification's number for it, too.
pub(super) const VECTOR: u8 = NOTIFICATION_VECTOR;

/// A request whose predecessor is still pending usually sends nothing. Every eighth one notifies
/// again: the notification may have been lost (see [`LocalApic::send`]), and nothing else would
/// send it again. One notification too many is harmless.
const NOTIFY_AGAIN: u32 = 8;

/// The CPU where a worker runs.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) cpu: u32,
    apic: ApicId,
    /// Requests since the last notification.
    unnotified: AtomicU32,
}

/// The outcome of sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    Notified,
    /// The vector is pending already.
    Pending,
}

impl ModeLink for Target {}

impl Target {
    pub(super) fn new(cpu: u32, apic: ApicId) -> Self {
        Self {
            cpu,
            apic,
            unnotified: AtomicU32::new(0),
        }
    }

    /// Interrupts the worker, whose CPU has `descriptor`, through the calling CPU's APIC.
    ///
    /// # Errors
    /// [`ApicError::Busy`] if the APIC cannot send; then nothing was posted, and the next call
    /// starts afresh.
    pub(super) fn interrupt<R: Registers>(
        &self,
        apic: &LocalApic<R>,
        descriptor: &PostedInterruptDescriptor,
    ) -> Result<Sent, ApicError> {
        // Before posting: a sender that finds the bits clear owes a notification.
        apic.wait_until_idle()?;
        // One dispatcher sends to a worker, so a load and a store are enough.
        let unnotified = self.unnotified.load(Ordering::Relaxed);
        let notify = match descriptor.post(VECTOR) {
            Posted::Notify => true,
            Posted::Pending | Posted::Outstanding => unnotified + 1 >= NOTIFY_AGAIN,
        };
        if notify {
            self.unnotified.store(0, Ordering::Relaxed);
            apic.send(NOTIFICATION_VECTOR, self.apic);
            Ok(Sent::Notified)
        } else {
            self.unnotified.store(unnotified + 1, Ordering::Relaxed);
            Ok(Sent::Pending)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use dune_sys::apic::Register;
    use std::cell::{Cell, RefCell};

    /// An APIC that records all writes.
    #[derive(Default)]
    struct Noted {
        busy: Cell<bool>,
        writes: RefCell<Vec<(Register, u32)>>,
    }

    impl Registers for Noted {
        fn read(&self, _: Register) -> u32 {
            u32::from(self.busy.get()) << 12
        }

        fn write(&self, register: Register, value: u32) {
            self.writes.borrow_mut().push((register, value));
        }
    }

    fn stage() -> (Target, LocalApic<Noted>, PostedInterruptDescriptor) {
        let target = Target::new(3, ApicId(6));
        (
            target,
            LocalApic(Noted::default()),
            PostedInterruptDescriptor::new(),
        )
    }

    #[test]
    fn the_first_request_notifies_the_workers_cpu() {
        let (target, apic, descriptor) = stage();
        assert_eq!(target.interrupt(&apic, &descriptor), Ok(Sent::Notified));
        let written = apic.0.writes.take();
        assert_eq!(
            written,
            [
                (Register::CommandDestination, 6 << 24),
                (Register::Command, 0xf2)
            ]
        );
        assert!(descriptor.is_outstanding());
        assert!(descriptor.take().contains(VECTOR));
    }

    #[test]
    fn while_it_is_pending_nothing_is_sent_and_taken_it_is_sent_again() {
        let (target, apic, descriptor) = stage();
        assert_eq!(target.interrupt(&apic, &descriptor), Ok(Sent::Notified));
        assert_eq!(target.interrupt(&apic, &descriptor), Ok(Sent::Pending));
        assert_eq!(apic.0.writes.take().len(), 2);
        assert_eq!(descriptor.take().iter().count(), 1);
        assert_eq!(target.interrupt(&apic, &descriptor), Ok(Sent::Notified));
    }

    #[test]
    fn another_vectors_notification_serves_this_one() {
        let (target, apic, descriptor) = stage();
        assert_eq!(descriptor.post(0x33), Posted::Notify);
        assert_eq!(target.interrupt(&apic, &descriptor), Ok(Sent::Pending));
        assert!(apic.0.writes.take().is_empty());
    }

    #[test]
    fn a_lost_notification_is_sent_again_after_a_while() {
        let (target, apic, descriptor) = stage();
        assert_eq!(target.interrupt(&apic, &descriptor), Ok(Sent::Notified));
        let sent: Vec<_> = (0..2 * NOTIFY_AGAIN)
            .map(|_| target.interrupt(&apic, &descriptor).unwrap())
            .collect();
        let again: Vec<_> = (1..)
            .zip(&sent)
            .filter(|(_, sent)| **sent == Sent::Notified)
            .collect();
        assert_eq!(again.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [8, 16]);
    }

    #[test]
    fn a_busy_apic_leaves_nothing_posted() {
        let (target, apic, descriptor) = stage();
        apic.0.busy.set(true);
        assert_eq!(target.interrupt(&apic, &descriptor), Err(ApicError::Busy));
        assert!(!descriptor.is_outstanding() && descriptor.take().is_empty());
        apic.0.busy.set(false);
        assert_eq!(target.interrupt(&apic, &descriptor), Ok(Sent::Notified));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use dune_sys::apic::Register;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, AtomicUsize};
    use loom::thread;

    /// The interrupt line to the worker's CPU, raised by a write to the command register.
    struct Line(Arc<AtomicUsize>);

    impl Registers for Line {
        fn read(&self, _: Register) -> u32 {
            0
        }

        fn write(&self, register: Register, _: u32) {
            if register == Register::Command {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    struct Worker {
        line: Arc<AtomicUsize>,
        descriptor: PostedInterruptDescriptor,
        /// The context's word.
        requested: AtomicU64,
    }

    impl Worker {
        /// The CPU: if it is notified, takes the posted vectors and runs the handler for each.
        /// Returns the number of interrupts, and the newest generation that a handler saw.
        fn serve(&self) -> (usize, u64) {
            if self.line.load(Ordering::Relaxed) == 0 {
                return (0, 0);
            }
            self.line.fetch_sub(1, Ordering::Relaxed);
            self.descriptor
                .take()
                .iter()
                .fold((0, 0), |(count, newest), _| {
                    // A context clears the request by a swap, for which loom would allow more than
                    // the memory model does (that a store of another thread comes between the
                    // swap's two halves). Here a load is enough.
                    (
                        count + 1,
                        newest.max(self.requested.load(Ordering::Acquire)),
                    )
                })
        }
    }

    /// The dispatcher stores a generation and interrupts, twice, while the worker's CPU serves. A
    /// handler sees the last generation, whether or not its interrupt was merged with the one
    /// before, and no interrupt comes without a request.
    #[test]
    fn loom_the_last_request_is_seen_by_a_handler() {
        loom::model(|| {
            let line = Arc::new(AtomicUsize::new(0));
            let worker = Arc::new(Worker {
                line: Arc::clone(&line),
                descriptor: PostedInterruptDescriptor::new(),
                requested: AtomicU64::new(0),
            });
            let cpu = {
                let worker = Arc::clone(&worker);
                thread::spawn(move || {
                    let (one, two) = (worker.serve(), worker.serve());
                    (one.0 + two.0, one.1.max(two.1))
                })
            };
            let target = Target::new(0, ApicId(0));
            let apic = LocalApic(Line(line));
            for generation in 1..=2 {
                worker.requested.store(generation, Ordering::Release);
                let _ = target.interrupt(&apic, &worker.descriptor);
            }
            let (mut interrupts, mut newest) = cpu.join().unwrap();
            while worker.line.load(Ordering::Relaxed) > 0 {
                let (more, seen) = worker.serve();
                interrupts += more;
                newest = newest.max(seen);
            }
            assert_eq!(newest, 2, "the last request was lost");
            assert!(
                (1..=2).contains(&interrupts),
                "{interrupts} interrupts for two requests"
            );
            assert!(
                worker.descriptor.take().is_empty(),
                "nothing is left behind"
            );
        });
    }
}
