//! What an interface is told at start, and what can be wrong with it.

use std::fmt;
use std::net::Ipv4Addr;

use serde::Deserialize;
use shinjuku_net::wire::{RackSchedConfig, ReassemblyConfig};
use shinjuku_net::{OutOfRange, setters};

use crate::Room;
use crate::packet::MacAddr;
use crate::packet::ethernet::Header;
use crate::toml::{DataplaneKeys, HostAddress, InterfaceKeys};

/// The most ports an interface listens on.
pub const MOST_PORTS: usize = 64;

/// Settings of an [`Interface`](crate::Interface); checked by
/// [`Interface::new`](crate::Interface::new).
///
/// In a configuration file it is a table. What can be left out has the default that is shown, or
/// none; an unknown key is an error, and so is a value out of its range.
///
/// ```
/// # use shinjuku_dataplane::InterfaceConfig;
/// # let interface: Result<InterfaceConfig, _> = toml::from_str(r#"
/// address = "10.0.0.1/24"     # with how many bits of it name the net
/// ports = [9000]              # those to listen on
/// reply_ports = [9000]        # where replies come from, one for each; left out: the same ports
/// mac = "02:00:00:00:00:01"   # left out: the device's, if `mac_or` tells it
/// gateway = "10.0.0.254"      # left out: none
/// mtu = 1500
/// neighbours = 64
/// neighbour = [{ ip = "10.0.0.7", mac = "02:00:00:00:00:07" }] # left out: none given
/// # "#);
/// # interface.unwrap();
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "InterfaceKeys")]
#[must_use]
pub struct InterfaceConfig {
    /// `None`: the device's, which is not known yet.
    pub(crate) mac: Option<MacAddr>,
    pub(crate) ip: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) gateway: Option<Ipv4Addr>,
    pub(crate) ports: Vec<u16>,
    /// As many as `ports`, or none: replies come from the ports themselves.
    pub(crate) reply_ports: Vec<u16>,
    pub(crate) mtu: usize,
    pub(crate) neighbours: usize,
    pub(crate) given: Vec<(Ipv4Addr, MacAddr)>,
}

impl InterfaceConfig {
    /// An interface with these addresses that takes datagrams for `ports`; in a net of /24, without
    /// a gateway, with an MTU of 1500 and room for 64 neighbours.
    pub fn new(mac: MacAddr, ip: Ipv4Addr, ports: &[u16]) -> Self {
        let address = HostAddress {
            ip,
            prefix: HostAddress::PREFIX,
        };
        Self::at(address, ports).mac_or(mac)
    }

    /// The same without an Ethernet address, which [`mac_or`](Self::mac_or) is to give it.
    pub fn at(address: HostAddress, ports: &[u16]) -> Self {
        Self {
            mac: None,
            ip: address.ip,
            prefix: address.prefix,
            gateway: None,
            ports: ports.to_vec(),
            reply_ports: Vec::new(),
            mtu: 1500,
            neighbours: 64,
            given: Vec::new(),
        }
    }

    /// Replies to requests for each of the ports come from another port, in the same order, instead
    /// of from the port itself: as many, none of them 0. Nothing can be sent to them. The original
    /// RackSched's servers do so: requests to 1234 and up, replies from 11234 and up.
    pub fn reply_from(self, ports: &[u16]) -> Self {
        Self {
            reply_ports: ports.to_vec(),
            ..self
        }
    }

    /// Each port, and the one that replies come from.
    pub(crate) fn ports_with_replies(&self) -> impl Iterator<Item = (u16, u16)> {
        let replies = self
            .reply_ports
            .iter()
            .chain(&self.ports[self.reply_ports.len()..]);
        self.ports.iter().copied().zip(replies.copied())
    }

    /// The Ethernet address, unless it has one: the device's.
    pub fn mac_or(self, mac: MacAddr) -> Self {
        let mac = self.mac.or(Some(mac));
        Self { mac, ..self }
    }

    /// The longest packet on the wire; see [`mtu`](Self::mtu).
    #[must_use]
    pub fn longest_packet(&self) -> usize {
        self.mtu
    }

    setters! {
        /// How many bits of the address name the net, 0 to 32: hosts that share them are on this
        /// wire.
        prefix: u8;
        /// The router for packets to other nets. Replies do not need one: they go back to the
        /// station that the request came from.
        gateway: Ipv4Addr;
        /// The longest packet on the wire, IPv4 header included, in bytes: 68 to 65,535.
        mtu: usize;
        /// How many stations' addresses are remembered, 1 to 4096. Only stations that the interface
        /// sends to without a request of theirs need one. Each ARP message is compared with all.
        neighbours: usize;
    }

    /// `ip` has `mac`, and no ARP request is needed. For wires on which no station answers ARP, and
    /// for queues that the device does not lead ARP to.
    pub fn neighbour(mut self, ip: Ipv4Addr, mac: MacAddr) -> Self {
        self.given.push((ip, mac));
        self
    }

    /// The Ethernet address, if all else is right, too.
    pub(crate) fn check(&self) -> Result<MacAddr, InterfaceError> {
        self.check_all_but_missing()?;
        self.mac.ok_or(InterfaceError::NoMac)
    }

    pub(crate) fn check_all_but_missing(&self) -> Result<(), InterfaceError> {
        let given = self.given.iter().map(|&(_, mac)| mac);
        if let Some(mac) = given.chain(self.mac).find(|mac| !mac.is_station()) {
            return Err(InterfaceError::Mac { mac });
        }
        let in_range = OutOfRange::check;
        in_range("prefix", self.prefix.into(), 0, 32)?;
        in_range("mtu", self.mtu, 68, 65_535)?;
        in_range("neighbours", self.neighbours, 1, 4096)?;
        in_range("the number of given neighbours", self.given.len(), 0, 4096)?;
        in_range("the number of ports", self.ports.len(), 1, MOST_PORTS)?;
        if !self.reply_ports.is_empty() {
            let ports = self.ports.len();
            in_range(
                "the number of reply ports",
                self.reply_ports.len(),
                ports,
                ports,
            )?;
        }
        if self.ports.contains(&0) || self.reply_ports.contains(&0) {
            return Err(InterfaceError::PortZero);
        }
        let twice = |&(at, port): &(usize, &u16)| self.ports[..at].contains(port);
        if let Some((_, &port)) = self.ports.iter().enumerate().find(twice) {
            return Err(InterfaceError::PortTwice { port });
        }
        let net = self.net();
        if !net.has_host(self.ip) {
            return Err(InterfaceError::Ip {
                ip: self.ip,
                prefix: self.prefix,
            });
        }
        match self.gateway {
            Some(gateway) if gateway == self.ip || !net.has_host(gateway) => {
                Err(InterfaceError::Gateway {
                    gateway,
                    ip: self.ip,
                    prefix: self.prefix,
                })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn net(&self) -> Net {
        let mask = match self.prefix {
            0 => 0,
            bits => u32::MAX << (32 - u32::from(bits.min(32))),
        };
        Net {
            address: self.ip.to_bits() & mask,
            mask,
        }
    }
}

/// As in `10.0.0.1/24 (02:00:00:00:00:01), UDP port 9000`.
impl fmt::Display for InterfaceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.ip, self.prefix)?;
        if let Some(mac) = self.mac {
            write!(formatter, " ({mac})")?;
        }
        for (number, port) in self.ports.iter().enumerate() {
            let before = if number == 0 { ", UDP port " } else { ", " };
            write!(formatter, "{before}{port}")?;
        }
        Ok(())
    }
}

/// The addresses on this wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    address: u32,
    mask: u32,
}

impl Net {
    /// Whether `ip` is on this wire.
    pub(crate) fn contains(self, ip: Ipv4Addr) -> bool {
        ip.to_bits() & self.mask == self.address
    }

    /// Whether `ip` is on this wire and can be a single host's.
    fn has_host(self, ip: Ipv4Addr) -> bool {
        self.contains(ip) && self.can_be_host(ip)
    }

    /// Whether `ip`, here or elsewhere, can be a single host's: the only kind that a packet may
    /// come from, and the only one that may be answered, lest an answer go to many.
    pub(crate) fn can_be_host(self, ip: Ipv4Addr) -> bool {
        // RFC 3021: in nets of two addresses both are hosts'; in a net of one it is.
        let has_broadcast = self.mask.count_ones() < 31;
        let host = ip.to_bits() & !self.mask;
        let everyone_or_no_one = host == !self.mask || host == 0;
        !(ip.octets()[0] == 0
            || ip.is_loopback()
            || ip.octets()[0] >= 224
            || self.contains(ip) && has_broadcast && everyone_or_no_one)
    }
}

/// Settings of a [`Dataplane`](crate::Dataplane); checked by
/// [`Dataplane::new`](crate::Dataplane::new).
///
/// In a configuration file it is a table with `buffers` and `batch`, which may be left out, and the
/// table `interface` ([`InterfaceConfig`]):
///
/// ```
/// # use shinjuku_dataplane::DataplaneConfig;
/// # let dataplane: Result<DataplaneConfig, _> = toml::from_str(r#"
/// buffers = 4096
/// interface = { address = "10.0.0.1/24", ports = [9000] }
/// # "#);
/// # dataplane.unwrap();
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "DataplaneKeys")]
#[must_use]
pub struct DataplaneConfig {
    pub(crate) interface: InterfaceConfig,
    pub(crate) buffers: usize,
    pub(crate) batch: usize,
    pub(crate) racksched: Option<RackSchedConfig>,
}

impl DataplaneConfig {
    /// With 1024 buffers, in batches of 32.
    pub fn new(interface: InterfaceConfig) -> Self {
        Self {
            interface,
            buffers: 1024,
            batch: 32,
            racksched: None,
        }
    }

    /// The Ethernet address of the interface, unless it has one: the device's.
    pub fn mac_or(self, mac: MacAddr) -> Self {
        let interface = self.interface.mac_or(mac);
        Self { interface, ..self }
    }

    /// The interface's settings.
    pub fn interface(&self) -> &InterfaceConfig {
        &self.interface
    }

    setters! {
        /// How many requests can be held at once, from receipt until the reply is on its way: how
        /// many of the device's buffers may be out, 1 to 2^20. Should exceed what the runtime
        /// admits plus what it has started. The device needs as many, and its own queues' besides.
        buffers: usize;
        /// The most frames that one poll takes, 1 to 1024. Meanwhile no request is dispatched or
        /// preempted: at roughly a tenth of a microsecond each, keep it well below the quantum's
        /// worth.
        batch: usize;
    }

    /// Speaks RackSched's format ([`RackSchedMessage`](shinjuku_net::wire::RackSchedMessage)) on
    /// all ports: requests of several packets are put together within these bounds, and what cannot
    /// be one is dropped and counted. One that is longer than the device's buffers hold behind its
    /// headers is dropped, too. A reply that begins as these messages do, an echo for instance,
    /// leaves as one of kind reply, with the number of requests of its class that the server still
    /// has. `classes`, 1 to 1024: those of the runtime.
    pub fn racksched(self, classes: usize, reassembly: ReassemblyConfig) -> Self {
        let racksched = RackSchedConfig::new(classes, reassembly);
        Self {
            racksched: Some(racksched),
            ..self
        }
    }

    /// Whether a device has room for what it is to hold.
    pub(crate) fn check_room(&self, room: Room) -> Result<(), InterfaceError> {
        let packet = room.frame.saturating_sub(Header::LENGTH);
        in_room("mtu", self.interface.mtu, packet)?;
        in_room("buffers", self.buffers, room.buffers)
    }

    /// All but the interface, which is checked by itself.
    pub(crate) fn check(&self) -> Result<(), OutOfRange> {
        let in_range = OutOfRange::check;
        let classes = self.racksched.map_or(1, |racksched| racksched.classes);
        in_range("racksched's classes", classes, 1, 1024)?;
        in_range("buffers", self.buffers, 1, 1 << 20)?;
        in_range("batch", self.batch, 1, 1024)
    }
}

fn in_room(setting: &'static str, value: usize, most: usize) -> Result<(), InterfaceError> {
    if value <= most {
        return Ok(());
    }
    Err(InterfaceError::Room {
        setting,
        value,
        most,
    })
}

/// Why an interface or a dataplane did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum InterfaceError {
    /// A setting is out of its range.
    #[error("interface: {0}")]
    Setting(OutOfRange),
    /// A setting is above what the device has room for.
    #[error(
        "interface: {setting} is {value}, but the device was opened with room for {most} at most; lower it, or open the \
         device with more"
    )]
    Room {
        setting: &'static str,
        /// What it was set to.
        value: usize,
        /// The most that the device allows.
        most: usize,
    },
    /// The Ethernet address of the interface, or of a given neighbour, is not one that a station
    /// can have.
    #[error("interface: {mac} cannot be a station's address: it is zero, multicast or broadcast")]
    Mac { mac: MacAddr },
    /// The Ethernet address is neither configured nor known from the device.
    #[error(
        "interface: it has no Ethernet address; configure `mac`, or take the device's (mac_or)"
    )]
    NoMac,
    /// Port 0 cannot be sent to.
    #[error("interface: port 0 is none to listen on or to reply from; choose one from 1 to 65535")]
    PortZero,
    /// A port is named twice.
    #[error("interface: port {port} is named twice; leave one out")]
    PortTwice { port: u16 },
    /// The interface's address is not one that a host can have.
    #[error("interface: {ip}/{prefix} cannot be a host's address; choose one of its own for it")]
    Ip {
        ip: Ipv4Addr,
        /// How many bits of it name the net.
        prefix: u8,
    },
    /// The gateway cannot be reached.
    #[error(
        "interface: the gateway {gateway} must be another host in the net of {ip}/{prefix}; correct it, or the prefix"
    )]
    Gateway {
        gateway: Ipv4Addr,
        ip: Ipv4Addr,
        /// How many bits of it name the net.
        prefix: u8,
    },
}

impl From<OutOfRange> for InterfaceError {
    fn from(cause: OutOfRange) -> Self {
        Self::Setting(cause)
    }
}
