//! The word protocols under a mailbox: a cache line of slots from one producer to one consumer. In
//! [`Slots`] the producer can recall what the consumer has not taken; in [`Answers`] it cannot.
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
//!
//! No other thread competes for an answer, so its consumer only reads: a word carries a bit that
//! tells even laps around the line from odd ones. To empty the slot would take the line from the
//! producer once more, and delay the consumer's next store.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots in a line: four words with a companion each are 64 bytes.
pub(crate) const DEPTH: usize = if cfg!(loom) { 2 } else { 4 };

/// The bit of an answer's word that tells its lap; the caller's words have it clear.
pub(crate) const LAP: u64 = 0x40;

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

/// The turn of one side, of two laps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn(usize);

impl Turn {
    fn forward(&mut self) {
        self.0 = (self.0 + 1) % (2 * DEPTH);
    }

    fn backward(&mut self) {
        self.0 = (self.0 + 2 * DEPTH - 1) % (2 * DEPTH);
    }

    /// The turn so many further on.
    pub(crate) fn ahead(self, by: usize) -> Self {
        Self((self.0 + by) % (2 * DEPTH))
    }

    fn slot(self) -> usize {
        self.0 % DEPTH
    }

    /// The lap's bit. Set in the first lap, since the slots are 0 before it.
    fn lap(self) -> u64 {
        if self.0 < DEPTH { LAP } else { 0 }
    }
}

/// A line of answers, which are not recalled.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Answers([AtomicU64; DEPTH]);

impl Answers {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Producer: fills the slot at `turn` and moves on.
    #[inline]
    pub(crate) fn put(&self, turn: &mut Turn, word: u64) {
        debug_assert!(word != 0 && word & LAP == 0);
        self.0[turn.slot()].store(word | turn.lap(), Ordering::Release);
        turn.forward();
    }

    /// Consumer: the word at `turn`, if this lap has filled the slot; moves on. The producer learns
    /// of this by what the consumer sends it next, which is ordered after.
    #[inline]
    pub(crate) fn take(&self, turn: &mut Turn) -> Option<u64> {
        let word = self.0[turn.slot()].load(Ordering::Acquire);
        is_of_lap(word, *turn).then(|| {
            turn.forward();
            word & !LAP
        })
    }

    /// Whether the word at `turn` is there. It says nothing of what was written before the word.
    #[inline]
    pub(crate) fn is_there(&self, turn: Turn) -> bool {
        is_of_lap(self.0[turn.slot()].load(Ordering::Relaxed), turn)
    }
}

/// Whether this lap has filled the slot with `word`.
#[inline]
fn is_of_lap(word: u64, turn: Turn) -> bool {
    word & LAP == turn.lap() && word != 0
}

impl Slots {
    /// Producer: fills the slot at `turn` and moves on.
    #[inline]
    pub(crate) fn put(&self, turn: &mut Turn, word: u64, companion: u64) {
        debug_assert_ne!(word, 0);
        let slot = turn.slot();
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
        let word = self.words[last.slot()].load(Ordering::Relaxed);
        self.win(last.slot(), word).then(|| {
            *turn = last;
            word
        })
    }

    /// Consumer: the word and companion at `turn`, if the slot is full; moves on.
    #[inline]
    pub(crate) fn take(&self, turn: &mut Turn) -> Option<(u64, u64)> {
        let slot = turn.slot();
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
        self.words[turn.slot()].load(Ordering::Relaxed)
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

    #[test]
    fn answers_come_once_in_every_lap() {
        let (answers, mut put, mut take) = (Answers::new(), Turn::default(), Turn::default());
        for round in 1..=5 * DEPTH as u64 {
            assert_eq!(answers.take(&mut take), None);
            answers.put(&mut put, round << 7);
            if round % 3 == 0 {
                answers.put(&mut put, 1);
                assert_eq!(answers.take(&mut take), Some(round << 7));
                assert_eq!(answers.take(&mut take), Some(1));
            } else {
                assert_eq!(answers.take(&mut take), Some(round << 7));
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// More than a line holds.
    const WORDS: u64 = DEPTH as u64 + 1;

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
    /// put again, an answer of the lap before is not taken twice, and what the consumer wrote
    /// before its answer is seen.
    #[test]
    fn loom_round_trip_publishes() {
        loom::model(|| {
            let (there, back) = (Arc::new(Slots::new()), Arc::new(Answers::new()));
            let memory = Arc::new(loom::cell::UnsafeCell::new(0u64));
            let worker = {
                let (there, back, memory) =
                    (Arc::clone(&there), Arc::clone(&back), Arc::clone(&memory));
                thread::spawn(move || {
                    let (mut take, mut put) = (Turn::default(), Turn::default());
                    let mut served = 0;
                    while served < WORDS {
                        if let Some((word, _)) = there.take(&mut take) {
                            // SAFETY: the word hands the memory over; loom checks it.
                            memory.with_mut(|value| unsafe { *value += 1 });
                            back.put(&mut put, word);
                            served += 1;
                        }
                        thread::yield_now();
                    }
                })
            };
            let (mut put, mut take) = (Turn::default(), Turn::default());
            for word in 1..=WORDS {
                there.put(&mut put, word, 0);
                loop {
                    if let Some(answer) = back.take(&mut take) {
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
