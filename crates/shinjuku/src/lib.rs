//! Microsecond-scale preemptive request scheduling on stock Linux.
#![forbid(unsafe_code)]

mod config;
mod courier;
mod handler;
mod histogram;
mod in_process;
mod layout;
mod request;
mod statistics;
mod ticket;

pub use config::{ClassConfig, Config, ConfigError, CoresConfig, MechanismKind, PolicyConfig, PolicyKind, PreemptionConfig};
pub use handler::{FromFn, RequestContext, RequestHandler, handler_fn};
pub use layout::{Layout, LayoutError, pin_current};
