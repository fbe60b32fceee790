//! Workers in guest mode, interrupted without the kernel's signal path.
//!
//! The worker's thread runs its own code in a virtual machine made of the process's own address
//! space, in ring 3 (CPL3), on its own stack, with its own thread control block: all code, all
//! addresses and all speeds are the same. An interrupt posted to its vCPU reaches it through an
//! interrupt descriptor table, without leaving guest mode if the CPU can do that (VT-x with APICv,
//! AVIC); otherwise KVM injects it. So the stock kernel does what Dune's module did.
//!
//! Operations that guest mode lacks are done natively: the worker leaves guest mode with all its
//! registers, at any instruction, and comes back when it next enters a context. So a fault, a
//! `clone` or an instruction that KVM cannot emulate behaves as everywhere.
//!
//! | module | what it holds |
//! |---|---|
//! | `machine`, `memory`, `mapping`, `error` | the virtual machine and its memory |
//! | `vcpu` | a worker's vCPU, its tables and registers |
//! | `ring0` | the code in ring 0: stubs, the interrupt handler |
//! | `run` | entering, and the host side's loop |
//! | `policy`, `system_call` | how each system call is handled, and making it |
//! | `native` | leaving with all registers |
//! | `vcpu_mode`, `link`, `poster` | how others reach the worker; a dispatcher that does so without a system call |
//! | `delivery` | how interrupts come to a vCPU here, as counted |

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::backend::{
    Backend, BackendError, BackendKind, Delivery, Mode, Prospect, SenderMode, WorkerMode,
};
use crate::context::Head;
use crate::extended_state::{PROTECTION_KEYS, xcr0};
use crate::mechanism::{InterruptError, Mechanism, WorkerLink};
use crate::signal::{self, Signal};
use crate::token::HardPreemption;

mod delivery;
mod error;
mod link;
mod machine;
mod mapping;
mod memory;
mod native;
mod policy;
mod poster;
mod ring0;
mod run;
mod system_call;
mod vcpu;
mod vcpu_mode;

pub use delivery::{KernelCounters, promised};
pub use error::GuestError;
pub use link::GuestCounters;
use link::GuestLink;
use machine::Machine;
pub use machine::{GuestConfig, Irqchip, Sending};
pub use poster::Poster;
use vcpu::Vcpu;

pub(crate) const KIND: BackendKind = BackendKind {
    name: NAME,
    prospect: || Prospect::Measurable(promised()),
    install: |token| Ok(Arc::new(Guest::install(token, GuestConfig::default())?)),
    give_up_call: system_call::give_up,
    before_the_call: ring0::before_the_call,
};

const NAME: &str = "guest";

/// Preemption by interrupts in guest mode, for workers that [entered](crate::Worker::enter) it.
/// Workers that did not, or are outside of it for a while, are interrupted by signal.
#[derive(Clone)]
pub struct Guest {
    machine: Arc<Machine>,
    signal: Signal,
    spares: Spares,
}

/// vCPUs of workers that ended: KVM keeps a vCPU until the whole machine ends, so they are reused.
type Spares = Arc<Mutex<Vec<Vcpu>>>;

impl std::fmt::Debug for Guest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Guest")
    }
}

impl Guest {
    /// Makes a virtual machine of this process.
    ///
    /// # Errors
    /// [`GuestError`] says why there can be none, and how to change that.
    pub fn install(token: HardPreemption, config: GuestConfig) -> Result<Self, GuestError> {
        let machine = Machine::new(config)?;
        // The attempt shows what a vCPU lacks.
        let first = Vcpu::new(&machine)?;
        match unsaved(&first, native::VECTORS) {
            0 => {}
            components => return Err(GuestError::Unsaved { components }),
        }
        Ok(Self {
            machine,
            signal: Signal::install(token)?,
            spares: Arc::new(Mutex::new(vec![first])),
        })
    }

    /// A vCPU for the calling thread.
    fn lease(&self) -> Result<VcpuLease, GuestError> {
        let spare = lock(&self.spares).pop();
        let vcpu = match spare {
            Some(spare) => spare,
            None => Vcpu::new(&self.machine)?,
        };
        make_ready(&vcpu);
        Ok(VcpuLease {
            vcpu: Some(vcpu),
            spares: Arc::clone(&self.spares),
        })
    }
}

fn make_ready(vcpu: &Vcpu) {
    vcpu.block().window.close();
    vcpu.machine.memory.give_what_is_there();
}

/// Registers that code can use in guest mode and that are not among `saved`, as bits of XCR0.
/// Neither KVM nor the trampoline would keep them. Protection keys, the worker's own, do not count.
///
/// Hardware virtualisation gives a guest the XCR0 that it was set to; software virtualisation
/// leaves it the host's. So the guest is asked.
fn unsaved(vcpu: &Vcpu, saved: u64) -> u64 {
    make_ready(vcpu);
    // SAFETY: the thread is in no guest mode yet: no thread has the vCPU, so it is this thread's.
    // It runs its own code on its own stack, and leaves only where it entered.
    let open = unsafe {
        run::enter(vcpu);
        let open = xcr0();
        if !run::is_native(vcpu) {
            run::leave();
        }
        open
    };
    vcpu.link.forget();
    open & !(saved | PROTECTION_KEYS)
}

impl Mechanism for Guest {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interrupt(&self, worker: &WorkerLink) -> Result<(), InterruptError> {
        let by_signal = match worker.mode::<GuestLink>() {
            None => true,
            Some(link) => link.interrupt().map_err(|cause| InterruptError::Refused {
                thread: worker.thread,
                cause,
            })?,
        };
        if by_signal {
            self.signal.interrupt(worker)
        } else {
            Ok(())
        }
    }
}

impl Backend for Guest {
    fn admit(&self) -> Result<WorkerMode, BackendError> {
        let lease = self.lease()?;
        Ok(WorkerMode {
            links: Arc::clone(&lease.link) as _,
            own: Box::new(lease),
        })
    }

    fn enter_as_sender(&self) -> Result<SenderMode, BackendError> {
        if self.machine.sending != Sending::Apic {
            return Ok(SenderMode::default());
        }
        Ok(SenderMode::until_dropped(self.post_from_this_thread()?))
    }

    fn interrupts_outside(&self) -> bool {
        true
    }

    fn delivery_to(&self, workers: &[WorkerLink]) -> Option<Delivery> {
        let links = (workers.iter()).filter_map(WorkerLink::mode::<GuestLink>);
        let (mut arrived, mut counted) = (0, Some(KernelCounters::default()));
        for (theirs, kernels) in links.map(GuestLink::since_it_was_made) {
            arrived += theirs;
            counted = counted.zip(kernels).map(|(sum, kernels)| sum + kernels);
        }
        Some(delivery::judge(
            delivery::posting_module(Path::new(delivery::MODULES)),
            arrived,
            counted,
        ))
    }

    fn events_of(&self, workers: &[WorkerLink]) -> Vec<(&'static str, u64)> {
        let all = (workers.iter()).filter_map(WorkerLink::guest_counters);
        let sum = all.fold(GuestCounters::default(), |one, other| one + other);
        vec![
            ("interrupts", sum.interrupts),
            ("system calls forwarded", sum.forwarded),
            ("times left", sum.left),
        ]
    }
}

fn lock(spares: &Spares) -> MutexGuard<'_, Vec<Vcpu>> {
    spares.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's use of a vCPU, which goes back to the spares when the thread is done with it.
struct VcpuLease {
    /// `None` only while it is dropped.
    vcpu: Option<Vcpu>,
    spares: Spares,
}

impl std::fmt::Debug for VcpuLease {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.link, formatter)
    }
}

impl std::ops::Deref for VcpuLease {
    type Target = Vcpu;

    fn deref(&self) -> &Vcpu {
        match &self.vcpu {
            Some(vcpu) => vcpu,
            None => unreachable!("it is there until the lease is dropped"),
        }
    }
}

impl Mode for VcpuLease {
    #[inline]
    unsafe fn before_entering(&self, head: &Head) -> u64 {
        let elsewhere = self.block().window.take_elsewhere();
        self.link.mode.enters_a_context();
        self.block().window.set(
            head.stack_low.get() + room_to_leave(),
            head.stack_high.get(),
        );
        if run::is_native(self) && !self.broken.get() {
            // SAFETY: the caller promises it, and the thread is not in guest mode.
            unsafe { run::enter(self) };
        }
        elsewhere
    }

    unsafe fn leave(&self) {
        if !run::is_native(self) {
            // SAFETY: the caller promises it, and the thread is in guest mode.
            unsafe { run::leave() };
        }
    }

    fn has_other_mask(&self, mask: u64) -> bool {
        self.block().mask.load(Ordering::Relaxed) != mask
    }
}

/// Bytes of stack that must be left below code that is diverted with its registers on the stack.
fn room_to_leave() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| signal::largest_frame() + signal::handler_room())
}

impl Drop for VcpuLease {
    fn drop(&mut self) {
        if let Some(vcpu) = self.vcpu.take()
            && vcpu.can_be_used_again()
        {
            lock(&self.spares).push(vcpu);
        }
    }
}

impl Vcpu {
    fn can_be_used_again(&self) -> bool {
        self.link.forget();
        !self.broken.get() && run::is_native(self)
    }
}

/// Ends the process, which can go on neither in guest mode nor outside it.
fn fatal(what: &str, state: &native::State) -> ! {
    let (rip, rsp) = (state.general.rip, state.general.rsp);
    crate::overflow::say(format_args!("fatal: {what} (rip {rip:#x}, rsp {rsp:#x})"));
    // SAFETY: does not return.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_that_guest_mode_would_lose_are_noticed() {
        let machine = match Machine::new(GuestConfig::default()) {
            Err(error @ (GuestError::NoDevice | GuestError::NoPermission)) => {
                return println!(
                    "SKIPPED registers_that_guest_mode_would_lose_are_noticed: {error}"
                );
            }
            machine => machine.unwrap(),
        };
        const X87_AND_SSE: u64 = 0b11;
        let vcpu = Vcpu::new(&machine).unwrap();
        let all = xcr0() & !PROTECTION_KEYS;
        let lost = unsaved(&vcpu, X87_AND_SSE);
        // AVX, which each CPU with virtualisation has had for ten years.
        assert_eq!(lost & 0b100, all & 0b100);
        assert_eq!(lost & !(all & !X87_AND_SSE), 0);
        assert_eq!(unsaved(&vcpu, all), 0);
        assert!(run::is_native(&vcpu));
    }
}
