//! The standard buffers, and the memory of replies that are longer.
//!
//! Handlers take the latter, in their contexts, which may allocate. The networker learns first that
//! a reply's memory is free again, and must not free it. So it leaves the memory in one of some
//! places, and the next handler takes it from there, to use it or to free it. A place is a lock
//! that no context waits for: if a context is suspended while it holds one, the others go without
//! that place, and do not wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::BytesMut;

use super::output::OutputFull;

/// `count` buffers of `size` zeros, in one piece: the kernel gives their memory when they are first
/// used.
pub(super) fn buffers(count: usize, size: usize) -> Vec<BytesMut> {
    let mut all = BytesMut::zeroed(count * size);
    let mut buffers: Vec<_> = (0..count).map(|_| all.split_to(size)).collect();
    // The first ones are used first.
    buffers.reverse();
    buffers
}

/// The same, to be written to.
pub(super) fn empty_buffers(count: usize, size: usize) -> Vec<BytesMut> {
    let mut buffers = buffers(count, size);
    buffers.iter_mut().for_each(BytesMut::clear);
    buffers
}

const PLACES: usize = 64;
/// The most that may lie in the places, in bytes. Handlers free what is over.
const KEPT: usize = 4 << 20;

pub(super) struct Memory {
    /// The longest reply.
    max_reply: usize,
    /// All of them together.
    reply_memory: usize,
    /// Of which so much is taken, in the places or in use.
    taken: AtomicUsize,
    /// Of which so much is in the places.
    kept: AtomicUsize,
    places: [Mutex<BytesMut>; PLACES],
}

impl Memory {
    pub(super) fn new(max_reply: usize, reply_memory: usize) -> Self {
        Self {
            max_reply,
            reply_memory,
            taken: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            places: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// In use for long replies, or kept for them, in bytes.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Whether a reply may have `length` bytes.
    pub(super) fn check(&self, length: usize) -> Result<(), OutputFull> {
        if length <= self.max_reply {
            return Ok(());
        }
        Err(OutputFull::Reply {
            length,
            max_reply: self.max_reply,
        })
    }

    /// An empty buffer for `least` bytes, of `wanted` if they can be had. In a context.
    pub(super) fn take(&self, least: usize, wanted: usize) -> Result<BytesMut, OutputFull> {
        if self.kept.load(Relaxed) > 0 {
            for place in &self.places {
                let found = self.take_from(place);
                if found.capacity() >= least {
                    return Ok(found);
                }
                self.free(found);
            }
        }
        for size in [wanted.max(least), least] {
            let reserved = self.taken.try_update(Relaxed, Relaxed, |taken| {
                let then = taken.checked_add(size)?;
                (then <= self.reply_memory).then_some(then)
            });
            if reserved.is_err() {
                continue;
            }
            let buffer = BytesMut::with_capacity(size);
            // The allocator may have been generous.
            self.taken.fetch_add(buffer.capacity() - size, Relaxed);
            return Ok(buffer);
        }
        Err(OutputFull::Together {
            length: least,
            reply_memory: self.reply_memory,
        })
    }

    /// Frees a buffer that [`take`](Self::take) gave. In a context.
    pub(super) fn free(&self, buffer: BytesMut) {
        if buffer.capacity() > 0 {
            self.taken.fetch_sub(buffer.capacity(), Relaxed);
        }
    }

    /// The networker's way to part with a buffer. If no place is free it keeps it.
    pub(super) fn leave(&self, buffer: &mut BytesMut) {
        for place in &self.places {
            if let Ok(mut place) = place.try_lock()
                && place.capacity() == 0
            {
                self.kept.fetch_add(buffer.capacity(), Relaxed);
                buffer.clear();
                std::mem::swap(&mut *place, buffer);
                return;
            }
        }
    }

    /// Frees what lies there beyond measure. In a context, once a request.
    pub(super) fn tidy(&self) {
        if self.kept.load(Relaxed) <= KEPT {
            return;
        }
        for place in &self.places {
            self.free(self.take_from(place));
            if self.kept.load(Relaxed) <= KEPT {
                return;
            }
        }
    }

    fn take_from(&self, place: &Mutex<BytesMut>) -> BytesMut {
        let found = match place.try_lock() {
            Ok(mut place) => std::mem::take(&mut *place),
            Err(_) => BytesMut::new(),
        };
        if found.capacity() > 0 {
            self.kept.fetch_sub(found.capacity(), Relaxed);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_thread_stopped_within_a_place_keeps_no_other_waiting() {
        let memory = Memory::new(1000, 10_000);
        let mut buffers: Vec<_> = (0..3).map(|_| memory.take(100, 200).unwrap()).collect();
        memory.leave(&mut buffers[0]);
        let _stopped = memory.places[0].lock().unwrap();
        memory.leave(&mut buffers[1]);
        assert_eq!(buffers[1].capacity(), 0, "another place takes it");
        let again = memory.take(150, 150).unwrap();
        assert_eq!(again.capacity(), 200, "from the place that can be had");
        assert_eq!(memory.taken(), 600);
        memory.free(again);
        memory.free(buffers.pop().unwrap());
        assert_eq!((memory.taken(), memory.kept.load(Relaxed)), (200, 200));
    }

    #[test]
    fn without_a_place_a_buffer_stays_where_it_is() {
        let memory = Memory::new(1000, 100_000);
        let mut buffers: Vec<_> = (0..=PLACES).map(|_| memory.take(9, 9).unwrap()).collect();
        for buffer in &mut buffers {
            memory.leave(buffer);
        }
        let kept: Vec<_> = buffers.iter().map(BytesMut::capacity).collect();
        assert_eq!(kept[..PLACES], [0; PLACES]);
        assert_eq!(kept[PLACES], 9);
    }

    #[test]
    fn what_is_kept_beyond_measure_is_freed() {
        let memory = Memory::new(usize::MAX, usize::MAX);
        for _ in 0..2 {
            let mut buffers: Vec<_> = (0..8).map(|_| memory.take(KEPT / 4, 0).unwrap()).collect();
            buffers.iter_mut().for_each(|buffer| memory.leave(buffer));
        }
        assert_eq!(memory.taken(), 2 * KEPT);
        memory.tidy();
        assert_eq!(memory.taken(), KEPT);
    }

    #[test]
    fn the_sum_holds_whoever_takes_and_leaves() {
        let memory = Memory::new(1 << 20, 1 << 20);
        let until = Instant::now() + Duration::from_millis(100);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    let mut round: usize = thread;
                    while Instant::now() < until {
                        round += 7;
                        let Ok(mut buffer) = memory.take(1 + round % 100_000, 3 * round % 300_000)
                        else {
                            continue;
                        };
                        buffer.extend_from_slice(&[thread as u8]);
                        if round.is_multiple_of(2) {
                            memory.leave(&mut buffer);
                        }
                        memory.free(buffer);
                        memory.tidy();
                        assert!(memory.taken() <= (1 << 20) + 4 * 4096);
                    }
                });
            }
        });
        let left: usize = memory
            .places
            .iter()
            .map(|place| memory.take_from(place).capacity())
            .sum();
        assert_eq!(left, memory.taken());
        assert_eq!(memory.kept.load(Relaxed), 0);
    }
}
