//! Shinjuku's: 16 bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | how long the server shall work on it, in nanoseconds |
//! | 8..16 | when the client made it, in nanoseconds of the client's clock |
//!
//! Both are unsigned and little endian. The server sends the same bytes back, and the client takes
//! its latency from the second field. Source: the client in Shinjuku's repository
//! (stanford-mast/shinjuku, NSDI'19).

use std::ops::Range;

const RUN: Range<usize> = 0..8;
const GENERATED: Range<usize> = 8..16;

/// A request, or the reply to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShinjukuRequest {
    /// How long the server shall work on it, in nanoseconds. The original's RocksDB server takes 0
    /// as a scan, all else as a get.
    pub run_nanos: u64,
    /// When the client made it, in nanoseconds of the client's clock; for the client alone.
    pub generated_nanos: u64,
}

impl ShinjukuRequest {
    /// Its length on the wire, in bytes.
    pub const LENGTH: usize = 16;

    /// Reads a request that is all of `bytes`.
    ///
    /// # Errors
    /// If `bytes` are not [`LENGTH`](Self::LENGTH) long. Of that length, every content is a
    /// request.
    pub fn parse(bytes: &[u8]) -> Result<Self, WrongLength> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().map_err(|_| WrongLength {
            length: bytes.len(),
        })?;
        let field =
            |range: Range<usize>| u64::from_le_bytes(bytes[range].try_into().expect("eight bytes"));
        Ok(Self {
            run_nanos: field(RUN),
            generated_nanos: field(GENERATED),
        })
    }

    /// The request as it goes over the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[RUN].copy_from_slice(&self.run_nanos.to_le_bytes());
        bytes[GENERATED].copy_from_slice(&self.generated_nanos.to_le_bytes());
        bytes
    }
}

/// What came is not a request in Shinjuku's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a request in Shinjuku's format has {} bytes, not {length}",
    ShinjukuRequest::LENGTH
)]
pub struct WrongLength {
    /// How many bytes came.
    pub length: usize,
}
