//! Microsecond-scale preemptive request scheduling on stock Linux.
//!
//! A server's requests vary from half a microsecond to milliseconds. Here one dispatcher sees them
//! all, and a request that runs longer than some microseconds while others wait is preempted and
//! goes on later, on whichever worker is free. It is Shinjuku (Kaffes et al., NSDI'19) for ordinary
//! Rust: handlers allocate, lock, panic and use thread-locals as ever.
//!
//! ```
//! use shinjuku::policy::ClassId;
//! use shinjuku::{Runtime, handler_fn, preemptible};
//! use std::time::Duration;
//!
//! /// From nanoseconds to milliseconds; its loops have probes.
//! #[preemptible]
//! fn collatz(start: u64) -> u64 {
//!     let (mut n, mut steps) = (start, 0);
//!     while n != 1 {
//!         n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
//!         steps += 1;
//!     }
//!     steps
//! }
//!
//! let runtime = Runtime::builder(handler_fn(collatz)).start()?;
//! let ticket = runtime.handle().submit(ClassId(0), 27)?;
//! assert_eq!(ticket.wait()?, 111);
//! assert!(runtime.shutdown(Duration::from_secs(1)).is_clean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`RequestHandler`] is what you implement (or [`handler_fn`]); [`Builder`] and [`Config`] set
//!   the runtime up.
//! - [`Runtime`] serves requests submitted in this process: from any thread, answered by a
//!   [`Ticket`] that blocks, polls, or is a `Future`. [`Server`] serves a [`net::Transport`], such
//!   as [`net::udp`].
//! - [`Pool`] runs closures of any type, awaited under any async runtime; [`guide::pool`] is about
//!   services.
//! - Code is preempted where it has probes, which [`preemptible`] puts into its loops; with
//!   [`Builder::allow_hard_preemption`] anywhere. [`without_preemption`] holds it off.
//! - [`policy`] has the scheduling policies and the trait to write one; the default is c-PRE-SQ
//!   with 5 us.
//! - [`Runtime`] and [`Server`] give [`Statistics`]; an [`Observer`] gives them to other threads.
//! - [`error`] names every error. [`guide`] is the manual.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `compiled-probes` | `preemption.mechanism = "compiled-probe"`, and compiled probes in `escalation` and `auto`: [`guide::compiled_probes`] |
//! | `kvm` | `preemption.mechanism = "guest"`: workers in guest mode under /dev/kvm |
//! | `dune` | `preemption.mechanism = "dune"`: workers under Dune, a kernel module; of use with `libdune` only |
//! | `libdune` | `dune`, linked with libdune |
//! | `backtraces` | stalls are reported with backtraces: [`guide::watching`] |
//! | `metrics` | the module `metrics`: statistics through the `metrics` facade |
//! | `backtraces` | backtraces of the requests that stall their worker: [`guide::watching`] |
//!
//! Requests without the kernel, over DPDK or AF_XDP, come by a transport of the crate
//! `shinjuku-dataplane`.
#![forbid(unsafe_code)]

mod answer;
mod builder;
mod calibrate;
mod change_log;
mod completion_thread;
pub mod config;
mod description;
mod dispatcher;
mod entry;
pub mod guide;
mod handler;
mod in_process;
mod layout;
mod learned;
mod load_profile;
mod loops;
#[cfg(feature = "metrics")]
pub mod metrics;
mod networker;
mod observer;
mod on_cpu;
mod pool;
mod preemption;
mod quantum_floor;
mod queued;
mod request;
mod runtime;
mod stalls;
mod start_error;
mod started;
mod statistics;
#[cfg(feature = "stub-workers")]
#[doc(hidden)]
pub mod stub;
mod threads;
mod ticket;
pub mod timeline;
mod watch;
mod worker;
mod worker_state;
mod worker_thread;

/// Every error of this crate, and those that [`StartError`] wraps.
///
/// ```
/// use shinjuku::error::{RealtimeError, StartError};
/// use shinjuku::{Runtime, handler_fn};
///
/// let builder = || Runtime::builder(handler_fn(|n: u64| n)).workers(1);
/// let runtime = match builder().realtime_priority(10).start() {
///     Err(StartError::Realtime(RealtimeError::Refused(cause))) => {
///         eprintln!("without real-time priority: {cause}");
///         builder().start()?
///     }
///     started => started?,
/// };
/// # drop(runtime);
/// # Ok::<(), StartError>(())
/// ```
pub mod error {
    pub use shinjuku_policy::{ParameterError, PolicyError};
    #[cfg(feature = "dune")]
    pub use shinjuku_preempt::dune::DuneError;
    #[cfg(feature = "kvm")]
    pub use shinjuku_preempt::guest::GuestError;
    pub use shinjuku_preempt::{
        BackendError, CompiledProbesError, PoolError, RealtimeError, SignalError, TimerError,
        Unsupported,
    };

    pub use crate::config::ConfigError;
    pub use crate::in_process::SubmitError;
    pub use crate::layout::LayoutError;
    pub use crate::pool::{Cancelled, RunError};
    pub use crate::start_error::StartError;
    pub use crate::ticket::TicketError;
    pub use crate::timeline::RecordError;
    pub use crate::watch::WatchError;
}

pub use builder::Builder;
pub use config::{
    ClassConfig, Config, ConfigError, ContextKind, CoresConfig, DispatcherConfig, Help, LayoutKind,
    MechanismKind, PolicyConfig, PreemptionConfig, QuantaKind, StallsConfig,
};
pub use handler::{RequestContext, RequestHandler, handler_fn};
pub use in_process::{Handle, SubmitError, SubmitOptions};
pub use layout::unpin_current;
pub use networker::{Networker, NetworkerConfig};
pub use observer::Observer;
pub use pool::{
    Cancelled, Class, Job, Panic, Pool, PoolBuilder, RunError, RunOptions, Scope, ScopedJob,
    cancellation_point, cancellation_point_or_unwind,
};
pub use preemption::QuantumInForce;
pub use queued::{QueuedRequest, QueuedRequests};
pub use runtime::{Runtime, Server, ShutdownReport};
pub use shinjuku_macros::preemptible;
pub use shinjuku_net as net;
pub use shinjuku_policy as policy;
pub use shinjuku_preempt::{HardPreemption, preempt_point, without_preemption};
pub use stalls::Stalls;
pub use start_error::StartError;
pub use started::{StartedRequest, ThreadState};
pub use statistics::{ClassStatistics, Histogram, Preemptions, Refusals, Statistics};
pub use ticket::{Ticket, TicketError};
pub use watch::WatchSocket;
