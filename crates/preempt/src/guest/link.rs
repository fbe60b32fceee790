//! A worker with a vCPU as other threads see it: interrupting it, and counting its events.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::kvm_msi;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::delivery::{KernelCounters, Statistics};
use super::error::GuestError;
use super::machine::{Machine, Sending, VECTOR};
use super::mapping::Mapping;
use super::poster;
use super::ring0::Block;
use super::system_call::{ioctl, system_call};
use super::vcpu::Page;
use super::vcpu_mode::VcpuMode;
use crate::backend::ModeLink;
use crate::mechanism::WorkerLink;

/// A worker's vCPU as other threads see it.
pub(super) struct GuestLink {
    machine: Arc<Machine>,
    apic: u32,
    /// A write to it posts the vector, if the machine sends by irqfd.
    kick: EventFd,
    pub(super) mode: VcpuMode,
    pub(super) returns: AtomicU64,
    pub(super) forwarded: AtomicU64,
    pub(super) given_up: AtomicU64,
    pub(super) left: AtomicU64,
    /// Interrupts of the workers that had the vCPU before.
    taken_by_others: AtomicU64,
    /// The vCPU's pages. They are here because other threads read the block in them.
    page: *mut Page,
    _pages: Mapping,
    statistics: Option<Statistics>,
}

// SAFETY: a link reaches only the block's atomics in the pages.
unsafe impl Send for GuestLink {}
// SAFETY: as above.
unsafe impl Sync for GuestLink {}

impl std::fmt::Debug for GuestLink {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "vCPU {}", self.apic)
    }
}

/// One worker's events in guest mode.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GuestCounters {
    /// Times that the kernel came back to the host side, for any reason.
    pub returns: u64,
    /// System calls made for the guest's code.
    pub forwarded: u64,
    /// The part of these that an interrupt preceded, and that were made again.
    pub given_up: u64,
    /// Times that the worker left guest mode: for a native call, a fault, or at its end.
    pub left: u64,
    /// Interrupts that arrived in guest mode.
    pub interrupts: u64,
}

impl std::ops::Add for GuestCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            returns: self.returns + other.returns,
            forwarded: self.forwarded + other.forwarded,
            given_up: self.given_up + other.given_up,
            left: self.left + other.left,
            interrupts: self.interrupts + other.interrupts,
        }
    }
}

impl ModeLink for GuestLink {}

impl WorkerLink {
    /// The worker's events in guest mode, if it [entered](crate::Worker::enter) guest mode before
    /// this link was taken.
    #[must_use]
    pub fn guest_counters(&self) -> Option<GuestCounters> {
        self.mode().map(GuestLink::counters)
    }

    /// KVM's counts for the worker's vCPU; `None` without a vCPU, or if the kernel does not tell.
    #[must_use]
    pub fn kernel_counters(&self) -> Option<KernelCounters> {
        self.mode::<GuestLink>()?.kernel_counters()
    }
}

impl GuestLink {
    pub(super) fn new(
        machine: &Arc<Machine>,
        apic: u32,
        file: i32,
        pages: Mapping,
    ) -> Result<Arc<Self>, GuestError> {
        let kick = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(|cause| GuestError::Kvm {
            what: "making an eventfd",
            cause,
        })?;
        if machine.sending != Sending::Msi {
            machine.route(apic, &kick)?;
        }
        Ok(Arc::new(Self {
            machine: Arc::clone(machine),
            apic,
            kick,
            mode: VcpuMode::new(),
            returns: AtomicU64::new(0),
            forwarded: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            left: AtomicU64::new(0),
            taken_by_others: AtomicU64::new(0),
            page: pages.start() as *mut Page,
            _pages: pages,
            statistics: Statistics::of(file),
        }))
    }

    pub(super) fn counters(&self) -> GuestCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GuestCounters {
            returns: read(&self.returns),
            forwarded: read(&self.forwarded),
            given_up: read(&self.given_up),
            left: read(&self.left),
            interrupts: read(&self.block().taken) - read(&self.taken_by_others),
        }
    }

    /// Starts counting anew, for another worker.
    pub(super) fn forget(&self) {
        let block = self.block();
        let taken = block.taken.load(Ordering::Relaxed);
        self.taken_by_others.store(taken, Ordering::Relaxed);
        for counter in [
            &self.returns,
            &self.forwarded,
            &self.given_up,
            &self.left,
            &block.window.elsewhere,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        self.mode.nothing_is_pending();
    }

    /// The interrupt handler's shared words.
    pub(super) fn block(&self) -> &Block {
        // SAFETY: in the pages, which are ours; its fields are atomics.
        unsafe { &(*self.page).block }
    }

    /// Interrupts that arrived, and KVM's counts, for all workers that had the vCPU.
    pub(super) fn since_it_was_made(&self) -> (u64, Option<KernelCounters>) {
        (
            self.block().taken.load(Ordering::Relaxed),
            self.kernel_counters(),
        )
    }

    fn kernel_counters(&self) -> Option<KernelCounters> {
        self.statistics.as_ref()?.read()
    }

    /// Posts the interrupt if that reaches the worker. Returns whether a signal is needed, too.
    pub(super) fn interrupt(&self) -> Result<bool, std::io::Error> {
        if !self.mode.takes_a_vector() {
            return Ok(true);
        }
        self.post()?;
        Ok(self.mode.takes_a_signal_too())
    }

    fn post(&self) -> Result<(), std::io::Error> {
        if self.machine.sending == Sending::Apic && poster::post(&self.machine, self.apic) {
            return Ok(());
        }
        let answer = match self.machine.sending {
            Sending::Irqfd | Sending::Apic => {
                let one = 1u64;
                let arguments = [
                    self.kick.as_raw_fd() as usize,
                    (&raw const one) as usize,
                    8,
                    0,
                ];
                // SAFETY: writes a number to our own eventfd.
                unsafe { system_call(libc::SYS_write, arguments) }
            }
            Sending::Msi => {
                const SIGNAL_MSI: u64 = 0x4020_aea5;
                let message = kvm_msi {
                    address_lo: msi_address(self.apic),
                    data: u32::from(VECTOR),
                    ..kvm_msi::default()
                };
                let argument = (&raw const message) as usize;
                // SAFETY: posts a vector for which the guest has a handler.
                unsafe { ioctl(self.machine.vm.as_raw_fd(), SIGNAL_MSI, argument) }
            }
        };
        // A full eventfd has its interrupt on the way.
        if answer >= 0 || answer == -(libc::EAGAIN as isize) {
            Ok(())
        } else {
            Err(std::io::Error::from_raw_os_error(-answer as i32))
        }
    }
}

/// The address that a message must be written to for the CPU with this APIC number.
pub(super) fn msi_address(apic: u32) -> u32 {
    0xfee0_0000 | apic << 12
}
