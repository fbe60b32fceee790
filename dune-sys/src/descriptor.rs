//! The posted-interrupt descriptor: 64 bytes that senders, the CPU and the module share (Intel SDM,
//! volume 3, chapter "APIC virtualization", section "Posted-interrupt processing").
//!
//! ```text
//!             request bit     ON
//!   sender    0 ──▶ 1         0 ──▶ 1    then, if both were 0, a notification to the target's CPU
//!   receiver  1 ──▶ 0, second 1 ──▶ 0, first
//! ```
//!
//! The order keeps interrupts from being lost. A sender that finds ON set sends no notification, so
//! a receiver must read the requests after it clears ON. In the other order, a request that comes
//! in between would stay until the next one. A notification without requests is harmless.
//!
//! There are three receivers: the CPU itself, when the notification reaches it in guest mode; the
//! module, on the way into guest mode; and [`take`](PostedInterruptDescriptor::take), to clear
//! requests that no code waits for any more.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Bit 0 of the word behind the requests: a notification is on its way.
const OUTSTANDING: u64 = 1;

/// One CPU's descriptor. It is `u32 vectors[8]; u32 extra[8]` in Dune's sources; the CPU, the
/// module and this code access it in words of 64 bits.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PostedInterruptDescriptor {
    requests: [AtomicU64; 4],
    control: AtomicU64,
    reserved: [AtomicU64; 3],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<PostedInterruptDescriptor>() == 64);
    assert!(std::mem::offset_of!(PostedInterruptDescriptor, control) == 32);
};

/// The sender's remaining task.
#[must_use = "without its notification the interrupt waits for the next one"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The target's CPU must be notified.
    Notify,
    /// The vector is pending already: it will be delivered once for both.
    Pending,
    /// Another vector is pending, whose notification brings this one along.
    Outstanding,
}

impl PostedInterruptDescriptor {
    /// A descriptor without requests.
    #[must_use]
    #[cfg_attr(loom, expect(clippy::new_without_default, reason = "as without loom"))]
    pub fn new() -> Self {
        Self {
            requests: std::array::from_fn(|_| AtomicU64::new(0)),
            control: AtomicU64::new(0),
            reserved: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Sender: requests `vector`. The interrupt's handler sees all earlier writes, also if the
    /// answer is not [`Posted::Notify`].
    #[inline]
    pub fn post(&self, vector: u8) -> Posted {
        let (word, bit) = place(vector);
        // Both with release: an earlier notification may run the handler. The CPU has no weaker
        // operation anyway.
        if self.requests[word].fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            Posted::Pending
        } else if self.control.fetch_or(OUTSTANDING, Ordering::AcqRel) & OUTSTANDING != 0 {
            Posted::Outstanding
        } else {
            Posted::Notify
        }
    }

    /// Receiver: takes all requests, as the CPU and the module do.
    #[inline]
    pub fn take(&self) -> Vectors {
        self.control.fetch_and(!OUTSTANDING, Ordering::AcqRel);
        self.take_requests()
    }

    fn take_requests(&self) -> Vectors {
        Vectors(std::array::from_fn(|word| {
            self.requests[word].swap(0, Ordering::AcqRel)
        }))
    }

    /// Whether a notification is on its way, at this moment.
    #[must_use]
    pub fn is_outstanding(&self) -> bool {
        self.control.load(Ordering::Acquire) & OUTSTANDING != 0
    }
}

#[cfg(not(loom))]
impl Default for PostedInterruptDescriptor {
    fn default() -> Self {
        Self::new()
    }
}

const fn place(vector: u8) -> (usize, u64) {
    (vector as usize / 64, 1 << (vector % 64))
}

/// A set of interrupt vectors.
#[must_use = "what is taken is nowhere else"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vectors([u64; 4]);

impl Vectors {
    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Whether `vector` is in the set.
    #[must_use]
    pub fn contains(&self, vector: u8) -> bool {
        let (word, bit) = place(vector);
        self.0[word] & bit != 0
    }

    /// The vectors in the order of delivery: the highest first.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).rev().filter(|&vector| self.contains(vector))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(descriptor: &PostedInterruptDescriptor) -> [u32; 16] {
        // SAFETY: 64 bytes of plain integers, and no other thread writes.
        unsafe { std::ptr::from_ref(descriptor).cast::<[u32; 16]>().read() }
    }

    #[test]
    fn a_request_sets_the_bits_that_dunes_sources_set() {
        let descriptor = PostedInterruptDescriptor::new();
        assert_eq!(descriptor.post(0xf2), Posted::Notify);
        let mut want = [0; 16];
        want[0xf2 / 32] = 1 << (0xf2 % 32);
        want[8] = 1;
        assert_eq!(words(&descriptor), want);
    }

    #[test]
    fn only_the_first_request_needs_a_notification() {
        let descriptor = PostedInterruptDescriptor::new();
        assert_eq!(descriptor.post(0xf2), Posted::Notify);
        assert_eq!(descriptor.post(0xf2), Posted::Pending);
        assert_eq!(descriptor.post(0x20), Posted::Outstanding);
        let taken = descriptor.take();
        assert_eq!(taken.iter().collect::<Vec<_>>(), [0xf2, 0x20]);
        assert!(!descriptor.is_outstanding());
        assert!(descriptor.take().is_empty());
        assert_eq!(descriptor.post(0xf2), Posted::Notify);
    }

    #[test]
    fn taking_leaves_the_other_bits_of_the_control_word() {
        let descriptor = PostedInterruptDescriptor::new();
        descriptor.control.store(0xabcd_0001, Ordering::Relaxed);
        assert!(descriptor.take().is_empty());
        assert_eq!(descriptor.control.load(Ordering::Relaxed), 0xabcd_0000);
    }

    #[test]
    fn every_vector_has_a_bit_of_its_own() {
        let descriptor = PostedInterruptDescriptor::new();
        for vector in 0..=u8::MAX {
            let _ = descriptor.post(vector);
        }
        assert_eq!(words(&descriptor)[..8], [u32::MAX; 8]);
        assert_eq!(descriptor.take().iter().count(), 256);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    const VECTOR: u8 = 0xf2;

    /// A CPU in guest mode, with its interrupt line. When the line is quiet, a handler must have
    /// seen what was stored in `wanted` before a request.
    struct Target {
        descriptor: PostedInterruptDescriptor,
        notified: AtomicUsize,
        wanted: AtomicUsize,
    }

    impl Target {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                descriptor: PostedInterruptDescriptor::new(),
                notified: AtomicUsize::new(0),
                wanted: AtomicUsize::new(0),
            })
        }

        /// Sends as often as told; returns the number of notifications.
        fn send(&self, times: usize) {
            for number in 1..=times {
                // Relaxed: the descriptor has to make the handler see it.
                self.wanted.store(number, Ordering::Relaxed);
                if self.descriptor.post(VECTOR) == Posted::Notify {
                    self.notified.fetch_add(1, Ordering::Relaxed);
                }
            }
        }

        /// If the CPU is notified, takes the requests and runs the handler for each. Returns how
        /// many interrupts were delivered, and what the last handler saw.
        fn receive(&self, take: fn(&PostedInterruptDescriptor) -> Vectors) -> (usize, usize) {
            if self.notified.load(Ordering::Relaxed) == 0 {
                return (0, 0);
            }
            self.notified.fetch_sub(1, Ordering::Relaxed);
            match take(&self.descriptor).iter().count() {
                0 => (0, 0),
                delivered => (delivered, self.wanted.load(Ordering::Relaxed)),
            }
        }
    }

    fn exchange(times: usize, take: fn(&PostedInterruptDescriptor) -> Vectors) {
        let target = Target::new();
        let receiver = {
            let target = Arc::clone(&target);
            thread::spawn(move || {
                (0..2).fold((0, 0), |(delivered, seen), _| {
                    let (more, saw) = target.receive(take);
                    (delivered + more, seen.max(saw))
                })
            })
        };
        target.send(times);
        let (mut delivered, mut seen) = receiver.join().unwrap();
        // The line is level: all remaining requests are delivered in the end.
        while target.notified.load(Ordering::Relaxed) > 0 {
            let (more, saw) = target.receive(take);
            delivered += more;
            seen = seen.max(saw);
        }
        assert_eq!(seen, times, "an interrupt was lost");
        assert!(
            (1..=times).contains(&delivered),
            "delivered {delivered} times"
        );
        assert!(!target.descriptor.is_outstanding());
        let left = target.descriptor.take();
        assert!(
            left.is_empty(),
            "an interrupt was lost: no CPU is notified of it"
        );
    }

    /// However sending and receiving interleave, a handler that runs after the last request sees
    /// it, and there are no more interrupts than requests.
    #[test]
    fn loom_posting_loses_nothing_and_doubles_nothing() {
        loom::model(|| exchange(3, PostedInterruptDescriptor::take));
    }

    /// The check above can fail: a receiver that clears ON after the requests loses one.
    #[test]
    #[should_panic(expected = "an interrupt was lost")]
    fn loom_the_wrong_order_loses_an_interrupt() {
        loom::model(|| {
            exchange(2, |descriptor| {
                let taken = descriptor.take_requests();
                descriptor.control.fetch_and(!OUTSTANDING, Ordering::AcqRel);
                taken
            });
        });
    }

    /// Two senders with a vector each: one notification may serve both, and neither stays without.
    #[test]
    fn loom_two_senders() {
        loom::model(|| {
            let target = Target::new();
            let other = {
                let target = Arc::clone(&target);
                thread::spawn(move || {
                    if target.descriptor.post(0x21) == Posted::Notify {
                        target.notified.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            target.send(1);
            let mut taken = Vec::new();
            if target.notified.load(Ordering::Relaxed) > 0 {
                target.notified.fetch_sub(1, Ordering::Relaxed);
                taken.extend(target.descriptor.take().iter());
            }
            other.join().unwrap();
            while target.notified.load(Ordering::Relaxed) > 0 {
                target.notified.fetch_sub(1, Ordering::Relaxed);
                taken.extend(target.descriptor.take().iter());
            }
            taken.sort_unstable();
            assert_eq!(taken, [0x21, VECTOR]);
        });
    }
}
