//! A bounded queue with many producers and one consumer, on which neither end ever waits for the
//! other.
//!
//! The algorithm is Dmitry Vyukov's bounded queue (1024cores.net, "Bounded MPMC queue"): a producer
//! claims a position, writes the slot, and publishes it by the slot's turn number.
//!
//! `crossbeam_queue::ArrayQueue` is the same queue except that its `pop` spins while the push that
//! claimed the oldest slot is not finished. Here the consumer is the dispatcher. The unfinished
//! push may belong to a context that only the dispatcher brings back, or to a thread that a
//! dispatcher under SCHED_FIFO keeps off the core. So here an unfinished push looks like an empty
//! queue.
//!
//! The mutex in each slot makes this safe Rust. No thread ever waits for one: between a claim and
//! its publication only the producer uses the slot, between publication and release only the
//! consumer.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use shinjuku_preempt::without_preemption;

/// Makes a queue of at least `capacity` places: the next power of two, and at least two. Its memory
/// is never reallocated.
pub(crate) fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.next_power_of_two().max(2);
    let slots = (0..capacity).map(|position| Slot {
        turn: AtomicUsize::new(position),
        value: Mutex::new(None),
    });
    let ring = Arc::new(Ring {
        slots: slots.collect(),
        tail: CachePadded::new(AtomicUsize::new(0)),
        head: CachePadded::new(AtomicUsize::new(0)),
    });
    (Producer(ring.clone()), Consumer { ring, head: 0 })
}

struct Ring<T> {
    slots: Box<[Slot<T>]>,
    /// The next position to claim.
    tail: CachePadded<AtomicUsize>,
    /// The oldest position not released, as the consumer last said.
    head: CachePadded<AtomicUsize>,
}

struct Slot<T> {
    /// `position`: free for the producer that claims it. `position + 1`: published. A slot's
    /// positions are a capacity apart.
    turn: AtomicUsize,
    value: Mutex<Option<T>>,
}

impl<T> Ring<T> {
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }
}

impl<T> Slot<T> {
    fn value(&self) -> MutexGuard<'_, Option<T>> {
        // Nothing panics under the lock.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end to push to.
pub(crate) struct Producer<T>(Arc<Ring<T>>);

impl<T> Producer<T> {
    /// Appends `value`, or gives it back if the queue is full. Any thread may push, contexts
    /// included. These are not preempted meanwhile, so that they hold up no later push.
    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let ring = &*self.0;
        without_preemption(|| {
            let mut position = ring.tail.load(Ordering::Relaxed);
            loop {
                let slot = ring.slot(position);
                match slot
                    .turn
                    .load(Ordering::Acquire)
                    .wrapping_sub(position)
                    .cast_signed()
                {
                    0 => match ring.tail.compare_exchange_weak(
                        position,
                        position.wrapping_add(1),
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            *slot.value() = Some(value);
                            slot.turn.store(position.wrapping_add(1), Ordering::Release);
                            return Ok(());
                        }
                        Err(tail) => position = tail,
                    },
                    // The value of the lap before is still there.
                    ..0 => return Err(value),
                    // Another thread was quicker.
                    1.. => position = ring.tail.load(Ordering::Relaxed),
                }
            }
        })
    }

    /// How many places there are.
    pub(crate) fn capacity(&self) -> usize {
        self.0.slots.len()
    }

    /// How many places are taken. It may be fewer by the time the caller has the answer. If there
    /// is only one producer, it is never more.
    pub(crate) fn len(&self) -> usize {
        let head = self.0.head.load(Ordering::Acquire);
        self.0.tail.load(Ordering::Relaxed).wrapping_sub(head)
    }

    /// Whether the next [`pop`](Consumer::pop) has something, as far as another thread than the
    /// consumer's can tell.
    pub(crate) fn is_ready(&self) -> bool {
        let published = |position: usize| {
            let turn = self.0.slot(position).turn.load(Ordering::Acquire);
            turn.wrapping_sub(position)
        };
        loop {
            let head = self.0.head.load(Ordering::Acquire);
            match published(head) {
                0 => return false,
                1 => return true,
                // The slot was popped, and `head` has not been stored yet, or this read is old.
                _ if self.0.head.load(Ordering::Acquire) == head => {
                    return published(head.wrapping_add(1)) == 1;
                }
                _ => {}
            }
        }
    }
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Producer({} of {})", self.len(), self.capacity())
    }
}

/// The end to pop from. Values left in the queue are dropped with the queue's last end.
pub(crate) struct Consumer<T> {
    ring: Arc<Ring<T>>,
    head: usize,
}

impl<T> Consumer<T> {
    /// The oldest value; `None` also while the push of the oldest is unfinished.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        let slot = self.ring.slot(self.head);
        let value = slot.value().take();
        let lap = self.ring.slots.len();
        slot.turn
            .store(self.head.wrapping_add(lap), Ordering::Release);
        self.head = self.head.wrapping_add(1);
        self.ring.head.store(self.head, Ordering::Release);
        value
    }

    /// Whether [`pop`](Self::pop) has something.
    pub(crate) fn is_ready(&self) -> bool {
        let turn = self.ring.slot(self.head).turn.load(Ordering::Acquire);
        turn == self.head.wrapping_add(1)
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Consumer(at {})", self.head)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn is_first_in_first_out_over_many_laps_and_full_at_its_capacity() {
        let (producer, mut consumer) = ring(4);
        assert_eq!(producer.capacity(), 4);
        let (mut next_in, mut next_out) = (0, 0);
        for round in 0..100 {
            for _ in 0..=(round % 4) {
                assert_eq!(producer.push(next_in), Ok(()));
                next_in += 1;
            }
            if round % 4 == 3 {
                assert_eq!(producer.push(u32::MAX), Err(u32::MAX));
            }
            assert_eq!(producer.len(), round as usize % 4 + 1);
            while let Some(value) = consumer.pop() {
                assert_eq!(value, next_out);
                next_out += 1;
            }
            assert_eq!((next_out, producer.len()), (next_in, 0));
        }
    }

    #[test]
    fn rounds_its_capacity_up() {
        for (asked, got) in [(0, 2), (1, 2), (2, 2), (3, 4), (1000, 1024)] {
            assert_eq!(ring::<u8>(asked).0.capacity(), got);
        }
    }

    #[test]
    fn nothing_is_lost_or_reordered_between_threads() {
        const PRODUCERS: usize = 4;
        const EACH: usize = 20_000;
        let (producer, mut consumer) = ring(64);
        let mut next = [0; PRODUCERS];
        thread::scope(|scope| {
            for who in 0..PRODUCERS {
                let producer = producer.clone();
                scope.spawn(move || {
                    for number in 0..EACH {
                        while producer.push((who, number)).is_err() {
                            thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..PRODUCERS * EACH {
                let (who, number) = loop {
                    match consumer.pop() {
                        Some(value) => break value,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(number, next[who], "producer {who}'s order");
                next[who] += 1;
            }
        });
        assert_eq!(next, [EACH; PRODUCERS]);
        assert!(consumer.pop().is_none());
    }

    #[test]
    fn an_unfinished_push_looks_like_an_empty_queue() {
        let (producer, mut consumer) = ring(4);
        // One producer was stopped between claim and publication, and one behind it was not.
        producer.0.tail.store(1, Ordering::Relaxed);
        producer.push(1).unwrap();
        assert!(!consumer.is_ready() && !producer.is_ready());
        assert_eq!(consumer.pop(), None);
        // The first goes on.
        *producer.0.slot(0).value() = Some(0);
        producer.0.slot(0).turn.store(1, Ordering::Release);
        assert!(consumer.is_ready() && producer.is_ready());
        assert_eq!(consumer.pop(), Some(0));
        // As between a pop and the store of `head`.
        producer.0.head.store(0, Ordering::Relaxed);
        assert!(producer.is_ready());
        assert_eq!(consumer.pop(), Some(1));
        assert!(!producer.is_ready());
    }

    #[test]
    fn values_left_inside_are_dropped_with_the_last_end() {
        let value = Arc::new(());
        let (producer, consumer) = ring(4);
        producer.push(value.clone()).unwrap();
        drop(consumer);
        assert_eq!(Arc::strong_count(&value), 2);
        drop(producer);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
