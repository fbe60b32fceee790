//! The kernel's information on an interface.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::XdpError;

/// The Ethernet address of the interface.
///
/// # Errors
/// No such interface in this network namespace, or one without an address (a loopback, a tunnel).
pub fn ethernet_address(interface: &str) -> Result<[u8; 6], XdpError> {
    let request = ask(interface, libc::SIOCGIFHWADDR)?;
    // SAFETY: the call fills in this member, which is plain bytes whatever their values.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err(XdpError::NotEthernet {
            interface: interface.to_owned(),
        });
    }
    Ok(std::array::from_fn(|at| address.sa_data[at] as u8))
}

/// Whether the interface is up and has a link.
///
/// # Errors
/// No such interface in this network namespace.
pub fn link_is_up(interface: &str) -> Result<bool, XdpError> {
    let request = ask(interface, libc::SIOCGIFFLAGS)?;
    // SAFETY: the call fills in this member, which is a number whatever its value.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(i32::from(flags) & libc::IFF_RUNNING != 0)
}

/// The answer to a request of netdevice(7) that takes a name.
fn ask(interface: &str, question: libc::Ioctl) -> Result<libc::ifreq, XdpError> {
    let no_interface = |cause| XdpError::NoInterface {
        interface: interface.to_owned(),
        cause,
    };
    // SAFETY: the structure is plain bytes, a name and a union of plain values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    if interface.is_empty() || interface.len() > room {
        return Err(no_interface(io::ErrorKind::InvalidInput.into()));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
        .map_err(XdpError::system("open a socket"))?;
    // SAFETY: the request has the length that the kernel expects, its name ends with zero, and it
    // outlives the call.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), question, &mut request) };
    if status < 0 {
        return Err(no_interface(io::Error::last_os_error()));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_none_says_so() {
        let loopback = ethernet_address("lo").unwrap_err();
        assert!(
            matches!(loopback, XdpError::NotEthernet { .. }),
            "{loopback}"
        );
        for name in ["", "shinjuku-none", "a-name-longer-than-interfaces-have"] {
            let error = ethernet_address(name).unwrap_err();
            assert!(matches!(error, XdpError::NoInterface { .. }), "{error}");
            assert!(link_is_up(name).is_err());
        }
    }
}
