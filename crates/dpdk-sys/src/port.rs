//! A device that is found, examined, and started with its queues.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::eal::{c_string, control};
use crate::error::{DpdkError, Errno};
use crate::ffi;
use crate::pool::Mempool;
use crate::queue::Queue;
use crate::running::RunningPort;
use crate::shared::{Setup, Shared};

/// A device that is not started.
#[derive(Debug)]
pub struct Port {
    claim: Claim,
}

/// The settings that a port is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct PortConfig {
    /// Packets that a receive queue holds, adjusted to what the device can; 512 by default.
    pub rx_descriptors: u16,
    /// Packets that a send queue holds, adjusted to what the device can; 512 by default.
    pub tx_descriptors: u16,
    /// The longest IP packet, in bytes; 1500 by default.
    pub mtu: u16,
    /// Lets the device verify and fill in checksums of IPv4 and UDP if it offers that. On by
    /// default.
    pub checksums: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            rx_descriptors: 512,
            tx_descriptors: 512,
            mtu: 1500,
            checksums: true,
        }
    }
}

/// A device's properties and abilities.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PortInfo {
    /// Its driver.
    pub driver: String,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// How many queues it can have, for receiving and sending both.
    pub queues: u16,
    /// The smallest MTU.
    pub min_mtu: u16,
    /// The largest MTU.
    pub max_mtu: u16,
    /// The device spreads packets over queues by address and UDP port.
    pub spreads: bool,
    /// The device tells whether received checksums are right.
    pub verifies_checksums: bool,
    /// The device fills in checksums of IPv4 and UDP.
    pub sends_checksums: bool,
}

/// The ports in use in this process.
static CLAIMED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn claimed() -> MutexGuard<'static, BTreeSet<u16>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exclusive right to a port.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Changes when the device is made anew; [`NONE`](Self::NONE) while there is none.
    id: AtomicU16,
    pub(crate) name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

impl Claim {
    /// A number that no port has; requests to it fail.
    pub(crate) const NONE: u16 = u16::MAX;

    fn new(name: &str) -> Self {
        Self {
            id: AtomicU16::new(Self::NONE),
            name: name.to_owned(),
        }
    }

    pub(crate) fn id(&self) -> u16 {
        self.id.load(Ordering::Relaxed)
    }

    /// Finds the port by its name, under the lock of [`control`], and takes it.
    pub(crate) fn take(&self) -> Result<(), DpdkError> {
        let c_name = c_string(&self.name)?;
        let name = || self.name.clone();
        let mut id = 0;
        // SAFETY: a string that ends with a zero, and room for the answer.
        Errno::check(unsafe { ffi::dpdk_port_by_name(c_name.as_ptr(), &mut id) }).map_err(
            |cause| DpdkError::NoPort {
                name: name(),
                cause,
            },
        )?;
        if !claimed().insert(id) {
            return Err(DpdkError::PortTaken { name: name() });
        }
        self.id.store(id, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the port up.
    pub(crate) fn release(&self) {
        claimed().remove(&self.id.swap(Self::NONE, Ordering::Relaxed));
    }

    /// The arguments that made the device, if it can be made anew.
    fn arguments(&self) -> Option<CString> {
        let mut text = [0_u8; 1024];
        // SAFETY: the buffer has as many bytes as the call is told.
        let status =
            unsafe { ffi::dpdk_port_devargs(self.id(), text.as_mut_ptr().cast(), text.len()) };
        Errno::check(status).ok()?;
        CStr::from_bytes_until_nul(&text).ok().map(CStr::to_owned)
    }

    pub(crate) fn check(&self, action: &'static str, status: i32) -> Result<(), DpdkError> {
        Errno::check(status).map_err(|cause| DpdkError::Port {
            port: self.name.clone(),
            action,
            cause,
        })
    }

    fn in_range(
        &self,
        setting: &'static str,
        value: usize,
        least: usize,
        most: usize,
    ) -> Result<(), DpdkError> {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(DpdkError::Setting {
            port: self.name.clone(),
            setting,
            value,
            least,
            most,
        })
    }

    fn raw_info(&self) -> Result<ffi::dpdk_port_info, DpdkError> {
        let mut info = ffi::dpdk_port_info {
            driver: [0; 64],
            mac: [0; 6],
            max_rx_queues: 0,
            max_tx_queues: 0,
            min_mtu: 0,
            max_mtu: 0,
            reta_size: 0,
            rx_offloads: 0,
            tx_offloads: 0,
            rss_types: 0,
        };
        // SAFETY: room for the answer; the port's number is checked there.
        self.check("be asked what it is", unsafe {
            ffi::dpdk_port_info(self.id(), &mut info)
        })?;
        Ok(info)
    }

    pub(crate) fn info(&self) -> Result<PortInfo, DpdkError> {
        let raw = self.raw_info()?;
        let offers = |all: u64, wanted: u64| all & wanted == wanted;
        Ok(PortInfo {
            driver: CStr::from_bytes_until_nul(&raw.driver)
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            mac: raw.mac,
            queues: raw.max_rx_queues.min(raw.max_tx_queues),
            min_mtu: raw.min_mtu,
            max_mtu: raw.max_mtu,
            spreads: raw.rss_types & ffi::RSS_IP_UDP != 0,
            verifies_checksums: offers(raw.rx_offloads, ffi::RX_OFFLOAD_IP | ffi::RX_OFFLOAD_UDP),
            sends_checksums: offers(raw.tx_offloads, ffi::TX_OFFLOAD_IP | ffi::TX_OFFLOAD_UDP),
        })
    }
}

impl Port {
    pub(crate) fn find(name: &str) -> Result<Self, DpdkError> {
        let _control = control();
        let claim = Claim::new(name);
        claim.take()?;
        Ok(Self { claim })
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.claim.name
    }

    /// The device's properties and abilities.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn info(&self) -> Result<PortInfo, DpdkError> {
        let _control = control();
        self.claim.info()
    }

    /// Starts the device with a receive and a send queue for each of `pools`; a queue's packets
    /// come from its pool. With several, the device spreads packets over them by address and UDP
    /// port, if it can ([`PortInfo::spreads`]).
    ///
    /// # Errors
    /// More queues than the device has, an MTU out of its range, or DPDK's error. If DPDK itself
    /// failed to start the device, the device is closed, and a virtual one is gone:
    /// [`Eal::attach`](crate::Eal::attach) makes another.
    pub fn start(
        self,
        config: &PortConfig,
        pools: Vec<Mempool>,
    ) -> Result<(RunningPort, Vec<Queue>), DpdkError> {
        let control = control();
        let claim = self.claim;
        let info = claim.raw_info()?;
        let most_queues = info.max_rx_queues.min(info.max_tx_queues);
        claim.in_range("queues", pools.len(), 1, most_queues.into())?;
        claim.in_range(
            "mtu",
            config.mtu.into(),
            info.min_mtu.into(),
            info.max_mtu.into(),
        )?;
        let (mut rx, mut tx) = (0, 0);
        if config.checksums {
            rx |= ffi::RX_OFFLOAD_IP | ffi::RX_OFFLOAD_UDP;
            tx |= ffi::TX_OFFLOAD_IP | ffi::TX_OFFLOAD_UDP;
        }
        let several = pools.len() > 1;
        if several {
            rx |= ffi::RX_OFFLOAD_RSS_HASH;
        }
        let setup = Setup {
            config: *config,
            rx_offloads: rx & info.rx_offloads,
            tx_offloads: tx & info.tx_offloads,
            rss_types: if several {
                ffi::RSS_IP_UDP & info.rss_types
            } else {
                0
            },
            pools: pools.iter().map(Mempool::raw).collect(),
            mac: info.mac,
            arguments: claim.arguments(),
        };
        let shared = Arc::new(Shared::new(claim, setup));
        // On failure, dropping `shared` closes the port, which takes this lock.
        let started = shared.start();
        drop(control);
        started?;
        let port = RunningPort::new(Arc::clone(&shared));
        let queues = pools
            .into_iter()
            .enumerate()
            .map(|(number, pool)| Queue::new(Arc::clone(&shared), number, pool))
            .collect();
        Ok((port, queues))
    }
}
