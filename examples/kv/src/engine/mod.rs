//! Where keys and values are stored: in memory, or in files.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

pub mod memory;
#[cfg(feature = "rocksdb")]
pub mod rocks;

pub use memory::MemoryEngine;
#[cfg(feature = "rocksdb")]
pub use rocks::{RocksEngine, Tables};

/// An ordered map from keys to entries.
///
/// Reading ([`get`](Self::get), [`walk`](Self::walk)) must not wait for a lock that a preempted
/// writer can hold. The [`Store`](crate::store::Store) lets writers of a key come one at a time,
/// with preemption held off.
pub trait Engine: Send + Sync + 'static {
    /// Shows `read` the entry of `key`, if there is one.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be read.
    fn get(&self, key: &[u8], read: &mut dyn FnMut(Entry<'_>)) -> Result<(), EngineError>;

    /// Makes `value` and `expiry` the entry of `key`. A concurrent reader sees the old entry or
    /// this one.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be written.
    fn put(&self, key: &[u8], value: Cow<'_, [u8]>, expiry: Expiry) -> Result<(), EngineError>;

    /// Removes the entry of `key`.
    ///
    /// # Errors
    /// [`EngineError`] if that cannot be written.
    fn remove(&self, key: &[u8]) -> Result<(), EngineError>;

    /// Shows `visit` the keys from `from` on in the order of their bytes, until `visit` breaks off.
    /// Values are empty unless `values` are wanted. Keys that come or go during the walk may appear
    /// or not; all others appear once.
    ///
    /// # Errors
    /// [`EngineError`] if they cannot be read.
    fn walk(&self, from: &[u8], values: bool, visit: &mut Visit<'_>) -> Result<(), EngineError>;

    /// Puts what is not there yet to where it stays, so that it is read from there.
    ///
    /// # Errors
    /// [`EngineError`] if it cannot be written.
    fn settle(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The engine's name, for `INFO` and messages.
    fn name(&self) -> &'static str;
}

/// Gets a key and its entry; may break off.
pub type Visit<'a> = dyn FnMut(&[u8], Entry<'_>) -> ControlFlow<()> + 'a;

/// The value of a key, and its expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The value.
    pub value: &'a [u8],
    /// When the entry expires.
    pub expiry: Expiry,
}

/// The last millisecond (since 1970) in which an entry exists, or never.
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

    /// A number from which [`from_bits`](Self::from_bits) makes the same expiry.
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

/// An operation of an engine failed.
#[derive(Debug, thiserror::Error)]
#[error("{engine}: cannot {action}: {cause}")]
pub struct EngineError {
    /// The engine.
    pub engine: &'static str,
    /// What was attempted.
    pub action: &'static str,
    /// The cause of the failure.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Debug for dyn Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
