//! Why frames come to nothing.

use crate::packet::ParseError;

/// Why a frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DropReason {
    /// Something is wrong with its bytes.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// It is neither IPv4 nor ARP.
    #[error("it is neither IPv4 nor ARP")]
    EtherType,
    /// It is for another station or address, or for many.
    #[error("it is for somebody else")]
    NotForUs,
    /// It claims to come from where nothing can: many, nobody, this very interface, port 0.
    #[error("it claims to come from where nothing can")]
    Source,
    /// It is a part of a larger packet.
    #[error("it is a fragment")]
    Fragment,
    /// It is IPv4, but neither UDP nor ICMP.
    #[error("it is neither UDP nor ICMP")]
    Protocol,
    /// It is ICMP, but not an echo request.
    #[error("it is ICMP, but not an echo request")]
    IcmpKind,
    /// Nobody listens on its port.
    #[error("nobody listens on its port")]
    ClosedPort,
    /// It is an ARP answer to a question that was not asked.
    #[error("it is an ARP answer that nobody asked for")]
    Unasked,
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = ParseError::ALL.len() + 8;

    /// Its place among all, for counters by cause: below [`COUNT`](Self::COUNT).
    #[must_use]
    pub const fn index(self) -> usize {
        const FLAWS: usize = ParseError::ALL.len();
        match self {
            Self::Malformed(flaw) => flaw as usize,
            Self::EtherType => FLAWS,
            Self::NotForUs => FLAWS + 1,
            Self::Source => FLAWS + 2,
            Self::Fragment => FLAWS + 3,
            Self::Protocol => FLAWS + 4,
            Self::IcmpKind => FLAWS + 5,
            Self::ClosedPort => FLAWS + 6,
            Self::Unasked => FLAWS + 7,
        }
    }

    /// All of them, in the order of [`index`](Self::index).
    pub fn all() -> impl Iterator<Item = Self> {
        ParseError::ALL.into_iter().map(Self::Malformed).chain([
            Self::EtherType,
            Self::NotForUs,
            Self::Source,
            Self::Fragment,
            Self::Protocol,
            Self::IcmpKind,
            Self::ClosedPort,
            Self::Unasked,
        ])
    }
}
