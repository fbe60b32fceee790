//! What a running port and its queues share: with it a reset finds the device unused, and no
//! networker waits.
//!
//! ```text
//!   phase even: running ──── RunningPort: phase += 1 ────▶ phase odd: halting
//!        ▲                                                       │ each queue, when polled: resting[i] = phase
//!        └───── RunningPort: stop, reset, start; phase += 1 ◀── all rest
//! ```

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::eal::control;
use crate::error::DpdkError;
use crate::ffi::{self, rte_mempool};
use crate::port::{Claim, PortConfig};

/// What a [`RunningPort`](crate::RunningPort) and its [`Queue`](crate::Queue)s share.
pub(crate) struct Shared {
    phase: AtomicU32,
    /// The odd phase that a queue has seen; [`GONE`] if it was dropped.
    resting: Box<[AtomicU32]>,
    setup: Setup,
    pub(crate) claim: Claim,
}

const GONE: u32 = u32::MAX;

/// The device's configuration, for each start.
pub(crate) struct Setup {
    pub(crate) config: PortConfig,
    pub(crate) rx_offloads: u64,
    pub(crate) tx_offloads: u64,
    pub(crate) rss_types: u64,
    /// One for each queue.
    pub(crate) pools: Box<[*mut rte_mempool]>,
    /// The device's first address, which it keeps.
    pub(crate) mac: [u8; 6],
    /// The arguments to make a device anew whose interface the kernel has removed.
    pub(crate) arguments: Option<CString>,
}

// SAFETY: the pointers are to pools, which live as long as the process, and only DPDK follows them.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Nothing is started yet.
    pub(crate) fn new(claim: Claim, setup: Setup) -> Self {
        Self {
            phase: AtomicU32::new(0),
            resting: setup.pools.iter().map(|_| AtomicU32::new(0)).collect(),
            setup,
            claim,
        }
    }

    pub(crate) fn queues(&self) -> usize {
        self.resting.len()
    }

    /// The port's number. A queue may use it after [`runs`](Self::runs) returned true, until the
    /// queue asks again: the number changes only while all queues rest.
    pub(crate) fn id(&self) -> u16 {
        self.claim.id()
    }

    pub(crate) fn sends_checksums(&self) -> bool {
        let both = ffi::TX_OFFLOAD_IP | ffi::TX_OFFLOAD_UDP;
        self.setup.tx_offloads & both == both
    }

    /// Whether queue `number`, which asks, may use the device. If not, the queue is at rest until
    /// it asks again.
    pub(crate) fn runs(&self, number: usize) -> bool {
        // Acquire: the device has been started.
        let phase = self.phase.load(Ordering::Acquire);
        if phase.is_multiple_of(2) {
            return true;
        }
        // Release: this queue's use of the device is complete.
        self.resting[number].store(phase, Ordering::Release);
        false
    }

    pub(crate) fn gone(&self, number: usize) {
        self.resting[number].store(GONE, Ordering::Release);
    }

    /// Whether the device is halted, after a reset that failed.
    pub(crate) fn is_halted(&self) -> bool {
        !self.phase.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Brings all queues to rest, within `patience`.
    pub(crate) fn halt(&self, patience: Duration) -> Result<(), DpdkError> {
        // The phase is odd already after a reset that failed.
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

    /// The device may be used again.
    pub(crate) fn resume(&self) {
        let next = self.phase.load(Ordering::Relaxed).wrapping_add(1);
        // The odd phase after it must not be GONE.
        let next = if next == GONE - 1 { 0 } else { next };
        self.phase.store(next, Ordering::Release);
    }

    /// Configures the device and starts it. No queue may be in use.
    pub(crate) fn start(&self) -> Result<(), DpdkError> {
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
            ref mac,
            ref arguments,
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
        // SAFETY: settings with as many pools as queues, and room for the step. The pools live as
        // long as the process.
        let status = unsafe { ffi::dpdk_port_start(self.id(), &settings, &mut step) };
        self.claim
            .check(STEPS[step as usize % STEPS.len()], status)?;
        if arguments.is_none() {
            return Ok(());
        }
        // SAFETY: six bytes.
        let status = unsafe { ffi::dpdk_port_keep_mac(self.id(), mac.as_ptr()) };
        self.claim
            .check("be given the hardware address it had", status)
    }

    /// Closes the device and makes it anew, perhaps with another number. No queue may be in use.
    pub(crate) fn remake(&self, arguments: &CStr) -> Result<(), DpdkError> {
        self.close();
        // SAFETY: a string that ends with a zero.
        let made = unsafe { ffi::dpdk_probe(arguments.as_ptr()) };
        self.claim.check("be made anew", made)?;
        self.claim.take()
    }

    fn close(&self) {
        if self.id() == Claim::NONE {
            return;
        }
        // SAFETY: no queue is in use. A step may fail here because the device is gone.
        let _ = unsafe { ffi::dpdk_port_stop(self.id()) };
        // SAFETY: as above.
        let _ = unsafe { ffi::dpdk_port_close(self.id()) };
        self.claim.release();
    }

    /// The arguments to make the device anew, if that is possible.
    pub(crate) fn arguments(&self) -> Option<&CStr> {
        self.setup.arguments.as_deref()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _control = control();
        self.close();
    }
}
