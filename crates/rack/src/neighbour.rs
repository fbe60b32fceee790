//! The way to a server, as the kernel knows it: what it answers ARP with, and behind which
//! interface.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use shinjuku_xdp_sys::ethernet_address;

use crate::config::parse_mac;
use crate::datapath::interface_index;
use crate::tables::Station;
use crate::{RackError, ServerConfig};

/// How long ARP may take: the kernel asks three times, a second apart.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// The port for what is to be thrown away, RFC 863: a datagram there has the kernel ask.
const DISCARD: u16 = 9;

/// The way to `server`; waits for ARP no longer than `patience`.
///
/// # Errors
/// If it does not answer ARP, or its interface is unknown.
pub(crate) fn station(server: &ServerConfig, patience: Duration) -> Result<Station, RackError> {
    if let (Some(mac), Some(interface)) = (server.mac, &server.interface) {
        return through(interface, mac.0);
    }
    let start = Instant::now();
    // Where there is no route, nothing is sent, and nothing will be known.
    if let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) {
        let _ = socket.send_to(&[], (server.address, DISCARD));
    }
    loop {
        // The table of this thread's network namespace.
        let table = fs::read_to_string("/proc/thread-self/net/arp").unwrap_or_default();
        if let Some((mac, interface)) = find(&table, server.address) {
            return through(interface, mac);
        }
        if start.elapsed() >= patience {
            let name = format!("{} ({})", server.name, server.address);
            return Err(RackError::NoNeighbour(name));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn through(interface: &str, to: [u8; 6]) -> Result<Station, RackError> {
    let number = interface_index(interface)?;
    Ok(Station {
        to,
        from: ethernet_address(interface)?,
        interface: number,
    })
}

/// Address and interface in a table as `/proc/net/arp` is: IP address, type, flags, Ethernet
/// address, mask, device. Flag 2: it is known.
fn find(table: &str, address: Ipv4Addr) -> Option<([u8; 6], &str)> {
    let mut lines = table.lines().skip(1).map(str::split_whitespace);
    lines.find_map(|mut words| {
        let is_it = words.next()?.parse() == Ok(address);
        let flags = words.nth(1)?.strip_prefix("0x")?;
        let is_known = u32::from_str_radix(flags, 16).ok()? & 2 != 0;
        let mac = parse_mac(words.next()?)?;
        let interface = words.nth(1)?;
        (is_it && is_known).then_some((mac, interface))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let table = "\
IP address       HW type     Flags       HW address            Mask     Device
10.79.1.2        0x1         0x0         00:00:00:00:00:00     *        east
10.79.1.3        0x1         0x2         02:00:00:00:01:0a     *        west
10.79.1.4        0x1         0x6         02:00:00:00:01:0b     *        west
";
        let at = |last| find(table, Ipv4Addr::new(10, 79, 1, last));
        assert_eq!(at(2), None);
        assert_eq!(at(3), Some(([2, 0, 0, 0, 1, 10], "west")));
        assert_eq!(at(4), Some(([2, 0, 0, 0, 1, 11], "west")));
        assert_eq!(at(5), None);
    }
}
