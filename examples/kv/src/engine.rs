//! Where keys and values are kept: in memory, or in files.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

pub mod memory;
#[cfg(feature = "rocksdb")]
pub mod rocks;

pub use memory::MemoryEngine;
#[cfg(feature = "rocksdb")]
pub use rocks::RocksEngine;

/// An ordered map from keys to entries.
///
/// Reading ([`get`](Self::get), [`walk`](Self::walk)) must not wait for a lock that a preempted
/// writer can hold. Writers of one key come one at a time, with preemption held off: the
/// [`Store`](crate::store::Store) sees to that.
pub trait Engine: Send + Sync + 'static {
    /// Shows `read` the entry of `key`, if there is one.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be read.
    fn get(&self, key: &[u8], read: &mut dyn FnMut(Entry<'_>)) -> Result<(), EngineError>;

    /// Makes `value` and `expiry` the entry of `key`. Whoever reads meanwhile sees the one before
    /// or this one.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be written.
    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, expiry: Expiry) -> Result<(), EngineError>;

    /// Makes `key` have no entry.
    ///
    /// # Errors
    /// [`EngineError`] if that cannot be written.
    fn remove(&self, key: &[u8]) -> Result<(), EngineError>;

    /// Shows `visit` the keys from `from` on in the order of their bytes, until it breaks off.
    /// Values are empty unless `values` are wanted. Keys that come or go meanwhile may be among
    /// them or not; all others are, once.
    ///
    /// # Errors
    /// [`EngineError`] if they cannot be read.
    fn walk(&self, from: &[u8], values: bool, visit: &mut Visit<'_>) -> Result<(), EngineError>;

    /// Its name, for `INFO` and people.
    fn name(&self) -> &'static str;
}

/// Is shown a key and its entry; may break off.
pub type Visit<'a> = dyn FnMut(&[u8], Entry<'_>) -> ControlFlow<()> + 'a;

/// What a key stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The value.
    pub value: &'a [u8],
    /// Until when it is there.
    pub expiry: Expiry,
}

/// The last millisecond (since 1970) in which an entry is there, or never ending.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Expiry(u64);

impl Expiry {
    /// The entry stays.
    pub const NEVER: Self = Self(0);

    /// At `millis` after the beginning of 1970; moments before that count as the first millisecond.
    #[must_use]
    pub fn at(millis: i64) -> Self {
        Self(u64::try_from(millis).unwrap_or(0).max(1))
    }

    /// As a number that [`from_bits`](Self::from_bits) makes the same again.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// See [`to_bits`](Self::to_bits).
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// In milliseconds since 1970; `None`: never.
    #[must_use]
    pub fn millis(self) -> Option<i64> {
        (self != Self::NEVER).then_some(self.0 as i64)
    }

    /// Whether it is over at `now`, in milliseconds since 1970.
    #[must_use]
    pub fn is_over(self, now: i64) -> bool {
        self.millis().is_some_and(|millis| now > millis)
    }
}

/// An engine could not do what it should.
#[derive(Debug, thiserror::Error)]
#[error("{engine}: cannot {action}: {cause}")]
pub struct EngineError {
    /// Which engine.
    pub engine: &'static str,
    /// What was attempted.
    pub action: &'static str,
    /// What is in the way.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Debug for dyn Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
