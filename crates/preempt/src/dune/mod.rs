//! Preemption by posted interrupt under Dune, Shinjuku's own way (NSDI'19, section 3.2): dispatcher
//! and workers run in guest mode, entered through a kernel module; the dispatcher writes to its
//! APIC itself, and the worker's CPU takes the interrupt without leaving guest mode.
//!
//! **Never executed.** It needs an Intel CPU with VT-x and posted interrupts, Dune's module, a
//! kernel started with `nox2apic`, and libdune, none of which this project has had. What is tested:
//! the protocol of sender and receiver, on ordinary memory and by loom; the interrupt's way into
//! the context and back, with all registers, in ring 3; that it links with libdune. `guest` does
//! the same under a stock kernel's /dev/kvm, and does run.
//!
//! | room | what it holds |
//! |---|---|
//! | `target` | sending: when to notify, and when not to |
//! | `interrupt` | the handler in ring 0 |
//! | `mode` | entering Dune mode, and the interrupt's own stack |
//!
//! What differs from the paper's: vector registers are saved, the red zone is left alone, and a
//! notification that got lost is sent again.
//!
//! What to know:
//! - The program must be linked without PIE (`-C relocation-model=static`) and with the feature
//!   `libdune`.
//! - libdune ignores most signals from its start on, for the whole process: a stack overflow ends
//!   without its message, and signals cannot reach a worker that blocks in the kernel. The
//!   runtime's spare workers, which stay outside of Dune mode, get the others on.
//! - Threads stay in Dune mode until they end, and must stay on their CPU.
//! - libdune's system-call entry writes below the stack pointer of the code that calls (seen in
//!   libdbos): code that makes a system call from a leaf function with data in its red zone loses
//!   it. glibc's and Rust's wrappers hold none there.

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

/// What a preemption is taken to cost the worker, ns: to measure it is to enter Dune mode for good.
/// Some four times what the Shinjuku paper has (sections 3.2 and 3.3: 298 cycles for the sender,
/// 1212 for the receiver and 109 for a switch, at 2 GHz), to be safe.
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
    /// The program has no libdune in it.
    #[error(
        "this program was built without libdune: build it with shinjuku-preempt's feature `libdune`, LIBDUNE_DIR set to where \
         libdune.a is, and RUSTFLAGS=\"-C relocation-model=static\""
    )]
    NotLinked,
    /// libdune could not do something; it has printed more.
    #[error("libdune's {function} failed: {cause}")]
    Libdune {
        /// The function.
        function: &'static str,
        /// What its answer means.
        cause: std::io::Error,
    },
    /// A thread may not change CPUs in Dune mode: interrupts are posted to a CPU.
    #[error(
        "a thread that enters Dune mode must be pinned to one CPU, below {}",
        dune_sys::MAX_CPUS
    )]
    NotPinned,
    /// The APIC's page does not serve.
    #[error(transparent)]
    Apic(#[from] ApicError),
    /// There is no memory for the interrupt's stack.
    #[error("no memory for an interrupt stack: {0}")]
    Memory(std::io::Error),
}

impl Dune {
    /// Whether there is a `/dev/dune`, whatever it may be.
    #[must_use]
    pub fn has_device() -> bool {
        std::path::Path::new(dune_sys::device::PATH).exists()
    }

    /// Opens `/dev/dune`, makes sure that Dune answers, and sets libdune up, once a process. To be
    /// called before there are other threads.
    ///
    /// # Errors
    /// [`DuneError`] says what is missing, and what to do about it.
    pub fn install(_: HardPreemption) -> Result<Self, DuneError> {
        // libdune opens it again, but says little about what is wrong with it.
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
        // Of a thread outside of Dune mode, neither descriptors nor APIC are in memory; a worker
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
