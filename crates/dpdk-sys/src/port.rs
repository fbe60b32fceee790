//! A device: found, started with its queues, watched, reset, closed.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::eal::{c_string, control};
use crate::error::{DpdkError, Errno};
use crate::ffi::{self, rte_mempool};
use crate::pool::Mempool;
use crate::queue::Queue;

/// A device that is not started.
#[derive(Debug)]
pub struct Port {
    claim: Claim,
}

/// What a port is to be started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct PortConfig {
    /// Packets that a receive queue holds; brought to what the device can. 512 by default.
    pub rx_descriptors: u16,
    /// Packets that a send queue holds; brought to what the device can. 512 by default.
    pub tx_descriptors: u16,
    /// The longest IP packet, in bytes; 1500 by default.
    pub mtu: u16,
    /// Have the device verify and fill in checksums of IPv4 and UDP where it offers that. On by default.
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

/// What a device is and can.
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
    /// It spreads packets over queues by address and UDP port.
    pub spreads: bool,
    /// It tells whether received checksums are right.
    pub verifies_checksums: bool,
    /// It fills in checksums of IPv4 and UDP.
    pub sends_checksums: bool,
}

/// A device's counters since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct PortStatistics {
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Lost because the receive queue was full.
    pub missed: u64,
    /// Broken on arrival.
    pub receive_errors: u64,
    /// Not sent, by the device.
    pub send_errors: u64,
    /// Lost because the pool was empty.
    pub no_mbuf: u64,
}

/// The state of the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// There is a link.
    pub up: bool,
    /// Its speed, as the device tells; for virtual ones without meaning.
    pub megabits: u32,
    /// Both ways at once.
    pub full_duplex: bool,
}

/// Ports that somebody has in this process.
static CLAIMED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn claimed() -> MutexGuard<'static, BTreeSet<u16>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one right to a port.
#[derive(Debug)]
struct Claim {
    id: u16,
    name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed().remove(&self.id);
    }
}

impl Claim {
    fn check(&self, action: &'static str, status: i32) -> Result<(), DpdkError> {
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
            ffi::dpdk_port_info(self.id, &mut info)
        })?;
        Ok(info)
    }

    fn info(&self) -> Result<PortInfo, DpdkError> {
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
        let c_name = c_string(name)?;
        let mut id = 0;
        {
            let _control = control();
            // SAFETY: a string that ends with a zero, and room for the answer.
            Errno::check(unsafe { ffi::dpdk_port_by_name(c_name.as_ptr(), &mut id) }).map_err(
                |cause| DpdkError::NoPort {
                    name: name.to_owned(),
                    cause,
                },
            )?;
        }
        let name = name.to_owned();
        if !claimed().insert(id) {
            return Err(DpdkError::PortTaken { name });
        }
        Ok(Self {
            claim: Claim { id, name },
        })
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.claim.name
    }

    /// What the device is and can.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn info(&self) -> Result<PortInfo, DpdkError> {
        let _control = control();
        self.claim.info()
    }

    /// Starts the device with a receive and a send queue for each of `pools`; a queue's packets come from its pool.
    /// With several, the device spreads packets over them by address and UDP port, if it can ([`PortInfo::spreads`]).
    ///
    /// # Errors
    /// More queues than the device has, an MTU out of its range, or what DPDK says.
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
        let shared = Arc::new(Shared {
            phase: AtomicU32::new(0),
            resting: pools.iter().map(|_| AtomicU32::new(0)).collect(),
            setup: Setup {
                config: *config,
                rx_offloads: rx & info.rx_offloads,
                tx_offloads: tx & info.tx_offloads,
                rss_types: if several {
                    ffi::RSS_IP_UDP & info.rss_types
                } else {
                    0
                },
                pools: pools.iter().map(Mempool::raw).collect(),
            },
            claim,
        });
        // On failure dropping `shared` closes the port, which wants this lock.
        let started = shared.start();
        drop(control);
        started?;
        wants_reset(shared.claim.id).store(false, Ordering::Relaxed);
        // SAFETY: a function that may be called on any thread at any time. Without the event there is no resetting
        // unasked, which most virtual devices never want.
        let _ = unsafe { ffi::dpdk_port_watch(shared.claim.id, on_reset) };
        let queues = pools
            .into_iter()
            .enumerate()
            .map(|(number, pool)| Queue::new(Arc::clone(&shared), number, pool))
            .collect();
        Ok((RunningPort { shared }, queues))
    }
}

/// What a device asked for on one of DPDK's threads: a flag a port.
static WANTS_RESET: [AtomicBool; 256] = [const { AtomicBool::new(false) }; 256];

fn wants_reset(port: u16) -> &'static AtomicBool {
    // DPDK has 32 ports unless it was built for more. Two that share a flag would be reset together.
    &WANTS_RESET[usize::from(port) % WANTS_RESET.len()]
}

extern "C" fn on_reset(port: u16) {
    wants_reset(port).store(true, Ordering::Release);
}

/// A device that was started. Its [`Queue`]s are the other part; it is closed when all are dropped.
///
/// Everything here may take long, allocate and lock: it is for a thread that serves no requests.
pub struct RunningPort {
    shared: Arc<Shared>,
}

impl RunningPort {
    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.claim.name
    }

    /// What the device is and can.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn info(&self) -> Result<PortInfo, DpdkError> {
        let _control = control();
        self.shared.claim.info()
    }

    /// The state of the line.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn link(&self) -> Result<Link, DpdkError> {
        let _control = control();
        let mut link = ffi::dpdk_link::default();
        // SAFETY: room for the answer.
        let status = unsafe { ffi::dpdk_port_link(self.shared.claim.id, &mut link) };
        self.shared.claim.check("be asked for its link", status)?;
        Ok(Link {
            up: link.up,
            megabits: link.megabits,
            full_duplex: link.full_duplex,
        })
    }

    /// Takes the line up or down, from this side.
    ///
    /// # Errors
    /// What DPDK says; not every device can.
    pub fn set_link(&self, up: bool) -> Result<(), DpdkError> {
        let _control = control();
        // SAFETY: only numbers go there.
        let status = unsafe { ffi::dpdk_port_set_link(self.shared.claim.id, up) };
        self.shared.claim.check("set its link", status)
    }

    /// The device's counters.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn statistics(&self) -> Result<PortStatistics, DpdkError> {
        let _control = control();
        let mut raw = ffi::dpdk_port_statistics::default();
        // SAFETY: room for the answer.
        let status = unsafe { ffi::dpdk_port_statistics(self.shared.claim.id, &mut raw) };
        self.shared
            .claim
            .check("be asked for its counters", status)?;
        Ok(PortStatistics {
            received: raw.received,
            sent: raw.sent,
            missed: raw.missed,
            receive_errors: raw.receive_errors,
            send_errors: raw.send_errors,
            no_mbuf: raw.no_mbuf,
        })
    }

    /// The device says that it must be reset, or somebody [asked](Self::ask_for_reset) for it.
    #[must_use]
    pub fn wants_reset(&self) -> bool {
        wants_reset(self.shared.claim.id).load(Ordering::Acquire)
    }

    /// Says so in the device's place.
    pub fn ask_for_reset(&self) {
        on_reset(self.shared.claim.id);
    }

    /// Stops the device, resets it where it can be, and starts it as before. Packets in its queues are lost. Meanwhile
    /// the queues receive and send nothing; they have `patience` to take note, by being polled or dropped.
    ///
    /// # Errors
    /// If a queue is not polled (then nothing has changed), or what DPDK says. After that the device stands still until
    /// another reset succeeds.
    pub fn reset(&mut self, patience: Duration) -> Result<(), DpdkError> {
        let shared = &*self.shared;
        shared.halt(patience)?;
        let _control = control();
        let id = shared.claim.id;
        wants_reset(id).store(false, Ordering::Relaxed);
        // SAFETY: only numbers go there, and no queue is in use: all rest.
        let stopped = unsafe { ffi::dpdk_port_stop(id) };
        shared.claim.check("stop", stopped)?;
        // SAFETY: as above.
        match Errno::check(unsafe { ffi::dpdk_port_reset(id) }) {
            Err(cause) if cause.number() != libc::ENOTSUP => {
                return Err(DpdkError::Port {
                    port: shared.claim.name.clone(),
                    action: "reset",
                    cause,
                });
            }
            _ => {}
        }
        shared.start()?;
        shared.resume();
        Ok(())
    }
}

impl fmt::Debug for RunningPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RunningPort")
            .field("name", &self.name())
            .field("queues", &self.shared.resting.len())
            .finish_non_exhaustive()
    }
}

/// What [`RunningPort`] and [`Queue`]s share.
///
/// How a reset finds the device unused, without anybody waiting in the dispatcher:
///
/// ```text
///   phase even: running        RunningPort: phase += 1          phase odd: halting
///        ▲                                                            │ each queue, when polled: resting[i] = phase
///        └───── RunningPort: stop, reset, start; phase += 1 ◀── all rest
/// ```
pub(crate) struct Shared {
    phase: AtomicU32,
    /// The odd phase that a queue has noticed; [`GONE`] if it was dropped.
    resting: Box<[AtomicU32]>,
    setup: Setup,
    claim: Claim,
}

const GONE: u32 = u32::MAX;

struct Setup {
    config: PortConfig,
    rx_offloads: u64,
    tx_offloads: u64,
    rss_types: u64,
    pools: Box<[*mut rte_mempool]>,
}

// SAFETY: the pointers are to pools, which live as long as the process, and only passed on to DPDK.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn id(&self) -> u16 {
        self.claim.id
    }

    pub(crate) fn sends_checksums(&self) -> bool {
        let both = ffi::TX_OFFLOAD_IP | ffi::TX_OFFLOAD_UDP;
        self.setup.tx_offloads & both == both
    }

    /// Whether queue `number`, which asks, may use the device. If not, it is at rest until asked again.
    pub(crate) fn runs(&self, number: usize) -> bool {
        // Acquire: the device has been started.
        let phase = self.phase.load(Ordering::Acquire);
        if phase.is_multiple_of(2) {
            return true;
        }
        // Release: what this queue did with the device is done.
        self.resting[number].store(phase, Ordering::Release);
        false
    }

    pub(crate) fn gone(&self, number: usize) {
        self.resting[number].store(GONE, Ordering::Release);
    }

    fn halt(&self, patience: Duration) -> Result<(), DpdkError> {
        // Odd already after a reset that failed.
        let phase = self.phase.load(Ordering::Relaxed) | 1;
        self.phase.store(phase, Ordering::Release);
        let start = Instant::now();
        for (queue, resting) in self.resting.iter().enumerate() {
            while ![phase, GONE].contains(&resting.load(Ordering::Acquire)) {
                if start.elapsed() > patience {
                    self.resume();
                    return Err(DpdkError::QueueBusy {
                        port: self.claim.name.clone(),
                        queue,
                    });
                }
                thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    fn resume(&self) {
        let next = self.phase.load(Ordering::Relaxed).wrapping_add(1);
        // The odd phase after it must not be GONE.
        let next = if next == GONE - 1 { 0 } else { next };
        self.phase.store(next, Ordering::Release);
    }

    /// Configures the device and starts it. No queue may be in use.
    fn start(&self) -> Result<(), DpdkError> {
        const STEPS: [&str; 6] = [
            "start",
            "be asked what it is",
            "be configured",
            "set up a receive queue",
            "set up a send queue",
            "start",
        ];
        let Setup {
            config,
            rx_offloads,
            tx_offloads,
            rss_types,
            ref pools,
        } = self.setup;
        let settings = ffi::dpdk_port_settings {
            queues: pools.len() as u16,
            rx_descriptors: config.rx_descriptors,
            tx_descriptors: config.tx_descriptors,
            mtu: config.mtu,
            rx_offloads,
            tx_offloads,
            rss_types,
            pools: pools.as_ptr(),
        };
        let mut step = 0;
        // SAFETY: settings with as many pools as queues, and room for the step. The pools live as long as the process.
        let status = unsafe { ffi::dpdk_port_start(self.claim.id, &settings, &mut step) };
        self.claim.check(STEPS[step as usize % STEPS.len()], status)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _control = control();
        // SAFETY: no queue is left. What fails now fails for a device that is gone.
        let _ = unsafe { ffi::dpdk_port_stop(self.claim.id) };
        // SAFETY: as above.
        let _ = unsafe { ffi::dpdk_port_close(self.claim.id) };
    }
}
