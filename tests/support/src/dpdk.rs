//! Hosts on DPDK's devices, turned by hand.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use shinjuku_dataplane::dpdk::{BURST, DpdkDevice, Eal, EalConfig, Nic, NicConfig, PortConfig};
use shinjuku_dataplane::packet::MacAddr;
use shinjuku_dataplane::{
    Buffer, Checksums, Device, Incoming, Interface, InterfaceConfig, Outbound, Received,
    Resolution, Verdict,
};

use crate::PATIENCE;

/// The port of every server here; clients send from it and the [`PORTS`] after it.
pub const PORT: u16 = 9000;
/// On how many ports every host listens.
pub const PORTS: u16 = 64;

/// Starts DPDK with `devices`, for a test that has no hardware. A process can start DPDK once.
#[must_use]
pub fn start_dpdk(devices: &[&str]) -> Eal {
    let config = EalConfig::without_hardware(256).argument("--log-level=error");
    let config = devices
        .iter()
        .fold(config, |config, device| config.device(device));
    Eal::init(&config).expect("DPDK starts")
}

/// Starts DPDK with `device`, and opens it with short queues: a host of that address for each of
/// its queues.
#[must_use]
pub fn open(device: &str, ip: Ipv4Addr, config: NicConfig) -> (Nic, Vec<Host<DpdkDevice>>) {
    let eal = start_dpdk(&[device]);
    let name = device.split(',').next().unwrap_or(device);
    let config = config.port(PortConfig {
        rx_descriptors: 256,
        tx_descriptors: 256,
        ..PortConfig::default()
    });
    let port = eal.port(name).expect("DPDK has made the device");
    let (nic, devices) = Nic::open(port, config).expect("the device opens");
    let mac = match name {
        // Both ends of a tap device have the same address.
        "net_tap0" => MacAddr([2, 0, 0, 0, 0, 1]),
        _ => nic.mac(),
    };
    let hosts = devices.into_iter();
    (
        nic,
        hosts.map(|device| Host::new(mac, ip, device)).collect(),
    )
}

/// Closes `hosts` and `nic`, and gives how many mbufs have not come back.
pub fn missing_after_close<T>(nic: Nic, hosts: T) -> u32 {
    let pools = nic.pools().to_vec();
    drop((hosts, nic));
    pools
        .iter()
        .map(|pool| pool.size() - pool.available())
        .sum()
}

/// A host: a device, and a stack with one address.
#[derive(Debug)]
pub struct Host<D: Device> {
    /// Where frames come from and go to.
    pub device: D,
    /// The stack.
    pub interface: Interface,
    /// Frames that the device has not taken yet.
    pub outbound: Vec<Outbound<D::Buffer>>,
    received: Vec<Received<D::Buffer>>,
    start: Instant,
}

impl<D: Device> Host<D> {
    /// A host of these addresses at `device`, which listens on all [`PORTS`].
    #[must_use]
    pub fn new(mac: MacAddr, ip: Ipv4Addr, device: D) -> Self {
        let ports: Vec<u16> = (PORT..PORT + PORTS).collect();
        Self::of(InterfaceConfig::new(mac, ip, &ports), device)
    }

    /// A host that need not ask for its peer's address.
    #[must_use]
    pub fn knowing(own: (MacAddr, Ipv4Addr), peer: (MacAddr, Ipv4Addr), device: D) -> Self {
        let ports: Vec<u16> = (PORT..PORT + PORTS).collect();
        let config = InterfaceConfig::new(own.0, own.1, &ports).neighbour(peer.1, peer.0);
        Self::of(config, device)
    }

    fn of(config: InterfaceConfig, device: D) -> Self {
        Self {
            device,
            interface: Interface::new(config).expect("the addresses are proper"),
            outbound: Vec::with_capacity(1024),
            received: Vec::with_capacity(BURST),
            start: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Polls once. `on_datagram` sees each datagram in its frame; `true`: it goes back as it is.
    pub fn turn(&mut self, mut on_datagram: impl FnMut(&Incoming, &mut [u8]) -> bool) {
        let now = self.now();
        let offload = self.device.offload();
        let most = BURST.min(self.outbound.capacity() - self.outbound.len());
        self.device.receive(most, &mut self.received);
        for Received {
            mut buffer,
            verified,
        } in self.received.drain(..)
        {
            let verdict = self.interface.receive(buffer.frame_mut(), verified, now);
            let reply = match verdict {
                Verdict::Deliver(delivery) if on_datagram(&delivery, buffer.frame_mut()) => {
                    let length = delivery.payload.end;
                    buffer.set_length(length);
                    let checksums = delivery.headers.reply(buffer.frame_mut(), offload);
                    Some((length, checksums.expect("it fits")))
                }
                Verdict::Answer { length } => Some((length, Checksums::default())),
                _ => None,
            };
            match reply {
                Some((length, checksums)) => {
                    buffer.finish(length);
                    self.outbound.push(Outbound { buffer, checksums });
                }
                None => self.device.free(buffer),
            }
        }
        self.device.transmit(&mut self.outbound);
    }

    /// Polls once, and sends each datagram back.
    pub fn echo(&mut self) {
        self.turn(|_, _| true);
    }

    /// Sends a datagram from `port`, once the address is resolved. `false`: not yet, or there is no
    /// buffer.
    pub fn send(&mut self, port: u16, to: SocketAddrV4, payload: &[u8]) -> bool {
        let now = self.now();
        let frame = match self.interface.resolve(*to.ip(), now) {
            Resolution::Known(mac) => {
                let Some(mut buffer) = self.device.allocate() else {
                    return false;
                };
                let length = Interface::PAYLOAD + payload.len();
                buffer.set_length(length);
                buffer.frame_mut()[Interface::PAYLOAD..].copy_from_slice(payload);
                let offload = self.device.offload();
                let checksums = self
                    .interface
                    .write_datagram(buffer.frame_mut(), port, mac, to, offload)
                    .expect("it fits");
                buffer.finish(length);
                (Outbound { buffer, checksums }, true)
            }
            Resolution::Ask(ip) => {
                let mut buffer = self.device.allocate().expect("the first buffers");
                buffer.set_length(Interface::ARP_FRAME);
                self.interface
                    .write_arp_request(buffer.frame_mut(), ip)
                    .expect("it fits");
                buffer.finish(Interface::ARP_FRAME);
                let checksums = Checksums::default();
                (Outbound { buffer, checksums }, false)
            }
            _ => return false,
        };
        let (outbound, sent) = frame;
        self.outbound.push(outbound);
        self.device.transmit(&mut self.outbound);
        sent
    }
}

/// Repeats `step`, without a pause, until it returns that it is done.
pub fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
    }
}
