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
    #[error("it is for another host")]
    NotForUs,
    /// It claims a source that no packet can have: a multicast or zero address, this very
    /// interface, port 0.
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
    /// The interface does not listen on its port.
    #[error("the interface does not listen on its port")]
    ClosedPort,
    /// It is an ARP answer to a question that was not asked.
    #[error("it is an ARP answer that was not asked for")]
    Unasked,
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = ParseError::ALL.len() + 8;

    /// Its place among all, for counters by cause: below [`COUNT`](Self::COUNT).
    #[must_use]
    pub const fn index(self) -> usize {
        const PARSE_ERRORS: usize = ParseError::ALL.len();
        match self {
            Self::Malformed(error) => error as usize,
            Self::EtherType => PARSE_ERRORS,
            Self::NotForUs => PARSE_ERRORS + 1,
            Self::Source => PARSE_ERRORS + 2,
            Self::Fragment => PARSE_ERRORS + 3,
            Self::Protocol => PARSE_ERRORS + 4,
            Self::IcmpKind => PARSE_ERRORS + 5,
            Self::ClosedPort => PARSE_ERRORS + 6,
            Self::Unasked => PARSE_ERRORS + 7,
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
