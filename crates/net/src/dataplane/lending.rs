//! Buffers that are out: with handlers, on any thread, in contexts that may be suspended at any instruction.
//!
//! ```text
//!              lend                                   a worker, over its ring
//!     (the    ────────▶ Lent: with the handler, ────────────────────────────────────▶ take_back ──▶ (the
//!      device)           in a reply                                                                   device)
//!                            │ dropped anywhere; or a reply whose ring is full                       ▲
//!                            └──────▶ the buffer's own slot, linked into `top` ──▶ next_returned ────┘
//! ```
//!
//! There are as many slots as buffers can be out, so that there is always a place to give one back to, whatever the rings
//! hold. Returned slots are a stack linked by index (Treiber 1986): giving back becomes visible with one
//! compare-and-swap, and a giver suspended before that keeps its own buffer from us, and nothing else. The networker takes
//! the whole stack by one swap, so that the stack's classic ABA fault cannot happen.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Outbound;

/// Marks the bottom of the stack.
const BOTTOM: u32 = u32::MAX;

/// How a buffer comes back.
pub(super) enum Returned<B> {
    /// Nobody wants it any more.
    Unused(B),
    /// It is a reply, to be sent.
    Reply(Outbound<B>),
}

/// Where buffers are given back to.
struct Returns<B> {
    /// Index of the slot given back last.
    top: AtomicU32,
    slots: Box<[Slot<B>]>,
}

struct Slot<B> {
    /// The slot below in the stack.
    below: AtomicU32,
    /// Full while in the stack. The lock only carries the buffer across threads safely: whoever comes here owns the
    /// slot, so it is never contended.
    returned: Mutex<Option<Returned<B>>>,
}

impl<B> Returns<B> {
    fn give(&self, index: u32, returned: Returned<B>) {
        let slot = &self.slots[index as usize];
        *slot.returned.lock().unwrap_or_else(PoisonError::into_inner) = Some(returned);
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            slot.below.store(top, Ordering::Relaxed);
            // Release: what was put into the slot is there for whoever takes it.
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

/// The right to a slot. There is one for each.
struct Token<B> {
    index: u32,
    returns: Arc<Returns<B>>,
}

/// The networker's side.
pub(super) struct Lender<B> {
    /// Of the slots whose buffer is not out.
    tokens: Vec<Token<B>>,
    /// Slots taken from the stack and not looked at yet: a list by `below`.
    rest: u32,
    returns: Arc<Returns<B>>,
}

impl<B> Lender<B> {
    /// At most `slots` (fewer than `u32::MAX`) are out at once.
    pub(super) fn new(slots: usize) -> Self {
        let slot = |_| Slot {
            below: AtomicU32::new(BOTTOM),
            returned: Mutex::new(None),
        };
        let returns = Arc::new(Returns {
            top: AtomicU32::new(BOTTOM),
            slots: (0..slots).map(slot).collect(),
        });
        let count = u32::try_from(slots).expect("checked with the configuration");
        let token = |index| Token {
            index,
            returns: Arc::clone(&returns),
        };
        Self {
            tokens: (0..count).map(token).collect(),
            rest: BOTTOM,
            returns,
        }
    }

    /// How many more can be lent.
    pub(super) fn free(&self) -> usize {
        self.tokens.len()
    }

    /// How many are out, or on their way back.
    pub(super) fn out(&self) -> usize {
        self.returns.slots.len() - self.tokens.len()
    }

    /// Lends `buffer`; gives it back if as many are out as can be.
    pub(super) fn lend(&mut self, buffer: B) -> Result<Lent<B>, B> {
        match self.tokens.pop() {
            Some(token) => Ok(Lent {
                held: Some((buffer, token)),
            }),
            None => Err(buffer),
        }
    }

    /// Takes back what `lent` holds.
    pub(super) fn take_back(&mut self, mut lent: Lent<B>) -> B {
        let (buffer, token) = lent.held.take().expect(HELD);
        self.tokens.push(token);
        buffer
    }

    /// Takes back a reply that came over a ring.
    pub(super) fn take_reply(&mut self, reply: Finished<B>) -> Outbound<B> {
        let Outbound { buffer, checksums } = reply.0;
        Outbound {
            buffer: self.take_back(buffer),
            checksums,
        }
    }

    /// One of those that came back by their slots.
    pub(super) fn next_returned(&mut self) -> Option<Returned<B>> {
        if self.rest == BOTTOM {
            if self.returns.top.load(Ordering::Relaxed) == BOTTOM {
                return None;
            }
            self.rest = self.returns.top.swap(BOTTOM, Ordering::Acquire);
        }
        let index = self.rest;
        let slot = self.returns.slots.get(index as usize)?;
        self.rest = slot.below.load(Ordering::Relaxed);
        self.tokens.push(Token {
            index,
            returns: Arc::clone(&self.returns),
        });
        slot.returned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

const HELD: &str = "held until it is given back";

/// A buffer that is out; gives itself back when dropped, on whatever thread.
pub(super) struct Lent<B> {
    held: Option<(B, Token<B>)>,
}

impl<B> Lent<B> {
    pub(super) fn buffer(&self) -> &B {
        &self.held.as_ref().expect(HELD).0
    }

    pub(super) fn buffer_mut(&mut self) -> &mut B {
        &mut self.held.as_mut().expect(HELD).0
    }
}

impl<B> Drop for Lent<B> {
    fn drop(&mut self) {
        if let Some((buffer, Token { index, returns })) = self.held.take() {
            returns.give(index, Returned::Unused(buffer));
        }
    }
}

/// A reply on its way from a worker to the networker.
pub(super) struct Finished<B>(pub(super) Outbound<Lent<B>>);

impl<B> Finished<B> {
    /// Gives it back by its slot, where there is always room.
    pub(super) fn give_back(self) {
        let Outbound {
            buffer: mut lent,
            checksums,
        } = self.0;
        if let Some((buffer, Token { index, returns })) = lent.held.take() {
            returns.give(index, Returned::Reply(Outbound { buffer, checksums }));
        }
    }
}

// By hand: derived ones would want buffers to have it, or take the slots' locks.
impl<B> fmt::Debug for Lender<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lender")
            .field("free", &self.free())
            .field("out", &self.out())
            .finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for Lent<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.held.as_ref().map(|(_, token)| token.index);
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
    use crate::dataplane::Checksums;

    fn finished(lent: Lent<u32>) -> Finished<u32> {
        Finished(Outbound {
            buffer: lent,
            checksums: Checksums::default(),
        })
    }

    /// What comes back by the slots: the buffers, and which were replies.
    fn all_returned(lender: &mut Lender<u32>) -> Vec<(u32, bool)> {
        let returned = std::iter::from_fn(|| lender.next_returned());
        let mut all: Vec<_> = returned
            .map(|returned| match returned {
                Returned::Unused(buffer) => (buffer, false),
                Returned::Reply(reply) => (reply.buffer, true),
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
            let mut lent: Vec<(u32, Lent<u32>)> = Vec::new();
            let mut expected = Vec::new();
            for (number, (step, which)) in (0..).zip(steps) {
                let at = usize::from(which) % lent.len().max(1);
                match step {
                    _ if lent.is_empty() || step == 0 => match lender.lend(number) {
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
                        finished(buffer).give_back();
                        expected.push((number, true));
                    }
                    3 => {
                        let (number, buffer) = lent.swap_remove(at);
                        prop_assert_eq!(lender.take_back(buffer), number);
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
    fn a_giver_stopped_midway_keeps_nobody_waiting() {
        let mut lender = Lender::new(3);
        let stopped = lender.lend(0).unwrap();
        let returns = Arc::clone(&lender.returns);
        // The furthest that a giver can have got unseen: within its slot.
        let slot = stopped.held.as_ref().unwrap().1.index as usize;
        let _in_its_slot = returns.slots[slot].returned.lock().unwrap();
        let (done, others) = mpsc::channel();
        thread::spawn(move || {
            for _ in 0..1000 {
                let lent = [lender.lend(1).unwrap(), lender.lend(2).unwrap()];
                assert_eq!(lender.lend(3).unwrap_err(), 3);
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
                let (sender, lent) = mpsc::sync_channel::<Lent<u32>>(2);
                let giver = thread::spawn(move || {
                    for lent in lent {
                        match lent.buffer() % 2 {
                            0 => drop(lent),
                            _ => finished(lent).give_back(),
                        }
                    }
                });
                (sender, giver)
            })
            .unzip();
        let mut seen = vec![false; ROUNDS as usize];
        let mut take = |lender: &mut Lender<u32>| {
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
            let lent = lender.lend(round).unwrap();
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
