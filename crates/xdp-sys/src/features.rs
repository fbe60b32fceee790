//! What an interface's driver can do with XDP programs, as the kernel tells it (Linux 6.3 and
//! later), without loading one: two questions over generic netlink. Takes no privileges.
//!
//! Source: the kernel's `Documentation/netlink/specs/netdev.yaml`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::XdpError;

/// What the driver of an interface can do. Without [`runs_programs`](Self::runs_programs) the
/// kernel runs programs in the generic mode, after it has made a packet of its own of each frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpFeatures(u64);

impl XdpFeatures {
    /// It runs programs itself: the driver's mode.
    #[must_use]
    pub const fn runs_programs(self) -> bool {
        self.0 & 1 != 0
    }

    /// A program can redirect its frames.
    #[must_use]
    pub const fn redirects(self) -> bool {
        self.0 & 2 != 0
    }

    /// It sends frames that programs elsewhere redirect to it.
    #[must_use]
    pub const fn takes_redirected(self) -> bool {
        self.0 & 4 != 0
    }

    /// AF_XDP sockets need no copy.
    #[must_use]
    pub const fn zero_copy(self) -> bool {
        self.0 & 8 != 0
    }
}

/// As in `driver mode, redirects, takes redirected frames`.
impl fmt::Display for XdpFeatures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.runs_programs() {
            return formatter.write_str("generic mode only");
        }
        formatter.write_str("driver mode")?;
        for (can, word) in [
            (self.redirects(), "redirects"),
            (self.takes_redirected(), "takes redirected frames"),
            (self.zero_copy(), "AF_XDP without a copy"),
        ] {
            if can {
                write!(formatter, ", {word}")?;
            }
        }
        Ok(())
    }
}

/// What the driver of `interface` can do.
///
/// # Errors
/// No such interface in this network namespace, or a kernel that does not tell.
pub fn xdp_features(interface: &str) -> Result<XdpFeatures, XdpError> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::GENERIC),
    )
    .map_err(XdpError::system("open a netlink socket"))?;
    let index = rustix::net::netdevice::name_to_index(&socket, interface).map_err(|cause| {
        XdpError::NoInterface {
            interface: interface.to_owned(),
            cause: cause.into(),
        }
    })?;
    features(&socket, index).map_err(XdpError::system("ask for the interface's XDP features"))
}

/// The family that resolves families' names: its number, command and attributes.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The family `netdev`.
const GET_DEVICE: u8 = 1;
const INTERFACE: u16 = 1;
const XDP_FEATURES: u16 = 3;

fn features(socket: &OwnedFd, index: u32) -> io::Result<XdpFeatures> {
    // The kernel answers at once; a test shall not hang where it does not.
    set_socket_timeout(socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
    let nothing = || io::Error::new(io::ErrorKind::Unsupported, "the kernel does not tell");
    let family = ask(
        socket,
        CONTROL,
        GET_FAMILY,
        FAMILY_NAME,
        b"netdev\0",
        FAMILY_ID,
    )?;
    let family = family.first_chunk().ok_or_else(nothing)?;
    let family = u16::from_ne_bytes(*family);
    let index = index.to_ne_bytes();
    let features = ask(socket, family, GET_DEVICE, INTERFACE, &index, XDP_FEATURES)?;
    let features = features.first_chunk().ok_or_else(nothing)?;
    Ok(XdpFeatures(u64::from_ne_bytes(*features)))
}

/// The content of the attribute `wanted` in the answer to a command with one attribute; empty if it
/// is not there.
fn ask(
    socket: impl AsFd,
    family: u16,
    command: u8,
    attribute: u16,
    content: &[u8],
    wanted: u16,
) -> io::Result<Vec<u8>> {
    const REQUEST: u16 = 1;
    let attribute_length = 4 + content.len();
    let length = 20 + attribute_length.next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend([family, REQUEST].into_iter().flat_map(u16::to_ne_bytes));
    // Sequence and port: there is one question at a time.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(
        [attribute_length as u16, attribute]
            .into_iter()
            .flat_map(u16::to_ne_bytes),
    );
    message.extend(content);
    message.resize(length, 0);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &message, SendFlags::empty(), &kernel)?;
    let mut answer = [0; 8192];
    let (_, received) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    found(&answer[..received.min(8192)], wanted)
}

/// The content of an attribute in an answer.
fn found(answer: &[u8], wanted: u16) -> io::Result<Vec<u8>> {
    const ERROR: u16 = 2;
    let cut = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut");
    let word = |at: usize| -> io::Result<u16> {
        let bytes = answer.get(at..at + 2).and_then(|bytes| bytes.first_chunk());
        bytes
            .map(|bytes| u16::from_ne_bytes(*bytes))
            .ok_or_else(cut)
    };
    if word(4)? == ERROR {
        let code = answer.get(16..20).and_then(|bytes| bytes.first_chunk());
        let code = i32::from_ne_bytes(*code.ok_or_else(cut)?);
        return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
    }
    let mut at = 20;
    while at + 4 <= answer.len() {
        let (length, kind) = (usize::from(word(at)?), word(at + 2)?);
        if length < 4 {
            return Err(cut());
        }
        if kind == wanted {
            let content = answer.get(at + 4..at + length).ok_or_else(cut)?;
            return Ok(content.to_vec());
        }
        at += length.next_multiple_of(4);
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_no_driver_that_runs_programs() {
        match xdp_features("lo") {
            Ok(features) => assert_eq!(features.to_string(), "generic mode only"),
            Err(error @ XdpError::NoInterface { .. }) => panic!("{error}"),
            Err(error) => {
                println!("SKIPPED the_loopback_has_no_driver_that_runs_programs: {error}")
            }
        }
        let error = xdp_features("shinjuku-none").unwrap_err();
        assert!(matches!(error, XdpError::NoInterface { .. }), "{error}");
    }

    #[test]
    fn answers_are_read_as_far_as_they_go() {
        let mut answer = vec![0; 20];
        // An attribute of five bytes with its padding, then one of eight.
        answer.extend([9, 0, 7, 0, 1, 2, 3, 4, 5, 0, 0, 0]);
        answer.extend([12, 0, 3, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        let eight = 7_u64.to_le_bytes();
        if cfg!(target_endian = "little") {
            assert_eq!(found(&answer, 3).unwrap(), eight);
            assert_eq!(found(&answer, 7).unwrap(), [1, 2, 3, 4, 5]);
            assert_eq!(found(&answer, 9).unwrap(), []);
            for length in 0..6 {
                assert!(found(&answer[..length], 3).is_err());
            }
            assert!(found(&answer[..40], 3).is_err());
            answer[4] = 2;
            answer[16..20].copy_from_slice(&(-2_i32).to_le_bytes());
            assert_eq!(found(&answer, 3).unwrap_err().raw_os_error(), Some(2));
        }
        let all = XdpFeatures(15).to_string();
        assert_eq!(
            all,
            "driver mode, redirects, takes redirected frames, AF_XDP without a copy"
        );
    }
}
