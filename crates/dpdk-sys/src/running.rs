//! A running device: its link, its counters, its resets.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::eal::control;
use crate::error::{DpdkError, Errno};
use crate::ffi;
use crate::port::PortInfo;
use crate::shared::Shared;

/// A device's counters since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct PortStatistics {
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost because the receive queue was full.
    pub missed: u64,
    /// Packets broken on arrival.
    pub receive_errors: u64,
    /// Packets that the device failed to send.
    pub send_errors: u64,
    /// Packets lost because the pool was empty.
    pub no_mbuf: u64,
}

/// The state of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// There is a link.
    pub up: bool,
    /// The speed that the device reports; meaningless for virtual ones.
    pub megabits: u32,
    /// Both ways at once.
    pub full_duplex: bool,
}

/// Requests that a device made on one of DPDK's threads: a flag a port.
static WANTS_RESET: [AtomicBool; 256] = [const { AtomicBool::new(false) }; 256];

fn wants_reset(port: u16) -> &'static AtomicBool {
    // DPDK has 32 ports unless it was built for more. Two ports that share a flag would be reset
    // together.
    &WANTS_RESET[usize::from(port) % WANTS_RESET.len()]
}

extern "C" fn on_reset(port: u16) {
    wants_reset(port).store(true, Ordering::Release);
}

/// From now on the port's flag here is set when the port must be reset.
fn watch(port: u16) {
    wants_reset(port).store(false, Ordering::Relaxed);
    // SAFETY: any thread may call this function at any time. Without the event, a device is reset
    // only on request, and most virtual devices never need a reset.
    let _ = unsafe { ffi::dpdk_port_watch(port, on_reset) };
}

/// A started device. Its [`Queue`](crate::Queue)s are the other part; the device is closed when all
/// are dropped.
///
/// Every call here may take long, allocate and lock: use a thread that serves no requests.
pub struct RunningPort {
    shared: Arc<Shared>,
}

impl RunningPort {
    /// The device has just been started.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        watch(shared.id());
        Self { shared }
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.claim.name
    }

    /// The device's properties and abilities.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn info(&self) -> Result<PortInfo, DpdkError> {
        let _control = control();
        self.shared.claim.info()
    }

    /// The state of the link.
    ///
    /// # Errors
    /// What DPDK says.
    pub fn link(&self) -> Result<Link, DpdkError> {
        let _control = control();
        let mut link = ffi::dpdk_link::default();
        // SAFETY: room for the answer.
        let status = unsafe { ffi::dpdk_port_link(self.shared.id(), &mut link) };
        self.shared.claim.check("be asked for its link", status)?;
        Ok(Link {
            up: link.up,
            megabits: link.megabits,
            full_duplex: link.full_duplex,
        })
    }

    /// Takes the link up or down, from this side.
    ///
    /// # Errors
    /// What DPDK says; not every device can.
    pub fn set_link(&self, up: bool) -> Result<(), DpdkError> {
        let _control = control();
        // SAFETY: only numbers go there.
        let status = unsafe { ffi::dpdk_port_set_link(self.shared.id(), up) };
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
        let status = unsafe { ffi::dpdk_port_statistics(self.shared.id(), &mut raw) };
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

    /// Whether the device must be reset, or a caller [asked](Self::ask_for_reset) for it.
    #[must_use]
    pub fn wants_reset(&self) -> bool {
        wants_reset(self.shared.id()).load(Ordering::Acquire)
    }

    /// Asks for a reset in the device's place.
    pub fn ask_for_reset(&self) {
        on_reset(self.shared.id());
    }

    /// Whether the device has gone: the kernel has removed the interface of a virtual device
    /// (`net_af_packet`, `net_tap`, `net_af_xdp`). A [`reset`](Self::reset) makes the device anew,
    /// once that is possible.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.arguments().is_some()
            && matches!(self.link(), Err(DpdkError::Port { cause, .. }) if cause.number() == libc::ENODEV)
    }

    /// Whether the device is halted, after a [`reset`](Self::reset) that failed.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.shared.is_halted()
    }

    /// Stops the device, resets it if it can be reset, and starts it as before. A device that has
    /// [gone](Self::is_gone) is made anew from its first arguments. Packets in its queues are lost.
    /// Meanwhile the queues receive and send nothing; they have `patience` to notice, by being
    /// polled or dropped.
    ///
    /// # Errors
    /// If a queue is not polled (then nothing has changed), or DPDK's error. After that the device
    /// stays halted until another reset succeeds.
    pub fn reset(&mut self, patience: Duration) -> Result<(), DpdkError> {
        let gone = self.is_gone();
        let shared = &*self.shared;
        shared.halt(patience)?;
        let _control = control();
        if gone && let Some(arguments) = shared.arguments() {
            shared.remake(arguments)?;
            watch(shared.id());
            shared.start()?;
            shared.resume();
            return Ok(());
        }
        let id = shared.id();
        wants_reset(id).store(false, Ordering::Relaxed);
        // SAFETY: only numbers are passed, and no queue is in use: all rest.
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
            .field("queues", &self.shared.queues())
            .finish_non_exhaustive()
    }
}
