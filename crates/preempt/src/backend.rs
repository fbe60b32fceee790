//! Special modes of the CPU that workers run in, so that interrupts reach them without the kernel's
//! signal path.
//!
//! The core knows such a mode only by the traits here. A mode is a folder of its own and a line in
//! [`BACKENDS`](crate::BACKENDS).
//!
//! | | held by | for |
//! |---|---|---|
//! | [`BackendKind`] | the crate, a constant | questions before a backend is installed, and the functions that interrupted code needs at once |
//! | [`Backend`] | the code that starts workers | taking workers into the mode; it is the [`Mechanism`] that interrupts them there |
//! | [`Mode`] | a worker's head | the worker's steps on its way into a context, and at its end |
//! | [`ModeLink`] | a worker's links | the data with which the backend interrupts that worker |

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::context::Head;
use crate::mechanism::{Mechanism, WorkerLink};
use crate::token::HardPreemption;
use crate::trampoline::Saved;

/// A special mode, set up for this process. As a [`Mechanism`] it interrupts the workers that
/// [entered](crate::Worker::enter) it. Only this crate implements it.
pub trait Backend: Mechanism + Debug {
    /// The calling thread's part of the mode, for a worker.
    #[doc(hidden)]
    fn admit(&self) -> Result<WorkerMode, BackendError>;

    /// Takes the calling thread, which must be pinned to a CPU and is no worker, to where it can
    /// interrupt workers; until the answer is dropped, or for good. Does nothing if any thread can.
    ///
    /// # Errors
    /// [`BackendError`] if the thread cannot get there; it goes on as before.
    fn enter_as_sender(&self) -> Result<SenderMode, BackendError> {
        Ok(SenderMode::default())
    }

    /// Whether workers that did not enter the mode are also interrupted, by signal.
    fn interrupts_outside(&self) -> bool;

    /// How interrupts come to `workers` that are in the mode, taken together, as counted. `None` if
    /// that is not counted.
    fn delivery_to(&self, workers: &[WorkerLink]) -> Option<Delivery> {
        let _ = workers;
        None
    }

    /// What happened to `workers` in the mode, by name, summed.
    fn events_of(&self, workers: &[WorkerLink]) -> Vec<(&'static str, u64)> {
        let _ = workers;
        Vec::new()
    }
}

/// A kind of [`Backend`] that this build has; [`BACKENDS`](crate::BACKENDS) lists them.
#[derive(Clone, Copy, Debug)]
pub struct BackendKind {
    /// The mechanism's name.
    pub(crate) name: &'static str,
    pub(crate) prospect: fn() -> Prospect,
    pub(crate) install: fn(HardPreemption) -> Result<Arc<dyn Backend>, BackendError>,
    /// A signal found the worker's own code at this instruction. If that code is about to make, or
    /// waits in, a system call for a context, returns where the code resumes so that the call is
    /// abandoned.
    pub(crate) give_up_call: fn(usize) -> Option<usize>,
    /// An interrupt sent the code in these registers to the trampoline. This may set the registers
    /// back, to a place where any worker can resume the code.
    pub(crate) before_the_call: fn(&mut Saved),
}

impl BackendKind {
    /// The backend's name, which is its [mechanism's](Mechanism::name).
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The backend's prospect on this machine. Sets nothing up.
    #[must_use]
    pub fn prospect(&self) -> Prospect {
        (self.prospect)()
    }

    /// Sets the mode up for this process. Call it before there are other threads.
    ///
    /// # Errors
    /// [`BackendError`] says what is missing, and how to get it.
    pub fn install(&self, token: HardPreemption) -> Result<Arc<dyn Backend>, BackendError> {
        (self.install)(token)
    }
}

/// What a backend promises on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Prospect {
    /// The machine has nothing for this backend.
    Absent,
    /// A process that sets the backend up cannot leave it, and signals do not reach its threads.
    /// Until a preemption is measured, its cost for the worker is taken to be `cost`.
    ForGood {
        /// Nanoseconds.
        cost: u64,
    },
    /// Workers can enter and leave, so that the cost can be measured. If the backend can be set up,
    /// interrupts come like this.
    Measurable(Delivery),
}

/// How interrupts come to workers in a mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Delivery {
    /// Posted by VT-x (APICv) or SVM (AVIC) without leaving the mode, as counted.
    Posted(&'static str),
    /// The CPU leaves the mode, and the kernel injects the interrupts.
    Injected,
    /// The CPU has no virtualisation: software replaces it (nested, without hardware support).
    Software,
    /// The kernel says that it can post interrupts, but counting does not show it: few have arrived
    /// yet, or the kernel's counters are not available, or the host interrupted the CPU about as
    /// often.
    Unproven(&'static str),
}

impl std::fmt::Display for Delivery {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Posted(by) => write!(formatter, "posted by {by}, as counted"),
            Self::Injected => formatter.write_str("injected with exits"),
            Self::Software => formatter.write_str("by software virtualisation"),
            Self::Unproven(by) => write!(formatter, "{by} is on; not proved by counting"),
        }
    }
}

/// Why a backend cannot be used, or a thread cannot enter its mode. It displays as the backend's
/// own error, which it contains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// This machine has no device for it, or not for this user.
    #[error(transparent)]
    Unavailable(Box<dyn std::error::Error + Send + Sync>),
    /// Any other error.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl BackendError {
    /// The backend's own error, if it is a `Cause`.
    #[must_use]
    pub fn downcast_ref<Cause: std::error::Error + 'static>(&self) -> Option<&Cause> {
        let (Self::Unavailable(cause) | Self::Failed(cause)) = self;
        cause.downcast_ref()
    }
}

/// A worker's part of a mode. Only backends make one.
#[derive(Debug)]
pub struct WorkerMode {
    pub(crate) own: Box<dyn Mode>,
    pub(crate) links: Arc<dyn ModeLink>,
}

/// A sender's part of a mode, if it has one.
#[derive(Default, Debug)]
#[must_use = "the thread leaves the mode when this is dropped"]
pub struct SenderMode {
    _own: Option<Box<dyn Any>>,
}

impl SenderMode {
    /// Left when `own` is dropped.
    #[allow(dead_code, reason = "for backends, of which a build may have none")]
    pub(crate) fn until_dropped(own: impl Any) -> Self {
        Self {
            _own: Some(Box::new(own)),
        }
    }
}

/// The worker's side of its mode. Dropped on the worker's thread, after [`leave`](Self::leave).
pub(crate) trait Mode: Debug {
    /// Called before the worker enters `head`. Returns the interrupts since the last call that came
    /// to its own code.
    ///
    /// # Safety
    /// The thread is the worker's, in its own code.
    unsafe fn before_entering(&self, head: &Head) -> u64;

    /// Takes the thread out of the mode until it enters a context again, if that is possible.
    ///
    /// # Safety
    /// As for [`before_entering`](Self::before_entering).
    unsafe fn leave(&self) {}

    /// Whether the thread is known to have a signal mask other than `mask` now.
    fn has_other_mask(&self, mask: u64) -> bool {
        let _ = mask;
        false
    }
}

/// The data through which others reach a worker in a mode.
pub(crate) trait ModeLink: Any + Debug + Send + Sync {}

impl WorkerLink {
    /// The link that a backend's workers give to others, if the worker is one of them.
    #[allow(dead_code, reason = "for backends, of which a build may have none")]
    pub(crate) fn mode<L: ModeLink>(&self) -> Option<&L> {
        let link: &dyn Any = self.mode.as_deref()?;
        link.downcast_ref()
    }
}
