//! The keys that requests ask for.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Zipf};

/// How many digits a key's number has in a command, with leading zeros: as in redis-benchmark.
pub(crate) const DIGITS: usize = 12;

/// The most keys that so many digits can number, and that [`Keys`] can scatter.
pub(crate) const MOST_KEYS: u64 = 1_000_000_000;

/// How a command chooses its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Each key equally likely.
    Uniform,
    /// By Zipf's law: the i-th most popular with a weight of `i` to the power of `-exponent`.
    Zipf,
    /// One after the other; the first follows the last.
    Sequential,
}

/// The keys that there are, numbered from 0.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    count: u64,
    zipf: Zipf<f64>,
    /// The next of the sequential ones.
    next: u64,
}

impl Keys {
    /// A prime above [`MOST_KEYS`]: multiplying by it, modulo the number of keys, sends no two
    /// numbers to the same one.
    const SCATTER: u64 = 2_654_435_761;

    /// `count` keys; `exponent` is Zipf's. `None` unless `count` is 1 to [`MOST_KEYS`] and
    /// `exponent` finite and not negative.
    #[must_use]
    pub(crate) fn new(count: u64, exponent: f64) -> Option<Self> {
        let zipf = Zipf::new(count as f64, exponent).ok()?;
        (1..=MOST_KEYS).contains(&count).then_some(Self {
            count,
            zipf,
            next: 0,
        })
    }

    /// The same keys, with the sequential ones starting at the share `part` of `parts`: threads
    /// divide them.
    #[must_use]
    pub(crate) fn starting_at(&self, part: usize, parts: usize) -> Self {
        let next = self.count * part as u64 / parts as u64;
        Self {
            next,
            ..self.clone()
        }
    }

    /// The number of a key.
    pub(crate) fn choose<R: Rng + ?Sized>(&mut self, choice: Choice, rng: &mut R) -> u64 {
        match choice {
            Choice::Uniform => rng.random_range(0..self.count),
            // Scattered, so that popular keys are not neighbours in an ordered store.
            Choice::Zipf => (self.zipf.sample(rng) as u64 - 1) * Self::SCATTER % self.count,
            Choice::Sequential => {
                let key = self.next;
                self.next = (key + 1) % self.count;
                key
            }
        }
    }
}
