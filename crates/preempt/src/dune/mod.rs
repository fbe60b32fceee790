//! Preemption by posted interrupt under Dune, Shinjuku's own way (NSDI'19, section 3.2): dispatcher
//! and workers run in guest mode, entered through a kernel module; the dispatcher writes to its
//! APIC itself, and the worker's CPU takes the interrupt without leaving guest mode.
//!
//! **Never executed.** It needs an Intel CPU with VT-x and posted interrupts, Dune's module, a
//! kernel started with `nox2apic`, and libdune, none of which this project has had. Tested are: the
//! protocol of sender and receiver, on ordinary memory and by loom; the interrupt's way into the
//! context and back, with all registers, in ring 3; the linking with libdune. `guest` does the same
//! under a stock kernel's /dev/kvm, and has been executed.
//!
//! | module | what it holds |
//! |---|---|
//! | `target` | sending: when to notify, and when not to |
//! | `interrupt` | the handler in ring 0 |
//! | `mode` | entering Dune mode, and the interrupt's own stack |
//!
//! Differences from the paper: vector registers are saved, the red zone is left alone, and a lost
//! notification is sent again.
//!
//! Notes:
//! - The program must be linked without PIE (`-C relocation-model=static`) and with the feature
//!   `libdune`.
//! - libdune ignores most signals from its start on, for the whole process: a stack overflow ends
//!   the process without its message, and signals cannot reach a worker that blocks in the kernel.
//!   The runtime's spare workers, which stay outside of Dune mode, keep the other requests running.
//! - Threads stay in Dune mode until they end, and must stay on their CPU.
//! - libdune's system-call entry writes below the stack pointer of the calling code (seen in
//!   libdbos): code that makes a system call from a leaf function with data in its red zone loses
//!   that data. glibc's and Rust's wrappers hold none there.

use std::sync::Arc;

use dune_sys::DeviceError;
use dune_sys::apic::ApicError;

use crate::backend::{Backend, BackendError, BackendKind, Prospect, SenderMode, WorkerMode};
use crate::mechanism::{InterruptError, Mechanism, WorkerLink};
use crate::token::HardPreemption;

#[cfg_attr(
    not(feature = "libdune"),
    allow(dead_code, reason = "libdune alone calls the handler")
)]
mod interrupt;
mod mode;
mod target;

use mode::Receiver;
use target::Target;

pub(crate) const KIND: BackendKind = BackendKind {
    name: NAME,
    prospect: || match Dune::has_device() {
        true => Prospect::ForGood { cost: ASSUMED_COST },
        false => Prospect::Absent,
    },
    install: |token| Ok(Arc::new(Dune::install(token)?)),
    give_up_call: |_| None,
    before_the_call: |_| {},
};

const NAME: &str = "dune";

/// A preemption's assumed cost for the worker, in ns: measuring it would mean entering Dune mode
/// for good. It is some four times the Shinjuku paper's (sections 3.2 and 3.3: 298 cycles for the
/// sender, 1212 for the receiver and 109 for a switch, at 2 GHz), to be safe.
const ASSUMED_COST: u64 = 3_000;

/// Preemption by posted interrupt under Dune, for workers that [entered](crate::Worker::enter) Dune
/// mode, sent by threads that [did](Backend::enter_as_sender).
#[derive(Clone, Copy, Debug)]
pub struct Dune(());

/// Why Dune cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DuneError {
    /// The module's device is absent, or does not answer like Dune.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The program was built without libdune.
    #[error(
        "this program was built without libdune: build it with shinjuku-preempt's feature `libdune`, LIBDUNE_DIR set to where \
         libdune.a is if pkg-config does not know it, and RUSTFLAGS=\"-C relocation-model=static\""
    )]
    NotLinked,
    /// A libdune function failed; libdune has printed more.
    #[error("libdune's {function} failed: {cause}")]
    Libdune {
        /// The function.
        function: &'static str,
        /// The meaning of its answer.
        cause: std::io::Error,
    },
    /// A thread may not change CPUs in Dune mode: interrupts are posted to a CPU.
    #[error(
        "a thread that enters Dune mode must be pinned to one CPU, below {}",
        dune_sys::MAX_CPUS
    )]
    NotPinned,
    /// The APIC's page cannot be used.
    #[error(transparent)]
    Apic(#[from] ApicError),
    /// There is no memory for the interrupt's stack.
    #[error("no memory for an interrupt stack: {0}")]
    Memory(std::io::Error),
}

impl Dune {
    /// Whether there is a `/dev/dune`, of whatever kind.
    #[must_use]
    pub fn has_device() -> bool {
        std::path::Path::new(dune_sys::device::PATH).exists()
    }

    /// Opens `/dev/dune`, checks that Dune answers, and sets libdune up, once a process. Call it
    /// before there are other threads.
    ///
    /// # Errors
    /// [`DuneError`] says what is missing, and how to get it.
    pub fn install(_: HardPreemption) -> Result<Self, DuneError> {
        // libdune opens it again, but reports little about errors.
        drop(dune_sys::Device::open()?);
        mode::set_up()?;
        Ok(Self(()))
    }
}

impl Mechanism for Dune {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interrupt(&self, worker: &WorkerLink) -> Result<(), InterruptError> {
        let refused = |cause: std::io::ErrorKind| InterruptError::Refused {
            thread: worker.thread,
            cause: cause.into(),
        };
        // A thread outside of Dune mode has neither descriptors nor APIC in memory; a worker
        // outside has no target.
        let (Some(memory), Some(target)) = (mode::memory(), worker.mode::<Target>()) else {
            return Err(refused(std::io::ErrorKind::Unsupported));
        };
        target
            .interrupt(&memory.apic, memory.descriptor(target.cpu))
            .map(drop)
            .map_err(|_| refused(std::io::ErrorKind::ResourceBusy))
    }
}

impl Backend for Dune {
    /// The thread stays in Dune mode until it ends.
    fn admit(&self) -> Result<WorkerMode, BackendError> {
        let receiver = Receiver::new(mode::enter()?)?;
        Ok(WorkerMode {
            links: Arc::clone(&receiver.target) as _,
            own: Box::new(receiver),
        })
    }

    fn enter_as_sender(&self) -> Result<SenderMode, BackendError> {
        mode::enter()?;
        Ok(SenderMode::default())
    }

    fn interrupts_outside(&self) -> bool {
        false
    }
}

impl From<DuneError> for BackendError {
    fn from(error: DuneError) -> Self {
        match error {
            DuneError::Device(DeviceError::Absent { .. }) => Self::Unavailable(error.into()),
            _ => Self::Failed(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;

    #[test]
    fn without_dune_there_is_one_clear_line() {
        if std::path::Path::new(dune_sys::device::PATH).exists() {
            println!("SKIPPED without_dune_there_is_one_clear_line: there is a /dev/dune");
            return;
        }
        // SAFETY: nothing is preempted.
        let token = unsafe { HardPreemption::allow() };
        let error = Dune::install(token).expect_err("there is no module");
        assert!(matches!(
            error,
            DuneError::Device(DeviceError::Absent { .. })
        ));
        assert!(!error.to_string().contains('\n'));
    }

    #[test]
    fn a_thread_outside_of_dune_mode_touches_nothing() {
        let link = WorkerLink::of_this_thread(std::sync::Arc::<Counters>::default());
        let InterruptError::Refused { cause, .. } = Dune(())
            .interrupt(&link)
            .expect_err("neither is in Dune mode");
        assert_eq!(cause.kind(), std::io::ErrorKind::Unsupported);
    }
}
