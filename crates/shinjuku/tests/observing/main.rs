//! What can be seen of a runtime: metrics, timelines, the watch socket, and the log of `auto`.
#![allow(missing_docs)]

mod auto;
#[cfg(feature = "metrics")]
mod metrics;
mod timeline;
mod watch;
