//! Ethernet II frames, with up to two VLAN tags (802.1Q, 802.1ad).
//!
//! | bytes | content |
//! |---|---|
//! | 0..6 | destination |
//! | 6..12 | source |
//! | 12..14 | EtherType; where it says "tag", four bytes more follow: tag control, and the EtherType again |

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{MacAddr, ParseError};

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherTypes of tags: 802.1Q's, 802.1ad's, and the one that was in use before 802.1ad.
pub const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// The shortest frame in bytes, without the frame check sequence; shorter ones are padded.
pub const SHORTEST_FRAME: usize = 60;

/// A frame's first 14 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// The station that the frame is for.
    pub destination: MacAddr,
    /// The station that sent it.
    pub source: MacAddr,
    /// What follows.
    pub ethertype: U16,
}

impl Header {
    /// Its length in bytes.
    pub const LENGTH: usize = size_of::<Self>();
}

/// A tag, without the EtherType that announces it.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Tag {
    /// Priority (3 bits), drop eligible (1 bit), VLAN identifier (12 bits).
    control: U16,
    ethertype: U16,
}

/// The identifiers of the VLANs that a frame is tagged with, the outer one first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Vlans(pub [Option<u16>; 2]);

impl Vlans {
    /// Whether there is a VLAN among them. Identifier 0 is none: such a tag tells a priority
    /// (802.1Q).
    #[must_use]
    pub fn any(self) -> bool {
        self.0.into_iter().flatten().any(|vlan| vlan != 0)
    }
}

/// A frame.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a> {
    /// Its addresses.
    pub header: &'a Header,
    /// Its tags.
    pub vlans: Vlans,
    /// What the payload is: the EtherType behind the tags.
    pub ethertype: u16,
    /// How many bytes lie before the payload: 14, and 4 a tag.
    pub header_length: usize,
    /// What it carries, and padding.
    pub payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Looks at a frame without its check sequence.
    ///
    /// # Errors
    /// If it ends within its header or tags, or has more than two tags.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        let (header, mut payload) =
            Header::ref_from_prefix(frame).map_err(|_| ParseError::Truncated)?;
        let mut ethertype = header.ethertype.get();
        let mut vlans = Vlans::default();
        for vlan in &mut vlans.0 {
            if !TAGS.contains(&ethertype) {
                break;
            }
            let (tag, rest) = Tag::ref_from_prefix(payload).map_err(|_| ParseError::Truncated)?;
            *vlan = Some(tag.control.get() & 0x0fff);
            (ethertype, payload) = (tag.ethertype.get(), rest);
        }
        if TAGS.contains(&ethertype) {
            return Err(ParseError::VlanTags);
        }
        Ok(Self {
            header,
            vlans,
            ethertype,
            header_length: frame.len() - payload.len(),
            payload,
        })
    }
}

/// Takes a frame whose header and tags are `header_length` bytes long apart. `None`: it is too
/// short.
#[inline]
pub fn split_mut(frame: &mut [u8], header_length: usize) -> Option<(&mut Header, &mut [u8])> {
    let tags = header_length.checked_sub(Header::LENGTH)?;
    let (header, rest) = Header::mut_from_prefix(frame).ok()?;
    Some((header, rest.get_mut(tags..)?))
}
