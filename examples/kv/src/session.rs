//! The state of a connection.

use shinjuku::net::resp::Protocol;

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Session {
    /// The version of the protocol that the client has asked for.
    pub protocol: Protocol,
    /// The client's name.
    pub name: Name,
}

/// A client's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    length: u8,
    bytes: [u8; Name::LONGEST],
}

impl Name {
    /// The longest name, in bytes: a session is copied with each request.
    pub const LONGEST: usize = 63;

    /// `None` if the name is longer than [`LONGEST`](Self::LONGEST).
    #[must_use]
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::LONGEST];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self {
            length: name.len() as u8,
            bytes,
        })
    }

    /// The name as the client gave it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Default for Name {
    fn default() -> Self {
        Self {
            length: 0,
            bytes: [0; Self::LONGEST],
        }
    }
}
