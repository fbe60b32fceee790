//! Buffers that are out: with handlers, on any thread, in contexts that may be suspended at any
//! instruction.
//!
//! ```text
//!              lend                                   a worker, over its ring
//!     (the    ────────▶ Lent: with the handler, ────────────────────────────────────▶ take_back ──▶ (the
//!      device)           in a reply                                                                   device)
//!                            │ dropped anywhere; or a reply whose ring is full                       ▲
//!                            └──────▶ the buffer's own slot, linked into `top` ──▶ next_returned ────┘
//! ```
//!
//! There are as many slots as buffers can be out, so that there is always a place to give one back
//! to, whatever the rings hold. Returned slots are a stack linked by index (Treiber 1986): giving
//! back becomes visible with one compare-and-swap, and a context that is suspended before that
//! keeps only its own buffer out. The networker takes the whole stack by one swap, so that the
//! stack's classic ABA fault cannot happen.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Marks the bottom of the stack.
const BOTTOM: u32 = u32::MAX;

/// How a buffer with its notes comes back.
#[derive(Debug)]
pub(crate) enum Returned<B, N> {
    /// It was dropped.
    Unused(B),
    /// It is a reply, to be sent.
    Reply(B, N),
}

/// Where buffers are given back to.
struct Returns<B, N> {
    /// Index of the slot given back last.
    top: AtomicU32,
    slots: Box<[Slot<B, N>]>,
}

struct Slot<B, N> {
    /// The slot below in the stack.
    below: AtomicU32,
    /// Full while in the stack. The lock only carries the buffer across threads safely: the thread
    /// that comes here owns the slot, so the lock is never contended.
    returned: Mutex<Option<GivenBack<B, N>>>,
}

type GivenBack<B, N> = (Box<Envelope<B, N>>, Wanted);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    No,
    AsReply,
}

impl<B, N> Returns<B, N> {
    fn give(&self, envelope: Box<Envelope<B, N>>, wanted: Wanted) {
        let index = envelope.index;
        let slot = &self.slots[index as usize];
        *slot.returned.lock().unwrap_or_else(PoisonError::into_inner) = Some((envelope, wanted));
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            slot.below.store(top, Ordering::Relaxed);
            // Release: the thread that takes the slot sees what was put into it.
            match self
                .top
                .compare_exchange_weak(top, index, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

/// What a buffer travels in, so that a pointer is all that moves. There is one for each slot, made
/// at start.
struct Envelope<B, N> {
    /// The slot's.
    index: u32,
    held: Option<(B, N)>,
    /// `None` within the slot: it would hold itself.
    returns: Option<Arc<Returns<B, N>>>,
}

/// The networker's side.
pub(crate) struct Lender<B, N> {
    /// Those whose buffer is not out.
    envelopes: Vec<Box<Envelope<B, N>>>,
    /// Slots taken from the stack and not looked at yet: a list by `below`.
    rest: u32,
    returns: Arc<Returns<B, N>>,
}

impl<B, N> Lender<B, N> {
    /// At most `slots` (fewer than `u32::MAX`) are out at once.
    pub(crate) fn new(slots: usize) -> Self {
        let slot = |_| Slot {
            below: AtomicU32::new(BOTTOM),
            returned: Mutex::new(None),
        };
        let returns = Arc::new(Returns {
            top: AtomicU32::new(BOTTOM),
            slots: (0..slots).map(slot).collect(),
        });
        let count = u32::try_from(slots).expect("checked with the configuration");
        let envelope = |index| {
            Box::new(Envelope {
                index,
                held: None,
                returns: Some(Arc::clone(&returns)),
            })
        };
        Self {
            envelopes: (0..count).map(envelope).collect(),
            rest: BOTTOM,
            returns,
        }
    }

    /// How many more can be lent.
    pub(crate) fn free(&self) -> usize {
        self.envelopes.len()
    }

    /// How many are out, or on their way back.
    pub(crate) fn out(&self) -> usize {
        self.returns.slots.len() - self.envelopes.len()
    }

    /// Lends `buffer`, with `notes` to go along; gives it back if as many are out as can be.
    pub(crate) fn lend(&mut self, buffer: B, notes: N) -> Result<Lent<B, N>, B> {
        match self.envelopes.pop() {
            Some(mut envelope) => {
                envelope.held = Some((buffer, notes));
                Ok(Lent(Some(envelope)))
            }
            None => Err(buffer),
        }
    }

    /// Takes back what `lent` holds.
    pub(crate) fn take_back(&mut self, mut lent: Lent<B, N>) -> (B, N) {
        let mut envelope = lent.0.take().expect(HELD);
        let held = envelope.held.take().expect(HELD);
        self.envelopes.push(envelope);
        held
    }

    /// One of those that came back by their slots.
    pub(crate) fn next_returned(&mut self) -> Option<Returned<B, N>> {
        if self.rest == BOTTOM {
            if self.returns.top.load(Ordering::Relaxed) == BOTTOM {
                return None;
            }
            self.rest = self.returns.top.swap(BOTTOM, Ordering::Acquire);
        }
        let slot = self.returns.slots.get(self.rest as usize)?;
        self.rest = slot.below.load(Ordering::Relaxed);
        let returned = slot
            .returned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let (mut envelope, wanted) = returned?;
        let held = envelope.held.take();
        envelope.returns = Some(Arc::clone(&self.returns));
        self.envelopes.push(envelope);
        let (buffer, notes) = held?;
        Some(match wanted {
            Wanted::No => Returned::Unused(buffer),
            Wanted::AsReply => Returned::Reply(buffer, notes),
        })
    }
}

const HELD: &str = "held until it is given back";

/// A buffer that is out, with its notes; gives itself back when dropped, on whatever thread.
pub(crate) struct Lent<B, N>(Option<Box<Envelope<B, N>>>);

impl<B, N> Lent<B, N> {
    fn held(&self) -> &(B, N) {
        let envelope = self.0.as_ref().expect(HELD);
        envelope.held.as_ref().expect(HELD)
    }

    pub(crate) fn buffer(&self) -> &B {
        &self.held().0
    }

    pub(crate) fn notes(&self) -> &N {
        &self.held().1
    }

    /// Both, to be changed.
    pub(crate) fn parts_mut(&mut self) -> (&mut B, &mut N) {
        let envelope = self.0.as_mut().expect(HELD);
        let (buffer, notes) = envelope.held.as_mut().expect(HELD);
        (buffer, notes)
    }

    /// Gives it back as a reply by its slot, where there is always room.
    pub(crate) fn give_back(mut self) {
        self.give(Wanted::AsReply);
    }

    fn give(&mut self, wanted: Wanted) {
        if let Some(mut envelope) = self.0.take()
            && let Some(returns) = envelope.returns.take()
        {
            returns.give(envelope, wanted);
        }
    }
}

impl<B, N> Drop for Lent<B, N> {
    fn drop(&mut self) {
        self.give(Wanted::No);
    }
}

// By hand: derived ones would want buffers to have it, or take the slots' locks.
impl<B, N> fmt::Debug for Lender<B, N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lender")
            .field("free", &self.free())
            .field("out", &self.out())
            .finish_non_exhaustive()
    }
}

impl<B, N> fmt::Debug for Lent<B, N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.0.as_ref().map(|envelope| envelope.index);
        formatter
            .debug_struct("Lent")
            .field("slot", &slot)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    type Lender = super::Lender<u32, ()>;
    type Lent = super::Lent<u32, ()>;

    /// What comes back by the slots: the buffers, and which were replies.
    fn all_returned(lender: &mut Lender) -> Vec<(u32, bool)> {
        let returned = std::iter::from_fn(|| lender.next_returned());
        let mut all: Vec<_> = returned
            .map(|returned| match returned {
                Returned::Unused(buffer) => (buffer, false),
                Returned::Reply(buffer, ()) => (buffer, true),
            })
            .collect();
        all.sort_unstable();
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever way buffers come back, each does so once, as what it was given back as.
        #[test]
        fn each_comes_back_once(slots in 1..6_usize, steps in prop::collection::vec((0..5_u8, any::<u8>()), 0..100)) {
            let mut lender = Lender::new(slots);
            let mut lent: Vec<(u32, Lent)> = Vec::new();
            let mut expected = Vec::new();
            for (number, (step, which)) in (0..).zip(steps) {
                let at = usize::from(which) % lent.len().max(1);
                match step {
                    _ if lent.is_empty() || step == 0 => match lender.lend(number, ()) {
                        Ok(buffer) => lent.push((number, buffer)),
                        Err(back) => {
                            prop_assert_eq!(back, number);
                            prop_assert_eq!(lent.len() + expected.len(), slots);
                        }
                    },
                    1 => {
                        let (number, buffer) = lent.swap_remove(at);
                        drop(buffer);
                        expected.push((number, false));
                    }
                    2 => {
                        let (number, buffer) = lent.swap_remove(at);
                        buffer.give_back();
                        expected.push((number, true));
                    }
                    3 => {
                        let (number, buffer) = lent.swap_remove(at);
                        prop_assert_eq!(lender.take_back(buffer), (number, ()));
                    }
                    _ => {
                        expected.sort_unstable();
                        prop_assert_eq!(all_returned(&mut lender), std::mem::take(&mut expected));
                    }
                }
                prop_assert_eq!(lender.out(), lent.len() + expected.len());
                prop_assert_eq!(lender.free() + lender.out(), slots);
            }
        }
    }

    #[test]
    fn a_giver_stopped_midway_keeps_no_other_waiting() {
        let mut lender = Lender::new(3);
        let stopped = lender.lend(0, ()).unwrap();
        let returns = Arc::clone(&lender.returns);
        // The furthest that a giver can have got unseen: within its slot.
        let slot = stopped.0.as_ref().unwrap().index as usize;
        let _in_its_slot = returns.slots[slot].returned.lock().unwrap();
        let (done, others) = mpsc::channel();
        thread::spawn(move || {
            for _ in 0..1000 {
                let lent = [lender.lend(1, ()).unwrap(), lender.lend(2, ()).unwrap()];
                assert_eq!(lender.lend(3, ()).unwrap_err(), 3);
                drop(lent);
                assert_eq!(all_returned(&mut lender), [(1, false), (2, false)]);
            }
            done.send(()).unwrap();
        });
        others
            .recv_timeout(Duration::from_secs(10))
            .expect("lends and takes back without the stopped one");
        std::mem::forget(stopped);
    }

    #[test]
    fn givers_on_several_threads_lose_and_double_nothing() {
        const SLOTS: usize = 5;
        const ROUNDS: u32 = 20_000;
        let mut lender = Lender::new(SLOTS);
        let (givers, threads): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                let (sender, lent) = mpsc::sync_channel::<Lent>(2);
                let giver = thread::spawn(move || {
                    for lent in lent {
                        match lent.buffer() % 2 {
                            0 => drop(lent),
                            _ => lent.give_back(),
                        }
                    }
                });
                (sender, giver)
            })
            .unzip();
        let mut seen = vec![false; ROUNDS as usize];
        let mut take = |lender: &mut Lender| {
            for (number, reply) in all_returned(lender) {
                assert_eq!(reply, number % 2 == 1);
                assert!(!std::mem::replace(&mut seen[number as usize], true));
            }
        };
        for round in 0..ROUNDS {
            while lender.free() == 0 {
                take(&mut lender);
                thread::yield_now();
            }
            let lent = lender.lend(round, ()).unwrap();
            givers[round as usize % givers.len()].send(lent).unwrap();
        }
        drop(givers);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        take(&mut lender);
        assert_eq!((lender.free(), lender.out()), (SLOTS, 0));
        assert!(seen.iter().all(|&seen| seen));
    }
}
