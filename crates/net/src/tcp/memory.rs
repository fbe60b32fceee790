//! The memory of replies that are longer than the standard buffers.
//!
//! Handlers take it, in their contexts, where one may allocate; the networker is the first to know that it is no longer
//! needed, and must not free it. So it leaves it in one of some places, and the next handler takes it from there, to use
//! it or to free it. A place is a lock that nobody waits for: a context that is suspended while it holds one costs the
//! others that place, for so long, and no time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::output::ReplyTooLong;

const PLACES: usize = 64;
/// As much may lie in the places, in bytes; what is over, handlers free.
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
    places: [Mutex<Vec<u8>>; PLACES],
}

impl Memory {
    pub(super) fn new(max_reply: usize, reply_memory: usize) -> Self {
        Self {
            max_reply,
            reply_memory,
            taken: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            places: [const { Mutex::new(Vec::new()) }; PLACES],
        }
    }

    /// In use for long replies, or kept for them, in bytes.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Whether a reply may have `length` bytes.
    pub(super) fn check(&self, length: usize) -> Result<(), ReplyTooLong> {
        if length <= self.max_reply {
            return Ok(());
        }
        Err(ReplyTooLong::Reply {
            length,
            max_reply: self.max_reply,
        })
    }

    /// An empty buffer for `least` bytes, of `wanted` if they can be had. In a context.
    pub(super) fn take(&self, least: usize, wanted: usize) -> Result<Vec<u8>, ReplyTooLong> {
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
            let mut buffer = Vec::new();
            if buffer.try_reserve_exact(size).is_ok() {
                // The allocator may have been generous.
                let extra = buffer.capacity() - size;
                self.taken.fetch_add(extra, Relaxed);
                return Ok(buffer);
            }
            self.taken.fetch_sub(size, Relaxed);
        }
        Err(ReplyTooLong::Together {
            length: least,
            reply_memory: self.reply_memory,
        })
    }

    /// Frees a buffer that [`take`](Self::take) gave. In a context.
    pub(super) fn free(&self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 {
            self.taken.fetch_sub(buffer.capacity(), Relaxed);
        }
    }

    /// The networker's way to part with a buffer. If no place is free it keeps it.
    pub(super) fn leave(&self, buffer: &mut Vec<u8>) {
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

    fn take_from(&self, place: &Mutex<Vec<u8>>) -> Vec<u8> {
        let found = match place.try_lock() {
            Ok(mut place) => std::mem::take(&mut *place),
            Err(_) => Vec::new(),
        };
        if found.capacity() > 0 {
            self.kept.fetch_sub(found.capacity(), Relaxed);
        }
        found
    }
}
