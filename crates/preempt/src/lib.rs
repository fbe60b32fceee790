//! Preemptible contexts, and every way to interrupt them.
//!
//! A *context* is a stack with its own thread control block, donated by a parked `std` thread. A
//! *worker* (an OS thread) runs contexts one after another; a context can be taken off its worker
//! at any instruction and go on later, on whichever worker is free. Because the thread control
//! block travels with the stack, `thread_local!`, `malloc`, `errno`, `Mutex` and panics keep
//! working in the code that is preempted.
//!
//! The crate is the one home of `unsafe` in the project: everything it exports is safe to call, but
//! for [`HardPreemption::allow`], whose caller promises what code under asynchronous preemption
//! must not rely on.
//!
//! ```
//! use shinjuku_preempt::{Generation, Outcome, Pool, PoolConfig, Worker, preempt_point};
//!
//! let pool = Pool::new(PoolConfig { contexts: 1, ..PoolConfig::default() }, |n: u64| {
//!     (0..n).map(|i| { preempt_point(); i }).sum::<u64>()
//! })?;
//! let (handles, mut idle) = (pool.handles, pool.idle);
//! let mut worker = Worker::bind(0)?;
//! let ready = idle.pop().unwrap().load(10);
//! match worker.run(ready.into(), Generation(1)) {
//!     Outcome::Finished(finished) => {
//!         let (context, sum) = finished.take();
//!         assert_eq!(sum.unwrap(), 45);
//!         idle.push(context);
//!     }
//!     Outcome::Preempted(_) => unreachable!("nobody asked for it"),
//! }
//! assert_eq!(handles.hand_back(idle, std::time::Duration::from_secs(1)).leaked, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | room | what it holds |
//! |---|---|
//! | `context` | the handles [`Idle`], [`Ready`], [`Suspended`] and the memory behind them |
//! | `pool`, `backing_thread`, `restartable` | making contexts out of parked threads, and giving them back |
//! | `switch`, `x87` | the assembly; what of the x87 it leaves to preemptions |
//! | `current` | [`preempt_point`], [`without_preemption`]: what runs inside a context |
//! | `worker` | [`Worker::run`]: entering and leaving contexts |
//! | `mailbox`, `slots`, `parker` | handing contexts between dispatcher and workers; sleep when there are none |
//! | `extended_state` | what signal frames need of a thread beyond general registers |
//! | `mechanism`, `probe`, `signal`, `timer`, `token` | ways to interrupt, and the permission for the hard ones |
//! | `backend`, `trampoline` | special modes for workers, as the rest sees them; where code goes on that was interrupted there |
//! | `guest` (feature `kvm`) | workers in guest mode under /dev/kvm, interrupted by the APIC |
//! | `dune` (feature `dune`) | workers under Dune, interrupted by posted interrupts |
//! | `overflow`, `credentials` | what a stack overflow says before it dies; `setuid` and its family |
//! | `clock`, `platform`, `realtime`, `affinity` | the TSC, what the machine must offer, SCHED_FIFO, cores |

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!(
    "shinjuku-preempt needs x86-64 Linux with glibc: its context switch is x86-64 assembly that moves the FS \
     base, and its contexts are glibc thread control blocks. Other targets (musl, aarch64, macOS, Windows) \
     are not supported."
);

// First, for its macros.
#[macro_use]
mod switch;

mod affinity;
mod backend;
mod backing_thread;
mod clock;
mod context;
mod counters;
mod credentials;
mod current;
#[cfg(feature = "dune")]
pub mod dune;
mod extended_state;
pub mod fault;
#[cfg(feature = "kvm")]
pub mod guest;
mod mailbox;
#[cfg(feature = "measure")]
pub mod measure;
mod mechanism;
mod overflow;
mod parker;
mod platform;
mod pool;
mod probe;
mod realtime;
mod restartable;
mod signal;
mod slots;
#[cfg(feature = "stress")]
pub mod stress;
mod timer;
mod token;
#[cfg_attr(
    not(any(feature = "libdune", feature = "kvm")),
    allow(dead_code, reason = "backends alone send code there")
)]
mod trampoline;
mod worker;
mod x87;

pub use affinity::Affinity;
pub use backend::{Backend, BackendError, BackendKind, Delivery, Prospect, SenderMode};
pub use clock::{Clock, Cycles};
pub use context::{
    ContextId, Finished, Generation, Idle, Outcome, Panicked, Ready, Runnable, Suspended,
};
pub use counters::{Counters, CountersSnapshot};
pub use current::{current_worker, in_context, preempt_point, without_preemption};
pub use mailbox::{Completion, Dispatched, MAX_DEPTH, Receiver, Sender, mailbox};
pub use mechanism::{InterruptError, Mechanism, WorkerLink};
pub use parker::Parker;
pub use platform::{Unsupported, check_platform};
pub use pool::{HandBack, Handles, Pool, PoolConfig, PoolError};
pub use probe::Probe;
pub use realtime::{Realtime, RealtimeError};
pub use signal::{Signal, SignalError};
pub use timer::{DeadlineTimer, TimerError};
pub use token::HardPreemption;
pub use worker::{Ended, Successor, Worker};

/// The backends that this build has, the paper's own first.
pub static BACKENDS: &[BackendKind] = &[
    #[cfg(feature = "dune")]
    dune::KIND,
    #[cfg(feature = "kvm")]
    guest::KIND,
];
