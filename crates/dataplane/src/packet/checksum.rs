//! The Internet checksum: the ones' complement of the ones' complement sum of 16-bit words (RFC
//! 1071, RFC 1624).
//!
//! The sum comes out the same in either byte order, only swapped. So it is taken in the machine's
//! own, and swapped at the end.

/// A sum under way.
#[derive(Clone, Copy, Default, Debug)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// Nothing summed so far.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds `bytes`, padded with a zero byte to whole words; so only what is added last may be of
    /// odd length. Exact up to 2^32 bytes and more, far beyond any packet.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (eights, rest) = bytes.as_chunks::<8>();
        // Halves apart do not overflow, and the compiler makes vectors of them.
        let [mut low, mut high] = [self.0, 0];
        for eight in eights {
            let word = u64::from_ne_bytes(*eight);
            low += word & 0xffff_ffff;
            high += word >> 32;
        }
        let mut sum = low + high;
        let (fours, rest) = rest.as_chunks::<4>();
        for four in fours {
            sum += u64::from(u32::from_ne_bytes(*four));
        }
        let (twos, odd) = rest.as_chunks::<2>();
        for two in twos {
            sum += u64::from(u16::from_ne_bytes(*two));
        }
        if let Some(&last) = odd.first() {
            sum += u64::from(u16::from_ne_bytes([last, 0]));
        }
        Self(sum)
    }

    /// Adds one word.
    #[inline]
    pub fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// The sum itself, not complemented: all ones over bytes that hold their own correct checksum.
    #[must_use]
    #[inline]
    pub fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        u16::from_be(sum as u16)
    }

    /// The checksum.
    #[must_use]
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// Whether what was summed, its checksum included, is as it was sent.
    #[must_use]
    #[inline]
    pub fn is_right(self) -> bool {
        self.folded() == 0xffff
    }
}

/// What becomes of `checksum` when one of the words under it changes from `old` to `new` (RFC 1624,
/// equation 3).
#[must_use]
pub fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::new().word(!checksum).word(!old).word(new).checksum()
}
