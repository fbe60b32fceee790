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
