//! The word protocol under a mailbox: one cache line of slots from one producer to one consumer.
//!
//! ```text
//!            put (producer)              take (consumer)
//!   empty ────────────────────▶ full ────────────────────▶ empty
//!     ▲                          │
//!     └──────────────────────────┘
//!            recall (producer, newest first)
//! ```
//!
//! Slots are used in turn. The consumer waits at its turn's slot; the producer puts at its own, and
//! recalls backwards. A full slot is won by one compare-and-swap, the consumer's or the producer's,
//! never by both. The producer must not put more than [`DEPTH`] words that the consumer has not
//! answered: then the slot at its turn is empty, and the consumer has read all of what was there
//! before. The caller keeps that count.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots in a line: four words with a companion each are 64 bytes.
pub(crate) const DEPTH: usize = 4;

/// One line. A word of 0 means empty; the companion travels with the word.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slots {
    words: [AtomicU64; DEPTH],
    companions: [AtomicU64; DEPTH],
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            companions: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// The turn of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn(usize);

impl Turn {
    fn forward(&mut self) {
        self.0 = (self.0 + 1) % DEPTH;
    }

    fn backward(&mut self) {
        self.0 = (self.0 + DEPTH - 1) % DEPTH;
    }
}

impl Slots {
    /// Producer: fills the slot at `turn` and moves on.
    #[inline]
    pub(crate) fn put(&self, turn: &mut Turn, word: u64, companion: u64) {
        debug_assert_ne!(word, 0);
        let slot = turn.0;
        debug_assert_eq!(
            self.words[slot].load(Ordering::Relaxed),
            0,
            "more put than answered"
        );
        self.companions[slot].store(companion, Ordering::Relaxed);
        self.words[slot].store(word, Ordering::Release);
        turn.forward();
    }

    /// Producer: takes the newest word back, unless the consumer has it.
    pub(crate) fn recall(&self, turn: &mut Turn) -> Option<u64> {
        let mut last = *turn;
        last.backward();
        let word = self.words[last.0].load(Ordering::Relaxed);
        self.win(last.0, word).then(|| {
            *turn = last;
            word
        })
    }

    /// Consumer: the word and companion at `turn`, if the slot is full; moves on.
    #[inline]
    pub(crate) fn take(&self, turn: &mut Turn) -> Option<(u64, u64)> {
        let slot = turn.0;
        let word = self.words[slot].load(Ordering::Relaxed);
        self.win(slot, word).then(|| {
            turn.forward();
            (word, self.companions[slot].load(Ordering::Relaxed))
        })
    }

    /// Empties a slot that holds `word`. Only one side can; the other one writes nothing.
    #[inline]
    fn win(&self, slot: usize, word: u64) -> bool {
        word != 0
            && self.words[slot]
                .compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Consumer of a line that is never recalled from: like [`take`](Self::take) without the locked
    /// instruction.
    #[inline]
    pub(crate) fn take_unrecalled(&self, turn: &mut Turn) -> Option<(u64, u64)> {
        let slot = turn.0;
        let word = self.words[slot].load(Ordering::Acquire);
        (word != 0).then(|| {
            let companion = self.companions[slot].load(Ordering::Relaxed);
            // The producer learns of this by what the consumer sends it next, which is ordered
            // after.
            self.words[slot].store(0, Ordering::Relaxed);
            turn.forward();
            (word, companion)
        })
    }

    /// Consumer: brings the line near to be written, which is one way to the producer and back. To
    /// read a word and then take it would be two. A hint, and nothing where the CPU knows none.
    #[inline]
    pub(crate) fn prefetch_to_take(&self) {
        // SAFETY: prefetching reads and writes nothing. CPUs without the instruction take it for
        // none.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) std::ptr::from_ref(self),
                options(nostack, preserves_flags),
            );
        }
    }

    /// Consumer: the word at `turn`, or 0. It may be recalled at any time.
    #[inline]
    pub(crate) fn peek(&self, turn: Turn) -> u64 {
        self.words[turn.0].load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_recall_takes_the_newest() {
        let (slots, mut put, mut take) = (Slots::new(), Turn::default(), Turn::default());
        for word in 1..=4 {
            slots.put(&mut put, word, word * 10);
        }
        assert_eq!(slots.take(&mut take), Some((1, 10)));
        assert_eq!(slots.recall(&mut put), Some(4));
        assert_eq!(slots.recall(&mut put), Some(3));
        slots.put(&mut put, 5, 50);
        assert_eq!(slots.take(&mut take), Some((2, 20)));
        assert_eq!(slots.take(&mut take), Some((5, 50)));
        assert_eq!(slots.take(&mut take), None);
        assert_eq!(slots.recall(&mut put), None);
    }

    #[test]
    fn a_line_each_way_is_one_cache_line() {
        assert!(DEPTH * 2 * size_of::<u64>() <= 64);
        assert_eq!(align_of::<Slots>(), 128);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Every word put is either taken or recalled, never both, never lost; companions belong to
    /// their words.
    #[test]
    fn loom_take_against_recall() {
        loom::model(|| {
            let slots = Arc::new(Slots::new());
            let mut put = Turn::default();
            slots.put(&mut put, 1, 10);
            slots.put(&mut put, 2, 20);
            let consumer = {
                let slots = Arc::clone(&slots);
                thread::spawn(move || {
                    let mut turn = Turn::default();
                    let mut got = Vec::new();
                    for _ in 0..3 {
                        got.extend(slots.take(&mut turn));
                    }
                    (turn, got)
                })
            };
            let recalled = slots.recall(&mut put);
            if recalled.is_some() {
                slots.put(&mut put, 3, 30);
            }
            let (mut turn, mut got) = consumer.join().unwrap();
            while let Some(more) = slots.take(&mut turn) {
                got.push(more);
            }
            let want = if recalled.is_some() {
                vec![(1, 10), (3, 30)]
            } else {
                vec![(1, 10), (2, 20)]
            };
            assert_eq!(got, want, "recalled {recalled:?}");
        });
    }

    /// There and back through two lines, one word more than a line holds: what is answered may be
    /// put again, and what the consumer wrote before its answer is seen.
    #[test]
    fn loom_round_trip_publishes() {
        loom::model(|| {
            let (there, back) = (Arc::new(Slots::new()), Arc::new(Slots::new()));
            let memory = Arc::new(loom::cell::UnsafeCell::new(0u64));
            let worker = {
                let (there, back, memory) =
                    (Arc::clone(&there), Arc::clone(&back), Arc::clone(&memory));
                thread::spawn(move || {
                    let (mut take, mut put) = (Turn::default(), Turn::default());
                    let mut served = 0;
                    while served < 2 {
                        if let Some((word, _)) = there.take(&mut take) {
                            // SAFETY: the word hands the memory over; loom checks it.
                            memory.with_mut(|value| unsafe { *value += 1 });
                            back.put(&mut put, word, 0);
                            served += 1;
                        }
                        thread::yield_now();
                    }
                })
            };
            let (mut put, mut take) = (Turn::default(), Turn::default());
            for word in 1..=2 {
                there.put(&mut put, word, 0);
                loop {
                    if let Some((answer, _)) = back.take_unrecalled(&mut take) {
                        assert_eq!(answer, word);
                        // SAFETY: the answer hands the memory back; loom checks it.
                        memory.with(|value| assert_eq!(unsafe { *value }, word));
                        break;
                    }
                    thread::yield_now();
                }
            }
            worker.join().unwrap();
        });
    }
}
