//! What a port is opened with.

use shinjuku_dpdk_sys::{BURST, DpdkError, PortConfig, PortInfo};
use shinjuku_net::setters;

use super::Spread;
use crate::Room;

/// What a frame has before its IP packet at most: Ethernet's header and two VLAN tags.
const LINK_HEADERS: u16 = 14 + 2 * 4;
/// What DPDK keeps free before a packet (RTE_PKTMBUF_HEADROOM). Room and packet together are
/// counted in 16 bits.
const HEADROOM: u16 = 128;
/// DPDK's driver for shared memory between processes.
const MEMIF: &str = "net_memif";
/// Some drivers take a buffer for too small that does not hold this.
const LEAST_ROOM: u16 = 2048;

/// Settings of a [`Nic`](super::Nic); checked by [`Nic::open`](super::Nic::open).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct NicConfig {
    pub(super) dispatchers: usize,
    pub(super) queues: Option<usize>,
    pub(super) mbufs: u32,
    pub(super) spread: Spread,
    pub(super) port: PortConfig,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl NicConfig {
    /// One dispatcher, 4095 mbufs, and [`PortConfig`]'s defaults.
    pub fn new() -> Self {
        Self {
            dispatchers: 1,
            queues: None,
            mbufs: 4095,
            spread: Spread::Auto,
            port: PortConfig::default(),
        }
    }

    setters! {
        /// How many devices to make, for as many dispatchers, 1 to 64.
        dispatchers: usize;
        /// The most of the device's queues to use, 1 to 64. By default as many as there are
        /// dispatchers; of a memif 1, because both ends must use as many, and its driver does not
        /// see to that: a queue whose other end is not there reads, and spoils, what the first one
        /// sends.
        queues: usize;
        /// Mbufs for each dispatcher, best a power of two less one. They are in the device's queues
        /// or with requests: should exceed the descriptors of both and what the runtime admits;
        /// where dispatchers share queues, what all of them admit and 512 for each.
        mbufs: u32;
        /// What spreads requests over the dispatchers.
        spread: Spread;
        /// The port's own settings.
        port: PortConfig;
    }

    /// What each device has room for; of the mbufs it can have others' unless the device spreads.
    pub(super) fn room(&self, by_device: bool) -> Room {
        let pools = if by_device { 1 } else { self.dispatchers };
        Room {
            frame: usize::from(self.port.mtu) + usize::from(LINK_HEADERS),
            buffers: self.mbufs as usize * pools,
        }
    }

    /// Bytes that an mbuf must have room for.
    pub(super) fn data_room(&self) -> u16 {
        self.port.mtu.saturating_add(LINK_HEADERS).max(LEAST_ROOM)
    }

    /// The most queues of this device.
    fn most_queues(&self, info: &PortInfo) -> usize {
        let wanted = match self.queues {
            Some(queues) => queues,
            None if info.driver == MEMIF => 1,
            None => 64,
        };
        wanted.min(info.queues.into())
    }

    /// How many of the device's queues to use, and whether the device spreads over them.
    pub(super) fn sharing(&self, info: &PortInfo) -> (usize, bool) {
        let queues = self.dispatchers.min(self.most_queues(info));
        let by_device = match self.spread {
            Spread::Auto => info.spreads && queues == self.dispatchers,
            Spread::Device => true,
            Spread::Software => false,
        };
        (queues, by_device || self.dispatchers == 1)
    }

    pub(super) fn check(&self, port: &str, info: &PortInfo) -> Result<(), DpdkError> {
        let in_range = |setting, value, least, most| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(DpdkError::Setting {
                port: port.to_owned(),
                setting,
                value,
                least,
                most,
            })
        };
        let most = match self.spread {
            Spread::Device => self.most_queues(info).min(64),
            Spread::Auto | Spread::Software => 64,
        };
        in_range("queues", self.queues.unwrap_or(1), 1, 64)?;
        in_range("dispatchers", self.dispatchers, 1, most)?;
        let held = usize::from(self.port.rx_descriptors) + usize::from(self.port.tx_descriptors);
        let most = info.max_mtu.min(u16::MAX - HEADROOM - LINK_HEADERS);
        in_range("mtu", self.port.mtu.into(), 68, most.into())?;
        in_range("mbufs", self.mbufs as usize, held + 2 * BURST, 1 << 24)
    }
}
