//! The packet buffers: taken at start, lent out, given back.
//!
//! A handler gives a buffer back where it drops it, and can be preempted in the midst of that. The
//! dispatcher takes buffers out meanwhile, and must not wait for a suspended context. A ring that
//! hands out places before they are filled (crossbeam's `ArrayQueue` is one) would make it wait. So
//! the free buffers form a stack linked by index (Treiber 1986): giving back becomes visible with
//! one compare-and-swap, and a context that is suspended before that still has its own buffer, and
//! holds up no other.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Marks the bottom of the stack.
const BOTTOM: u32 = u32::MAX;

/// A fixed set of buffers. Any thread gives back; only [`Taker`] takes.
pub(super) struct Pool {
    /// Index of the topmost free buffer, and above it (high half) how many are free.
    top: AtomicU64,
    slots: Box<[Slot]>,
}

struct Slot {
    /// While free: the slot below in the stack.
    below: AtomicU32,
    /// Full while free. The lock only carries the buffer across threads safely: the thread that
    /// comes here owns the slot, so the lock is never contended.
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
            // Release: what was put into the slot is there for the thread that takes it.
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

/// The right to take buffers. There is one: with a single taker, a slot seen on top stays below
/// whatever is put on it until this one takes it, so the stack's classic ABA fault cannot happen.
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

// By hand: the derived ones would take the slots' locks.
impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pool")
            .field("buffers", &self.slots.len())
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Buffer")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

fn pack(top: u32, free: u32) -> u64 {
    u64::from(free) << 32 | u64::from(top)
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn takes_what_was_given_back_last(buffers in 1..6_usize, steps in prop::collection::vec(any::<Option<u8>>(), 0..100)) {
            let mut taker = Taker::new(buffers, 1);
            let mut free: Vec<u32> = (0..buffers as u32).collect();
            let mut lent: Vec<Buffer> = Vec::new();
            for step in steps {
                match step {
                    None => {
                        let taken = taker.take();
                        prop_assert_eq!(taken.as_ref().map(|buffer| buffer.index), free.pop());
                        lent.extend(taken);
                    }
                    Some(which) if !lent.is_empty() => {
                        let buffer = lent.swap_remove(usize::from(which) % lent.len());
                        free.push(buffer.index);
                    }
                    Some(_) => {}
                }
                prop_assert_eq!(taker.pool().free(), free.len());
            }
        }
    }

    #[test]
    fn a_giver_stopped_midway_keeps_no_other_waiting() {
        let mut taker = Taker::new(3, 1);
        let stopped = taker.take().unwrap();
        let pool = Arc::clone(taker.pool());
        // The furthest that a giver can have got unseen: within its slot.
        let _in_its_slot = pool.slots[stopped.index as usize].bytes.lock().unwrap();
        let (done, others) = mpsc::channel();
        thread::spawn(move || {
            for _ in 0..1000 {
                let lent = [taker.take().unwrap(), taker.take().unwrap()];
                assert!(taker.take().is_none());
                drop(lent);
            }
            done.send(()).unwrap();
        });
        others
            .recv_timeout(Duration::from_secs(10))
            .expect("takes and gives back without the stopped one");
        std::mem::forget(stopped);
    }

    #[test]
    fn givers_on_several_threads_lose_and_double_nothing() {
        const BUFFERS: usize = 5;
        const ROUNDS: u32 = 20_000;
        let mut taker = Taker::new(BUFFERS, 4);
        let (givers, threads): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                let (sender, buffers) = mpsc::sync_channel::<(Buffer, u32)>(2);
                let giver = thread::spawn(move || {
                    for (buffer, mark) in buffers {
                        assert_eq!(
                            *buffer.bytes,
                            mark.to_le_bytes(),
                            "no other thread writes to it"
                        );
                    }
                });
                (sender, giver)
            })
            .unzip();
        for round in 0..ROUNDS {
            let mut buffer = loop {
                match taker.take() {
                    Some(buffer) => break buffer,
                    None => thread::yield_now(),
                }
            };
            buffer.bytes.copy_from_slice(&round.to_le_bytes());
            givers[round as usize % givers.len()]
                .send((buffer, round))
                .unwrap();
        }
        drop(givers);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let all: Vec<_> = std::iter::from_fn(|| taker.take()).collect();
        assert_eq!(all.len(), BUFFERS);
        assert!(all.iter().all(|buffer| buffer.bytes.len() == 4));
    }
}
