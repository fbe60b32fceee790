//! Preemptible contexts, and every way to interrupt them.
//!
//! A *context* is a stack with its own thread control block, taken from a parked `std` thread. A
//! *worker* (an OS thread) runs contexts one after another; a context can be taken off its worker
//! at any instruction and resumed later, on whichever worker is free. Because the thread control
//! block moves with the stack, `thread_local!`, `malloc`, `errno`, `Mutex` and panics keep working
//! in the preempted code.
//!
//! The crate is the one home of `unsafe` in the project. Everything it exports is safe to call,
//! except [`HardPreemption::allow`], whose caller promises that code under asynchronous preemption
//! relies on nothing that its contract excludes.
//!
//! ```
//! use shinjuku_preempt::{Generation, Outcome, Pool, PoolConfig, Worker, preempt_point};
//!
//! let pool = Pool::new(PoolConfig::default().contexts(1), |n: u64| {
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
//!     Outcome::Preempted(_) => unreachable!("no preemption was requested"),
//! }
//! assert_eq!(handles.hand_back(idle, std::time::Duration::from_secs(1)).leaked, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `context` | the handles [`Idle`], [`Ready`], [`Suspended`] and the memory behind them |
//! | `pool`, `backing_thread`, `restartable` | making contexts out of parked threads, and giving them back |
//! | `switch`, `x87` | the assembly; the x87 state that it leaves to preemptions |
//! | `current`, `stride` | [`preempt_point`], [`without_preemption`]: the code inside a context; which probes read the clock |
//! | `lend` | [`lend`]: work that borrows, for pools of threads |
//! | `worker`, `service` | [`Worker::run`]: entering and leaving contexts; [`Worker::serve`]: a worker's loop |
//! | `kernel_thread` | contexts that are kernel threads, and which of these threads runs a worker's loop |
//! | `mailbox`, `slots`, `parker` | handing contexts between dispatcher and workers; sleep when there are none |
//! | `handover` | where loops leave a dispatcher for each other |
//! | `parking` | how loops that serve each other's queues sleep, and which one is woken |
//! | `extended_state` | the needs of signal frames beyond general registers |
//! | `compiled` | probes that the compiler inserts: their gate, and what they call (feature `compiled-probes`) |
//! | `mechanism`, `signal`, `timer`, `token` | ways to interrupt, and the permission for the hard ones |
//! | `counters` | what became of preemptions, per worker |
//! | `processor_time` | how long a worker's thread was away from its CPU |
//! | `backend`, `trampoline` | special modes for workers, behind traits; the code that code interrupted there enters |
//! | `guest` (feature `kvm`) | workers in guest mode under /dev/kvm, interrupted by the APIC |
//! | `dune` (feature `dune`) | workers under Dune, interrupted by posted interrupts |
//! | `overflow`, `credentials` | the message of a stack overflow; `setuid` and its family |
//! | `stack_snapshot` | what a worker does in a context, for another thread's report |
//! | `clock`, `platform`, `realtime`, `scheduling`, `affinity` | the TSC, requirements on the machine, SCHED_FIFO, any thread's scheduling class and time slice, cores |
//! | `fault`, `stress` (feature `stress`) | removing one defence; the stress test, which must notice |
//! | `measure` (feature `measure`) | what switches, probes and preemptions cost on this machine |

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!(
    "shinjuku-preempt needs x86-64 Linux with glibc: its context switch is x86-64 assembly that moves the FS \
     base, and its contexts are glibc thread control blocks. Other targets (musl, aarch64, macOS, Windows) \
     are not supported."
);

// First in the list, for its macros.
#[macro_use]
mod switch;

mod affinity;
mod backend;
mod backing_thread;
mod clock;
mod compiled;
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
mod handover;
mod kernel_thread;
mod lend;
mod library_code;
mod mailbox;
#[cfg(feature = "measure")]
pub mod measure;
mod mechanism;
mod overflow;
mod parker;
mod parking;
mod platform;
mod pool;
mod processor_time;
mod realtime;
mod restartable;
mod scheduling;
mod service;
mod signal;
mod slots;
mod stack_snapshot;
#[cfg(feature = "stress")]
pub mod stress;
mod stride;
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
pub use compiled::{CompiledProbes, CompiledProbesError, Outstanding};
pub use context::{
    ContextId, Finished, Generation, Idle, Outcome, Panicked, Ready, Runnable, Suspended,
};
pub use counters::{Counters, CountersSnapshot};
pub use current::{
    current_context, current_worker, give_way_until, in_context, preempt_point, preemptions,
    without_preemption,
};
pub use handover::Handover;
pub use kernel_thread::ContextKind;
pub use lend::{Lender, Lent, Work, lend};
pub use mailbox::{
    Completion, Dispatched, LastAnswer, MAX_DEPTH, QuantumEnd, Receiver, Sender, mailbox,
};
pub use mechanism::{InterruptError, Mechanism, Probe, WorkerLink};
pub use parker::Parker;
pub use parking::Parking;
pub use platform::{Unsupported, check_platform};
pub use pool::{HandBack, Handles, Pool, PoolConfig, PoolError};
pub use processor_time::ProcessorTime;
pub use realtime::{Realtime, RealtimeError};
pub use scheduling::{SchedulingClass, request_slice};
pub use service::{Service, Step};
pub use signal::{Signal, SignalError};
pub use stack_snapshot::{StackSnapshot, StackSnapshots};
pub use timer::{DeadlineTimer, RemoteTimer, TimerError};
pub use token::HardPreemption;
pub use worker::{Ended, Listener, Successor, Worker};

/// The backends that this build has, the paper's own first.
pub static BACKENDS: &[BackendKind] = &[
    #[cfg(feature = "dune")]
    dune::KIND,
    #[cfg(feature = "kvm")]
    guest::KIND,
];
