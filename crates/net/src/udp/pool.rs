//! The packet buffers: taken at start, lent out, given back.
//!
//! A handler gives a buffer back wherever it happens to drop it, and can be preempted in the midst of that, while the
//! dispatcher takes buffers out and must not wait for a suspended context. A ring that hands out places before they
//! are filled (crossbeam's `ArrayQueue` is one) would make it wait. So the free buffers form a stack linked by index
//! (Treiber 1986): giving back becomes visible with one compare-and-swap, and a giver suspended before that has its
//! own buffer still, and nothing else.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Marks the bottom of the stack.
const BOTTOM: u32 = u32::MAX;

/// A fixed set of buffers. Any thread gives back; only [`Taker`] takes.
#[derive(Debug)]
pub(super) struct Pool {
    /// Index of the topmost free buffer, and above it (high half) how many are free.
    top: AtomicU64,
    slots: Box<[Slot]>,
}

#[derive(Debug)]
struct Slot {
    /// While free: the slot below in the stack.
    below: AtomicU32,
    /// Full while free. The lock only carries the buffer across threads safely: whoever comes here owns the slot, so
    /// it is never contended.
    bytes: Mutex<Option<Box<[u8]>>>,
}

impl Slot {
    fn exchange(&self, bytes: Option<Box<[u8]>>) -> Option<Box<[u8]>> {
        std::mem::replace(
            &mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner),
            bytes,
        )
    }
}

impl Pool {
    /// How many are free.
    pub(super) fn free(&self) -> usize {
        unpack(self.top.load(Ordering::Relaxed)).1 as usize
    }

    fn give_back(&self, index: u32, bytes: Box<[u8]>) {
        let slot = &self.slots[index as usize];
        slot.exchange(Some(bytes));
        let mut seen = self.top.load(Ordering::Relaxed);
        loop {
            let (top, free) = unpack(seen);
            slot.below.store(top, Ordering::Relaxed);
            // Release: what was put into the slot is there for whoever takes it.
            match self.top.compare_exchange_weak(
                seen,
                pack(index, free + 1),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// The right to take buffers. There is one: with a single taker, a slot seen on top stays below whatever is put on it
/// until this one takes it, so the stack's classic ABA fault cannot happen.
#[derive(Debug)]
pub(super) struct Taker {
    pool: Arc<Pool>,
}

impl Taker {
    /// `buffers` (fewer than `u32::MAX`) buffers of `length` bytes, all free.
    pub(super) fn new(buffers: usize, length: usize) -> Self {
        let count = u32::try_from(buffers).expect("checked with the configuration");
        let slots = (0..count).map(|index| Slot {
            below: AtomicU32::new(index.checked_sub(1).unwrap_or(BOTTOM)),
            bytes: Mutex::new(Some(vec![0; length].into_boxed_slice())),
        });
        let top = AtomicU64::new(pack(count.checked_sub(1).unwrap_or(BOTTOM), count));
        Self {
            pool: Arc::new(Pool {
                top,
                slots: slots.collect(),
            }),
        }
    }

    /// The buffer given back last, which the cache most likely still has. `None`: all are in use.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        let mut seen = self.pool.top.load(Ordering::Acquire);
        loop {
            let (top, free) = unpack(seen);
            if top == BOTTOM {
                return None;
            }
            let slot = &self.pool.slots[top as usize];
            let rest = pack(slot.below.load(Ordering::Relaxed), free - 1);
            match self.pool.top.compare_exchange_weak(
                seen,
                rest,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    let bytes = slot.exchange(None).expect("a free slot holds its buffer");
                    return Some(Buffer {
                        bytes,
                        index: top,
                        pool: Arc::clone(&self.pool),
                    });
                }
                Err(now) => seen = now,
            }
        }
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

/// A buffer in use; gives itself back when dropped, on whatever thread.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) bytes: Box<[u8]>,
    index: u32,
    pool: Arc<Pool>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // An empty boxed slice needs no memory.
        self.pool
            .give_back(self.index, std::mem::take(&mut self.bytes));
    }
}

fn pack(top: u32, free: u32) -> u64 {
    u64::from(free) << 32 | u64::from(top)
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
