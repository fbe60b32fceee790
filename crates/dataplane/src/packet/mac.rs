//! Addresses of Ethernet.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A hardware address of Ethernet; written and parsed as `02:00:5e:10:00:01`.
#[derive(
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// To all stations on the wire.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// No station: what an ARP request has in place of the address that it asks for.
    pub const ZERO: Self = Self([0; 6]);

    /// Whether it can be a single station's: neither multicast (broadcast among them) nor zero.
    #[must_use]
    pub fn is_station(self) -> bool {
        self.0[0] & 1 == 0 && self != Self::ZERO
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(MacAddrError)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(MacAddrError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacAddrError)?;
        }
        match parts.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(MacAddrError),
        }
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// A text is not an Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an Ethernet address is six pairs of hexadecimal digits with colons between, as in 02:00:5e:10:00:01"
)]
pub struct MacAddrError;
