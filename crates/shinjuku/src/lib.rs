//! Microsecond-scale preemptive request scheduling on stock Linux.
#![forbid(unsafe_code)]

mod calibrate;
mod config;
mod courier;
mod desk;
mod dispatcher;
mod floor;
mod handler;
mod histogram;
mod in_process;
mod layout;
mod preemption;
mod request;
mod runtime;
mod statistics;
#[cfg(feature = "stub-workers")]
#[doc(hidden)]
pub mod stub;
mod ticket;
mod worker;

pub use config::{
    ClassConfig, Config, ConfigError, CoresConfig, MechanismKind, PolicyConfig, PolicyKind,
    PreemptionConfig,
};
pub use handler::{FromFn, RequestContext, RequestHandler, handler_fn};
pub use in_process::{Handle, SubmitError, SubmitOptions};
pub use layout::{Layout, LayoutError};
pub use runtime::{Builder, Runtime, Server, ShutdownReport, StartError};
pub use shinjuku_macros::preemptible;
pub use shinjuku_net as net;
pub use shinjuku_policy as policy;
pub use shinjuku_preempt::{HardPreemption, in_context, preempt_point, without_preemption};
pub use statistics::{ClassStatistics, Preemptions, Refusals, Statistics};
pub use ticket::{Ticket, TicketError};
